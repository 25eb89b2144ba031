//! What does a history cost?

/// What a history cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Events that happened.
    pub events: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Virtual milliseconds that passed.
    pub ms: u64,
}
