//! What does the file say about lookups? (`[reconcile]`, `[lookups.NAME]`, `[effects.KIND.lookup]`)

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use retrysafe::upkeep::{LookupPauses, Schedule};
use retrysafe_core::policy::Absence;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::blot;
use super::length::Length;
use super::outcomes_file::{OutcomesFile, WhenFile};

/// How unknown outcomes are looked up: at the upstream, or at whoever could know.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LookupFile {
    /// What to ask: a path of the upstream, or a whole URL. `{id}`, `{fence}` and `{path}` stand for the record's; `{key}` for the key
    /// with which a call or an effect was sent; `{from}` and `{until}` for a window of time, in seconds, `{from_iso}` and
    /// `{until_iso}` for the same as dates.
    pub url: String,
    /// Headers to send along, such as an `Authorization` of the gateway's own.
    pub headers: BTreeMap<String, String>,
    /// Which routes are looked up here, by their paths. Of `[lookups.NAME]`; `[reconcile]` is for all others.
    pub routes: Option<Vec<String>>,
    /// Which call of which flow is looked up here. Of `[lookups.NAME]`.
    pub call: Option<CallFile>,
    /// Where in the answer's JSON the state stands, as a JSON pointer; `/state` unless it is set.
    pub pointer: Option<String>,
    /// Values there that mean it was executed; `executed` unless they are set.
    pub executed: Option<Vec<String>>,
    /// Values there that mean it was not executed and cannot be any more; `not_executed` unless
    /// they are set.
    pub not_executed: Option<Vec<String>>,
    /// Values there that mean it is under way; `pending` unless they are set.
    pub pending: Option<Vec<String>>,
    /// Where in the answer's JSON the answer to replay stands, as a JSON pointer, in the form of the
    /// admin interface.
    pub response: Option<String>,
    /// What the states of the answers mean, where one pointer and three lists do not say it.
    pub outcomes: Option<OutcomesFile>,
    /// Statuses that mean that nobody knows it there; 404 unless they are set. What that proves
    /// is up to the route's `absence`.
    pub absent_statuses: Option<Vec<u16>>,
    /// What stands in an answer that means that nobody knows it there, such as `{ "/data/found" = false }`. An answer with one of
    /// `absent_statuses` must fit it too.
    pub absent_when: Option<WhenFile>,
    /// Where the provider has no look-up by key: how its list is read.
    pub list: Option<ListFile>,
    /// How long a lookup may take.
    pub timeout: Option<Length>,
    /// How often what is unknown and due is looked for.
    pub every: Option<Length>,
    /// The pauses between lookups, such as `10s, 1m, 5×5m`, as one text or as a list: the first one from the moment on at which the outcome became unknown. When they
    /// are used up, a person must decide.
    pub schedule: Option<ScheduleText>,
    /// How many lookups begin in a second. As many as are due unless it is set.
    pub per_second: Option<NonZeroU32>,
    /// How many lookups are under way at once.
    pub at_once: Option<NonZeroU32>,
    /// How long an outcome must have been seen as unknown before an absence may count as proof, by
    /// a clock that cannot leap. At least `lease` and `upstream_timeout` together.
    pub settle_time: Option<Length>,
    /// Whether it proves that an effect was not done if its receiver does not know it. Of `[effects.KIND.lookup]`; routes have a
    /// setting of their own.
    pub absence: Option<LookupAbsence>,
}

/// Whether an absence proves anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LookupAbsence {
    /// It does not.
    Inconclusive,
    /// After the settle time it does.
    Proof,
}

impl From<LookupAbsence> for Absence {
    fn from(absence: LookupAbsence) -> Self {
        match absence {
            LookupAbsence::Inconclusive => Self::Inconclusive,
            LookupAbsence::Proof => Self::Proof,
        }
    }
}

/// A call of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CallFile {
    /// The flow's name.
    pub flow: String,
    /// The name of the phase that makes the call: the call's key is made of it.
    pub phase: String,
    /// The place of that phase in its flow, counted from 0, as `retrysafe keys show` shows it.
    pub number: u16,
}

/// How a provider's list is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListFile {
    /// Where in a page the items stand, as a JSON pointer; the page is the list unless it is set.
    pub items: Option<String>,
    /// Where in an item stands what it was sent with: `{id}` of a request, `{key}` of a call or an effect.
    pub key: Option<String>,
    /// How the next page is found: `link` for the header `Link` with `rel="next"`, a JSON pointer to the next page's URL or cursor,
    /// `last:` and a JSON pointer into the last item, or `none` where one page is the whole list.
    pub next: Option<String>,
    /// The parameter of the URL that takes the cursor.
    pub parameter: Option<String>,
    /// Where in a page it stands whether there are more, as a JSON pointer to a boolean.
    pub more: Option<String>,
    /// How many pages are read at the most; 20 unless it is set. A longer list is not complete, and what it lacks proves nothing.
    pub pages_max: Option<NonZeroU32>,
    /// How long before the request began the window of time opens, for clocks that differ; five minutes unless it is set.
    pub window_before: Option<Length>,
}

/// A schedule as people write it: `10s, 1m, 5×5m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScheduleText(pub LookupPauses);

impl<'de> Deserialize<'de> for ScheduleText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// One text, or a list of its entries.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum TextOrEntries {
            Text(String),
            Entries(Vec<String>),
        }
        let text = match TextOrEntries::deserialize(from) {
            Ok(TextOrEntries::Text(text)) => text,
            Ok(TextOrEntries::Entries(entries)) => entries.join(", "),
            Err(_) => return Err(de::Error::custom("is not a schedule such as \"10s, 1m, 5×5m\"")),
        };
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

impl Serialize for ScheduleText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl JsonSchema for ScheduleText {
    fn schema_name() -> Cow<'static, str> {
        "Schedule".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "array"],
            "items": { "type": "string" },
            "pattern": "^ *([0-9]+ *[×x] *)?[0-9]+ *(ms|s|m|h|d) *(, *([0-9]+ *[×x] *)?[0-9]+ *(ms|s|m|h|d) *)*$",
            "examples": ["10s, 1m, 5×5m, 4×30m, 4×6h"],
        })
    }
}

impl LookupFile {
    pub(crate) fn settle_time(&self) -> Duration {
        self.settle_time.map_or_else(|| Schedule::default().settle_time, |length| length.0)
    }

    /// When to ask, and how fast.
    pub(crate) fn schedule(&self) -> Schedule {
        let default = Schedule::default();
        let at_once =
            self.at_once.map(|number| usize::try_from(number.get()).unwrap_or(usize::MAX));
        Schedule {
            pauses: self.schedule.as_ref().map_or(default.pauses, |text| text.0.clone()),
            look_every: self.every.map_or(default.look_every, |length| length.0),
            lookup_max: self.timeout.map_or(default.lookup_max, |length| length.0),
            settle_time: self.settle_time(),
            at_once: at_once.unwrap_or(default.at_once),
            per_second: self.per_second,
            route: None,
        }
    }

    /// With everything that holds, for whoever prints it, and without what may be a secret.
    pub(crate) fn show_whole(&mut self) {
        self.headers.values_mut().for_each(|value| *value = "…".into());
        self.url = blot::without_values(&self.url);
        let schedule = self.schedule();
        self.schedule = Some(ScheduleText(schedule.pauses));
        self.settle_time = Some(Length(schedule.settle_time));
        self.timeout = Some(Length(schedule.lookup_max));
        self.every = Some(Length(schedule.look_every));
    }
}
