//! What is recorded of effects?
//!
//! Effects are numbered from zero in each history, packets to receivers as well. Workers are written down where
//! gateways are: they boot, crash and stand still as these do.

/// Something that happened to an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectEvent {
    /// A transaction that staged it has committed.
    Staged { effect: u8, kind: u8, lane: Option<u8>, is_waiting: bool },
    /// A transaction that staged it was rolled back.
    RolledBack { effect: u8 },
    /// The store has applied a write.
    Wrote(EffectWrote),
    /// The store has changed nothing: the effect is not the asker's, or not to be decided so.
    Refused { effect: u8, by: EffectRole },
    /// A question of this worker goes wrong on its way to the store or back.
    Troubled { worker: u8 },
    /// A worker sends nothing: it is too late for that.
    TooLate { effect: u8, fence: u32 },
    /// A worker sends a packet to the receiver.
    Sent { packet: u16, effect: u8, fence: u32, worker: u8, epoch: u16 },
    /// A worker does not wait for the answer any longer.
    GivenUp { packet: u16, effect: u8 },
    /// The receiver has done it: the ground truth.
    Happened { packet: u16, effect: u8 },
}

/// A write that the store has applied, and what the effect is after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectWrote {
    pub effect: u8,
    pub by: EffectRole,
    pub place: Place,
    /// Ready: from when on; leased: until when; unknown: since when; by the store's clock.
    pub at: u64,
    pub fence: u32,
    pub mark: Option<EffectMark>,
    pub failures: u8,
    pub crashes: u8,
    /// The store's clock.
    pub now: u64,
}

/// A sent mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectMark {
    pub set_by: u32,
    /// Until when the same effect may be sent again, by the store's clock. None: never.
    pub until: Option<u64>,
}

/// Where an effect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Waiting,
    Ready,
    Leased,
    Delivered,
    Unknown,
    Cancelled,
    Dead,
}

/// Who asks the store about an effect, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectRole {
    /// A worker claims it.
    Claim { worker: u8, epoch: u16 },
    /// The worker of this fence is about to send it,
    Mark { fence: u32 },
    /// renews its lease,
    Renew { fence: u32 },
    /// gives it back,
    HandBack { fence: u32 },
    /// or says how the delivery ended.
    Finish { fence: u32, end: EndSeen },
    /// A sweeper ends a lease, or a wait past the receiver's memory.
    Sweep,
    /// The head of its lane is gone: whoever ended that one frees it,
    Follow,
    /// or a sweeper does.
    FollowLate,
    /// The application takes it back.
    Cancel,
    /// An operator lets it be tried again.
    Requeue,
    /// An operator decides, by evidence about the delivery of this fence.
    Decide { fence: u32, found: EvidenceSeen },
}

/// How a delivery ended for its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSeen {
    Delivered,
    Rejected,
    NoEffect,
    NoAnswer,
}

/// What an operator goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvidenceSeen {
    /// The receiver's record of it.
    Happened,
    /// The receiver's word that it will never do it.
    NoEffect,
    /// The same, and nobody wants it any more.
    Unwanted,
    /// Nothing, after the settle time.
    Absence,
}

impl EffectEvent {
    /// About which effect it is, if about one.
    pub const fn effect(&self) -> Option<u8> {
        match *self {
            Self::Staged { effect, .. }
            | Self::RolledBack { effect }
            | Self::Wrote(EffectWrote { effect, .. })
            | Self::Refused { effect, .. }
            | Self::TooLate { effect, .. }
            | Self::Sent { effect, .. }
            | Self::GivenUp { effect, .. }
            | Self::Happened { effect, .. } => Some(effect),
            Self::Troubled { .. } => None,
        }
    }
}
