//! Payments that can be retried safely.
//!
//! ```sh
//! cargo run -p axum-payments
//!
//! # The first request pays; however often it is repeated, it has paid once.
//! curl -i localhost:3000/payments -H 'authorization: Bearer alice' -H 'idempotency-key: order-42' \
//!      -H 'content-type: application/json' -d '{"amount": 100}'
//! # 201, {"payment":1,"amount":100}
//! # Again: 201, the same body, Idempotent-Replayed: true. Spacing and order of JSON do not matter.
//!
//! # The same key for another amount is a mistake: 422.
//! curl -i localhost:3000/payments -H 'authorization: Bearer alice' -H 'idempotency-key: order-42' \
//!      -H 'content-type: application/json' -d '{"amount": 200}'
//!
//! # Without a key: 400, because this route demands one.
//! curl -i localhost:3000/payments -H 'authorization: Bearer alice' \
//!      -H 'content-type: application/json' -d '{"amount": 100}'
//! ```
//!
//! The memory store forgets everything with its process, so it is for trying things out. The disk
//! store takes its place in one line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::routing::{get, post};
use axum::{Json, Router};
use retrysafe::core::{Policy, Scope};
use retrysafe::layer::{Attempt, IdempotencyLayer};
use retrysafe::stores::memory::MemoryStore;
use retrysafe::upkeep::Upkeep;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

#[derive(Deserialize)]
struct Order {
    amount: u64,
}

#[derive(Serialize)]
struct Payment {
    payment: u64,
    amount: u64,
}

/// What the shop has earned.
#[derive(Clone, Default)]
struct Till {
    payments: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
}

async fn pay(
    State(till): State<Till>,
    attempt: Attempt,
    Json(order): Json<Order>,
) -> (StatusCode, Json<Payment>) {
    // A real shop would store this number beside its row and refuse a lower one.
    let _fence = attempt.fence();
    // A real shop would derive the payment provider's key from this, and retry with the same one.
    let _downstream_key = attempt.id();
    till.total.fetch_add(order.amount, Ordering::Relaxed);
    let payment = till.payments.fetch_add(1, Ordering::Relaxed) + 1;
    (StatusCode::CREATED, Json(Payment { payment, amount: order.amount }))
}

async fn total(State(till): State<Till>) -> String {
    till.total.load(Ordering::Relaxed).to_string()
}

/// Whose key it is: the account that authentication has found. Here, as an example, the bearer.
fn layer(store: Arc<MemoryStore>) -> IdempotencyLayer<Arc<MemoryStore>> {
    IdempotencyLayer::new(store).policy(Policy::default().strict()).scope(|parts| {
        let credential = parts.headers.get(AUTHORIZATION)?;
        let digest = Scope::digest_of(credential.as_bytes());
        Some(Scope::of([("account", digest.as_bytes())]))
    })
}

fn api(layer: IdempotencyLayer<Arc<MemoryStore>>) -> Router {
    Router::new()
        .route("/payments", post(pay))
        .route("/total", get(total))
        .with_state(Till::default())
        // Authentication would be added after this line: the last layer is the outermost.
        .layer(layer)
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let store = Arc::new(MemoryStore::default());
    let upkeep = Upkeep::new(Arc::clone(&store)).start();
    let layer = layer(store);
    let drain = layer.drain();
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, api(layer))
        .with_graceful_shutdown(async {
            // Without a signal handler this server ends as it always would.
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    // What was begun is settled before the process ends, even for clients that have left.
    let settled = drain.wait(Duration::from_secs(30)).await;
    upkeep.stop().await;
    settled.map_err(|left| std::io::Error::other(format!("{left} payments were not settled")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    async fn ask(api: &Router, key: Option<&str>, body: &'static str) -> (u16, bool, String) {
        let mut request = Request::post("/payments")
            .header("authorization", "Bearer alice")
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Body::from(body)).unwrap();
        let response = api.clone().oneshot(request).await.unwrap();
        let replayed = response.headers().contains_key("idempotent-replayed");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, replayed, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_curl_lines_do_what_they_say() {
        let api = api(layer(Arc::new(MemoryStore::default())));
        let paid = r#"{"payment":1,"amount":100}"#.to_owned();
        let first = ask(&api, Some("order-42"), r#"{"amount": 100}"#).await;
        assert_eq!(first, (201, false, paid.clone()));
        let again = ask(&api, Some("order-42"), r#"{ "amount":100 }"#).await;
        assert_eq!(again, (201, true, paid));
        assert_eq!(ask(&api, Some("order-42"), r#"{"amount": 200}"#).await.0, 422);
        assert_eq!(ask(&api, None, r#"{"amount": 100}"#).await.0, 400);
        let total = Request::get("/total").body(Body::empty()).unwrap();
        let total = api.oneshot(total).await.unwrap().into_body().collect().await.unwrap();
        assert_eq!(total.to_bytes(), "100");
    }
}
