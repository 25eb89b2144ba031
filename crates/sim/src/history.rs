//! What is recorded?
//!
//! One append-only log of small structs, by one recorder whose clock never errs. It is written where
//! messages enter and leave the parts of the simulation: by the simulated store when it applies a
//! write, by the upstream when it takes effect, at the sockets of gateways and clients. The product
//! writes nothing into it, and the checker reads nothing else.

mod effects;

use retrysafe_core::record::{Becomes, Happened, Standing, Write};

pub use effects::{EffectEvent, EffectMark, EffectRole, EffectWrote, EndSeen, EvidenceSeen, Place};

/// What the store's clock shows when the recorder's shows zero. It can be turned back from there.
pub const STORE_EPOCH_MS: u64 = 1_000_000_000_000;

/// No execution, no answer, nobody.
pub const NONE: u16 = u16::MAX;

/// The mark of a body that broke off.
pub const TRUNCATED: u16 = 0x4000;

/// The gateway number of those who are not in a gateway.
pub const OUTSIDE: u8 = u8::MAX;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, by the recorder's clock, in milliseconds.
    pub at: u64,
    /// What.
    pub what: What,
}

/// What can happen. Keys are numbered over all scopes; connections (one per attempt), executions
/// and calls from zero in each history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A gateway process starts.
    Booted { gateway: u8, epoch: u16 },
    /// A gateway process dies.
    Crashed { gateway: u8 },
    /// A gateway process stands still.
    Paused { gateway: u8 },
    /// It goes on.
    Resumed { gateway: u8 },
    /// A gateway's own clocks go wrong.
    Strayed { gateway: u8 },
    /// A gateway cannot reach the store for a while.
    CutOff { gateway: u8 },
    /// A gateway has other rules from now on.
    Reloaded { gateway: u8 },
    /// A gateway is told to stop.
    Drains { gateway: u8 },
    /// A gateway was told to stop, and says how many executions are still open.
    Drained { gateway: u8, epoch: u16, open: u16 },
    /// The store's clock is set, by this much.
    Jumped { by: i64 },
    /// The cache is empty.
    Flushed,
    /// The store failed over and forgot the writes that follow here.
    FailedOver,
    /// The fail-over has forgotten that this record exists.
    Forgotten { key: u8 },
    /// Every fault ends here; what was broken is repaired.
    Healed,
    /// The history ends here.
    Ended,

    /// A client makes a call.
    Called { call: u16, key: u8, print: u8 },
    /// It makes an attempt.
    Invoked { call: u16, conn: u16, key: u8, print: u8, gateway: u8 },
    /// It could not connect.
    NotConnected { call: u16 },
    /// It heard this answer.
    Heard { call: u16, conn: u16, class: Class, status: u16, body: u16 },
    /// It heard nothing, or its connection broke.
    NotHeard { call: u16, conn: u16 },
    /// Its process died, and another one has found the call in the journal.
    CallResumed { call: u16 },
    /// It is done with the call.
    CallEnded { call: u16, end: CallEnd },
    /// It went away while the gateway was working for it.
    Disconnected { conn: u16 },

    /// A gateway was told that it may execute.
    Begun { conn: u16, gateway: u8, epoch: u16, fence: u32 },
    /// A gateway's begin failed, perhaps after it was applied.
    BeginFailed { conn: u16, ambiguous: bool },
    /// A gateway did not send what it had begun: its lease was over, or nobody listened.
    Unsent { fence: u32, late: bool },
    /// A gateway sends the request on.
    Sent { conn: u16, key: u8, fence: u32, gateway: u8, epoch: u16 },
    /// A gateway executes without protection, because the store is out of reach.
    RanOpen { exec: u16, conn: u16, key: u8, print: u8, gateway: u8, epoch: u16 },
    /// A handler asks for another retention of its record.
    KeepFor { fence: u32, ttl_ms: u64 },
    /// A gateway has an answer from upstream, whole or not.
    GotAnswer { exec: u16, whole: bool },
    /// A gateway's handler panicked.
    GotPanic { exec: u16 },
    /// A gateway stops waiting for its upstream.
    GaveUp { exec: u16 },
    /// A gateway asks the store to settle.
    SettleAsked { fence: u32, standing: Standing, body: u16 },
    /// What became of it.
    SettleHeard { fence: u32, heard: SettleHeard },
    /// A gateway answers. `head` stands for what of its headers must be the same in every final
    /// answer.
    Answered { conn: u16, class: Class, status: u16, body: u16, retry_after: u16, head: u16 },
    /// The cache answered for the store, rightly or not.
    CacheServed { key: u8, agrees: bool },
    /// The cache had an answer whose time is over, and it was not served.
    CacheRefused { key: u8 },

    /// The upstream starts to work on a request.
    Ran { exec: u16, key: u8, fence: u32, print: u8 },
    /// The effect happens: the ground truth.
    Effect { exec: u16 },
    /// The upstream answers. Whether that arrives is another question. What is too large is not
    /// kept; what is slow need not be.
    Replied { exec: u16, status: u16, said: SaidSo, large: bool, slow: bool, head: u16 },
    /// The handler panics.
    Panicked { exec: u16 },
    /// The upstream refuses a burnt fence.
    Bounced { key: u8, fence: u32 },
    /// The upstream will refuse this fence and all before it.
    Burnt { key: u8, fence: u32 },

    /// A transaction of a flow writes the rows of a phase. The recovery point that follows is of the same
    /// commit.
    Rows { key: u8, phase: u8, rows: u8 },
    /// How far the flow of a record has come after the write that follows.
    Flow(FlowSeen),
    /// A gateway that does not know the version of a flow leaves it alone.
    FlowHeld { key: u8, version: u8 },
    /// A gateway sends a charge to the provider, with the digest of its bytes.
    ChargeSent { charge: u16, key: u8, phase: u8, fence: u32, digest: u8, gateway: u8, epoch: u16 },
    /// The provider has made it: the ground truth.
    ChargeMade { charge: u16 },
    /// The provider has declined it, for good.
    ChargeDeclined { charge: u16 },
    /// A gateway says that not a byte of its charge has left.
    ChargeNotSent { key: u8, phase: u8, fence: u32 },
    /// A gateway has other bytes than those of the first attempt, and sends nothing.
    OtherBytesRefused { key: u8, fence: u32 },
    /// A gateway repeats an advance whose acknowledgement was lost.
    AdvanceRepeated { key: u8, fence: u32 },
    /// A gateway ends a flow's run between two phases, because it is being stopped.
    FlowStopped { key: u8, fence: u32 },
    /// Something about an effect of the outbox.
    Outbox(EffectEvent),
    /// The store applies a write.
    Wrote(Wrote),
    /// The store deletes an expired record.
    Reaped { key: u8, now: u64 },
    /// The store deletes a record for somebody. No product code asks for this.
    Deleted { key: u8 },
    /// What became of a verdict.
    Ruled { key: u8, fence: u32, done: bool },
    /// The upstream has answered a lookup of a fence: it knows an effect, or none so far.
    Looked { key: u8, fence: u32, found: bool },
    /// A report of the provider about an effect is lost on its way.
    NoticeLost { exec: u16 },
    /// A report of the provider is acknowledged: it is kept, perhaps not for the first time.
    NoticeKept { key: u8, fence: u32, again: bool },
    /// A report of the provider has decided.
    NoticeDecided { key: u8, fence: u32 },
    /// A reconciler has given up on a record: a person must decide.
    DeadLettered { key: u8, fence: u32 },
}

/// A write that the store has applied, and what the record is after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrote {
    /// Which record.
    pub key: u8,
    /// Who asked for it.
    pub by: By,
    /// What it was.
    pub act: Act,
    /// Where the record stands now.
    pub standing: Standing,
    /// What the record's request means.
    pub print: u8,
    /// Its version.
    pub version: u32,
    /// Its fence.
    pub fence: u32,
    /// The answer's status, if it is completed; zero if there is none.
    pub status: u16,
    /// The answer's body, if it is completed and kept.
    pub body: u16,
    /// The store's clock.
    pub now: u64,
    /// When its lease or its retention ends, by the store's clock.
    pub until: u64,
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSeen {
    /// Of which record.
    pub key: u8,
    /// The version of its code.
    pub version: u8,
    /// How many phases are over.
    pub phase: u8,
    /// What the last of them has left; [`NONE`] before the first.
    pub output: u16,
    /// The first-sent mark, while it stands.
    pub mark: Option<MarkSeen>,
}

/// A first-sent mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkSeen {
    /// The fence of its owner.
    pub set_by: u32,
    /// Which bytes are sent.
    pub digest: u8,
    /// Until when the same may be sent again, by the store's clock. None: never.
    pub until: Option<u64>,
}

/// Who asks the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    /// From which gateway.
    pub gateway: u8,
    /// In which of its lives.
    pub epoch: u16,
    /// As what.
    pub role: Role,
}

/// In which role somebody asks the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To begin, for a connection.
    Begin { conn: u16 },
    /// To begin what its caller has left.
    Completer,
    /// To take back an ambiguous begin.
    Withdraw,
    /// As the owner who began with this fence.
    Owner { fence: u32 },
    /// To end leases.
    Sweeper,
    /// To delete expired records.
    Reaper,
    /// To read what is unknown.
    Reader,
    /// To decide, by evidence about the attempt of this fence.
    Judge { fence: u32, evidence: Found },
    /// To end a retention.
    Expirer,
    /// The store itself, when it is opened.
    Opening,
    /// The store itself, after a fail-over.
    FailOver,
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A record that was not there, or had expired.
    Inserted,
    /// A new owner of a record that was there.
    Began,
    /// A longer lease.
    Renewed,
    /// The same, and the head of an answer that will not be kept whole.
    HeadKept,
    /// A step of a flow.
    Advanced,
    /// An outcome by its owner, or a withdrawal.
    Settled,
    /// Unknown without a word from the owner.
    Doubted,
    /// A remark on the timeline about a late result.
    Remarked,
    /// A lookup that learned nothing.
    LookedUp,
    /// A verdict.
    Resolved,
    /// An end of retention.
    Expired,
    /// What a fail-over went back to.
    RolledBack,
}

/// What a judge goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The upstream's record of the effect, asked for or sent by itself.
    Effect,
    /// A refusal for good.
    Burnt,
    /// Nothing, after the settle time.
    Absence,
    /// The provider's word that it has declined a charge.
    Declined,
    /// The application's own tables: nothing of it was ever committed.
    NoRows,
    /// A person's word that it was executed.
    OperatorSaysDone,
    /// A person's word that it was not.
    OperatorSaysNot,
}

/// What an upstream says about its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaidSo {
    /// Nothing.
    Nothing,
    /// Keep it.
    Completed,
    /// Try again.
    Retryable,
    /// It does not know.
    Unknown,
}

/// What became of a settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleHeard {
    /// It holds.
    Done,
    /// Somebody else has decided.
    Lost { contradiction: bool },
    /// It failed.
    Failed { ambiguous: bool },
}

/// What kind of answer a caller gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The execution's own, for good.
    First,
    /// The same from the record.
    Replay,
    /// Executed, and the answer was not kept.
    Gone,
    /// The execution's own, and the next try executes again.
    Released,
    /// The execution's own, and nobody knows whether it took effect.
    Doubtful,
    /// The execution's own, without protection.
    Unprotected,
    /// Somebody is executing it.
    InProgress,
    /// The key belongs to another request.
    Mismatch,
    /// Nobody knows.
    Unknown,
    /// The store is out of reach.
    Unavailable,
    /// The upstream is out of reach, and nothing was sent.
    Unreachable,
}

/// How a call ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// With an answer.
    Done,
    /// In doubt.
    OutcomeUnknown,
    /// Without execution.
    GaveUp,
    /// With refusals only, where a copy of a request may have been executed.
    Refused,
}

impl Act {
    /// What a write does.
    pub fn of(write: &Write) -> Self {
        match (&write.becomes, &write.what) {
            (Becomes::Begun { .. }, _) => Self::Began,
            (Becomes::HeadKept { .. }, _) => Self::HeadKept,
            (_, None) => Self::Renewed,
            (_, Some(Happened::Advanced(_))) => Self::Advanced,
            (_, Some(Happened::Began(_))) => Self::Began,
            (_, Some(Happened::Settled(..))) => Self::Settled,
            (_, Some(Happened::Doubted(_))) => Self::Doubted,
            (_, Some(Happened::LateResult(_))) => Self::Remarked,
            (_, Some(Happened::LookedUp(_))) => Self::LookedUp,
            (_, Some(Happened::Resolved(..))) => Self::Resolved,
            (_, Some(Happened::Expired(_))) => Self::Expired,
        }
    }
}
