//! Where are records kept?
//!
//! | store | for | durable | shared |
//! | --- | --- | --- | --- |
//! | [`memory`] | tests and trials | no | no |
//! | `disk` (feature `disk`) | one machine; the default of the gateway | yes | no |
//! | `postgres` (feature `postgres`) | the reference: many processes, money | yes | yes |

pub mod any;
pub mod clock;
#[cfg(feature = "disk")]
pub mod disk;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
mod watchers;
