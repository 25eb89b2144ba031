//! What does each command do?

pub(crate) mod call;
pub(crate) mod config;
pub(crate) mod keys;
pub(crate) mod stats;
pub(crate) mod store;
