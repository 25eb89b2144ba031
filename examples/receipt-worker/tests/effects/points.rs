//! Where is a delivery broken off, how, and what may become of it?

use payment_provider::Mode;

use crate::wire::{Act, Gate, Side, Statement};
use crate::world::KINDS;

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    BeforeClaim,
    AfterClaim,
    BeforeMark,
    AfterMark,
    /// Its provider has read it, and done nothing yet.
    DuringSend,
    /// Its provider has done it, and has not answered yet.
    EffectDone,
    /// Its worker has the answer, and the server has not heard of it.
    BeforeFinish,
    AfterFinish,
}

pub(crate) const POINTS: [Point; 8] = [
    Point::BeforeClaim,
    Point::AfterClaim,
    Point::BeforeMark,
    Point::AfterMark,
    Point::DuringSend,
    Point::EffectDone,
    Point::BeforeFinish,
    Point::AfterFinish,
];

/// How it is broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// The connection is cut before anything is applied: to the database, or to the provider.
    Error,
    /// Whoever delivers it panics.
    Panic,
    Kill,
    /// SIGSTOP until its lease is over, another worker has looked at it and the short memory is over; then SIGCONT.
    Stop,
    /// The database is killed, and started again.
    Restart,
    /// The commit is applied, and its answer is lost.
    AnswerLost,
}

pub(crate) const BREAKS: [Break; 6] =
    [Break::Error, Break::Panic, Break::Kill, Break::Stop, Break::Restart, Break::AnswerLost];

/// What its receiver remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Lasts,
    TakesNoKey,
    /// It is over before a lease is.
    Short,
}

/// In the order of the kinds.
pub(crate) const MEMORIES: [Memory; 3] = [Memory::Lasts, Memory::TakesNoKey, Memory::Short];

/// How an effect ended, and how often it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Delivered { effects: u64 },
    Unknown { effects: u64 },
    Dead { effects: u64 },
}

const ONCE: Ended = Ended::Delivered { effects: 1 };
const UNKNOWN_UNDONE: Ended = Ended::Unknown { effects: 0 };
const UNKNOWN_DONE: Ended = Ended::Unknown { effects: 1 };

impl Point {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BeforeClaim => "before claim",
            Self::AfterClaim => "after claim",
            Self::BeforeMark => "before mark",
            Self::AfterMark => "after mark",
            Self::DuringSend => "during send",
            Self::EffectDone => "effect done, no answer yet",
            Self::BeforeFinish => "after answer, before finish",
            Self::AfterFinish => "after finish",
        }
    }

    /// The statement at which the wire stands, and on which side; none where the provider does.
    fn place(self) -> Option<(Statement, Side)> {
        match self {
            Self::BeforeClaim => Some((Statement::Claim, Side::Before)),
            Self::AfterClaim => Some((Statement::Claim, Side::After)),
            Self::BeforeMark => Some((Statement::Mark, Side::Before)),
            Self::AfterMark => Some((Statement::Mark, Side::After)),
            Self::DuringSend | Self::EffectDone => None,
            Self::BeforeFinish => Some((Statement::Finish, Side::Before)),
            Self::AfterFinish => Some((Statement::Finish, Side::After)),
        }
    }

    /// The gate in the wire at this point, for one effect of each kind.
    pub(crate) fn gate(self, act: Act) -> Option<Gate> {
        let (statement, side) = self.place()?;
        Some(Gate { statement, side, act, times: KINDS.len() })
    }

    /// What the provider does to a delivery that is broken off at this point.
    pub(crate) fn mode(self, how: Break) -> Option<Mode> {
        let is_error = how == Break::Error;
        match self {
            Self::DuringSend if is_error => Some(Mode::ResetBeforeCharging),
            Self::DuringSend => Some(Mode::HoldBeforeCharging),
            Self::EffectDone if is_error => Some(Mode::ResetAfterCharging),
            Self::EffectDone => Some(Mode::HoldAfterCharging),
            Self::BeforeClaim
            | Self::AfterClaim
            | Self::BeforeMark
            | Self::AfterMark
            | Self::BeforeFinish
            | Self::AfterFinish => None,
        }
    }
}

impl Break {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Panic => "panic",
            Self::Kill => "SIGKILL",
            Self::Stop => "SIGSTOP past the lease",
            Self::Restart => "database restart",
            Self::AnswerLost => "applied, answer lost",
        }
    }

    /// Whether there is something to break at this point. Only whoever delivers can panic. An error after a commit is
    /// the loss of its answer; nothing else is committed.
    pub(crate) fn is_possible_at(self, point: Point) -> bool {
        let side = point.place().map(|(_, side)| side);
        match self {
            Self::Error => side != Some(Side::After),
            Self::Panic => side.is_none(),
            Self::Kill | Self::Stop | Self::Restart => true,
            Self::AnswerLost => side == Some(Side::After),
        }
    }
}

/// What may become of an effect that is broken off so.
pub(crate) fn allowed(point: Point, how: Break, memory: Memory) -> &'static [Ended] {
    let is_sent_again = match how {
        // The same worker goes on while the key is remembered.
        Break::Error | Break::Panic => memory != Memory::TakesNoKey,
        Break::Kill | Break::Stop => memory == Memory::Lasts,
        // The worker lives, and knows what it has done.
        Break::Restart | Break::AnswerLost => true,
    };
    if is_sent_again {
        return &[ONCE];
    }
    match (point, how) {
        (Point::BeforeClaim | Point::AfterClaim | Point::BeforeMark | Point::AfterFinish, _) => {
            &[ONCE]
        }
        // A dead worker cannot say that it has sent nothing. One that comes back late can, and gives it back.
        (Point::AfterMark, Break::Kill) => &[UNKNOWN_UNDONE],
        (Point::AfterMark, _) => &[ONCE],
        (Point::DuringSend, Break::Error | Break::Panic) => &[UNKNOWN_UNDONE],
        // A process that comes back past its deadline reads the answer, or gives up: both are the truth.
        (Point::DuringSend | Point::EffectDone, Break::Stop) => &[ONCE, UNKNOWN_DONE],
        (Point::DuringSend | Point::EffectDone, _) => &[UNKNOWN_DONE],
        // Nobody has decided meanwhile, so that its late word counts.
        (Point::BeforeFinish, Break::Stop | Break::Error) => &[ONCE],
        (Point::BeforeFinish, _) => &[UNKNOWN_DONE],
    }
}
