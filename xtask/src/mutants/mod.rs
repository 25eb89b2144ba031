//! Would anybody notice? Breaks shipped code on purpose, one line at a time.
//!
//! The repository is copied, each mutant of the tables ([`table`], [`stores`], [`phases`], [`outbox`], [`webhooks`]) is planted into the copy, and the test or the simulator that
//! must catch it is run. A mutant that nothing catches is a promise that nothing guards. It takes most of an hour, so it is a command
//! of its own. `cargo xtask mutants NAME…` runs those whose names contain a word.
//!
//! Tests and simulators have a copy each and run side by side. Rows are printed as they are known; how long each took goes to stderr.

mod catcher;
mod outbox;
mod phases;
mod plant;
mod stores;
mod table;
mod webhooks;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Instant;

use crate::{Error, root};
use catcher::{Lane, Said};
use plant::{Planted, Workshop};
use table::Mutant;

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Caught,
    NotCaught,
    /// The test did not end, and it ended at once on healthy code. The whole suite has a time limit, so it would fail as well.
    Hung,
    /// The catcher did not end, but it may be that the machine is too slow.
    TooSlow,
    DoesNotApply,
    DoesNotBuild,
    /// The catcher failed without saying what it caught.
    FailedOtherwise,
}

pub(crate) fn run(words: &[&str]) -> Result<ExitCode, Error> {
    let chosen: Vec<_> = all()
        .filter(|mutant| words.is_empty() || words.iter().any(|word| mutant.name.contains(word)))
        .collect();
    println!("| mutant | file | what it breaks | caught by | verdict |");
    println!("| --- | --- | --- | --- | --- |");
    let (sender, verdicts) = mpsc::channel();
    let mut missed = 0;
    let mut hung = 0;
    std::thread::scope(|scope| -> Result<(), Error> {
        for lane in Lane::ALL {
            let sender = sender.clone();
            let chosen = &chosen;
            scope.spawn(move || {
                let judged = judge_all(lane, chosen, |mutant, verdict| {
                    // The receiver lives until the last lane has ended.
                    let _ = sender.send(Ok((mutant, verdict)));
                });
                if let Err(error) = judged {
                    let _ = sender.send(Err(error.to_string()));
                }
            });
        }
        drop(sender);
        for verdict in verdicts {
            let (mutant, verdict): (&Mutant, Verdict) = verdict?;
            missed += usize::from(!verdict.is_caught());
            hung += usize::from(verdict == Verdict::Hung);
            println!("{}", row(mutant, verdict.says()));
        }
        Ok(())
    })?;
    println!(
        "{} of {} caught, {hung} of them because they hang",
        chosen.len() - missed,
        chosen.len()
    );
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every mutant there is.
fn all() -> impl Iterator<Item = &'static Mutant> {
    let first = table::MUTANTS.iter().chain(stores::MUTANTS);
    first.chain(phases::MUTANTS).chain(outbox::MUTANTS).chain(webhooks::MUTANTS)
}

/// Judges the mutants of a lane, one after the other.
fn judge_all(
    lane: Lane,
    chosen: &[&'static Mutant],
    mut tell: impl FnMut(&'static Mutant, Verdict),
) -> Result<(), Error> {
    let workshop = Workshop::new(&root(), lane.name())?;
    for mutant in chosen.iter().filter(|mutant| mutant.caught.lane() == lane) {
        let started = Instant::now();
        let verdict = judge(&workshop, mutant)?;
        eprintln!("{} {:?} {:.0?}", mutant.name, verdict, started.elapsed());
        tell(mutant, verdict);
    }
    Ok(())
}

fn row(mutant: &Mutant, verdict: &str) -> String {
    let Mutant { name, file, breaks, caught, .. } = mutant;
    format!("| `{name}` | `{file}` | {breaks} | {} | {verdict} |", caught.says())
}

fn judge(workshop: &Workshop, mutant: &Mutant) -> Result<Verdict, Error> {
    let planted = match workshop.plant(mutant.file, mutant.old, mutant.new)? {
        Planted::Yes(planted) => planted,
        Planted::No => return Ok(Verdict::DoesNotApply),
    };
    if !mutant.caught.build(workshop)? {
        return Ok(Verdict::DoesNotBuild);
    }
    let said = mutant.caught.run(workshop)?;
    drop(planted);
    Ok(match said {
        Said::Caught => Verdict::Caught,
        Said::Nothing => Verdict::NotCaught,
        Said::FailedOtherwise => Verdict::FailedOtherwise,
        // A simulator that finds nothing takes minutes too, so its silence proves nothing.
        Said::NoEnd => match mutant.caught.lane() {
            Lane::Simulators => Verdict::TooSlow,
            Lane::Tests => {
                let healthy =
                    mutant.caught.build(workshop)? && mutant.caught.ends_quickly(workshop)?;
                if healthy { Verdict::Hung } else { Verdict::TooSlow }
            }
        },
    })
}

impl Verdict {
    const fn is_caught(self) -> bool {
        matches!(self, Self::Caught | Self::Hung)
    }

    const fn says(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::Hung => "caught: it hangs",
            Self::TooSlow => "**no end, and the machine may be too slow**",
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
        for mutant in all() {
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
        let mut names: Vec<_> = all().map(|mutant| mutant.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
    }

    #[test]
    fn the_published_table_has_every_mutant() {
        let page = std::fs::read_to_string(root().join("docs/mutants.md")).unwrap();
        for mutant in all() {
            assert!(
                page.contains(&row(mutant, "caught")),
                "docs/mutants.md has no row for {}",
                mutant.name
            );
        }
    }
}
