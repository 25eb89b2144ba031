//! Where are events kept before they are applied?

use retrysafe_core::store::{StoreError, StoreErrorKind};
use retrysafe_core::time::Time;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::end::{EventEnd, EventStanding};
use super::event::EventName;
use crate::stores::postgres::PostgresStore;

/// How many events a page has at the most.
pub const EVENTS_PAGE_MAX: usize = 500;

/// How much of a payload is shown.
const HEAD_BYTES: usize = 4_096;

/// The events of all providers, in PostgreSQL.
#[derive(Clone, Debug)]
pub struct Inbox {
    pub(super) store: PostgresStore,
}

/// An event as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ShownEvent {
    /// Its number here.
    pub id: i64,
    /// Who sent it.
    pub provider: String,
    /// What its sender calls it.
    pub event_id: String,
    #[serde(rename = "state", deserialize_with = "standing")]
    /// How it stands.
    pub standing: EventStanding,
    #[serde(deserialize_with = "time")]
    /// When it was verified and kept.
    pub received_at: Time,
    #[serde(deserialize_with = "maybe_time")]
    /// When it happened, by its sender's clock.
    pub happened_at: Option<Time>,
    /// What it names.
    pub names: Vec<String>,
    /// How often it was delivered.
    pub copies: i64,
    /// How often what it names was looked for.
    pub looks: i64,
    #[serde(deserialize_with = "time")]
    /// Until when it waits.
    pub wait_until: Time,
    #[serde(deserialize_with = "maybe_time")]
    /// Since when it does not wait any more.
    pub ended_at: Option<Time>,
    /// What it was matched to.
    pub matched: Option<String>,
    /// The fence of the attempt that it was matched to.
    pub fence: Option<i64>,
    /// Why it stands as it does.
    pub reason: Option<String>,
    /// How many bytes its payload has.
    pub payload_bytes: u64,
}

/// An event by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventDetails {
    /// The event.
    pub event: ShownEvent,
    /// The beginning of its payload.
    pub payload_head: Vec<u8>,
}

/// How many events of a provider wait.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct WaitingEvents {
    pub(super) provider: String,
    pub(super) waiting: u64,
    pub(super) oldest: u64,
}

/// An event that was kept.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct KeptEvent {
    pub(super) id: i64,
    pub(super) provider: String,
    pub(super) event_id: String,
    names: Vec<String>,
    #[serde(deserialize_with = "hex")]
    pub(super) payload: Vec<u8>,
}

/// What becomes of an event that is to be kept.
#[derive(Debug, Deserialize)]
pub(super) struct Keeping {
    pub(super) id: i64,
    pub(super) is_new: bool,
}

/// An effect that an event names.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct NamedEffect {
    pub(super) id: i64,
    pub(super) state: i16,
    pub(super) fence: i64,
    /// How many deliveries may have left. None once it is over.
    pub(super) deliveries: Option<i32>,
}

#[derive(Deserialize)]
struct Events {
    events: Vec<KeptEvent>,
}

#[derive(Deserialize)]
struct Changed {
    changed: bool,
}

impl KeptEvent {
    pub(super) fn names(&self) -> Vec<EventName> {
        self.names.iter().filter_map(|name| EventName::of_kept(name)).collect()
    }
}

impl Inbox {
    /// The inbox of this database.
    pub fn new(store: PostgresStore) -> Self {
        Self { store }
    }

    /// Lists events, the newest first. `before` is the number of the last one of the former page.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn list(
        &self,
        standing: Option<EventStanding>,
        provider: Option<&str>,
        before: Option<i64>,
        most: usize,
    ) -> Result<Vec<ShownEvent>, StoreError> {
        #[derive(Deserialize)]
        struct Listed {
            events: Vec<ShownEvent>,
        }
        let asked = json!({
            "state": standing.map(EventStanding::code), "provider": provider, "before_id": before,
            "most": most.clamp(1, EVENTS_PAGE_MAX),
        });
        let Listed { events } = self.ask("list", &asked).await?;
        Ok(events)
    }

    /// Everything about one event; none if there is no such one.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn show(&self, id: i64) -> Result<Option<EventDetails>, StoreError> {
        #[derive(Deserialize)]
        struct Shown {
            event: ShownEvent,
            #[serde(deserialize_with = "hex")]
            payload_head: Vec<u8>,
        }
        let asked = json!({"id": id, "head_bytes": HEAD_BYTES});
        let shown: Option<Shown> = self.ask_maybe("show", &asked, None).await?;
        Ok(shown.map(|Shown { event, payload_head }| EventDetails { event, payload_head }))
    }

    /// Events that were matched to this, or that name it and have decided nothing, the newest first.
    pub(super) async fn about(
        &self,
        matched: &str,
        names: &[String],
        most: usize,
    ) -> Result<Vec<ShownEvent>, StoreError> {
        #[derive(Deserialize)]
        struct Listed {
            events: Vec<ShownEvent>,
        }
        let most = most.clamp(1, EVENTS_PAGE_MAX);
        let asked = json!({"matched": matched, "names": names, "most": most});
        self.ask::<Listed>("about", &asked).await.map(|listed| listed.events)
    }

    pub(super) async fn keep(&self, asked: &Value, payload: &[u8]) -> Result<Keeping, StoreError> {
        self.ask_maybe("keep", asked, Some(payload)).await?.ok_or_else(unreadable)
    }

    pub(super) async fn event(&self, id: i64) -> Result<Option<KeptEvent>, StoreError> {
        self.ask_maybe("event", &json!({"id": id}), None).await
    }

    /// Waiting events whose time to be looked at has come.
    pub(super) async fn due(&self, most: usize) -> Result<Vec<KeptEvent>, StoreError> {
        self.ask::<Events>("due", &json!({"most": most})).await.map(|found| found.events)
    }

    /// Waiting events that name one of these, in the order of their ids, which are larger than `after`.
    pub(super) async fn named(
        &self,
        names: &[String],
        after: i64,
        most: usize,
    ) -> Result<Vec<KeptEvent>, StoreError> {
        let asked = json!({"names": names, "after": after, "most": most});
        self.ask::<Events>("named", &asked).await.map(|found| found.events)
    }

    /// Waiting events that name an unknown effect, in the order of their ids, which are larger than `after`.
    pub(super) async fn of_effects(
        &self,
        after: i64,
        most: usize,
    ) -> Result<Vec<KeptEvent>, StoreError> {
        let asked = json!({"after": after, "most": most});
        self.ask::<Events>("of_effects", &asked).await.map(|found| found.events)
    }

    /// The effects of these kinds that have this name: at most two.
    pub(super) async fn effects(
        &self,
        name: &EventName,
        kinds: &[Box<str>],
    ) -> Result<Vec<NamedEffect>, StoreError> {
        #[derive(Deserialize)]
        struct Found {
            effects: Vec<NamedEffect>,
        }
        let asked = json!({"name": name.kept(), "kinds": kinds});
        self.ask::<Found>("effect", &asked).await.map(|found| found.effects)
    }

    /// Writes down how an event has ended, or why it still waits. Says whether that is new.
    pub(super) async fn end(&self, id: i64, end: &EventEnd) -> Result<bool, StoreError> {
        let standing = end.standing();
        let asked = json!({
            "id": id, "state": standing.code(), "matched": end.matched(), "fence": end.fence(),
            "reason": end.reason(),
        });
        let verb = if standing == EventStanding::Waiting { "note" } else { "end" };
        self.ask::<Changed>(verb, &asked).await.map(|answer| answer.changed)
    }

    pub(super) async fn replay(&self, asked: &Value) -> Result<bool, StoreError> {
        self.ask::<Changed>("replay", asked).await.map(|answer| answer.changed)
    }

    /// Ends events whose time to wait is over, and gives their providers.
    pub(super) async fn expire(&self, most: usize) -> Result<Vec<String>, StoreError> {
        #[derive(Deserialize)]
        struct Expired {
            providers: Vec<String>,
        }
        let asked = json!({"most": most});
        self.ask::<Expired>("expire", &asked).await.map(|expired| expired.providers)
    }

    /// Deletes events of a provider that ended so long ago, and says how many.
    pub(super) async fn reap(
        &self,
        provider: &str,
        keep: std::time::Duration,
        most: usize,
    ) -> Result<u64, StoreError> {
        #[derive(Deserialize)]
        struct Reaped {
            changed: u64,
        }
        let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX / 2);
        let asked = json!({"provider": provider, "keep_ms": keep_ms, "most": most});
        self.ask::<Reaped>("reap", &asked).await.map(|reaped| reaped.changed)
    }

    /// How many events wait, by provider, and the server's clock.
    pub(super) async fn stats(&self) -> Result<(Vec<WaitingEvents>, Time), StoreError> {
        #[derive(Deserialize)]
        struct Stats {
            providers: Vec<WaitingEvents>,
            now: u64,
        }
        let Stats { providers, now } = self.ask("stats", &json!({})).await?;
        Ok((providers, Time::from_ms(now)))
    }

    async fn ask<T: DeserializeOwned>(&self, verb: &str, asked: &Value) -> Result<T, StoreError> {
        self.ask_maybe(verb, asked, None).await?.ok_or_else(unreadable)
    }

    async fn ask_maybe<T: DeserializeOwned>(
        &self,
        verb: &str,
        asked: &Value,
        payload: Option<&[u8]>,
    ) -> Result<Option<T>, StoreError> {
        let answer = self.store.ask_inbox(verb, &asked.to_string(), payload).await?;
        let Some(answer) = answer else { return Ok(None) };
        serde_json::from_str(&answer).map(Some).map_err(|error| unreadable().because(error))
    }
}

fn unreadable() -> StoreError {
    StoreError::maybe_applied(StoreErrorKind::Broken)
}

fn standing<'de, D: serde::Deserializer<'de>>(from: D) -> Result<EventStanding, D::Error> {
    let code = usize::deserialize(from)?;
    let standing = EventStanding::ALL.get(code).copied();
    standing.ok_or_else(|| serde::de::Error::custom("a state that this program does not know"))
}

fn time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
    u64::deserialize(from).map(Time::from_ms)
}

fn maybe_time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
    Option::<u64>::deserialize(from).map(|ms| ms.map(Time::from_ms))
}

fn hex<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
    super::verify::from_hex(&text).ok_or_else(|| serde::de::Error::custom("not hexadecimal"))
}
