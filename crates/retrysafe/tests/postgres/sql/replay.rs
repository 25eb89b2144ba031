//! Is what SQL has answered replayed by the Rust layer, byte for byte, and the other way round?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::routing::post;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use retrysafe::core::fingerprint::Rules;
use retrysafe::core::{Policy, Scope};
use retrysafe::layer::IdempotencyLayer;
use tower::ServiceExt as _;

use super::caller::{Asked, Begun, Caller};
use crate::kit::{database, store};

const BODY: &[u8] = b"{\"cents\": 100 }";
const ANSWER: &[u8] = b"\0\xff{\"ride\": 7}";

/// An API of one tenant's, and how often its handler has run.
async fn api(url: &str) -> (Router, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = async move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut headers = HeaderMap::new();
        headers.append("content-type", HeaderValue::from_static("application/x-ride"));
        headers.append("x-many", HeaderValue::from_static("1"));
        headers.append("x-many", HeaderValue::from_bytes(b"\xe4").unwrap());
        headers.append("location", HeaderValue::from_static("/rides/7"));
        (StatusCode::CREATED, headers, ANSWER)
    };
    let fingerprint = Rules::default().without_host().raw_bodies();
    let layer = IdempotencyLayer::new(store(url).await)
        .policy(Policy { fingerprint, ..Policy::default() })
        .scope(|_| Some(Scope::of([("tenant", &b"acme"[..])])));
    (Router::new().route("/rides", post(handler)).layer(layer), runs)
}

/// Status, whether it is a replay, the handler's own headers in their order, and the body.
type Answered = (StatusCode, bool, Vec<(HeaderName, Vec<u8>)>, Vec<u8>);

async fn ask(api: &Router, key: &str) -> Answered {
    let asked = Request::post("/rides?fast=1")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Body::from(BODY));
    let told = api.clone().oneshot(asked.unwrap()).await.unwrap();
    let (parts, body) = told.into_parts();
    let is_replay = parts.headers.contains_key("idempotent-replayed");
    let of_handler = ["content-type", "x-many", "location"];
    let headers = parts.headers.iter().filter(|(name, _)| of_handler.contains(&name.as_str()));
    let headers = headers.map(|(name, value)| (name.clone(), value.as_bytes().to_vec())).collect();
    (parts.status, is_replay, headers, to_bytes(body, 1 << 20).await.unwrap().to_vec())
}

async fn asked(caller: &Caller, key: &str) -> Asked {
    let sql = "SELECT retrysafe.scope('tenant', 'acme'),
        retrysafe.fingerprint('POST', '/rides?fast=1', $1, 'application/json; charset=utf-8')";
    let row = caller.ask(sql, &[&BODY]).await.unwrap();
    Asked { scope: row.get(0), fingerprint: row.get(1), ..Asked::plain(key) }
}

async fn begin(caller: &Caller, asked: &Asked) -> (Begun, String) {
    let begun = caller.begin(asked).await.unwrap();
    let sql = "SELECT coalesce((SELECT headers::text FROM retrysafe.look($1)), '')";
    let headers = caller.ask(sql, &[&begun.id]).await.unwrap().get(0);
    (begun, headers)
}

const HEADERS: &str =
    "{{content-type,application/x-ride},{x-many,1},{x-many,ä},{location,/rides/7}}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_the_same_whoever_has_given_it() {
    let url = database().await;
    let caller = Caller::connect(&url).await;
    let (api, runs) = api(&url).await;

    // The layer answers first.
    let (status, is_replay, headers, body) = ask(&api, "layer").await;
    assert_eq!((status, is_replay, &*body), (StatusCode::CREATED, false, ANSWER));
    let ours = asked(&caller, "layer").await;
    let (begun, kept) = begin(&caller, &ours).await;
    assert_eq!(
        (&*begun.decision, begun.status, begun.body.as_deref()),
        ("replay", Some(201), Some(ANSWER))
    );
    assert_eq!(kept, HEADERS);
    let other = Asked { fingerprint: Asked::plain("k").fingerprint, ..ours };
    assert_eq!(caller.begin(&other).await.unwrap().decision, "mismatch");

    // SQL answers first, the same.
    let ours = asked(&caller, "sql").await;
    let (begun, _) = begin(&caller, &ours).await;
    assert_eq!(begun.decision, "execute");
    let settle = "CALL retrysafe.settle($1, $2, 'completed', 201, $3::text::text[], $4)";
    let (id, fence) = begun.owner();
    caller.ask(settle, &[&id, &fence, &HEADERS, &ANSWER]).await.unwrap();
    assert_eq!(ask(&api, "sql").await, (status, true, headers.clone(), body.clone()));
    assert_eq!(ask(&api, "layer").await, (status, true, headers, body));
    assert_eq!(runs.load(Ordering::SeqCst), 1, "the handler ran for the first key alone");

    // What SQL has begun is in progress for the layer, and what SQL does not know is unknown.
    let ours = asked(&caller, "running").await;
    let (begun, _) = begin(&caller, &ours).await;
    assert_eq!(ask(&api, "running").await.0, StatusCode::CONFLICT);
    let (id, fence) = begun.owner();
    caller.ask("CALL retrysafe.settle($1, $2, 'unknown')", &[&id, &fence]).await.unwrap();
    let told = ask(&api, "running").await;
    assert!(String::from_utf8_lossy(&told.3).contains("outcome_unknown"), "{told:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
