//! How fast is it, next to its baseline? The measurements lie in `benches/`, outside the workspace.

use std::process::ExitCode;

use crate::{Error, cargo, exit_of};

pub(crate) fn run(arguments: &[&str]) -> Result<ExitCode, Error> {
    let manifest = ["run", "--quiet", "--release", "--manifest-path", "benches/Cargo.toml", "--"];
    exit_of(cargo().args(manifest).args(arguments))
}
