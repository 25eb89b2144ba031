//! What does each command do?

mod audit;
pub(crate) mod call;
pub(crate) mod config;
pub(crate) mod keys;
pub(crate) mod stats;
pub(crate) mod store;
