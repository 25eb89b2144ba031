//! How do very many histories of shipped code run, and how is one shown?
//!
//! One runtime per history: whatever its processes leave behind ends with it.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;

use super::nemesis;
use super::options::{Kinds, Options};
use super::stage::Stage;
use crate::checker::{Checker, Where};
use crate::history::Entry;
use crate::invariant::Invariant;
use crate::replay;
use crate::run::Report;

/// How many seeds a thread takes at once.
const BLOCK: u64 = 20;

/// How often progress is reported.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub histories: u64,
    pub first_seed: u64,
    pub jobs: usize,
    /// Whether to stop at the first violation.
    pub first: bool,
}

/// One history and what it cost.
#[derive(Debug, PartialEq, Eq)]
pub struct History {
    pub log: Vec<Entry>,
    pub faults: u64,
}

/// Plays the history of these options.
pub fn play(options: &Options) -> io::Result<History> {
    // The journal's files are written by another thread, while time stands still.
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let stage = runtime.block_on(async {
        let stage = Stage::new(options);
        nemesis::play(&stage).await;
        stage
    });
    let (log, faults) = stage.with(|state| (std::mem::take(&mut state.log), state.faults));
    // What is left of processes and messages is dropped before the next history.
    drop(runtime);
    Ok(History { log, faults })
}

impl Plan {
    /// Runs the plan and prints what came of it. True if nothing was broken and nothing missed.
    pub fn run(&self, out: &mut dyn Write, progress: &mut dyn Write) -> io::Result<bool> {
        let started = Instant::now();
        let report = self.report(progress)?;
        report.print_counts(self.jobs, started.elapsed(), Where::Shipped, out)?;
        for failure in &report.failures {
            explain(failure.seed, failure.violation.invariant, out)?;
        }
        let complete = report.print_missed(Where::Shipped, out)?;
        Ok(report.failed == 0 && complete)
    }

    fn report(&self, progress: &mut dyn Write) -> io::Result<Report> {
        let next = AtomicU64::new(0);
        let (sender, receiver) = mpsc::channel();
        let mut report = Report::default();
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                let sender = sender.clone();
                let next = &next;
                scope.spawn(move || self.work(next, &sender));
            }
            drop(sender);
            let mut shown = Instant::now();
            for part in receiver {
                report.join(part?);
                if self.first && report.failed > 0 {
                    next.store(self.histories, Ordering::Relaxed);
                }
                if shown.elapsed() >= PROGRESS_EVERY {
                    shown = Instant::now();
                    let Report { histories, failed, .. } = report;
                    let of = self.histories;
                    writeln!(progress, "{histories} of {of} histories, {failed} violations")?;
                }
            }
            Ok(report)
        })
    }

    fn work(&self, next: &AtomicU64, done: &mpsc::Sender<io::Result<Report>>) {
        let mut checker = Checker::new();
        loop {
            let start = next.fetch_add(BLOCK, Ordering::Relaxed);
            if start >= self.histories {
                return;
            }
            let seeds = (start..self.histories.min(start + BLOCK)).map(|at| self.first_seed + at);
            if done.send(play_some(seeds, &mut checker)).is_err() {
                return;
            }
        }
    }
}

fn play_some(seeds: impl Iterator<Item = u64>, checker: &mut Checker) -> io::Result<Report> {
    let mut report = Report::default();
    for seed in seeds {
        let options = Options::of(seed, Kinds::default());
        let History { log, faults } = play(&options)?;
        report.note(seed, &checker.judge(options.rules(), &log));
        report.of_effects += u64::from(options.effects.is_some());
        report.events += log.len() as u64;
        report.faults += faults;
        report.ms += log.last().map_or(0, |last| u128::from(last.at));
    }
    Ok(report)
}

/// Shows a history. True if nothing was broken.
pub fn show(seed: u64, without: Kinds, all: bool, out: &mut dyn Write) -> io::Result<bool> {
    let options = Options::of(seed, without);
    writeln!(out, "{options}")?;
    replay::show_log(options.rules(), &play(&options)?.log, all, out)
}

/// Explains a failure: how to see it again, and its history with as few fault kinds as still break
/// the promise.
fn explain(seed: u64, invariant: Invariant, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nseed {seed} breaks {invariant}")?;
    let mut checker = Checker::new();
    let mut without = Kinds::default();
    for kind in Options::of(seed, without).kinds.iter() {
        let options = Options::of(seed, without.with(kind));
        let log = play(&options)?.log;
        let judgement = checker.judge(options.rules(), &log);
        if judgement.violations.iter().any(|violation| violation.invariant == invariant) {
            without = without.with(kind);
        }
    }
    write!(out, "  cargo run --release -p sim -- shipped --replay {seed}")?;
    for (at, kind) in without.iter().enumerate() {
        write!(out, "{}{}", if at == 0 { " --without " } else { "," }, kind.name())?;
    }
    writeln!(out)?;
    show(seed, without, false, out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_makes_the_same_history() {
        for seed in 0..40 {
            let options = Options::of(seed, Kinds::default());
            let first = play(&options).unwrap();
            assert_eq!(first, play(&options).unwrap(), "seed {seed}");
            assert!(!first.log.is_empty());
        }
    }

    #[test]
    fn shipped_code_keeps_its_promises() {
        let jobs = std::thread::available_parallelism().map_or(1, |jobs| jobs.get());
        let plan = Plan { histories: 300, first_seed: 0, jobs, first: false };
        let report = plan.report(&mut io::sink()).unwrap();
        let mut text = Vec::new();
        for failure in &report.failures {
            explain(failure.seed, failure.violation.invariant, &mut text).unwrap();
        }
        assert_eq!(report.failed, 0, "{}", String::from_utf8_lossy(&text));
    }
}
