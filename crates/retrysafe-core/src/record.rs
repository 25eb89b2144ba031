//! What do we remember?
//!
//! A [`Record`] is what is kept for one scope and key. A store carries records and never judges
//! them: it is told what to write as a [`Write`], in which times are lengths ("a lease of 60 s")
//! and numbers are requests ("a new fence"). The store fills in its own clock and its own sequence
//! through [`First::record`] and [`Write::onto`], inside whatever makes its writes atomic.
//!
//! Two numbers guard a record, both drawn from what never repeats for its id. The *version* changes
//! with every write, so that a writer who read an older version loses. The *fence* is the version at
//! which the present owner took over, so that a late owner loses.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

pub use crate::fence::Fence;
use crate::fingerprint::Fingerprint;
use crate::flow::{FlowProgress, RecoveryPoint, ResumeRule};
use crate::key::KeyDigest;
use crate::response::StoredResponse;
use crate::scope::{CredentialMark, Id, Scope};
use crate::time::Time;
use crate::trace::{BEGIN_TEXT_BYTES_MAX, BeginOrigin, TracedSpan, read_begin_text};

mod lookup_note;
mod write;

pub use lookup_note::{LOOKUP_BYTES_MAX, lookup_note, read_lookup_note};
pub use write::{Becomes, Write};

/// How many moments a record remembers. Enough for every retry a caller would make in good faith;
/// past it [one is forgotten](make_room), so a record stays small.
pub const MOMENTS_MAX: usize = 16;

/// The longest id of a request that is kept, in bytes. Longer ones are not kept at all: half an id
/// finds nothing.
pub const REQUEST_ID_BYTES_MAX: usize = BEGIN_TEXT_BYTES_MAX;

/// The longest reason an operator may give, in bytes. Longer ones are cut.
pub const REASON_BYTES_MAX: usize = 500;

/// How much of a late answer's body is kept, in bytes: enough to see what was done, and little enough
/// that a full timeline of late answers stays below 100 KiB.
pub const LATE_BODY_BYTES_MAX: usize = 4 * 1024;

/// The longest media type of a late answer that is kept, in bytes. Longer ones are not kept.
pub const LATE_TYPE_BYTES_MAX: usize = 128;

/// What is remembered for one scope and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its name: the digest of scope and key.
    pub id: Id,
    /// Whose key it is.
    pub scope: Scope,
    /// What stands for the key.
    pub key: KeyDigest,
    /// What the request meant, and by which rules that was taken.
    pub fingerprint: Fingerprint,
    /// Which credential the present or last attempt was begun with, where that counts.
    pub mark: Option<CredentialMark>,
    /// What an operator sees of the request.
    pub about: About,
    /// When this record began, by the store's clock.
    pub created_at: Time,
    /// How long it is kept after it is settled.
    pub ttl: Duration,
    /// Rises with every write; never used twice, not even after the record was reaped.
    pub version: u64,
    /// The version at which the present owner took over.
    pub fence: Fence,
    /// How often somebody began to execute.
    pub attempts: u32,
    /// Where it stands.
    pub state: State,
    /// How far its flow has come. None for a plain request, and once the flow is completed: then the
    /// answer is all that anybody needs. A `failed_retryable` record has no first-sent mark.
    pub flow: Option<Box<FlowProgress>>,
    /// What happened to it, oldest first, at most [`MOMENTS_MAX`].
    pub timeline: Vec<Moment>,
}

/// What an operator sees of a request. Never its body, key or credential.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct About {
    /// The request's method.
    pub method: Box<str>,
    /// The route's label, such as `/payments/{*rest}`.
    pub route: Box<str>,
    /// The request's path, without its query.
    pub path: Box<str>,
}

/// Where a record stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Somebody is executing it, or was.
    InProgress {
        /// A random number of the owner's own, by which it recognises a begin whose
        /// acknowledgement was lost.
        owner: u64,
        /// When this attempt began.
        begun_at: Time,
        /// Until when the owner is believed to be alive.
        lease_until: Time,
        /// The head of an answer that is too large or too slow to be kept, once it has come. It is
        /// here before its first byte goes to the caller.
        head: Option<AnswerHead>,
    },
    /// It was executed.
    Completed {
        /// What callers are told from now on.
        answer: Answer,
        /// When that became known.
        settled_at: Time,
        /// When the record may be reaped.
        expires_at: Time,
    },
    /// It surely was not executed, or the route's policy permits another run.
    FailedRetryable {
        /// When that became known.
        settled_at: Time,
        /// When the record may be reaped: [`Time::NEVER`] while its flow [holds
        /// work](FlowProgress::holds_work).
        expires_at: Time,
    },
    /// It may have been executed, and nobody knows.
    Unknown {
        /// Since when.
        since: Time,
        /// Why nobody knows.
        doubt: Doubt,
        /// How often a reconciler has asked.
        lookups: u32,
        /// The number of the owner whose attempt this was, by which it may still withdraw. None
        /// where a damaged store was salvaged, and nobody is known to have begun it.
        owner: Option<u64>,
        /// The head of the answer, if the attempt got as far.
        head: Option<AnswerHead>,
    },
}

/// What is kept of an answer before it has come whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnswerHead {
    /// The status.
    pub status: StatusCode,
    /// The `Location`, if it has one.
    pub location: Option<HeaderValue>,
}

/// The states without what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// See [`State::InProgress`].
    InProgress,
    /// See [`State::Completed`].
    Completed,
    /// See [`State::FailedRetryable`].
    FailedRetryable,
    /// See [`State::Unknown`].
    Unknown,
}

/// What is left of an executed request's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All that a replay needs.
    Kept(StoredResponse),
    /// Executed, but the answer was too large, endless, or only the fact is known.
    NotKept {
        /// The status of the first answer, if it is known.
        status: Option<StatusCode>,
        /// Its `Location`, if it had one.
        location: Option<HeaderValue>,
    },
}

/// Why nobody knows whether a request was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// The owner's lease ended without a word from it.
    LeaseEnded,
    /// The store was opened by a new owner process; whoever was executing is gone.
    OwnerGone,
    /// The request was sent and no whole answer came back.
    AnswerLost,
    /// The handler panicked, or its task was lost.
    Panicked,
    /// An answer that says itself that it does not know (502, 504), or a 5xx under `unknown`.
    ServerError,
    /// The handler or the upstream said so.
    Said,
    /// A flow would have sent other bytes than those of its first attempt.
    OtherBytes,
    /// A flow's call was made, and its result cannot be kept. What can be kept of it is on the timeline.
    ResultNotKept,
    /// A flow's call may have been made, and the code that runs now says that its provider takes no key.
    NotRepeatable,
    /// A flow's phase has ended its transaction by itself: what it did may be committed, without its recovery point.
    CommittedAlone,
}

/// One thing that happened to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When, by the store's clock.
    pub at: Time,
    /// The fence that held when it had happened.
    pub fence: Fence,
    /// What.
    pub what: Happened,
}

/// What can happen to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// An owner took over and may execute. Its request had this id, by which logs know it; where the request was traced,
    /// its span [stands behind the id](crate::trace).
    Began(Option<Box<str>>),
    /// The owner settled it, with this status if it had an answer.
    Settled(Standing, Option<u16>),
    /// It came to be unknown without a word from its owner.
    Doubted(Doubt),
    /// An owner that had lost its fence still reported this. Nothing changed.
    LateResult(Box<LateResult>),
    /// A reconciler asked and learned nothing final, but this: a [note](lookup_note) with what it was answered.
    LookedUp(Box<str>),
    /// A flow's recovery point moved here.
    Advanced(RecoveryPoint),
    /// Somebody decided by evidence.
    Resolved(Standing, Judge, Box<str>),
    /// An operator ended its retention early.
    Expired(Box<str>),
}

/// What an owner reported after it had lost its fence. It is evidence for whoever decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateResult {
    /// The fence that the owner began with.
    pub fence: Fence,
    /// How it says that its execution ended.
    pub standing: Standing,
    /// The status, if it had an answer.
    pub status: Option<u16>,
    /// The media type of the answer, if that is known and fits [`LATE_TYPE_BYTES_MAX`].
    pub content_type: Option<Box<str>>,
    /// The first [`LATE_BODY_BYTES_MAX`] bytes of the answer's body.
    pub body_start: Bytes,
    /// How many bytes the whole body had.
    pub body_bytes: u64,
}

/// Who decided about an unknown record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The reconciler's lookup.
    Reconciler,
    /// A message from the downstream.
    Webhook,
    /// A person, with a reason.
    Operator,
}

/// How an execution ended, as its owner settles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Executed; this is its answer for good.
    Completed(Answer),
    /// Not executed, or the policy lets it run again. The status is the one the caller saw.
    Retryable(Option<StatusCode>),
    /// It may have been executed.
    Unknown(Doubt),
}

/// A record that does not exist yet. The store names its clock and its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    /// Its name.
    pub id: Id,
    /// Whose key it is.
    pub scope: Scope,
    /// What stands for the key.
    pub key: KeyDigest,
    /// What the request means.
    pub fingerprint: Fingerprint,
    /// Which credential the caller showed, where that counts.
    pub mark: Option<CredentialMark>,
    /// What an operator sees of it.
    pub about: About,
    /// How long it is kept once settled.
    pub ttl: Duration,
    /// How long its owner may be silent.
    pub lease: Duration,
    /// The owner's own random number.
    pub owner: u64,
    /// The id of its request, by which logs know it, and its [span](crate::trace), if it is traced.
    pub request_id: Option<Box<str>>,
    /// The flow that starts with it, if one does.
    pub flow: Option<Box<FlowProgress>>,
}

impl First {
    /// The record that a store keeps for this, at its clock's `now`, with its next `version`.
    pub fn record(&self, now: Time, version: u64) -> Record {
        self.clone().into_record(now, version)
    }

    /// The same, where nobody needs the original any more.
    pub fn into_record(self, now: Time, version: u64) -> Record {
        // Most records have two moments in their life: they began, and they were settled.
        let mut timeline = Vec::with_capacity(2);
        let what = Happened::Began(self.request_id);
        timeline.push(Moment { at: now, fence: Fence(version), what });
        Record {
            id: self.id,
            scope: self.scope,
            key: self.key,
            fingerprint: self.fingerprint,
            mark: self.mark,
            about: self.about,
            created_at: now,
            ttl: self.ttl,
            version,
            fence: Fence(version),
            attempts: 1,
            state: State::InProgress {
                owner: self.owner,
                begun_at: now,
                lease_until: now.plus(self.lease),
                head: None,
            },
            flow: self.flow,
            timeline,
        }
    }
}

impl Record {
    /// Whether its retention is over. Never true while it is in progress or unknown: a forgotten
    /// unknown that came to be executed anew would be a double charge. Nor while its flow holds work
    /// that nobody has finished.
    pub fn is_expired(&self, now: Time) -> bool {
        !self.holds_work() && self.expires_at().is_some_and(|at| at <= now)
    }

    /// Whether a flow of it has a committed phase or a first-sent mark, and is not completed.
    pub fn holds_work(&self) -> bool {
        self.flow.as_ref().is_some_and(|flow| flow.holds_work())
    }

    /// The place from which its flow can go on, if it is one.
    pub fn recovery_point(&self) -> Option<RecoveryPoint> {
        self.flow.as_ref().map(|flow| flow.recovery_point())
    }

    /// Whether somebody else may go on once its lease is over.
    pub fn resume_rule(&self) -> ResumeRule {
        self.flow.as_ref().map_or(ResumeRule::Never, |flow| flow.resume_rule())
    }

    /// When it may be reaped, if it is settled.
    pub fn expires_at(&self) -> Option<Time> {
        match self.state {
            State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => {
                Some(expires_at)
            }
            State::InProgress { .. } | State::Unknown { .. } => None,
        }
    }

    /// Until when its owner is believed to be alive, if it is in progress.
    pub fn lease_until(&self) -> Option<Time> {
        match self.state {
            State::InProgress { lease_until, .. } => Some(lease_until),
            State::Completed { .. } | State::FailedRetryable { .. } | State::Unknown { .. } => None,
        }
    }

    /// Whether its present owner has said that it does not execute any more, and it is in progress still.
    pub fn is_given_back(&self) -> bool {
        self.timeline.iter().any(|moment| {
            moment.fence == self.fence
                && matches!(moment.what, Happened::Settled(Standing::InProgress, _))
        })
    }

    /// The number of its first owner, which is of this record alone. A key that is used again after its record was
    /// reaped makes another record, with another number.
    pub fn birth(&self) -> Fence {
        // The first moment of a record is never forgotten.
        self.timeline.first().map_or(Fence(0), |born| born.fence)
    }

    /// Since when nobody knows whether it was executed, if nobody does.
    pub fn unknown_since(&self) -> Option<Time> {
        match self.state {
            State::Unknown { since, .. } => Some(since),
            State::InProgress { .. } | State::Completed { .. } | State::FailedRetryable { .. } => {
                None
            }
        }
    }

    /// Its state without what it holds.
    pub fn standing(&self) -> Standing {
        self.state.standing()
    }

    /// The id of the last request that began to execute, by which logs know it.
    pub fn request_id(&self) -> Option<&str> {
        self.request_ids().next_back()
    }

    /// The ids of the requests that began to execute, oldest first, as far as they are remembered.
    pub fn request_ids(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.origins().filter_map(|origin| origin.request_id)
    }

    /// The span in which the last request that began was executed, if it was traced.
    pub fn span(&self) -> Option<TracedSpan> {
        self.origins().next_back().and_then(|origin| origin.span)
    }

    /// Which requests began to execute, oldest first, as far as they are remembered.
    pub fn origins(&self) -> impl DoubleEndedIterator<Item = BeginOrigin<'_>> {
        self.timeline.iter().filter_map(|moment| match &moment.what {
            // One that left nothing is one too, and the one before is not the last.
            Happened::Began(kept) => {
                Some(kept.as_deref().map_or_else(BeginOrigin::default, read_begin_text))
            }
            Happened::Settled(..)
            | Happened::Doubted(_)
            | Happened::LateResult(_)
            | Happened::LookedUp(_)
            | Happened::Advanced(_)
            | Happened::Resolved(..)
            | Happened::Expired(_) => None,
        })
    }

    fn remember(&mut self, moment: Moment) {
        make_room(&mut self.timeline, &moment.what);
        self.timeline.push(moment);
    }
}

/// Makes room on a timeline for what happens next. The first moment always stays.
///
/// The oldest lookup goes first, then the oldest phase of a flow: a reconciler that asks for days and a
/// flow of many phases must not push out who began and what was decided. A first lookup makes room by
/// the oldest moment that is no begin. Else the oldest goes, but not the last word of an owner that gave its
/// lease back: it must not be renewed, however many notes come after.
pub fn make_room(timeline: &mut Vec<Moment>, next: &Happened) {
    let is_lookup = |what: &Happened| matches!(what, Happened::LookedUp(_));
    let is_phase = |what: &Happened| matches!(what, Happened::Advanced(_));
    while timeline.len() >= MOMENTS_MAX {
        let oldest = |fits: &dyn Fn(&Happened) -> bool| {
            let mut later = timeline.iter().enumerate().skip(1);
            later.find(|(_, moment)| fits(&moment.what)).map(|(at, _)| at)
        };
        let lookup = oldest(&is_lookup).or_else(|| oldest(&is_phase));
        let spared = oldest(&|what| is_lookup(next) && !matches!(what, Happened::Began(_)));
        let given_back = timeline
            .iter()
            .rposition(|moment| matches!(moment.what, Happened::Settled(Standing::InProgress, _)));
        let other = if given_back == Some(1) { 2 } else { 1 };
        timeline.remove(lookup.or(spared).unwrap_or(other));
    }
}

impl State {
    /// The state without what it holds.
    pub fn standing(&self) -> Standing {
        match self {
            Self::InProgress { .. } => Standing::InProgress,
            Self::Completed { .. } => Standing::Completed,
            Self::FailedRetryable { .. } => Standing::FailedRetryable,
            Self::Unknown { .. } => Standing::Unknown,
        }
    }

    /// The number of the owner whose attempt is running or in doubt.
    pub fn owner(&self) -> Option<u64> {
        match self {
            Self::InProgress { owner, .. } => Some(*owner),
            Self::Unknown { owner, .. } => *owner,
            Self::Completed { .. } | Self::FailedRetryable { .. } => None,
        }
    }

    /// The head of the answer of an attempt that is running or in doubt, if it got as far.
    pub fn head(&self) -> Option<&AnswerHead> {
        match self {
            Self::InProgress { head, .. } | Self::Unknown { head, .. } => head.as_ref(),
            Self::Completed { .. } | Self::FailedRetryable { .. } => None,
        }
    }
}

impl Standing {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::InProgress, Self::Completed, Self::FailedRetryable, Self::Unknown];

    /// Its name in stores, logs and the admin interface.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::FailedRetryable => "failed_retryable",
            Self::Unknown => "unknown",
        }
    }

    /// The standing of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|standing| standing.name() == name)
    }
}

impl Doubt {
    /// Its name in logs and the admin interface.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LeaseEnded => "lease_ended",
            Self::OwnerGone => "owner_gone",
            Self::AnswerLost => "answer_lost",
            Self::Panicked => "panicked",
            Self::ServerError => "server_error",
            Self::Said => "said",
            Self::OtherBytes => "other_bytes",
            Self::ResultNotKept => "result_not_kept",
            Self::NotRepeatable => "not_repeatable",
            Self::CommittedAlone => "committed_alone",
        }
    }
}

impl Judge {
    /// Its name in logs and the admin interface.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reconciler => "reconciler",
            Self::Webhook => "webhook",
            Self::Operator => "operator",
        }
    }
}

impl Outcome {
    /// The standing a record has after this.
    pub fn standing(&self) -> Standing {
        match self {
            Self::Completed(_) => Standing::Completed,
            Self::Retryable(_) => Standing::FailedRetryable,
            Self::Unknown(_) => Standing::Unknown,
        }
    }

    /// The status that the caller saw, if there was one.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Completed(answer) => answer.status(),
            Self::Retryable(status) => *status,
            Self::Unknown(_) => None,
        }
    }
}

impl LateResult {
    /// What is kept of an outcome that its owner reported too late.
    pub fn new(fence: Fence, outcome: &Outcome) -> Self {
        let status = outcome.status().map(|status| status.as_u16());
        let standing = outcome.standing();
        let nothing = Self {
            fence,
            standing,
            status,
            content_type: None,
            body_start: Bytes::new(),
            body_bytes: 0,
        };
        let Outcome::Completed(Answer::Kept(response)) = outcome else { return nothing };
        let content_type = response.headers.iter().find(|(name, _)| *name == CONTENT_TYPE);
        let content_type = content_type.and_then(|(_, value)| value.to_str().ok());
        // A copy: a slice would keep the whole body in memory for as long as the record is there.
        let start = response.body.get(..LATE_BODY_BYTES_MAX).unwrap_or(&response.body);
        Self {
            content_type: content_type
                .filter(|text| (1..=LATE_TYPE_BYTES_MAX).contains(&text.len()))
                .map(Into::into),
            body_start: Bytes::copy_from_slice(start),
            body_bytes: response.body.len() as u64,
            ..nothing
        }
    }

    /// What is kept of a call's result that its owner reported too late. The flow itself had not
    /// ended: it is in progress for this owner.
    pub fn of_call(fence: Fence, output: &Bytes) -> Self {
        let start = output.get(..LATE_BODY_BYTES_MAX).unwrap_or(output);
        Self {
            fence,
            standing: Standing::InProgress,
            status: None,
            content_type: None,
            body_start: Bytes::copy_from_slice(start),
            body_bytes: output.len() as u64,
        }
    }
}

impl Answer {
    /// The status of the first answer, if it is known.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Kept(response) => Some(response.status),
            Self::NotKept { status, .. } => *status,
        }
    }
}

/// The id of a request as it is kept: not if it is empty or longer than [`REQUEST_ID_BYTES_MAX`].
pub fn request_id(text: &str) -> Option<Box<str>> {
    (1..=REQUEST_ID_BYTES_MAX).contains(&text.len()).then(|| text.into())
}

/// A note about a lookup as it is kept: at most [`LOOKUP_BYTES_MAX`] bytes, cut between characters.
pub(crate) fn note(text: &str) -> Box<str> {
    lookup_note::start_of(text, LOOKUP_BYTES_MAX).into()
}

/// A reason as it is kept: at most [`REASON_BYTES_MAX`] bytes, cut between characters.
pub fn reason(text: &str) -> Box<str> {
    lookup_note::start_of(text, REASON_BYTES_MAX).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3_600);
    const LEASE: Duration = Duration::from_secs(60);

    fn at(secs: u64) -> Time {
        Time::from_ms(secs * 1_000)
    }

    fn begun() -> Record {
        let (scope, key) = (Scope::anonymous(), crate::key::Key::new("k").unwrap().digest());
        let rules = crate::fingerprint::RulesId::from_bytes([0; 8]);
        First {
            id: Id::of(&scope, &key),
            scope,
            key,
            fingerprint: Fingerprint::from_parts(1, rules, [0; 32]),
            mark: Some(CredentialMark::of(b"first")),
            about: About::default(),
            ttl: TTL,
            lease: LEASE,
            owner: 7,
            request_id: request_id("r-1"),
            flow: None,
        }
        .record(at(100), 5)
    }

    fn write(becomes: Becomes) -> Write {
        Write { becomes, new_fence: false, what: None, ttl: None }
    }

    fn answer() -> Answer {
        Answer::NotKept { status: None, location: None }
    }

    #[test]
    fn a_first_record_is_in_progress_under_its_own_fence() {
        let record = begun();
        assert_eq!((record.version, record.fence, record.attempts), (5, Fence(5), 1));
        assert_eq!(record.lease_until(), Some(at(160)));
        assert_eq!(record.expires_at(), None);
        let what = Happened::Began(Some("r-1".into()));
        assert_eq!(record.timeline, [Moment { at: at(100), fence: Fence(5), what }]);
        assert_eq!(record.request_id(), Some("r-1"));
    }

    #[test]
    fn only_settled_records_expire_and_they_do_so_at_their_time() {
        for (becomes, expires) in [
            (Becomes::Completed(answer()), true),
            (Becomes::FailedRetryable, true),
            (Becomes::Unknown(Doubt::Said), false),
            (Becomes::Same, false),
        ] {
            let record = write(becomes).onto(&begun(), at(200), 6);
            let end = at(200).plus(TTL);
            assert_eq!(record.expires_at(), expires.then_some(end));
            assert!(!record.is_expired(Time::from_ms(end.as_ms() - 1)));
            assert_eq!(record.is_expired(end), expires);
            assert_eq!(record.is_expired(Time::from_ms(u64::MAX)), expires);
        }
    }

    #[test]
    fn a_new_time_to_live_counts_for_the_write_that_brings_it() {
        let change = Write { ttl: Some(TTL * 2), ..write(Becomes::FailedRetryable) };
        let record = change.onto(&begun(), at(200), 6);
        assert_eq!((record.ttl, record.expires_at()), (TTL * 2, Some(at(200).plus(TTL * 2))));
    }

    #[test]
    fn a_takeover_counts_an_attempt_and_moves_the_fence_if_asked() {
        let mark = Some(CredentialMark::of(b"second"));
        let takeover =
            Write { new_fence: true, ..write(Becomes::Begun { owner: 8, lease: LEASE, mark }) };
        let record = takeover.onto(&begun(), at(300), 9);
        assert_eq!(record.mark, mark, "the new attempt's credential counts from now on");
        assert_eq!(write(Becomes::Same).onto(&record, at(301), 10).mark, mark);
        assert_eq!((record.version, record.fence, record.attempts), (9, Fence(9), 2));
        let state =
            State::InProgress { owner: 8, begun_at: at(300), lease_until: at(360), head: None };
        assert_eq!(record.state, state);
        assert_eq!(write(Becomes::Same).onto(&record, at(301), 10).fence, Fence(9));
        let many = Record { attempts: u32::MAX, ..record };
        assert_eq!(takeover.onto(&many, at(302), 11).attempts, u32::MAX);
    }

    #[test]
    fn a_renewal_reaches_no_further_than_lease_max_after_the_begin() {
        let renew = |lease_max| write(Becomes::Renewed { lease: LEASE, lease_max });
        let record = renew(LEASE * 10).onto(&begun(), at(150), 6);
        assert_eq!(record.lease_until(), Some(at(210)));
        let record = renew(Duration::from_secs(70)).onto(&begun(), at(150), 6);
        assert_eq!(record.lease_until(), Some(at(170)));
    }

    fn keep_head(status: u16) -> Becomes {
        let status = StatusCode::from_u16(status).unwrap();
        let head = AnswerHead { status, location: Some(HeaderValue::from_static("/a")) };
        Becomes::HeadKept { head, lease: LEASE, lease_max: LEASE * 2 }
    }

    #[test]
    fn a_head_is_kept_through_renewals_and_doubt_and_ends_with_its_attempt() {
        let with_head = write(keep_head(201)).onto(&begun(), at(150), 6);
        assert_eq!(with_head.lease_until(), Some(at(210)), "the lease is renewed as well");
        let head = with_head.state.head().cloned();
        assert_eq!(head.as_ref().map(|head| head.status), Some(StatusCode::CREATED));
        let renewal = write(Becomes::Renewed { lease: LEASE, lease_max: LEASE * 2 });
        let renewed = renewal.onto(&with_head, at(200), 7);
        assert_eq!((renewed.lease_until(), renewed.state.head()), (Some(at(220)), head.as_ref()));
        let doubted = write(Becomes::Unknown(Doubt::LeaseEnded)).onto(&renewed, at(300), 8);
        let looked_up = write(Becomes::LookedUp).onto(&doubted, at(301), 9);
        for record in [&doubted, &looked_up] {
            assert_eq!((record.state.owner(), record.state.head()), (Some(7), head.as_ref()));
        }
        let begun = Becomes::Begun { owner: 8, lease: LEASE, mark: None };
        let again = write(begun).onto(&looked_up, at(400), 10);
        assert_eq!((again.state.owner(), again.state.head()), (Some(8), None));
    }

    #[test]
    fn a_doubt_about_a_settled_record_has_no_owner() {
        let free = write(Becomes::FailedRetryable).onto(&begun(), at(150), 6);
        let doubted = write(Becomes::Unknown(Doubt::AnswerLost)).onto(&free, at(160), 7);
        assert_eq!((doubted.state.owner(), doubted.state.head()), (None, None));
    }

    #[test]
    fn a_record_that_is_not_what_it_was_taken_for_stays() {
        let unknown = write(Becomes::Unknown(Doubt::Said)).onto(&begun(), at(150), 6);
        let done = write(Becomes::Completed(answer())).onto(&begun(), at(150), 6);
        let renewal = Becomes::Renewed { lease: LEASE, lease_max: LEASE };
        for (record, becomes) in [
            (&unknown, renewal.clone()),
            (&done, renewal),
            (&unknown, keep_head(200)),
            (&done, keep_head(200)),
            (&done, Becomes::LookedUp),
            (&begun(), Becomes::LookedUp),
            (&begun(), Becomes::Expired),
            (&unknown, Becomes::Expired),
        ] {
            let next = write(becomes).onto(record, at(500), 7);
            assert_eq!((&next.state, next.version), (&record.state, 7));
        }
    }

    #[test]
    fn an_ended_retention_keeps_the_answer_and_when_it_was_settled() {
        let done = write(Becomes::Completed(answer())).onto(&begun(), at(150), 6);
        let ended = write(Becomes::Expired).onto(&done, at(200), 7);
        let state = State::Completed { answer: answer(), settled_at: at(150), expires_at: at(200) };
        assert_eq!(ended.state, state);
        assert!(ended.is_expired(at(200)));
    }

    #[test]
    fn a_timeline_keeps_its_first_moment_and_its_last_ones() {
        let mut record = begun();
        for n in 0..100u64 {
            let what = Some(Happened::Settled(Standing::Unknown, Some(n as u16)));
            let change = Write { what, ..write(Becomes::Same) };
            record = change.onto(&record, at(200 + n), 6 + n);
            assert!(record.timeline.len() <= MOMENTS_MAX);
        }
        assert_eq!(record.timeline.len(), MOMENTS_MAX);
        assert_eq!(record.timeline[0].what, begun().timeline[0].what);
        let kept: Vec<Time> = record.timeline.iter().skip(1).map(|moment| moment.at).collect();
        let last = (200 + 100 - (MOMENTS_MAX as u64 - 1))..(200 + 100);
        assert_eq!(kept, last.map(at).collect::<Vec<_>>());
    }

    /// A lease that was given back was once renewed: sixteen late notes had pushed the giving back off the timeline.
    #[test]
    fn notes_do_not_push_a_given_back_lease_off_a_timeline() {
        let happens = |record: &Record, what: Happened| {
            Write { what: Some(what), ..write(Becomes::Same) }.onto(record, at(200), 6)
        };
        let mut record = begun();
        for _ in 0..3 {
            record = happens(&record, Happened::Settled(Standing::InProgress, None));
        }
        for n in 0..100 {
            record = happens(&record, Happened::Doubted(Doubt::Said));
            assert!(record.is_given_back(), "after {n} notes");
        }
        assert_eq!(record.timeline.len(), MOMENTS_MAX);
    }

    fn told(record: &Record) -> Vec<&Happened> {
        record.timeline.iter().map(|moment| &moment.what).collect()
    }

    #[test]
    fn lookups_push_nothing_else_off_a_timeline() {
        let happens = |record: &Record, what: Happened| {
            Write { what: Some(what), ..write(Becomes::Same) }.onto(record, at(200), 6)
        };
        let looked_up = |n: usize| Happened::LookedUp(n.to_string().into());
        let begins = |n: usize| Happened::Began(Some(n.to_string().into()));
        let mut record = happens(&happens(&begun(), begins(2)), Happened::Doubted(Doubt::Said));
        let before = record.clone();
        for n in 0..100 {
            record = happens(&record, looked_up(n));
        }
        assert_eq!(told(&record)[..3], told(&before), "whatever was told before");
        let last: Vec<Happened> = (87..100).map(looked_up).collect();
        assert_eq!(told(&record)[3..], last.iter().collect::<Vec<_>>());
        // What happens next is worth more than a lookup.
        let record = happens(&record, Happened::Expired("e".into()));
        assert_eq!((record.timeline.len(), told(&record)[3]), (MOMENTS_MAX, &looked_up(88)));

        // A timeline that is full before the first lookup keeps its begins.
        let mut record = begun();
        for n in 0..20 {
            record = happens(&record, begins(n));
            record = happens(&record, Happened::Settled(Standing::FailedRetryable, None));
        }
        let ids = |record: &Record| record.request_ids().map(str::to_owned).collect::<Vec<_>>();
        let before = ids(&record);
        for n in 0..100 {
            record = happens(&record, looked_up(n));
        }
        assert_eq!((ids(&record), record.timeline.len()), (before, MOMENTS_MAX));
    }

    #[test]
    fn an_id_of_a_request_is_kept_whole_or_not_at_all() {
        let longest = "x".repeat(REQUEST_ID_BYTES_MAX);
        assert_eq!(request_id(&longest).as_deref(), Some(&*longest));
        assert_eq!((request_id(""), request_id(&format!("{longest}x"))), (None, None));
    }

    #[test]
    fn a_write_without_a_moment_leaves_no_trace() {
        let record = write(Becomes::Same).onto(&begun(), at(150), 6);
        assert_eq!(record.timeline, begun().timeline);
    }

    #[test]
    fn of_a_late_answer_its_beginning_is_kept() {
        let late = |length: usize, media_type: &str| {
            let value = HeaderValue::from_str(media_type).unwrap();
            let response = StoredResponse {
                status: StatusCode::CREATED,
                headers: vec![(CONTENT_TYPE, value)],
                body: vec![b'x'; length].into(),
            };
            LateResult::new(Fence(3), &Outcome::Completed(Answer::Kept(response)))
        };
        for length in [0, 1, LATE_BODY_BYTES_MAX, LATE_BODY_BYTES_MAX + 1, 1 << 20] {
            let kept = late(length, "text/plain");
            assert_eq!(kept.body_start.len(), length.min(LATE_BODY_BYTES_MAX));
            assert_eq!((kept.body_bytes, kept.status), (length as u64, Some(201)));
            assert_eq!(kept.content_type.as_deref(), Some("text/plain"));
        }
        let longest = "x".repeat(LATE_TYPE_BYTES_MAX);
        assert_eq!(late(1, &longest).content_type.as_deref(), Some(&*longest));
        assert_eq!(late(1, &format!("{longest}x")).content_type, None);
        let not_kept = LateResult::new(Fence(3), &Outcome::Completed(answer()));
        assert_eq!((not_kept.body_bytes, not_kept.status), (0, None));
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        assert_eq!(&*reason("short"), "short");
        assert_eq!(&*reason(""), "");
        assert_eq!(reason(&"x".repeat(REASON_BYTES_MAX + 1)).len(), REASON_BYTES_MAX);
        // 500 is not a multiple of three, so the last character would be cut in two.
        let cut = reason(&"漢".repeat(REASON_BYTES_MAX));
        assert_eq!(cut.len(), REASON_BYTES_MAX - REASON_BYTES_MAX % 3);
        assert!(cut.chars().all(|character| character == '漢'));
        assert_eq!(reason(&"🦀".repeat(200)).len(), REASON_BYTES_MAX);
    }

    #[test]
    fn every_standing_has_a_name_of_its_own() {
        for standing in Standing::ALL {
            assert_eq!(Standing::parse(standing.name()), Some(standing));
        }
        assert_eq!(Standing::parse("zombie"), None);
    }

    #[test]
    fn an_outcome_tells_its_standing_and_status() {
        let created = Some(StatusCode::CREATED);
        let not_kept = Answer::NotKept { status: created, location: None };
        for (outcome, standing, status) in [
            (Outcome::Completed(not_kept), Standing::Completed, created),
            (Outcome::Retryable(created), Standing::FailedRetryable, created),
            (Outcome::Retryable(None), Standing::FailedRetryable, None),
            (Outcome::Unknown(Doubt::Said), Standing::Unknown, None),
        ] {
            assert_eq!((outcome.standing(), outcome.status()), (standing, status));
        }
    }
}
