//! Who finishes a flow whose owner died and whose caller never came back?
//!
//! A round looks for flows that may go on and that nobody runs, begins each as a retry of its caller would,
//! under a new fence, and runs it as far as it goes.

use retrysafe_core::engine::{Ask, Begun};
use retrysafe_core::record::{Record, Standing, State};
use retrysafe_core::store::{Filter, Query, Store};
use retrysafe_core::time::Time;

use super::{HeldLease, known_versions, run};
use crate::history::{NONE, Role, What};
use crate::world::gate::Gate;
use crate::world::withdrawal::withdraw;

/// More records than any history has.
const ALL: usize = 100;

/// One round of completing.
pub async fn complete(gate: Gate) {
    let ended_leases = Filter { lease_over: true, ..Filter::default() };
    let failed = Filter { standing: Some(Standing::FailedRetryable), ..Filter::default() };
    for filter in [ended_leases, failed] {
        let engine = gate.sim.engine(gate.by(Role::Reader));
        let query = Query { filter, after: None, limit: ALL };
        // What cannot be read now the next round reads.
        let Ok(page) = engine.store().scan(query).await else { return };
        for record in page.value.records {
            if is_due(&gate, &record, page.now) {
                finish(&gate, &record).await;
            }
        }
    }
}

/// Whether its caller has left a flow for long enough.
fn is_due(gate: &Gate, record: &Record, now: Time) -> bool {
    let (Some(flow), Some(plan)) = (&record.flow, gate.options.flow) else { return false };
    let left_since = match record.state {
        State::InProgress { lease_until, .. } if record.resume_rule().permits(now) => lease_until,
        State::FailedRetryable { settled_at, .. } if record.holds_work() => settled_at,
        State::InProgress { .. }
        | State::FailedRetryable { .. }
        | State::Completed { .. }
        | State::Unknown { .. } => return false,
    };
    let is_healed = gate.sim.with(|world| world.healed_at.is_some());
    let patience_ms = if is_healed { 0 } else { plan.patience_ms };
    known_versions(gate).contains(flow.flow())
        && now.since(left_since).as_millis() >= u128::from(patience_ms)
}

/// Goes on with one flow, as a retry of its caller would.
async fn finish(gate: &Gate, record: &Record) {
    let Some(key) = gate.tables.key(&record.id) else { return };
    let owner = gate.sim.with(|world| world.chance.next());
    let ask = Ask {
        scope: &record.scope,
        mark: record.mark,
        key: record.key,
        prints: &record.fingerprint,
        about: &record.about,
        ttl: record.ttl,
        lease: gate.policy.lease,
        owner,
        request_id: None,
    };
    let engine = gate.sim.engine(gate.by(Role::Completer));
    let asked_at = gate.now();
    match engine.begin_flow(&ask, &known_versions(gate)).await {
        Ok(Begun::Execute(lease)) if lease.flow().is_some() => {
            let (number, epoch, fence) = (gate.number, gate.epoch, lease.fence().0 as u32);
            gate.sim.with(|world| {
                world.record(What::Begun { conn: NONE, gateway: number, epoch, fence });
                world.struck_at_grant(number);
            });
            run(gate.clone(), None, key, HeldLease { lease, asked_at }).await;
        }
        // It was finished and forgotten since it was read, and this begin has made a new record.
        Ok(Begun::Execute(_)) => withdraw(gate.clone(), key, owner).await,
        Err(error) if error.may_have_applied() => withdraw(gate.clone(), key, owner).await,
        // Somebody else was first, or the store is away.
        Ok(_) | Err(_) => {}
    }
}
