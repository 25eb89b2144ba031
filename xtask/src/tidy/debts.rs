//! What is not in order yet?
//!
//! Each list may only get shorter: what is new is a complaint, and so is a debt that was paid and still stands here.

use std::collections::BTreeSet;

use super::cycles::Cycle;
use super::rules::Broken;

/// Rooms that still need each other, by the folder that they are in.
const CYCLES: &[(&str, &[&str])] = &[];

/// Rules that a file still breaks.
const RULES: &[(&str, &str)] = &[("length", "crates/retrysafe-core/src/problem.rs")];

/// Which debts were met with.
#[derive(Default)]
pub(crate) struct Debts {
    met: BTreeSet<(String, String)>,
}

impl Debts {
    /// A complaint about a cycle that is no debt. A part of a debt is one.
    pub(crate) fn cycle(&mut self, cycle: &Cycle) -> Option<String> {
        let known = CYCLES.iter().find(|(below, rooms)| {
            *below == cycle.below && cycle.rooms.iter().all(|room| rooms.contains(&room.as_str()))
        });
        match known {
            None => Some(cycle.to_string()),
            Some((below, rooms)) => {
                self.met.insert(((*below).to_owned(), rooms.join(" ")));
                None
            }
        }
    }

    /// A complaint about a broken rule that is no debt.
    pub(crate) fn rule(&mut self, broken: Broken) -> Option<String> {
        if !RULES.contains(&(broken.rule, broken.file.as_str())) {
            return Some(format!("{}: {}", broken.file, broken.what));
        }
        self.met.insert((broken.rule.to_owned(), broken.file));
        None
    }

    /// A complaint about each debt that was paid.
    pub(crate) fn paid(&self) -> Vec<String> {
        let cycles = CYCLES.iter().map(|(below, rooms)| ((*below).to_owned(), rooms.join(" ")));
        let rules = RULES.iter().map(|(rule, file)| ((*rule).to_owned(), (*file).to_owned()));
        let paid = cycles.chain(rules).filter(|debt| !self.met.contains(debt));
        paid.map(|(what, whose)| {
            format!("xtask/src/tidy/debts.rs: {what} {whose}: paid; take it off the list")
        })
        .collect()
    }
}
