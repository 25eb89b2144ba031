//! How is a begin taken back whose acknowledgement was lost?

use retrysafe_core::execution::Withdrawing;
use retrysafe_core::scope::Id;

use super::gate::Gate;
use crate::fault::Fault;
use crate::history::Role;

/// Takes back a begin that may have been applied, so that the next caller need not wait for its
/// lease.
pub async fn withdraw(gate: Gate, key: u8, owner: u64) {
    let Some(id) = gate.tables.id(key) else { return };
    let engine = gate.sim.engine(gate.by(Role::Withdraw));
    let mut withdrawing = Withdrawing::new(&gate.policy, gate.now());
    loop {
        let owner = whose_begin(&gate, id, owner).await;
        let pause = match engine.withdraw(id, owner).await {
            Ok(true) => return,
            Ok(false) => withdrawing.found_nothing(gate.now()),
            Err(_) => withdrawing.failed(gate.now()),
        };
        let Some(pause) = pause else { return };
        gate.sleep(pause).await;
    }
}

/// The owner whose begin a withdrawal takes back: one that does not look takes whoever it finds.
async fn whose_begin(gate: &Gate, id: Id, mine: u64) -> u64 {
    if gate.options.fault != Some(Fault::WithdrawsAnybody) {
        return mine;
    }
    let found = gate.sim.engine(gate.by(Role::Reader)).look(id).await;
    let owner = found.ok().and_then(|found| found.value).and_then(|record| record.state.owner());
    owner.unwrap_or(mine)
}
