//! How does a handler get a transaction in which its answer is settled too?
//!
//! [`Transactions`] stands right inside the idempotency layer. A handler that takes a [`Tx`] works in
//! it; when it has answered, the answer is settled in the same transaction and both are committed. A
//! handler that panics, or answers with an error, a 5xx or anything that may be tried again, has its
//! transaction rolled back, and that is proof: the key is free for another try, even under a strict
//! policy. (Under `on_server_error = "store"` a 5xx is kept as the answer, and still nothing else.)
//!
//! A handler whose SQL was refused, by a unique constraint for instance, may answer with a 4xx of its own.
//! The server commits nothing of such a transaction any more, so the answer is given and kept as it is,
//! outside of the transaction. A success on top of refused SQL is not believed: its caller gets 503.
//!
//! So a handler that takes a [`Tx`] must have no effect outside of it. One that has called somebody else and
//! does not know what came of it says [`Said::Unknown`]: what it did here is rolled back, and the key stays unknown.
//!
//! A request has one transaction. Whoever extracts a [`Tx`] after another one was dropped, an extractor of the
//! application's and then the handler for instance, works in the same one; a second one beside it is refused
//! with 500. It may live on in the answer's body, which is read to its end first, but not in a task of its own:
//! whoever still has it when the answer is whole gets 500, and the key stays unknown.
//!
//! A handler must not send COMMIT or ROLLBACK. A COMMIT fails, because the transaction is guarded: it can be
//! committed only together with its answer. But either ends the transaction, and what comes after it is
//! committed by itself. So an answer after that is not believed: its caller gets 500 if it was a success, nothing
//! is settled, and the key stays unknown. (Not seen is a transaction that the handler has begun by
//! itself after that and in which its SQL was refused, or whose connection is gone.)
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<axum::Router, Box<dyn std::error::Error>> {
//! use axum::{Router, routing::post};
//! use retrysafe::core::Policy;
//! use retrysafe::layer::IdempotencyLayer;
//! use retrysafe::stores::postgres::PostgresStore;
//! use retrysafe::transactions::{Transactions, Tx};
//!
//! async fn pay(mut tx: Tx) -> Result<&'static str, &'static str> {
//!     sqlx::query("INSERT INTO payment DEFAULT VALUES").execute(&mut **tx).await.map_err(|_| "no")?;
//!     Ok("paid")
//! }
//!
//! let (store, policy) = (PostgresStore::connect("postgres://…").await?, Policy::default().strict());
//! Ok(Router::new()
//!     .route("/payments", post(pay))
//!     .layer(axum::middleware::from_fn_with_state(
//!         Transactions::new(pool, store.clone()).policy(policy.clone()),
//!         Transactions::run,
//!     ))
//!     .layer(IdempotencyLayer::new(store).policy(policy)))
//! # }
//! ```
//!
//! The pool must be one of the store's own database. An answer must fit into the policy's
//! `response_bytes_max`, and be whole: it is settled before it is sent.

mod lend;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::response;
use retrysafe_core::Engine;
use retrysafe_core::policy::{End, Policy, Said};
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{Outcome, Record, State as Stands};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::wire::{ASK_AGAIN_ABOUT_UNKNOWN, ASK_AGAIN_SOON};
use sqlx::{PgPool, Postgres};

use crate::layer::Attempt;
use crate::stores::postgres::{PostgresStore, TransactionRemains, remains_of};

use self::lend::{Slot, TransactionPlace};

pub use self::lend::Tx;

type Transaction = sqlx::Transaction<'static, Postgres>;

/// Hands transactions to handlers, and commits them with their answers.
#[derive(Clone, Debug)]
pub struct Transactions {
    pool: PgPool,
    engine: Engine<PostgresStore>,
    policy: Arc<Policy>,
}

/// Why an answer cannot be settled.
const NOT_WHOLE: &str =
    "the answer broke off or is too large to be settled, and what led to it is undone";

/// Why an answer is not believed.
const ENDED: &str = "the handler has ended its transaction by itself, and nobody knows what it \
                     did after that: it must not send COMMIT or ROLLBACK";

/// The database did not take what the handler did.
const NOT_DONE: Refusal = Refusal::StoreUnavailable { retry_after: ASK_AGAIN_SOON };

impl Transactions {
    /// Transactions of this pool, settled in this store of the same database.
    pub fn new(pool: PgPool, store: PostgresStore) -> Self {
        Self { pool, engine: Engine::new(store), policy: Arc::new(Policy::default()) }
    }

    /// The policy of the layer around it: both must judge an answer alike.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// The middleware itself, for `axum::middleware::from_fn_with_state`.
    pub async fn run(State(this): State<Self>, mut request: Request, next: Next) -> Response {
        let slot = Slot::new(&this);
        request.extensions_mut().insert(slot.clone());
        let attempt = request.extensions().get::<Attempt>().cloned();
        let response = match unpanicked(next.run(request)).await {
            // Who still has it may be the body, which works in it until its last byte.
            Ok(response) if slot.is_lent() => this.whole(response, attempt.as_ref()).await,
            Ok(response) => response,
            Err(panic) => match slot.close() {
                TransactionPlace::Parked(transaction) => {
                    return this.panicked(transaction, attempt).await;
                }
                // Without a transaction to undo, a panic proves nothing.
                TransactionPlace::Nowhere | TransactionPlace::Lent | TransactionPlace::Closed => {
                    std::panic::resume_unwind(panic)
                }
            },
        };
        match (slot.close(), attempt) {
            (TransactionPlace::Nowhere | TransactionPlace::Closed, _) => response,
            // It is still open, so nothing is undone.
            (TransactionPlace::Lent, _) => {
                this.doubted("the answer is there, and somebody still has the transaction")
            }
            (TransactionPlace::Parked(transaction), Some(attempt)) => {
                this.end(transaction, &attempt, response).await
            }
            (TransactionPlace::Parked(transaction), None) => {
                this.end_without_key(transaction, response).await
            }
        }
    }

    /// What the handler did is undone, for this reason.
    fn refusal(&self, why: &'static str) -> Response {
        refused(&Refusal::HandlerFailed(why), &self.policy)
    }

    /// Nobody knows what became of the transaction, for this reason.
    fn doubted(&self, why: &'static str) -> Response {
        tracing::warn!("{why}");
        let mut told = self.refusal(why);
        told.extensions_mut().insert(Said::Unknown);
        told
    }

    /// The answer with its body read to the end, or a refusal.
    async fn whole(&self, response: Response, attempt: Option<&Attempt>) -> Response {
        let (parts, body) = response.into_parts();
        let said = said_of(&parts, attempt);
        match to_bytes(body, self.policy.response_bytes_max).await {
            Ok(body) => Response::from_parts(parts, Body::from(body)),
            Err(_) => marked_undone(self.refusal(NOT_WHOLE), said),
        }
    }

    async fn panicked(&self, mut tx: Transaction, attempt: Option<Attempt>) -> Response {
        match remains_of(&mut tx, attempt.as_ref().map(Attempt::id)).await {
            TransactionRemains::Open | TransactionRemains::Aborted => {
                let response = self.refusal("the handler panicked, and what it did is undone");
                undone(tx, response, attempt.and_then(|attempt| attempt.said())).await
            }
            TransactionRemains::Ended => {
                roll_back(tx).await;
                self.doubted(ENDED)
            }
        }
    }

    async fn end(&self, mut tx: Transaction, attempt: &Attempt, response: Response) -> Response {
        let is_aborted = match remains_of(&mut tx, Some(attempt.id())).await {
            TransactionRemains::Open => false,
            TransactionRemains::Aborted => true,
            TransactionRemains::Ended => {
                roll_back(tx).await;
                return self.not_believed(response);
            }
        };
        let (parts, body) = response.into_parts();
        let said = said_of(&parts, Some(attempt));
        let Ok(body) = to_bytes(body, self.policy.response_bytes_max).await else {
            return undone(tx, self.refusal(NOT_WHOLE), said).await;
        };
        let set_cookie = self.policy.keep_set_cookie;
        let kept = StoredResponse::keep(parts.status, &parts.headers, body.clone(), set_cookie);
        let end = End::Answered { response: kept, by_upstream: false, said };
        let response = Response::from_parts(parts, Body::from(body));
        let outcome = self.policy.judge(end);
        match outcome {
            // The policy keeps a failure as the answer; what the handler did before it failed is not
            // a part of that.
            Outcome::Completed(_) if said.is_none() && response.status().is_server_error() => {
                roll_back(tx).await;
                return response;
            }
            // The handler knows that its SQL was refused, and says what that means. Nothing of the
            // transaction can be committed, so the layer keeps the answer by itself.
            Outcome::Completed(_) if response.status().is_client_error() && is_aborted => {
                roll_back(tx).await;
                return response;
            }
            Outcome::Completed(_) => {}
            // Whatever it was, it is undone now: the roll-back is the proof.
            Outcome::Retryable(_) | Outcome::Unknown(_) => {
                return undone(tx, response, said).await;
            }
        }
        let id = attempt.id();
        let fence = attempt.fence();
        match self.engine.settle_fenced_in(&mut tx, id, fence, attempt.ttl(), &outcome).await {
            Ok(_) => {}
            Err(_) => {
                return undone(tx, refused(&NOT_DONE, &self.policy), None).await;
            }
        }
        match tx.commit().await {
            Ok(()) => response,
            Err(error) => self.doubt(attempt, response, &error).await,
        }
    }

    /// A request without a key: nothing is settled, and the answer alone decides.
    async fn end_without_key(&self, mut tx: Transaction, response: Response) -> Response {
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            return undone(tx, response, None).await;
        }
        match remains_of(&mut tx, None).await {
            // The server would take a COMMIT, and roll back.
            TransactionRemains::Aborted => {
                return undone(tx, refused(&NOT_DONE, &self.policy), None).await;
            }
            TransactionRemains::Open | TransactionRemains::Ended => {}
        }
        match tx.commit().await {
            Ok(()) => response,
            Err(error) => failed(&error, &self.policy),
        }
    }

    /// The answer of a handler that has ended its transaction. A failure is told as it is.
    fn not_believed(&self, mut response: Response) -> Response {
        let status = response.status();
        if !status.is_client_error() && !status.is_server_error() {
            return self.doubted(ENDED);
        }
        tracing::warn!("{ENDED}");
        response.extensions_mut().insert(Said::Unknown);
        response
    }

    /// A commit that failed: refused by the server, it is rolled back. Without an answer, the record
    /// says whether it happened, if it has happened by now.
    async fn doubt(&self, attempt: &Attempt, response: Response, error: &sqlx::Error) -> Response {
        if error.as_database_error().is_some() {
            return failed(error, &self.policy);
        }
        // What is seen here may not have reached the standby: its wait may have been ended.
        self.engine.store().raise_barrier();
        let ours = |record: &Record| {
            record.fence == attempt.fence() && matches!(record.state, Stands::Completed { .. })
        };
        match self.engine.look(attempt.id()).await {
            Ok(found) if found.value.as_ref().is_some_and(ours) => response,
            // The commit may still be on its way. If it lands, it wins over this word.
            Ok(_) | Err(_) => {
                let retry_after = ASK_AGAIN_ABOUT_UNKNOWN;
                let lost = Refusal::AnswerLost { timed_out: true, retry_after };
                let mut told = refused(&lost, &self.policy);
                told.extensions_mut().insert(Said::Unknown);
                told
            }
        }
    }
}

/// Runs a handler to its end, or to its panic.
async fn unpanicked<T>(handler: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut handler = pin!(handler);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Undoes the transaction and says so: another try is safe, unless the handler itself has said that
/// nobody knows, which is about more than its transaction.
async fn undone(transaction: Transaction, response: Response, said: Option<Said>) -> Response {
    roll_back(transaction).await;
    marked_undone(response, said)
}

fn marked_undone(mut response: Response, said: Option<Said>) -> Response {
    match said {
        Some(Said::Unknown) => {
            response.extensions_mut().insert(Said::Unknown);
        }
        Some(Said::Completed | Said::Retryable) | None => {
            if !response.status().is_success() {
                response.extensions_mut().insert(Said::Retryable);
            }
        }
    }
    response
}

/// What the handler says about its outcome: its answer's word comes before its own.
fn said_of(parts: &response::Parts, attempt: Option<&Attempt>) -> Option<Said> {
    parts.extensions.get::<Said>().copied().or_else(|| attempt?.said())
}

async fn roll_back(transaction: Transaction) {
    // A connection that cannot even roll back is closed, and the server rolls back.
    let _ = transaction.rollback().await;
}

/// A refusal in the policy's dialect.
fn refused(refusal: &Refusal, policy: &Policy) -> Response {
    refusal.problem(policy).into_response(Body::from)
}

fn failed(error: &dyn std::error::Error, policy: &Policy) -> Response {
    tracing::warn!(%error, "a transaction was refused");
    let mut response = refused(&NOT_DONE, policy);
    response.extensions_mut().insert(Said::Retryable);
    response
}
