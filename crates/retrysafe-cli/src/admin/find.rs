//! Which records does an operator mean?
//!
//! By what stands in a log line or in a customer's mail: the first digits of a record's id or of a
//! key's digest, the key itself, the id of a request. Ids are found at once. For everything else
//! the store is read from one end to the other, because an index over it would cost every write;
//! one request reads for a while and says from where on the next one may go on.

use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use retrysafe_core::mention::{DigestPrefix, Mention};
use retrysafe_core::store::{Filter, PAGE_MAX, Page, Query, Stamped, Store};
use serde::Deserialize;
use serde_json::Value;

use super::Shared;
use super::error::Refused;
use super::keys::{page, read, read_cursor};

/// How long one request searches: a page that shows the search is there within a second. Whoever asks goes on from where it ended.
const SEARCH_MAX: Duration = Duration::from_millis(700);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Find {
    text: String,
    cursor: Option<String>,
}

pub(crate) async fn find<S: Store>(
    State(admin): Shared<S>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Find { text, cursor } = read(&body)?;
    let text = text.trim();
    if text.is_empty() {
        let why = "say in `text` what to look for: a key, the first digits of its digest or of a \
                   record's id, or the id of a request";
        return Err(Refused::Invalid(why.into()));
    }
    let store = admin.engine().store();
    if let (None, Some(id)) = (&cursor, DigestPrefix::parse(text)) {
        let filter = Filter { id: Some(id), ..Filter::default() };
        let query = Query { filter, after: None, limit: PAGE_MAX };
        let Stamped { now, value } = store.scan(query).await?;
        if !value.records.is_empty() || !value.damaged.is_empty() {
            return Ok(Json(page(&value, now)));
        }
    }
    let filter = Filter { mention: Some(Mention::parse(text)), ..Filter::default() };
    let after = cursor.as_deref().map(read_cursor).transpose()?;
    search(store, Query { filter, after, limit: PAGE_MAX }).await.map(Json)
}

/// Reads page after page until something is found, the store is at its end, or time is up.
async fn search<S: Store>(store: &S, mut query: Query) -> Result<Value, Refused> {
    let started = Instant::now();
    let mut found = Page::default();
    loop {
        let Stamped { now, value } = store.scan(query.clone()).await?;
        found.records.extend(value.records);
        found.damaged.extend(value.damaged);
        found.next = value.next;
        let is_enough = found.records.len() >= PAGE_MAX || started.elapsed() >= SEARCH_MAX;
        match &found.next {
            Some(cursor) if !is_enough => query.after = Some(cursor.clone()),
            Some(_) | None => return Ok(page(&found, now)),
        }
    }
}
