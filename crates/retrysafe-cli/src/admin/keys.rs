//! What can an operator see of keys, and do to them?

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{HeaderName, HeaderValue, StatusCode};
use retrysafe_core::engine::Ruled;
use retrysafe_core::event;
use retrysafe_core::machine::{Evidence, Proof, Verdict};
use retrysafe_core::record::{Answer, Fence, Judge, Record, Standing};
use retrysafe_core::response::{StoredResponse, is_stripped};
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{Cursor, Filter, PAGE_MAX, Page, Stamped, Store};
use retrysafe_core::time::Time;
use retrysafe_core::{StoreError, units};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::error::Refused;
use super::{Admin, Shared, view};

/// How many keys a page has unless asked otherwise.
const LIMIT: usize = 100;

/// The largest answer an operator may give, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// How many bytes of its digest follow a cursor: enough to tell a slip of the hand.
const CURSOR_DIGEST_BYTES: usize = 4;

/// Which keys to list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listing {
    state: Option<String>,
    route: Option<String>,
    path: Option<String>,
    scope: Option<String>,
    older_than: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Because {
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    reason: Option<String>,
    fence: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resolve {
    outcome: String,
    reason: Option<String>,
    fence: Option<u64>,
    response: Option<Given>,
}

/// An answer that an operator gives.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Given {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
}

pub(crate) async fn list<S: Store>(
    State(admin): Shared<S>,
    query: Result<Query<Listing>, QueryRejection>,
) -> Result<Json<Value>, Refused> {
    let Query(listing) = query.map_err(|why| Refused::Invalid(why.body_text()))?;
    let filter = filter(&admin, &listing).await?;
    let after = listing.cursor.as_deref().map(read_cursor).transpose()?;
    if after.as_ref().is_some_and(|cursor| cursor.version().is_err()) {
        return Err(foreign_cursor());
    }
    let limit = listing.limit.unwrap_or(LIMIT).clamp(1, PAGE_MAX);
    let query = retrysafe_core::store::Query { filter, after, limit };
    let Stamped { now, value } = admin.engine().store().latest(query).await?;
    Ok(Json(page(&value, now)))
}

pub(crate) async fn show<S: Store>(
    State(admin): Shared<S>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let found = admin.engine().look(parse(&id)?).await?;
    let record = found.value.ok_or(Refused::NotFound)?;
    Ok(Json(view::whole(&record)))
}

pub(crate) async fn resolve<S: Store>(
    State(admin): Shared<S>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Resolve { outcome, reason, fence, response } = read(&body)?;
    let evidence = match (outcome.as_str(), response) {
        ("completed", Some(given)) => Evidence::Executed(given.answer().map_err(Refused::Invalid)?),
        ("completed", None) => Evidence::Executed(Answer::NotKept { status: None, location: None }),
        ("failed_retryable", None) => Evidence::NotExecuted(Proof::operator()),
        ("failed_retryable", Some(_)) => {
            return Err(Refused::Invalid("what was not executed has no `response`".into()));
        }
        _ => {
            let why = "`outcome` is completed or failed_retryable";
            return Err(Refused::Invalid(why.into()));
        }
    };
    decide(&admin, &id, "resolve", evidence, fence, reason.as_deref()).await
}

pub(crate) async fn release<S: Store>(
    State(admin): Shared<S>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Release { reason, fence } = read(&body)?;
    let evidence = Evidence::NotExecuted(Proof::operator());
    decide(&admin, &id, "release", evidence, fence, reason.as_deref()).await
}

pub(crate) async fn expire<S: Store>(
    State(admin): Shared<S>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Because { reason } = read(&body)?;
    let id = parse(&id)?;
    let reason = needed(reason.as_deref())?;
    let ruled = admin.engine().expire(id, reason).await;
    ruling(id, "expire", reason, None, ruled)
}

/// Decides about the attempt that the operator has seen, or, where that is not said, about the one
/// that is there.
async fn decide<S: Store>(
    admin: &Admin<S>,
    id: &str,
    verb: &'static str,
    evidence: Evidence,
    seen: Option<u64>,
    reason: Option<&str>,
) -> Result<Json<Value>, Refused> {
    let id = parse(id)?;
    let reason = needed(reason)?;
    let standing = evidence.standing();
    let fence = match seen {
        Some(seen) => Fence(seen),
        None => admin.engine().look(id).await?.value.ok_or(Refused::NotFound)?.fence,
    };
    let verdict = Verdict { fence, evidence, judge: Judge::Operator, reason: reason.into() };
    let ruled = admin.engine().resolve(id, &verdict).await;
    if let Ok(Ruled::Done(_)) = &ruled {
        let labels = [("standing", standing.name()), ("judge", Judge::Operator.name())];
        metrics::counter!(event::RECONCILE_RESOLVED.name, &labels).increment(1);
    }
    ruling(id, verb, reason, Some(fence), ruled)
}

/// Audits an action, and says what became of it. The reason is on the record's timeline too.
fn ruling(
    id: Id,
    verb: &'static str,
    reason: &str,
    about: Option<Fence>,
    ruled: Result<Ruled, StoreError>,
) -> Result<Json<Value>, Refused> {
    let (result, answer) = match ruled {
        Ok(Ruled::Done(record)) => ("done", Ok(Json(view::whole(&record)))),
        Ok(Ruled::Refused(record)) => ("refused", Err(refusal(&record, about))),
        Ok(Ruled::Absent) => ("absent", Err(Refused::NotFound)),
        Err(error) => ("failed", Err(error.into())),
    };
    tracing::info!(target: "audit", verb, %id, reason, result, "admin_action");
    metrics::counter!(event::ADMIN_ACTIONS.name, "verb" => verb, "result" => result).increment(1);
    answer
}

/// Why a verb was not for a record: it is settled, or it is about another attempt by now.
fn refusal(record: &Record, about: Option<Fence>) -> Refused {
    let standing = record.standing();
    let is_open = matches!(standing, Standing::InProgress | Standing::Unknown);
    if is_open && about.is_some_and(|about| about != record.fence) {
        Refused::AnotherAttempt(record.fence)
    } else {
        Refused::Conflict(standing.name())
    }
}

/// A page as it is shown. Records that are over and not reaped yet are not.
pub(super) fn page(page: &Page, now: Time) -> Value {
    let live = |record: &&Record| !record.is_expired(now);
    json!({
        "keys": page.records.iter().filter(live).map(view::summary).collect::<Vec<_>>(),
        "damaged": page.damaged.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "cursor": page.next.as_ref().map(show_cursor),
    })
}

/// A cursor as it is shown: a store reads its own and nothing else, so a digest tells them apart.
fn show_cursor(Cursor(place): &Cursor) -> String {
    URL_SAFE_NO_PAD.encode([&place[..], &cursor_digest(place)].concat())
}

pub(super) fn read_cursor(text: &str) -> Result<Cursor, Refused> {
    shown_cursor(text).ok_or_else(foreign_cursor)
}

fn shown_cursor(text: &str) -> Option<Cursor> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (place, digest) = bytes.split_at_checked(bytes.len().checked_sub(CURSOR_DIGEST_BYTES)?)?;
    (cursor_digest(place) == digest).then(|| Cursor(place.to_vec()))
}

fn foreign_cursor() -> Refused {
    Refused::Invalid("`cursor` is not one of ours".into())
}

fn cursor_digest(place: &[u8]) -> Vec<u8> {
    Sha256::digest(place).iter().copied().take(CURSOR_DIGEST_BYTES).collect()
}

async fn filter<S: Store>(admin: &Admin<S>, listing: &Listing) -> Result<Filter, Refused> {
    let standing = match listing.state.as_deref() {
        None | Some("") => None,
        Some(name) => Some(Standing::parse(name).ok_or_else(|| {
            let names = Standing::ALL.map(Standing::name).join(", ");
            Refused::Invalid(format!("`state` is one of {names}"))
        })?),
    };
    let created_before = match &listing.older_than {
        None => None,
        Some(text) => {
            let age = units::parse_duration(text)
                .map_err(|error| Refused::Invalid(format!("`older_than`: {error}")))?;
            // The store's clock counts, not ours; it answers with every call.
            let now = admin.engine().look(Id::from_bytes([0; 32])).await?.now;
            let ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            Some(Time::from_ms(now.as_ms().saturating_sub(ms)))
        }
    };
    Ok(Filter {
        standing,
        scope: listing.scope.as_deref().map(scope).transpose()?,
        route: listing.route.as_deref().map(Into::into),
        path: listing.path.as_deref().map(Into::into),
        created_before,
        ..Filter::default()
    })
}

/// A scope as it is shown (`x-tenant=acme route=/pay`), or the digits of `scope_hex` after `hex:`.
fn scope(text: &str) -> Result<Scope, Refused> {
    if let Some(digits) = text.strip_prefix("hex:") {
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        let bytes = bytes.ok_or_else(|| Refused::Invalid("`scope` is not hexadecimal".into()))?;
        return Ok(Scope::from_bytes(&bytes));
    }
    let parts = text.split(' ').map(|part| part.split_once('=').unwrap_or((part, "")));
    Ok(Scope::of(parts.map(|(name, value)| (name, value.as_bytes()))))
}

impl Given {
    /// The answer as it is kept.
    ///
    /// # Errors
    ///
    /// Why it cannot be replayed.
    pub(crate) fn answer(self) -> Result<Answer, String> {
        let status = StatusCode::from_u16(self.status)
            .ok()
            .filter(|status| status.as_u16() >= 200)
            .ok_or_else(|| format!("{} is not a final status", self.status))?;
        let mut headers = Vec::new();
        for (name, value) in &self.headers {
            let parsed = HeaderName::from_bytes(name.as_bytes()).ok();
            let pair = parsed.zip(HeaderValue::from_str(value).ok());
            let (name, value) = pair.ok_or_else(|| format!("{name:?} is no header"))?;
            if is_stripped(&name) {
                return Err(format!("{name} is never replayed"));
            }
            headers.push((name, value));
        }
        let body: Bytes = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => {
                return Err("give `body` or `body_base64`, not both".into());
            }
            (Some(text), None) => text.into(),
            (None, Some(text)) => STANDARD.decode(text).map_err(|error| error.to_string())?.into(),
            (None, None) => Bytes::new(),
        };
        let is_bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if is_bodiless && !body.is_empty() {
            return Err(format!("an answer of status {status} has no body"));
        }
        if body.len() > ANSWER_BYTES_MAX {
            return Err(format!("the body is larger than {ANSWER_BYTES_MAX} bytes"));
        }
        Ok(Answer::Kept(StoredResponse { status, headers, body }))
    }
}

fn parse(id: &str) -> Result<Id, Refused> {
    Id::parse(id).ok_or(Refused::NotFound)
}

/// Every action has a reason: it is what the next operator will read.
fn needed(reason: Option<&str>) -> Result<&str, Refused> {
    match reason.map(str::trim) {
        Some(reason) if !reason.is_empty() => Ok(reason),
        Some(_) | None => Err(Refused::Invalid("say why, in `reason`".into())),
    }
}

pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| Refused::Invalid(error.to_string()))
}
