//! Does the client keep its promise towards a real server?
//!
//! Every test talks to a scripted server on a loopback socket: one connection per attempt, and what
//! happens on it is written down beforehand.
#![cfg(feature = "client")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "what the tests share fails like a test"
)]

mod crash;
mod ends;
mod journal;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retries;
mod server;
#[cfg(feature = "axum")]
mod together;
