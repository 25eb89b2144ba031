//! How does the program speak to whoever called it?

use std::io::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

/// Writes a text to standard output.
pub(crate) fn say(text: &str) {
    // A reader that has gone away is not an error: `retrysafe keys list | head`.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Writes a text to standard error.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Writes a JSON document.
pub(crate) fn json(document: &Value) {
    say(&serde_json::to_string_pretty(document).unwrap_or_default());
}

/// Writes a table of the named members of documents.
pub(crate) fn table(rows: &[Value], columns: &[(&str, &str)]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|(title, _)| *title));
    for row in rows {
        table.add_row(columns.iter().map(|(_, member)| cell(row.get(*member))));
    }
    say(&table.to_string());
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
