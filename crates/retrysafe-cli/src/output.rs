//! How does the program speak to whoever called it?

use std::io::Write as _;
use std::sync::mpsc;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

/// How long the last words may take. Nobody may be reading them, and the program is to end.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// Writes a text to standard output.
pub(crate) fn say(text: &str) {
    // A reader that has gone away is not an error: `retrysafe keys list | head`.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Writes a text to standard error.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Writes to standard error why the program ends, and waits for that within a bound.
pub(crate) fn last_words(text: String) {
    let (written, is_written) = mpsc::channel();
    std::thread::spawn(move || {
        complain(&text);
        let _ = written.send(());
    });
    let _ = is_written.recv_timeout(LAST_WORDS_MAX);
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
