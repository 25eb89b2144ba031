//! Which keys are there?

use serde_json::{Value, json};

use crate::Failure;
use crate::args::{FilterArgs, UnknownFilterArgs};
use crate::commands::admin_client::AdminClient;
use crate::output;
use crate::percent::encoded;

/// How many keys are read at once.
const PAGE: usize = 500;

/// How many unknown keys are read at once.
const UNKNOWN_PAGE: usize = 1_000;

/// How many digits of an id or a digest are shown: as many as in the log.
const DIGITS: usize = 12;

pub(super) async fn run(
    caller: &AdminClient,
    filter: &FilterArgs,
    limit: usize,
    as_json: bool,
) -> Result<(), Failure> {
    // One more than is shown says whether there are more.
    let mut keys = all(caller, filter, limit.saturating_add(1)).await?;
    let is_cut = keys.len() > limit;
    keys.truncate(limit);
    if as_json {
        output::json(&json!({"keys": keys, "more": is_cut}));
        return Ok(());
    }
    table(&keys);
    if is_cut {
        output::complain(&format!(
            "There are more: these are the {limit} that changed last. `--limit {}` shows more; \
             --state, --route, --path, --scope and --older-than choose.",
            limit.saturating_mul(10)
        ));
    }
    Ok(())
}

/// The keys that a filter lets through, those that changed last first, at most `limit`.
pub(super) async fn all(
    caller: &AdminClient,
    filter: &FilterArgs,
    limit: usize,
) -> Result<Vec<Value>, Failure> {
    let mut keys = Vec::new();
    let mut cursor = None;
    while keys.len() < limit {
        let page = page(caller, filter, cursor, PAGE.min(limit - keys.len())).await?;
        keys.extend(page.get("keys").and_then(Value::as_array).into_iter().flatten().cloned());
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    keys.truncate(limit);
    Ok(keys)
}

async fn page(
    caller: &AdminClient,
    filter: &FilterArgs,
    cursor: Option<String>,
    limit: usize,
) -> Result<Value, Failure> {
    let mut path = format!("/api/v1/keys?limit={limit}");
    for (name, value) in [
        ("state", filter.state.map(|state| state.name().to_owned())),
        ("route", filter.route.clone()),
        ("path", filter.path.clone()),
        ("scope", filter.scope.clone()),
        ("older_than", filter.older_than.clone()),
        ("cursor", cursor),
    ] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encoded(&value)));
        }
    }
    caller.get(&path).await
}

/// One page of what is unknown, the oldest first, with at most `limit` keys.
pub(crate) async fn unknown_page(
    caller: &AdminClient,
    filter: &UnknownFilterArgs,
    cursor: Option<String>,
    limit: usize,
) -> Result<Value, Failure> {
    let limit = limit.min(UNKNOWN_PAGE);
    let mut path = format!("/api/v1/unknown?limit={limit}");
    for (name, value) in [
        ("route", filter.route.clone()),
        ("path", filter.path.clone()),
        ("scope", filter.scope.clone()),
        ("older_than", filter.older_than.clone()),
        ("dead_lettered", filter.dead_lettered.map(|wanted| wanted.to_string())),
        ("cursor", cursor),
    ] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encoded(&value)));
        }
    }
    caller.get(&path).await
}

/// Writes keys as a table that fits the terminal.
pub(super) fn table(keys: &[Value]) {
    if keys.is_empty() {
        return output::say("no keys");
    }
    let rows = keys.iter().map(row).collect::<Vec<_>>();
    let titles = ["STATE", "FOR", "REQUEST", "SCOPE", "KEY", "ID"];
    output::fitted(&titles, &rows, &["REQUEST", "SCOPE"]);
}

fn row(key: &Value) -> Vec<String> {
    let text = |name: &str| key.get(name).and_then(Value::as_str).unwrap_or("-");
    let digits = |name: &str| text(name).chars().take(DIGITS).collect::<String>();
    let since =
        ["since", "settled_at", "begun_at"].into_iter().find_map(|name| key.get(name)?.as_str());
    vec![
        text("state").to_owned(),
        since.map_or_else(|| "-".to_owned(), output::age),
        format!("{} {}", text("method"), text("path")),
        text("scope").to_owned(),
        digits("key"),
        digits("id"),
    ]
}
