//! Is a ride booked, charged and receipted once, wherever its process is broken off?
//!
//! Real processes, a real PostgreSQL, and a provider that counts. Tests wait for facts: a process has come to a point, the
//! provider holds a request, a wire was cut.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

#[path = "../../../../crates/retrysafe/tests/postgres/kit/cluster.rs"]
#[allow(dead_code, reason = "it is shared with other tests")]
mod cluster;
mod director;
mod flows;
mod gates;
#[path = "../../../../crates/retrysafe-cli/tests/gateway/install.rs"]
mod install;
mod languages;
mod matrix;
mod outcomes;
mod points;
mod program;
mod stops;
mod wire;
mod world;
