//! What do millions of random inputs do? The targets lie in `fuzz/fuzz_targets/`.

use std::process::{ExitCode, Stdio};

use crate::{Error, cargo, exit_of};

pub(crate) fn run(target: &str, seconds: &str) -> Result<ExitCode, Error> {
    let seconds: u32 = seconds.parse().map_err(|_| "SECONDS is a whole number")?;
    let is_installed = cargo()
        .args(["fuzz", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !is_installed {
        let installed = cargo().args(["install", "--locked", "cargo-fuzz"]).status()?;
        if !installed.success() {
            return Err("cargo-fuzz could not be installed".into());
        }
    }
    exit_of(
        cargo()
            // Instrumenting needs unstable flags; this lets the pinned stable compiler take them.
            .env("RUSTC_BOOTSTRAP", "1")
            // Our crates forbid unsafe code, so a sanitizer would find little and cost most of the speed.
            .args(["fuzz", "run", "--sanitizer", "none", target, "--"])
            .arg(format!("-max_total_time={seconds}"))
            .args(["-max_len=4096", "-print_final_stats=1", "-verbosity=1"]),
    )
}
