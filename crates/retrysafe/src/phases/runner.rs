//! What does every phase need to move its flow on?
//!
//! A lease that is held, and three verbs over it that do not give up at the first failure of the store: advance,
//! settle, and read back. Each repeats the *write*, with the same fence and from the same recovery
//! point. None of them repeats a phase or a call.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::engine::{Advanced, Lease, Settled};
use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::machine::flows::FlowStep;
use retrysafe_core::record::{Fence, Outcome, State};
use retrysafe_core::scope::Id;
use retrysafe_core::store::StoreError;
use retrysafe_core::wire::ASK_AGAIN_SOON;
use retrysafe_core::{Engine, Policy};
use sqlx::PgPool;

use super::PhaseError;
use super::end::FlowEnd;
use crate::layer::BootMoment;
use crate::stores::postgres::PostgresStore;

/// How often a write whose answer was lost is made again. With the pauses this is five to ten seconds: as
/// long as a fail-over should take, and well inside a lease.
const WRITES_MAX: u32 = 14;

/// The first pause between two tries; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What flows are run with.
#[derive(Clone, Debug)]
pub(super) struct Runner {
    pub(super) pool: PgPool,
    pub(super) engine: Engine<PostgresStore>,
    pub(super) policy: Arc<Policy>,
}

/// A lease that is held, and since when what it shows is known.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) lease: Lease,
    /// Before the store was asked for what the lease shows.
    pub(super) asked_at: BootMoment,
}

/// How a run ended.
pub(super) type RunEnd = Result<FlowEnd, StoreError>;

/// What follows a phase: the next one, or the end of the run.
pub(super) type AfterPhase = Result<HeldLease, RunEnd>;

impl HeldLease {
    /// From where the flow goes on; none before its own first commit.
    pub(super) fn point(&self) -> Option<RecoveryPoint> {
        self.lease.flow().map(|flow| flow.recovery_point())
    }
}

impl Runner {
    /// Moves the recovery point. A write whose answer was lost is made again.
    pub(super) async fn advance(
        &self,
        held: HeldLease,
        phase: &'static str,
        step: &FlowStep,
    ) -> AfterPhase {
        let mut lease = held.lease;
        let mut tried = 0;
        loop {
            let asked_at = BootMoment::now();
            match self.engine.advance(lease, step).await {
                Ok(Advanced::Done(lease)) => return Ok(HeldLease { lease, asked_at }),
                Ok(Advanced::Late | Advanced::Lost) => return Err(Ok(owned_by_another())),
                Ok(Advanced::TooLarge(lease)) => {
                    let held = HeldLease { lease, asked_at };
                    return Err(self.give_back(held, phase, too_large()).await);
                }
                Err(unadvanced) => {
                    lease = unadvanced.lease;
                    tried += 1;
                    if tried == WRITES_MAX {
                        return Err(Err(unadvanced.error));
                    }
                    pause_before(tried).await;
                }
            }
        }
    }

    /// Gives a lease back with an outcome. A write whose answer was lost is made again.
    pub(super) async fn settle(
        &self,
        mut lease: Lease,
        outcome: &Outcome,
    ) -> Result<Settled, StoreError> {
        let mut tried = 0;
        loop {
            match self.engine.settle(lease, outcome).await {
                Ok(settled) => return Ok(settled),
                Err(unsettled) => {
                    lease = unsettled.lease;
                    tried += 1;
                    if tried == WRITES_MAX {
                        return Err(unsettled.error);
                    }
                    pause_before(tried).await;
                }
            }
        }
    }

    /// A phase has failed, and nothing of it is left: the next run goes on where it failed. If the store
    /// cannot be told, the lease ends by itself.
    pub(super) async fn give_back(
        &self,
        held: HeldLease,
        phase: &'static str,
        error: PhaseError,
    ) -> RunEnd {
        tracing::warn!(target: "retrysafe", phase, %error, "phase_failed");
        match self.settle(held.lease, &Outcome::Retryable(None)).await {
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(target: "retrysafe", phase, %error, "lease_not_given_back")
            }
        }
        Ok(FlowEnd::PhaseFailed { phase, error })
    }

    /// A call was about to be made, and none of its bytes has left since this lease was granted.
    pub(super) async fn call_not_sent(&self, mut lease: Lease, phase: u16) {
        let mut tried = 0;
        loop {
            match self.engine.call_not_sent(lease, phase).await {
                // Refused, it is somebody else's by now, and none of this owner's business.
                Ok(_) => return,
                Err(unsettled) => {
                    lease = unsettled.lease;
                    tried += 1;
                    if tried == WRITES_MAX {
                        let error = unsettled.error;
                        tracing::warn!(target: "retrysafe", phase, %error, "lease_not_given_back");
                        return;
                    }
                    pause_before(tried).await;
                }
            }
        }
    }

    /// What became of a commit without an answer. Nothing is decided about a flow before.
    pub(super) async fn read_back(&self, held: HeldLease) -> AfterPhase {
        // What is seen here may not have reached the standby: its wait may have been ended.
        self.engine.store().raise_barrier();
        let id = held.lease.id();
        let fence = held.lease.fence();
        let mut lease = held.lease;
        let mut tried = 0;
        loop {
            let asked_at = BootMoment::now();
            match self.engine.read_back(lease).await {
                Ok(Some(lease)) => return Ok(HeldLease { lease, asked_at }),
                Ok(None) => return Err(self.what_holds(id, fence).await),
                Err(unsettled) => {
                    lease = unsettled.lease;
                    tried += 1;
                    if tried == WRITES_MAX {
                        return Err(Err(unsettled.error));
                    }
                    pause_before(tried).await;
                }
            }
        }
    }

    /// What an owner finds whose record is not open any more: its own answer, or somebody else's record.
    async fn what_holds(&self, id: Id, fence: Fence) -> RunEnd {
        let found = self.engine.look(id).await?.value;
        let own = found.filter(|record| record.fence == fence);
        Ok(match own.map(|record| record.state) {
            Some(State::Completed { answer, .. }) => answer.into(),
            Some(
                State::InProgress { .. } | State::FailedRetryable { .. } | State::Unknown { .. },
            )
            | None => owned_by_another(),
        })
    }
}

/// Somebody else owns the record, or has decided about it: whoever asks again is told.
pub(super) fn owned_by_another() -> FlowEnd {
    FlowEnd::InProgress(ASK_AGAIN_SOON)
}

pub(super) fn too_large() -> PhaseError {
    "the input and the outputs of this flow are larger than a record may be".into()
}

/// What a phase has panicked with, as an error.
pub(super) fn panicked(payload: &(dyn std::any::Any + Send)) -> PhaseError {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("the phase panicked: {}", text.unwrap_or("without a text")).into()
}

/// Waits before another try: up to twice as long after each one, and never together with others.
pub(super) async fn pause_before(tried: u32) {
    let longest = PAUSE_MIN.saturating_mul(1 << tried.min(10)).min(PAUSE_MAX);
    let chance = RandomState::new().hash_one(tried) % 1_000;
    tokio::time::sleep(longest.mul_f64(chance as f64 / 1_000.0)).await;
}
