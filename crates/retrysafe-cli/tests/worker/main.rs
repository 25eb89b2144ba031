//! Does `retrysafe worker` deliver what is staged, once, and only where it may?
//!
//! The provider is the ground truth: it writes down every request that reaches it. What the database says is asked of the database,
//! by another client than the worker.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod answers;
mod bench;
#[allow(dead_code, reason = "the stores' own tests use the rest of it")]
#[path = "../../../retrysafe/tests/postgres/kit/cluster.rs"]
mod cluster;
mod config;
mod deaf_proxy;
mod destinations;
#[path = "../gateway/install.rs"]
mod install;
#[allow(dead_code, reason = "the tests of the gateway use the rest of it")]
#[path = "../gateway/kit.rs"]
mod kit;
mod life;
mod lookups;
#[allow(dead_code, reason = "the stores' own tests use the rest of it")]
#[path = "../../../retrysafe/tests/postgres/kit/pooler.rs"]
mod pooler;
mod receivers;
mod signing;
mod tls;
