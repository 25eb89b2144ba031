//! Which effects are there?

use serde_json::{Value, json};

use super::show::{moment, text};
use crate::Failure;
use crate::args::EffectFilterArgs;
use crate::commands::admin_client::AdminClient;
use crate::output;
use crate::percent::encoded;

/// How many effects are read at once.
const PAGE: usize = 500;

pub(super) async fn run(
    caller: &AdminClient,
    state: Option<&str>,
    filter: &EffectFilterArgs,
    lane: Option<&str>,
    limit: usize,
    as_json: bool,
) -> Result<(), Failure> {
    let mut query = String::new();
    for (name, value) in [
        ("state", state),
        ("kind", filter.kind.as_deref()),
        ("error", filter.error.as_deref()),
        ("older_than", filter.older_than.as_deref()),
        ("lane", lane),
    ] {
        if let Some(value) = value {
            query.push_str(&format!("&{name}={}", encoded(value)));
        }
    }
    let mut effects = Vec::new();
    let mut cursor: Option<i64> = None;
    // One more than is shown says whether there are more.
    while effects.len() <= limit {
        let most = PAGE.min(limit + 1 - effects.len());
        let after = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = caller.get(&format!("/api/v1/outbox?limit={most}{query}{after}")).await?;
        effects
            .extend(page.get("effects").and_then(Value::as_array).into_iter().flatten().cloned());
        cursor = page.get("cursor").and_then(Value::as_i64);
        if cursor.is_none() {
            break;
        }
    }
    let is_cut = effects.len() > limit;
    effects.truncate(limit);
    if as_json {
        output::json(&json!({"effects": effects, "more": is_cut}));
        return Ok(());
    }
    if effects.is_empty() {
        output::say("no effects");
    } else {
        table(&effects);
    }
    if is_cut {
        output::complain(&format!(
            "There are more: these are the {limit} newest. --limit shows more."
        ));
    }
    Ok(())
}

fn table(effects: &[Value]) {
    let row = |effect: &Value| {
        vec![
            effect.get("id").map(Value::to_string).unwrap_or_default(),
            text(effect, "state").to_owned(),
            moment(effect),
            text(effect, "kind").to_owned(),
            text(effect, "lane").to_owned(),
            text(effect, "name").to_owned(),
            effect.get("failures").map(Value::to_string).unwrap_or_default(),
            text(effect, "last_error").to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = effects.iter().map(row).collect();
    let titles = ["ID", "STATE", "FOR", "KIND", "LANE", "NAME", "FAILED", "ERROR"];
    output::fitted(&titles, &rows, &["KIND", "LANE", "NAME", "ERROR"]);
}
