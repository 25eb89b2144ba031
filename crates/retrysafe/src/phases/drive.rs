//! How does a flow go on from its recovery point?

use retrysafe_core::event;
use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::machine::flows::FlowStep;
use tokio::time::Instant;

use super::end::FlowEnd;
use super::flow::{FlowCode, Phase, PhaseWork};
use super::runner::{AfterPhase, HeldLease, RunEnd, Runner};

impl Runner {
    /// Commits the input of a flow that nobody has begun, before its first phase: from then on anybody can go on
    /// with it.
    pub(super) async fn start(
        &self,
        code: &FlowCode,
        held: HeldLease,
        input: serde_json::Result<Vec<u8>>,
    ) -> AfterPhase {
        const STARTED: &str = "started";
        let input = match input {
            Ok(input) => input.into(),
            Err(error) => return Err(self.give_back(held, STARTED, error.into()).await),
        };
        let start = FlowStep::Start { flow: code.version.clone(), input };
        self.advance(held, STARTED, &start).await
    }

    /// Goes on with a flow that somebody has left.
    pub(super) async fn resume(&self, code: &FlowCode, held: HeldLease) -> RunEnd {
        let flow = code.version.name.to_string();
        metrics::counter!(event::FLOW_RESUMES.name, "flow" => flow).increment(1);
        self.run_phases(code, held).await
    }

    /// Runs phases from where the record is, up to the flow's end or to what stops it.
    pub(super) async fn run_phases(&self, code: &FlowCode, mut held: HeldLease) -> RunEnd {
        loop {
            let point = held.point();
            let phase = point.and_then(|point| code.phases.get(usize::from(point.phase())));
            let (Some(point), Some(phase)) = (point, phase) else {
                return self.hold(code, held).await;
            };
            let started = Instant::now();
            let after = self.run_phase(code, held, point, phase).await;
            let flow = code.version.name.to_string();
            metrics::histogram!(event::PHASE_SECONDS.name, "flow" => flow, "phase" => phase.name)
                .record(started.elapsed());
            match after {
                Ok(next) => held = next,
                Err(end) => return end,
            }
        }
    }

    async fn run_phase(
        &self,
        code: &FlowCode,
        held: HeldLease,
        point: RecoveryPoint,
        phase: &Phase,
    ) -> AfterPhase {
        match (&phase.work, point) {
            (PhaseWork::Tx(work), RecoveryPoint::Before(at)) => {
                self.run_transaction(held, at, phase.name, work).await
            }
            (PhaseWork::Call(work), RecoveryPoint::Before(at) | RecoveryPoint::Calling(at)) => {
                self.run_call(held, at, phase.name, work).await
            }
            (PhaseWork::Tx(_), RecoveryPoint::Calling(_)) => Err(self.hold(code, held).await),
        }
    }

    /// The record is at a place that this list of phases does not have: somebody has changed the list
    /// without raising the flow's version. Nothing of it is run.
    async fn hold(&self, code: &FlowCode, held: HeldLease) -> RunEnd {
        let flow = &*code.version.name;
        let version = code.version.version;
        tracing::error!(target: "retrysafe", flow, version, "flow_was_changed_under_its_version");
        let why = "the phases of this flow were changed without raising its version".into();
        self.give_back(held, "changed", why).await?;
        Ok(FlowEnd::Held(code.version.clone()))
    }
}
