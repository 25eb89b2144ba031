//! When is it, and by whose clock?
//!
//! Only a store reads a clock. What it reads is a [`Time`], and every answer of a store carries one,
//! so that the rules can compare a record with the moment at which it was seen.

use std::fmt;
use std::time::Duration;

/// A reading of a store's clock: milliseconds since the Unix epoch.
///
/// Arithmetic saturates. A record that a wrong clock has placed at the end of time is late or
/// early, never wrapped around.
///
/// ```
/// use std::time::Duration;
/// use retrysafe_core::time::Time;
///
/// let later = Time::from_ms(1_000).plus(Duration::from_secs(1));
/// assert_eq!(later.as_ms(), 2_000);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The end of time: what is due then never is.
    pub const NEVER: Self = Self(u64::MAX);

    /// The reading of a clock that shows `ms` milliseconds since the Unix epoch.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// The moment that lies `by` later.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(ms(by)))
    }

    /// How long ago `earlier` was; zero if it is not in the past.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// How long until `later`; zero if it is not in the future.
    pub fn until(self, later: Self) -> Duration {
        later.since(self)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// A length of time in whole milliseconds, rounded up: a lease of half a millisecond is not none.
pub(crate) fn ms(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let end = Time::from_ms(u64::MAX);
        assert_eq!(end.plus(Duration::from_secs(1)), end);
        assert_eq!(Time::from_ms(5).since(Time::from_ms(9)), Duration::ZERO);
        assert_eq!(Time::from_ms(5).until(Time::from_ms(9)), Duration::from_millis(4));
    }

    #[test]
    fn lengths_round_up() {
        assert_eq!(ms(Duration::from_micros(1)), 1);
        assert_eq!(ms(Duration::from_millis(7)), 7);
        assert_eq!(ms(Duration::MAX), u64::MAX);
    }
}
