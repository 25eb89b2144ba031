//! How do the writes of a phase and its recovery point become one commit?
//!
//! The transaction is bound to the attempt by its first statement, and the guarded write of the recovery point is
//! its last one. A lost lease makes it fail, and everything that the phase did is rolled back with it.
//!
//! | what happened | what follows |
//! | --- | --- |
//! | the phase returned an error or panicked, or took too long | rolled back; the next run goes on here |
//! | the phase has ended its transaction by itself, whatever it says | unknown: what it did may be committed, and nobody can undo it |
//! | a deadlock, a serialization failure, a lock that was not had in time | rolled back and repeated: nothing outside has run |
//! | the guarded write was refused | rolled back; the record is read, and says who goes on |
//! | COMMIT was refused by the server | rolled back, as the error says |
//! | COMMIT without an answer | the record is read: the phase is over, or is repeated |
//!
//! A COMMIT that lands after the record was read does no harm: the repeated phase starts from a recovery point
//! that is not there any more, and its own guarded write is refused.
//!
//! On its first try a phase costs two messages besides its own statements: BEGIN and the guard are one, the guarded write
//! and COMMIT are the other. If that fails, for whatever reason, the next try sends one statement at a time and looks at
//! every answer.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::engine::{MovedIn, NotSettled, Settled};
use retrysafe_core::flow::{FlowProgress, RecoveryPoint};
use retrysafe_core::machine::flows::FlowStep;
use retrysafe_core::record::{Doubt, Outcome};
use sqlx::{AssertSqlSafe, PgConnection};

use super::PhaseError;
use super::end::{FlowAnswer, FlowEnd};
use super::flow::{Next, TxWork};
use super::runner::{
    AfterPhase, HeldLease, RunEnd, Runner, owned_by_another, panicked, pause_before, too_large,
};
use super::transaction::{OpenTransaction, lend};
use crate::layer::{BootMoment, catch_panic};
use crate::stores::postgres::{
    ApplicationTransaction, LastStatement, TransactionRemains, remains_of,
};

/// How often a phase is begun in one run. A deadlock that comes back as often is a fault of the
/// statements, and is told to whoever runs the flow.
const TRIES_MAX: u32 = 6;

/// The SQLSTATEs of what others are to blame for: serialization failures, deadlocks, and locks that were not
/// had in time.
const CONFLICTS: [&str; 3] = ["40001", "40P01", "55P03"];

/// The classes of SQLSTATEs after which only the record says what holds: the server may end a connection after it has
/// committed, and our own errors say that the lease may be lost.
const DOUBTFUL_CLASSES: [&str; 3] = ["08", "57", "RS"];

/// Our own error that is the phase's fault: it has ended its transaction by itself.
const TRANSACTION_ENDED: &str = "RS012";

/// Ends the transaction, and leaves the connection inside the next one: the driver still counts one, which is rolled back
/// while the connection goes back to its pool.
const COMMIT: &str = "COMMIT AND CHAIN";

/// How many bytes of a flow and its answer are sent as text, twice as long as they are. More is sent as it is, in a message
/// of its own.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// What share of the lease a transaction may take, from its begin to its last statement; and its COMMIT in turn. Both are
/// inside the lease, and a renewal comes in between.
const WORK_SHARE: u32 = 2;
const COMMIT_SHARE: u32 = 4;

/// What share of the lease the server lets a statement run, a lock be waited for, and the transaction be idle. It is less than
/// that of the whole: whoever waits for the lock of a stopped owner gets to a second try.
const STATEMENT_SHARE: u32 = 3;

/// What became of one try.
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
enum Tried {
    /// The phase is over, and its commit is acknowledged.
    Moved(HeldMove),
    /// The flow is over, and its commit is acknowledged.
    Answered(FlowEnd),
    /// Rolled back, and not by a fault of the phase.
    Conflict(PhaseError),
    /// Rolled back by the phase's own error.
    Failed(PhaseError),
    /// The phase has ended its transaction by itself. Nobody knows what it did after that.
    CommittedAlone(PhaseError),
    /// The record must be read before anything is decided.
    InDoubt(PhaseError),
}

struct HeldMove {
    moved: MovedIn,
    asked_at: BootMoment,
}

/// What a commit makes true.
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
enum ToCommit {
    /// The recovery point moves.
    Move(HeldMove),
    /// The flow ends, and its caller is given this.
    Answer(FlowEnd),
}

/// How the guarded write and the COMMIT are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitWay {
    /// As one message.
    Together,
    /// One statement at a time.
    StepByStep,
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
        let mut way = CommitWay::Together;
        // A COMMIT of this run may land late: then a failure of the phase is no proof that nothing of it is there.
        let mut was_in_doubt = false;
        loop {
            let error = match self.try_transaction(&held, phase, work, way).await {
                Tried::Moved(HeldMove { moved, asked_at }) => {
                    return Ok(HeldLease { lease: held.lease.committed(moved), asked_at });
                }
                Tried::Answered(end) => return Err(Ok(end)),
                Tried::Failed(error) => {
                    if was_in_doubt {
                        held = self.read_back(held).await?;
                        if held.point() != Some(RecoveryPoint::Before(phase)) {
                            return Ok(held);
                        }
                    }
                    return Err(self.give_back(held, name, error).await);
                }
                Tried::CommittedAlone(error) => {
                    return Err(self.committed_alone(held, name, error).await);
                }
                Tried::Conflict(error) => error,
                Tried::InDoubt(error) => {
                    tracing::warn!(target: "retrysafe", phase = name, %error, "phase_in_doubt");
                    held = self.read_back(held).await?;
                    if held.point() != Some(RecoveryPoint::Before(phase)) {
                        return Ok(held);
                    }
                    was_in_doubt = true;
                    error
                }
            };
            tried += 1;
            if tried == TRIES_MAX {
                return Err(self.give_back(held, name, error).await);
            }
            way = CommitWay::StepByStep;
            pause_before(tried).await;
        }
    }

    /// A phase has ended its transaction by itself. To go on could do its work once more, so somebody has to look at it.
    async fn committed_alone(
        &self,
        held: HeldLease,
        phase: &'static str,
        error: PhaseError,
    ) -> RunEnd {
        tracing::error!(target: "retrysafe", phase, %error, "phase_committed_alone");
        match self.settle(held.lease, &Outcome::Unknown(Doubt::CommittedAlone)).await? {
            Settled::Done(_) => Ok(FlowEnd::Unknown),
            Settled::Lost { .. } => Ok(owned_by_another()),
        }
    }

    /// One try, within its time. A transaction that takes longer is dropped where it waits, and so rolled back; the server
    /// ends it by itself if it does not hear of that.
    async fn try_transaction(
        &self,
        held: &HeldLease,
        phase: u16,
        work: &TxWork,
        way: CommitWay,
    ) -> Tried {
        let work_limit = self.policy.lease / WORK_SHARE;
        let working = self.work_in_transaction(held, work);
        let (tx, next) = match tokio::time::timeout(work_limit, working).await {
            Ok(Ok(worked)) => worked,
            Ok(Err(tried)) => return tried,
            Err(_) => return Tried::Failed(takes_too_long(work_limit)),
        };
        let commit_limit = self.policy.lease / COMMIT_SHARE;
        let committing = self.commit_phase(held, phase, tx, next, way);
        match tokio::time::timeout(commit_limit, committing).await {
            Ok(Ok(ToCommit::Move(moved))) => Tried::Moved(moved),
            Ok(Ok(ToCommit::Answer(end))) => Tried::Answered(end),
            Ok(Err(tried)) => tried,
            // It may be applied by now, or later.
            Err(_) => Tried::InDoubt(takes_too_long(commit_limit)),
        }
    }

    /// Everything up to the guarded write.
    async fn work_in_transaction(
        &self,
        held: &HeldLease,
        work: &TxWork,
    ) -> Result<(OpenTransaction, Next<Bytes>), Tried> {
        let Some(progress) = held.lease.flow() else { return Err(Tried::Failed(no_flow())) };
        let tx = self.enter_phase(held).await?;
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
        let Some(mut tx) = slot.take() else { return Err(Tried::Failed(given_away())) };
        let error = match worked {
            Ok(Next::Done(output)) if !progress.has_room_for(&output) => too_large(),
            Ok(next) => return Ok((tx, next)),
            Err(error) => error,
        };
        let remains = remains_of(&mut tx, Some(held.lease.id())).await;
        tx.roll_back().await;
        Err(match remains {
            TransactionRemains::Ended => Tried::CommittedAlone(error),
            TransactionRemains::Open | TransactionRemains::Aborted if is_conflict(&*error) => {
                Tried::Conflict(error)
            }
            TransactionRemains::Open | TransactionRemains::Aborted => Tried::Failed(error),
        })
    }

    /// Begins a transaction that is bound to this attempt, and that ends before the lease does, whatever its owner does:
    /// the lock of a stopped owner must not hold its successor.
    async fn enter_phase(&self, held: &HeldLease) -> Result<OpenTransaction, Tried> {
        let (id, fence) = (held.lease.id(), held.lease.fence().0);
        let limit_ms = (self.policy.lease / STATEMENT_SHARE).as_millis().max(1);
        // As text, in one message: nothing of it is from outside.
        let statements = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
             SELECT retrysafe.enter_phase_v1(E'\\\\x{id}', {fence}, {limit_ms})"
        );
        OpenTransaction::begin(&self.pool, statements).await.map_err(|error| {
            let is_told = error.as_database_error().is_some();
            if is_told { refused(error.into()) } else { Tried::Failed(error.into()) }
        })
    }

    /// Moves the record, and commits.
    async fn commit_phase(
        &self,
        held: &HeldLease,
        phase: u16,
        mut tx: OpenTransaction,
        next: Next<Bytes>,
        way: CommitWay,
    ) -> Result<ToCommit, Tried> {
        // It makes sure that this is still the transaction in which the phase was entered.
        let leave = format!("SELECT retrysafe.leave_phase_v1(E'\\\\x{}')", held.lease.id());
        let written = if way == CommitWay::Together && is_small(held, &next) {
            self.write_in(&mut LastStatement::after(leave, &mut tx), held, phase, next).await
        } else {
            self.write_and_commit(&mut tx, leave, held, phase, next).await
        };
        match written {
            Ok(to_commit) => Ok(to_commit),
            Err(error) => {
                tx.roll_back().await;
                Err(error)
            }
        }
    }

    async fn write_and_commit(
        &self,
        tx: &mut PgConnection,
        leave: String,
        held: &HeldLease,
        phase: u16,
        next: Next<Bytes>,
    ) -> Result<ToCommit, Tried> {
        run_text(tx, leave).await?;
        let to_commit = self.write_in(tx, held, phase, next).await?;
        run_text(tx, COMMIT.to_owned()).await?;
        Ok(to_commit)
    }

    /// The guarded write.
    async fn write_in<T: ApplicationTransaction>(
        &self,
        tx: &mut T,
        held: &HeldLease,
        phase: u16,
        next: Next<Bytes>,
    ) -> Result<ToCommit, Tried> {
        match next {
            Next::Done(output) => {
                let step = FlowStep::Commit { phase, output };
                let asked_at = BootMoment::now();
                let moved = self.engine.advance_in(tx, &held.lease, &step).await;
                moved.map(|moved| ToCommit::Move(HeldMove { moved, asked_at }))
            }
            Next::Respond(response) => {
                let FlowAnswer { kept, given } = FlowAnswer::new(response, &self.policy);
                let outcome = Outcome::Completed(kept);
                let settled = self.engine.settle_in(tx, &held.lease, &outcome).await;
                settled.map(|_| ToCommit::Answer(given))
            }
        }
        .map_err(not_written)
    }
}

/// Whether the guarded write goes as text without being long.
fn is_small(held: &HeldLease, next: &Next<Bytes>) -> bool {
    let flow = held.lease.flow().map_or(0, FlowProgress::bytes);
    let added = match next {
        Next::Done(output) => output.len(),
        Next::Respond(response) => response.body().len(),
    };
    flow.saturating_add(added) <= TEXT_BYTES_MAX
}

async fn run_text(tx: &mut PgConnection, statement: String) -> Result<(), Tried> {
    let ran = sqlx::raw_sql(AssertSqlSafe(statement)).execute(tx).await;
    ran.map(drop).map_err(|error| refused(error.into()))
}

/// The guarded write was refused, or the COMMIT that went with it.
fn not_written(error: NotSettled) -> Tried {
    let NotSettled::Store(error) = error else {
        return Tried::InDoubt("the record is not this owner's any more, or has moved on".into());
    };
    refused(error.into())
}

/// A statement of ours was refused, or COMMIT was.
///
/// | who says so | what it means |
/// | --- | --- |
/// | the server: a conflict | nothing is committed, and the phase is repeated |
/// | the server: RS012 | the phase has ended its transaction by itself |
/// | the server: another one of our own errors | the lease may be lost: the record is read |
/// | the server: any other error, of a deferred constraint for instance | nothing is committed, and the phase has failed |
/// | nobody, or a server that ends the connection | it may be committed: the record is read |
fn refused(error: PhaseError) -> Tried {
    let Some(code) = sqlstate(&*error) else { return Tried::InDoubt(error) };
    if CONFLICTS.contains(&&*code) {
        return Tried::Conflict(error);
    }
    if code == TRANSACTION_ENDED {
        return Tried::CommittedAlone(error);
    }
    if DOUBTFUL_CLASSES.iter().any(|class| code.starts_with(class)) {
        Tried::InDoubt(error)
    } else {
        Tried::Failed(error)
    }
}

/// Whether an error is, or comes from, a conflict with others.
fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    sqlstate(error).is_some_and(|code| CONFLICTS.contains(&&*code))
}

/// What the server calls an error that is its own, or comes from it.
fn sqlstate(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        let told = error.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
        if let Some(code) = told.and_then(|told| told.code()) {
            return Some(code.into_owned());
        }
        next = error.source();
    }
    None
}

fn takes_too_long(limit: Duration) -> PhaseError {
    format!("the phase has taken longer than {limit:?}, its share of the lease").into()
}

fn no_flow() -> PhaseError {
    "the record has no flow".into()
}

fn given_away() -> PhaseError {
    "the phase has given its transaction away; it must drop the transaction before it ends".into()
}
