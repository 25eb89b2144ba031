//! Does the PostgreSQL store keep the promises of a store?

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

mod common;

use common::bench::Direct;

retrysafe_core::conformance!(postgres, Direct: Still + Reopen + Damage);
