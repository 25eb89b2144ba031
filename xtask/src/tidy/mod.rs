//! Is the house in order? Reads the sources and says what a compiler does not.
//!
//! [`source`] reads a file without its comments and tests, [`graph`] finds who uses whom, [`cycles`] says where two rooms need
//! each other, [`names`] counts how names read, [`rules`] are about single files, [`commands`] is about what the documents tell people to type, and [`checklist`] about the tests that they name. What is not
//! in order yet is listed in [`debts`]: such a list may only get shorter.

mod checklist;
mod commands;
mod cycles;
mod debts;
mod graph;
mod names;
mod rules;
pub(crate) mod source;

use std::collections::BTreeSet;
use std::process::ExitCode;

use crate::{Error, root};
use graph::Crate;

/// The crates that are read, by their folders.
const CRATES: [&str; 6] = [
    "crates/retrysafe-core/src",
    "crates/retrysafe/src",
    "crates/retrysafe-cli/src",
    "crates/sim/src",
    "crates/counted/src",
    "xtask/src",
];

pub(crate) fn run() -> Result<ExitCode, Error> {
    let mut complaints = BTreeSet::new();
    let mut debts = debts::Debts::default();
    let mut names = names::NameCounts::default();
    for folder in CRATES {
        let files = source::read_folder(&root(), folder)?;
        let graph = Crate::read(folder, &files);
        println!("{graph}");
        for cycle in cycles::find(&graph) {
            complaints.extend(debts.cycle(&cycle));
        }
        for file in &files {
            names.read(file);
            complaints
                .extend(rules::complaints(file).into_iter().filter_map(|what| debts.rule(what)));
        }
    }
    println!("{names}\n");
    complaints.extend(commands::complaints(&root())?);
    complaints.extend(checklist::complaints(&root())?);
    complaints.extend(debts.paid());
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    println!("{} complaints", complaints.len());
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
