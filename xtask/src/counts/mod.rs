//! How much work is one request? Counted, not timed.
//!
//! The gateway serves a fixed load, one request after the other, once under callgrind and once under strace. Instructions,
//! allocations and system calls hardly depend on how busy the machine is, so a rise is a fact about the code. What a
//! request costs is the difference between a long load and a short one: start and stop cancel out. The kept numbers stand
//! in `xtask/counts.txt`; a rise by more than a tenth is a failure. Instructions are those of the program, without the
//! kernel's; valgrind knows no SHA instructions, so digests count for more than they cost.

mod load;
mod tools;

use std::collections::BTreeMap;
use std::process::ExitCode;

use crate::local::Folder;
use crate::{Error, root};

use load::{Kind, Upstream};
use tools::{Tool, program};

/// Where the kept numbers stand.
const KEPT: &str = "xtask/counts.txt";

/// How many requests a short load has, which also warms everything up, and a long one.
const SHORT: usize = 300;
const LONG: usize = 1_300;

/// By how much a number may rise: what differs between two runs is far less.
const RISE_MAX: f64 = 0.10;

/// Counts below this are compared as if they were this: a tenth of three is less than chance.
const LEAST: f64 = 20.0;

const UNITS: [&str; 3] = ["instructions", "allocations", "system_calls"];

/// What one request of each kind costs, by kind and unit.
type Counts = BTreeMap<(String, String), f64>;

/// Counts, and compares with the kept numbers or keeps the new ones.
pub(crate) fn run(arguments: &[&str]) -> Result<ExitCode, Error> {
    let counted = count()?;
    let kept = match std::fs::read_to_string(root().join(KEPT)) {
        Ok(text) => read(&text).ok_or_else(|| format!("{KEPT} cannot be read"))?,
        Err(_) => Counts::new(),
    };
    println!("{:<12} {:<14} {:>10} {:>10}", "request", "unit", "now", "kept");
    for ((kind, unit), now) in &counted {
        let before = kept.get(&(kind.clone(), unit.clone()));
        let before = before.map_or("-".to_owned(), |before| format!("{before:.1}"));
        println!("{kind:<12} {unit:<14} {now:>10.1} {before:>10}");
    }
    if arguments == ["--keep"] {
        std::fs::write(root().join(KEPT), show(&counted))?;
        return Ok(ExitCode::SUCCESS);
    }
    let risen = risen(&kept, &counted);
    for line in &risen {
        println!("RISEN: {line}");
    }
    if !risen.is_empty() {
        println!(
            "If it is worth its price: cargo xtask bench counts --keep, and say why in the commit."
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn count() -> Result<Counts, Error> {
    let program = program()?;
    let mut counts = Counts::new();
    for kind in Kind::ALL {
        for tool in [Tool::Callgrind, Tool::Strace] {
            let measure = |requests| -> Result<BTreeMap<&'static str, f64>, Error> {
                let folder = Folder::new("counts")?;
                let upstream = Upstream::start()?;
                tool.run(&program, &folder, upstream.address, |gateway| {
                    load::send(gateway, kind, requests)
                })
            };
            let short = measure(SHORT)?;
            for (unit, long) in measure(LONG)? {
                let more = long - short.get(unit).copied().unwrap_or_default();
                let each = more / (LONG - SHORT) as f64;
                counts.insert((kind.name().to_owned(), unit.to_owned()), each);
            }
        }
    }
    Ok(counts)
}

/// What has risen by too much, or is not kept.
fn risen(kept: &Counts, counted: &Counts) -> Vec<String> {
    let mut risen = Vec::new();
    for (place, now) in counted {
        let (kind, unit) = place;
        match kept.get(place) {
            None => risen.push(format!("{kind} {unit}: {now:.1}, and {KEPT} has no number for it")),
            Some(before) if *now > before + before.max(LEAST) * RISE_MAX => {
                risen.push(format!("{kind} {unit}: {before:.1} before, {now:.1} now"));
            }
            Some(_) => {}
        }
    }
    risen
}

fn show(counts: &Counts) -> String {
    let mut text = String::from(
        "# What one request costs the gateway; written by `cargo xtask bench counts --keep`.\n\
         # instructions of the program (callgrind), allocations, system calls (strace)\n",
    );
    for ((kind, unit), count) in counts {
        text.push_str(&format!("{kind} {unit} {count:.1}\n"));
    }
    text
}

fn read(text: &str) -> Option<Counts> {
    let mut counts = Counts::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (kind, unit, count) = (words.next()?, words.next()?, words.next()?);
        UNITS.contains(&unit).then_some(())?;
        counts.insert((kind.to_owned(), unit.to_owned()), count.parse().ok()?);
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(unit: &str, count: f64) -> Counts {
        Counts::from([(("replay".to_owned(), unit.to_owned()), count)])
    }

    #[test]
    fn a_rise_by_more_than_a_tenth_is_found_and_less_is_not() {
        let kept = one("instructions", 50_000.0);
        assert!(risen(&kept, &one("instructions", 54_900.0)).is_empty());
        assert_eq!(risen(&kept, &one("instructions", 55_100.0)).len(), 1);
        assert!(risen(&kept, &one("instructions", 20_000.0)).is_empty());
        let few = one("system_calls", 3.0);
        assert!(risen(&few, &one("system_calls", 4.9)).is_empty(), "chance");
        assert_eq!(risen(&few, &one("system_calls", 5.1)).len(), 1);
        assert_eq!(risen(&Counts::new(), &few).len(), 1, "what is not kept is not compared");
    }

    #[test]
    fn kept_numbers_are_read_as_they_were_written() {
        let counts = one("allocations", 41.5);
        assert_eq!(read(&show(&counts)), Some(counts));
        assert_eq!(read("replay seconds 1\n"), None);
    }

    #[test]
    fn the_repository_keeps_a_number_for_each() {
        let kept = read(include_str!("../../counts.txt")).unwrap();
        for kind in Kind::ALL {
            for unit in UNITS {
                assert!(kept.contains_key(&(kind.name().into(), unit.into())), "{unit}");
            }
        }
    }
}
