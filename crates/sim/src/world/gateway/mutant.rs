//! Where are the planted faults between layer and engine?
//!
//! Here, and only here: what an execution's end means, and what is answered when a settle is refused. Nothing of this can reach a build of the product.

use std::future::poll_fn;

use retrysafe_core::engine::Settled;
use retrysafe_core::policy::End;
use retrysafe_core::record::{Answer, Doubt, Outcome};

use super::super::gate::Gate;
use crate::fault::Fault;
use crate::history::{Class, Role, What};

/// An execution without a grant.
pub async fn execute_unprotected(gate: Gate, conn: u16, key: u8, print: u8) {
    let Gate { number, epoch, .. } = gate;
    let (exec, until) = gate.sim.with(|world| {
        world.record(What::Sent { conn, key, fence: 0, gateway: number, epoch });
        let exec = world.send(key, 0, print, number, epoch);
        (exec, world.wake_in(gate.options.upstream_timeout_ms))
    });
    let end = poll_fn(|_| gate.sim.with(|world| world.end(exec, until))).await;
    if let Some(End::Answered { response, .. }) = end {
        gate.answer_kept(conn, Class::First, &Answer::Kept(response));
    }
}

/// What an execution's end means, as a faulty layer judges it.
pub fn outcome(fault: Option<Fault>, outcome: Outcome) -> Outcome {
    match (fault, &outcome) {
        (Some(Fault::EvictOnTimeout), Outcome::Unknown(Doubt::AnswerLost))
        | (Some(Fault::ServerErrorReleased), Outcome::Unknown(Doubt::ServerError))
        | (Some(Fault::PanicReleased), Outcome::Unknown(Doubt::Panicked))
        | (Some(Fault::LargeReleased), Outcome::Completed(Answer::NotKept { .. })) => {
            Outcome::Retryable(None)
        }
        (_, _) => outcome,
    }
}

/// A layer that answers whatever the record holds when its own settle is refused, whoever it is
/// about.
pub async fn overruled(gate: &Gate, key: u8, settled: Settled) -> Settled {
    let Settled::Lost { contradiction, .. } = settled else { return settled };
    if gate.options.fault != Some(Fault::OverruledByAnother) {
        return settled;
    }
    let Some(id) = gate.tables.id(key) else { return settled };
    let found = gate.sim.engine(gate.by(Role::Reader)).look(id).await;
    Settled::Lost { current: found.ok().and_then(|found| found.value), contradiction }
}
