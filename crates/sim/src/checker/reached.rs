//! Did the interesting things happen at all?
//!
//! A run in which nothing goes wrong proves nothing. Each of these must have been reached by some
//! history, or the run is red.

macro_rules! sometimes {
    ($($name:ident $where:ident $says:literal),* $(,)?) => {
        /// Something that must happen in some history.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sometimes { $(#[doc = $says] $name),* }

        impl Sometimes {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Where it must happen.
            const fn happens(self) -> Where {
                match self { $(Self::$name => Where::$where),* }
            }

            /// What it says.
            pub const fn says(self) -> &'static str {
                match self { $(Self::$name => $says),* }
            }
        }
    };
}

/// In which simulator something must happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    Fast,
    Shipped,
    Both,
}

sometimes! {
    Race Both "two gateways race for one key",
    Renewal Both "an owner renews its lease",
    LeaseEndsUnderOwner Both "a lease ends under a living owner",
    LeaseStopsSend Both "an owner finds its lease over and does not send",
    LateSettleAccepted Both "a late completion is accepted",
    LateSettleRefused Both "a late settle is refused",
    Contradiction Both "a late settle contradicts a verdict",
    AmbiguousBegin Both "a begin is ambiguous",
    LateInsert Both "a begin is applied after its sender gave up",
    Withdrawal Both "an ambiguous begin is taken back",
    UnknownWithdrawn Fast "an ambiguous begin is taken back after its record came to be unknown",
    AmbiguousSettle Both "a settle is applied and its acknowledgement lost",
    BeginRefused Both "a begin surely fails",
    CrashBeforeSend Fast "a crash between grant and send",
    CrashBeforeEffect Both "a crash between send and effect",
    CrashAfterEffect Both "a crash between effect and settle",
    MismatchRunning Both "another request while the first is running",
    MismatchUnknown Both "another request while the first is unknown",
    MismatchReleased Both "another request after the first was released",
    MismatchCompleted Both "another request after the first was completed",
    UnknownToCompleted Both "an unknown record is resolved as executed",
    UnknownToExecution Both "an unknown record is resolved as not executed, and runs",
    ReleasedRuns Both "a released record runs again",
    NextGeneration Both "a second generation after the retention",
    EndsUnderRequest Both "a retention ends while a request for the key is under way",
    WaiterServed Both "a duplicate that came before the answer is served with it",
    DisconnectBeforeGrant Both "a client leaves before the grant",
    DisconnectUnacknowledged Both "a client leaves between grant and acknowledgement",
    DisconnectBeforeSend Both "a client leaves before the request is sent on",
    DisconnectBeforeEffect Both "a client leaves before the effect",
    DisconnectBeforeSettle Both "a client leaves before the settle",
    DisconnectBeforeAnswer Both "a client leaves before the answer arrives",
    PanicBeforeEffect Both "a handler panics before its effect",
    PanicAfterEffect Both "a handler panics after its effect",
    TruncatedAnswer Both "an answer breaks off",
    NotKept Both "a replay says that the answer was not kept",
    LateEffect Both "an effect happens after its gateway gave up",
    BurntRequestBounces Both "a burnt request bounces",
    AbsenceProves Both "an absence is accepted as proof",
    OperatorReleases Both "an operator says it was not executed",
    OperatorConfirms Both "an operator says it was executed",
    VerdictRefused Fast "a verdict comes too late",
    DeadLetter Both "a reconciler gives up",
    StoreReopened Fast "a single-owner store opens with something in progress",
    FailOver Fast "the store fails over",
    HeldRefusal Fast "a begin is refused because the store has failed over",
    CacheServes Fast "the cache serves a replay",
    CacheStale Fast "the cache holds what it may not serve any more",
    ClockBackOverExpiry Both "the store's clock goes back over an expiry",
    ClockForwardOverLease Both "the store's clock leaps over the end of a lease",
    CallInDoubt Both "a call ends in doubt",
    CallGivesUp Both "a call ends without execution",
    CallResumed Shipped "a call is resumed from a journal",
    Drain Shipped "a process is drained",
    DrainCutShort Shipped "a drain is cut short",
    Reload Shipped "the rules change while requests run",
    RunsUnprotected Shipped "a request runs without protection",
    HandlerTtl Shipped "a handler asks for another retention",
}

/// What a history, or many, have reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached(u128);

impl Reached {
    pub fn add(&mut self, what: Sometimes) {
        self.0 |= 1 << what as u32;
    }

    pub fn has(self, what: Sometimes) -> bool {
        self.0 & (1 << what as u32) != 0
    }
}

impl Sometimes {
    /// Whether it must happen in one of the two simulators.
    pub fn is_of(self, simulator: Where) -> bool {
        let happens = self.happens();
        happens == Where::Both || happens == simulator
    }
}

/// The set above has room for so many.
const _: () = assert!(Sometimes::ALL.len() <= 128);
