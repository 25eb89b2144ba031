//! What can be asked of a running worker?
//!
//! Whether it lives, whether it works, and its metrics; without a token, as at the gateway. Verbs about effects belong to the
//! gateway's admin listener, which is there once, while there may be many workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::{StatusCode, header};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use sqlx::PgPool;

/// How long the database may take to show that it is there.
const READY_MAX: Duration = Duration::from_secs(2);

/// What the pages are made from.
pub(super) struct WorkerPages {
    pub pool: PgPool,
    pub metrics: PrometheusHandle,
    pub is_stopping: AtomicBool,
}

/// All pages.
pub(super) fn router(pages: Arc<WorkerPages>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(show_metrics))
        .with_state(pages)
}

async fn ready(State(pages): State<Arc<WorkerPages>>) -> Response {
    let is_stopping = pages.is_stopping.load(Ordering::Acquire);
    let asked = sqlx::raw_sql("SELECT 1").execute(&pages.pool);
    let store = match tokio::time::timeout(READY_MAX, asked).await {
        Ok(Ok(_)) => "ok".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "too slow".to_owned(),
    };
    let is_ready = store == "ok" && !is_stopping;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({"ready": is_ready, "store": store, "stopping": is_stopping})))
        .into_response()
}

async fn show_metrics(State(pages): State<Arc<WorkerPages>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, pages.metrics.render()).into_response()
}
