//! Where are records kept?
//!
//! | store | for | durable | shared |
//! | --- | --- | --- | --- |
//! | [`memory`] | tests and trials | no | no |
//! | `disk` (feature `disk`) | one machine; the default of the gateway | yes | no |
//! | `postgres` (feature `postgres`) | the reference: many processes, money | yes | yes |
//! | `redis` (feature `redis`) | low stakes, high rates | as the server is configured | yes |
//! | `tiered` (both) | many replays: PostgreSQL decides, Redis answers | yes | yes |

pub mod any;
pub mod clock;
#[cfg(feature = "disk")]
pub mod disk;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub mod quarantine;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(all(feature = "postgres", feature = "redis"))]
pub mod tiered;
mod watchers;
