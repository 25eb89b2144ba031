//! What is missing here, missing there, or different?
//!
//! Pure: two entries, each the next of its side, are put beside each other, and whichever has the smaller key is alone.
//! Every difference is counted; what becomes of each is the caller's business, so that memory does not grow.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::amount::Amount;
use super::entry::Entry;
use super::reader::LedgerReader;
use crate::Failure;

/// How many currencies there may be. More means that the column is another one.
const CURRENCIES_MAX: usize = 1_000;

/// The name of an amount that differs.
const AMOUNT: &str = "amount";
/// The name of a currency that differs.
const CURRENCY: &str = "currency";

/// One difference between the ledgers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Theirs has it, ours has not.
    MissingHere(Entry),
    /// Ours has it, theirs has not.
    MissingThere(Entry),
    /// Both have it, and not the same in it.
    Different {
        ours: Entry,
        theirs: Entry,
        /// What is not the same, by the names that ours has for it.
        columns: Vec<String>,
    },
}

/// What one side came to in one currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub ours: Amount,
    pub theirs: Amount,
}

/// What was found altogether.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// How many lines are the same on both sides.
    pub same: u64,
    pub missing_here: u64,
    pub missing_there: u64,
    pub different: u64,
    /// The sums of both sides by currency; without a column of currencies the name is empty.
    pub(super) sums: BTreeMap<String, Sums>,
    /// The names of further fields.
    pub(super) fields: Vec<String>,
}

/// Which side is read on after two entries were put beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advance {
    Ours,
    Theirs,
    Both,
}

/// Reads both ledgers to their ends, and hands on every difference.
///
/// # Errors
///
/// Whatever cannot be read, with its line; a sum that is too large; or what `found` said.
pub(crate) async fn compare(
    ours: &mut LedgerReader,
    theirs: &mut LedgerReader,
    fields: &[String],
    mut found: impl FnMut(Difference) -> Result<(), Failure>,
    mut progress: impl FnMut(u64, u64, &Comparison),
) -> Result<Comparison, Failure> {
    let mut comparison = Comparison { fields: fields.to_vec(), ..Comparison::default() };
    let mut our_entry = ours.next().await?;
    let mut their_entry = theirs.next().await?;
    while let Some(advance) = order(our_entry.as_ref(), their_entry.as_ref()) {
        let one = match advance {
            Advance::Ours | Advance::Both => our_entry.take(),
            Advance::Theirs => None,
        };
        let other = match advance {
            Advance::Theirs | Advance::Both => their_entry.take(),
            Advance::Ours => None,
        };
        if let Some(difference) = comparison.judge(one, other)? {
            found(difference)?;
        }
        if our_entry.is_none() {
            our_entry = ours.next().await?;
        }
        if their_entry.is_none() {
            their_entry = theirs.next().await?;
        }
        progress(ours.lines(), theirs.lines(), &comparison);
    }
    Ok(comparison)
}

/// The side with the smaller key goes on, by bytes; none at the end of both.
fn order(ours: Option<&Entry>, theirs: Option<&Entry>) -> Option<Advance> {
    match (ours, theirs) {
        (None, None) => None,
        (Some(_), None) => Some(Advance::Ours),
        (None, Some(_)) => Some(Advance::Theirs),
        (Some(ours), Some(theirs)) => Some(match ours.key.as_bytes().cmp(theirs.key.as_bytes()) {
            Ordering::Less => Advance::Ours,
            Ordering::Greater => Advance::Theirs,
            Ordering::Equal => Advance::Both,
        }),
    }
}

impl Comparison {
    /// Whether the ledgers say the same.
    pub(crate) fn is_equal(&self) -> bool {
        self.differences() == 0
    }

    /// How many differences there are.
    pub(crate) fn differences(&self) -> u64 {
        self.missing_here + self.missing_there + self.different
    }

    /// Counts what belongs together.
    fn judge(
        &mut self,
        ours: Option<Entry>,
        theirs: Option<Entry>,
    ) -> Result<Option<Difference>, String> {
        if let Some(ours) = &ours {
            self.add(ours, |sums| &mut sums.ours)?;
        }
        if let Some(theirs) = &theirs {
            self.add(theirs, |sums| &mut sums.theirs)?;
        }
        Ok(match (ours, theirs) {
            (None, None) => None,
            (None, Some(theirs)) => {
                self.missing_here += 1;
                Some(Difference::MissingHere(theirs))
            }
            (Some(ours), None) => {
                self.missing_there += 1;
                Some(Difference::MissingThere(ours))
            }
            (Some(ours), Some(theirs)) => {
                let columns = self.unequal(&ours, &theirs);
                if columns.is_empty() {
                    self.same += 1;
                    return Ok(None);
                }
                self.different += 1;
                Some(Difference::Different { ours, theirs, columns })
            }
        })
    }

    fn unequal(&self, ours: &Entry, theirs: &Entry) -> Vec<String> {
        let mut columns = Vec::new();
        if ours.amount != theirs.amount {
            columns.push(AMOUNT.to_owned());
        }
        if ours.currency != theirs.currency {
            columns.push(CURRENCY.to_owned());
        }
        let fields = self.fields.iter().zip(ours.fields.iter().zip(&theirs.fields));
        columns.extend(
            fields.filter(|(_, (ours, theirs))| ours != theirs).map(|(name, _)| name.clone()),
        );
        columns
    }

    fn add(
        &mut self,
        entry: &Entry,
        side: impl Fn(&mut Sums) -> &mut Amount,
    ) -> Result<(), String> {
        let Some(amount) = entry.amount else { return Ok(()) };
        let currency = entry.currency.as_deref().unwrap_or_default();
        // Nearly every line is of a currency that was seen before.
        if !self.sums.contains_key(currency) {
            if self.sums.len() == CURRENCIES_MAX {
                return Err(format!(
                    "there are more than {CURRENCIES_MAX} currencies: does --currency name the right column?"
                ));
            }
            self.sums.insert(currency.to_owned(), Sums::default());
        }
        if let Some(sums) = self.sums.get_mut(currency) {
            let sum = side(sums);
            *sum = sum.plus(amount).ok_or("a sum is too large to be exact")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Place;
    use super::*;

    fn entry(key: &str, amount: &str, currency: &str, status: &str) -> Entry {
        Entry {
            key: key.into(),
            amount: Amount::parse(amount).ok(),
            currency: Some(currency.into()),
            fields: vec![status.into()],
            place: Place::Line(1),
        }
    }

    fn comparison() -> Comparison {
        Comparison { fields: vec!["status".into()], ..Comparison::default() }
    }

    #[test]
    fn the_smaller_key_by_bytes_goes_on() {
        let entry = |key: &str| entry(key, "1", "EUR", "");
        for (ours, theirs, advance) in [
            (Some("a"), Some("b"), Some(Advance::Ours)),
            (Some("b"), Some("a"), Some(Advance::Theirs)),
            (Some("a"), Some("a"), Some(Advance::Both)),
            // A locale would put these the other way round.
            (Some("B"), Some("a"), Some(Advance::Ours)),
            (Some("z"), Some("ä"), Some(Advance::Ours)),
            (Some("a-1"), Some("a1"), Some(Advance::Ours)),
            (Some("a"), None, Some(Advance::Ours)),
            (None, Some("a"), Some(Advance::Theirs)),
            (None, None, None),
        ] {
            let [ours, theirs] = [ours, theirs].map(|key| key.map(entry));
            assert_eq!(order(ours.as_ref(), theirs.as_ref()), advance, "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn every_kind_of_difference_is_told_and_counted() {
        let mut found = comparison();
        let ours = entry("k", "12.50", "EUR", "paid");
        assert_eq!(found.judge(Some(ours.clone()), Some(ours.clone())), Ok(None));
        let same = entry("k", "12.5", "EUR", "paid");
        assert_eq!(found.judge(Some(ours.clone()), Some(same)), Ok(None), "the same amount");
        for (theirs, columns) in [
            (entry("k", "12.51", "EUR", "paid"), vec!["amount"]),
            (entry("k", "-12.50", "EUR", "paid"), vec!["amount"]),
            (entry("k", "12.50", "USD", "paid"), vec!["currency"]),
            (entry("k", "12.50", "EUR", "refunded"), vec!["status"]),
            (entry("k", "1", "USD", "refunded"), vec!["amount", "currency", "status"]),
        ] {
            let Ok(Some(Difference::Different { columns: told, .. })) =
                found.judge(Some(ours.clone()), Some(theirs))
            else {
                panic!("they are different")
            };
            assert_eq!(told, columns);
        }
        let told = found.judge(None, Some(ours.clone()));
        assert_eq!(told, Ok(Some(Difference::MissingHere(ours.clone()))));
        let told = found.judge(Some(ours.clone()), None);
        assert_eq!(told, Ok(Some(Difference::MissingThere(ours))));
        let counts = (found.same, found.missing_here, found.missing_there, found.different);
        assert_eq!((counts, found.differences()), ((2, 1, 1, 5), 7));
        let euros = found.sums["EUR"];
        assert_eq!(
            (euros.ours.to_string(), euros.theirs.to_string()),
            ("100".into(), "50.01".into())
        );
        let dollars = found.sums["USD"];
        assert_eq!(
            (dollars.ours.to_string(), dollars.theirs.to_string()),
            ("0".into(), "13.50".into())
        );
    }

    #[test]
    fn a_column_of_keys_is_no_column_of_currencies() {
        let mut found = comparison();
        let mut last = Ok(None);
        for number in 0..=CURRENCIES_MAX {
            let key = format!("{number:08}");
            last = found.judge(Some(entry(&key, "1", &key, "")), None);
        }
        assert!(last.unwrap_err().contains("--currency"));
    }
}
