//! Does the Redis store keep its promises?
//!
//! One program, so that it is linked once and one server serves all tests that do not break theirs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

mod attacks;
mod conformance;
mod failover;
mod faults;
mod kit;
#[allow(dead_code, reason = "the tests of PostgreSQL use all of it")]
#[path = "../postgres/kit/mod.rs"]
mod postgres_kit;
mod processes;
mod quarantine;
mod rules;
mod start;
mod tiered;
