//! What may happen next to a flow?
//!
//! The rules of [`machine`](super) for records that have a recovery point. Each of them closes one way
//! to an effect that happens twice, to a phase that is lost, or to an effect that nobody knows of:
//!
//! * An advance names the fence and the recovery point it starts from. A commit that lands after its
//!   owner has read back what is there then changes nothing twice.
//! * While a first-sent mark stands, nothing settles `retryable`, whatever anybody says: a call may be
//!   in flight. With a provider that remembers our key only the lease ends; else it is `unknown`.
//! * While no mark stands, nothing is unknown: a handler that panics or is given up leaves the flow as its death
//!   would, with its lease over.
//! * "Not sent" clears the mark only for the owner that set it. A former owner's bytes may be on
//!   their way.
//! * A late owner's result of a call still counts, while nobody has decided. The fence rises with it,
//!   so that a record which is unknown under one fence is unknown at one recovery point only: evidence
//!   and lookups name the fence.
//! * Immediately before a call's first byte [`decide_send`] has the last word. A fence stops a slow
//!   owner's next commit, not its next packet.
//! * A call that somebody else may have sent is repeated only if its mark permits it and the code that
//!   runs now says so too. A provider may have been declared wrongly when the mark was set.

use std::time::Duration;

use bytes::Bytes;

use super::{Decision, Event, Lost, SettleReply, end_lease, write};
use crate::flow::{
    FirstSentMark, FlowMove, FlowProgress, FlowVersion, RecoveryPoint, RequestDigest,
};
use crate::record::{Becomes, Doubt, Fence, Happened, Outcome, Record, Standing, State, Write};
use crate::time::Time;

/// The owner of a flow moves its recovery point.
#[derive(Clone, Copy, Debug)]
pub struct Advance<'a> {
    /// The fence it began with.
    pub fence: Fence,
    /// From where to where.
    pub step: &'a FlowStep,
}

/// One step of a flow. Each names the recovery point that it starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowStep {
    /// The flow's own first commit. From here on others can go on with it.
    Start {
        /// Which flow.
        flow: FlowVersion,
        /// What it works on.
        input: Bytes,
    },
    /// A phase that is no call is over. Its writes and this are one commit.
    Commit {
        /// The phase.
        phase: u16,
        /// What it leaves for later phases.
        output: Bytes,
    },
    /// A call is about to be sent.
    Call {
        /// The phase.
        phase: u16,
        /// The digest of the bytes that will be sent.
        digest: RequestDigest,
        /// For how long from now on the same call may be repeated: [`KeyMemory::repeatable_for`].
        /// None where the provider takes no key.
        repeatable_for: Option<Duration>,
    },
    /// The call has ended, and this is its result.
    CallResult {
        /// The phase.
        phase: u16,
        /// What it leaves for later phases.
        output: Bytes,
    },
}

/// Why an advance writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvanceReply {
    /// The same step was made before, by the same owner; it holds.
    Repeated,
    /// The flow would have more phases or bytes than it may.
    TooLarge,
    /// The asker does not own the record any more, or the flow is at another recovery point.
    Lost,
}

/// The owner of a flow was about to make this call and has not: none of its bytes has left.
#[derive(Clone, Copy, Debug)]
pub struct CallNotSent {
    /// The fence it began with.
    pub fence: Fence,
    /// The phase.
    pub phase: u16,
}

impl FlowStep {
    /// The recovery point that it starts from; none is a record without a flow.
    pub const fn from(&self) -> Option<RecoveryPoint> {
        match self {
            Self::Start { .. } => None,
            Self::Commit { phase, .. } | Self::Call { phase, .. } => {
                Some(RecoveryPoint::Before(*phase))
            }
            Self::CallResult { phase, .. } => Some(RecoveryPoint::Calling(*phase)),
        }
    }

    /// The recovery point to which it leads.
    pub const fn to(&self) -> RecoveryPoint {
        match self {
            Self::Start { .. } => RecoveryPoint::Before(0),
            Self::Commit { phase, .. } | Self::CallResult { phase, .. } => {
                RecoveryPoint::Before(phase.saturating_add(1))
            }
            Self::Call { phase, .. } => RecoveryPoint::Calling(*phase),
        }
    }

    fn moves(&self, fence: Fence, now: Time) -> FlowMove {
        match self {
            Self::Start { flow, input } => {
                FlowMove::Started { flow: flow.clone(), input: input.clone() }
            }
            Self::Commit { output, .. } | Self::CallResult { output, .. } => {
                FlowMove::PhaseDone(output.clone())
            }
            Self::Call { digest, repeatable_for, .. } => FlowMove::CallMarked(FirstSentMark {
                digest: *digest,
                set_by: fence,
                // The clock's last reading is earlier than the write, and this time ends no later.
                resume_until: repeatable_for.map(|length| now.plus(length)),
            }),
        }
    }

    fn fits(&self, flow: Option<&FlowProgress>) -> bool {
        match self {
            Self::Start { flow, input } => {
                FlowProgress::started(flow.clone(), input.clone()).is_some()
            }
            Self::Commit { output, .. } | Self::CallResult { output, .. } => {
                flow.is_some_and(|flow| flow.has_room_for(output))
            }
            Self::Call { .. } => flow.is_some_and(|flow| flow.has_room_for(&Bytes::new())),
        }
    }

    /// Whether `flow` is what this step of the owner with `fence` has made.
    fn has_made(&self, flow: &FlowProgress, fence: Fence) -> bool {
        let is_there = flow.recovery_point() == self.to();
        is_there
            && match self {
                Self::Start { flow: version, input } => {
                    flow.flow() == version && flow.input() == input
                }
                Self::Commit { output, .. } | Self::CallResult { output, .. } => {
                    flow.outputs().last() == Some(output)
                }
                Self::Call { digest, .. } => {
                    flow.mark().is_some_and(|mark| (mark.digest, mark.set_by) == (*digest, fence))
                }
            }
    }

    /// Whether it tells how a call ended.
    pub const fn is_result(&self) -> bool {
        match self {
            Self::CallResult { .. } => true,
            Self::Start { .. } | Self::Commit { .. } | Self::Call { .. } => false,
        }
    }
}

impl Event for Advance<'_> {
    type Reply = AdvanceReply;

    fn decide(&self, live: &Record, now: Time) -> Decision<AdvanceReply> {
        let Self { fence, step } = *self;
        if live.fence != fence {
            return Decision::Stands(AdvanceReply::Lost);
        }
        let is_from_here = live.recovery_point() == step.from();
        let (may_move, is_late) = match live.state {
            State::InProgress { .. } => (is_from_here, false),
            State::Unknown { .. } => (is_from_here && step.is_result(), true),
            State::Completed { .. } | State::FailedRetryable { .. } => (false, false),
        };
        let flow = live.flow.as_deref();
        if may_move && !step.fits(flow) {
            return Decision::Stands(AdvanceReply::TooLarge);
        }
        if may_move {
            let moves = Becomes::Advanced(step.moves(fence, now));
            let what = Some(Happened::Advanced(step.to()));
            return Decision::Write(Write { new_fence: is_late, ..write(moves, what) });
        }
        let is_made = live.standing() == Standing::InProgress
            && flow.is_some_and(|flow| step.has_made(flow, fence));
        Decision::Stands(if is_made { AdvanceReply::Repeated } else { AdvanceReply::Lost })
    }
}

impl Event for CallNotSent {
    type Reply = Lost;

    fn decide(&self, live: &Record, _: Time) -> Decision<Lost> {
        let is_here = live.recovery_point() == Some(RecoveryPoint::Calling(self.phase));
        let mark = live.flow.as_ref().and_then(|flow| flow.mark());
        let (Some(mark), true) = (mark, is_here && live.fence == self.fence) else {
            return Decision::Stands(Lost);
        };
        match (&live.state, mark.set_by == self.fence) {
            (State::InProgress { .. } | State::Unknown { .. }, true) => {
                let what = Happened::Settled(Standing::FailedRetryable, None);
                Decision::Write(write(Becomes::FailedRetryable, Some(what)))
            }
            (State::InProgress { .. }, false) => Decision::Write(end_lease(None)),
            (State::Unknown { .. }, false)
            | (State::Completed { .. } | State::FailedRetryable { .. }, _) => {
                Decision::Stands(Lost)
            }
        }
    }
}

/// What a settle of a running or unknown record means because of its flow; none where it means what it says.
pub(super) fn settle_of_flow(live: &Record, outcome: &Outcome) -> Option<Decision<SettleReply>> {
    let flow = live.flow.as_ref()?;
    let status = outcome.status().map(|status| status.as_u16());
    let Some(mark) = flow.mark() else {
        return match (&live.state, outcome) {
            // A phase may have committed what the recovery point does not know of: to go on would do it again.
            (State::InProgress { .. }, Outcome::Unknown(Doubt::CommittedAlone)) => None,
            // Nothing outside is in flight, so there is nothing that nobody knows. It is as if its owner had
            // died: somebody else goes on.
            (State::InProgress { .. }, Outcome::Unknown(_)) => {
                Some(Decision::Write(end_lease(status)))
            }
            (
                State::InProgress { .. }
                | State::Unknown { .. }
                | State::Completed { .. }
                | State::FailedRetryable { .. },
                Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Unknown(_),
            ) => None,
        };
    };
    let doubt = match outcome {
        // The owner has the whole answer: whoever it called has answered. And what another attempt would
        // not send, or would get the same useless result for, is a doubt at once.
        Outcome::Completed(_)
        | Outcome::Unknown(
            Doubt::OtherBytes | Doubt::ResultNotKept | Doubt::NotRepeatable | Doubt::CommittedAlone,
        ) => return None,
        Outcome::Unknown(doubt) => *doubt,
        Outcome::Retryable(_) => Doubt::AnswerLost,
    };
    Some(match (&live.state, mark.resume_until) {
        (State::InProgress { .. }, Some(_)) => Decision::Write(end_lease(status)),
        (State::InProgress { .. }, None) => {
            let what = Happened::Settled(Standing::Unknown, status);
            Decision::Write(write(Becomes::Unknown(doubt), Some(what)))
        }
        // It is unknown already, and this is no evidence.
        (
            State::Unknown { .. } | State::Completed { .. } | State::FailedRetryable { .. },
            Some(_) | None,
        ) => Decision::Stands(SettleReply::Repeated),
    })
}

/// What an owner knows of its call immediately before the call's first byte.
#[derive(Clone, Copy, Debug)]
pub struct BeforeWire<'a> {
    /// The record as the store has last shown it.
    pub record: &'a Record,
    /// The store's clock in that answer.
    pub read_at: Time,
    /// How long ago the store was asked: counted from before the question was sent, on a clock that
    /// runs through suspend.
    pub elapsed: Duration,
    /// How long the call may take at the most.
    pub deadline: Duration,
    /// The digest of the bytes that would be sent.
    pub digest: &'a RequestDigest,
    /// Whether the provider remembers our key long enough, by the code that runs now:
    /// [`KeyMemory::repeatable_for`] is there.
    pub is_repeatable: bool,
}

/// Whether a call may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendDecision {
    /// At once.
    Send,
    /// Nothing is sent. The lease or the provider's memory may be over before the call is.
    TooLate,
    /// Nothing is sent. The first attempt had other bytes, and nobody knows what became of them.
    OtherBytes,
    /// Nothing is sent. Somebody else may have sent it, and the provider takes no key by the code that
    /// runs now.
    NotRepeatable,
}

/// Decides whether a call may be sent, immediately before its first byte.
///
/// A pause between this and the packet is what no check can exclude; the margin of [`KeyMemory`] and
/// the deadline of the call are there for it.
pub fn decide_send(call: &BeforeWire<'_>) -> SendDecision {
    let mark = call.record.flow.as_ref().and_then(|flow| flow.mark());
    let (Some(mark), Some(lease_until)) = (mark, call.record.lease_until()) else {
        return SendDecision::TooLate;
    };
    if mark.digest != *call.digest {
        return SendDecision::OtherBytes;
    }
    let is_own = mark.set_by == call.record.fence;
    if !is_own && !call.is_repeatable {
        return SendDecision::NotRepeatable;
    }
    let lease_left = call.read_at.until(lease_until);
    let is_live = call.elapsed.saturating_add(call.deadline) < lease_left;
    let is_remembered = match mark.resume_until {
        Some(until) => call.elapsed < call.read_at.until(until),
        None => is_own,
    };
    if is_live && is_remembered { SendDecision::Send } else { SendDecision::TooLate }
}

/// How long a provider remembers our key, and what must fit before it forgets.
#[derive(Clone, Copy, Debug)]
pub struct KeyMemory {
    /// How long the provider remembers a key from its first use on.
    pub window: Duration,
    /// How long one attempt may hold its lease.
    pub lease_max: Duration,
    /// How long one call may take.
    pub deadline: Duration,
    /// How long a packet may be on its way at the most.
    pub longest_way: Duration,
    /// By how much the clocks of store and provider may drift apart in that time.
    pub skew: Duration,
}

impl KeyMemory {
    /// For how long after the first-sent mark the same call may be sent again. None if the provider
    /// forgets too soon: it is as good as one that takes no key.
    pub fn repeatable_for(&self) -> Option<Duration> {
        let parts = [self.lease_max, self.deadline, self.longest_way, self.skew];
        let margin = parts.into_iter().fold(Duration::ZERO, Duration::saturating_add);
        self.window.checked_sub(margin).filter(|length| !length.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{About, First};
    use crate::scope::{Id, Scope};

    const READ_AT: Time = Time::from_ms(1_000_000);
    const LEASE: Duration = Duration::from_secs(60);
    const MINUTE: Duration = Duration::from_secs(60);
    const SECOND: Duration = Duration::from_secs(1);

    fn digest() -> RequestDigest {
        RequestDigest::of(b"charge")
    }

    /// A record about to make its call, on a lease of a minute.
    fn calling(repeatable_for: Option<Duration>) -> Record {
        let (scope, key) = (Scope::anonymous(), crate::key::Key::new("k").unwrap().digest());
        let rules = crate::fingerprint::RulesId::from_bytes([0; 8]);
        let first = First {
            id: Id::of(&scope, &key),
            scope,
            key,
            fingerprint: crate::fingerprint::Fingerprint::from_parts(1, rules, [0; 32]),
            mark: None,
            about: About::default(),
            ttl: MINUTE,
            lease: LEASE,
            owner: 1,
            request_id: None,
            flow: None,
        };
        let mut record = first.record(READ_AT, 10);
        let start = FlowStep::Start { flow: FlowVersion::new("ride", 1), input: Bytes::new() };
        let call = FlowStep::Call { phase: 0, digest: digest(), repeatable_for };
        for step in [start, call] {
            let decision = Advance { fence: Fence(10), step: &step }.decide(&record, READ_AT);
            record = decision.write().unwrap().onto(&record, READ_AT, 11);
        }
        record
    }

    fn decided(record: &Record, elapsed: Duration, deadline: Duration) -> SendDecision {
        let digest = digest();
        let read_at = READ_AT;
        let is_repeatable = true;
        decide_send(&BeforeWire {
            record,
            read_at,
            elapsed,
            deadline,
            digest: &digest,
            is_repeatable,
        })
    }

    #[test]
    fn a_call_is_sent_only_if_it_ends_before_its_lease() {
        let record = calling(Some(MINUTE * 60));
        assert_eq!(decided(&record, Duration::ZERO, SECOND), SendDecision::Send);
        assert_eq!(decided(&record, LEASE - SECOND * 2, SECOND), SendDecision::Send);
        assert_eq!(decided(&record, LEASE - SECOND, SECOND), SendDecision::TooLate);
        assert_eq!(decided(&record, SECOND, LEASE), SendDecision::TooLate);
        assert_eq!(decided(&record, Duration::MAX, SECOND), SendDecision::TooLate);
    }

    #[test]
    fn a_call_is_not_sent_once_its_provider_may_have_forgotten_the_key() {
        let record = calling(Some(SECOND * 10));
        assert_eq!(decided(&record, SECOND * 9, SECOND), SendDecision::Send);
        assert_eq!(decided(&record, SECOND * 10, SECOND), SendDecision::TooLate);
    }

    #[test]
    fn other_bytes_and_records_without_a_mark_are_not_sent() {
        let record = calling(Some(MINUTE));
        let digest = RequestDigest::of(b"another charge");
        let (read_at, elapsed, deadline) = (READ_AT, Duration::ZERO, SECOND);
        let is_repeatable = true;
        let call = BeforeWire {
            record: &record,
            read_at,
            elapsed,
            deadline,
            digest: &digest,
            is_repeatable,
        };
        assert_eq!(decide_send(&call), SendDecision::OtherBytes);
        let plain = Record { flow: None, ..record };
        assert_eq!(decided(&plain, Duration::ZERO, SECOND), SendDecision::TooLate);
    }

    #[test]
    fn a_call_without_a_key_is_sent_by_the_owner_that_marked_it() {
        let own = calling(None);
        assert_eq!(decided(&own, Duration::ZERO, SECOND), SendDecision::Send);
        let foreign = Record { fence: Fence(11), ..own };
        assert_eq!(decided(&foreign, Duration::ZERO, SECOND), SendDecision::TooLate);
    }

    /// The mark of a former deployment said "for a day", and the code that runs now says "takes no key".
    #[test]
    fn a_call_of_somebody_else_is_repeated_only_if_the_code_of_today_says_so() {
        let own = calling(Some(MINUTE * 60));
        let foreign = Record { fence: Fence(11), ..own.clone() };
        let digest = digest();
        let call = BeforeWire {
            record: &foreign,
            read_at: READ_AT,
            elapsed: Duration::ZERO,
            deadline: SECOND,
            digest: &digest,
            is_repeatable: false,
        };
        assert_eq!(decide_send(&call), SendDecision::NotRepeatable);
        assert_eq!(decide_send(&BeforeWire { is_repeatable: true, ..call }), SendDecision::Send);
        assert_eq!(decide_send(&BeforeWire { record: &own, ..call }), SendDecision::Send);
    }

    /// To go on would do the work of that phase once more.
    #[test]
    fn a_phase_that_committed_alone_leaves_its_flow_unknown_with_and_without_a_mark() {
        let marked = calling(Some(MINUTE));
        let mut unmarked = marked.clone();
        unmarked.flow =
            FlowProgress::started(FlowVersion::new("ride", 1), Bytes::new()).map(Box::new);
        for record in [marked, unmarked] {
            let alone = settle_of_flow(&record, &Outcome::Unknown(Doubt::CommittedAlone));
            assert!(alone.is_none(), "it means what it says");
            let gone = settle_of_flow(&record, &Outcome::Unknown(Doubt::OwnerGone));
            assert!(gone.is_some(), "anything else ends the lease");
        }
    }

    #[test]
    fn a_call_may_be_repeated_until_a_margin_before_its_key_is_forgotten() {
        let memory = KeyMemory {
            window: MINUTE * 60,
            lease_max: MINUTE * 10,
            deadline: MINUTE,
            longest_way: MINUTE * 2,
            skew: SECOND,
        };
        assert_eq!(memory.repeatable_for(), Some(MINUTE * 47 - SECOND));
        let short = KeyMemory { window: MINUTE * 13 + SECOND, ..memory };
        assert_eq!(short.repeatable_for(), None, "as good as no key");
        assert_eq!(KeyMemory { window: MINUTE, ..memory }.repeatable_for(), None);
    }
}
