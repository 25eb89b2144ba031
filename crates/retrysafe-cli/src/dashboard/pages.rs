//! Which pages are there, and what stands on them?
//!
//! Everything that a template writes is escaped unless the template says otherwise, and none does.

use super::form::AskedDecision;
use super::history::{Growth, RecentNumbers};
use super::meters;
use super::picture::Picture;
use super::shown::{EffectList, KeyList, Reader, ShownEffect, ShownKey, ShownKinds, ShownPreview};
use super::shown_house::{
    EventList, LedgerList, ShownEvent, ShownSettings, ShownStore, ShownUpstream,
};
use askama::Template;
use jiff::Timestamp;
use serde_json::Value;

/// What stands at the top of every page.
pub(super) struct Head {
    pub reader: Reader,
    pub form_key: String,
    /// Which entry of the menu this is.
    pub here: &'static str,
}

#[derive(Template)]
#[template(path = "login.html")]
pub(super) struct LoginPage<'a> {
    pub next: &'a str,
    pub is_wrong: bool,
}

#[derive(Template)]
#[template(path = "overview.html")]
pub(super) struct OverviewPage {
    pub head: Head,
    pub recent: RecentNumbers,
    pub is_ready: bool,
    /// How the store is, in a word.
    pub store_word: String,
    /// What is known of it; nothing while it does not answer.
    pub store: Option<ShownStore>,
    pub upstreams: Vec<ShownUpstream>,
    pub is_stopping: bool,
}

/// A line of the table of outcomes.
pub(super) struct CountRow {
    name: &'static str,
    text: &'static str,
    count: f64,
    rate: String,
}

#[derive(Template)]
#[template(path = "unknown.html")]
pub(super) struct UnknownPage {
    pub head: Head,
    pub list: KeyList,
    /// How many there are, counted for this page; and as the metrics say it, which may be some seconds behind.
    pub unknown: f64,
    pub gauged: f64,
    pub dead_lettered: f64,
    /// How many are read for the page.
    pub read_max: f64,
    /// The store's clock.
    pub now: String,
    /// Whether only those are listed that wait for a person.
    pub is_for_people: bool,
}

#[derive(Template)]
#[template(path = "search.html")]
pub(super) struct SearchPage {
    pub head: Head,
    pub text: String,
    pub state: String,
    pub route: String,
    pub scope: String,
    pub path: String,
    pub list: KeyList,
    /// The rest of the search, if there is one.
    pub next: Option<String>,
}

#[derive(Template)]
#[template(path = "story.html")]
pub(super) struct StoryPage {
    pub head: Head,
    pub key: ShownKey,
    pub picture: Picture,
}

#[derive(Template)]
#[template(path = "preview.html")]
pub(super) struct PreviewPage {
    pub head: Head,
    pub id: String,
    pub asked: AskedDecision,
    pub preview: ShownPreview,
}

#[derive(Template)]
#[template(path = "outbox.html")]
pub(super) struct OutboxPage {
    pub head: Head,
    pub kinds: ShownKinds,
    pub list: EffectList,
    /// Why there are none at all.
    pub absent: Option<String>,
    pub state: String,
    pub kind: String,
}

#[derive(Template)]
#[template(path = "inbox.html")]
pub(super) struct InboxPage {
    pub head: Head,
    pub list: EventList,
    /// Why there are none at all.
    pub absent: Option<String>,
    pub state: String,
    pub provider: String,
}

#[derive(Template)]
#[template(path = "event.html")]
pub(super) struct EventPage {
    pub head: Head,
    pub event: ShownEvent,
}

#[derive(Template)]
#[template(path = "store.html")]
pub(super) struct StorePage {
    pub head: Head,
    pub store: ShownStore,
    pub recent: RecentNumbers,
    pub growth: Vec<Growth>,
    pub readiness: Value,
}

#[derive(Template)]
#[template(path = "ledger.html")]
pub(super) struct LedgerPage {
    pub head: Head,
    pub list: LedgerList,
}

#[derive(Template)]
#[template(path = "settings.html")]
pub(super) struct SettingsPage {
    pub head: Head,
    pub settings: ShownSettings,
}

#[derive(Template)]
#[template(path = "effect.html")]
pub(super) struct EffectPage {
    pub head: Head,
    pub effect: ShownEffect,
}

/// What each count of the overview counts.
const COUNTS: [(&str, &str); 9] = [
    ("requests", "requests"),
    ("executed", "executed: new keys, and keys that were released"),
    ("replayed", "replayed from the record"),
    ("in_progress_told", "told \"in progress\""),
    ("unknown_told", "told \"outcome unknown\""),
    ("misuse", "key used for another request, or by another credential"),
    ("refused", "refused for another reason"),
    ("upstream_failures", "failures of the upstream"),
    ("store_errors", "errors of the store"),
];

impl OverviewPage {
    fn oldest(&self) -> String {
        meters::seconds(self.recent.now.unknown_oldest_seconds)
    }

    fn held(&self) -> String {
        meters::bytes(self.recent.now.held_bytes)
    }

    fn rows(&self) -> Vec<CountRow> {
        let counted = self.recent.now.counts();
        let row = |(name, text): (&'static str, &'static str)| CountRow {
            name,
            text,
            count: counted
                .iter()
                .find(|(other, _)| *other == name)
                .map_or(0.0, |(_, count)| *count),
            rate: self.recent.rates.get(name).map(|rate| format!("{rate:.1}")).unwrap_or_default(),
        };
        COUNTS.into_iter().map(row).collect()
    }

    fn executions(&self) -> String {
        within(self.recent.execution_half, self.recent.execution_most)
    }

    fn operations(&self) -> String {
        within(self.recent.operation_half, self.recent.operation_most)
    }
}

impl UnknownPage {
    /// For how long a key has been in doubt, by the store's clock.
    fn age(&self, key: &ShownKey) -> String {
        let since = key.since.as_deref().and_then(|since| since.parse::<Timestamp>().ok());
        let now = self.now.parse::<Timestamp>().ok();
        let age = since.zip(now).map(|(since, now)| now.duration_since(since).as_secs_f64());
        age.map(meters::seconds).unwrap_or_default()
    }
}

impl StorePage {
    fn store_word(&self) -> &str {
        self.readiness.get("store").and_then(Value::as_str).unwrap_or("no answer")
    }

    fn operations(&self) -> String {
        within(self.recent.operation_half, self.recent.operation_most)
    }

    fn growth_rows(&self) -> Vec<[String; 4]> {
        let signed = |value: f64, shown: fn(f64) -> String| {
            let sign = if value < 0.0 { "−" } else { "+" };
            format!("{sign}{}", shown(value.abs()))
        };
        let row = |growth: &Growth| {
            let records = self.store.records.map(|_| signed(growth.records, meters::count));
            let bytes = self.store.bytes.map(|_| signed(growth.bytes, meters::bytes));
            [
                meters::seconds(growth.over.as_secs_f64()),
                records.unwrap_or_else(|| "–".to_owned()),
                bytes.unwrap_or_else(|| "–".to_owned()),
                meters::count(growth.reaped),
            ]
        };
        self.growth.iter().map(row).collect()
    }
}

/// How long the half of something took, and nearly all of it.
fn within(half: Option<f64>, most: Option<f64>) -> String {
    let bound = |seconds: f64| {
        if seconds.is_infinite() {
            "longer than any bound".to_owned()
        } else {
            format!("at most {} ms", seconds * 1e3)
        }
    };
    match half.zip(most) {
        Some((half, most)) => format!("half: {}; 99 of 100: {}", bound(half), bound(most)),
        None => "none over the last minute".to_owned(),
    }
}

/// How templates write numbers.
#[expect(unreachable_pub, reason = "the macro makes public what is not")]
mod filters {
    use super::meters;

    #[askama::filter_fn]
    pub(super) fn whole(value: &f64, _: &dyn askama::Values) -> askama::Result<String> {
        Ok(meters::count(*value))
    }

    /// A length of time.
    #[askama::filter_fn]
    pub(super) fn seconds(value: &f64, _: &dyn askama::Values) -> askama::Result<String> {
        Ok(meters::seconds(*value))
    }
}
