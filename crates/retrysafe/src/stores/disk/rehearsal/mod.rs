//! Does the store survive every crash there is?
//!
//! The store runs scripts over a folder that records each file call. Then every crash is rehearsed:
//! before each call, with any part of what was not flushed lost. Each image is opened and compared
//! with what had been acknowledged.

mod crashes;
mod failures;
mod flips;
mod folder;
mod script;
