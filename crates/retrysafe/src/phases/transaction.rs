//! How does a phase get its transaction, and how is it taken back?
//!
//! The phase owns its [`PhaseTx`] while it works, so that no lifetime stands in its signature. When it is
//! dropped, the transaction lies in a slot, where whoever lent it finds it. A phase that gives it away,
//! to a task of its own for instance, leaves the slot empty; then nothing is committed.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::Postgres;

pub(super) type Transaction = sqlx::Transaction<'static, Postgres>;

/// The transaction of one phase. What is done in it is committed together with the recovery point, or not
/// at all. It cannot be committed by hand: it is bound to its phase.
pub struct PhaseTx {
    /// Always there until the drop.
    transaction: Option<Transaction>,
    back: Arc<Mutex<Option<Transaction>>>,
}

/// Where a transaction is once its phase has dropped it.
pub(super) struct ReturnSlot(Arc<Mutex<Option<Transaction>>>);

/// Lends a transaction to a phase.
pub(super) fn lend(transaction: Transaction) -> (PhaseTx, ReturnSlot) {
    let back = Arc::default();
    let slot = ReturnSlot(Arc::clone(&back));
    (PhaseTx { transaction: Some(transaction), back }, slot)
}

impl ReturnSlot {
    /// The transaction, if its phase has dropped it.
    pub(super) fn take(&self) -> Option<Transaction> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Deref for PhaseTx {
    type Target = Transaction;

    fn deref(&self) -> &Transaction {
        match &self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("it is only taken by the drop"),
        }
    }
}

impl DerefMut for PhaseTx {
    fn deref_mut(&mut self) -> &mut Transaction {
        match &mut self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("it is only taken by the drop"),
        }
    }
}

impl Drop for PhaseTx {
    fn drop(&mut self) {
        *self.back.lock().unwrap_or_else(PoisonError::into_inner) = self.transaction.take();
    }
}

impl std::fmt::Debug for PhaseTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PhaseTx").finish_non_exhaustive()
    }
}
