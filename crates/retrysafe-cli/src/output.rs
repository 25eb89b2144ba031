//! How does the program speak to whoever called it?

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::sync::mpsc;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use crate::harmless::{harmless, harmless_json};

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
    say(&harmless_json(&serde_json::to_string_pretty(document).unwrap_or_default()));
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

/// How wide the terminal is, if there is one. A terminal that nobody has told its width (a serial line, some containers) says zero.
pub(crate) fn terminal_width() -> Option<usize> {
    Table::new().width().map(usize::from).filter(|width| *width > 0)
}

/// Writes a table that fits the terminal: of the columns of these names, the widest are shortened.
pub(crate) fn fitted(titles: &[&str], rows: &[Vec<String>], flexible: &[&str]) {
    let wide = terminal_width().unwrap_or(WIDTH);
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
            let cell = shortened(&harmless(cell, false), *width);
            format!("{cell:<width$}")
        });
        say(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// A number of things, with the noun that goes with it.
pub(crate) fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// How long ago a time is, in one unit; of a time that is to come, in how long. The store's clock and ours may differ by
/// a little.
pub(crate) fn age(at: &str) -> String {
    age_at(at, jiff::Timestamp::now())
}

fn age_at(at: &str, now: jiff::Timestamp) -> String {
    let Ok(at) = at.parse::<jiff::Timestamp>() else { return "-".into() };
    let seconds = now.duration_since(at).as_secs();
    if seconds < -1 { format!("in {}", short_length(-seconds)) } else { short_length(seconds) }
}

/// A length of time in one unit.
pub(crate) fn short_length(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Asks on the terminal. Where there is none, nothing is done.
///
/// # Errors
///
/// If it is not a yes.
pub(crate) fn confirm(question: &str) -> Result<(), String> {
    if !std::io::stdin().is_terminal() {
        return Err(format!("{question} Nothing was done. Say --yes to do it without being asked"));
    }
    let mut asked = std::io::stderr();
    // If the question cannot be written, the answer is awaited all the same.
    let _ = write!(asked, "{question} [y/N] ").and_then(|()| asked.flush());
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(|error| error.to_string())?;
    if is_yes(&answer) { Ok(()) } else { Err("nothing was done".into()) }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Writes a table whose last column is broken into lines where the terminal ends.
pub(crate) fn wrapped(titles: &[&str], rows: &[Vec<String>]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if terminal_width().is_none() {
        table.set_width(u16::try_from(WIDTH).unwrap_or(u16::MAX));
    }
    table.set_header(titles);
    for row in rows {
        table.add_row(row.iter().map(|cell| harmless(cell, true)));
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
        Some(Value::String(text)) => harmless(text, false),
        Some(other) => harmless(&other.to_string(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for yes in ["y\n", "Y\n", " yes \n", "YES"] {
            assert!(is_yes(yes), "{yes}");
        }
        for no in ["", "\n", "n\n", "no\n", "yess\n", "release\n"] {
            assert!(!is_yes(no), "{no}");
        }
    }

    #[test]
    fn ages_are_short() {
        let now = jiff::Timestamp::now();
        for (seconds, shown) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_199, "119m"),
            (7_200, "2h"),
            (900_000, "10d"),
        ] {
            let since = now - jiff::SignedDuration::from_secs(seconds);
            assert_eq!(age_at(&since.to_string(), now), shown);
        }
        assert_eq!(age("soon"), "-");
        let ahead = now + jiff::SignedDuration::from_secs(1);
        assert_eq!(age_at(&ahead.to_string(), now), "0s", "the store's clock is ahead of ours");
        let later = now + jiff::SignedDuration::from_secs(7_500);
        assert_eq!(age_at(&later.to_string(), now), "in 2h");
    }

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
