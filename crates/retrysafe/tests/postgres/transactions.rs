//! What becomes of a handler's transaction when it panics or does not know?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kit::{database, number, sql, store};
use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, StatusCode};
use retrysafe::core::Policy;
use retrysafe::core::policy::{OnServerError, Said};
use retrysafe::layer::IdempotencyLayer;
use retrysafe::transactions::{Transactions, Tx};
use tower::ServiceExt as _;

/// An API that panics on its first call: with a transaction in hand on `/tx`, without one on `/bare`.
/// On `/doubt` it calls somebody else and does not know what came of it. On `/taken` and `/careless` its
/// SQL is refused: the one says so, the other claims success.
async fn api(url: &str, policy: Policy) -> Router {
    sql(url, "CREATE TABLE payment (n integer)").await;
    let store = store(url).await;
    let pool = sqlx::PgPool::connect(url).await.unwrap();
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
    let taken = async move |mut tx: Tx| {
        spoil(&mut tx).await;
        (StatusCode::CONFLICT, [("x-reason", "taken")], "this order is taken")
    };
    let careless = async move |mut tx: Tx| {
        spoil(&mut tx).await;
        "paid"
    };
    Router::new()
        .route("/taken", post(taken))
        .route("/careless", post(careless))
        .route("/tx", post(pay))
        .route("/doubt", post(doubt))
        .route("/by-hand", post(by_hand))
        .route("/bare", post(bare))
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
