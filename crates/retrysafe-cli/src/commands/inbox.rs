//! What do `inbox …` commands do?

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::admin_client::{AdminClient, claimed_name};
use crate::Failure;
use crate::args::InboxCommand;
use crate::output;
use crate::percent::encoded;

/// How many events are read at once.
const PAGE: usize = 500;

/// Does what is asked about webhooks.
///
/// # Errors
///
/// If the admin listener cannot be asked, or refuses.
pub(crate) async fn run(
    command: InboxCommand,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    match command {
        InboxCommand::List { admin, state, provider, limit } => {
            let caller = AdminClient::new(&admin, variables)?;
            let state = state.map(|state| state.name());
            list(&caller, state, provider.as_deref(), limit, admin.json).await
        }
        InboxCommand::Show { admin, id } => {
            let caller = AdminClient::new(&admin, variables)?;
            let event = caller.get(&format!("/api/v1/inbox/{id}")).await?;
            if admin.json {
                output::json(&event);
            } else {
                show(&event);
            }
            Ok(())
        }
        InboxCommand::Replay { admin, ids, reason } => {
            let caller = AdminClient::new(&admin, variables)?;
            let asked = json!({"reason": reason, "operator": claimed_name(variables)});
            replay(&caller, &ids, &asked, admin.json).await
        }
    }
}

async fn list(
    caller: &AdminClient,
    state: Option<&str>,
    provider: Option<&str>,
    limit: usize,
    as_json: bool,
) -> Result<(), Failure> {
    let mut query = String::new();
    for (name, value) in [("state", state), ("provider", provider)] {
        if let Some(value) = value {
            query.push_str(&format!("&{name}={}", encoded(value)));
        }
    }
    let mut events: Vec<Value> = Vec::new();
    let mut cursor: Option<i64> = None;
    // One more than is shown says whether there are more.
    while events.len() <= limit {
        let most = PAGE.min(limit + 1 - events.len());
        let after = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = caller.get(&format!("/api/v1/inbox?limit={most}{query}{after}")).await?;
        events.extend(page.get("events").and_then(Value::as_array).into_iter().flatten().cloned());
        cursor = page.get("cursor").and_then(Value::as_i64);
        if cursor.is_none() {
            break;
        }
    }
    let is_cut = events.len() > limit;
    events.truncate(limit);
    if as_json {
        output::json(&json!({"events": events, "more": is_cut}));
        return Ok(());
    }
    if events.is_empty() {
        output::say("no events");
    } else {
        let row = |event: &Value| {
            vec![
                event.get("id").map(Value::to_string).unwrap_or_default(),
                text(event, "state").to_owned(),
                output::age(text(event, "received_at")),
                text(event, "provider").to_owned(),
                text(event, "event_id").to_owned(),
                text(event, "matched").to_owned(),
                text(event, "reason").to_owned(),
            ]
        };
        let rows: Vec<Vec<String>> = events.iter().map(row).collect();
        let titles = ["ID", "STATE", "AGE", "PROVIDER", "EVENT", "MATCHED", "WHY"];
        output::fitted(&titles, &rows, &["EVENT", "MATCHED", "WHY"]);
    }
    if is_cut {
        output::complain(&format!(
            "There are more: these are the {limit} newest. --limit shows more."
        ));
    }
    Ok(())
}

fn show(event: &Value) {
    let empty = serde_json::Map::new();
    for (name, value) in event.as_object().unwrap_or(&empty) {
        let shown = match value {
            Value::Array(words) => {
                words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
            }
            Value::String(text) => text.clone(),
            Value::Null => "-".to_owned(),
            Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
        };
        output::say(&format!("{name:<18} {shown}"));
    }
    match text(event, "matched").split_once(' ') {
        Some(("record", id)) => output::say(&format!("\nretrysafe keys show {id}")),
        Some(("effect", id)) => output::say(&format!("\nretrysafe outbox show {id}")),
        Some(_) | None => {}
    }
}

async fn replay(
    caller: &AdminClient,
    ids: &[i64],
    asked: &Value,
    as_json: bool,
) -> Result<(), Failure> {
    let mut done = Vec::new();
    let mut refused = Vec::new();
    for id in ids {
        match caller.post(&format!("/api/v1/inbox/{id}/replay"), asked).await {
            Ok(event) => done.push(json!({"id": id, "state": text(&event, "state")})),
            Err(error) => refused.push(json!({"id": id, "why": error.to_string()})),
        }
    }
    if as_json {
        output::json(&json!({"verb": "replay", "done": done, "refused": refused}));
    } else {
        for event in &done {
            let id = event.get("id").map(Value::to_string).unwrap_or_default();
            output::say(&format!("event {id} is {} now", text(event, "state")));
        }
        for refusal in &refused {
            output::complain(&refusal.to_string());
        }
    }
    if refused.is_empty() { Ok(()) } else { Err("not every event was replayed".into()) }
}

/// A member of a document, or a dash.
fn text<'a>(document: &'a Value, name: &str) -> &'a str {
    document.get(name).and_then(Value::as_str).unwrap_or("-")
}
