//! What is known of one key?

use serde_json::Value;

use crate::Failure;
use crate::commands::admin_client::AdminClient;
use crate::output;
use crate::percent::encoded;

/// What is named in the timeline's column `WHAT`, `AT` or `FENCE`; the rest is its detail.
const COLUMNS: [&str; 3] = ["at", "what", "fence"];

pub(super) async fn run(caller: &AdminClient, id: &str, as_json: bool) -> Result<(), Failure> {
    let record = caller.get(&format!("/api/v1/keys/{}", encoded(id))).await?;
    if as_json {
        output::json(&record);
        return Ok(());
    }
    let empty = serde_json::Map::new();
    for (name, value) in record.as_object().unwrap_or(&empty) {
        match value {
            Value::Array(_) => {}
            Value::String(text) => output::say(&format!("{name:<18} {text}")),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                output::say(&format!("{name:<18} {value}"));
            }
        }
    }
    if let Some(timeline) = record.get("timeline").and_then(Value::as_array) {
        output::say("");
        let rows: Vec<Vec<String>> = timeline.iter().map(moment).collect();
        output::wrapped(&["AT", "WHAT", "FENCE", "DETAIL"], &rows);
    }
    Ok(())
}

fn moment(moment: &Value) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    };
    let mut row: Vec<String> =
        COLUMNS.iter().map(|name| moment.get(name).map(text).unwrap_or_default()).collect();
    let members = moment.as_object().into_iter().flatten();
    let rest =
        members.filter(|(name, value)| !COLUMNS.contains(&name.as_str()) && !value.is_null());
    let rest: Vec<String> = rest.map(|(name, value)| format!("{name}: {}", text(value))).collect();
    row.push(rest.join(", "));
    row
}
