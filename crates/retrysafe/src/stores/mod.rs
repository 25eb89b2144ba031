//! Where are records kept?
//!
//! | store | for | durable | shared |
//! | --- | --- | --- | --- |
//! | [`memory`] | tests and trials | no | no |
//! | `disk` (feature `disk`) | one machine; the default of the gateway | yes | no |

pub mod any;
pub mod clock;
#[cfg(feature = "disk")]
pub mod disk;
pub mod memory;
