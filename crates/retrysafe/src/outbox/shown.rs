//! What does an operator see of effects?

use std::time::Duration;

use retrysafe_core::effect::{Effect, EffectEvidence, EffectState, SentMark};
use retrysafe_core::record::Fence;
use retrysafe_core::time::Time;
use serde::{Deserialize, Deserializer};

/// Where an effect stands, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "i16")]
pub enum EffectStanding {
    /// Another effect of its lane comes before it.
    Waiting,
    /// A worker may claim it, now or at its time.
    Ready,
    /// A worker has claimed it.
    Leased,
    /// It may have been done.
    Unknown,
    /// Given up, and surely not done.
    Dead,
    /// Done.
    Delivered,
    /// Taken back.
    Cancelled,
}

impl EffectStanding {
    /// All of them. Their places are the numbers in the database.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Ready,
        Self::Leased,
        Self::Unknown,
        Self::Dead,
        Self::Delivered,
        Self::Cancelled,
    ];

    /// Its name, as everybody writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Leased => "leased",
            Self::Unknown => "unknown",
            Self::Dead => "dead",
            Self::Delivered => "delivered",
            Self::Cancelled => "cancelled",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|standing| standing.name() == name)
    }

    /// Whether nothing can happen to it any more. What is over is kept apart, for a while.
    pub const fn is_over(self) -> bool {
        match self {
            Self::Delivered | Self::Cancelled => true,
            Self::Waiting | Self::Ready | Self::Leased | Self::Unknown | Self::Dead => false,
        }
    }

    pub(super) const fn code(self) -> i16 {
        self as i16
    }
}

impl TryFrom<i16> for EffectStanding {
    type Error = String;

    fn try_from(code: i16) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|standing| standing.code() == code);
        known.ok_or_else(|| format!("an effect has no state {code}"))
    }
}

/// One effect, as a list shows it.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct ShownEffect {
    /// Its number.
    pub id: i64,
    /// Its kind.
    pub kind: String,
    /// Where it stands.
    #[serde(rename = "state")]
    pub standing: EffectStanding,
    /// Ready and waiting: from when on. Leased: until when. Else: since when.
    #[serde(deserialize_with = "time")]
    pub at: Time,
    /// When it was staged.
    #[serde(deserialize_with = "time")]
    pub staged_at: Time,
    /// Its fence. A verdict about an unknown effect names it.
    pub fence: i64,
    /// How many deliveries have failed since it was staged or requeued.
    pub failures: u32,
    /// How many leases have ended without a word after their mark.
    pub crashes: u32,
    /// Its lane.
    pub lane: Option<String>,
    /// The application's own name for it.
    pub name: Option<String>,
    /// The key that its receiver sees.
    pub key: String,
    /// Where it goes.
    pub destination: Option<String>,
    /// The media type of its payload. None once it is over.
    pub content_type: Option<String>,
    /// How large its payload is. None once it is over: the payload is not kept.
    pub payload_bytes: Option<u64>,
    /// Why it failed last.
    pub last_error: Option<String>,
    /// Under which fence it was marked as sent. None: it was never sent, or is over.
    pub marked_by: Option<i64>,
    /// Until when it may be sent again. None beside a mark: its receiver takes no key.
    #[serde(default, deserialize_with = "maybe_time")]
    pub resend_until: Option<Time>,
    /// What its receiver calls it, once it is delivered.
    pub reference: Option<String>,
    /// The name of the record whose request has staged it, in hexadecimal digits. None: it was staged outside of a request.
    pub record: Option<String>,
    /// How often its receiver was asked about the delivery that is unknown. None once it is over.
    pub lookups: Option<u32>,
    /// When it was asked about last.
    #[serde(default, deserialize_with = "maybe_time")]
    pub looked_up_at: Option<Time>,
    /// What came of that: a [note](retrysafe_core::record::lookup_note).
    pub last_lookup: Option<String>,
}

/// What an operator may do to an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectVerb {
    /// [`Operator::retry`](super::Operator::retry).
    Retry,
    /// [`Operator::cancel`](super::Operator::cancel).
    Cancel,
    /// [`Operator::resolve`](super::Operator::resolve).
    Resolve,
}

impl EffectVerb {
    /// Its name, as everybody writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Resolve => "resolve",
        }
    }
}

impl ShownEffect {
    /// What may be done to it at this time, by the rules.
    pub fn may(&self, now: Time) -> Vec<EffectVerb> {
        let effect = self.by_rules();
        let verbs = [
            (EffectVerb::Retry, effect.requeue(now).is_ok()),
            (EffectVerb::Cancel, effect.cancel().is_ok()),
            (EffectVerb::Resolve, effect.resolve(EffectEvidence::Delivered, now).is_ok()),
        ];
        verbs.into_iter().filter(|(_, may)| *may).map(|(verb, _)| verb).collect()
    }

    /// The effect as the rules know it.
    fn by_rules(&self) -> Effect {
        let state = match self.standing {
            EffectStanding::Waiting => EffectState::Waiting,
            EffectStanding::Ready => EffectState::Ready(self.at),
            EffectStanding::Leased => EffectState::Leased(self.at),
            EffectStanding::Unknown => EffectState::Unknown(self.at),
            EffectStanding::Dead => EffectState::Dead,
            EffectStanding::Delivered => EffectState::Delivered,
            EffectStanding::Cancelled => EffectState::Cancelled,
        };
        let fence = |number: i64| Fence(u64::try_from(number).unwrap_or(0));
        // Which claim was the last to send it matters to sweepers alone, and no operator decides as one.
        let mark = self.marked_by.map(fence).map(|set_by| SentMark {
            set_by,
            last_by: set_by,
            resend_until: self.resend_until,
        });
        let Self { failures, crashes, .. } = *self;
        Effect { state, fence: fence(self.fence), mark, failures, crashes }
    }
}

/// Some effects, the newest first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EffectPage {
    /// The effects.
    pub effects: Vec<ShownEffect>,
    /// Where the next page goes on; none at the end.
    pub next: Option<i64>,
    /// The database's clock.
    pub now: Time,
}

/// Everything about one effect.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct EffectDetails {
    /// The effect.
    pub effect: ShownEffect,
    /// The beginning of its payload. Empty once it is over.
    #[serde(deserialize_with = "bytes")]
    pub payload_head: Vec<u8>,
    /// The head of its lane, if it waits for that.
    pub waits_for: Option<i64>,
    /// Whether its kind is paused.
    #[serde(rename = "paused")]
    pub is_paused: bool,
    /// What was decided about it, in order.
    pub decisions: Vec<EffectDecision>,
    /// The database's clock.
    #[serde(deserialize_with = "time")]
    pub now: Time,
}

/// What somebody has decided.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct EffectDecision {
    /// When.
    #[serde(deserialize_with = "time")]
    pub at: Time,
    /// What.
    pub verb: String,
    /// Who.
    pub who: String,
    /// Why.
    pub reason: String,
}

/// How the outbox stands.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct OutboxStats {
    /// By kind.
    pub kinds: Vec<KindStats>,
    /// Until when nothing is claimed: this server took over from one whose last commits may be lost.
    #[serde(default, deserialize_with = "maybe_time")]
    pub held_until: Option<Time>,
    /// The database's clock.
    #[serde(deserialize_with = "time")]
    pub now: Time,
}

/// How the effects of one kind stand. What is over is not counted.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct KindStats {
    /// The kind.
    pub kind: String,
    /// How many wait for another one of their lane.
    pub waiting: u64,
    /// How many are ready, now or at their time.
    pub ready: u64,
    /// How many are leased.
    pub leased: u64,
    /// How many are unknown.
    pub unknown: u64,
    /// How many are dead.
    pub dead: u64,
    /// When the first of those that are ready was or will be due.
    #[serde(default, deserialize_with = "maybe_time")]
    pub oldest_ready_at: Option<Time>,
    /// Since when the oldest unknown one is unknown.
    #[serde(default, deserialize_with = "maybe_time")]
    pub oldest_unknown_at: Option<Time>,
    /// Since when the kind is paused, if it is.
    #[serde(default, deserialize_with = "maybe_time")]
    pub paused_at: Option<Time>,
    /// Why it is paused.
    pub pause_reason: Option<String>,
    /// Who has paused it.
    pub paused_by: Option<String>,
}

/// Whether the tables of the outbox stay small.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct OutboxHealth {
    /// The tables.
    pub tables: Vec<TableHealth>,
    /// The transaction that has been open for the longest time: what was deleted since then cannot be vacuumed.
    pub oldest_snapshot: Option<OldestSnapshot>,
    /// Replication slots that nobody uses and that keep dead rows alive.
    pub slots: Vec<String>,
}

/// How large a table is, by the server's own statistics.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct TableHealth {
    /// Its name.
    pub name: String,
    /// Its size with its indexes.
    pub bytes: u64,
    /// How many rows it has.
    pub rows: u64,
    /// How many rows are dead and not vacuumed yet.
    pub dead_rows: u64,
}

/// A transaction that is open.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct OldestSnapshot {
    /// The server's process.
    pub pid: i32,
    /// What the application calls itself.
    pub application: String,
    /// For how many seconds it has been open.
    pub seconds: u64,
}

/// Which effects are meant.
#[derive(Clone, Debug, Default)]
pub struct EffectFilter {
    /// In this state. None: everything that is not over.
    pub standing: Option<EffectStanding>,
    /// Of this kind.
    pub kind: Option<String>,
    /// Of this lane.
    pub lane: Option<String>,
    /// Whose last error has this text in it.
    pub error: Option<String>,
    /// In their state for longer than this.
    pub older_than: Option<Duration>,
}

/// What became of dead effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkEnd {
    /// How many the filter has found.
    pub matched: u64,
    /// How many were changed; of a dry run, how many would be.
    pub changed: u64,
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
    u64::deserialize(from).map(Time::from_ms)
}

fn maybe_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
    Ok(Option::<u64>::deserialize(from)?.map(Time::from_ms))
}

/// Bytes in hexadecimal digits.
fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let digits = Option::<String>::deserialize(from)?.unwrap_or_default();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| serde::de::Error::custom("no hexadecimal digits"))
}
