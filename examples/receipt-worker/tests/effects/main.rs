//! Is an effect delivered once, wherever its worker or its database is broken off?
//!
//! Real processes, a real PostgreSQL, and a provider that counts. Nothing in the worker knows of these tests: a wire between
//! the worker and its database stops at the statement that is wanted, and the provider holds a request. Tests wait for
//! facts: a statement is held, a lease is over, a process has ended.

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
mod held;
mod lanes;
mod matrix;
mod points;
mod poison;
mod process;
#[path = "../../src/receivers.rs"]
mod receivers;
mod soak;
mod starts;
mod wire;
mod world;
