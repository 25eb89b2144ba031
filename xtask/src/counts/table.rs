//! How are counts kept and compared?

use std::fmt;

use super::callgrind::{COUNTED, PerRequest};
use crate::Error;

/// How much a count may rise: a tenth. Two runs of one program differ by less than a fiftieth.
const RISE_MAX: f64 = 1.1;

/// What a count may rise by whatever the ratio says. System calls, allocations and digests are few, and a background
/// thread may wake once more in one run than in the other.
const NOISE: f64 = 0.5;

/// Counts of several loads, by name.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Table(Vec<(String, PerRequest)>);

impl Table {
    pub(super) fn push(&mut self, name: &str, counts: PerRequest) {
        self.0.push((name.to_owned(), counts));
    }

    /// Reads what [`Display`](fmt::Display) writes.
    pub(super) fn read(text: &str) -> Result<Self, Error> {
        let mut rows = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, numbers) = line.split_once(':').ok_or("a line of counts without a name")?;
            let numbers: Vec<f64> =
                numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            let counts = numbers.try_into().map_err(|_| format!("not a line of counts: {line}"))?;
            rows.push((name.to_owned(), PerRequest(counts)));
        }
        Ok(Self(rows))
    }

    /// Prints these counts beside those that were kept, and says how many have risen too much.
    pub(super) fn compare(&self, kept: &Self) -> usize {
        let mut risen = 0;
        for (name, PerRequest(counts)) in &self.0 {
            let Some((_, PerRequest(kept))) = kept.0.iter().find(|(other, _)| other == name) else {
                println!("{name}: nothing is kept to compare with");
                risen += 1;
                continue;
            };
            for ((what, before), now) in COUNTED.iter().zip(kept).zip(counts) {
                let verdict = if has_risen(*before, *now) {
                    risen += 1;
                    "RISEN"
                } else if has_risen(*now, *before) {
                    "fallen: keep it"
                } else {
                    ""
                };
                println!("{name:<34}{what:<14}{before:>12.1}{now:>12.1}  {verdict}");
            }
        }
        risen
    }
}

fn has_risen(before: f64, now: f64) -> bool {
    now > before * RISE_MAX && now > before + NOISE
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# What one request costs, counted by `cargo xtask bench counts` (docs/performance.md says how)."
        )?;
        writeln!(f, "# `cargo xtask bench counts keep` writes this file anew.")?;
        write!(f, "#{:35}", "")?;
        COUNTED.iter().try_for_each(|what| write!(f, "{what:>14}"))?;
        writeln!(f)?;
        for (name, PerRequest(counts)) in &self.0 {
            write!(f, "{:<36}", format!("{name}:"))?;
            counts.iter().try_for_each(|count| write!(f, "{count:>14.1}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(counts: [f64; 4]) -> Table {
        let mut table = Table::default();
        table.push("a load with words", PerRequest(counts));
        table
    }

    #[test]
    fn what_is_kept_reads_as_it_was() {
        let kept = table([52_311.0, 40.5, 6.0, 9.0]);
        assert_eq!(Table::read(&kept.to_string()).unwrap(), kept);
        assert!(Table::read("a load: 1 2").is_err());
        assert!(Table::read("a load 1 2 3 4").is_err());
    }

    #[test]
    fn a_rise_of_more_than_a_tenth_is_one_complaint_each() {
        let kept = table([1_000.0, 100.0, 2.0, 7.0]);
        assert_eq!(table([1_100.0, 110.0, 2.2, 7.4]).compare(&kept), 0);
        assert_eq!(table([1_101.0, 100.0, 2.0, 7.0]).compare(&kept), 1);
        assert_eq!(table([2_000.0, 111.0, 3.0, 8.0]).compare(&kept), 4);
        assert_eq!(table([1.0, 1.0, 1.0, 1.0]).compare(&kept), 0);
        assert_eq!(table([1.0, 1.0, 1.0, 1.0]).compare(&Table::default()), 1);
    }
}
