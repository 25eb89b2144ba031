//! Would the simulator find it?
//!
//! A run of the museum plants one fault after the other and looks for it, seed by seed; each must be
//! found by the invariant that it breaks, within a stated number of seeds. This is the evidence that
//! the checker is not asleep.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fault::Fault;
use crate::options::Options;
use crate::runner::Runner;

/// Plants every fault and looks for it. True if all are found.
pub fn visit(jobs: usize, out: &mut dyn Write) -> io::Result<bool> {
    let next = AtomicUsize::new(0);
    let mut found: Vec<(usize, Option<u64>)> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..jobs.max(1)).map(|_| scope.spawn(|| look_for_some(&next))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    found.sort_unstable();
    writeln!(out, "| planted fault | in | what it does | broken promise | first seed | allowed |")?;
    writeln!(out, "| --- | --- | --- | --- | --- | --- |")?;
    for (fault, seed) in Fault::ALL.iter().zip(found.iter().map(|(_, seed)| seed)) {
        let (name, says, breaks) = (fault.name(), fault.says().trim(), fault.breaks().name());
        let seed = seed.map_or_else(|| "**not found**".to_owned(), |seed| seed.to_string());
        let place = if fault.is_in_shipped_code() { "shipped code" } else { "the simulator" };
        let most = fault.seeds_max();
        writeln!(out, "| `{name}` | {place} | {says} | {breaks} | {seed} | {most} |")?;
    }
    let shipped = Fault::ALL.iter().filter(|fault| fault.is_in_shipped_code()).count();
    let own = Fault::ALL.len() - shipped;
    let of_flows = Fault::ALL.iter().filter(|fault| fault.is_about_flows()).count();
    writeln!(out, "\n{shipped} change what shipped code decided, {own} are the simulator's own.")?;
    let of_effects = Fault::ALL.iter().filter(|fault| fault.is_about_effects()).count();
    let of_providers = Fault::ALL.iter().filter(|fault| fault.is_about_provider()).count();
    writeln!(
        out,
        "{of_flows} of them are about flows, {of_effects} about effects, {of_providers} about a provider over a month."
    )?;
    Ok(found.len() == Fault::ALL.len() && found.iter().all(|(_, seed)| seed.is_some()))
}

fn look_for_some(next: &AtomicUsize) -> Vec<(usize, Option<u64>)> {
    let mut runner = Runner::new();
    std::iter::from_fn(|| {
        let at = next.fetch_add(1, Ordering::Relaxed);
        Fault::ALL.get(at).map(|fault| (at, first_seed(*fault, &mut runner)))
    })
    .collect()
}

/// The first seed whose history breaks the promise that this fault breaks, within its bound.
fn first_seed(fault: Fault, runner: &mut Runner) -> Option<u64> {
    (0..fault.seeds_max()).find(|seed| {
        let (violations, _) = runner.run(&Options::of(*seed, None, Some(fault)));
        violations.iter().any(|violation| violation.invariant == fault.breaks())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_fault_is_found() {
        let mut table = Vec::new();
        let jobs = std::thread::available_parallelism().map_or(1, |jobs| jobs.get());
        let all = visit(jobs, &mut table).unwrap();
        assert!(all, "{}", String::from_utf8_lossy(&table));
    }
}
