//! What does it mean to begin and to settle inside the application's transaction?
//!
//! The same verbs over a [`Transactional`] store. Nothing they say holds before the transaction is
//! committed, and a lost fence makes the transaction fail.

use std::time::Duration;

use super::begin::{InTransaction, begin_over};
use super::{Ask, Begun, Engine, Lease, Prints, RACES_MAX};
use crate::machine::{self, Decision, Settle};
use crate::record::{Fence, Outcome, Record};
use crate::scope::Id;
use crate::store::{Stamped, Store, StoreError, StoreErrorKind, Swapped, Transactional};
use crate::time::Time;

/// Why a settle inside the caller's transaction does not hold.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotSettled {
    /// Somebody else has decided. The transaction can only be rolled back.
    Lost,
    /// The store's failure.
    Store(StoreError),
}

impl std::fmt::Display for NotSettled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost => f.write_str("the lease was lost; the transaction is refused"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NotSettled {}

impl<S: Store> Engine<S> {
    /// As [`begin`](Self::begin), inside the caller's transaction: for work that is nothing but
    /// writes of that transaction. The lease is worth nothing unless the transaction commits, so
    /// nothing outside of it may be done on the strength of it; duplicates that arrive meanwhile
    /// are told that the store is busy.
    ///
    /// # Errors
    ///
    /// The store's. The transaction is to be rolled back.
    pub async fn begin_in<T: Send, P: Prints + ?Sized>(
        &self,
        tx: &mut T,
        ask: &Ask<'_, P>,
    ) -> Result<Begun, StoreError>
    where
        S: Transactional<T>,
    {
        begin_over(&mut InTransaction { store: &self.store, tx }, ask.id(), ask, &[], None).await
    }

    /// Binds the caller's transaction to an attempt, as its first statement: it cannot be committed
    /// without a [settle](Self::settle_in) in it, not even by rolling back to a savepoint what a
    /// refused settle has left behind. A settle as retryable does not count: what the transaction
    /// commits would be done again.
    ///
    /// # Errors
    ///
    /// The store's: the lease was lost, or the transaction is in a savepoint already. The transaction
    /// is to be rolled back.
    pub async fn guard_in<T: Send>(
        &self,
        tx: &mut T,
        id: Id,
        fence: Fence,
    ) -> Result<(), StoreError>
    where
        S: Transactional<T>,
    {
        self.store.guard_in(tx, id, fence).await
    }

    /// Settles inside the caller's transaction: the outcome holds if and only if that commits. On a
    /// lost fence the transaction is made to fail, so that work of a late owner cannot be committed;
    /// where savepoints are in use, only a [guard](Self::guard_in) makes sure of that.
    ///
    /// The lease stays with the caller. If the transaction was rolled back, that is proof of
    /// non-execution, and the lease is to be settled as retryable; if its commit was ambiguous, the
    /// record says which it was.
    ///
    /// # Errors
    ///
    /// See [`NotSettled`]. The transaction is to be rolled back.
    pub async fn settle_in<T: Send>(
        &self,
        tx: &mut T,
        lease: &Lease,
        outcome: &Outcome,
    ) -> Result<Record, NotSettled>
    where
        S: Transactional<T>,
    {
        let seen = (Some(lease.record.clone()), lease.granted_at);
        let point = lease.record.recovery_point();
        let event = Settle { fence: lease.fence, outcome, ttl: lease.ttl, point };
        self.settle_from_in(tx, seen, &event).await
    }

    /// As [`settle_in`](Self::settle_in), for an owner that has only its record's name and fence: a
    /// handler whose lease is held by the layer around it. A flow cannot be completed so: only the
    /// holder of its lease knows its recovery point.
    ///
    /// # Errors
    ///
    /// See [`NotSettled`]. The transaction is to be rolled back.
    pub async fn settle_fenced_in<T: Send>(
        &self,
        tx: &mut T,
        id: Id,
        fence: Fence,
        ttl: Option<Duration>,
        outcome: &Outcome,
    ) -> Result<Record, NotSettled>
    where
        S: Transactional<T>,
    {
        let Stamped { now, value } = self.store.load(id).await.map_err(NotSettled::Store)?;
        let event = Settle { fence, outcome, ttl, point: None };
        self.settle_from_in(tx, (value, now), &event).await
    }

    async fn settle_from_in<T: Send>(
        &self,
        tx: &mut T,
        (mut current, mut now): (Option<Record>, Time),
        event: &Settle<'_>,
    ) -> Result<Record, NotSettled>
    where
        S: Transactional<T>,
    {
        for _ in 0..RACES_MAX {
            let write = machine::decide(current.as_ref(), event, now).and_then(Decision::write);
            let (Some(write), Some(record)) = (write, current.take()) else {
                // Even the same answer again is refused: it was settled by another transaction, and
                // the work of this one would be the second.
                self.store
                    .refuse_in(tx, "the lease was lost; nothing of this may be committed")
                    .await;
                return Err(NotSettled::Lost);
            };
            let answer = self.store.swap_in(tx, record, write).await.map_err(NotSettled::Store)?;
            now = answer.now;
            match answer.value {
                Swapped::Done(record) => return Ok(record),
                Swapped::Lost(record) => current = record,
            }
        }
        Err(NotSettled::Store(StoreError::not_applied(StoreErrorKind::Broken)))
    }
}
