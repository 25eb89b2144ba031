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
//! So a handler that takes a [`Tx`] must have no effect outside of it, and must not move it into a task
//! of its own. A commit by hand fails, because the transaction is guarded: it can be committed only
//! together with its answer. One that has called somebody else and does not know what
//! came of it says [`Said::Unknown`]: what it did here is rolled back, and the key stays unknown.
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

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::request::Parts;
use retrysafe_core::Engine;
use retrysafe_core::policy::{End, Policy, Said};
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{Outcome, Record, State as Stands};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::wire::{ASK_AGAIN_ABOUT_UNKNOWN, ASK_AGAIN_SOON};
use sqlx::{PgPool, Postgres};

use crate::layer::Attempt;
use crate::stores::postgres::PostgresStore;

type Transaction = sqlx::Transaction<'static, Postgres>;

/// Hands transactions to handlers, and commits them with their answers.
#[derive(Clone, Debug)]
pub struct Transactions {
    pool: PgPool,
    engine: Engine<PostgresStore>,
    policy: Arc<Policy>,
}

/// The database did not take what the handler did.
const NOT_DONE: Refusal = Refusal::StoreUnavailable { retry_after: ASK_AGAIN_SOON };

/// The transaction of one request. What is done in it is committed with the answer, or not at all.
pub struct Tx {
    /// Always there until the drop.
    transaction: Option<Transaction>,
    slot: Slot,
}

/// Where a transaction is while its handler does not have it.
#[derive(Clone)]
struct Slot {
    pool: PgPool,
    engine: Engine<PostgresStore>,
    policy: Arc<Policy>,
    back: Arc<Mutex<Option<Transaction>>>,
}

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
        let slot = Slot {
            pool: this.pool.clone(),
            engine: this.engine.clone(),
            policy: Arc::clone(&this.policy),
            back: Arc::default(),
        };
        request.extensions_mut().insert(slot.clone());
        let attempt = request.extensions().get::<Attempt>().cloned();
        let ended = unpanicked(next.run(request)).await;
        let held = slot.back.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (response, held) = match (ended, held) {
            (Ok(response), held) => (response, held),
            (Err(_), Some(transaction)) => {
                let response = this.refusal("the handler panicked, and what it did is undone");
                let said = attempt.and_then(|attempt| attempt.said());
                return undone(transaction, response, said).await;
            }
            // Without a transaction to undo, a panic proves nothing.
            (Err(panic), None) => std::panic::resume_unwind(panic),
        };
        match (held, attempt) {
            (None, _) => response,
            (Some(transaction), Some(attempt)) => this.end(transaction, &attempt, response).await,
            // A request without a key: nothing to settle, the answer alone decides.
            (Some(transaction), None) => {
                if !response.status().is_success() {
                    return undone(transaction, response, None).await;
                }
                match transaction.commit().await {
                    Ok(()) => response,
                    Err(error) => failed(&error, &this.policy),
                }
            }
        }
    }

    /// What the handler did is undone, for this reason.
    fn refusal(&self, why: &'static str) -> Response {
        refused(&Refusal::HandlerFailed(why), &self.policy)
    }

    async fn end(&self, mut tx: Transaction, attempt: &Attempt, response: Response) -> Response {
        let (parts, body) = response.into_parts();
        let Ok(body) = to_bytes(body, self.policy.response_bytes_max).await else {
            let told =
                self.refusal("the answer is too large to be settled, and what led to it is undone");
            return undone(tx, told, attempt.said()).await;
        };
        let said = parts.extensions.get::<Said>().copied().or_else(|| attempt.said());
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
            Outcome::Completed(_)
                if response.status().is_client_error() && is_aborted(&mut tx).await =>
            {
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
async fn undone(transaction: Transaction, mut response: Response, said: Option<Said>) -> Response {
    roll_back(transaction).await;
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

/// The SQLSTATE of a statement in a transaction that can only be rolled back.
const IN_FAILED_TRANSACTION: &str = "25P02";

/// Whether a statement of the handler has failed, so that the server commits nothing of the transaction.
async fn is_aborted(transaction: &mut Transaction) -> bool {
    // Asked without a name, as everything here: a pooler may stand in between.
    let asked = sqlx::query("SELECT 1").persistent(false).execute(&mut **transaction).await;
    let refusal = asked.as_ref().err().and_then(sqlx::Error::as_database_error);
    refusal.is_some_and(|refusal| refusal.code().as_deref() == Some(IN_FAILED_TRANSACTION))
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

impl Deref for Tx {
    type Target = Transaction;

    fn deref(&self) -> &Transaction {
        match &self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("it is only taken by the drop"),
        }
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut Transaction {
        match &mut self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("it is only taken by the drop"),
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        *self.slot.back.lock().unwrap_or_else(PoisonError::into_inner) = self.transaction.take();
    }
}

impl std::fmt::Debug for Tx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

/// Refuses with 500 where the middleware is missing, and with 503 where the pool has no connection.
impl<S: Send + Sync> FromRequestParts<S> for Tx {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let Some(slot) = parts.extensions.get::<Slot>().cloned() else {
            let told = "this handler needs a transaction: is the middleware there";
            return Err(refused(&Refusal::HandlerFailed(told), &Policy::default()));
        };
        // Nothing was begun, so nothing was done.
        let mut transaction =
            slot.pool.begin().await.map_err(|error| failed(&error, &slot.policy))?;
        // Nobody but the end of the request may commit it, by hand or past a savepoint.
        if let Some(attempt) = parts.extensions.get::<Attempt>() {
            let guarded = slot.engine.guard_in(&mut transaction, attempt.id(), attempt.fence());
            guarded.await.map_err(|error| failed(&error, &slot.policy))?;
        }
        Ok(Self { transaction: Some(transaction), slot })
    }
}
