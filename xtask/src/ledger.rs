//! Are a thousand differences found among millions of lines, and in how much memory?
//!
//! The test of `retrysafe reconcile compare` that `cargo xtask test` runs with fifty thousand lines, with as many as are wanted
//! and with the program as it is released.

use std::process::ExitCode;

use crate::{Error, cargo, exit_of, root};

pub(crate) fn run(count: &str) -> Result<ExitCode, Error> {
    let count: u64 = count.parse().map_err(|error| format!("{count}: {error}"))?;
    let mut build = cargo();
    build.args(["build", "--release", "-p", "retrysafe-cli"]);
    if exit_of(&mut build)? != ExitCode::SUCCESS {
        return Ok(ExitCode::FAILURE);
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let mut test = cargo();
    test.args(["test", "--all-features", "-p", "retrysafe-cli", "--test", "ledger"]);
    test.args(["a_thousand_planted_differences", "--", "--nocapture"]);
    test.env("RETRYSAFE_LEDGER", count.to_string());
    test.env("RETRYSAFE_LEDGER_PROGRAM", target.join("release/retrysafe").canonicalize()?);
    exit_of(&mut test)
}
