//! What do operators see and do? (the admin listener)
//!
//! | path | token | what |
//! | --- | --- | --- |
//! | `/livez`, `/healthz` | no | the process runs |
//! | `/readyz` | no | the store can be read and written, and nobody asked for a stop |
//! | `/metrics` | no | Prometheus |
//! | `/api/v1/openapi.json` | no | what follows, for machines |
//! | `/api/v1/…` | yes | keys, their verbs, statistics |
//!
//! It listens on loopback unless told otherwise. A store outage fails readiness, never liveness: a
//! restart would not bring the store back, and would forget who is waiting.

mod error;
mod find;
mod keys;
mod listen;
mod readiness;
mod stats;
pub(crate) mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{StatusCode, header};
use metrics_exporter_prometheus::PrometheusHandle;
use retrysafe::layer::MemoryBudget;
use retrysafe_core::Engine;
use retrysafe_core::event;
use retrysafe_core::store::Store;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::config::Secret;
use error::Refused;
pub(crate) use keys::Given;
pub(crate) use listen::{CONNECTIONS_MAX, Patience, serve};
use readiness::Readiness;

/// The description of the interface.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// What the pages are made from.
pub(crate) struct Admin<S> {
    engine: Engine<Arc<S>>,
    token: Secret,
    metrics: PrometheusHandle,
    memory: MemoryBudget,
    readiness: Readiness,
    is_stopping: AtomicBool,
}

type Shared<S> = State<Arc<Admin<S>>>;

impl<S: Store> Admin<S> {
    pub(crate) fn new(
        store: Arc<S>,
        token: Secret,
        metrics: PrometheusHandle,
        memory: MemoryBudget,
    ) -> Self {
        Self {
            engine: Engine::new(store),
            token,
            metrics,
            memory,
            readiness: Readiness::default(),
            is_stopping: AtomicBool::new(false),
        }
    }

    fn engine(&self) -> &Engine<Arc<S>> {
        &self.engine
    }

    /// From now on not ready.
    pub(crate) fn stopping(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }
}

/// All pages.
pub(crate) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    let api = Router::new()
        .route("/keys", get(keys::list::<S>))
        .route("/keys/find", post(find::find::<S>))
        .route("/keys/{id}", get(keys::show::<S>))
        .route("/keys/{id}/resolve", post(keys::resolve::<S>))
        .route("/keys/{id}/release", post(keys::release::<S>))
        .route("/keys/{id}/expire", post(keys::expire::<S>))
        .route("/stats", get(stats::stats::<S>))
        .fallback(async || Refused::NotFound)
        .layer(middleware::from_fn_with_state(Arc::clone(&admin), authorize::<S>));
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready::<S>))
        .route("/metrics", get(metrics::<S>))
        .route("/api/v1/openapi.json", get(openapi))
        .nest("/api/v1", api)
        .fallback(async || Refused::NotFound)
        .with_state(admin)
}

async fn authorize<S: Store>(
    State(admin): Shared<S>,
    request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let shown = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    // Digests are compared, so that the time it takes says nothing about the token.
    let digest = |text: &str| Sha256::digest(text.as_bytes());
    match shown {
        Some(token) if digest(token) == digest(&admin.token.0) => Ok(next.run(request).await),
        Some(_) | None => Err(Refused::Unauthorized),
    }
}

async fn ready<S: Store>(State(admin): Shared<S>) -> Response {
    let is_stopping = admin.is_stopping.load(Ordering::Acquire);
    let judged = admin.readiness.judge(admin.engine.store()).await;
    let is_ready = judged.is_ok() && !is_stopping;
    let store = judged.err().unwrap_or_else(|| "ok".into());
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let document = json!({"ready": is_ready, "store": store, "stopping": is_stopping});
    (status, Json(document)).into_response()
}

async fn metrics<S: Store>(State(admin): Shared<S>) -> Response {
    // Counted anyway for the budget's sake; to report every change would cost more than to ask now.
    metrics::gauge!(event::HELD_BYTES.name).set(admin.memory.held() as f64);
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, admin.metrics.render()).into_response()
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
