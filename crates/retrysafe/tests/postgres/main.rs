//! Does the PostgreSQL store keep its promises?
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

mod audit;
mod conformance;
mod contract;
#[cfg(feature = "sqlx")]
mod drivers;
mod faults;
#[cfg(feature = "sqlx")]
mod flows;
mod kit;
#[cfg(feature = "outbox")]
mod outbox;
#[cfg(all(feature = "axum", feature = "phases"))]
mod phases;
mod places;
mod pooler;
mod processes;
mod promotion;
mod reaping;
mod replication;
mod sql;
mod start;
#[cfg(all(feature = "axum", feature = "sqlx"))]
mod transactions;
#[cfg(feature = "sqlx")]
mod tx;
#[cfg(feature = "webhooks")]
mod webhooks;
