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

mod conformance;
mod faults;
mod kit;
mod processes;
mod quarantine;
mod start;
