//! Which measurement is asked for? One file per measurement; each prints a table of ratios.
//!
//! A figure counts only as a ratio to a baseline in the same run: absolute figures wander with the machine.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a measurement is there to be printed")]

mod fingerprint;
mod rounds;

use std::process::ExitCode;

/// Name, what it measures, how.
const BENCHES: &[(&str, &str, fn())] =
    &[("fingerprint", "canonical fingerprint against serde_json_canonicalizer + sha2", fingerprint::run)];

fn main() -> ExitCode {
    let name = std::env::args().nth(1);
    let Some((_, _, run)) = BENCHES.iter().find(|(known, _, _)| Some(*known) == name.as_deref()) else {
        eprintln!("usage: bench NAME\n");
        for (name, about, _) in BENCHES {
            eprintln!("  {name:<14}{about}");
        }
        return ExitCode::FAILURE;
    };
    run();
    ExitCode::SUCCESS
}
