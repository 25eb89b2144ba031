//! The program from outside: a recording upstream behind it, raw sockets in front of it.
//!
//! The upstream is the ground truth. It writes down every request that reaches it, so no test has
//! to believe what the gateway says about itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod admin;
mod backup;
mod bounds;
mod browser;
mod browser_driver;
mod callers;
#[allow(dead_code, reason = "the stores' own tests use the rest of it")]
#[path = "../../../retrysafe/tests/postgres/kit/cluster.rs"]
mod cluster;
mod code_blocks;
mod commands;
mod config;
mod cors;
mod dashboard;
mod decide;
mod deploy;
mod disk;
mod docs;
mod first_hour;
mod header_names;
mod house;
mod http2;
mod install;
mod jwks;
mod jwt;
#[allow(dead_code, reason = "the bad inputs need more of it")]
mod kit;
mod ledger;
mod life;
mod limits;
mod links;
mod log;
mod meaning;
mod metrics;
mod night;
mod operator;
mod outbox;
mod pages;
mod postgres;
mod promise;
mod proxying;
mod readiness;
mod reconcile;
mod redis;
#[allow(dead_code, reason = "the stores' own tests use the rest of it")]
#[path = "../../../retrysafe/tests/redis/kit/server.rs"]
mod redis_server;
mod same_bytes;
mod secrets;
mod together;
mod traces;
mod unasked;
mod upstreams;
mod webhooks;
mod wire;
