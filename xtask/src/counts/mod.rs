//! Does a request cost more than it did? Counted, not timed.
//!
//! Instructions, allocations and system calls of fixed loads under callgrind: one connection, one request after the other,
//! one serving thread. Each load runs with fewer and with more requests in a process of its own, and the difference is
//! divided by the requests that it has more: what starts and ends a process cancels out. `counts.txt` keeps the numbers.
//!
//! What is counted is what the tests build anyway: unoptimised, but the same work. A rise shows in it as it would in the
//! program that is shipped, and it costs no build of its own. A count that has risen by more than a tenth is a failure;
//! one that has fallen by as much is a reason to keep the new one.

mod callgrind;
mod gateway;
mod loads;
mod programs;
mod table;

use std::process::ExitCode;

use crate::{Error, install, root};
use callgrind::Totals;
use gateway::Asked;
use programs::Programs;
use table::Table;

/// Where the counts are kept.
const KEPT_IN: &str = "xtask/counts.txt";

/// Requests of the shorter run: enough to warm up whatever is made at the first use.
const FEWER: u64 = 100;

/// Requests that the longer run has more.
const MORE: u64 = 400;

/// Counts and compares with what is kept; or keeps what was counted; or shows the counts of an optimised build.
///
/// # Errors
///
/// If it cannot be counted.
pub(crate) fn run(arguments: &[&str]) -> Result<ExitCode, Error> {
    install::missing()?;
    match arguments {
        [] => compare(&count(&Programs::as_tested()?)?),
        ["keep"] => {
            let found = count(&Programs::as_tested()?)?;
            std::fs::write(root().join(KEPT_IN), found.to_string())?;
            println!("{found}\nkept in {KEPT_IN}");
            Ok(ExitCode::SUCCESS)
        }
        ["release"] => {
            println!("{}", count(&Programs::optimised()?)?);
            Ok(ExitCode::SUCCESS)
        }
        _ => Err("usage: cargo xtask bench counts [keep | release]".into()),
    }
}

fn count(programs: &Programs) -> Result<Table, Error> {
    let mut found = Table::default();
    for (name, load) in loads::LOADS {
        let [fewer, more] = [FEWER, FEWER + MORE].map(|n| loads::count(programs, load, n));
        found.push(name, Totals::per_request(&fewer?, &more?, MORE));
    }
    // All loads of the gateway have the same beginning.
    let fewer = gateway::count(programs, &[(Asked::First, FEWER)])?;
    for (name, asked) in gateway::LOADS {
        let more = gateway::count(programs, &[(Asked::First, FEWER), (asked, MORE)])?;
        found.push(name, Totals::per_request(&fewer, &more, MORE));
    }
    Ok(found)
}

fn compare(found: &Table) -> Result<ExitCode, Error> {
    let kept = Table::read(&std::fs::read_to_string(root().join(KEPT_IN))?)?;
    let risen = found.compare(&kept);
    if risen == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "\n{risen} counts have risen by more than a tenth. Where the new work is worth it, keep the new counts with\n    \
         cargo xtask bench counts keep\nand say in the commit what the work is for."
    );
    Ok(ExitCode::FAILURE)
}
