//! Are very many effects delivered, once and in order?
//!
//! The test of `examples/receipt-worker` that `cargo xtask test` runs with five thousand, with as many as are wanted.

use std::process::ExitCode;

use crate::{Error, cargo, exit_of, install};

pub(crate) fn run(count: &str, seed: Option<&str>) -> Result<ExitCode, Error> {
    let count: u32 = count.parse().map_err(|error| format!("{count}: {error}"))?;
    install::missing()?;
    let mut test = cargo();
    test.args(["test", "--release", "-p", "receipt-worker", "--test", "effects"]);
    test.args(["every_intent_is_accounted_for", "--", "--nocapture"]);
    test.env("RETRYSAFE_EFFECTS", count.to_string());
    if let Some(seed) = seed {
        test.env("RETRYSAFE_EFFECTS_SEED", seed);
    }
    exit_of(&mut test)
}
