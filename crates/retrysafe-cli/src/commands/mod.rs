//! What does each command do?

pub(crate) mod admin_client;
mod audit;
mod bloat;
pub(crate) mod config;
pub(crate) mod inbox;
pub(crate) mod keys;
pub(crate) mod outbox;
pub(crate) mod reconcile;
pub(crate) mod stats;
pub(crate) mod store;
pub(crate) mod unknown;
