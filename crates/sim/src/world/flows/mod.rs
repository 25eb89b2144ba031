//! How does a process run a flow?
//!
//! In the order of `retrysafe::phases`, which needs PostgreSQL and cannot run here; over the core's own
//! engine and machine, which can. What is written is repeated when its acknowledgement is lost, what is
//! called never is. A transaction is [`commit`], the provider is [`provider`], and [`completer`] goes on
//! with what nobody comes back for.

mod charge;
mod commit;
mod completer;
mod evidence;
mod mutant;
mod provider;

pub use completer::complete;
pub use evidence::{find_evidence, operators_evidence};
pub use provider::{Charge, Remembered};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retrysafe_core::Engine;
use retrysafe_core::engine::{Advanced, Begun, Lease, Renewed, Settled};
use retrysafe_core::flow::{FlowVersion, RecoveryPoint};
use retrysafe_core::machine::flows::FlowStep;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{Answer, Outcome, State};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::store::StoreError;
use retrysafe_core::wire::{ASK_AGAIN_ABOUT_UNKNOWN, ASK_AGAIN_SOON};

use super::conn::Reply;
use super::gate::Gate;
use super::handle::Handle;
use super::tables;
use crate::flow_plan::{FlowPlan, PhaseKind};
use crate::history::{Class, NONE, Role, What};
use crate::options::Kind;

/// The name of the flow.
const FLOW: &str = "ride";

/// How often a write whose answer was lost is made again, and a transaction that was refused.
const TRIES_MAX: u32 = 6;

/// A lease that is held, and since when what it shows is known.
pub struct HeldLease {
    pub lease: Lease,
    /// Before the store was asked for what the lease shows, by the process's own clock.
    pub asked_at: Duration,
}

/// How a run ended.
enum FlowEnd {
    /// The flow is over, and this is its answer.
    Answered(StoredResponse),
    /// A phase failed, and nothing of it is left.
    PhaseFailed,
    /// A charge was not sent.
    NotSent,
    /// A charge was sent, nobody knows how it ended, and the next run sends it once more.
    ToRepeat,
    /// A charge was sent, and only evidence can tell how it ended.
    Unknown,
    /// Somebody else owns the record, or has decided about it.
    Elsewhere,
    /// The store could not be told.
    NoStore,
}

/// What follows a phase: the next one, or the end of the run.
type AfterPhase = Result<HeldLease, FlowEnd>;

/// One run of a flow, under one fence.
struct Run {
    gate: Gate,
    plan: FlowPlan,
    key: u8,
    fence: u32,
    engine: Engine<Handle>,
}

/// The versions that a process can go on with.
pub fn known_versions(gate: &Gate) -> Vec<FlowVersion> {
    let Some(plan) = gate.options.flow else { return vec![] };
    let is_healed = gate.sim.with(|world| world.healed_at.is_some());
    let known = plan.versions.known_to(gate.number, is_healed);
    let known = mutant::known_versions(gate.options.fault, known);
    known.iter().map(|version| FlowVersion::new(FLOW, *version)).collect()
}

/// Runs a flow that was begun for a caller, in a task of its own. Gives back what is nothing to run.
pub fn take_over(
    gate: &Gate,
    conn: u16,
    key: u8,
    asked_at: Duration,
    begun: Result<Begun, StoreError>,
) -> Option<Result<Begun, StoreError>> {
    if gate.options.flow.is_none() {
        return Some(begun);
    }
    if let Ok(Begun::Held(held)) = &begun {
        let what = What::FlowHeld { key, version: held.version as u8 };
        gate.sim.with(|world| world.record(what));
    }
    let Ok(Begun::Execute(lease)) = begun else { return Some(begun) };
    let (number, epoch, fence) = (gate.number, gate.epoch, lease.fence().0 as u32);
    gate.sim.with(|world| {
        world.record(What::Begun { conn, gateway: number, epoch, fence });
        world.struck_at_grant(number);
    });
    let held = HeldLease { lease, asked_at };
    gate.sim.spawn(number, run(gate.clone(), Some(conn), key, held));
    gate.sim.with(|world| world.hand_over(conn, None));
    None
}

/// Runs a flow to its end, or as far as it goes, and tells the caller if there is one.
pub async fn run(gate: Gate, conn: Option<u16>, key: u8, held: HeldLease) {
    let Some(plan) = gate.options.flow else { return };
    let fence = held.lease.fence().0 as u32;
    let engine = gate.sim.engine(gate.by(Role::Owner { fence }));
    let run = Run { gate, plan, key, fence, engine };
    let is_over = run.renew_meanwhile(&held.lease);
    let end = run.go_on(held).await;
    is_over.store(true, Ordering::Relaxed);
    if let Some(conn) = conn {
        run.tell(conn, end);
    }
}

impl Run {
    async fn go_on(&self, held: HeldLease) -> FlowEnd {
        let held = if held.lease.flow().is_some() { Ok(held) } else { self.start(held).await };
        let mut held = match held {
            Ok(held) => held,
            Err(end) => return end,
        };
        loop {
            match self.run_phase(held).await {
                Ok(next) => held = next,
                Err(end) => return end,
            }
        }
    }

    /// The flow's own first commit: from then on anybody can go on with it.
    async fn start(&self, held: HeldLease) -> AfterPhase {
        self.strike_here().await;
        let Some(version) = known_versions(&self.gate).into_iter().next() else {
            return Err(FlowEnd::PhaseFailed);
        };
        self.advance(held, &FlowStep::Start { flow: version, input: tables::body(0) }).await
    }

    async fn run_phase(&self, held: HeldLease) -> AfterPhase {
        self.strike_here().await;
        if self.gate.sim.with(|world| world.strike(Kind::Crash, 1)) {
            let what = What::FlowStopped { key: self.key, fence: self.fence };
            self.gate.sim.with(|world| world.record(what));
            return Err(self.give_back(held).await);
        }
        let Some(point) = point_of(&held) else { return Err(FlowEnd::PhaseFailed) };
        match (self.plan.phase(point.phase()), point) {
            (Some(PhaseKind::Tx), RecoveryPoint::Before(phase)) => {
                self.run_transaction(held, phase).await
            }
            (
                Some(PhaseKind::Charge),
                RecoveryPoint::Before(phase) | RecoveryPoint::Calling(phase),
            ) => self.run_charge(held, phase).await,
            (Some(PhaseKind::Tx), RecoveryPoint::Calling(_)) | (None, _) => {
                Err(self.give_back(held).await)
            }
        }
    }

    /// Moves the recovery point. A write whose answer was lost is made again.
    async fn advance(&self, held: HeldLease, step: &FlowStep) -> AfterPhase {
        let mut lease = held.lease;
        for tried in 0..TRIES_MAX {
            let asked_at = self.gate.now();
            match self.engine.advance(lease, step).await {
                Ok(Advanced::Done(lease)) => return Ok(HeldLease { lease, asked_at }),
                Ok(Advanced::Late | Advanced::Lost) => return Err(FlowEnd::Elsewhere),
                Ok(Advanced::TooLarge(lease)) => {
                    return Err(self.give_back(HeldLease { lease, asked_at }).await);
                }
                Err(unadvanced) => {
                    lease = unadvanced.lease;
                    if unadvanced.error.may_have_applied() {
                        let what = What::AdvanceRepeated { key: self.key, fence: self.fence };
                        self.gate.sim.with(|world| world.record(what));
                    }
                }
            }
            self.pause_before(tried).await;
        }
        Err(FlowEnd::NoStore)
    }

    /// Gives a lease back with an outcome. A write whose answer was lost is made again.
    async fn settle(&self, mut lease: Lease, outcome: &Outcome) -> Option<Settled> {
        for tried in 0..TRIES_MAX {
            match self.engine.settle(lease, outcome).await {
                Ok(settled) => return Some(settled),
                Err(unsettled) => lease = unsettled.lease,
            }
            self.pause_before(tried).await;
        }
        None
    }

    /// A phase has failed, and nothing of it is left.
    async fn give_back(&self, held: HeldLease) -> FlowEnd {
        self.settle(held.lease, &Outcome::Retryable(None)).await;
        FlowEnd::PhaseFailed
    }

    /// What became of a commit without an answer. Nothing is decided about a flow before.
    async fn read_back(&self, held: HeldLease) -> AfterPhase {
        let (id, fence) = (held.lease.id(), held.lease.fence());
        let mut lease = held.lease;
        for tried in 0..TRIES_MAX {
            let asked_at = self.gate.now();
            match self.engine.read_back(lease).await {
                Ok(Some(lease)) => return Ok(HeldLease { lease, asked_at }),
                Ok(None) => {
                    let found = self.engine.look(id).await.ok().and_then(|found| found.value);
                    let own = found.filter(|record| record.fence == fence);
                    return Err(match own.map(|record| record.state) {
                        Some(State::Completed { answer: Answer::Kept(stored), .. }) => {
                            FlowEnd::Answered(stored)
                        }
                        Some(_) | None => FlowEnd::Elsewhere,
                    });
                }
                Err(unsettled) => lease = unsettled.lease,
            }
            self.pause_before(tried).await;
        }
        Err(FlowEnd::NoStore)
    }

    async fn pause_before(&self, tried: u32) {
        let longest = (50 << tried.min(5)).min(1_000);
        let ms = self.gate.sim.with(|world| world.chance.between(1, longest));
        self.gate.sim.sleep(ms).await;
    }

    /// The moments at which a crash or a pause does the most harm: a step is behind the process, and
    /// the next one before it.
    async fn strike_here(&self) {
        let ms = self.gate.sim.with(|world| {
            world.struck_in_flow(self.gate.number);
            world.chance.between(1, 6)
        });
        self.gate.sim.sleep(ms).await;
    }

    /// Renews the lease in a task of its own, until the run is over.
    fn renew_meanwhile(&self, lease: &Lease) -> Arc<AtomicBool> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (watched, gate, held) = (is_over.clone(), self.gate.clone(), lease.renewal());
        let engine = gate.sim.engine(gate.by(Role::Owner { fence: self.fence }));
        let pause = (gate.options.lease_ms / 3).max(1);
        let (sim, number) = (gate.sim.clone(), gate.number);
        sim.spawn(number, async move {
            loop {
                gate.sim.sleep(pause).await;
                if watched.load(Ordering::Relaxed) {
                    return;
                }
                let renewed = engine.renew(held, gate.policy.lease, gate.policy.lease_max).await;
                // The lease stands as it was after a failure, and there is time for another try.
                if matches!(renewed, Ok(Renewed::Lost)) {
                    return;
                }
            }
        });
        is_over
    }

    /// What the caller is told, as `retrysafe::phases` tells it.
    fn tell(&self, conn: u16, end: FlowEnd) {
        let retry_after = ASK_AGAIN_SOON;
        let refusal = match end {
            FlowEnd::Answered(stored) => {
                return self.gate.answer_kept(conn, Class::First, &Answer::Kept(stored));
            }
            FlowEnd::PhaseFailed => {
                let class = Class::Released;
                let reply = Reply { class, status: 500, code: None, body: NONE, retry_after: 0 };
                return self.gate.answer(conn, reply);
            }
            FlowEnd::NotSent => Refusal::UpstreamUnreachable { retry_after },
            FlowEnd::ToRepeat | FlowEnd::Elsewhere => Refusal::InProgress { retry_after },
            FlowEnd::Unknown => {
                Refusal::AnswerLost { timed_out: false, retry_after: ASK_AGAIN_ABOUT_UNKNOWN }
            }
            FlowEnd::NoStore => Refusal::NotDurable { retry_after },
        };
        self.gate.refuse(conn, &refusal);
    }
}

/// From where a flow goes on; none before its own first commit.
fn point_of(held: &HeldLease) -> Option<RecoveryPoint> {
    held.lease.flow().map(|flow| flow.recovery_point())
}
