//! What do the setups on axum protect, and with what? One process per variant, started by the measurement.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use idempotent::middleware::IdempotencyLayer as PeerLayer;
use retrysafe::layer::IdempotencyLayer;
use retrysafe::stores::disk::DiskStore;
use retrysafe::stores::memory::MemoryStore;
use ruts::store::Ttl;
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use serde_json::{Value, json};
use tower_cookies::CookieManagerLayer;

#[derive(Clone, Default)]
struct Payments(Arc<Mutex<Vec<String>>>);

/// Serves a variant until it is ended. `place` is the Redis or the folder that the variant keeps its answers in.
pub fn serve(variant: &str, address: SocketAddr, place: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let payments = Payments::default();
        let operation = Router::new().route("/payments", post(pay)).with_state(payments.clone());
        let protected = match variant {
            "alone" => operation,
            "axum-idempotent" => axum_idempotent(operation),
            "idempotent-memory" => {
                let store = idempotent::memory::MemoryStore::builder().try_build().unwrap();
                operation.layer(PeerLayer::new(store).scope(credential))
            }
            "idempotent-valkey" => {
                let store = idempotent::valkey::ValkeyStore::with_url(place).try_build().await.unwrap();
                operation.layer(PeerLayer::new(store).scope(credential))
            }
            "layer-memory" => operation.layer(IdempotencyLayer::new(MemoryStore::default())),
            "layer-disk" => operation.layer(IdempotencyLayer::new(DiskStore::open(place).unwrap())),
            other => panic!("there is no variant {other}"),
        };
        let listing = Router::new().route("/payments", get(list)).with_state(payments);
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        axum::serve(listener, protected.merge(listing)).await.unwrap();
    });
}

/// The operation that every peer protects; see `payments.js`.
async fn pay(State(payments): State<Payments>, headers: HeaderMap, Json(_): Json<Value>) -> Response {
    let slow = headers.get("x-slow").and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
    if slow > 0 {
        tokio::time::sleep(Duration::from_millis(slow)).await;
    }
    let payment = {
        let mut payments = payments.0.lock().unwrap();
        let payment = format!("pay-{}", payments.len());
        payments.push(payment.clone());
        payment
    };
    let location = [("location", format!("/payments/{payment}"))];
    (StatusCode::CREATED, location, Json(json!({ "id": payment, "state": "done" }))).into_response()
}

async fn list(State(payments): State<Payments>) -> Json<Value> {
    Json(json!({ "data": *payments.0.lock().unwrap() }))
}

/// The layer in its recommended key mode, inside a session that callers open at `/session`.
fn axum_idempotent(operation: Router) -> Router {
    let sessions = SessionLayer::new(Arc::new(MokaStore::builder().build()))
        .with_cookie_options(CookieOptions::build().name("session").max_age(3_600).path("/"));
    let options = IdempotentOptions::default().use_idempotency_key_header(Some("idempotency-key"), false);
    let open = get(async |session: Session<MokaStore>| {
        session.set("caller", &"somebody", Ttl::new(3_600).unwrap(), None).await.unwrap();
    });
    operation
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .route("/session", open)
        .layer(sessions)
        .layer(CookieManagerLayer::new())
}

/// Whose key it is, by the same header as with our own layer.
fn credential(parts: &axum::http::request::Parts) -> Option<String> {
    parts.headers.get("authorization")?.to_str().ok().map(str::to_owned)
}
