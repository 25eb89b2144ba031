//! What do both simulators share about effects?
//!
//! * [`table`]: where effects are kept. The core's own rules decide in it.
//! * [`receiver`]: what a receiver does with a packet.
//! * [`mutant`]: the planted faults of both.

mod mutant;
pub mod receiver;
pub mod table;

pub use mutant::Planted;
