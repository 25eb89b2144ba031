//! Whose record is it now? A number says so, and rises with every new owner.

/// The number that rises with ownership, so that a late owner loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);
