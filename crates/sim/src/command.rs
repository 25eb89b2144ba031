//! What was asked for on the command line?

use std::io::{self, Write};
use std::time::Instant;

use crate::fault::Fault;
use crate::museum;
use crate::options::{Kind, Kinds, Profile};
use crate::replay::{self, Case};
use crate::run::Plan;
use crate::shipped;

const USAGE: &str = "\
usage: sim run --histories N [--seed S] [--jobs J] [--profile P] [--first]
       sim replay --seed N [--profile P] [--plant FAULT] [--without KIND,KIND] [--all]
       sim museum [--jobs J]
       sim shipped [--histories N] [--seed S] [--jobs J] [--first]
       sim shipped --replay SEED [--without KIND,KIND] [--all]";

/// Everything that can be asked for; each command takes what it knows.
#[derive(Debug)]
struct Asked {
    histories: u64,
    seed: u64,
    jobs: usize,
    profile: Option<Profile>,
    plant: Option<Fault>,
    without: Kinds,
    shipped_without: shipped::Kinds,
    replay: Option<u64>,
    all: bool,
    first: bool,
}

/// Carries a command line out. True if all is well.
pub fn run(
    mut words: impl Iterator<Item = String>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<bool> {
    let command = words.next().unwrap_or_default();
    let asked = match Asked::parse(words) {
        Ok(asked) => asked,
        Err(wrong) => {
            writeln!(err, "{wrong}\n{USAGE}")?;
            return Ok(false);
        }
    };
    match command.as_str() {
        "run" => {
            let plan = Plan {
                histories: asked.histories,
                first_seed: asked.seed,
                jobs: asked.jobs,
                profile: asked.profile,
                first: asked.first,
            };
            let started = Instant::now();
            let report = plan.run(err)?;
            report.print(&plan, started.elapsed(), out)
        }
        "replay" => {
            let Asked { seed, profile, plant: fault, without, all, .. } = asked;
            replay::show(Case { seed, profile, fault, without }, all, out)
        }
        "museum" => museum::visit(asked.jobs, out),
        "shipped" => match asked.replay {
            Some(seed) => shipped::show(seed, asked.shipped_without, asked.all, out),
            None => {
                let Asked { histories, seed: first_seed, jobs, first, .. } = asked;
                shipped::Plan { histories, first_seed, jobs, first }.run(out, err)
            }
        },
        other => {
            writeln!(err, "unknown command {other:?}\n{USAGE}")?;
            Ok(false)
        }
    }
}

impl Asked {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut asked = Self {
            histories: 100_000,
            seed: 0,
            jobs: std::thread::available_parallelism().map_or(1, |jobs| jobs.get()),
            profile: None,
            plant: None,
            without: Kinds::default(),
            shipped_without: shipped::Kinds::default(),
            replay: None,
            all: false,
            first: false,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--all" => {
                    asked.all = true;
                    continue;
                }
                "--first" => {
                    asked.first = true;
                    continue;
                }
                _ => {}
            }
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is no number"));
            let unknown = || format!("{value:?} is not known to {word}");
            match word.as_str() {
                "--histories" => asked.histories = number()?,
                "--seed" => asked.seed = number()?,
                "--replay" => asked.replay = Some(number()?),
                "--jobs" => asked.jobs = number()? as usize,
                "--profile" => {
                    let named = Profile::ALL.into_iter().find(|it| it.name() == value);
                    asked.profile = Some(named.ok_or_else(unknown)?);
                }
                "--plant" => {
                    let named = Fault::ALL.iter().copied().find(|it| it.name() == value);
                    asked.plant = Some(named.ok_or_else(unknown)?);
                }
                "--without" => {
                    for name in value.split(',') {
                        let fast = Kind::ALL.iter().copied().find(|it| it.name() == name);
                        let shipped = shipped::Kind::ALL.iter().copied();
                        let shipped = shipped.clone().find(|it| it.name() == name);
                        if fast.is_none() && shipped.is_none() {
                            return Err(unknown());
                        }
                        asked.without = fast.map_or(asked.without, |it| asked.without.with(it));
                        asked.shipped_without = shipped
                            .map_or(asked.shipped_without, |it| asked.shipped_without.with(it));
                    }
                }
                _ => return Err(format!("unknown option {word}")),
            }
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> (bool, String, String) {
        let mut out = Vec::new();
        let mut err = Vec::new();
        let good = run(line.split(' ').map(str::to_owned), &mut out, &mut err).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (good, text(out), text(err))
    }

    #[test]
    fn a_small_run_reports_what_it_did() {
        let (_, out, err) = said("run --histories 50 --seed 7 --jobs 1");
        assert!(out.contains("histories        50"), "{out}");
        assert!(out.contains("violations       0"), "{out}");
        assert_eq!(err, "");
    }

    #[test]
    fn a_replay_shows_the_options_and_the_events() {
        let (good, out, _) = said("replay --seed 3 --profile durable --without crash,pause --all");
        assert!(good);
        assert!(out.contains("profile=durable") && out.contains("Healed"), "{out}");
        assert!(!out.contains("faults=crash"), "{out}");
    }

    #[test]
    fn a_planted_fault_is_explained() {
        let (good, out, _) = said("replay --seed 0 --plant verdict-keeps-fence");
        let (again, more, _) = said("replay --seed 0 --plant verdict-keeps-fence --all");
        assert_eq!(good, again);
        assert!(out.contains("planted=verdict-keeps-fence") && more.len() >= out.len());
    }

    #[test]
    fn nonsense_is_refused() {
        for line in
            ["", "fly", "run --histories x", "run --profile x", "run --speed 3", "run --seed"]
        {
            let (good, _, err) = said(line);
            assert!(!good && err.contains("usage"), "{line}: {err}");
        }
    }
}
