//! How does a phase get its transaction, and how is it taken back?
//!
//! The phase owns its [`PhaseTx`] while it works, so that no lifetime stands in its signature. When it is
//! dropped, the transaction lies in a slot, where whoever lent it finds it. A phase that gives it away,
//! to a task of its own for instance, leaves the slot empty; then nothing is committed.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection as _, Database, PgConnection, PgPool, Postgres};
use sqlx_core::transaction::TransactionManager;

type PgTransactions = <Postgres as Database>::TransactionManager;

/// A transaction on a connection of a pool. Dropped, it is rolled back.
///
/// The driver has a type for this too. Where a BEGIN fails that carries more statements with it, or is given up, that
/// type returns a connection to the pool which is still inside the transaction.
pub(super) struct OpenTransaction(PoolConnection<Postgres>);

/// A connection that may be inside a transaction or not. Dropped, it is closed.
struct UncertainConnection(Option<PoolConnection<Postgres>>);

/// The transaction of one phase. What is done in it is committed together with the recovery point, or not
/// at all. It cannot be committed by hand: it is bound to its phase.
pub struct PhaseTx {
    /// Always there until the drop.
    transaction: Option<OpenTransaction>,
    back: Arc<Mutex<Option<OpenTransaction>>>,
}

/// Where a transaction is once its phase has dropped it.
pub(super) struct ReturnSlot(Arc<Mutex<Option<OpenTransaction>>>);

/// Lends a transaction to a phase.
pub(super) fn lend(transaction: OpenTransaction) -> (PhaseTx, ReturnSlot) {
    let back = Arc::default();
    let slot = ReturnSlot(Arc::clone(&back));
    (PhaseTx { transaction: Some(transaction), back }, slot)
}

impl OpenTransaction {
    /// Begins one with these statements, the first of which is a BEGIN: one message.
    pub(super) async fn begin(pool: &PgPool, statements: String) -> sqlx::Result<Self> {
        let mut uncertain = UncertainConnection(Some(pool.acquire().await?));
        if let Some(connection) = &mut uncertain.0 {
            let begun = connection.begin_with(AssertSqlSafe(statements)).await;
            // Its handle borrows the connection, and would roll back here. From now on this type does that.
            begun.map(std::mem::forget)?;
        }
        uncertain.0.take().map(Self).ok_or(sqlx::Error::BeginFailed)
    }

    /// Rolls back, and waits for it.
    pub(super) async fn roll_back(mut self) {
        // A connection that cannot even roll back is closed, and the server rolls back.
        let _ = PgTransactions::rollback(&mut self.0).await;
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        // A savepoint that the phase has not ended counts as one more.
        while PgTransactions::get_transaction_depth(&self.0) > 0 {
            PgTransactions::start_rollback(&mut self.0);
        }
    }
}

impl Drop for UncertainConnection {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

impl Deref for OpenTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for OpenTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

impl ReturnSlot {
    /// The transaction, if its phase has dropped it.
    pub(super) fn take(&self) -> Option<OpenTransaction> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Deref for PhaseTx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match &self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("it is only taken by the drop"),
        }
    }
}

impl DerefMut for PhaseTx {
    fn deref_mut(&mut self) -> &mut PgConnection {
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
