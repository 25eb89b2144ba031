//! Makes HTTP APIs safe to retry.
//!
//! | feature | room | for |
//! | --- | --- | --- |
//! | `layer` | [`layer`], [`upkeep`] | any tower service |
//! | `axum` | the same, and an extractor | axum handlers |
//! | `disk` | `stores::disk` | a durable store on one machine |
//! | `postgres` | `stores::postgres` | a durable store for many processes, also in a transaction of `tokio-postgres` |
//! | `sqlx` | the same, in a transaction of `sqlx` | handlers that write to PostgreSQL |
//! | `sqlx` and `axum` | `transactions` | handlers that are given that transaction |
//! | `phases` | `phases` | operations that write to PostgreSQL and call the outside world |
//! | `outbox` | `outbox` | what is done outside the database if a transaction commits |
//! | `evidence` | `evidence` | whoever reads what providers say about unknown outcomes |
//! | `webhooks` | `webhooks` | what providers tell by themselves: verified, kept, matched and applied |
//! | `client` | `client` | callers of such APIs |
//! | `reqwest` | `client::reqwest` | callers that use reqwest |
//!
//! The memory store needs no feature. The rules themselves are in the crate `retrysafe-core`, which
//! is re-exported as [`core`].

// Our own enums are matched without `_`: a new state or event must be thought about everywhere.
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]
#![deny(clippy::match_bool)]

pub use retrysafe_core as core;

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "evidence")]
pub mod evidence;
mod id_map;
#[cfg(feature = "layer")]
pub mod layer;
#[cfg(feature = "layer")]
mod lookup_throttle;
#[cfg(feature = "outbox")]
pub mod outbox;
#[cfg(feature = "phases")]
pub mod phases;
#[cfg(feature = "layer")]
mod schedule;
pub mod stores;
#[cfg(all(feature = "axum", feature = "sqlx"))]
pub mod transactions;
#[cfg(feature = "layer")]
pub mod upkeep;
mod wait_a_turn;
#[cfg(feature = "webhooks")]
pub mod webhooks;
