//! How do the rows of a phase and its recovery point become one commit?
//!
//! [`FlowTx`] is a transaction as the core sees it: guarded by its last statement, and committed as a
//! whole. The commit is one message to the store. Lost on its way back it is in doubt, and the record is
//! read before anything is decided; late, it finds another recovery point and is refused.

use retrysafe_core::Id;
use retrysafe_core::engine::{MovedIn, NotSettled};
use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::machine::flows::FlowStep;
use retrysafe_core::record::{Answer, Fence, First, Outcome, Record, Write};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::store::{Inserted, Stamped, StoreError, Swapped, Transactional};

use super::super::handle::{Handle, broken};
use super::super::wire::{Commit, Parts, Request, Response};
use super::{AfterPhase, FlowEnd, HeldLease, Run, TRIES_MAX, mutant, point_of, tables};
use crate::fault::Fault;
use crate::options::Kind;

/// A transaction of a phase.
pub struct FlowTx {
    phase: u8,
    guarded: Option<Commit>,
    is_refused: bool,
}

/// What became of one try.
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
enum Tried {
    /// The phase is over, and its commit is acknowledged.
    Moved(MovedIn),
    /// The flow is over, and its commit is acknowledged.
    Answered(StoredResponse),
    /// Rolled back, and not by a fault of the phase.
    Conflict,
    /// Rolled back by the phase's own error.
    Failed,
    /// The record must be read before anything is decided.
    InDoubt,
}

impl Transactional<FlowTx> for Handle {
    async fn insert_in(&self, _: &mut FlowTx, _: First) -> Result<Stamped<Inserted>, StoreError> {
        // No phase begins anything.
        Err(broken())
    }

    async fn swap_in(
        &self,
        tx: &mut FlowTx,
        from: Record,
        write: Write,
    ) -> Result<Stamped<Swapped>, StoreError> {
        let (key, version) = (self.key(&from.id)?, from.version);
        let (write, force) = super::super::handle::tampered(self, write);
        let guard = Request::Guard { key, version, write: write.clone(), force };
        let Stamped { now, value } = self.ask(guard).await?;
        let Response::Swapped(swapped) = value else { return Err(broken()) };
        if let Swapped::Done(record) = &swapped {
            let (reserved, phase, parts) = (record.version, tx.phase, Parts::All);
            tx.guarded = Some(Commit { key, version, reserved, write, phase, force, parts });
        }
        Ok(Stamped { now, value: swapped })
    }

    async fn guard_in(&self, _: &mut FlowTx, _: Id, _: Fence) -> Result<(), StoreError> {
        // Whatever else happens in it: a transaction of this store is committed by its guarded write.
        Ok(())
    }

    async fn refuse_in(&self, tx: &mut FlowTx, _: &str) {
        tx.is_refused = true;
    }
}

impl Run {
    /// Runs a phase that is a transaction.
    pub(super) async fn run_transaction(&self, mut held: HeldLease, phase: u16) -> AfterPhase {
        for tried in 0..TRIES_MAX {
            let asked_at = self.gate.now();
            match self.try_transaction(&held, phase).await {
                Tried::Moved(moved) => {
                    return Ok(HeldLease { lease: held.lease.committed(moved), asked_at });
                }
                Tried::Answered(stored) => return Err(FlowEnd::Answered(stored)),
                Tried::Failed => return Err(self.give_back(held).await),
                Tried::Conflict => {}
                Tried::InDoubt => {
                    held = self.read_back(held).await?;
                    if point_of(&held) != Some(RecoveryPoint::Before(phase)) {
                        return Ok(held);
                    }
                }
            }
            self.pause_before(tried).await;
        }
        Err(self.give_back(held).await)
    }

    async fn try_transaction(&self, held: &HeldLease, phase: u16) -> Tried {
        let fails = self
            .gate
            .sim
            .with(|world| world.strike(Kind::UpstreamErrors, 12) || world.strike(Kind::Panic, 8));
        if fails {
            return Tried::Failed;
        }
        let mut tx = FlowTx { phase: phase as u8, guarded: None, is_refused: false };
        let handle = self.engine.store();
        let (id, fence) = (held.lease.id(), held.lease.fence());
        if handle.guard_in(&mut tx, id, fence).await.is_err() {
            return Tried::InDoubt;
        }
        let number = self.gate.sim.with(|world| world.next_body());
        if self.plan.is_last(phase) {
            let stored = tables::response(201, number);
            let outcome = Outcome::Completed(Answer::Kept(stored.clone()));
            let settled = self.engine.settle_in(&mut tx, &held.lease, &outcome).await;
            return match settled.map(drop) {
                Ok(()) => self.commit(tx).await.unwrap_or(Tried::Answered(stored)),
                Err(error) => not_written(&error),
            };
        }
        let step = FlowStep::Commit { phase, output: tables::body(number) };
        match self.engine.advance_in(&mut tx, &held.lease, &step).await {
            Ok(moved) => self.commit(tx).await.unwrap_or(Tried::Moved(moved)),
            Err(error) => not_written(&error),
        }
    }

    /// Commits. None if that is acknowledged.
    async fn commit(&self, tx: FlowTx) -> Option<Tried> {
        let (Some(commit), false) = (tx.guarded, tx.is_refused) else {
            return Some(Tried::InDoubt);
        };
        let handle = self.engine.store();
        let committed = if self.gate.options.fault == Some(Fault::OutputApart) {
            mutant::commit_apart(handle, commit).await
        } else {
            handle.ask(Request::Commit(commit)).await
        };
        match committed {
            Ok(Stamped { value: Response::Swapped(Swapped::Done(_)), .. }) => None,
            Ok(_) => Some(Tried::Conflict),
            Err(error) if error.may_have_applied() => Some(Tried::InDoubt),
            Err(_) => Some(Tried::Conflict),
        }
    }
}

/// The guarded write was refused. Nothing of the transaction can be committed.
fn not_written(error: &NotSettled) -> Tried {
    let is_refused = matches!(error, NotSettled::Store(error) if !error.may_have_applied());
    if is_refused { Tried::Conflict } else { Tried::InDoubt }
}
