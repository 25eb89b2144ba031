//! The rules of safe retries: no I/O, no clock, no chance.
//!
//! When a POST times out, nobody knows whether it happened. With an `Idempotency-Key` a caller names
//! its request, so that however often it arrives it takes effect once and is answered with the same
//! bytes. This crate is that promise as code that can be read, simulated and model-checked:
//!
//! * [`machine`] decides what may happen next. Read it first: one pure function, one table.
//! * [`engine`] carries its decisions out over any [`store`].
//! * [`execution`] is the order of a request, from its begin to its end.
//! * [`key`], [`scope`], [`credential`] and [`fingerprint`] say whose request it is and whether it is
//!   the same.
//! * [`record`], [`flow`], [`codec`] and [`response`] say what is remembered.
//! * [`policy`] holds what an operator decides, [`problem`] what a caller is told, [`event`] what is
//!   reported, [`retry`] what a client does next.
//!
//! Applications add the crate `retrysafe`, which has the middleware, the stores and the client.
//! Add this one to write another store or another framework's adapter; the `conformance` feature is
//! the test suite for a store.

// Our own enums are matched without `_`: a new state or event must be thought about everywhere.
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]
#![deny(clippy::match_bool)]

pub mod canonical;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod credential;
pub mod effect;
pub mod engine;
pub mod event;
pub mod execution;
mod fence;
pub mod fingerprint;
pub mod flow;
mod hex;
pub mod key;
pub mod machine;
pub mod mention;
pub mod policy;
pub mod problem;
pub mod record;
pub mod response;
pub mod retry;
pub mod scope;
pub mod store;
pub mod time;
pub mod trace;
pub mod units;
pub mod wire;

pub use engine::Engine;
pub use key::Key;
pub use policy::Policy;
pub use scope::{Caller, Id, Scope};
pub use store::{Store, StoreError};
