//! Would anybody notice? Breaks shipped code on purpose, one line at a time.
//!
//! The repository is copied, each mutant of the [table](table::MUTANTS) is planted into the copy, and the test or the simulator that
//! must catch it is run. A mutant that nothing catches is a promise that nothing guards. It takes an hour or two, so it is a command
//! of its own. `cargo xtask mutants NAME…` runs those whose names contain a word.

mod plant;
mod table;

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::{Error, root};
use plant::{Planted, Workshop};
use table::{MUTANTS, Mutant};

/// How long a catcher may run. Each takes seconds on healthy code.
const CATCH_MAX: Duration = Duration::from_secs(180);

/// How often a running catcher is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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
    /// The catcher did not end. The whole suite has a time limit, so it would fail as well.
    Hung,
    DoesNotApply,
    DoesNotBuild,
    /// The catcher failed without saying what it caught.
    FailedOtherwise,
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
        missed += usize::from(!matches!(verdict, Verdict::Caught | Verdict::Hung));
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
    let built =
        mutant.caught.build(workshop).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !built.success() {
        return Ok(Verdict::DoesNotBuild);
    }
    let said = workshop.target.with_file_name("said");
    let mut catcher = mutant.caught.run(workshop);
    catcher.stdout(File::create(&said)?).stderr(Stdio::null()).process_group(0);
    let Some(ended) = end_within(CATCH_MAX, catcher.spawn()?)? else { return Ok(Verdict::Hung) };
    if ended.success() {
        return Ok(Verdict::NotCaught);
    }
    let is_caught = mutant.caught.is_in(&fs::read_to_string(&said)?);
    Ok(if is_caught { Verdict::Caught } else { Verdict::FailedOtherwise })
}

/// Waits for a process, and ends it with its children if it takes too long.
fn end_within(longest: Duration, mut child: Child) -> Result<Option<ExitStatus>, Error> {
    let deadline = Instant::now() + longest;
    while Instant::now() < deadline {
        if let Some(ended) = child.try_wait()? {
            return Ok(Some(ended));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
    child.wait()?;
    Ok(None)
}

impl Catcher {
    /// Builds what catches, so that a mutant which does not compile is told from one that is caught.
    fn build(&self, workshop: &Workshop) -> Command {
        match self {
            Self::Shipped(_) | Self::Fast(_) => {
                let mut cargo = Self::cargo(workshop, "build");
                cargo.args(["-p", "sim"]);
                cargo
            }
            Self::Test(arguments, _) => {
                let mut cargo = Self::cargo(workshop, "test");
                cargo.args(*arguments).arg("--no-run");
                cargo
            }
        }
    }

    fn run(&self, workshop: &Workshop) -> Command {
        match self {
            Self::Shipped(histories) | Self::Fast(histories) => {
                let mut cargo = Self::cargo(workshop, "run");
                cargo.args(["-p", "sim", "--", self.simulator()]);
                cargo.args(["--first", "--histories", histories]);
                cargo
            }
            Self::Test(arguments, name) => {
                let mut cargo = Self::cargo(workshop, "test");
                cargo.args(*arguments).arg(name);
                cargo
            }
        }
    }

    fn cargo(workshop: &Workshop, command: &str) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let Workshop { folder, target } = workshop;
        cargo.current_dir(folder).env("CARGO_TARGET_DIR", target).stdin(Stdio::null());
        // Little optimisation: every mutant is compiled, and most are caught at once.
        let fast_to_build =
            ["--config", "profile.dev.opt-level=1", "--config", "profile.dev.debug=false"];
        cargo.args([command, "--quiet"]).args(fast_to_build);
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
            Self::Hung => "caught: it hangs",
            Self::NotCaught => "**NOT CAUGHT**",
            Self::DoesNotApply => "**patch does not apply**",
            Self::DoesNotBuild => "**does not build**",
            Self::FailedOtherwise => "**fails otherwise**",
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
