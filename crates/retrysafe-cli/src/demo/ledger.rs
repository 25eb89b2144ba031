//! What was asked for, what was charged, and what was the customer told?

use std::collections::HashMap;

use comfy_table::{CellAlignment, Table, presets};

use super::crowd::Told;
use super::shop::Charge;

/// The account of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) asked: usize,
    pub(crate) attempts: u32,
    pub(crate) charges: usize,
    /// Payments charged more than once.
    pub(crate) doubles: usize,
    /// Charged, and the customer was told neither an answer nor that the outcome is unknown.
    pub(crate) lost: usize,
    /// Payments for which the customer saw two different answers.
    pub(crate) differing: usize,
    /// Payments whose outcome the customer was told is unknown.
    pub(crate) unknown: usize,
}

impl Ledger {
    /// The account of these charges, and of what was told about them.
    pub(crate) fn of(charges: &[Charge], told: &[Told]) -> Self {
        let mut made: HashMap<&str, usize> = HashMap::new();
        for charge in charges {
            *made.entry(&charge.payment).or_default() += 1;
        }
        let count = |is: &dyn Fn(&Told) -> bool| told.iter().filter(|told| is(told)).count();
        Self {
            asked: told.len(),
            attempts: told.iter().map(|told| told.attempts).sum(),
            charges: charges.len(),
            doubles: made.values().filter(|count| **count > 1).count(),
            lost: count(&|told| {
                made.contains_key(told.payment.as_str())
                    && told.answers.is_empty()
                    && !told.executed
                    && !told.unknown
            }),
            differing: count(&|told| told.answers.len() > 1),
            unknown: count(&|told| told.unknown),
        }
    }

    /// Two accounts side by side.
    pub(crate) fn side_by_side(bare: &Self, safe: &Self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["", "without", "with retrysafe"]);
        for (name, bare, safe) in [
            ("payments asked for", bare.asked, safe.asked),
            ("requests sent", bare.attempts as usize, safe.attempts as usize),
            ("charges made", bare.charges, safe.charges),
            ("payments charged twice or more", bare.doubles, safe.doubles),
            ("charged, and the customer never told", bare.lost, safe.lost),
            ("answers that differed", bare.differing, safe.differing),
            ("told \"outcome unknown\"", bare.unknown, safe.unknown),
        ] {
            table.add_row([name.to_owned(), bare.to_string(), safe.to_string()]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn told(payment: &str, answers: &[&'static str], unknown: bool) -> Told {
        let answers = answers.iter().map(|answer| Bytes::from_static(answer.as_bytes())).collect();
        Told { payment: payment.into(), answers, unknown, ..Told::default() }
    }

    #[test]
    fn doubles_and_losses_are_counted() {
        let charge = |payment: &str| Charge { payment: payment.into() };
        let charges = [charge("a"), charge("a"), charge("b"), charge("c"), charge("d")];
        let all = [
            told("a", &["1"], false),
            told("b", &[], false),
            told("c", &[], true),
            told("d", &["1", "2"], false),
            told("e", &[], false),
        ];
        let ledger = Ledger::of(&charges, &all);
        assert_eq!((ledger.asked, ledger.charges), (5, 5));
        assert_eq!((ledger.doubles, ledger.lost, ledger.differing, ledger.unknown), (1, 1, 1, 1));
    }
}
