//! Could it be published? What takes too long, or changes too seldom, for every change.
//!
//! Each feature alone, the packages that lie outside the workspace, the three crates as they would be uploaded, what users can name,
//! and the licences of everything that is built in.

pub(crate) mod api;
mod licences;

use std::process::{Command, ExitCode};

use crate::{Error, cargo, root};

/// The features of `retrysafe`, each of which must compile alone.
const FEATURES: [&str; 11] = [
    "", "layer", "axum", "disk", "postgres", "redis", "sqlx", "phases", "outbox", "client",
    "reqwest",
];

/// What is published, in this order: each needs the ones before it.
const PUBLISHED: [&str; 3] = ["retrysafe-core", "retrysafe", "retrysafe-cli"];

/// Packages outside the workspace, which no other step compiles.
const OUTSIDE: [&str; 2] = ["fuzz", "benches"];

pub(crate) fn run() -> Result<ExitCode, Error> {
    let mut failed = Vec::new();
    let mut judge = |what: String, command: &mut Command| -> Result<(), Error> {
        println!("== {what}");
        if !command.status()?.success() {
            failed.push(what);
        }
        Ok(())
    };
    for feature in FEATURES {
        let check =
            ["check", "--package", "retrysafe", "--no-default-features", "--features", feature];
        judge(format!("retrysafe with the feature {feature:?} alone"), cargo().args(check))?;
    }
    for feature in ["", "conformance"] {
        let check = ["check", "--package", "retrysafe-core", "--features", feature];
        judge(format!("retrysafe-core with the feature {feature:?} alone"), cargo().args(check))?;
    }
    for package in OUTSIDE {
        let manifest = root().join(package).join("Cargo.toml");
        let mut check = cargo();
        check.args(["check", "--all-targets", "--manifest-path"]).arg(manifest);
        judge(format!("the package {package}"), &mut check)?;
    }
    // They need each other, and no registry has them yet: so they are packed together and not built from the pack.
    let mut pack = cargo();
    pack.args(["package", "--no-verify", "--allow-dirty"]);
    for package in PUBLISHED {
        pack.args(["--package", package]);
    }
    judge(format!("{} as they would be uploaded", PUBLISHED.join(", ")), &mut pack)?;
    let changes = api::changes()?;
    for change in &changes {
        println!("{change}");
    }
    if !changes.is_empty() {
        failed.push(
            "the public declarations are not those in api/: cargo xtask api writes them anew"
                .into(),
        );
    }
    let unknown = licences::unknown()?;
    for (package, licence) in &unknown {
        println!("{package}: the licence {licence:?} is not among those that are permitted");
    }
    if !unknown.is_empty() {
        failed.push("licences".into());
    }
    for what in &failed {
        eprintln!("failed: {what}");
    }
    println!("{} failures", failed.len());
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
