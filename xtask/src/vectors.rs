//! Do we read what others published as right, and refuse what they published as wrong?
//!
//! The vectors are not part of this repository (they have licences of their own); PATH names a folder with
//! `structured-field-tests/` and `jcs/` in it.

mod jcs;
mod structured_fields;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::Error;

/// What came of one file.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Records that behaved as published.
    held: u64,
    /// Of these, records that we refuse although the standard allows them.
    refused_by_policy: u64,
    /// Records about something that we do not do.
    beside: u64,
    /// Records that did not behave, each described.
    missed: Vec<String>,
}

impl Counts {
    /// Notes whether a record behaved as published.
    fn judge(&mut self, held: bool, what: impl FnOnce() -> String) {
        if held {
            self.held += 1;
        } else {
            self.missed.push(what());
        }
    }
}

pub(crate) fn run(path: &Path) -> Result<ExitCode, Error> {
    println!("{:<44} {:>7} {:>7} {:>7} {:>7}", "file", "held", "policy", "beside", "missed");
    let mut total = Counts::default();
    for (file, counts) in structured_fields::run(&path.join("structured-field-tests"))?
        .into_iter()
        .chain(jcs::run(&path.join("jcs"))?)
    {
        row(&file, &counts);
        total.held += counts.held;
        total.refused_by_policy += counts.refused_by_policy;
        total.beside += counts.beside;
        total.missed.extend(counts.missed.into_iter().map(|missed| format!("{file}: {missed}")));
    }
    row("total", &total);
    println!(
        "policy: held by refusing what the standard allows (two header lines, an empty key,\n        \
         more than {} characters, a number that would be rounded)\n\
         beside: lists, dictionaries and serialisation failures, which no key can be",
        structured_fields::KEY_CHARS_MAX,
    );
    for missed in &total.missed {
        println!("missed {missed}");
    }
    Ok(if total.missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row(file: &str, counts: &Counts) {
    let held = counts.held;
    let policy = counts.refused_by_policy;
    let beside = counts.beside;
    println!("{file:<44} {held:>7} {policy:>7} {beside:>7} {:>7}", counts.missed.len());
}

/// The files in a folder whose names end so, in order. None at all is an error: nothing checked is not success.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Error> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(format!("{}: no .{extension} files", folder.display()).into());
    }
    files.sort();
    Ok(files)
}

/// A path as the table shows it: the last two parts.
fn shown(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
    Path::new(folder).join(path.file_name().unwrap_or_default()).display().to_string()
}
