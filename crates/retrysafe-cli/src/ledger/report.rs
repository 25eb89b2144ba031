//! How is it said what two ledgers have in common and what not?
//!
//! As a document for scripts, as Markdown for a ticket, and as lines for a terminal. All three say the same: the counts,
//! the sums, and the first differences.

use serde_json::{Map, Value, json};

use super::amount::Amount;
use super::entry::Entry;
use super::merge::{Comparison, Difference};
use super::reader::Side;

/// How much of a value is shown in a list, in characters.
const SHOWN_MAX: usize = 60;

/// Everything that is said.
#[derive(Debug)]
pub(crate) struct Report {
    pub comparison: Comparison,
    /// The first differences.
    pub listed: Vec<Difference>,
    /// How many lines each side has.
    pub our_lines: u64,
    pub their_lines: u64,
    /// How many of our own records or effects have no key of that name.
    pub passed_over: u64,
    /// The names of further fields.
    pub fields: Vec<String>,
}

/// A table: its titles and its rows.
pub(crate) struct ReportTable {
    pub titles: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl Report {
    /// For scripts.
    pub(crate) fn document(&self) -> Value {
        let found = &self.comparison;
        let sums = found.sums.iter().map(|(currency, sums)| {
            json!({
                "currency": Some(currency).filter(|currency| !currency.is_empty()),
                "ours": sums.ours.to_string(),
                "theirs": sums.theirs.to_string(),
                "ours_minus_theirs": difference(sums.ours, sums.theirs),
            })
        });
        json!({
            "equal": found.is_equal(),
            "lines": {"ours": self.our_lines, "theirs": self.their_lines},
            "without_key": self.passed_over,
            "same": found.same,
            "missing_here": found.missing_here,
            "missing_there": found.missing_there,
            "different": found.different,
            "sums": sums.collect::<Vec<_>>(),
            "differences": self.listed.iter().map(|it| difference_document(it, &self.fields)).collect::<Vec<_>>(),
            "more": self.unlisted(),
        })
    }

    /// How many differences are not listed.
    pub(crate) fn unlisted(&self) -> u64 {
        self.comparison.differences().saturating_sub(self.listed.len() as u64)
    }

    /// The verdict in one line.
    pub(crate) fn headline(&self) -> String {
        let found = &self.comparison;
        if found.is_equal() {
            return format!("The ledgers say the same: {} lines.", found.same);
        }
        format!(
            "The ledgers differ: {} differences, {} lines are the same.",
            found.differences(),
            found.same
        )
    }

    /// What is said where records were passed over.
    pub(crate) fn remark(&self) -> Option<String> {
        let count = self.passed_over;
        (count > 0).then(|| {
            format!("{count} of ours have nothing at the key's pointer, and were passed over.")
        })
    }

    /// How many of what.
    pub(crate) fn counts(&self) -> ReportTable {
        let found = &self.comparison;
        let row = |what: &str, count: u64| vec![what.to_owned(), count.to_string()];
        let rows = vec![
            row("lines of ours", self.our_lines),
            row("lines of theirs", self.their_lines),
            row("the same", found.same),
            row("missing here (only theirs has it)", found.missing_here),
            row("missing there (only ours has it)", found.missing_there),
            row("different", found.different),
        ];
        ReportTable { titles: vec!["WHAT", "COUNT"], rows }
    }

    /// The sums; none where no amounts were compared.
    pub(crate) fn sums(&self) -> Option<ReportTable> {
        let rows = self.comparison.sums.iter().map(|(currency, sums)| {
            let currency = if currency.is_empty() { "all".to_owned() } else { shown(currency) };
            let delta = difference(sums.ours, sums.theirs);
            vec![currency, sums.ours.to_string(), sums.theirs.to_string(), delta]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let titles = vec!["CURRENCY", "OURS", "THEIRS", "OURS - THEIRS"];
        (!rows.is_empty()).then_some(ReportTable { titles, rows })
    }

    /// The first differences; none if there are none.
    pub(crate) fn differences(&self) -> Option<ReportTable> {
        let rows: Vec<Vec<String>> = self.listed.iter().map(|it| self.row(it)).collect();
        let titles = vec!["KEY", "WHAT", "OURS", "THEIRS"];
        (!rows.is_empty()).then_some(ReportTable { titles, rows })
    }

    fn row(&self, difference: &Difference) -> Vec<String> {
        let nothing = || "-".to_owned();
        match difference {
            Difference::MissingHere(theirs) => {
                vec![shown(&theirs.key), "missing here".into(), nothing(), self.whole(theirs)]
            }
            Difference::MissingThere(ours) => {
                vec![shown(&ours.key), "missing there".into(), self.whole(ours), nothing()]
            }
            Difference::Different { ours, theirs, columns } => {
                let of = |entry: &Entry| {
                    let values = columns.iter().map(|column| self.value(entry, column));
                    values.collect::<Vec<_>>().join(", ")
                };
                vec![shown(&ours.key), columns.join(", "), of(ours), of(theirs)]
            }
        }
    }

    /// What is compared of an entry.
    fn whole(&self, entry: &Entry) -> String {
        let amount = entry.amount.map(|amount| amount.to_string());
        let currency = entry.currency.as_deref().map(shown);
        let money = [amount, currency].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let fields = entry.fields.iter().map(|field| shown(field));
        let all: Vec<String> =
            std::iter::once(money).chain(fields).filter(|text| !text.is_empty()).collect();
        if all.is_empty() { format!("{}", entry.place) } else { all.join(", ") }
    }

    fn value(&self, entry: &Entry, column: &str) -> String {
        match column {
            "amount" => entry.amount.map(|amount| amount.to_string()).unwrap_or_default(),
            "currency" => entry.currency.as_deref().map(shown).unwrap_or_default(),
            field => {
                let at = self.fields.iter().position(|name| name == field);
                at.and_then(|at| entry.fields.get(at)).map(|value| shown(value)).unwrap_or_default()
            }
        }
    }

    /// For a ticket or a mail.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("{}\n", self.headline());
        for table in [Some(self.counts()), self.sums(), self.differences()].into_iter().flatten() {
            text.push_str(&format!(
                "\n| {} |\n|{}\n",
                table.titles.join(" | "),
                " --- |".repeat(table.titles.len())
            ));
            for row in table.rows {
                let cells = row.iter().map(|cell| markdown_cell(cell));
                text.push_str(&format!("| {} |\n", cells.collect::<Vec<_>>().join(" | ")));
            }
        }
        let unlisted = self.unlisted();
        if unlisted > 0 {
            text.push_str(&format!("\n{unlisted} further differences are not listed.\n"));
        }
        if let Some(remark) = self.remark() {
            text.push_str(&format!("\n{remark}\n"));
        }
        text
    }
}

/// One difference as a document.
pub(crate) fn difference_document(difference: &Difference, fields: &[String]) -> Value {
    let of = |entry: &Entry| {
        let mut document = Map::new();
        document.insert("at".into(), entry.place.to_string().into());
        if let Some(amount) = entry.amount {
            document.insert("amount".into(), amount.to_string().into());
        }
        if let Some(currency) = &entry.currency {
            document.insert("currency".into(), currency.as_str().into());
        }
        let named =
            fields.iter().cloned().zip(entry.fields.iter().map(|field| field.as_str().into()));
        document.insert("fields".into(), Value::Object(named.collect()));
        Value::Object(document)
    };
    match difference {
        Difference::MissingHere(theirs) => {
            json!({"key": theirs.key, "kind": "missing_here", "theirs": of(theirs)})
        }
        Difference::MissingThere(ours) => {
            json!({"key": ours.key, "kind": "missing_there", "ours": of(ours)})
        }
        Difference::Different { ours, theirs, columns } => json!({
            "key": ours.key, "kind": "different", "columns": columns, "ours": of(ours), "theirs": of(theirs),
        }),
    }
}

fn difference(ours: Amount, theirs: Amount) -> String {
    ours.minus(theirs).map_or_else(|| "too large".into(), |amount| amount.to_string())
}

/// A value that does nothing to a terminal, and is not too long.
fn shown(value: &str) -> String {
    let mut text: String = value
        .chars()
        .take(SHOWN_MAX)
        .map(
            |character| {
                if character.is_control() { char::REPLACEMENT_CHARACTER } else { character }
            },
        )
        .collect();
    if value.chars().nth(SHOWN_MAX).is_some() {
        text.push('…');
    }
    text
}

/// A value that does not end a cell and is no markup.
fn markdown_cell(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>') {
            text.push('\\');
        }
        text.push(character);
    }
    text
}

/// The name of a side, as metrics have it.
pub(super) fn side_lines(report: &Report) -> [(&'static str, u64); 2] {
    [(Side::Ours.name(), report.our_lines), (Side::Theirs.name(), report.their_lines)]
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::entry::Place;
    use super::*;

    fn entry(key: &str, amount: &str) -> Entry {
        Entry {
            key: key.into(),
            amount: Amount::parse(amount).ok(),
            currency: Some("EUR".into()),
            fields: vec!["a|b\x1b".into()],
            place: Place::Line(3),
        }
    }

    pub(in crate::ledger) fn report() -> Report {
        let comparison = Comparison {
            same: 5,
            missing_here: 2,
            missing_there: 1,
            different: 1,
            ..Comparison::default()
        };
        let columns = vec!["amount".to_owned()];
        let listed = vec![
            Difference::MissingHere(entry("k_1", "1")),
            Difference::MissingThere(entry("k_2", "2")),
            Difference::Different { ours: entry("k_3", "3.5"), theirs: entry("k_3", "4"), columns },
        ];
        let fields = vec!["status".to_owned()];
        Report { comparison, listed, our_lines: 7, their_lines: 8, passed_over: 2, fields }
    }

    #[test]
    fn all_forms_say_the_same() {
        let report = report();
        let document = report.document();
        assert_eq!(document["equal"], false);
        assert_eq!((&document["missing_here"], &document["more"]), (&json!(2), &json!(1)));
        assert_eq!(document["differences"][2]["theirs"]["amount"], "4");
        assert_eq!(document["differences"][0]["theirs"]["at"], "line 3");
        let markdown = report.markdown();
        assert!(markdown.contains("| k\\_3 | amount | 3.50 | 4 |"), "{markdown}");
        assert!(markdown.contains("a\\|b\u{fffd}") && !markdown.contains('\x1b'), "{markdown}");
        assert!(markdown.contains("1 further differences") && markdown.contains("passed over"));
        let rows = report.differences().unwrap().rows;
        assert_eq!(rows[0][1], "missing here");
        assert_eq!(report.headline(), "The ledgers differ: 4 differences, 5 lines are the same.");
    }
}
