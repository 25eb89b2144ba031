//! Who has the transaction of a request?
//!
//! There is one at the most. It is begun for whoever asks first, goes back to its slot when its [`Tx`] is dropped, and
//! is given out again from there. Two at a time would be two commits, and only one of them has the answer in it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::FromRequestParts;
use axum::response::Response;
use http::request::Parts;
use retrysafe_core::Engine;
use retrysafe_core::policy::{Policy, Said};
use retrysafe_core::problem::Refusal;
use sqlx::PgPool;

use super::{Transaction, Transactions, failed, refused};
use crate::layer::Attempt;
use crate::stores::postgres::PostgresStore;

/// The transaction of one request. What is done in it is committed with the answer, or not at all.
pub struct Tx {
    /// There from the end of the extraction to the drop.
    transaction: Option<Transaction>,
    slot: Slot,
}

/// Where the transaction of one request is asked for and given back.
#[derive(Clone)]
pub(super) struct Slot {
    pool: PgPool,
    engine: Engine<PostgresStore>,
    policy: Arc<Policy>,
    place: Arc<Mutex<TransactionPlace>>,
}

/// Where the transaction of one request is.
#[derive(Default)]
pub(super) enum TransactionPlace {
    /// Nobody has asked for it.
    #[default]
    Nowhere,
    /// A [`Tx`] has it.
    Lent,
    /// It was given back, with what was done in it.
    Parked(Transaction),
    /// The request is over.
    Closed,
}

impl Slot {
    pub(super) fn new(transactions: &Transactions) -> Self {
        Self {
            pool: transactions.pool.clone(),
            engine: transactions.engine.clone(),
            policy: Arc::clone(&transactions.policy),
            place: Arc::default(),
        }
    }

    fn place(&self) -> MutexGuard<'_, TransactionPlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_lent(&self) -> bool {
        matches!(*self.place(), TransactionPlace::Lent)
    }

    /// Gives the transaction out, or the place for one that is still to be begun. None if it cannot be had.
    fn lend(&self) -> Option<Tx> {
        let mut place = self.place();
        let transaction = match std::mem::replace(&mut *place, TransactionPlace::Lent) {
            TransactionPlace::Nowhere => None,
            TransactionPlace::Parked(transaction) => Some(transaction),
            TransactionPlace::Lent => return None,
            TransactionPlace::Closed => {
                *place = TransactionPlace::Closed;
                return None;
            }
        };
        Some(Tx { transaction, slot: self.clone() })
    }

    /// The request is over: what is given back from here on is undone.
    pub(super) fn close(&self) -> TransactionPlace {
        std::mem::replace(&mut *self.place(), TransactionPlace::Closed)
    }
}

impl Deref for Tx {
    type Target = Transaction;

    fn deref(&self) -> &Transaction {
        match &self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("nobody has it before it is begun"),
        }
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut Transaction {
        match &mut self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("nobody has it before it is begun"),
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let mut place = self.slot.place();
        if matches!(*place, TransactionPlace::Lent) {
            *place =
                self.transaction.take().map_or(TransactionPlace::Nowhere, TransactionPlace::Parked);
        }
    }
}

impl std::fmt::Debug for Tx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

/// Refuses with 500 where the middleware is missing or another `Tx` of the request is in use, and with 503 where
/// the pool has no connection.
impl<S: Send + Sync> FromRequestParts<S> for Tx {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let Some(slot) = parts.extensions.get::<Slot>().cloned() else {
            let told = "this handler needs a transaction: is the middleware there";
            return Err(refused(&Refusal::HandlerFailed(told), &Policy::default()));
        };
        let Some(mut tx) = slot.lend() else {
            let told = "this request has one transaction, and it is in use or over: take one Tx";
            let mut told = refused(&Refusal::HandlerFailed(told), &slot.policy);
            told.extensions_mut().insert(Said::Retryable);
            return Err(told);
        };
        if tx.transaction.is_some() {
            return Ok(tx);
        }
        // Nothing was begun, so nothing was done.
        let mut transaction =
            slot.pool.begin().await.map_err(|error| failed(&error, &slot.policy))?;
        // Nobody but the end of the request may commit it, by hand or past a savepoint.
        if let Some(attempt) = parts.extensions.get::<Attempt>() {
            let guarded = slot.engine.guard_in(&mut transaction, attempt.id(), attempt.fence());
            guarded.await.map_err(|error| failed(&error, &slot.policy))?;
        }
        tx.transaction = Some(transaction);
        Ok(tx)
    }
}
