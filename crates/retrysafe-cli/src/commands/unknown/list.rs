//! What is unknown, since when, and why?

use serde_json::{Value, json};

use crate::Failure;
use crate::args::UnknownFilterArgs;
use crate::commands::admin_client::AdminClient;
use crate::commands::keys::list::unknown_page;
use crate::output;

/// How many digits of an id are shown: as many as in the log.
const DIGITS: usize = 12;

pub(super) async fn run(
    caller: &AdminClient,
    filter: &UnknownFilterArgs,
    limit: usize,
    mut cursor: Option<String>,
    as_json: bool,
) -> Result<(), Failure> {
    let mut shown = Vec::new();
    let mut damaged = Vec::new();
    while shown.len() < limit {
        let page = unknown_page(caller, filter, cursor.take(), limit - shown.len()).await?;
        let members = |name: &str| page.get(name).and_then(Value::as_array).cloned();
        shown.extend(members("unknown").unwrap_or_default());
        damaged = members("damaged").unwrap_or_default();
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    if as_json {
        output::json(&json!({"unknown": shown, "damaged": damaged, "cursor": cursor}));
        return Ok(());
    }
    if shown.is_empty() {
        output::say("nothing is unknown");
    } else {
        let titles = ["AGE", "REQUEST", "SCOPE", "FENCE", "WHY", "ASKED", "LAST ANSWER", "ID"];
        let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
        output::fitted(&titles, &rows, &["REQUEST", "SCOPE", "LAST ANSWER"]);
    }
    if !damaged.is_empty() {
        output::complain(&format!(
            "{} records cannot be read: `retrysafe store doctor` says why.",
            damaged.len()
        ));
    }
    if let Some(cursor) = cursor {
        output::complain(&format!(
            "There are more, younger ones: --cursor {cursor} goes on; --route, --path, --scope, --older-than and \
             --dead-lettered choose."
        ));
    }
    Ok(())
}

fn row(key: &Value) -> Vec<String> {
    let text = |name: &str| key.get(name).and_then(Value::as_str).unwrap_or("-");
    let number = |name: &str| key.get(name).and_then(Value::as_u64);
    let is_dead = key.get("dead_lettered") == Some(&Value::Bool(true));
    let lookups = number("lookups").unwrap_or_default();
    // `!`: lookups have given up. `-`: the process that was asked does not look it up.
    let asked = match number("lookups_planned") {
        Some(planned) => format!("{lookups}/{planned}{}", if is_dead { "!" } else { "" }),
        None => format!("{lookups}/-"),
    };
    let last = key.pointer("/last_lookup/found").and_then(Value::as_str);
    vec![
        output::age(text("since")),
        format!("{} {}", text("method"), text("path")),
        text("scope").to_owned(),
        number("fence").map_or_else(|| "-".into(), |fence| fence.to_string()),
        text("doubt").to_owned(),
        asked,
        last.and_then(|found| found.lines().next()).unwrap_or("-").to_owned(),
        text("id").chars().take(DIGITS).collect(),
    ]
}
