//! axum-idempotent as its documentation says: its layer in the recommended key mode, inside a session.
//! A caller opens its session at `/session` and sends the cookie from then on.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::Ttl;
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use serde_json::{Value, json};
use tower_cookies::CookieManagerLayer;

#[derive(Clone, Default)]
struct Books(Arc<Mutex<(Vec<String>, HashSet<String>)>>);

/// The operation that every peer protects; see payments.js.
async fn pay(State(books): State<Books>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let slow = header("x-slow").and_then(|ms| ms.parse().ok()).unwrap_or(20);
    tokio::time::sleep(Duration::from_millis(slow)).await;
    if body.get("bad").is_some() {
        return (StatusCode::BAD_REQUEST, Json(json!({ "error": "bad" }))).into_response();
    }
    let mut books = books.0.lock().unwrap();
    let key = header("idempotency-key").unwrap_or_default().to_owned();
    if header("x-fail-once").is_some() && books.1.insert(key) {
        return (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({ "error": "boom" }))).into_response();
    }
    let payment = format!("pay-{}", books.0.len());
    books.0.push(payment.clone());
    let location = [("location", format!("/payments/{payment}"))];
    (StatusCode::CREATED, location, Json(json!({ "id": payment, "state": "done" }))).into_response()
}

#[tokio::main]
async fn main() {
    let options =
        IdempotentOptions::default().use_idempotency_key_header(Some("idempotency-key"), false);
    let sessions = SessionLayer::new(Arc::new(MokaStore::builder().build()))
        .with_cookie_options(CookieOptions::build().name("session").max_age(3_600).path("/"));
    let open = get(async |session: Session<MokaStore>| {
        let hour = Ttl::new(3_600).unwrap();
        session.set("caller", &"somebody", hour, None).await.unwrap();
    });
    let listing = async |State(books): State<Books>| Json(json!({ "data": books.0.lock().unwrap().0 }));
    let app = Router::new()
        .route("/payments", post(pay))
        .route("/refunds", post(pay))
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .route("/session", open)
        .route("/payments", get(listing))
        .with_state(Books::default())
        .layer(sessions)
        .layer(CookieManagerLayer::new());
    let address = format!("127.0.0.1:{}", std::env::var("PORT").unwrap());
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
