//! What is known of one effect, and of every kind?

use serde_json::Value;

use crate::Failure;
use crate::commands::admin_client::AdminClient;
use crate::output;

pub(super) async fn run(caller: &AdminClient, id: i64, as_json: bool) -> Result<(), Failure> {
    let effect = caller.get(&format!("/api/v1/outbox/{id}")).await?;
    if as_json {
        output::json(&effect);
        return Ok(());
    }
    let empty = serde_json::Map::new();
    for (name, value) in effect.as_object().unwrap_or(&empty) {
        let shown = match value {
            Value::Array(words) => {
                let words = words.iter().filter_map(Value::as_str);
                words.collect::<Vec<_>>().join(", ")
            }
            Value::String(text) => text.clone(),
            Value::Null => "-".to_owned(),
            Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
        };
        if name != "decisions" {
            output::say(&format!("{name:<18} {shown}"));
        }
    }
    let decisions = effect.get("decisions").and_then(Value::as_array);
    let row =
        |it: &Value| ["at", "verb", "who", "reason"].map(|name| text(it, name).to_owned()).to_vec();
    let rows: Vec<Vec<String>> = decisions.into_iter().flatten().map(row).collect();
    if !rows.is_empty() {
        output::say("");
        output::wrapped(&["AT", "DECISION", "WHO", "WHY"], &rows);
    }
    Ok(())
}

/// How the kinds stand.
pub(super) async fn stats(caller: &AdminClient, as_json: bool) -> Result<(), Failure> {
    let stats = caller.get("/api/v1/outbox/stats").await?;
    if as_json {
        output::json(&stats);
        return Ok(());
    }
    let count = |kind: &Value, name: &str| kind.get(name).map(Value::to_string).unwrap_or_default();
    let row = |kind: &Value| {
        let due = kind.get("oldest_ready_seconds").and_then(Value::as_f64);
        vec![
            text(kind, "kind").to_owned(),
            count(kind, "waiting"),
            count(kind, "ready"),
            due.map_or_else(|| "-".to_owned(), |seconds| output::short_length(seconds as i64)),
            count(kind, "leased"),
            count(kind, "unknown"),
            count(kind, "dead"),
            text(kind, "pause_reason").to_owned(),
        ]
    };
    let kinds = stats.get("kinds").and_then(Value::as_array);
    let rows: Vec<Vec<String>> = kinds.into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        output::say("no effects");
    } else {
        let titles = ["KIND", "WAITING", "READY", "OLDEST", "LEASED", "UNKNOWN", "DEAD", "PAUSED"];
        output::fitted(&titles, &rows, &["KIND", "PAUSED"]);
    }
    if let Some(until) = stats.get("held_until").and_then(Value::as_str) {
        output::complain(&format!(
            "Nothing is delivered until {until}: this server took over from one whose last commits may be lost. If \
             nothing was lost, end this with `retrysafe store init`."
        ));
    }
    Ok(())
}

/// A member of a document, or a dash.
pub(super) fn text<'a>(document: &'a Value, name: &str) -> &'a str {
    document.get(name).and_then(Value::as_str).unwrap_or("-")
}

/// How long an effect has been where it is; of one that is due later, in how long.
pub(super) fn moment(effect: &Value) -> String {
    let moment =
        ["since", "due_at", "lease_until"].into_iter().find_map(|name| effect.get(name)?.as_str());
    moment.map_or_else(|| "-".to_owned(), output::age)
}
