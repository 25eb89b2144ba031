//! Does the store survive every crash there is?
//!
//! The store runs scripts over a folder that records each file call. Then every crash is rehearsed:
//! before each call, with any part of what was not flushed lost or left as neither old nor new. Each
//! image is opened and compared with what had been acknowledged.
//!
//! `REHEARSE_SHARE=10` tries ten times as many scripts; `REHEARSE_SEED=…` repeats one.

mod crashes;
mod damage;
mod failures;
mod flips;
mod folder;
mod mixes;
mod script;
mod threads;
mod torn;
