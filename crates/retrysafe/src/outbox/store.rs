//! Whom does a worker ask?
//!
//! The worker's loop decides when to ask, and what to make of an answer; what becomes of an effect is decided where it
//! is kept. PostgreSQL is the one store that ships (`statements.rs`); a simulator has another one, so
//! that the loop that ships runs in it. Every question may be asked again: the fence makes that harmless.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

/// How many effects one question is about at the most.
pub(super) const BATCH_MAX: usize = 100;

/// How long one question may take. A server that vanished answers nothing, and what is under way must still be told.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Where effects are kept, as a worker sees it.
pub trait EffectStore: Clone + Send + Sync + 'static {
    /// Claims effects of a kind that are due.
    fn claim(
        &self,
        kind: &str,
        most: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<ClaimedEffect>, EffectStoreError>> + Send;

    /// Writes the sent marks of effects that are about to be sent. What does not come back is not the asker's any more; what somebody
    /// else holds at this moment is to be given back.
    fn mark(
        &self,
        to_mark: &[ToMark],
        resend_for: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<MarkedEffect>, EffectStoreError>> + Send;

    /// Renews the leases of effects that are under way.
    fn renew(
        &self,
        held: &[Held],
        lease: Duration,
    ) -> impl Future<Output = Result<(), EffectStoreError>> + Send;

    /// Gives back effects of which the asker has sent nothing. Returns the numbers of those that somebody else holds at this moment:
    /// they are to be given back again.
    fn hand_back(
        &self,
        held: &[Held],
    ) -> impl Future<Output = Result<Vec<i64>, EffectStoreError>> + Send;

    /// Says how deliveries ended. Returns the numbers of those that somebody else holds at this moment: their ends are to be said
    /// again.
    fn finish(
        &self,
        told: &[Told],
        failures_max: u32,
    ) -> impl Future<Output = Result<Vec<i64>, EffectStoreError>> + Send;

    /// Ends leases that are over, and what waits past its receiver's memory.
    fn sweep(
        &self,
        crashes_max: u32,
        most: usize,
    ) -> impl Future<Output = Result<SweptEffects, EffectStoreError>> + Send;

    /// Frees the heads of some lanes, and says at which lane to go on.
    fn sweep_lanes(
        &self,
        after: Option<&str>,
        most: usize,
    ) -> impl Future<Output = Result<Option<String>, EffectStoreError>> + Send;

    /// Makes room for the days to come, and forgets a day of effects that have been over for longer than this.
    fn turn_days(
        &self,
        keep_days: i32,
    ) -> impl Future<Output = Result<(), EffectStoreError>> + Send;

    /// Counts what is not over.
    fn count(&self) -> impl Future<Output = Result<Vec<EffectCount>, EffectStoreError>> + Send;

    /// Wakes whoever waits, each time somebody says that something was staged. Ends when that cannot be heard.
    fn listen(&self, wake: &Notify) -> impl Future<Output = Result<(), EffectStoreError>> + Send;
}

/// Why a question has no answer.
#[derive(Debug)]
pub enum EffectStoreError {
    /// The store has refused it: nothing was applied, and the same question would be refused again.
    Refused(Box<dyn Error + Send + Sync>),
    /// It may have been applied.
    NoAnswer(Box<dyn Error + Send + Sync>),
}

/// An effect that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Held {
    /// Its number.
    pub id: i64,
    /// The fence of the claim.
    pub fence: i64,
}

/// An effect that was claimed.
#[derive(Clone, Debug)]
pub struct ClaimedEffect {
    /// What was claimed.
    pub held: Held,
    /// The key that its receiver is sent.
    pub key: Box<str>,
    /// Where it goes.
    pub destination: Option<Box<str>>,
    /// The media type of the payload.
    pub content_type: Option<Box<str>>,
    /// What is sent.
    pub payload: Bytes,
    /// How many deliveries have failed.
    pub failures: u32,
    /// Whether an earlier delivery may have reached the receiver.
    pub was_sent: bool,
    /// Whether it may be what has killed its workers: then it was claimed alone.
    pub is_suspect: bool,
}

/// An effect that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub struct ToMark {
    /// What was claimed.
    pub held: Held,
    /// To whom it is about to be sent, as a digest; none where nobody has said which receiver that is.
    pub receiver: Option<i64>,
}

/// What the store says of an effect whose mark was asked for.
#[derive(Clone, Copy, Debug)]
pub struct MarkedEffect {
    /// Its number.
    pub id: i64,
    /// Whether it may be sent.
    pub word: MarkWord,
    /// How much of the lease is left.
    pub lease_left: Duration,
    /// For how long it may be sent; none where its receiver takes no key.
    pub resend_left: Option<Duration>,
}

/// Whether an effect may be sent whose mark was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkWord {
    /// Its mark stands.
    Sendable,
    /// It was sent before and must not be sent again, or not to this receiver: it is unknown.
    Unknown,
    /// Somebody else holds it at this moment, to take it back for instance. It has no mark of this claim.
    HeldByAnother,
}

/// How a delivery ended, as the store is told.
#[derive(Clone, Debug)]
pub struct Told {
    /// Whose delivery.
    pub held: Held,
    /// How it ended.
    pub end: EndCode,
    /// How long to wait before the next one.
    pub retry_after: Duration,
    /// What its receiver calls it.
    pub reference: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
}

/// How a delivery ended. The numbers are those of the migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCode {
    /// Its receiver has confirmed it.
    Delivered = 0,
    /// Its receiver has refused it for good.
    Rejected = 1,
    /// It had no effect.
    NoEffect = 2,
    /// Nobody knows.
    NoAnswer = 3,
}

/// How many effects a sweep has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptEffects {
    /// How many are ready again.
    pub ready: i64,
    /// How many are unknown now.
    pub unknown: i64,
}

/// How many effects of a kind are in a state.
#[derive(Clone, Debug)]
pub struct EffectCount {
    /// Of which kind.
    pub kind: String,
    /// In which state, by the number of the migration.
    pub state: i16,
    /// How many.
    pub effects: i64,
    /// For how long the oldest has been there.
    pub oldest: Duration,
    /// Whether somebody has paused the kind: what is due then is not late.
    pub is_paused: bool,
}

/// Gives a question up that takes too long. It may be applied all the same; what is said again says the same.
pub(super) async fn within_time<T>(
    question: impl Future<Output = Result<T, EffectStoreError>>,
) -> Result<T, EffectStoreError> {
    let late = |_| Err(EffectStoreError::NoAnswer("no answer in time".into()));
    tokio::time::timeout(ANSWER_MAX, question).await.unwrap_or_else(late)
}

/// Says in the log that a question had no answer.
pub(super) fn note_failure(kind: &str, error: &EffectStoreError) {
    tracing::warn!(target: "retrysafe", %kind, %error, "outbox_database_failed");
}

impl fmt::Display for EffectStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(error) | Self::NoAnswer(error)) = self;
        error.fmt(f)
    }
}

impl Error for EffectStoreError {}
