//! What do operators see and do? (the admin listener)
//!
//! | path | role | what |
//! | --- | --- | --- |
//! | `/livez`, `/healthz` | none | the process runs |
//! | `/readyz` | none | the store can be read and written, and nobody asked for a stop |
//! | `/metrics` | none | Prometheus |
//! | `/api/v1/openapi.json` | none | what follows, for machines |
//! | `/api/v1/…`, every GET, and `keys/find` | read | keys, what is unknown, effects, events, statistics, store, configuration, ledgers |
//! | `resolve`, `release`, `poll`; `retry`, `cancel`, `resolve` of an effect; `replay` of an event | decide | a decision about one thing |
//! | `expire`; `pause`, `resume`, `requeue`, `purge` | administer | what is forgotten, what stands still, many at once |
//!
//! It listens on loopback unless told otherwise. A store outage fails readiness, never liveness: a
//! restart would not bring the store back, and would forget who is waiting.

mod decisions;
pub(crate) mod effect_view;
mod error;
mod event_view;
mod evidence;
mod find;
mod given;
mod inbox;
mod keys;
mod ledger_reports;
mod listen;
mod operators;
mod outbox;
mod readiness;
mod scopes;
mod settings;
mod signature;
mod stats;
mod store_view;
mod story;
mod unknown;
pub(crate) mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use axum::extract::State;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{StatusCode, header};
use metrics_exporter_prometheus::PrometheusHandle;
use retrysafe::layer::{MemoryBudget, ScopeTally};
use retrysafe::stores::postgres::PostgresStore;
use retrysafe::webhooks::Webhooks;
use retrysafe_core::Engine;
use retrysafe_core::event;
use retrysafe_core::record::{Record, State as RecordState};
use retrysafe_core::store::Store;
use serde_json::json;

use crate::config::Role;
use crate::upstream_board::UpstreamBoard;
use error::Refused;
pub(crate) use listen::{CONNECTIONS_MAX, Patience, serve};
pub(crate) use operators::Operators;
use operators::{Gatekeeper, authorize};
use readiness::Readiness;
pub(crate) use settings::Settings;
pub(crate) use store_view::StoreFacts;
pub(crate) use unknown::{LookupDesk, Polling};

/// The description of the interface.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// What the pages are made from.
pub(crate) struct Admin<S> {
    engine: Engine<Arc<S>>,
    /// Where effects are, if the store has an outbox.
    outbox: Option<PostgresStore>,
    webhooks: SharedWebhooks<S>,
    operators: ArcSwap<Operators>,
    /// Who can be asked about unknown records.
    desk: Option<Arc<dyn LookupDesk>>,
    /// What was listed of them lately.
    lists: unknown::RememberedLists,
    metrics: PrometheusHandle,
    memory: MemoryBudget,
    readiness: Readiness,
    is_stopping: AtomicBool,
    upstreams: UpstreamBoard,
    store_facts: StoreFacts,
    settings: ArcSwap<Settings>,
    tally: ScopeTally,
}

/// What receives webhooks. A reload of the configuration exchanges it.
pub(crate) type SharedWebhooks<S> = Arc<ArcSwap<Webhooks<Arc<S>>>>;

type Shared<S> = State<Arc<Admin<S>>>;

impl<S: Store> Admin<S> {
    pub(crate) fn new(
        store: Arc<S>,
        outbox: Option<PostgresStore>,
        operators: Operators,
        desk: Option<Arc<dyn LookupDesk>>,
        metrics: PrometheusHandle,
        memory: MemoryBudget,
    ) -> Self {
        let webhooks = Webhooks::new(Arc::clone(&store), None, Vec::new());
        Self {
            engine: Engine::new(store),
            outbox,
            webhooks: Arc::new(ArcSwap::from_pointee(webhooks)),
            operators: ArcSwap::from_pointee(operators),
            desk,
            lists: unknown::RememberedLists::default(),
            metrics,
            memory,
            readiness: Readiness::default(),
            is_stopping: AtomicBool::new(false),
            upstreams: UpstreamBoard::default(),
            store_facts: StoreFacts::default(),
            settings: ArcSwap::default(),
            tally: ScopeTally::default(),
        }
    }

    /// The same, with what receives webhooks, so that they can be replayed.
    pub(crate) fn with_webhooks(self, webhooks: SharedWebhooks<S>) -> Self {
        Self { webhooks, ..self }
    }

    /// Shows how the upstreams are, too.
    pub(crate) fn with_upstreams(self, upstreams: UpstreamBoard) -> Self {
        Self { upstreams, ..self }
    }

    /// Shows what is known of the store and which configuration holds, too.
    pub(crate) fn with_facts(self, store_facts: StoreFacts, settings: Settings) -> Self {
        Self { store_facts, settings: ArcSwap::from_pointee(settings), ..self }
    }

    /// Shows whose requests are repeated and whose keys are misused, too.
    pub(crate) fn with_tally(self, tally: ScopeTally) -> Self {
        Self { tally, ..self }
    }

    fn engine(&self) -> &Engine<Arc<S>> {
        &self.engine
    }

    /// How many lookups the schedule has for an unknown record; none if this process does not look it up.
    fn planned_lookups(&self, unknown: &Record) -> Option<u32> {
        self.desk.as_ref().and_then(|desk| desk.planned(unknown))
    }

    /// Refuses a decision that is only for records whose lookups have given up, or only for the others.
    fn check_lookups(&self, unknown: &Record, wanted: Option<bool>) -> Result<(), Refused> {
        let RecordState::Unknown { lookups, .. } = &unknown.state else { return Ok(()) };
        let Some(wanted) = wanted else { return Ok(()) };
        match story::have_given_up(*lookups, self.planned_lookups(unknown)) {
            None => Err(Refused::LookupsUnseen),
            Some(given_up) if given_up == wanted => Ok(()),
            Some(given_up) => Err(Refused::LookupsDiffer { given_up }),
        }
    }

    /// From now on these may ask, and nobody else.
    pub(crate) fn set_operators(&self, operators: Operators) {
        self.operators.store(Arc::new(operators));
    }

    /// The configuration that holds.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// From now on this configuration holds.
    pub(crate) fn set_settings(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// From now on not ready.
    pub(crate) fn stopping(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }
}

/// All pages.
pub(crate) fn router<S: Store>(admin: Arc<Admin<S>>) -> Router {
    let only = |pages: Router<Arc<Admin<S>>>, needed: Role| {
        let gatekeeper = Gatekeeper { admin: Arc::clone(&admin), needed };
        pages.layer(middleware::from_fn_with_state(gatekeeper, authorize::<S>))
    };
    let seen = Router::new()
        .route("/keys", get(keys::list::<S>))
        .route("/keys/find", post(find::find::<S>))
        .route("/keys/{id}", get(keys::show::<S>))
        .route("/unknown", get(unknown::list::<S>))
        .route("/whoami", get(operators::whoami))
        .route("/stats", get(stats::stats::<S>))
        .route("/store", get(store_view::show::<S>))
        .route("/config", get(settings::show::<S>))
        .route("/ledger", get(ledger_reports::list::<S>))
        .route("/outbox", get(outbox::list::<S>))
        .route("/outbox/stats", get(outbox::stats::<S>))
        .route("/outbox/{id}", get(outbox::show::<S>))
        .fallback(async || Refused::NotFound);
    let decided = Router::new()
        .route("/keys/{id}/resolve", post(decisions::resolve::<S>))
        .route("/keys/{id}/release", post(decisions::release::<S>))
        .route("/keys/{id}/poll", post(unknown::poll::<S>))
        .route("/outbox/{id}/retry", post(outbox::retry::<S>))
        .route("/outbox/{id}/cancel", post(outbox::cancel::<S>))
        .route("/outbox/{id}/resolve", post(outbox::resolve::<S>));
    let administered = Router::new()
        .route("/keys/{id}/expire", post(decisions::expire::<S>))
        .route("/outbox/kinds/{kind}/pause", post(outbox::pause::<S>))
        .route("/outbox/kinds/{kind}/resume", post(outbox::resume::<S>))
        .route("/outbox/dead/requeue", post(outbox::requeue_dead::<S>))
        .route("/outbox/dead/purge", post(outbox::purge_dead::<S>));
    let seen = seen.merge(inbox::seen::<S>());
    let decided = decided.merge(inbox::decided::<S>());
    let api = only(seen, Role::Read)
        .merge(only(decided, Role::Decide))
        .merge(only(administered, Role::Administer));
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

async fn ready<S: Store>(State(admin): Shared<S>) -> Response {
    let is_stopping = admin.is_stopping.load(Ordering::Acquire);
    let judged = admin.readiness.judge(admin.engine.store()).await;
    let is_ready = judged.is_ok() && !is_stopping;
    let store = judged.err().unwrap_or_else(|| "ok".into());
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // A gateway whose upstream is unhealthy says so, and stays ready: it knows best how to refuse.
    let upstreams = admin.upstreams.document();
    let document =
        json!({"ready": is_ready, "store": store, "stopping": is_stopping, "upstreams": upstreams});
    (status, Json(document)).into_response()
}

async fn metrics<S: Store>(State(admin): Shared<S>) -> Response {
    // Counted anyway for the budget's sake; to report every change would cost more than to ask now.
    metrics::gauge!(event::HELD_BYTES.name).set(admin.memory.held() as f64);
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, admin.metrics.render() + &scopes::metrics(&admin.tally)).into_response()
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
