//! What becomes of a handler's transaction when it panics, does not know, or is more than one?

use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use crate::kit::{client, database, number, sql, store};
use axum::Router;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::Response;
use axum::routing::post;
use futures_core::Stream;
use http::request::Parts;
use http::{Request, StatusCode};
use retrysafe::core::Policy;
use retrysafe::core::policy::{OnServerError, Said};
use retrysafe::layer::IdempotencyLayer;
use retrysafe::transactions::{Transactions, Tx};
use tower::ServiceExt as _;

/// An API that panics on its first call: with a transaction in hand on `/tx`, without one on `/bare`.
/// On `/doubt` it calls somebody else and does not know what came of it. `/elsewhere` redirects. On `/taken` and `/careless` its
/// SQL is refused: the one says so, the other claims success.
async fn api(url: &str, policy: Policy) -> Router {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let pay = async move |mut tx: Tx| {
        let call = calls.fetch_add(1, Ordering::AcqRel);
        sqlx::query("INSERT INTO payment VALUES (1)").execute(&mut **tx).await.unwrap();
        assert!(call > 0, "the first call panics");
        "paid"
    };
    let bare = async move || {
        assert!(count.fetch_add(1, Ordering::AcqRel) > 0, "the first call panics");
        "done"
    };
    let by_hand = async move |mut tx: Tx| {
        sqlx::query("INSERT INTO payment VALUES (1)").execute(&mut **tx).await.unwrap();
        match sqlx::query("COMMIT").execute(&mut **tx).await {
            Ok(_) => StatusCode::OK,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    };
    let doubt = async move |mut tx: Tx| {
        sqlx::query("INSERT INTO payment VALUES (1)").execute(&mut **tx).await.unwrap();
        (StatusCode::GATEWAY_TIMEOUT, axum::Extension(Said::Unknown))
    };
    let doubt_at_length = async move |mut tx: Tx| {
        sqlx::query("INSERT INTO payment VALUES (1)").execute(&mut **tx).await.unwrap();
        (axum::Extension(Said::Unknown), "nobody knows ".repeat(100))
    };
    let elsewhere = async move |mut tx: Tx| {
        sqlx::query("INSERT INTO payment VALUES (1)").execute(&mut **tx).await.unwrap();
        (StatusCode::SEE_OTHER, [("location", "/payments/1")])
    };
    let taken = async move |mut tx: Tx| {
        spoil(&mut tx).await;
        (StatusCode::CONFLICT, [("x-reason", "taken")], "this order is taken")
    };
    let careless = async move |mut tx: Tx| {
        spoil(&mut tx).await;
        "paid"
    };
    let router = Router::new()
        .route("/taken", post(taken))
        .route("/careless", post(careless))
        .route("/tx", post(pay))
        .route("/doubt", post(doubt))
        .route("/doubt-at-length", post(doubt_at_length))
        .route("/elsewhere", post(elsewhere))
        .route("/by-hand", post(by_hand))
        .route("/bare", post(bare));
    layered(router, url, policy).await
}

/// An API with its tables, behind the middleware and the layer.
async fn layered(router: Router, url: &str, policy: Policy) -> Router {
    sql(url, "CREATE TABLE payment (n integer)").await;
    let store = store(url).await;
    let pool = sqlx::PgPool::connect(url).await.unwrap();
    router
        .layer(axum::middleware::from_fn_with_state(
            Transactions::new(pool, store.clone()).policy(policy.clone()),
            Transactions::run,
        ))
        .layer(IdempotencyLayer::new(store).policy(policy))
}

/// Lets the server refuse a statement: it commits nothing of this transaction any more.
async fn spoil(tx: &mut Tx) {
    let refused = "INSERT INTO payment SELECT 1 / 0";
    sqlx::query(refused).execute(&mut ***tx).await.unwrap_err();
}

async fn call(api: &Router, path: &str) -> StatusCode {
    let asked = Request::post(path).header("idempotency-key", "k").body(Body::empty()).unwrap();
    api.clone().oneshot(asked).await.unwrap().status()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_undoes_the_transaction_and_frees_the_key() {
    let url = database().await;
    let api = api(&url, Policy::default().strict()).await;
    assert_eq!(call(&api, "/tx").await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0);
    for _ in 0..2 {
        assert_eq!(call(&api, "/tx").await, StatusCode::OK);
    }
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 1, "paid once, then replayed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_was_undone_is_told_as_a_problem() {
    let url = database().await;
    let api = api(&url, Policy::default()).await;
    let asked = Request::post("/tx").header("idempotency-key", "k").body(Body::empty()).unwrap();
    let told = api.oneshot(asked).await.unwrap();
    assert_eq!(told.headers()["content-type"], "application/problem+json");
    let body = axum::body::to_bytes(told.into_body(), 1 << 20).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains("\"code\":\"handler_failed\"") && body.contains("is undone"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_without_a_transaction_proves_nothing() {
    let url = database().await;
    let api = api(&url, Policy::default().strict()).await;
    assert_eq!(call(&api, "/bare").await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(call(&api, "/bare").await, StatusCode::CONFLICT, "nobody knows");
}

// A failure may be kept as the answer; what was half done before it is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_undone_under_every_policy() {
    for policy in [OnServerError::Store, OnServerError::Release, OnServerError::Unknown] {
        let url = database().await;
        let api = api(&url, Policy { on_server_error: policy, ..Policy::default() }).await;
        assert_eq!(call(&api, "/tx").await, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0, "{policy:?}");
    }
}

// A handler cannot commit what it did without its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_by_hand_is_refused() {
    let url = database().await;
    let api = api(&url, Policy::default()).await;
    assert_eq!(call(&api, "/by-hand").await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0);
}

// The transaction is undone; what the handler set off elsewhere is not.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_handler_does_not_know_stays_unknown() {
    let url = database().await;
    let api = api(&url, Policy::default()).await;
    assert_eq!(call(&api, "/doubt").await, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(call(&api, "/doubt").await, StatusCode::CONFLICT);
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0);
}

// Once the handler's word was lost with the answer that it was in.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_handler_does_not_know_stays_unknown_if_its_answer_is_too_large() {
    let url = database().await;
    let api = api(&url, Policy { response_bytes_max: 1_000, ..Policy::default() }).await;
    assert_eq!(call(&api, "/doubt-at-length").await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(call(&api, "/doubt-at-length").await, StatusCode::CONFLICT);
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0);
}

// Once a redirect was answered whose rows were rolled back, and a success whose SQL had failed: PostgreSQL takes a
// COMMIT of such a transaction, and rolls back.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_an_answer_is_true_too() {
    let url = database().await;
    let api = api(&url, Policy::default()).await;
    for (path, status) in [("/elsewhere", 303), ("/careless", 503), ("/taken", 409)] {
        let asked = Request::post(path).body(Body::empty()).unwrap();
        assert_eq!(api.clone().oneshot(asked).await.unwrap().status().as_u16(), status, "{path}");
        assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 1, "{path}");
    }
}

// Once a question of ours about a table that somebody else held was refused, and the COMMIT of what it had aborted was taken
// for one.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_nobody_elses_lock_undoes_an_answer() {
    let url = database().await;
    let patient = async move |mut tx: Tx| {
        sqlx::query("SET LOCAL lock_timeout = '100ms'").execute(&mut **tx).await.unwrap();
        insert(&mut tx).await;
        "paid"
    };
    let api =
        layered(Router::new().route("/patient", post(patient)), &url, Policy::default()).await;
    let holder = client(&url).await;
    holder.batch_execute("BEGIN; LOCK TABLE retrysafe.guard").await.unwrap();
    let asked = Request::post("/patient").body(Body::empty()).unwrap();
    assert_eq!(api.oneshot(asked).await.unwrap().status(), StatusCode::OK);
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 1);
}

// Once the handler's own 409 became our 503: its answer was to be settled in the transaction that its
// SQL had spoilt.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_handler_whose_sql_failed_is_answered_as_given() {
    let url = database().await;
    let api = api(&url, Policy::default().strict()).await;
    for is_replay in [false, true] {
        let asked = Request::post("/taken").header("idempotency-key", "k").body(Body::empty());
        let told = api.clone().oneshot(asked.unwrap()).await.unwrap();
        assert_eq!(told.status(), StatusCode::CONFLICT);
        assert_eq!(told.headers()["x-reason"], "taken");
        assert_eq!(told.headers().contains_key("idempotent-replayed"), is_replay);
        let body = axum::body::to_bytes(told.into_body(), 1 << 20).await.unwrap();
        assert_eq!(body, "this order is taken");
    }
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_on_top_of_failed_sql_is_not_believed() {
    let url = database().await;
    let api = api(&url, Policy::default().strict()).await;
    for _ in 0..2 {
        assert_eq!(call(&api, "/careless").await, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0);
}

async fn insert(tx: &mut Tx) {
    sqlx::query("INSERT INTO payment VALUES (1)").execute(&mut ***tx).await.unwrap();
}

/// A caller who is noted in the transaction of the request.
struct NotedCaller;

impl<S: Send + Sync> FromRequestParts<S> for NotedCaller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let mut tx = Tx::from_request_parts(parts, state).await?;
        insert(&mut tx).await;
        Ok(Self)
    }
}

/// The same by an extractor that keeps its transaction.
struct KeptTx {
    _tx: Tx,
}

impl<S: Send + Sync> FromRequestParts<S> for KeptTx {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let mut tx = Tx::from_request_parts(parts, state).await?;
        insert(&mut tx).await;
        Ok(Self { _tx: tx })
    }
}

/// A body of one piece, which is made when somebody reads it.
struct LatePiece(Option<Pin<Box<dyn Future<Output = &'static str> + Send>>>);

impl Stream for LatePiece {
    type Item = Result<&'static str, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(piece) = &mut self.0 else { return Poll::Ready(None) };
        let piece = ready!(piece.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(Some(Ok(piece)))
    }
}

/// An API whose transaction is asked for twice, or outlives its handler.
async fn lending_api(url: &str) -> Router {
    let noted = async |_: NotedCaller, mut tx: Tx| {
        insert(&mut tx).await;
        "paid"
    };
    let beside = async |_: KeptTx, mut tx: Tx| {
        insert(&mut tx).await;
        "paid"
    };
    let in_body = async |mut tx: Tx| {
        let piece = async move {
            insert(&mut tx).await;
            "paid"
        };
        Body::from_stream(LatePiece(Some(Box::pin(piece))))
    };
    let moved = async |mut tx: Tx| {
        insert(&mut tx).await;
        tokio::spawn(async move {
            pending::<()>().await;
            drop(tx);
        });
        "paid"
    };
    let router = Router::new()
        .route("/noted", post(noted))
        .route("/beside", post(beside))
        .route("/in-body", post(in_body))
        .route("/moved", post(moved));
    layered(router, url, Policy::default().strict()).await
}

/// An API whose handlers end their transaction by themselves.
async fn ending_api(url: &str) -> Router {
    let swallowed = async |mut tx: Tx| {
        insert(&mut tx).await;
        sqlx::query("COMMIT").execute(&mut **tx).await.unwrap_err();
        "paid"
    };
    let failed = async |mut tx: Tx| {
        commit_alone(&mut tx).await;
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let refused = async |mut tx: Tx| {
        commit_alone(&mut tx).await;
        StatusCode::TOO_MANY_REQUESTS
    };
    let panicked = async |mut tx: Tx| -> StatusCode {
        commit_alone(&mut tx).await;
        panic!("after its own commit")
    };
    let router = Router::new()
        .route("/swallowed", post(swallowed))
        .route("/failed", post(failed))
        .route("/refused", post(refused))
        .route("/panicked", post(panicked));
    layered(router, url, Policy::default()).await
}

/// What a helper does that was written for another place.
async fn commit_alone(tx: &mut Tx) {
    let alone = "ROLLBACK; BEGIN; INSERT INTO payment VALUES (1); COMMIT";
    sqlx::raw_sql(alone).execute(&mut ***tx).await.unwrap();
}

// Once each of the two had a transaction of its own, the second was settled, and the first was rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn an_extractor_and_its_handler_work_in_the_same_transaction() {
    let url = database().await;
    let api = lending_api(&url).await;
    for _ in 0..2 {
        assert_eq!(call(&api, "/noted").await, StatusCode::OK);
        assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_transaction_beside_the_first_is_refused() {
    let url = database().await;
    let api = lending_api(&url).await;
    // What was done is undone, so the key is free.
    for _ in 0..2 {
        assert_eq!(call(&api, "/beside").await, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0);
    }
}

// Once such an answer was kept, and its rows were rolled back after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_works_in_the_transaction_is_settled_with_it() {
    let url = database().await;
    let api = lending_api(&url).await;
    for _ in 0..2 {
        assert_eq!(call(&api, "/in-body").await, StatusCode::OK);
        assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_transaction_is_still_in_use_is_not_believed() {
    let url = database().await;
    let api = lending_api(&url).await;
    assert_eq!(call(&api, "/moved").await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(call(&api, "/moved").await, StatusCode::CONFLICT, "nobody knows");
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0);
}

// Once the answer was settled by itself, because the transaction was over.
#[tokio::test(flavor = "multi_thread")]
async fn a_success_after_a_refused_commit_is_not_believed() {
    let url = database().await;
    let api = ending_api(&url).await;
    assert_eq!(call(&api, "/swallowed").await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(call(&api, "/swallowed").await, StatusCode::CONFLICT, "nobody knows");
    assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 0);
}

// Once the roll-back that came after it was taken for proof, and the next attempt paid again.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_has_committed_alone_is_not_taken_for_undone() {
    for (path, status) in [("/failed", 500), ("/refused", 429), ("/panicked", 500)] {
        let url = database().await;
        let api = ending_api(&url).await;
        assert_eq!(call(&api, path).await.as_u16(), status, "{path}");
        assert_eq!(call(&api, path).await, StatusCode::CONFLICT, "{path}: nobody knows");
        assert_eq!(number(&url, "SELECT count(*) FROM payment").await, 1, "{path}");
    }
}
