//! What is known of one key?
//!
//! Everything that an operator needs, on one screen: how it stands, what happened to it, and commands that are ready to paste.

use serde_json::Value;

use super::search;
use crate::Failure;
use crate::commands::admin_client::AdminClient;
use crate::harmless::harmless;
use crate::output;
use crate::percent::encoded;

/// What is named in the timeline's column `WHAT`, `AT` or `FENCE`; the rest is its detail.
const COLUMNS: [&str; 3] = ["at", "what", "fence"];

/// What only a program wants to know. `--json` has it.
const HIDDEN: [&str; 3] = ["scope_hex", "fingerprint", "ttl_seconds"];

pub(crate) async fn run(caller: &AdminClient, text: &str, as_json: bool) -> Result<(), Failure> {
    let id = search::one(caller, text).await?.id;
    let record = caller.get(&format!("/api/v1/keys/{}", encoded(&id))).await?;
    if as_json {
        output::json(&record);
    } else {
        say(&record);
    }
    Ok(())
}

/// Writes a record as a screen.
pub(crate) fn say(record: &Value) {
    let empty = serde_json::Map::new();
    for (name, value) in record.as_object().unwrap_or(&empty) {
        let is_hidden = HIDDEN.contains(&name.as_str());
        match value {
            Value::Array(_) | Value::Null => {}
            Value::String(_) | Value::Bool(_) | Value::Number(_) if is_hidden => {}
            Value::String(_) | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                output::say(&format!("{name:<18} {}", harmless(&plain(value), false)));
            }
        }
    }
    if let Some(timeline) = record.get("timeline").and_then(Value::as_array) {
        output::say("");
        let rows: Vec<Vec<String>> = timeline.iter().map(moment).collect();
        output::wrapped(&["AT", "WHAT", "FENCE", "DETAIL"], &rows);
    }
    neighbours(
        record,
        "events",
        &["ID", "STATE", "PROVIDER", "EVENT", "RECEIVED", "OWNER", "WHY"],
        &["id", "state", "provider", "event_id", "received_at", "owner", "reason"],
    );
    neighbours(
        record,
        "effects",
        &["ID", "STATE", "KIND", "NAME", "STAGED", "LAST ERROR"],
        &["id", "state", "kind", "name", "staged_at", "last_error"],
    );
    let commands = record.get("commands").and_then(Value::as_array);
    for command in commands.into_iter().flatten() {
        let part = |name: &str| command.get(name).map(plain).unwrap_or_default();
        output::say(&harmless(&format!("\n# {}\n{}", part("when"), part("command")), true));
    }
}

/// Writes what is known beside a record: a table with these columns of these members. Nothing is written of nothing.
fn neighbours(record: &Value, what: &str, columns: &[&str], members: &[&str]) {
    let Some(listed) = record.get(what).and_then(Value::as_array) else { return };
    if listed.is_empty() {
        return;
    }
    let cell = |one: &Value, name: &str| match one.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(value) => plain(value),
    };
    let rows: Vec<Vec<String>> =
        listed.iter().map(|one| members.iter().map(|name| cell(one, name)).collect()).collect();
    output::say(&format!("\n{what}"));
    output::wrapped(columns, &rows);
}

fn moment(moment: &Value) -> Vec<String> {
    let mut row: Vec<String> =
        COLUMNS.iter().map(|name| moment.get(name).map(plain).unwrap_or_default()).collect();
    let members = moment.as_object().into_iter().flatten();
    let rest =
        members.filter(|(name, value)| !COLUMNS.contains(&name.as_str()) && !value.is_null());
    let rest: Vec<String> = rest.map(|(name, value)| format!("{name}: {}", plain(value))).collect();
    row.push(rest.join(", "));
    row
}

/// A value without the marks of JSON: the members of an object one after the other.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            members
                .map(|(name, value)| format!("{name} {}", plain(value)))
                .collect::<Vec<_>>()
                .join(", ")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => value.to_string(),
    }
}
