//! How do very many histories run?
//!
//! Seeds are dealt out in blocks to threads, each with its own world and checker; nothing is shared
//! while a history runs. What is collected are counts, and the seeds of the few that fail.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::checker::{Judgement, Sometimes, Violation, Where};
use crate::options::{Kinds, Options, Profile};
use crate::replay;
use crate::runner::Runner;

/// How many seeds a thread takes at once: enough that the counter does not matter, few enough that
/// the threads end together.
const BLOCK: u64 = 500;

/// How many failing seeds are kept and shown.
const SHOWN_MAX: usize = 3;

/// How often progress is reported.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub histories: u64,
    pub first_seed: u64,
    pub jobs: usize,
    pub profile: Option<Profile>,
    /// Whether to stop at the first violation.
    pub first: bool,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    pub histories: u64,
    /// How many of them executed requests as flows.
    pub of_flows: u64,
    /// How many of them were about effects.
    pub of_effects: u64,
    /// How many of them were about reconciliation over a month.
    pub of_providers: u64,
    pub events: u64,
    pub faults: u64,
    pub ms: u128,
    /// Histories with a finding that the weaker promise of their profile documents.
    pub documented: u64,
    /// Histories with a violation.
    pub failed: u64,
    pub failures: Vec<Failure>,
    pub reached: Vec<u64>,
}

/// A history that broke a promise.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub seed: u64,
    pub violation: Violation,
}

impl Plan {
    /// Runs the plan on its threads.
    pub fn run(&self, progress: &mut dyn Write) -> io::Result<Report> {
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
            // The channel closes when the last thread has dealt with the last block.
            for part in receiver {
                report.join(part);
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

    fn work(&self, next: &AtomicU64, done: &mpsc::Sender<Report>) {
        let mut runner = Runner::new();
        loop {
            let start = next.fetch_add(BLOCK, Ordering::Relaxed);
            if start >= self.histories {
                return;
            }
            let mut report = Report::default();
            for at in start..self.histories.min(start + BLOCK) {
                let options = Options::of(self.first_seed + at, self.profile, None);
                let ((), cost) =
                    runner.judge(&options, |judgement| report.note(options.seed, judgement));
                report.of_flows += u64::from(options.flow.is_some());
                report.of_effects += u64::from(options.effects.is_some());
                report.of_providers += u64::from(options.provider.is_some());
                report.events += cost.events;
                report.faults += cost.faults;
                report.ms += u128::from(cost.ms);
            }
            if done.send(report).is_err() {
                return;
            }
        }
    }
}

impl Report {
    /// Counts what became of a history.
    pub fn note(&mut self, seed: u64, judgement: &Judgement<'_>) {
        self.histories += 1;
        self.documented += u64::from(judgement.documented > 0);
        if let Some(violation) = judgement.violations.first() {
            self.failed += 1;
            if self.failures.len() < SHOWN_MAX {
                self.failures.push(Failure { seed, violation: *violation });
            }
        }
        self.reached.resize(Sometimes::ALL.len(), 0);
        for (count, what) in self.reached.iter_mut().zip(Sometimes::ALL) {
            *count += u64::from(judgement.reached.has(*what));
        }
    }

    pub fn join(&mut self, other: Self) {
        self.histories += other.histories;
        self.of_flows += other.of_flows;
        self.of_effects += other.of_effects;
        self.of_providers += other.of_providers;
        self.events += other.events;
        self.faults += other.faults;
        self.ms += other.ms;
        self.documented += other.documented;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.sort_by_key(|failure| failure.seed);
        self.failures.truncate(SHOWN_MAX);
        self.reached.resize(Sometimes::ALL.len(), 0);
        for (count, more) in self.reached.iter_mut().zip(other.reached) {
            *count += more;
        }
    }

    /// What should have happened more often: a thousandth of all histories, at least once.
    fn missed(&self, simulator: Where) -> impl Iterator<Item = (Sometimes, u64)> {
        let least = (self.histories / 1_000).max(1);
        let counts = self.reached.iter().copied().chain(std::iter::repeat(0));
        let all = Sometimes::ALL.iter().copied().zip(counts);
        all.filter(move |(what, count)| what.is_of(simulator) && *count < least)
    }

    /// Prints the report. True if nothing was broken and nothing missed.
    pub fn print(&self, plan: &Plan, took: Duration, out: &mut dyn Write) -> io::Result<bool> {
        self.print_counts(plan.jobs, took, Where::Fast, out)?;
        for failure in &self.failures {
            let case = replay::Case {
                seed: failure.seed,
                profile: plan.profile,
                fault: None,
                without: Kinds::default(),
            };
            replay::explain(case, failure.violation.invariant, out)?;
        }
        // A prescribed profile cannot reach what belongs to another one.
        let complete = plan.profile.is_some() || self.print_missed(Where::Fast, out)?;
        Ok(self.failed == 0 && complete)
    }

    /// Says how much was run, what was broken, and what was reached.
    pub fn print_counts(
        &self,
        jobs: usize,
        took: Duration,
        simulator: Where,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let per_second = self.histories as f64 / took.as_secs_f64().max(0.001);
        writeln!(out, "histories        {}", self.histories)?;
        writeln!(out, "  per second     {per_second:.0} on {jobs} threads")?;
        writeln!(out, "events           {}", self.events)?;
        writeln!(out, "faults           {}", self.faults)?;
        writeln!(out, "virtual years    {:.1}", self.ms as f64 / (365.25 * 86_400_000.0))?;
        if simulator == Where::Fast {
            let documented = self.documented;
            writeln!(out, "of flows         {}", self.of_flows)?;
            writeln!(
                out,
                "of a month       {} (reconciliation with a provider)",
                self.of_providers
            )?;
            writeln!(out, "documented       {documented} (fail-over profile: forgotten writes)")?;
        }
        writeln!(out, "of effects       {}", self.of_effects)?;
        writeln!(out, "violations       {}", self.failed)?;
        let all = Sometimes::ALL.iter().zip(&self.reached);
        for (what, count) in all.filter(|(what, _)| what.is_of(simulator)) {
            writeln!(out, "  sometimes {count:>9}  {}", what.says())?;
        }
        Ok(())
    }

    /// Says what happened too seldom. True if nothing did.
    pub fn print_missed(&self, simulator: Where, out: &mut dyn Write) -> io::Result<bool> {
        let mut complete = true;
        for (what, count) in self.missed(simulator) {
            complete = false;
            writeln!(out, "missed: only {count} histories in which {}", what.says())?;
        }
        Ok(complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Executor;

    #[test]
    fn a_seed_always_makes_the_same_history() {
        let mut executor = Executor::new();
        for seed in 0..200 {
            let options = Options::of(seed, None, None);
            let (first, cost) = executor.run(&options, |log| log.to_vec());
            // Another world, so that nothing of the former one can leak into it.
            let (second, again) = Executor::new().run(&options, |log| log.to_vec());
            assert_eq!(first, second, "seed {seed}");
            assert_eq!(cost, again, "seed {seed}");
        }
    }

    #[test]
    fn promises_hold_and_the_interesting_things_happen() {
        let jobs = std::thread::available_parallelism().map_or(1, |jobs| jobs.get());
        let plan = Plan { histories: 10_000, first_seed: 0, jobs, profile: None, first: false };
        let report = plan.run(&mut io::sink()).unwrap();
        let mut text = Vec::new();
        let good = report.print(&plan, Duration::from_secs(1), &mut text).unwrap();
        assert!(good, "{}", String::from_utf8_lossy(&text));
    }
}
