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
            | Self::WithdrawalDoubts => true,
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
            | Self::NoQuarantine => false,
        }
    }

    /// Whether it changes how records are inserted.
    pub const fn is_about_insert(self) -> bool {
        matches!(
            self,
            Self::CheckThenAct | Self::CacheGrants | Self::PrintDropped | Self::UnknownReruns
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
