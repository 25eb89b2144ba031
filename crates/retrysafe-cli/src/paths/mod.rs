//! Which paths are meant by a pattern, and which by a request?

pub(crate) mod overlap;
pub(crate) mod patterns;
pub(crate) mod readings;
