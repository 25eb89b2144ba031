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
    LookupLags Fast "a lookup does not show what was done",
    LookupsContradict Fast "a lookup does not show what an earlier one has shown",
    NoticeLost Both "a report of the provider is lost",
    NoticeEarly Fast "a report of the provider comes while its attempt still runs",
    NoticeTwice Both "a report of the provider is kept twice",
    NoticeDecides Both "a report of the provider decides",
    NoticeAfter Both "a report of the provider comes after the decision",
    FlowResumedStart Fast "a flow is resumed before its first phase",
    FlowResumedPhase Fast "a flow is resumed behind a phase that is committed",
    FlowResumedCall Fast "a flow is resumed at a call whose key is remembered",
    FlowReleasedGoesOn Fast "a flow that was released goes on behind its phases",
    FlowChargeRepeated Fast "a call is sent again under the same key",
    FlowLateResult Fast "a late owner's result of a call counts",
    FlowLateCharge Fast "a call takes effect after its owner has lost the record",
    FlowForgotten Fast "a provider may have forgotten the key, and the call is unknown",
    FlowUnkeyedUnknown Fast "a call without a key is unknown",
    FlowOtherBytes Fast "other bytes are made up for the same call, and not sent",
    FlowNotSentClears Fast "an owner that has sent nothing clears its mark",
    FlowNotSentByAnother Fast "an owner that has sent nothing leaves another's mark",
    FlowEvidenceExecuted Fast "evidence that a call was executed moves its flow",
    FlowEvidenceNotExecuted Fast "evidence that a call was not executed releases its flow",
    FlowEvidenceDeclined Fast "evidence of a whole answer completes a flow",
    FlowCompleterFinishes Fast "the completer finishes a flow",
    FlowHeld Fast "a flow of an unknown version is held",
    FlowHeldForGood Fast "a flow is held whose version nobody knows any more",
    FlowAdvanceRepeated Fast "an advance is ambiguous, and is repeated",
    FlowTakeoverWithdrawn Fast "a takeover is withdrawn, and only its lease ends",
    FlowStopped Fast "a run of a flow is stopped between two phases",
    EffectTakenOver Both "a worker claims an effect that another one has held",
    EffectResent Both "an effect is sent again under its key",
    EffectTooLate Both "a worker finds that it is too late, and sends nothing",
    EffectRenewed Both "an effect's lease is renewed",
    EffectCrashAfter Both "a worker dies between an effect and the word about it",
    EffectLate Both "an effect happens after its worker has given it up",
    EffectUnkeyedUnknown Both "an effect without a key is unknown",
    EffectForgotten Both "an effect's receiver may have forgotten the key, and it is unknown",
    EffectFailedUnknown Both "an effect that may have been sent has failed too often, and is unknown",
    EffectPoison Fast "an effect's workers have died too often",
    EffectDead Both "an effect is given up that was not sent",
    EffectRejected Both "an effect is refused for good",
    EffectLateWord Fast "a late worker's word about an effect counts",
    EffectLateWordLost Both "a late worker's word about an effect is refused",
    EffectHandedBack Both "a worker gives an effect back",
    EffectForeignMark Both "a worker without an effect leaves another's mark",
    EffectCancelled Both "an effect is taken back",
    EffectCancelRefused Both "an effect cannot be taken back, because it may have been sent",
    EffectRequeued Both "a dead effect is requeued",
    EffectFoundDone Both "an unknown effect is found to have happened",
    EffectFoundBurnt Both "an unknown effect's receiver says that it will not happen",
    EffectUnwanted Both "an unknown effect is surely without an effect, and put away",
    EffectFoundAbsent Both "an unknown effect is not known to its receiver for long enough",
    EffectFollows Both "the next effect of a lane follows its head",
    EffectFollowsLate Both "a sweeper finds that the head of a lane is gone",
    EffectRolledBack Both "a transaction that staged an effect is rolled back",
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
