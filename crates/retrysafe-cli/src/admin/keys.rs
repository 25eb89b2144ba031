//! What can an operator see of keys?

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use retrysafe_core::record::{Record, Standing};
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{Cursor, Filter, PAGE_MAX, Page, Stamped, Store};
use retrysafe_core::time::Time;
use retrysafe_core::units;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::error::Refused;
use super::story::{self, Neighbours};
use super::{Admin, Shared, view};

/// How many keys a page has unless asked otherwise.
const LIMIT: usize = 100;

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
    let beside = Neighbours::read(&admin, &record).await;
    Ok(Json(story::story(&record, admin.planned_lookups(&record), &beside)))
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
pub(super) fn show_cursor(Cursor(place): &Cursor) -> String {
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

pub(super) fn foreign_cursor() -> Refused {
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
pub(super) fn scope(text: &str) -> Result<Scope, Refused> {
    if let Some(digits) = text.strip_prefix("hex:") {
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        let bytes = bytes.ok_or_else(|| Refused::Invalid("`scope` is not hexadecimal".into()))?;
        return Ok(Scope::from_bytes(&bytes));
    }
    let parts = text.split(' ').map(|part| part.split_once('=').unwrap_or((part, "")));
    Ok(Scope::of(parts.map(|(name, value)| (name, value.as_bytes()))))
}

pub(super) fn parse(id: &str) -> Result<Id, Refused> {
    Id::parse(id).ok_or(Refused::NotFound)
}

pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| Refused::Invalid(error.to_string()))
}
