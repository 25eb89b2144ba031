//! Are charges and rides equal after very many flows?
//!
//! The test of `examples/ride-payments` that `cargo xtask test` runs with a thousand, with as many as are wanted.

use std::process::ExitCode;

use crate::{Error, cargo, exit_of, install};

pub(crate) fn run(count: &str, seed: Option<&str>) -> Result<ExitCode, Error> {
    let count: u32 = count.parse().map_err(|error| format!("{count}: {error}"))?;
    install::missing()?;
    let mut test = cargo();
    test.args(["test", "--release", "-p", "ride-payments", "--test", "rides"]);
    test.args(["charges_are_rides_after_random_kills", "--", "--nocapture"]);
    test.env("RETRYSAFE_FLOWS", count.to_string());
    if let Some(seed) = seed {
        test.env("RETRYSAFE_FLOWS_SEED", seed);
    }
    exit_of(&mut test)
}
