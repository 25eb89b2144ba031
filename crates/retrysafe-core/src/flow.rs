//! What does a record remember of a flow?
//!
//! A flow is a named, versioned list of phases: transactions of the application's own, and calls to
//! the world outside. Its *recovery point* is the place from which somebody else can go on when its
//! owner dies. A plain request has no flow, and nothing of this costs it a byte.
//!
//! Whether a flow may go on is no field of its own. It follows from the recovery point, so that the
//! two cannot contradict each other:
//!
//! | last committed | [`ResumeRule`] |
//! | --- | --- |
//! | the begin alone: every plain request | `Never` |
//! | the flow's input, a transaction, or the result of a call | `Always`: nothing outside is in flight |
//! | a first-sent mark, and the provider remembers our key | `Until` shortly before it forgets the key |
//! | a first-sent mark, and the provider takes no key | `Never` |
//!
//! What is deliberately absent: the time of the first send. The mark holds the end of the time in
//! which the call may be repeated, counted from a reading of the store's clock that is not later than
//! the mark itself; so no store has to compute with what it carries.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::fence::Fence;
use crate::scope::Id;
use crate::time::Time;

/// How many bytes a flow's input and outputs may have together. They are written anew with every
/// phase, and they are what later phases need: names and amounts, not documents.
pub const FLOW_BYTES_MAX: usize = 256 << 10;

/// How many phases a flow may have. A list that a person has written is shorter.
pub const PHASES_MAX: u16 = 64;

/// The longest name of a flow, in bytes.
pub const FLOW_NAME_BYTES_MAX: usize = 128;

/// How many bytes of a digest make a downstream key: 128 bits, in 32 characters. There are providers
/// that take no more than 36.
const DOWNSTREAM_KEY_BYTES: usize = 16;

/// Which flow it is, and in which version: the code that can go on with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowVersion {
    /// Its name, at most [`FLOW_NAME_BYTES_MAX`] bytes.
    pub name: Box<str>,
    /// Its version.
    pub version: u32,
}

/// How far a flow has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowProgress {
    pub(crate) flow: FlowVersion,
    pub(crate) input: Bytes,
    pub(crate) outputs: Vec<Bytes>,
    pub(crate) mark: Option<FirstSentMark>,
}

/// A place from which a flow can go on. Phases are counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecoveryPoint {
    /// The phases before this one are committed, and nothing outside is in flight.
    Before(u16),
    /// This phase is a call. It was about to be sent, and nobody has told how it ended.
    Calling(u16),
}

/// What is committed before a call's first byte leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FirstSentMark {
    /// The digest of the bytes that are sent. Others are never sent with the same key.
    pub digest: RequestDigest,
    /// The owner that set the mark: only that owner can know that none of its bytes has left.
    pub set_by: Fence,
    /// Until when the same call may be sent again, by the store's clock. None where the provider
    /// takes no key: a second call would be a second effect.
    pub resume_until: Option<Time>,
}

/// The digest of a request to a provider.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestDigest([u8; 32]);

/// Whether somebody else may go on with what an owner has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeRule {
    /// It may have been executed, and only evidence can tell.
    Never,
    /// Nothing outside is in flight.
    Always,
    /// The same call with the same key has no second effect, up to this time.
    Until(Time),
}

/// What moves a recovery point, as a record keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FlowMove {
    /// The flow begins, with this input.
    Started {
        /// Which flow.
        flow: FlowVersion,
        /// What it works on.
        input: Bytes,
    },
    /// A call is about to be sent.
    CallMarked(FirstSentMark),
    /// The next phase is over, with this output.
    PhaseDone(Bytes),
}

impl FlowProgress {
    /// A flow that has just started. None if it is more than a record can keep.
    pub fn started(flow: FlowVersion, input: Bytes) -> Option<Self> {
        let fits = flow.is_valid() && input.len() <= FLOW_BYTES_MAX;
        fits.then_some(Self { flow, input, outputs: vec![], mark: None })
    }

    /// Which flow it is.
    pub const fn flow(&self) -> &FlowVersion {
        &self.flow
    }

    /// What it works on.
    pub const fn input(&self) -> &Bytes {
        &self.input
    }

    /// What the phases that are over have left for those after them, in their order.
    pub fn outputs(&self) -> &[Bytes] {
        &self.outputs
    }

    /// The first-sent mark, while it stands.
    pub const fn mark(&self) -> Option<&FirstSentMark> {
        self.mark.as_ref()
    }

    /// The place from which it can go on.
    pub fn recovery_point(&self) -> RecoveryPoint {
        // Never more than PHASES_MAX: whoever decides and whoever decodes sees to that.
        let phase = u16::try_from(self.outputs.len()).unwrap_or(u16::MAX);
        match self.mark {
            None => RecoveryPoint::Before(phase),
            Some(_) => RecoveryPoint::Calling(phase),
        }
    }

    /// Whether somebody else may go on with it.
    pub const fn resume_rule(&self) -> ResumeRule {
        match self.mark {
            None => ResumeRule::Always,
            Some(FirstSentMark { resume_until: Some(until), .. }) => ResumeRule::Until(until),
            Some(FirstSentMark { resume_until: None, .. }) => ResumeRule::Never,
        }
    }

    /// Whether something has happened that must not be forgotten: a phase is committed, or a call may
    /// have been sent.
    pub const fn holds_work(&self) -> bool {
        !self.outputs.is_empty() || self.mark.is_some()
    }

    /// How many bytes its input and outputs have.
    pub fn bytes(&self) -> usize {
        self.outputs.iter().map(Bytes::len).sum::<usize>().saturating_add(self.input.len())
    }

    /// Whether the bounds leave room for the output of one more phase.
    pub fn has_room_for(&self, output: &Bytes) -> bool {
        self.outputs.len() < usize::from(PHASES_MAX)
            && self.bytes().saturating_add(output.len()) <= FLOW_BYTES_MAX
    }

    /// Moves the recovery point. A move that does not fit, which the machine never asks for, leaves
    /// everything as it is.
    pub fn make(progress: &mut Option<Box<Self>>, moved: &FlowMove) {
        match (moved, progress) {
            (FlowMove::Started { flow, input }, empty @ None) => {
                *empty = Self::started(flow.clone(), input.clone()).map(Box::new);
            }
            (FlowMove::CallMarked(mark), Some(progress)) => progress.mark = Some(*mark),
            (FlowMove::PhaseDone(output), Some(progress)) => {
                progress.outputs.push(output.clone());
                progress.mark = None;
            }
            (FlowMove::Started { .. }, Some(_))
            | (FlowMove::CallMarked(_) | FlowMove::PhaseDone(_), None) => {}
        }
    }

    pub(crate) fn clear_mark(&mut self) {
        self.mark = None;
    }
}

impl FlowVersion {
    /// The version of a flow.
    pub fn new(name: &str, version: u32) -> Self {
        Self { name: name.into(), version }
    }

    /// Whether it can be kept: its name is not empty and not too long.
    pub fn is_valid(&self) -> bool {
        (1..=FLOW_NAME_BYTES_MAX).contains(&self.name.len())
    }
}

/// The key with which a record's call in this phase is sent: the same on every attempt, and of this call alone.
///
/// It is the first half of a SHA-256, in lower-case hexadecimal digits, over `retrysafe call` and a zero byte, the record's
/// name in 32 bytes, its [birth](crate::record::Record::birth) in 8 bytes (big-endian), and the phase's name. The birth
/// is there because a caller may use its key again once the record is gone: that is another operation, and a
/// provider which remembers the former call must not take it for the same.
pub fn downstream_key(id: Id, birth: Fence, phase: &str) -> Box<str> {
    let digest = Sha256::new()
        .chain_update(b"retrysafe call\0")
        .chain_update(id.as_bytes())
        .chain_update(birth.0.to_be_bytes())
        .chain_update(phase.as_bytes())
        .finalize();
    let half = digest.get(..DOWNSTREAM_KEY_BYTES).unwrap_or_default();
    crate::hex::hex(half).into_boxed_str()
}

impl RecoveryPoint {
    /// The phase that is next, or under way.
    pub const fn phase(self) -> u16 {
        match self {
            Self::Before(phase) | Self::Calling(phase) => phase,
        }
    }
}

impl ResumeRule {
    /// Whether somebody may go on at this time.
    pub fn permits(self, now: Time) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Until(end) => now < end,
        }
    }
}

impl RequestDigest {
    /// How many bytes it has.
    pub const LENGTH: usize = 32;

    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// A digest that was stored.
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// The digest as bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl std::fmt::Debug for RequestDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, second, third, fourth, ..] = self.0;
        write!(f, "RequestDigest({first:02x}{second:02x}{third:02x}{fourth:02x}…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(resume_until: Option<Time>) -> FlowMove {
        let digest = RequestDigest::of(b"charge");
        FlowMove::CallMarked(FirstSentMark { digest, set_by: Fence(3), resume_until })
    }

    fn started() -> FlowMove {
        FlowMove::Started { flow: FlowVersion::new("ride", 1), input: "input".into() }
    }

    fn after(moves: &[FlowMove]) -> Option<Box<FlowProgress>> {
        let mut progress = None;
        for moved in moves {
            FlowProgress::make(&mut progress, moved);
        }
        progress
    }

    #[test]
    fn the_resume_rule_follows_from_the_recovery_point() {
        let until = Time::from_ms(9);
        let done = || FlowMove::PhaseDone("x".into());
        for (moves, point, rule, holds_work) in [
            (vec![started()], RecoveryPoint::Before(0), ResumeRule::Always, false),
            (vec![started(), done()], RecoveryPoint::Before(1), ResumeRule::Always, true),
            (vec![started(), mark(None)], RecoveryPoint::Calling(0), ResumeRule::Never, true),
            (
                vec![started(), done(), mark(Some(until))],
                RecoveryPoint::Calling(1),
                ResumeRule::Until(until),
                true,
            ),
            (
                vec![started(), done(), mark(Some(until)), done()],
                RecoveryPoint::Before(2),
                ResumeRule::Always,
                true,
            ),
        ] {
            let progress = after(&moves).unwrap();
            assert_eq!((progress.recovery_point(), progress.resume_rule()), (point, rule));
            assert_eq!(progress.holds_work(), holds_work, "{point:?}");
        }
    }

    #[test]
    fn a_downstream_key_is_of_one_call_of_one_record() {
        let key = |record: u8, birth: u64, phase: &str| {
            downstream_key(Id::from_bytes([record; 32]), Fence(birth), phase)
        };
        assert_eq!(key(1, 7, "charge"), key(1, 7, "charge"));
        assert_ne!(key(1, 7, "charge"), key(2, 7, "charge"));
        assert_ne!(key(1, 7, "charge"), key(1, 7, "refund"));
        assert_ne!(key(1, 7, "charge"), key(1, 8, "charge"), "the key was used again");
        // Computed by hand, and in SQL: it must never change.
        assert_eq!(&*key(1, 7, "charge"), "4fce435c10b954cc2f05e0360778ec77");
    }

    #[test]
    fn a_call_may_be_repeated_up_to_its_time_and_not_at_it() {
        let rule = ResumeRule::Until(Time::from_ms(9));
        assert!(rule.permits(Time::from_ms(8)));
        assert!(!rule.permits(Time::from_ms(9)));
    }

    #[test]
    fn a_move_that_does_not_fit_changes_nothing() {
        let begun = after(&[started()]);
        let other = FlowMove::Started { flow: FlowVersion::new("x", 2), input: Bytes::new() };
        assert_eq!(after(&[started(), other]), begun);
        assert_eq!(after(&[mark(None)]), None);
        assert_eq!(after(&[FlowMove::PhaseDone("x".into())]), None);
    }

    #[test]
    fn a_flow_is_bounded_in_bytes_and_in_phases() {
        let mut progress = *after(&[started()]).unwrap();
        let left = FLOW_BYTES_MAX - "input".len();
        assert!(progress.has_room_for(&vec![0; left].into()));
        assert!(!progress.has_room_for(&vec![0; left + 1].into()));
        progress.outputs = vec![Bytes::new(); usize::from(PHASES_MAX)];
        assert!(!progress.has_room_for(&Bytes::new()));
        let named = |length: usize| FlowVersion::new(&"x".repeat(length), 1).is_valid();
        assert!(named(1) && named(FLOW_NAME_BYTES_MAX));
        assert!(!named(0) && !named(FLOW_NAME_BYTES_MAX + 1));
    }
}
