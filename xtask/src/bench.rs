//! How fast is it, next to its baseline? The measurements lie in `benches/`, outside the workspace.

use std::process::ExitCode;

use crate::{Error, cargo, exit_of};

/// Name and what it measures. Each is a feature of `benches/`, so that it builds only its own baselines.
const BENCHES: &[(&str, &str)] = &[
    ("fingerprint", "the canonical fingerprint against serde_json_canonicalizer + sha2"),
    ("layer", "the layer over a memory store against the bare axum handler and axum-idempotent"),
    (
        "stores",
        "the disk store against SQLite per operation, redb and fjall; growth, memory, reaping",
    ),
    (
        "outbox",
        "the outbox's worker against the plain one-row SKIP LOCKED loop; log, a million under churn",
    ),
    (
        "phases",
        "a flow of three phases against the same statements by hand; its round trips, counted",
    ),
    ("postgres", "the PostgreSQL store against pooled single statements"),
    (
        "redis",
        "the Redis store against its bare scripts and SET NX; the tiered store's replays; memory",
    ),
    ("gateway", "the gateway against a bare hyper proxy and nginx; memory, latency"),
    (
        "dashboard",
        "pages of the dashboard over a large store, and what ten readers cost the requests beside them",
    ),
    ("peers", "what one would pick instead, in front of Express, FastAPI and axum applications"),
];

pub(crate) fn run(arguments: &[&str]) -> Result<ExitCode, Error> {
    let Some((name, _)) =
        arguments.first().and_then(|asked| BENCHES.iter().find(|(name, _)| name == asked))
    else {
        eprintln!("usage: cargo xtask bench NAME\n");
        for (name, about) in BENCHES {
            eprintln!("  {name:<14}{about}");
        }
        eprintln!("  {:<14}what a request costs in counts that are kept, not timed", "counts");
        return Ok(ExitCode::FAILURE);
    };
    // A peer may ask for a newer compiler than we do, and is built with ours all the same.
    let manifest = [
        "run",
        "--quiet",
        "--release",
        "--ignore-rust-version",
        "--manifest-path",
        "benches/Cargo.toml",
    ];
    exit_of(cargo().args(manifest).args(["--features", name, "--"]).args(arguments))
}
