//! How many deliveries may begin now?
//!
//! A bucket that holds as many deliveries as may begin in one second, and fills at that rate. It is asked before a claim,
//! so that no effect waits under a lease for its turn. Its clock is the runtime's, as everything here: a simulator turns it.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// How fast the deliveries of one kind begin.
#[derive(Debug)]
pub(super) struct Pace {
    per_second: NonZeroU32,
    /// When the bucket will be full. In the past, it is.
    full_at: Instant,
}

impl Pace {
    pub(super) fn new(per_second: NonZeroU32, now: Instant) -> Self {
        Self { per_second, full_at: now }
    }

    /// How long the bucket takes to fill by one delivery.
    fn interval(&self) -> Duration {
        SECOND / self.per_second.get()
    }

    /// How many deliveries may begin now.
    pub(super) fn room(&self, now: Instant) -> usize {
        let missing = self.full_at.saturating_duration_since(now);
        let there = SECOND.saturating_sub(missing).as_nanos() / self.interval().as_nanos().max(1);
        usize::try_from(there).unwrap_or(usize::MAX).min(self.per_second.get() as usize)
    }

    /// So many deliveries begin now.
    pub(super) fn begin(&mut self, deliveries: usize, now: Instant) {
        let deliveries = u32::try_from(deliveries).unwrap_or(u32::MAX);
        self.full_at = self.full_at.max(now) + self.interval().saturating_mul(deliveries);
    }

    /// When the next delivery may begin, if that is still to come.
    pub(super) fn opens_at(&self, now: Instant) -> Option<Instant> {
        let opens_at = self.full_at + self.interval();
        opens_at.checked_sub(SECOND).filter(|opens_at| now < *opens_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_of_deliveries_may_begin_at_once_and_then_one_after_the_other() {
        let start = Instant::now();
        let mut pace = Pace::new(NonZeroU32::new(4).unwrap(), start);
        assert_eq!((pace.room(start), pace.opens_at(start)), (4, None));
        pace.begin(4, start);
        let next = start + SECOND / 4;
        assert_eq!((pace.room(start), pace.opens_at(start)), (0, Some(next)));
        assert_eq!((pace.room(next), pace.opens_at(next)), (1, None));
        pace.begin(1, next);
        assert_eq!(pace.opens_at(next), Some(start + SECOND / 2));
        assert_eq!(pace.room(start + SECOND * 60), 4, "what was not used is not saved up");
    }

    #[tokio::test(start_paused = true)]
    async fn any_rate_has_room_for_its_first_second() {
        for per_second in [1, 3, 7, 999, 1_000_000] {
            let pace = Pace::new(NonZeroU32::new(per_second).unwrap(), Instant::now());
            assert_eq!(pace.room(Instant::now()), per_second as usize);
        }
    }
}
