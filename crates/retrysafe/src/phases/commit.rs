//! How do the writes of a phase and its recovery point become one commit?
//!
//! The transaction is bound to the attempt by its first statement, and the guarded write of the recovery point is
//! its last one. A lost lease makes it fail, and everything that the phase did is rolled back with it.
//!
//! | what happened | what follows |
//! | --- | --- |
//! | the phase returned an error or panicked | rolled back; the next run goes on here |
//! | a deadlock, a serialization failure, a lock that was not had in time | rolled back and repeated: nothing outside has run |
//! | the guarded write was refused | rolled back; the record is read, and says who goes on |
//! | COMMIT was refused by the server | rolled back, as the error says |
//! | COMMIT without an answer | the record is read: the phase is over, or is repeated |
//!
//! A COMMIT that lands after the record was read does no harm: the repeated phase starts from a recovery point
//! that is not there any more, and its own guarded write is refused.

use std::error::Error;

use bytes::Bytes;
use http::Response;
use retrysafe_core::engine::{MovedIn, NotSettled};
use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::machine::flows::FlowStep;
use retrysafe_core::record::{Answer, Outcome};
use retrysafe_core::response::StoredResponse;
use sqlx::AssertSqlSafe;

use super::PhaseError;
use super::end::FlowEnd;
use super::flow::{Next, TxWork};
use super::runner::{AfterPhase, HeldLease, Runner, panicked, pause_before, too_large};
use super::transaction::{Transaction, lend};
use crate::layer::{BootMoment, catch_panic};

/// How often a phase is begun in one run. A deadlock that comes back as often is a fault of the
/// statements, and is told to whoever runs the flow.
const TRIES_MAX: u32 = 6;

/// The SQLSTATEs of what others are to blame for: serialization failures, deadlocks, and locks that were not
/// had in time.
const CONFLICTS: [&str; 3] = ["40001", "40P01", "55P03"];

/// The classes of SQLSTATEs with which a server may end a connection after it has committed.
const ENDS_OF_CONNECTIONS: [&str; 2] = ["08", "57"];

/// What became of one try.
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
enum Tried {
    /// The phase is over, and its commit is acknowledged.
    Moved(HeldMove),
    /// The flow is over, and its commit is acknowledged.
    Answered(StoredResponse),
    /// Rolled back, and not by a fault of the phase.
    Conflict(PhaseError),
    /// Rolled back by the phase's own error.
    Failed(PhaseError),
    /// The record must be read before anything is decided.
    InDoubt(PhaseError),
}

struct HeldMove {
    moved: MovedIn,
    asked_at: BootMoment,
}

impl Runner {
    /// Runs a phase that is a transaction.
    pub(super) async fn run_transaction(
        &self,
        mut held: HeldLease,
        phase: u16,
        name: &'static str,
        work: &TxWork,
    ) -> AfterPhase {
        let mut tried = 0;
        loop {
            let error = match self.try_transaction(&held, phase, work).await {
                Tried::Moved(HeldMove { moved, asked_at }) => {
                    return Ok(HeldLease { lease: held.lease.committed(moved), asked_at });
                }
                Tried::Answered(response) => return Err(Ok(FlowEnd::Answered(response))),
                Tried::Failed(error) => return Err(self.give_back(held, name, error).await),
                Tried::Conflict(error) => error,
                Tried::InDoubt(error) => {
                    tracing::warn!(target: "retrysafe", phase = name, %error, "phase_in_doubt");
                    held = self.read_back(held).await?;
                    if held.point() != Some(RecoveryPoint::Before(phase)) {
                        return Ok(held);
                    }
                    error
                }
            };
            tried += 1;
            if tried == TRIES_MAX {
                return Err(self.give_back(held, name, error).await);
            }
            pause_before(tried).await;
        }
    }

    async fn try_transaction(&self, held: &HeldLease, phase: u16, work: &TxWork) -> Tried {
        let Some(progress) = held.lease.flow() else { return Tried::Failed(no_flow()) };
        let mut tx = match self.begin_transaction().await {
            Ok(tx) => tx,
            Err(error) => return Tried::Failed(error.into()),
        };
        let id = held.lease.id();
        if let Err(error) = self.engine.guard_in(&mut tx, id, held.lease.fence()).await {
            roll_back(tx).await;
            return refused(error.into());
        }
        let (lent, slot) = lend(tx);
        let worked =
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(lent, progress))) {
                Ok(Ok(working)) => match catch_panic(working).await {
                    Ok(worked) => worked,
                    Err(panic) => Err(panicked(&*panic)),
                },
                Ok(Err(error)) => Err(error),
                Err(panic) => Err(panicked(&*panic)),
            };
        let Some(mut tx) = slot.take() else { return Tried::Failed(given_away()) };
        match worked {
            Err(error) => {
                roll_back(tx).await;
                if is_conflict(&*error) { Tried::Conflict(error) } else { Tried::Failed(error) }
            }
            Ok(Next::Done(output)) if !progress.has_room_for(&output) => {
                roll_back(tx).await;
                Tried::Failed(too_large())
            }
            Ok(Next::Done(output)) => {
                let step = FlowStep::Commit { phase, output };
                let asked_at = BootMoment::now();
                match self.engine.advance_in(&mut tx, &held.lease, &step).await {
                    Ok(moved) => match commit(tx).await {
                        None => Tried::Moved(HeldMove { moved, asked_at }),
                        Some(tried) => tried,
                    },
                    Err(error) => not_written(tx, error).await,
                }
            }
            Ok(Next::Respond(response)) => {
                let Some(stored) = self.keep(response) else {
                    roll_back(tx).await;
                    return Tried::Failed("the answer is larger than `response_bytes_max`".into());
                };
                let outcome = Outcome::Completed(Answer::Kept(stored.clone()));
                match self.engine.settle_in(&mut tx, &held.lease, &outcome).await {
                    Ok(_) => commit(tx).await.unwrap_or(Tried::Answered(stored)),
                    Err(error) => not_written(tx, error).await,
                }
            }
        }
    }

    /// What is kept of an answer; none if it is too large.
    pub(super) fn keep(&self, response: Response<Bytes>) -> Option<StoredResponse> {
        let (parts, body) = response.into_parts();
        let fits = body.len() <= self.policy.response_bytes_max;
        let set_cookie = self.policy.keep_set_cookie;
        fits.then(|| StoredResponse::keep(parts.status, &parts.headers, body, set_cookie))
    }

    /// Begins a transaction that ends before the lease does, whatever its owner does: the lock of a stopped
    /// owner must not hold its successor.
    async fn begin_transaction(&self) -> Result<Transaction, sqlx::Error> {
        let limit_ms = (self.policy.lease / 2).as_millis().max(1);
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{limit_ms}ms'; \
             SET LOCAL idle_in_transaction_session_timeout = '{limit_ms}ms'"
        );
        self.pool.begin_with(AssertSqlSafe(begin)).await
    }
}

/// Commits. None if that is acknowledged.
async fn commit(tx: Transaction) -> Option<Tried> {
    let error = tx.commit().await.err()?;
    let code = error.as_database_error().and_then(|told| told.code());
    let is_refused = code
        .as_ref()
        .is_some_and(|code| !ENDS_OF_CONNECTIONS.iter().any(|class| code.starts_with(class)));
    if !is_refused {
        return Some(Tried::InDoubt(error.into()));
    }
    let error: PhaseError = error.into();
    Some(if is_conflict(&*error) { Tried::Conflict(error) } else { Tried::Failed(error) })
}

/// The guarded write was refused. Nothing of the transaction can be committed.
async fn not_written(tx: Transaction, error: NotSettled) -> Tried {
    roll_back(tx).await;
    let NotSettled::Store(error) = error else {
        return Tried::InDoubt("the record is not this owner's any more, or has moved on".into());
    };
    refused(error.into())
}

/// A statement of ours was refused: by a conflict, by the loss of the lease, or by a server that is away.
fn refused(error: PhaseError) -> Tried {
    if is_conflict(&*error) { Tried::Conflict(error) } else { Tried::InDoubt(error) }
}

/// Whether an error is, or comes from, a conflict with others.
fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let told = error.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
        if told.and_then(|told| told.code()).is_some_and(|code| CONFLICTS.contains(&&*code)) {
            return true;
        }
        next = error.source();
    }
    false
}

async fn roll_back(tx: Transaction) {
    // A connection that cannot even roll back is closed, and the server rolls back.
    let _ = tx.rollback().await;
}

fn no_flow() -> PhaseError {
    "the record has no flow".into()
}

fn given_away() -> PhaseError {
    "the phase has given its transaction away; it must drop the transaction before it ends".into()
}
