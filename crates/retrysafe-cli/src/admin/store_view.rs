//! What is known of the store, without reading it?
//!
//! Its kind and what it promises, how much it holds, how often it is tidied, and what was found in it when this process started. The
//! counts are the store's own census, which is cheap by its contract.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use retrysafe_core::store::{Census, Stamped, Store};
use serde_json::{Value, json};

use super::Shared;
use super::error::Refused;
use super::view::time;

/// What was known of the store when the process started.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreFacts {
    /// Such as `disk`.
    pub kind: &'static str,
    /// Where it is, without a password.
    pub url: String,
    /// How safe records are there, for people.
    pub durable: String,
    pub started_at: Timestamp,
    /// How many requests the former process left running: nobody knows their outcome.
    pub left_running: usize,
    /// What the store held.
    pub census: Census,
}

pub(super) async fn show<S: Store>(State(admin): Shared<S>) -> Result<Json<Value>, Refused> {
    let Stamped { now, value: census } = admin.engine().store().census().await?;
    let facts = &admin.store_facts;
    let settings = admin.settings.load();
    Ok(Json(json!({
        "kind": facts.kind,
        "url": facts.url,
        "durable": facts.durable,
        "now": time(now),
        "records": census.records,
        "bytes": census.bytes,
        "unknown": census.unknown,
        "unknown_since": census.unknown_since.map(time),
        "sweep_every_seconds": settings.sweep_every.as_secs_f64(),
        "reap_every_seconds": settings.reap_every.as_secs_f64(),
        "at_start": {
            "at": format!("{:.3}", facts.started_at),
            "left_running": facts.left_running,
            "unknown": facts.census.unknown,
            "records": facts.census.records,
            "bytes": facts.census.bytes,
        },
    })))
}
