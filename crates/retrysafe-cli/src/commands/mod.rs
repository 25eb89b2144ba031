//! What does each command do?

pub(crate) mod admin_client;
mod audit;
pub(crate) mod config;
pub(crate) mod keys;
pub(crate) mod stats;
pub(crate) mod store;
