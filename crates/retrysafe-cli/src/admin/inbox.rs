//! What can an operator see of webhooks, and do about them?
//!
//! Events are kept in PostgreSQL. Any other store has no inbox, and says so.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use retrysafe::webhooks::{EVENTS_PAGE_MAX, EventStanding, Inbox, ReplayError};
use retrysafe_core::event;
use retrysafe_core::store::Store;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Refused;
use super::keys::read;
use super::operators::Operator;
use super::signature::Signature;
use super::{Admin, Shared, event_view};

/// How many events a page has unless asked otherwise.
const LIMIT: usize = 100;

/// The pages that show events.
pub(super) fn seen<S: Store>() -> Router<Arc<Admin<S>>> {
    Router::new().route("/inbox", get(list::<S>)).route("/inbox/{id}", get(show::<S>))
}

/// The pages that decide about one.
pub(super) fn decided<S: Store>() -> Router<Arc<Admin<S>>> {
    Router::new().route("/inbox/{id}/replay", post(replay::<S>))
}

/// Which events to list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    state: Option<String>,
    provider: Option<String>,
    limit: Option<usize>,
    cursor: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Replay {
    reason: Option<String>,
    #[serde(alias = "who")]
    operator: Option<String>,
}

async fn list<S: Store>(
    State(admin): Shared<S>,
    query: Result<Query<Listing>, QueryRejection>,
) -> Result<Json<Value>, Refused> {
    let Query(listing) = query.map_err(|why| Refused::Invalid(why.body_text()))?;
    let standing = match listing.state.as_deref() {
        None | Some("") => None,
        Some(name) => Some(EventStanding::named(name).ok_or_else(|| {
            let names = EventStanding::ALL.map(EventStanding::name).join(", ");
            Refused::Invalid(format!("`state` is one of {names}"))
        })?),
    };
    let limit = listing.limit.unwrap_or(LIMIT).clamp(1, EVENTS_PAGE_MAX);
    let provider = listing.provider.as_deref();
    let events = inbox(&admin)?.list(standing, provider, listing.cursor, limit).await?;
    let is_full = events.len() == limit;
    let next = events.last().map(|event| event.id).filter(|_| is_full);
    let events: Vec<Value> = events.iter().map(event_view::summary).map(Value::Object).collect();
    Ok(Json(json!({"events": events, "cursor": next})))
}

async fn show<S: Store>(
    State(admin): Shared<S>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let details = inbox(&admin)?.show(parse(&id)?).await?.ok_or(Refused::NotFound)?;
    Ok(Json(event_view::whole(&details)))
}

async fn replay<S: Store>(
    State(admin): Shared<S>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Replay { reason, operator: claimed } = read(&body)?;
    let signature = Signature::new(&operator, claimed.as_deref(), reason.as_deref())?;
    let reason = signature.reason();
    let who = signature.who();
    let (inbox, number) = (inbox(&admin)?, parse(&id)?);
    let replayed = admin.webhooks.load_full().replay(number, who, reason).await;
    let result = match &replayed {
        Ok(()) => "done",
        Err(ReplayError::Absent) => "absent",
        Err(ReplayError::Store(_)) => "failed",
        Err(ReplayError::Ended | ReplayError::NoProvider) => "refused",
    };
    let verb = "inbox_replay";
    tracing::info!(target: "audit", verb, about = id, operator = who, reason, result, "admin_action");
    metrics::counter!(event::ADMIN_ACTIONS.name, "verb" => verb, "result" => result).increment(1);
    replayed.map_err(|error| match error {
        ReplayError::Absent => Refused::NotFound,
        ReplayError::Store(error) => Refused::Store(error),
        ReplayError::NoProvider => {
            Refused::Event("Its provider is not configured here: set [webhooks.NAME].")
        }
        ReplayError::Ended => Refused::Event(
            "It was applied, or agrees with what is known. There is nothing to replay.",
        ),
    })?;
    let details = inbox.show(number).await?.ok_or(Refused::NotFound)?;
    Ok(Json(event_view::whole(&details)))
}

fn inbox<S>(admin: &Admin<S>) -> Result<Inbox, Refused> {
    admin.outbox.clone().map(Inbox::new).ok_or(Refused::NoInbox)
}

fn parse(id: &str) -> Result<i64, Refused> {
    id.parse().map_err(|_| Refused::NotFound)
}
