//! Did the interesting things happen at all?
//!
//! A run in which nothing goes wrong proves nothing. Each of these must have been reached by some
//! history, or the run is red.

macro_rules! sometimes {
    ($($name:ident $says:literal),* $(,)?) => {
        /// Something that must happen in some history.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sometimes { $(#[doc = $says] $name),* }

        impl Sometimes {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// What it says.
            pub const fn says(self) -> &'static str {
                match self { $(Self::$name => $says),* }
            }
        }
    };
}

sometimes! {
    Race "two gateways race for one key",
    Renewal "an owner renews its lease",
    LeaseEndsUnderOwner "a lease ends under a living owner",
    LeaseStopsSend "an owner finds its lease over and does not send",
    LateSettleAccepted "a late completion is accepted",
    LateSettleRefused "a late settle is refused",
    Contradiction "a late settle contradicts a verdict",
    AmbiguousBegin "a begin is ambiguous",
    LateInsert "a begin is applied after its sender gave up",
    Withdrawal "an ambiguous begin is taken back",
    AmbiguousSettle "a settle is applied and its acknowledgement lost",
    BeginRefused "a begin surely fails",
    CrashBeforeSend "a crash between grant and send",
    CrashBeforeEffect "a crash between send and effect",
    CrashAfterEffect "a crash between effect and settle",
    MismatchRunning "another request while the first is running",
    MismatchUnknown "another request while the first is unknown",
    MismatchReleased "another request after the first was released",
    MismatchCompleted "another request after the first was completed",
    UnknownToCompleted "an unknown record is resolved as executed",
    UnknownToExecution "an unknown record is resolved as not executed, and runs",
    ReleasedRuns "a released record runs again",
    NextGeneration "a second generation after the retention",
    EndsUnderRequest "a retention ends while a request for the key is under way",
    WaiterServed "a duplicate that came before the answer is served with it",
    DisconnectBeforeGrant "a client leaves before the grant",
    DisconnectUnacknowledged "a client leaves between grant and acknowledgement",
    DisconnectBeforeSend "a client leaves before the request is sent on",
    DisconnectBeforeEffect "a client leaves before the effect",
    DisconnectBeforeSettle "a client leaves before the settle",
    DisconnectBeforeAnswer "a client leaves before the answer arrives",
    PanicBeforeEffect "a handler panics before its effect",
    PanicAfterEffect "a handler panics after its effect",
    TruncatedAnswer "an answer breaks off",
    NotKept "a replay says that the answer was not kept",
    LateEffect "an effect happens after its gateway gave up",
    BurntRequestBounces "a burnt request bounces",
    AbsenceProves "an absence is accepted as proof",
    OperatorReleases "an operator says it was not executed",
    OperatorConfirms "an operator says it was executed",
    VerdictRefused "a verdict comes too late",
    DeadLetter "a reconciler gives up",
    StoreReopened "a single-owner store opens with something in progress",
    FailOver "the store fails over",
    CacheServes "the cache serves a replay",
    CacheStale "the cache holds what it may not serve any more",
    ClockBackOverExpiry "the store's clock goes back over an expiry",
    ClockForwardOverLease "the store's clock leaps over the end of a lease",
    CallInDoubt "a call ends in doubt",
    CallGivesUp "a call ends without execution",
}

/// What a history, or many, have reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached(u64);

impl Reached {
    pub fn add(&mut self, what: Sometimes) {
        self.0 |= 1 << what as u64;
    }

    pub fn has(self, what: Sometimes) -> bool {
        self.0 & (1 << what as u64) != 0
    }
}

/// The set above has room for sixty-four.
const _: () = assert!(Sometimes::ALL.len() <= 64);
