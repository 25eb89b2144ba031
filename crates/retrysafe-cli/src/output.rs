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

/// How wide a table is where nobody says how wide the terminal is.
const WIDTH: usize = 100;

/// The least that is left of a column that is shortened.
const WIDTH_MIN: usize = 8;

/// Writes a table that fits the terminal: of the columns of these names, the widest are shortened.
pub(crate) fn fitted(titles: &[&str], rows: &[Vec<String>], flexible: &[&str]) {
    let wide = Table::new().width().map_or(WIDTH, usize::from);
    let mut widths: Vec<usize> = (0..titles.len())
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            let title = titles.get(at).map_or(0, |title| title.chars().count());
            cells.chain([title]).max().unwrap_or_default()
        })
        .collect();
    let gaps = 2 * titles.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > wide {
        let may_shrink = |(at, width): &(usize, &mut usize)| {
            titles.get(*at).is_some_and(|title| flexible.contains(title)) && **width > WIDTH_MIN
        };
        let widest = widths.iter_mut().enumerate().filter(may_shrink).max_by_key(|(_, w)| **w);
        let Some((_, width)) = widest else { break };
        *width -= 1;
    }
    let titles: Vec<String> = titles.iter().map(|title| (*title).to_owned()).collect();
    for row in std::iter::once(&titles).chain(rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let cell = shortened(cell, *width);
            format!("{cell:<width$}")
        });
        say(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// Writes a table whose last column is broken into lines where the terminal ends.
pub(crate) fn wrapped(titles: &[&str], rows: &[Vec<String>]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(u16::try_from(WIDTH).unwrap_or(u16::MAX));
    }
    table.set_header(titles);
    for row in rows {
        table.add_row(row);
    }
    say(&table.to_string());
}

/// A text of at most so many characters. Its middle goes first: a path's beginning and its end say
/// the most.
fn shortened(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let end = width.saturating_sub(1) / 2;
    let start = width.saturating_sub(1) - end;
    let first: String = text.chars().take(start).collect();
    let last: String = text.chars().skip(count - end).collect();
    format!("{first}…{last}")
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        assert_eq!(shortened("/pay", 4), "/pay");
        assert_eq!(shortened("/payments/1234", 9), "/pay…1234");
        assert_eq!(shortened("/payments/1234", 8), "/pay…234");
        assert_eq!(shortened("äöü€", 3).chars().count(), 3);
        for width in 1..20 {
            assert!(shortened("/payments/1234", width).chars().count() <= width);
        }
    }
}
