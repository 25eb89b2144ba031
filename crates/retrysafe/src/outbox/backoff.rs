//! How long does a failed effect wait?
//!
//! Full jitter: any time between nothing and a bound that doubles with each failure. So effects that failed together
//! do not come back together.

use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::time::Duration;

use super::store::Held;

/// The bounds of the pauses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    pub base: Duration,
    pub cap: Duration,
}

impl Backoff {
    pub(super) const USUAL: Self =
        Self { base: Duration::from_secs(1), cap: Duration::from_secs(60 * 60) };

    /// The pause after this many failures. `draw` is a random number.
    pub(super) fn pause(&self, failures: u32, draw: u64) -> Duration {
        let doubled = 2_u32.checked_pow(failures).unwrap_or(u32::MAX);
        let bound = self.base.saturating_mul(doubled).min(self.cap);
        let millis = u64::try_from(bound.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(draw % millis.saturating_add(1))
    }
}

/// Where the random part of a pause comes from: each delivery has its own, and each worker.
#[derive(Clone, Copy)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new() -> Self {
        Self(RandomState::new().hash_one(0))
    }

    pub(super) const fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn draw(self, held: Held) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.0, held).hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_doubles_up_to_its_cap() {
        let second = Duration::from_secs(1);
        let backoff = Backoff { base: second, cap: second * 10 };
        for (failures, bound) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 10), (99, 10)] {
            // The largest draw within the bound is the bound itself.
            assert_eq!(backoff.pause(failures, bound * 1_000), Duration::from_secs(bound));
            assert_eq!(backoff.pause(failures, bound * 1_000 + 1), Duration::ZERO);
        }
    }
}
