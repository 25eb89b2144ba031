//! Would anybody notice? Breaks shipped code on purpose, one line at a time.
//!
//! The repository is copied, each mutant of the [table](table::MUTANTS) is planted into the copy, and the test or the simulator that
//! must catch it is run. A mutant that nothing catches is a promise that nothing guards. It takes an hour or two, so it is a command
//! of its own. `cargo xtask mutants NAME…` runs those whose names contain a word.

mod plant;
mod table;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::{Error, root};
use plant::{Planted, Workshop};
use table::{MUTANTS, Mutant};

/// What must fail when a mutant is planted.
pub(crate) enum Catcher {
    /// The simulator of shipped code, within so many histories.
    Shipped(&'static str),
    /// The simulator of the rules, within so many histories.
    Fast(&'static str),
    /// A test: what `cargo test` is told, and a part of the test's name.
    Test(&'static [&'static str], &'static str),
}

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Caught,
    NotCaught,
    DoesNotApply,
    DoesNotBuild,
}

pub(crate) fn run(words: &[&str]) -> Result<ExitCode, Error> {
    let workshop = Workshop::new(&root())?;
    let chosen: Vec<_> = MUTANTS
        .iter()
        .filter(|mutant| words.is_empty() || words.iter().any(|word| mutant.name.contains(word)))
        .collect();
    println!("| mutant | file | what it breaks | caught by | verdict |");
    println!("| --- | --- | --- | --- | --- |");
    let mut missed = 0;
    for mutant in &chosen {
        let verdict = judge(&workshop, mutant)?;
        missed += usize::from(verdict != Verdict::Caught);
        println!("{}", row(mutant, verdict.says()));
    }
    println!("{} of {} caught", chosen.len() - missed, chosen.len());
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row(mutant: &Mutant, verdict: &str) -> String {
    let Mutant { name, file, breaks, caught, .. } = mutant;
    format!("| `{name}` | `{file}` | {breaks} | {} | {verdict} |", caught.says())
}

fn judge(workshop: &Workshop, mutant: &Mutant) -> Result<Verdict, Error> {
    let Planted::Yes(_planted) = workshop.plant(mutant)? else { return Ok(Verdict::DoesNotApply) };
    let output = mutant.caught.command(&workshop.folder, &workshop.target).output()?;
    if output.status.success() {
        return Ok(Verdict::NotCaught);
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(if mutant.caught.is_in(&said) { Verdict::Caught } else { Verdict::DoesNotBuild })
}

impl Catcher {
    fn command(&self, folder: &Path, target: &Path) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(folder).env("CARGO_TARGET_DIR", target).stdin(Stdio::null());
        // Little optimisation: every mutant is compiled, and most are caught at once.
        let fast_to_build =
            ["--config", "profile.dev.opt-level=1", "--config", "profile.dev.debug=false"];
        match self {
            Self::Shipped(histories) | Self::Fast(histories) => {
                cargo.arg("run").args(fast_to_build).args(["--quiet", "-p", "sim", "--"]);
                cargo.arg(self.simulator()).args(["--first", "--histories", histories]);
            }
            Self::Test(arguments, name) => {
                cargo.arg("test").args(fast_to_build).args(*arguments).arg(name);
            }
        }
        cargo
    }

    const fn simulator(&self) -> &'static str {
        match self {
            Self::Fast(_) => "run",
            Self::Shipped(_) | Self::Test(..) => "shipped",
        }
    }

    /// Whether the output of a failure says that something was caught. Else it did not even run.
    fn is_in(&self, output: &str) -> bool {
        output.contains(match self {
            Self::Shipped(_) | Self::Fast(_) => " breaks ",
            Self::Test(..) => "test result: FAILED",
        })
    }

    fn says(&self) -> String {
        match self {
            Self::Shipped(histories) => format!("`sim shipped`, {histories} histories"),
            Self::Fast(histories) => format!("`sim run`, {histories} histories"),
            Self::Test(_, name) => format!("test `{name}`"),
        }
    }
}

impl Verdict {
    const fn says(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::NotCaught => "**NOT CAUGHT**",
            Self::DoesNotApply => "**patch does not apply**",
            Self::DoesNotBuild => "**does not build**",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_still_applies() {
        for mutant in MUTANTS {
            let text = std::fs::read_to_string(root().join(mutant.file)).unwrap();
            let times = text.matches(mutant.old).count();
            assert_eq!(
                times, 1,
                "{}: its old text is {times} times in {}",
                mutant.name, mutant.file
            );
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), MUTANTS.len());
    }

    #[test]
    fn the_published_table_has_every_mutant() {
        let page = std::fs::read_to_string(root().join("docs/mutants.md")).unwrap();
        for mutant in MUTANTS {
            assert!(
                page.contains(&row(mutant, "caught")),
                "docs/mutants.md has no row for {}",
                mutant.name
            );
        }
    }
}
