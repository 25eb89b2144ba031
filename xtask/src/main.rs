//! What can the repository do to itself? One verb per file; `cargo xtask` without a verb lists them.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool of the terminal prints")]
#![deny(clippy::match_bool, clippy::wildcard_enum_match_arm)]

mod bench;
mod clients;
mod counts;
mod effects;
mod flows;
mod fuzz;
mod install;
mod ledger;
mod local;
mod mutants;
mod peers;
mod release;
mod site;
mod test;
mod tidy;
mod vectors;
mod wire;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask test                    every test there is; the last line is the count
cargo xtask tidy                    the house: who uses whom, and what a compiler does not see
cargo xtask docs                    the site of docs/, with every link in it followed (compiles mdBook once)
cargo xtask release-check           each feature alone, packages, licences: what takes too long for every change
cargo xtask api                     what users can name, written to api/ for the release check to compare
cargo xtask mutants [NAME…]         shipped code broken on purpose: does anything notice? (most of an hour)
cargo xtask vectors PATH            the published vectors under PATH against our code
cargo xtask bench NAME              one measurement against its baseline
cargo xtask bench counts            what a request costs in instructions, allocations and system calls, against what is kept
cargo xtask flows COUNT [SEED]      so many rides by four processes that are killed at random: are charges and rides equal?
cargo xtask effects COUNT [SEED]    so many effects by four workers that are killed at random, and so is the database: is each delivered once?
cargo xtask ledger COUNT            so many lines on each side with 1,000 planted differences: are all found, how fast, in how much memory?
cargo xtask fuzz TARGET SECONDS     a fuzz target, for so long
cargo xtask fuzz wire SECONDS [SEED]   random bytes against the running gateway, from both sides
cargo xtask clients                 the official Stripe SDKs through the gateway (npm and pip install them)
cargo xtask peers                   the checker's verdict on four peers, as a table (npm, pip and cargo install them)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["test"] => test::run(),
        ["release-check"] => release::run(),
        ["api"] => release::api::write().map(|()| ExitCode::SUCCESS),
        ["tidy"] => tidy::run(),
        ["docs"] => site::build(),
        ["vectors", path] => vectors::run(path.as_ref()),
        ["bench", "counts", rest @ ..] => counts::run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["flows", count] => flows::run(count, None),
        ["flows", count, seed] => flows::run(count, Some(seed)),
        ["effects", count] => effects::run(count, None),
        ["effects", count, seed] => effects::run(count, Some(seed)),
        ["ledger", count] => ledger::run(count),
        ["fuzz", "wire", seconds] => wire::run(seconds, None),
        ["fuzz", "wire", seconds, seed] => wire::run(seconds, Some(seed)),
        ["fuzz", target, seconds] => fuzz::run(target, seconds),
        ["clients"] => clients::all(),
        ["mutants", words @ ..] => mutants::run(words),
        ["peers"] => peers::all(),
        _ => Err(HELP.into()),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A failure of the tool itself; what it examined may still be fine.
type Error = Box<dyn std::error::Error>;

/// The folder of the workspace that cargo was called in. It is asked for when the tool runs: checkouts that share a target folder share
/// the program in it, too, and the folder that it was compiled in may be another checkout's.
fn root() -> PathBuf {
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(manifest) => PathBuf::from(manifest).join(".."),
        // Not started by cargo: by hand, in the folder of the workspace.
        None => PathBuf::from("."),
    }
}

/// Cargo, in the folder of the workspace. Everything is built into one target folder, also what lies outside the
/// workspace, so that nothing is built twice.
fn cargo() -> Command {
    let root = root();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if std::env::var_os("CARGO_TARGET_DIR").is_none() {
        cargo.env("CARGO_TARGET_DIR", root.join("target"));
    }
    cargo.current_dir(root);
    cargo
}

/// Waits for a command and passes its exit on.
fn exit_of(command: &mut Command) -> Result<ExitCode, Error> {
    let status = command.status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
