//! Which measurement is asked for? One file and one feature per measurement; each prints a table of ratios.
//!
//! A figure counts only as a ratio to a baseline in the same run: absolute figures wander with the machine.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a measurement is there to be printed")]

#[cfg(feature = "dashboard")]
mod dashboard;
#[cfg(feature = "fingerprint")]
mod fingerprint;
#[cfg(feature = "gateway")]
mod gateway;
#[cfg(feature = "layer")]
mod layer;
#[cfg(feature = "outbox")]
mod outbox;
#[cfg(feature = "peers")]
mod peers;
#[cfg(feature = "phases")]
mod phases;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "fingerprint", feature = "layer"))]
mod rounds;
#[cfg(feature = "stores")]
mod stores;

use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    match name.as_str() {
        #[cfg(feature = "dashboard")]
        "dashboard" => dashboard::run(),
        #[cfg(feature = "fingerprint")]
        "fingerprint" => fingerprint::run(),
        #[cfg(feature = "gateway")]
        "gateway" => gateway::run(),
        #[cfg(feature = "layer")]
        "layer" => layer::run(),
        #[cfg(feature = "outbox")]
        "outbox" => outbox::run(),
        #[cfg(feature = "peers")]
        "peers" => peers::run(),
        #[cfg(feature = "phases")]
        "phases" => phases::run(),
        #[cfg(feature = "postgres")]
        "postgres" => postgres::run(),
        #[cfg(feature = "redis")]
        "redis" => redis::run(),
        #[cfg(feature = "stores")]
        "stores" => stores::run(),
        _ => {
            eprintln!("{name:?} is not built in; `cargo xtask bench` lists the measurements and builds the one it is asked for");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
