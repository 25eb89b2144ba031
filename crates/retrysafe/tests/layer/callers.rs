//! Is it the same caller, and is it the same request, where nothing but a header differs?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::Request;
use retrysafe::layer::IdempotencyLayer;
use retrysafe::stores::memory::MemoryStore;
use retrysafe_core::policy::Policy;
use retrysafe_core::scope::{Caller, CredentialMark, Scope};
use tower::ServiceExt as _;

/// A shop that counts its sales, and what it answers to one key with these headers.
struct Shop {
    app: Router,
    runs: Arc<AtomicUsize>,
}

impl Shop {
    fn behind(layer: IdempotencyLayer<MemoryStore>) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let sell = move || async move {
            counted.fetch_add(1, Ordering::SeqCst);
            "sold"
        };
        Self { app: Router::new().route("/x", post(sell)).layer(layer), runs }
    }

    async fn ask(&self, host: &str, token: &str) -> (u16, String, bool) {
        let head = Request::post("/x").header("host", host).header("idempotency-key", "k");
        let request = head.header("authorization", token).body(Body::empty()).unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let is_replay = response.headers().contains_key("idempotent-replayed");
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        (status, problem["code"].as_str().unwrap_or_default().to_owned(), is_replay)
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

// A client got a new token between two attempts: it was another caller, and the retry ran again. An application
// that knows whom a token is for, but has not verified it, says so with a mark beside the scope.
#[tokio::test]
async fn a_refreshed_token_never_runs_again() {
    let by_claim = |parts: &http::request::Parts| {
        let token = parts.headers["authorization"].as_bytes();
        let claimed = Scope::of([("sub", &b"alice"[..])]);
        Ok(Caller { scope: claimed, mark: Some(CredentialMark::of(token)) })
    };
    let layer = IdempotencyLayer::new(MemoryStore::default()).policy(Policy::default().strict());
    let shop = Shop::behind(layer.caller(by_claim));
    assert_eq!(shop.ask("shop.test", "Bearer old").await.0, 200);
    let refreshed = shop.ask("shop.test", "Bearer refreshed").await;
    assert_eq!(refreshed, (409, "credential_changed".into(), false));
    assert!(shop.ask("shop.test", "Bearer old").await.2);
    assert_eq!(shop.runs(), 1);
}

// A retry that went through another port was refused as another request. One to another shop still is.
#[tokio::test]
async fn another_host_is_another_request_and_another_port_is_not() {
    let shop = Shop::behind(IdempotencyLayer::new(MemoryStore::default()));
    assert_eq!(shop.ask("api.example.com", "Bearer a").await.0, 200);
    for same in ["api.example.com:443", "API.example.com", "api.example.com."] {
        assert!(shop.ask(same, "Bearer a").await.2, "{same}");
    }
    for other in ["api-eu.example.com", "10.0.0.7:8080"] {
        let refused = shop.ask(other, "Bearer a").await;
        assert_eq!(refused, (422, "idempotency_key_reused".into(), false), "{other}");
    }
    assert_eq!(shop.runs(), 1);
}
