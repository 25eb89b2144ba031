//! How does a caller come to execute, or to its answer?
//!
//! One loop for a begin on its own and for one inside the application's transaction: insert, and
//! where a record is there already, ask the machine what it means for this caller.

use std::future::Future;

use super::{Ask, Begun, Engine, Lease, Prints, RACES_MAX};
use crate::flow::{FlowProgress, FlowVersion};
use crate::machine::{self, BeginDecision};
use crate::record::{First, Record, Write};
use crate::scope::Id;
use crate::store::{Inserted, Stamped, Store, StoreError, StoreErrorKind, Swapped, Transactional};
use crate::time::Time;

/// Where a begin is written.
pub(super) trait Reservations {
    /// As [`Store::insert`].
    fn insert(
        &mut self,
        first: First,
    ) -> impl Future<Output = Result<Stamped<Inserted>, StoreError>> + Send;

    /// As [`Store::swap`].
    fn swap(
        &mut self,
        from: Record,
        write: Write,
    ) -> impl Future<Output = Result<Stamped<Swapped>, StoreError>> + Send;
}

/// In the store itself.
pub(super) struct Directly<'a, S>(pub(super) &'a S);

/// Inside the application's transaction.
pub(super) struct InTransaction<'a, S, T> {
    pub(super) store: &'a S,
    pub(super) tx: &'a mut T,
}

impl<S: Store> Reservations for Directly<'_, S> {
    fn insert(
        &mut self,
        first: First,
    ) -> impl Future<Output = Result<Stamped<Inserted>, StoreError>> + Send {
        self.0.insert(first)
    }

    fn swap(
        &mut self,
        from: Record,
        write: Write,
    ) -> impl Future<Output = Result<Stamped<Swapped>, StoreError>> + Send {
        self.0.swap(from, write)
    }
}

impl<S: Transactional<T>, T: Send> Reservations for InTransaction<'_, S, T> {
    fn insert(
        &mut self,
        first: First,
    ) -> impl Future<Output = Result<Stamped<Inserted>, StoreError>> + Send {
        self.store.insert_in(self.tx, first)
    }

    fn swap(
        &mut self,
        from: Record,
        write: Write,
    ) -> impl Future<Output = Result<Stamped<Swapped>, StoreError>> + Send {
        self.store.swap_in(self.tx, from, write)
    }
}

impl<S: Store> Engine<S> {
    /// What a [begin](Self::begin_flow) of this request would be answered now, for whoever may not execute it. None: the request
    /// would be executed. Nothing is written: a lease that is over is left to the sweeper.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn look_before_begin<P: Prints + ?Sized>(
        &self,
        id: Id,
        ask: &Ask<'_, P>,
        flows: &[FlowVersion],
    ) -> Result<Option<Begun>, StoreError> {
        let Stamped { now, value: record } = self.store.load(id).await?;
        let begin = ask.begin(record.as_ref(), flows);
        Ok(match machine::decide_begin(record, &begin, now) {
            BeginDecision::Insert | BeginDecision::Execute(..) => None,
            BeginDecision::Mismatch => Some(Begun::Mismatch),
            BeginDecision::CredentialChanged => Some(Begun::CredentialChanged),
            BeginDecision::InProgress(until) => Some(Begun::InProgress(now.until(until))),
            BeginDecision::Held(flow) => Some(Begun::Held(flow)),
            BeginDecision::Replay(answer, facts) => Some(Begun::Replay(answer, facts)),
            BeginDecision::Unknown(head) => Some(Begun::Unknown(head)),
            BeginDecision::Doubt(record, _) => Some(Begun::Unknown(record.state.head().cloned())),
        })
    }
}

pub(super) async fn begin_over<P: Prints + ?Sized>(
    reservations: &mut impl Reservations,
    id: Id,
    ask: &Ask<'_, P>,
    flows: &[FlowVersion],
    start: Option<&FlowProgress>,
) -> Result<Begun, StoreError> {
    let mut known: Option<(Record, Time)> = None;
    for _ in 0..RACES_MAX {
        let (record, now) = match known.take() {
            Some(seen) => seen,
            None => {
                let Stamped { now, value } = reservations.insert(ask.first(id, start)).await?;
                match value {
                    Inserted::New(record) => return Ok(Begun::Execute(Lease::new(record, now))),
                    Inserted::Exists(record) => (record, now),
                }
            }
        };
        let begin = ask.begin(Some(&record), flows);
        let lost = match machine::decide_begin(Some(record), &begin, now) {
            BeginDecision::Insert => continue,
            BeginDecision::Mismatch => return Ok(Begun::Mismatch),
            BeginDecision::CredentialChanged => return Ok(Begun::CredentialChanged),
            BeginDecision::InProgress(until) => return Ok(Begun::InProgress(now.until(until))),
            BeginDecision::Held(flow) => return Ok(Begun::Held(flow)),
            BeginDecision::Replay(answer, facts) => return Ok(Begun::Replay(answer, facts)),
            BeginDecision::Unknown(head) => return Ok(Begun::Unknown(head)),
            BeginDecision::Execute(record, write) => {
                let Stamped { now, value } = reservations.swap(record, write).await?;
                match value {
                    Swapped::Done(record) => return Ok(Begun::Execute(Lease::new(record, now))),
                    Swapped::Lost(current) => (current, now),
                }
            }
            BeginDecision::Doubt(record, write) => {
                let head = record.state.head().cloned();
                match reservations.swap(record, write).await {
                    Ok(Stamped { now, value: Swapped::Lost(current) }) => (current, now),
                    // The lease is over, whether that could be noted or not. An error would say that
                    // nothing has begun, and a caller that fails open would execute.
                    Ok(Stamped { value: Swapped::Done(_), .. }) | Err(_) => {
                        return Ok(Begun::Unknown(head));
                    }
                }
            }
        };
        known = lost.0.map(|record| (record, lost.1));
    }
    Err(StoreError::not_applied(StoreErrorKind::Broken))
}
