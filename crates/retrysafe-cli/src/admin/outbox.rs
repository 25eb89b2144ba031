//! What can an operator see of effects, and decide about them?
//!
//! Effects live in PostgreSQL. Any other store has no outbox, and says so.

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use retrysafe::outbox::{
    Delivered, EffectFilter, EffectSearch, EffectStanding, Operator, OutboxError, PAGE_MAX,
};
use retrysafe_core::store::Store;
use retrysafe_core::{event, units};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Refused;
use super::keys::read;
use super::operators::Operator as Who;
use super::signature::Signature;
use super::{Admin, Shared, effect_view};
use crate::config::ADMIN_NAME;

/// How many effects a page has unless asked otherwise.
const LIMIT: usize = 100;

/// How many dead effects are requeued in a second unless asked otherwise: a receiver that was down is not knocked over.
const PER_SECOND: u32 = 10;

/// Which effects to list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listing {
    state: Option<String>,
    kind: Option<String>,
    lane: Option<String>,
    error: Option<String>,
    older_than: Option<String>,
    limit: Option<usize>,
    cursor: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Decision {
    reason: Option<String>,
    #[serde(alias = "who")]
    operator: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Verdict {
    outcome: String,
    fence: Option<i64>,
    reference: Option<String>,
    settle_time: Option<String>,
    reason: Option<String>,
    #[serde(alias = "who")]
    operator: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfDead {
    kind: Option<String>,
    error: Option<String>,
    older_than: Option<String>,
    per_second: Option<u32>,
    dry_run: Option<bool>,
    reason: Option<String>,
    #[serde(alias = "who")]
    operator: Option<String>,
}

pub(crate) async fn list<S: Store>(
    State(admin): Shared<S>,
    query: Result<Query<Listing>, QueryRejection>,
) -> Result<Json<Value>, Refused> {
    let Query(listing) = query.map_err(|why| Refused::Invalid(why.body_text()))?;
    let standing = match &listing.state {
        None => None,
        Some(name) => Some(EffectStanding::named(name).ok_or_else(|| {
            let names = EffectStanding::ALL.map(EffectStanding::name).join(", ");
            Refused::Invalid(format!("`state` is one of {names}"))
        })?),
    };
    let older_than = age(listing.older_than.as_deref())?;
    let Listing { kind, lane, error, limit, cursor, .. } = listing;
    let filter = EffectFilter { standing, kind, lane, error, older_than };
    let limit = limit.unwrap_or(LIMIT).clamp(1, PAGE_MAX);
    let page = reader(&admin)?.list(&filter, cursor, limit).await?;
    let effects: Vec<Value> = page.effects.iter().map(effect_view::summary).collect();
    Ok(Json(json!({"effects": effects, "cursor": page.next})))
}

pub(crate) async fn show<S: Store>(
    State(admin): Shared<S>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let details = reader(&admin)?.show(parse(&id)?).await?;
    Ok(Json(effect_view::whole(&details)))
}

pub(crate) async fn stats<S: Store>(State(admin): Shared<S>) -> Result<Json<Value>, Refused> {
    let stats = reader(&admin)?.stats().await?;
    Ok(Json(effect_view::stats(&stats)))
}

pub(crate) async fn retry<S: Store>(
    State(admin): Shared<S>,
    Extension(who): Extension<Who>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Decision { reason, operator: claimed } = read(&body)?;
    let signature = Signature::new(&who, claimed.as_deref(), reason.as_deref())?;
    let operator = signed(&admin, &signature)?;
    let reason = signature.reason();
    let id = parse(&id)?;
    let decided = operator.retry(id, reason).await;
    audit("outbox_retry", &id.to_string(), &signature, &decided);
    stands(&operator, id, decided).await
}

pub(crate) async fn cancel<S: Store>(
    State(admin): Shared<S>,
    Extension(who): Extension<Who>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Decision { reason, operator: claimed } = read(&body)?;
    let signature = Signature::new(&who, claimed.as_deref(), reason.as_deref())?;
    let operator = signed(&admin, &signature)?;
    let reason = signature.reason();
    let id = parse(&id)?;
    let decided = operator.cancel(id, reason).await;
    audit("outbox_cancel", &id.to_string(), &signature, &decided);
    stands(&operator, id, decided).await
}

pub(crate) async fn resolve<S: Store>(
    State(admin): Shared<S>,
    Extension(who): Extension<Who>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Verdict { outcome, fence, reference, settle_time, reason, operator: claimed } =
        read(&body)?;
    let settle_time = age(settle_time.as_deref())?;
    let found = match (outcome.as_str(), reference, settle_time) {
        ("delivered", Some(reference), None) => EffectSearch::Found(Delivered::known_as(reference)),
        ("delivered", None, None) => EffectSearch::Found(Delivered::default()),
        ("no_effect", None, None) => EffectSearch::NoEffect,
        ("unwanted", None, None) => EffectSearch::Unwanted,
        ("not_found", None, Some(settle_time)) => EffectSearch::NotFound { settle_time },
        _ => {
            let why = "`outcome` is delivered (with a `reference`, if there is one), no_effect, unwanted, or \
                       not_found with a `settle_time`: how long a packet may be on its way";
            return Err(Refused::Invalid(why.into()));
        }
    };
    let signature = Signature::new(&who, claimed.as_deref(), reason.as_deref())?;
    let operator = signed(&admin, &signature)?;
    let reason = signature.reason();
    let id = parse(&id)?;
    let fence = match fence {
        Some(seen) => seen,
        None => operator.show(id).await?.effect.fence,
    };
    let decided = operator.resolve(id, fence, found, reason).await;
    audit("outbox_resolve", &id.to_string(), &signature, &decided);
    stands(&operator, id, decided).await
}

pub(crate) async fn pause<S: Store>(
    State(admin): Shared<S>,
    Extension(who): Extension<Who>,
    Path(kind): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Decision { reason, operator: claimed } = read(&body)?;
    let signature = Signature::new(&who, claimed.as_deref(), reason.as_deref())?;
    let operator = signed(&admin, &signature)?;
    let reason = signature.reason();
    let changed = operator.pause(&kind, reason).await;
    audit("outbox_pause", &kind, &signature, &changed);
    Ok(Json(json!({"kind": kind, "paused": true, "changed": changed?})))
}

pub(crate) async fn resume<S: Store>(
    State(admin): Shared<S>,
    Extension(who): Extension<Who>,
    Path(kind): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Decision { reason, operator: claimed } = read(&body)?;
    let signature = Signature::new(&who, claimed.as_deref(), reason.as_deref())?;
    let operator = signed(&admin, &signature)?;
    let reason = signature.reason();
    let changed = operator.resume(&kind, reason).await;
    audit("outbox_resume", &kind, &signature, &changed);
    Ok(Json(json!({"kind": kind, "paused": false, "changed": changed?})))
}

pub(crate) async fn requeue_dead<S: Store>(
    State(admin): Shared<S>,
    Extension(who): Extension<Who>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let asked: OfDead = read(&body)?;
    let (filter, is_dry_run, signature) = asked.parts(&who)?;
    let operator = signed(&admin, &signature)?;
    let reason = signature.reason();
    let per_second = asked.per_second.unwrap_or(PER_SECOND);
    if per_second == 0 {
        return Err(Refused::Invalid("`per_second` is at least 1".into()));
    }
    let ended = operator.requeue_dead(&filter, per_second, is_dry_run, reason).await;
    audit("dlq_requeue", filter.kind.as_deref().unwrap_or("-"), &signature, &ended);
    let ended = ended?;
    Ok(Json(json!({
        "matched": ended.matched, "changed": ended.changed, "refused": ended.matched - ended.changed,
        "dry_run": is_dry_run, "per_second": per_second,
    })))
}

pub(crate) async fn purge_dead<S: Store>(
    State(admin): Shared<S>,
    Extension(who): Extension<Who>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let asked: OfDead = read(&body)?;
    if asked.per_second.is_some() {
        return Err(Refused::Invalid("a purge has no `per_second`".into()));
    }
    let (filter, is_dry_run, signature) = asked.parts(&who)?;
    let operator = signed(&admin, &signature)?;
    let reason = signature.reason();
    let ended = operator.purge_dead(&filter, is_dry_run, reason).await;
    audit("dlq_purge", filter.kind.as_deref().unwrap_or("-"), &signature, &ended);
    let ended = ended?;
    Ok(Json(json!({
        "matched": ended.matched, "changed": ended.changed, "refused": ended.matched - ended.changed,
        "dry_run": is_dry_run,
    })))
}

impl OfDead {
    /// Which effects, whether nothing is to be changed, and why.
    fn parts(&self, who: &Who) -> Result<(EffectFilter, bool, Signature), Refused> {
        let filter = EffectFilter {
            kind: self.kind.clone(),
            error: self.error.clone(),
            older_than: age(self.older_than.as_deref())?,
            ..EffectFilter::default()
        };
        let is_dry_run = self.dry_run.unwrap_or(false);
        // A dry run decides nothing.
        let reason = if is_dry_run { Some("dry run") } else { self.reason.as_deref() };
        Ok((filter, is_dry_run, Signature::new(who, self.operator.as_deref(), reason)?))
    }
}

fn parse(id: &str) -> Result<i64, Refused> {
    id.parse().map_err(|_| Refused::NotFound)
}

/// Whoever only looks, over the store of the gateway.
fn reader<S>(admin: &Admin<S>) -> Result<Operator, Refused> {
    let store = admin.outbox.clone().ok_or(Refused::NoOutbox)?;
    Ok(Operator::of_store(store, ADMIN_NAME))
}

/// Whoever decides, over the store of the gateway.
fn signed<S>(admin: &Admin<S>, signature: &Signature) -> Result<Operator, Refused> {
    let store = admin.outbox.clone().ok_or(Refused::NoOutbox)?;
    Ok(Operator::of_store(store, signature.who()))
}

/// The effect as it stands now, unless the decision was refused.
async fn stands(
    operator: &Operator,
    id: i64,
    decided: Result<(), OutboxError>,
) -> Result<Json<Value>, Refused> {
    decided?;
    Ok(Json(effect_view::whole(&operator.show(id).await?)))
}

/// Audits a decision. Who and why stand beside the effect too.
fn audit<T>(
    verb: &'static str,
    about: &str,
    signature: &Signature,
    decided: &Result<T, OutboxError>,
) {
    let result = match decided {
        Ok(_) => "done",
        Err(OutboxError::Absent) => "absent",
        Err(OutboxError::Store(_) | OutboxError::Database(_)) => "failed",
        Err(_) => "refused",
    };
    let operator = signature.who();
    let reason = signature.reason();
    tracing::info!(target: "audit", verb, about, operator, reason, result, "admin_action");
    metrics::counter!(event::ADMIN_ACTIONS.name, "verb" => verb, "result" => result).increment(1);
}

fn age(text: Option<&str>) -> Result<Option<std::time::Duration>, Refused> {
    let read =
        |text| units::parse_duration(text).map_err(|error| Refused::Invalid(error.to_string()));
    text.map(read).transpose()
}
