//! A ride, its charge at a provider and its receipt: one operation, killed anywhere, done once.
//!
//! ```sh
//! cargo run -p payment-provider &
//! export DATABASE_URL=postgres://postgres@localhost/postgres
//! cargo run -p ride-payments
//! curl -i localhost:3000/rides -H 'authorization: Bearer alice' -H 'idempotency-key: k-1' \
//!      -H 'content-type: application/json' -d '{"booking": "b-1", "place": "Kotti", "cents": 1200}'
//! ```
//!
//! README.md says what can be set, and what to try.

mod break_points;
mod rides;

use std::error::Error;
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use retrysafe::core::{Policy, Scope};
use retrysafe::layer::{Attempt, Drain, IdempotencyLayer};
use retrysafe::outbox::Outbox;
use retrysafe::phases::{Flows, Provider};
use retrysafe::stores::postgres::PostgresStore;
use retrysafe::upkeep::{Tending, Upkeep};
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use break_points::BreakPoints;
use rides::Booking;

/// How long what has begun may take to end when the process is told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// How many connections the phases share. A completer holds four at the most.
const CONNECTIONS_MAX: u32 = 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = variable("LISTEN").unwrap_or_else(|| "127.0.0.1:3000".into());
    let (api, drain, upkeep) = open(&std::env::var("DATABASE_URL")?).await?;
    let listener = TcpListener::bind(address).await?;
    let mut told_to_stop = signal(SignalKind::terminate())?;
    axum::serve(listener, api)
        .with_graceful_shutdown(async move {
            told_to_stop.recv().await;
        })
        .await?;
    // What was begun is settled before the process ends, also for clients that have left.
    let settled = drain.wait(DRAIN_MAX).await;
    upkeep.stop().await;
    settled.map_err(|left| format!("{left} rides are left to be resumed").into())
}

/// The application over this database, with its tables made.
async fn open(url: &str) -> Result<(Router, Drain, Tending), Box<dyn Error>> {
    let store = PostgresStore::connect(url).await?;
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS_MAX).connect(url).await?;
    rides::make_tables(&pool).await?;
    let mut policy = Policy::default().strict();
    if let Some(lease) = milliseconds("LEASE_MS")? {
        policy.lease = lease;
        policy.lease_max = policy.lease_max.min(lease * 3);
    }
    let payments = variable("PROVIDER").unwrap_or_else(|| "http://127.0.0.1:4000".into());
    let breaks = BreakPoints::from_environment();
    let outbox = Outbox::new(pool.clone());
    let flow = rides::create_ride(provider()?, &payments, outbox, breaks.clone())?;
    let flows = Flows::new(pool, store.clone()).policy(policy.clone()).with(&flow);

    // Finishes the rides that nobody comes back for.
    let pause = milliseconds("COMPLETE_EVERY_MS")?.unwrap_or(Duration::from_secs(10));
    let upkeep = Upkeep::new(store.clone()).complete(flows.clone(), pause).start();

    let layer = IdempotencyLayer::new(store).policy(policy).flows(flows.versions());
    let layer = layer.scope(|parts| {
        let credential = parts.headers.get(AUTHORIZATION)?;
        let digest = Scope::digest_of(credential.as_bytes());
        Some(Scope::of([("account", digest.as_bytes())]))
    });
    let drain = layer.drain();
    let book = async move |attempt: Attempt, Json(booking): Json<Booking>| {
        if breaks.at(&booking.booking, "request begun").await.is_err() {
            return refusal();
        }
        let answer = flows.answer(&flow, &attempt, &booking).await;
        if breaks.at(&booking.booking, "answer committed").await.is_err() {
            return refusal();
        }
        answer
    };
    Ok((Router::new().route("/rides", post(book)).layer(layer), drain, upkeep))
}

/// What the provider's documents say about keys.
fn provider() -> Result<Provider, Box<dyn Error>> {
    let remembers = variable("PROVIDER_REMEMBERS_MS");
    let provider = match remembers.as_deref() {
        Some("0") => Provider::takes_no_key(),
        Some(ms) => Provider::remembers_keys_for(Duration::from_millis(ms.parse()?)),
        None => Provider::remembers_keys_for(Duration::from_secs(24 * 60 * 60)),
    };
    Ok(match milliseconds("PROVIDER_MARGIN_MS")? {
        Some(margin) => provider.margin(margin),
        None => provider,
    })
}

fn milliseconds(name: &str) -> Result<Option<Duration>, Box<dyn Error>> {
    let Some(text) = variable(name) else { return Ok(None) };
    let count = text.parse().map_err(|error| format!("{name}: {error}"))?;
    Ok(Some(Duration::from_millis(count)))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn refusal() -> Response<Full<Bytes>> {
    let mut refusal = Response::new(Full::default());
    *refusal.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    refusal
}
