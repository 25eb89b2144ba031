//! What does a request do next, from its begin to its end?
//!
//! The order of an execution, without I/O and without a clock. Each step is a type. A step ends when
//! it is told what happened, and gives the next one:
//!
//! ```text
//! Beginning ── the store answered ──► wait, replay, refuse ──────────────────────► Told
//!     │
//!     └► Owned ── lease live ──► Sent ── whole answer, panic, loss ──► Settling ──► Told
//!          │                       └─ a stream ──► KeepingHead ──► Streaming ──┘ ▲
//!          └─ lease over ────────────────────────────────────────────────────────┘
//! ```
//!
//! The layer carries the steps out over a real store, the simulator over a simulated one; neither has
//! an order of its own. The answer of a handler can be told only with a [`Durable`], and only this
//! file makes one: nothing is said to a caller before it is in the record.
//!
//! Times are readings of the owner's own clock, as lengths since a moment of its choice.

use std::time::Duration;

use http::StatusCode;
use http::header::{self, HeaderMap};

use crate::engine::{Begun, Lease, Settled};
use crate::event::Met;
use crate::machine::ReplayFacts;
use crate::policy::{End, OnStoreError, Policy, Said};
use crate::problem::Refusal;
use crate::record::{Answer, AnswerHead, Doubt, Outcome, Record, Standing, State};
use crate::response::StoredResponse;
use crate::store::{StoreError, StoreErrorKind};
use crate::time::Time;
use crate::wire::ASK_AGAIN_SOON;

pub use crate::wire::ASK_AGAIN_ABOUT_UNKNOWN as ASK_AGAIN;

/// How long a settle is tried before the caller is told that the outcome is unknown, unless it is set
/// otherwise. Longer than any restart of a store should take, shorter than callers' patience.
pub const SETTLE_MAX: Duration = Duration::from_secs(10);

/// The first pause between two tries of a store that has failed; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The longest such pause: a store that comes back is noticed within a second.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The first pause before a request that runs in another process is looked at again.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(20);

/// How often a store that can be reached is asked for a begin that is not there. With the pauses above
/// this is about a quarter of a minute; a begin that lands later than that leaves a lease to end, and
/// its record is unknown.
const LOOKS_FOR_BEGIN_MAX: u32 = 20;

/// Answers that are streams by their nature: nobody knows when they end.
const STREAM_TYPES: [&str; 4] =
    ["text/event-stream", "application/x-ndjson", "multipart/x-mixed-replace", "application/grpc"];

/// A begin that is being asked for.
#[derive(Debug)]
pub struct Beginning {
    asked_at: Duration,
    settle_max: Duration,
}

/// What follows a begin.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
pub enum AfterBegin {
    /// This caller executes.
    Owned(Owned),
    /// Somebody else is executing, on a lease that ends in this long.
    Busy(Duration),
    /// The record answers.
    Tell(Met, Told),
    /// The store failed, so nothing is known to have begun.
    NoStore(NoStore),
}

/// What may be done when the store failed at the begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStore {
    /// Whether the route wants the request executed without protection, and the store surely did not
    /// take the begin. What runs in this process is not repeated all the same.
    pub may_run_unprotected: bool,
    /// Whether the begin may have been applied, and is to be [withdrawn](Withdrawing).
    pub must_withdraw: bool,
}

/// A lease that was granted, and nothing is sent yet.
#[derive(Debug)]
pub struct Owned {
    lease: Lease,
    asked_at: Duration,
    settle_max: Duration,
}

/// The handler has the request.
#[derive(Debug)]
pub struct Sent {
    lease: Lease,
    settle_max: Duration,
}

/// How a handler ended without an answer that can be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing was sent on: the request surely was not executed.
    NotSent,
    /// Nothing was sent on, because the upstream is known to be unhealthy.
    Unhealthy,
    /// It was sent on, and no whole answer came back.
    Lost {
        /// Whether time ran out, or the connection broke.
        timed_out: bool,
    },
    /// The handler panicked, or its task was lost.
    Panicked,
}

/// An answer that is passed on as it comes: its head has to be in the record first.
#[derive(Debug)]
pub struct KeepingHead {
    sent: Sent,
    head: AnswerHead,
    tries: Tries,
}

/// An answer whose head is in the record and whose body is on its way to the caller; or that is read for
/// the record alone, because its head could not be kept.
#[derive(Debug)]
pub struct Streaming {
    sent: Sent,
    head: AnswerHead,
    /// What the record becomes once the body is whole.
    outcome: Outcome,
}

/// An outcome that is not in the record yet.
#[derive(Debug)]
pub struct Settling {
    outcome: Outcome,
    told: WhenSettled,
    tries: Tries,
}

/// What the caller is told once the outcome is in the record.
#[derive(Debug)]
enum WhenSettled {
    /// The handler's own answer.
    Answer,
    /// This.
    Refusal(Refusal),
}

/// A begin that may have been applied, and that nobody will execute.
#[derive(Debug)]
pub struct Withdrawing {
    tries: Tries,
    looks: u32,
}

/// What the caller is told.
#[derive(Debug)]
pub enum Told {
    /// The handler's own answer, which is in the record.
    Answer(Durable),
    /// The record's answer, and what else the record knows of it.
    Replay(StoredResponse, ReplayFacts),
    /// Why there is no answer.
    Refusal(Refusal),
}

/// Proof that the end of an execution, or the head of its answer, is in the record.
#[derive(Debug)]
pub struct Durable {
    expires_at: Option<Time>,
    is_unknown: bool,
}

/// A store that failed is asked again, with longer and longer pauses.
#[derive(Clone, Copy, Debug)]
struct Tries {
    pause: Duration,
    /// When the caller is told that nothing could be made durable.
    tell_at: Duration,
    /// When nobody tries any more.
    end_at: Duration,
}

/// A duplicate that may wait for the running request.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    until: Duration,
    pause: Duration,
    was_woken: bool,
}

impl Beginning {
    /// A begin that is sent now. Its lease counts from here: the store's answer may take a while.
    /// `settle_max` is how long a caller waits for its outcome to become durable.
    pub const fn new(now: Duration, settle_max: Duration) -> Self {
        Self { asked_at: now, settle_max }
    }

    /// The store answered.
    pub fn begun(self, policy: &Policy, begun: Result<Begun, &StoreError>) -> AfterBegin {
        let refuse = |met, refusal| AfterBegin::Tell(met, Told::Refusal(refusal));
        match begun {
            Ok(Begun::Execute(lease)) => AfterBegin::Owned(Owned {
                lease,
                asked_at: self.asked_at,
                settle_max: self.settle_max,
            }),
            Ok(Begun::InProgress(left)) => AfterBegin::Busy(left),
            // Nobody here can go on with it, and waiting would not help.
            Ok(Begun::Held(_)) => {
                refuse(Met::InProgress, Refusal::InProgress { retry_after: ASK_AGAIN })
            }
            Ok(Begun::Replay(Answer::Kept(stored), facts)) => {
                AfterBegin::Tell(Met::Replay, Told::Replay(stored, facts))
            }
            Ok(Begun::Replay(Answer::NotKept { status, location }, _)) => refuse(
                Met::NotReplayable,
                Refusal::ResponseNotStored { original_status: status, original_location: location },
            ),
            Ok(Begun::Mismatch) => refuse(Met::KeyMisuse, Refusal::KeyReused),
            Ok(Begun::CredentialChanged) => {
                refuse(Met::CredentialChanged, Refusal::CredentialChanged)
            }
            Ok(Begun::Unknown(head)) => refuse(Met::Unknown, unknown(head)),
            Err(error) => AfterBegin::NoStore(NoStore {
                may_run_unprotected: may_run_unprotected(policy, error),
                must_withdraw: error.may_have_applied(),
            }),
        }
    }
}

/// Failing open is for a store that is out of reach or full, and only where the begin surely was not
/// applied. A damaged record is a record: behind it may be an execution. A store that may have forgotten
/// says so because an execution may be under way: running unprotected beside it is what it prevents.
fn may_run_unprotected(policy: &Policy, error: &StoreError) -> bool {
    let out_of_reach = match error.kind() {
        StoreErrorKind::Unavailable | StoreErrorKind::Full => true,
        StoreErrorKind::Held | StoreErrorKind::Damaged | StoreErrorKind::Broken => false,
    };
    out_of_reach && policy.on_store_error == OnStoreError::Open && !error.may_have_applied()
}

fn unknown(head: Option<AnswerHead>) -> Refusal {
    Refusal::OutcomeUnknown { retry_after: ASK_AGAIN, head }
}

impl Owned {
    /// The lease.
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// How the begin is reported.
    pub fn met(&self) -> Met {
        if self.lease.attempt() > 1 { Met::FailedRetry } else { Met::Created }
    }

    /// The last look at the clock before the handler sees anything. Past its lease the record may be
    /// unknown already, and somebody may be deciding that this was never sent.
    ///
    /// # Errors
    ///
    /// The lease is over: nothing is sent, and the caller is told this refusal.
    pub fn send(
        self,
        policy: &Policy,
        now: Duration,
        too_late: Refusal,
    ) -> Result<Sent, Box<(Lease, Settling)>> {
        if now.saturating_sub(self.asked_at) >= self.lease.length() {
            return Err(Box::new(self.not_sent(policy, now, too_late)));
        }
        Ok(Sent { lease: self.lease, settle_max: self.settle_max })
    }

    /// Nothing is sent, for another reason.
    pub fn not_sent(self, policy: &Policy, now: Duration, refusal: Refusal) -> (Lease, Settling) {
        let tries = Tries::new(now, self.settle_max, policy.lease_max);
        let outcome = policy.judge(End::NotSent);
        (self.lease, Settling { outcome, told: WhenSettled::Refusal(refusal), tries })
    }
}

impl Sent {
    /// The lease, for whoever renews it.
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The lease, for the handler's wishes.
    pub const fn lease_mut(&mut self) -> &mut Lease {
        &mut self.lease
    }

    /// There is a whole answer, stripped to what may be kept.
    pub fn answered(self, policy: &Policy, now: Duration, end: End) -> (Lease, Settling) {
        self.settling(policy, now, end, WhenSettled::Answer)
    }

    /// There is no answer that could be passed on.
    pub fn failed(self, policy: &Policy, now: Duration, failure: Failure) -> (Lease, Settling) {
        let retry_after = ASK_AGAIN;
        let (end, refusal) = match failure {
            Failure::NotSent => (End::NotSent, Refusal::UpstreamUnreachable { retry_after }),
            Failure::Unhealthy => (End::NotSent, Refusal::UpstreamUnhealthy { retry_after }),
            Failure::Lost { timed_out } => {
                (End::AnswerLost, Refusal::AnswerLost { timed_out, retry_after })
            }
            Failure::Panicked => (End::Panicked, Refusal::Panicked { retry_after }),
        };
        self.settling(policy, now, end, WhenSettled::Refusal(refusal))
    }

    /// The answer is too large or takes too long to be kept: it is to be passed on as it comes.
    pub fn passes_on(self, policy: &Policy, now: Duration, head: AnswerHead) -> KeepingHead {
        let tries = Tries::new(now, self.settle_max, policy.lease_max);
        KeepingHead { sent: self, head, tries }
    }

    fn settling(
        self,
        policy: &Policy,
        now: Duration,
        end: End,
        told: WhenSettled,
    ) -> (Lease, Settling) {
        let tries = Tries::new(now, self.settle_max, policy.lease_max);
        (self.lease, Settling { outcome: policy.judge(end), told, tries })
    }
}

impl KeepingHead {
    /// The lease under which the head is written.
    pub const fn lease(&self) -> &Lease {
        &self.sent.lease
    }

    /// The head.
    pub const fn head(&self) -> &AnswerHead {
        &self.head
    }

    /// It is in the record. `end` says what the record becomes once the body is whole.
    pub fn kept(self, policy: &Policy, end: End) -> (Streaming, Told) {
        let outcome = policy.judge(end);
        let is_unknown = matches!(outcome, Outcome::Unknown(_));
        let durable = Durable { expires_at: None, is_unknown };
        (Streaming { sent: self.sent, head: self.head, outcome }, Told::Answer(durable))
    }

    /// The record is not believed to be ours any more, so nothing of the answer is passed on. It is read
    /// to its end all the same: a late owner tells the truth while nobody has decided.
    pub fn lost(self, policy: &Policy, end: End) -> (Streaming, Told) {
        let told = Told::Refusal(unknown(None));
        (Streaming { sent: self.sent, head: self.head, outcome: policy.judge(end) }, told)
    }

    /// The store failed. Says how long to wait before the next try; `None` if the caller has waited for
    /// long enough, and is to be told so.
    pub fn failed(&mut self, now: Duration) -> Option<Duration> {
        let pause = self.tries.next_pause();
        (now.saturating_add(pause) < self.tries.tell_at).then_some(pause)
    }

    /// The caller has waited for long enough. Nothing of the answer is passed on; it is read to its end
    /// all the same.
    pub fn not_durable(self, policy: &Policy, end: End) -> (Streaming, Told) {
        let told = Told::Refusal(Settling::not_durable());
        (Streaming { sent: self.sent, head: self.head, outcome: policy.judge(end) }, told)
    }
}

impl Streaming {
    /// The lease, which is renewed while bytes flow.
    pub const fn lease(&self) -> &Lease {
        &self.sent.lease
    }

    /// The handler has said the outcome while its answer was on its way. Its word wins, whether the body
    /// is whole or not.
    pub fn said(self, policy: &Policy, now: Duration, said: Said) -> (Lease, Settling) {
        let tries = Tries::new(now, self.sent.settle_max, policy.lease_max);
        let AnswerHead { status, location } = self.head;
        let end = End::TooLarge { status, location, by_upstream: false, said: Some(said) };
        let outcome = policy.judge(end);
        (self.sent.lease, Settling { outcome, told: WhenSettled::Answer, tries })
    }

    /// The body is whole, or has broken off.
    pub fn ended(self, policy: &Policy, now: Duration, is_whole: bool) -> (Lease, Settling) {
        let tries = Tries::new(now, self.sent.settle_max, policy.lease_max);
        let broken_off = Outcome::Unknown(Doubt::AnswerLost);
        let outcome = if is_whole { self.outcome } else { broken_off };
        (self.sent.lease, Settling { outcome, told: WhenSettled::Answer, tries })
    }
}

/// What follows a settle that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleAgain {
    /// It is tried again, with the same lease, after this pause.
    After(Duration),
    /// Nobody tries any more: the record becomes unknown when its lease ends.
    Never,
}

impl Settling {
    /// What is settled.
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// It is in the record, or somebody else has decided.
    pub fn settled(self, settled: Settled) -> Told {
        match (settled, self.told) {
            (Settled::Lost { current, .. }, _) => overruled(current),
            // The handler is gone, and its flow is left to whoever asks next.
            (Settled::Done(record), WhenSettled::Refusal(_))
                if record.standing() == Standing::InProgress
                    && record.flow.is_some()
                    && matches!(self.outcome, Outcome::Unknown(_)) =>
            {
                Told::Refusal(Refusal::InProgress { retry_after: ASK_AGAIN_SOON })
            }
            (Settled::Done(_), WhenSettled::Refusal(refusal)) => Told::Refusal(refusal),
            (Settled::Done(record), WhenSettled::Answer) => Told::Answer(Durable {
                expires_at: match record.state {
                    State::Completed { expires_at, .. } => Some(expires_at),
                    State::InProgress { .. }
                    | State::FailedRetryable { .. }
                    | State::Unknown { .. } => None,
                },
                is_unknown: record.unknown_since().is_some(),
            }),
        }
    }

    /// When the caller is told that the outcome could not be made durable, if it still is not.
    pub const fn tell_at(&self) -> Duration {
        self.tries.tell_at
    }

    /// What the caller is told then. It is tried on behind its back.
    pub const fn not_durable() -> Refusal {
        Refusal::NotDurable { retry_after: ASK_AGAIN }
    }

    /// The store failed.
    pub fn failed(&mut self, now: Duration) -> SettleAgain {
        match self.tries.again(now) {
            Some(pause) => SettleAgain::After(pause),
            None => SettleAgain::Never,
        }
    }
}

/// What a caller is told whose execution was decided over its head. The decision holds, whatever this
/// execution came to.
fn overruled(current: Option<Record>) -> Told {
    let span = current.as_ref().and_then(Record::span);
    match current.map(|record| record.state) {
        Some(State::Completed { answer: Answer::Kept(stored), expires_at, .. }) => {
            Told::Replay(stored, ReplayFacts { expires_at, span })
        }
        Some(State::Completed { answer: Answer::NotKept { status, location }, .. }) => {
            Told::Refusal(Refusal::ResponseNotStored {
                original_status: status,
                original_location: location,
            })
        }
        Some(State::Unknown { head, .. }) => Told::Refusal(unknown(head)),
        Some(State::InProgress { .. } | State::FailedRetryable { .. }) | None => {
            Told::Refusal(unknown(None))
        }
    }
}

impl Withdrawing {
    /// A begin of a route with this policy. While the store is out of reach it is taken back for as long
    /// as an execution may last. By then the record may be unknown, which its owner can still take back.
    pub fn new(policy: &Policy, now: Duration) -> Self {
        let patience = policy.lease_max.max(policy.lease);
        Self { tries: Tries::new(now, patience, patience), looks: 0 }
    }

    /// The store failed. Says how long to wait before the next try; `None` leaves the record to its
    /// lease.
    pub fn failed(&mut self, now: Duration) -> Option<Duration> {
        self.tries.again(now)
    }

    /// There was nothing to take back. The begin may still be on its way, so that is asked again as
    /// well, but not for as long.
    pub fn found_nothing(&mut self, now: Duration) -> Option<Duration> {
        self.looks += 1;
        (self.looks < LOOKS_FOR_BEGIN_MAX).then(|| self.tries.again(now)).flatten()
    }
}

impl Durable {
    /// When the record may be forgotten, where it holds an answer.
    pub const fn expires_at(&self) -> Option<Time> {
        self.expires_at
    }

    /// Whether nobody knows if the request took effect, although there is an answer.
    pub const fn is_unknown(&self) -> bool {
        self.is_unknown
    }
}

impl Tries {
    fn new(now: Duration, tell_within: Duration, end_within: Duration) -> Self {
        let tell_at = now.saturating_add(tell_within);
        Self { pause: PAUSE_MIN, tell_at, end_at: tell_at.max(now.saturating_add(end_within)) }
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }

    fn again(&mut self, now: Duration) -> Option<Duration> {
        (now < self.end_at).then(|| self.next_pause())
    }
}

impl Patience {
    /// A duplicate that waits for at most so long.
    pub const fn new(now: Duration, wait: Duration) -> Self {
        Self { until: now.saturating_add(wait), pause: LOOK_PAUSE_MIN, was_woken: false }
    }

    /// Until when it waits for the end of a request that runs in this process; `None` if it may not
    /// wait any more.
    pub fn wait_until(&self, now: Duration) -> Option<Duration> {
        (!self.was_woken && now < self.until).then_some(self.until)
    }

    /// How long it waits before it looks again at a request that runs elsewhere.
    pub fn look_again(&mut self, now: Duration) -> Duration {
        let pause = self.pause.min(self.until.saturating_sub(now));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        pause
    }

    /// The running request has ended, and this one begins once more. If another one is faster, it does
    /// not queue for a third try: a handler that fails would run once per waiter.
    pub const fn woken(&mut self) {
        self.was_woken = true;
    }
}

/// Whether an answer is a stream by its nature, or leaves HTTP altogether. Such an answer is passed on
/// as it comes.
pub fn is_stream(status: StatusCode, headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
    status.is_informational()
        || media_type.is_some_and(|media_type| {
            STREAM_TYPES.iter().any(|stream| {
                media_type
                    .get(..stream.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(stream.as_bytes()))
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{Fingerprint, RulesId};
    use crate::record::{About, First};
    use crate::{Id, Key, Scope};
    use bytes::Bytes;
    use http::HeaderValue;

    const LEASE: Duration = Duration::from_secs(60);
    const SECOND: Duration = Duration::from_secs(1);

    fn policy() -> Policy {
        Policy { lease: LEASE, lease_max: LEASE * 2, ..Policy::default() }
    }

    fn first() -> First {
        let key = Key::new("k").unwrap().digest();
        First {
            id: Id::of(&Scope::anonymous(), &key),
            scope: Scope::anonymous(),
            key,
            fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
            mark: None,
            about: About::default(),
            ttl: LEASE,
            lease: LEASE,
            owner: 1,
            request_id: None,
            flow: None,
        }
    }

    fn record() -> Record {
        first().record(Time::from_ms(0), 1)
    }

    fn lease() -> Lease {
        Lease::new(record(), Time::from_ms(0))
    }

    fn owned() -> Owned {
        match Beginning::new(SECOND, SETTLE_MAX).begun(&policy(), Ok(Begun::Execute(lease()))) {
            AfterBegin::Owned(owned) => owned,
            other => panic!("{other:?}"),
        }
    }

    fn sent() -> Sent {
        owned().send(&policy(), SECOND, Refusal::KeyMissing).unwrap()
    }

    fn end(status: u16) -> End {
        let status = StatusCode::from_u16(status).unwrap();
        let response = StoredResponse { status, headers: Vec::new(), body: Bytes::new() };
        End::Answered { response, by_upstream: true, said: None }
    }

    fn too_large() -> End {
        End::TooLarge { status: StatusCode::CREATED, location: None, by_upstream: true, said: None }
    }

    fn keeping() -> KeepingHead {
        let head = AnswerHead { status: StatusCode::CREATED, location: None };
        sent().passes_on(&policy(), SECOND, head)
    }

    fn refusal(told: &Told) -> &Refusal {
        match told {
            Told::Refusal(refusal) => refusal,
            Told::Answer(_) | Told::Replay(..) => panic!("{told:?}"),
        }
    }

    #[test]
    fn a_lease_counts_from_before_it_was_asked_for() {
        let late = Refusal::StoreUnavailable { retry_after: SECOND };
        let in_time = SECOND + LEASE - Duration::from_millis(1);
        assert!(owned().send(&policy(), in_time, late.clone()).is_ok());
        let unsent = owned().send(&policy(), SECOND + LEASE, late.clone()).unwrap_err();
        assert_eq!(unsent.1.outcome(), &Outcome::Retryable(None));
        assert_eq!(refusal(&unsent.1.settled(Settled::Done(record()))), &late);
    }

    #[test]
    fn failing_open_is_for_stores_that_surely_took_nothing() {
        let open = Policy { on_store_error: OnStoreError::Open, ..policy() };
        let after = |policy: &Policy, error: StoreError| match Beginning::new(SECOND, SETTLE_MAX)
            .begun(policy, Err(&error))
        {
            AfterBegin::NoStore(no_store) => (no_store.may_run_unprotected, no_store.must_withdraw),
            other => panic!("{other:?}"),
        };
        for (kind, may_run) in [
            (StoreErrorKind::Unavailable, true),
            (StoreErrorKind::Full, true),
            (StoreErrorKind::Held, false),
            (StoreErrorKind::Damaged, false),
            (StoreErrorKind::Broken, false),
        ] {
            assert_eq!(after(&open, StoreError::not_applied(kind)), (may_run, false), "{kind:?}");
            assert_eq!(after(&open, StoreError::maybe_applied(kind)), (false, true), "{kind:?}");
            assert_eq!(after(&policy(), StoreError::not_applied(kind)), (false, false));
        }
    }

    #[test]
    fn an_answer_is_told_when_it_is_durable_and_says_what_the_record_says() {
        let (lease, settling) = sent().answered(&policy(), SECOND, end(201));
        drop(lease);
        let outcome = settling.outcome().clone();
        let becomes = match outcome {
            Outcome::Completed(answer) => crate::record::Becomes::Completed(answer),
            Outcome::Retryable(_) | Outcome::Unknown(_) => panic!("{outcome:?}"),
        };
        let write = crate::record::Write { becomes, new_fence: false, what: None, ttl: None };
        let done = write.onto(&record(), Time::from_ms(5), 2);
        match settling.settled(Settled::Done(done)) {
            Told::Answer(durable) => {
                assert_eq!(durable.expires_at(), Some(Time::from_ms(5).plus(LEASE)));
                assert!(!durable.is_unknown());
            }
            other => panic!("{other:?}"),
        }
        let (_, settling) = sent().answered(&policy(), SECOND, end(502));
        assert!(matches!(settling.outcome(), Outcome::Unknown(Doubt::ServerError)));
        let doubt = crate::record::Becomes::Unknown(Doubt::ServerError);
        let write =
            crate::record::Write { becomes: doubt, new_fence: false, what: None, ttl: None };
        let unknown = write.onto(&record(), Time::from_ms(5), 2);
        match settling.settled(Settled::Done(unknown)) {
            Told::Answer(durable) => {
                assert!(durable.is_unknown() && durable.expires_at().is_none())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_was_decided_over_is_told_the_decision() {
        let (_, settling) = sent().answered(&policy(), SECOND, end(201));
        let told = settling.settled(Settled::Lost { current: None, contradiction: false });
        assert!(matches!(refusal(&told), Refusal::OutcomeUnknown { head: None, .. }));
        let kept = end(200);
        let End::Answered { response, .. } = kept else { panic!() };
        let becomes = crate::record::Becomes::Completed(Answer::Kept(response.clone()));
        let write = crate::record::Write { becomes, new_fence: true, what: None, ttl: None };
        let current = Some(write.onto(&record(), Time::from_ms(5), 2));
        let (_, settling) = sent().failed(&policy(), SECOND, Failure::Panicked);
        match settling.settled(Settled::Lost { current, contradiction: true }) {
            Told::Replay(stored, _) => assert_eq!(stored, response),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_settle_is_tried_until_lease_max_with_rising_pauses() {
        let (_, mut settling) = sent().answered(&policy(), SECOND, end(201));
        assert_eq!(settling.tell_at(), SECOND + SETTLE_MAX);
        let pauses: Vec<_> = (0..7).map(|_| settling.failed(SECOND)).collect();
        let ms = |ms| SettleAgain::After(Duration::from_millis(ms));
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_000, 1_000].map(ms));
        let end = SECOND + LEASE * 2;
        assert_ne!(settling.failed(end - Duration::from_millis(1)), SettleAgain::Never);
        assert_eq!(settling.failed(end), SettleAgain::Never);
    }

    #[test]
    fn a_stream_is_passed_on_only_with_its_head_in_the_record_and_its_end_decides() {
        let (streaming, told) = keeping().kept(&policy(), too_large());
        assert!(matches!(told, Told::Answer(_)));
        let (_, settling) = streaming.ended(&policy(), LEASE, true);
        assert!(matches!(settling.outcome(), Outcome::Completed(Answer::NotKept { .. })));
        let (streaming, _) = keeping().kept(&policy(), too_large());
        let (_, settling) = streaming.ended(&policy(), LEASE, false);
        assert_eq!(settling.outcome(), &Outcome::Unknown(Doubt::AnswerLost));
        for (streaming, told) in
            [keeping().lost(&policy(), too_large()), keeping().not_durable(&policy(), too_large())]
        {
            refusal(&told);
            let (_, settling) = streaming.ended(&policy(), LEASE, true);
            assert!(matches!(settling.outcome(), Outcome::Completed(_)), "its end is known");
        }
        let mut failing = keeping();
        assert_eq!(failing.failed(SECOND), Some(Duration::from_millis(50)));
        assert_eq!(failing.failed(SECOND + SETTLE_MAX), None);
    }

    #[test]
    fn a_begin_in_doubt_is_taken_back_for_as_long_as_an_execution_may_last() {
        let mut away = Withdrawing::new(&policy(), SECOND);
        assert!((0..1_000).all(|_| away.failed(SECOND).is_some()));
        assert!(away.failed(SECOND + LEASE * 2 - Duration::from_millis(1)).is_some());
        assert!(away.failed(SECOND + LEASE * 2).is_none());
        let mut absent = Withdrawing::new(&policy(), SECOND);
        let looks = (0..1_000).take_while(|_| absent.found_nothing(SECOND).is_some()).count();
        assert_eq!(looks as u32, LOOKS_FOR_BEGIN_MAX - 1);
    }

    #[test]
    fn a_duplicate_waits_for_its_time_and_is_woken_once() {
        let mut patience = Patience::new(SECOND, SECOND * 2);
        assert_eq!(patience.wait_until(SECOND), Some(SECOND * 3));
        assert_eq!(patience.look_again(SECOND), LOOK_PAUSE_MIN);
        assert_eq!(patience.look_again(SECOND), LOOK_PAUSE_MIN * 2);
        let nearly = SECOND * 3 - Duration::from_millis(1);
        assert_eq!(patience.look_again(nearly), Duration::from_millis(1));
        assert_eq!(patience.wait_until(SECOND * 3), None);
        patience.woken();
        assert_eq!(patience.wait_until(SECOND), None);
    }

    #[test]
    fn streams_are_known_by_their_type() {
        let of = |media_type: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
            is_stream(StatusCode::OK, &headers)
        };
        for media_type in
            ["text/event-stream", "Text/Event-Stream;charset=utf-8", "application/grpc-web+json"]
        {
            assert!(of(media_type), "{media_type}");
        }
        for media_type in ["text/plain", "application/json", "application/x-ndjso", ""] {
            assert!(!of(media_type), "{media_type}");
        }
        assert!(is_stream(StatusCode::SWITCHING_PROTOCOLS, &HeaderMap::new()));
        assert!(!is_stream(StatusCode::OK, &HeaderMap::new()));
    }
}
