//! Which faults can be planted?
//!
//! Each of them somebody has shipped. The world asks which one is planted, the [museum](crate::museum) looks for each. They are of
//! two kinds: those that change what shipped code has decided, on its way to whoever carries it out, and those of the simulator's own
//! gateway and store. None can be switched on in the product.

use crate::invariant::Invariant;

macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $fault:ident $name:literal breaks $invariant:ident within $seeds:literal),* $(,)?) => {
        /// A planted fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault { $($(#[doc = $doc])+ $fault),* }

        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$fault),*];

            /// Its name on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$fault => $name),* }
            }

            /// What it does.
            pub const fn says(self) -> &'static str {
                match self { $(Self::$fault => concat!($($doc),+)),* }
            }

            /// The promise by whose breach it is found.
            pub const fn breaks(self) -> Invariant {
                match self { $(Self::$fault => Invariant::$invariant),* }
            }

            /// Within how many seeds it must be found.
            pub const fn seeds_max(self) -> u64 {
                match self { $(Self::$fault => $seeds),* }
            }
        }
    };
}

faults! {
    /// The store client looks first and inserts afterwards.
    CheckThenAct "check-then-act" breaks S1 within 1_000,
    /// Settles and renewals look at neither fence nor version.
    NoFence "no-fence" breaks S11 within 2_000,
    /// The next caller executes when a lease is over.
    LeaseRerun "lease-rerun" breaks S1 within 1_000,
    /// A timeout of the upstream frees the key.
    EvictOnTimeout "evict-on-timeout" breaks S1 within 1_000,
    /// A begin that failed executes all the same.
    FailOpen "fail-open" breaks S14 within 1_000,
    /// Two scopes share a key.
    KeyWithoutScope "key-without-scope" breaks S8 within 1_000,
    /// A released record takes on whatever request comes next.
    PrintDropped "fingerprint-dropped" breaks S7 within 1_000,
    /// An answer that broke off is kept as if it were whole.
    TruncatedKept "truncated-kept" breaks S16 within 1_000,
    /// The reaper takes old records in progress for expired ones.
    ReaperTakesRunning "reaper-takes-running" breaks S22 within 5_000,
    /// The sweeper writes without looking at the version that it read.
    SweeperOverwrites "sweeper-overwrites" breaks S30 within 5_000,
    /// A verdict leaves the former owner its fence.
    VerdictKeepsFence "verdict-keeps-fence" breaks S12 within 1_000,
    /// A client makes up a new key for each retry.
    NewKeyOnRetry "new-key-on-retry" breaks S38 within 1_000,
    /// "Not found" counts as proof at once.
    AbsenceAtOnce "absence-at-once" breaks S1 within 5_000,
    /// The settle time of an absence is measured on the store's clock, which may leap.
    AbsenceByStoreClock "absence-by-store-clock" breaks S13 within 20_000,
    /// A verdict is applied to whatever attempt is unknown when it arrives.
    StaleVerdict "stale-verdict" breaks S13 within 100_000,
    /// Whose settle is refused is answered with what the record holds, whoever that is about.
    OverruledByAnother "overruled-by-another" breaks S6 within 100_000,
    /// The answer leaves before it is durable.
    AnswerBeforeDurable "answer-before-durable" breaks S4 within 1_000,
    /// A waiter that has waited for long enough deletes the owner's record.
    WaiterDeletes "waiter-deletes" breaks S1 within 5_000,
    /// An unknown record older than its time to live runs again.
    UnknownReruns "unknown-reruns" breaks S1 within 1_000,
    /// Versions start anew with each generation.
    VersionReused "version-reused" breaks S11 within 1_000,
    /// An empty cache grants execution.
    CacheGrants "cache-grants" breaks S1 within 1_000,
    /// The cache serves an answer whose retention is over.
    CacheOutlives "cache-outlives" breaks S26 within 5_000,
    /// A 5xx is released although the policy says otherwise.
    ServerErrorReleased "server-error-released" breaks S1 within 5_000,
    /// A settle that fails is answered by executing again.
    SettleReruns "settle-reruns" breaks S15 within 5_000,
    /// A panic frees the key.
    PanicReleased "panic-released" breaks S20 within 1_000,
    /// An answer too large to keep frees the key.
    LargeReleased "large-released" breaks S17 within 1_000,
    /// An owner sends without looking at its lease.
    NoLeaseCheck "no-lease-check" breaks S1 within 100_000,
    /// A client that goes away takes the execution with it.
    DisconnectCancels "disconnect-cancels" breaks S19 within 1_000,
    /// A new process sends again what a dead one had begun.
    ResumesOldFence "resumes-old-fence" breaks S3 within 1_000,
    /// A client takes "nobody knows" for "it did not happen".
    GivesUpInDoubt "gives-up-in-doubt" breaks S38 within 1_000,
    /// A client tries again after it was told that its key belongs to another request.
    RetriesMismatch "retries-mismatch" breaks S38 within 1_000,
    /// A completed execution is written down as one that may run again.
    CompletedAsRetryable "completed-as-retryable" breaks S1 within 1_000,
    /// The sweeper frees the key of an ended lease instead of doubting it.
    SweeperReleases "sweeper-releases" breaks S30 within 1_000,
    /// A new attempt keeps the fence of the former one.
    BeginKeepsFence "begin-keeps-fence" breaks S11 within 1_000,
    /// A settle raises the fence, as if ownership had changed.
    SettleRaisesFence "settle-raises-fence" breaks S11 within 1_000,
    /// A doubt takes the fence from an owner that may still tell the truth.
    DoubtRaisesFence "doubt-raises-fence" breaks S11 within 1_000,
    /// A lookup that learned nothing frees the key.
    LookupReleases "lookup-releases" breaks S30 within 5_000,
    /// A settled record is kept for no time.
    KeptForNoTime "kept-for-no-time" breaks S22 within 1_000,
    /// A result that comes too late overwrites what was decided.
    LateResultOverwrites "late-result-overwrites" breaks S11 within 5_000,
    /// Evidence of an execution is written down as proof of none.
    VerdictReversed "verdict-reversed" breaks S13 within 1_000,
    /// A withdrawal leaves its record in doubt.
    WithdrawalDoubts "withdrawal-doubts" breaks S14 within 1_000,
    /// A withdrawal does not look whose attempt it takes back.
    WithdrawsAnybody "withdraws-anybody" breaks S14 within 5_000,
    /// A server that took another's place grants at once.
    NoQuarantine "no-quarantine" breaks S25 within 1_000,
    /// "Not found" counts after the settle time of a provider whose lookups are never behind.
    SettleWithoutLag "settle-without-lag" breaks S13 within 5_000,
    /// The last lookup of the schedule closes the record, though it has shown nothing.
    LastLookupCloses "last-lookup-closes" breaks S13 within 1_000,
    /// A webhook decides a record that was decided.
    WebhookDecidesAgain "webhook-decides-again" breaks S30 within 1_000,
    /// A lookup that contradicts a verdict flips it.
    ContradictionFlips "contradiction-flips" breaks S30 within 5_000,
    /// A webhook that comes before its record is unknown is dropped.
    EarlyWebhookDropped "early-webhook-dropped" breaks R1 within 5_000,
    /// A webhook is acknowledged before it is kept.
    AcknowledgedUnkept "acknowledged-unkept" breaks R1 within 20_000,
    /// A flow goes on with a call after its provider has forgotten the key.
    ForgottenKeyResumed "forgotten-key-resumed" breaks F1 within 5_000,
    /// A flow goes on with a call to a provider that takes no key.
    UnkeyedCallResumed "unkeyed-call-resumed" breaks F1 within 5_000,
    /// A flow goes on with other bytes under the same key.
    OtherBytesSent "other-bytes-sent" breaks F5 within 5_000,
    /// Two owners advance one flow: an advance looks at neither fence nor version.
    TwoOwnersAdvance "two-owners-advance" breaks S28 within 5_000,
    /// A phase's output is visible without its recovery point.
    OutputApart "output-apart" breaks S28 within 1_000,
    /// A late owner advances a flow that is unknown by now.
    LateOwnerAdvances "late-owner-advances" breaks F2 within 5_000,
    /// An advance goes back: a renewal writes the flow as it was a step ago.
    AdvanceGoesBack "advance-goes-back" breaks F2 within 5_000,
    /// A takeover that is withdrawn frees the record.
    WithdrawnTakeoverFrees "withdrawn-takeover-frees" breaks F3 within 5_000,
    /// A flow that may be tried again has forgotten its phases.
    FailureForgetsPhases "failure-forgets-phases" breaks S28 within 5_000,
    /// The reaper takes flows that are not finished.
    ReaperTakesFlows "reaper-takes-flows" breaks F7 within 5_000,
    /// A call is sent without the check before the wire.
    UncheckedSend "unchecked-send" breaks F1 within 5_000,
    /// Under a first-sent mark whatever should end a lease frees the record.
    MarkSettledAway "mark-settled-away" breaks F3 within 5_000,
    /// Evidence that a call was executed completes its flow.
    FactCompletes "fact-completes" breaks F8 within 5_000,
    /// A process goes on with a flow of a version that it does not know.
    RunsUnknownVersion "runs-unknown-version" breaks F9 within 5_000,
    /// Each attempt at a call has a downstream key of its own.
    NewKeyPerAttempt "new-key-per-attempt" breaks F1 within 5_000,
    /// A flow is taken over from an owner whose lease is live.
    LiveLeaseTakenOver "live-lease-taken-over" breaks S10 within 5_000,
    /// Nobody finishes a flow whose caller does not come back.
    NoCompleter "no-completer" breaks L1 within 5_000,
    /// An effect is sent without the check before the wire.
    EffectUncheckedSend "effect-no-check-before-the-wire" breaks O8 within 1_000,
    /// An effect that was sent and failed too often is dead.
    EffectDeadAfterSend "effect-dead-after-a-send" breaks O4 within 1_000,
    /// Whoever says how a delivery ended is not asked for the fence.
    EffectFinishUnfenced "effect-no-fence-on-finish" breaks O7 within 1_000,
    /// The number of failures takes the place of the fence.
    EffectAttemptAsFence "effect-attempt-as-fence" breaks O7 within 1_000,
    /// The sent mark is written after the answer.
    EffectMarkAfterSend "effect-mark-after-send" breaks O8 within 1_000,
    /// A dead effect can be requeued after its receiver has forgotten the key.
    EffectRequeuePastMemory "effect-requeue-past-the-memory" breaks O9 within 1_000,
    /// An effect does not wait for the one before it in its lane.
    EffectLaneOvertaken "effect-lane-overtaken" breaks O6 within 1_000,
    /// A claim reads what is due, and writes later, without a lock.
    EffectClaimUnlocked "effect-claim-without-lock" breaks O7 within 1_000,
    /// A delivery may take longer than its lease, and nobody renews it.
    EffectLeaseNotRenewed "effect-lease-without-renewal" breaks O10 within 1_000,
    /// A worker looks for effects only when it is told that there are some.
    EffectNotifyAsTruth "effect-notify-as-truth" breaks O2 within 1_000,
    /// An effect whose receiver takes no key is sent again.
    EffectUnkeyedResent "effect-unkeyed-resent" breaks O1 within 1_000,
    /// Each delivery moves the time of the first one.
    EffectMarkMoves "effect-mark-moves" breaks O9 within 1_000,
    /// "No effect" clears the mark of a worker whose packet may be on its way.
    EffectAnyMarkCleared "effect-any-mark-cleared" breaks O9 within 1_000,
    /// An effect that may have been sent can be taken back.
    EffectCancelAfterSend "effect-cancel-after-a-send" breaks O4 within 1_000,
    /// "Not known to its receiver" counts at once.
    EffectAbsenceAtOnce "effect-absence-at-once" breaks O1 within 5_000,
    /// Nobody ends the leases of dead workers.
    EffectNoSweeper "effect-no-sweeper" breaks O2 within 1_000,
    /// Each delivery has a downstream key of its own.
    EffectNewKeyPerDelivery "effect-new-key-per-delivery" breaks O1 within 1_000,
}

impl Fault {
    /// Whether it changes what shipped code has decided: the machine, the engine, the policy or the
    /// client. The others are in the simulator's own gateway and store.
    pub const fn is_in_shipped_code(self) -> bool {
        match self {
            Self::LeaseRerun
            | Self::EvictOnTimeout
            | Self::VerdictKeepsFence
            | Self::OverruledByAnother
            | Self::ServerErrorReleased
            | Self::PanicReleased
            | Self::LargeReleased
            | Self::GivesUpInDoubt
            | Self::RetriesMismatch
            | Self::CompletedAsRetryable
            | Self::SweeperReleases
            | Self::BeginKeepsFence
            | Self::SettleRaisesFence
            | Self::DoubtRaisesFence
            | Self::LookupReleases
            | Self::KeptForNoTime
            | Self::LateResultOverwrites
            | Self::VerdictReversed
            | Self::WithdrawalDoubts
            | Self::WebhookDecidesAgain
            | Self::ContradictionFlips
            | Self::ForgottenKeyResumed
            | Self::UnkeyedCallResumed
            | Self::OtherBytesSent
            | Self::WithdrawnTakeoverFrees
            | Self::UncheckedSend
            | Self::MarkSettledAway
            | Self::FactCompletes
            | Self::EffectUncheckedSend
            | Self::EffectDeadAfterSend
            | Self::EffectFinishUnfenced
            | Self::EffectAttemptAsFence
            | Self::EffectRequeuePastMemory
            | Self::EffectUnkeyedResent
            | Self::EffectMarkMoves
            | Self::EffectAnyMarkCleared
            | Self::EffectCancelAfterSend => true,
            Self::CheckThenAct
            | Self::NoFence
            | Self::FailOpen
            | Self::KeyWithoutScope
            | Self::PrintDropped
            | Self::TruncatedKept
            | Self::ReaperTakesRunning
            | Self::SweeperOverwrites
            | Self::NewKeyOnRetry
            | Self::AbsenceAtOnce
            | Self::AbsenceByStoreClock
            | Self::StaleVerdict
            | Self::AnswerBeforeDurable
            | Self::WaiterDeletes
            | Self::UnknownReruns
            | Self::VersionReused
            | Self::CacheGrants
            | Self::CacheOutlives
            | Self::SettleReruns
            | Self::NoLeaseCheck
            | Self::DisconnectCancels
            | Self::ResumesOldFence
            | Self::WithdrawsAnybody
            | Self::NoQuarantine
            | Self::SettleWithoutLag
            | Self::LastLookupCloses
            | Self::EarlyWebhookDropped
            | Self::AcknowledgedUnkept
            | Self::TwoOwnersAdvance
            | Self::OutputApart
            | Self::LateOwnerAdvances
            | Self::AdvanceGoesBack
            | Self::FailureForgetsPhases
            | Self::ReaperTakesFlows
            | Self::RunsUnknownVersion
            | Self::NewKeyPerAttempt
            | Self::LiveLeaseTakenOver
            | Self::NoCompleter
            | Self::EffectMarkAfterSend
            | Self::EffectLaneOvertaken
            | Self::EffectClaimUnlocked
            | Self::EffectLeaseNotRenewed
            | Self::EffectNotifyAsTruth
            | Self::EffectAbsenceAtOnce
            | Self::EffectNoSweeper
            | Self::EffectNewKeyPerDelivery => false,
        }
    }

    /// Whether it can show in a flow alone.
    pub const fn is_about_flows(self) -> bool {
        matches!(
            self,
            Self::ForgottenKeyResumed
                | Self::UnkeyedCallResumed
                | Self::OtherBytesSent
                | Self::TwoOwnersAdvance
                | Self::OutputApart
                | Self::LateOwnerAdvances
                | Self::AdvanceGoesBack
                | Self::WithdrawnTakeoverFrees
                | Self::FailureForgetsPhases
                | Self::ReaperTakesFlows
                | Self::UncheckedSend
                | Self::MarkSettledAway
                | Self::FactCompletes
                | Self::RunsUnknownVersion
                | Self::NewKeyPerAttempt
                | Self::LiveLeaseTakenOver
                | Self::NoCompleter
        )
    }

    /// Whether it can show in a history about reconciliation over a month alone.
    pub const fn is_about_provider(self) -> bool {
        matches!(
            self,
            Self::SettleWithoutLag
                | Self::LastLookupCloses
                | Self::WebhookDecidesAgain
                | Self::ContradictionFlips
                | Self::EarlyWebhookDropped
                | Self::AcknowledgedUnkept
        )
    }

    /// Whether it can show in a history of effects alone.
    pub const fn is_about_effects(self) -> bool {
        matches!(
            self,
            Self::EffectUncheckedSend
                | Self::EffectDeadAfterSend
                | Self::EffectFinishUnfenced
                | Self::EffectAttemptAsFence
                | Self::EffectMarkAfterSend
                | Self::EffectRequeuePastMemory
                | Self::EffectLaneOvertaken
                | Self::EffectClaimUnlocked
                | Self::EffectLeaseNotRenewed
                | Self::EffectNotifyAsTruth
                | Self::EffectUnkeyedResent
                | Self::EffectMarkMoves
                | Self::EffectAnyMarkCleared
                | Self::EffectCancelAfterSend
                | Self::EffectAbsenceAtOnce
                | Self::EffectNoSweeper
                | Self::EffectNewKeyPerDelivery
        )
    }

    /// Whether it changes how records are inserted.
    pub const fn is_about_insert(self) -> bool {
        matches!(
            self,
            Self::CheckThenAct
                | Self::CacheGrants
                | Self::PrintDropped
                | Self::UnknownReruns
                | Self::LiveLeaseTakenOver
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Fault::ALL.iter().map(|fault| fault.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Fault::ALL.len());
    }
}
