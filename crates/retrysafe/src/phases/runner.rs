//! What does every phase need to move its flow on?
//!
//! A lease that is held, and three verbs over it that do not give up at the first failure of the store: advance,
//! settle, and read back. Each repeats the *write*, with the same fence and from the same recovery
//! point. None of them repeats a phase or a call.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::engine::{Advanced, Lease, Settled};
use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::machine::flows::FlowStep;
use retrysafe_core::record::{Doubt, Fence, Outcome, State};
use retrysafe_core::scope::Id;
use retrysafe_core::store::StoreError;
use retrysafe_core::wire::ASK_AGAIN_SOON;
use retrysafe_core::{Engine, Policy};
use sqlx::PgPool;
use tokio::time::Instant;

use super::PhaseError;
use super::end::FlowEnd;
use super::persist::{BackgroundWrites, Unwritten};
use crate::layer::BootMoment;
use crate::stores::postgres::PostgresStore;

/// For how long a write whose answer was lost is made again: as long as a fail-over should take, and well inside a
/// lease.
const WRITE_PATIENCE: Duration = Duration::from_secs(8);

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
    pub(super) background: BackgroundWrites,
}

/// A lease that is held, and since when what it shows is known.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) lease: Lease,
    /// Before the store was asked for what the lease shows.
    pub(super) asked_at: BootMoment,
}

/// The tries of one write.
struct WriteTries {
    tried: u32,
    since: Instant,
}

impl WriteTries {
    fn begin() -> Self {
        Self { tried: 0, since: Instant::now() }
    }

    /// Waits before another try. False if there is none.
    async fn wait(&mut self) -> bool {
        self.tried += 1;
        if self.since.elapsed() >= WRITE_PATIENCE {
            return false;
        }
        pause_before(self.tried).await;
        true
    }
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
        let mut tries = WriteTries::begin();
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
                    if !tries.wait().await {
                        self.go_on_without_caller(lease, step);
                        return Err(Err(unadvanced.error));
                    }
                }
            }
        }
    }

    /// Writes on in the background.
    pub(super) fn write_on(&self, unwritten: Unwritten) {
        self.background.write_on(&self.policy, unwritten);
    }

    /// Nobody waits for this step any more. What must not be lost of it is written on.
    fn go_on_without_caller(&self, lease: Lease, step: &FlowStep) {
        match step {
            FlowStep::Call { phase, .. } => {
                self.write_on(Unwritten::Mark { held: lease.renewal(), phase: *phase });
            }
            FlowStep::CallResult { .. } => {
                self.write_on(Unwritten::CallResult { lease, step: step.clone() });
            }
            // A start is taken back by whoever has begun it, and a transaction is there or is not.
            FlowStep::Start { .. } | FlowStep::Commit { .. } => {}
        }
    }

    /// Gives a lease back with an outcome. A write whose answer was lost is made again.
    pub(super) async fn settle(
        &self,
        mut lease: Lease,
        outcome: &Outcome,
    ) -> Result<Settled, StoreError> {
        let mut tries = WriteTries::begin();
        loop {
            match self.engine.settle(lease, outcome).await {
                Ok(settled) => return Ok(settled),
                Err(unsettled) => {
                    lease = unsettled.lease;
                    if !tries.wait().await {
                        if must_be_written(outcome) {
                            let outcome = outcome.clone();
                            self.write_on(Unwritten::Outcome { lease, outcome });
                        }
                        return Err(unsettled.error);
                    }
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
        let mut tries = WriteTries::begin();
        loop {
            match self.engine.call_not_sent(lease, phase).await {
                // Refused, it is somebody else's by now, and none of this owner's business.
                Ok(_) => return,
                Err(unsettled) => {
                    lease = unsettled.lease;
                    if !tries.wait().await {
                        let error = unsettled.error;
                        tracing::warn!(target: "retrysafe", phase, %error, "lease_not_given_back");
                        return self.write_on(Unwritten::Mark { held: lease.renewal(), phase });
                    }
                }
            }
        }
    }

    /// A call was made, and its result cannot be the output of its phase. That it was made must not be lost.
    pub(super) async fn result_not_kept(
        &self,
        mut lease: Lease,
        result: &Bytes,
    ) -> Result<Settled, StoreError> {
        let mut tries = WriteTries::begin();
        loop {
            match self.engine.result_not_kept(lease, result).await {
                Ok(settled) => return Ok(settled),
                Err(unsettled) => {
                    lease = unsettled.lease;
                    if !tries.wait().await {
                        let result = result.clone();
                        self.write_on(Unwritten::ResultNotKept { lease, result });
                        return Err(unsettled.error);
                    }
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
        let mut tries = WriteTries::begin();
        loop {
            let asked_at = BootMoment::now();
            match self.engine.read_back(lease).await {
                Ok(Some(lease)) => return Ok(HeldLease { lease, asked_at }),
                Ok(None) => return Err(self.what_holds(id, fence).await),
                Err(unsettled) => {
                    lease = unsettled.lease;
                    if !tries.wait().await {
                        return Err(Err(unsettled.error));
                    }
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

/// Whether somebody would do again what was done, if this outcome were lost.
fn must_be_written(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Completed(_) | Outcome::Unknown(Doubt::CommittedAlone) => true,
        Outcome::Retryable(_) | Outcome::Unknown(_) => false,
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
