//! What time is it for a store in this process?
//!
//! A record's retention ends by its store's clock, so that clock must not be fooled. It reads the
//! wall clock once, when it is made, and advances by the monotonic clock from then on: a wall clock
//! that is set, or that jumps, cannot end a retention early. A store that outlives its process keeps
//! a mark of the latest reading and starts [at least](Clock::starting_at_least) there.
//!
//! Tests turn the clock [by hand](Clock::manual).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use retrysafe_core::time::Time;

/// A clock that never goes back. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use retrysafe::core::time::Time;
/// use retrysafe::stores::clock::Clock;
/// use retrysafe::stores::memory::MemoryStore;
///
/// let (clock, hand) = Clock::manual(Time::from_ms(1_000));
/// let store = MemoryStore::with_clock(clock);
/// hand.advance(Duration::from_secs(24 * 60 * 60));
/// # let _ = store;
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    /// It was `then` at `origin`.
    System { origin: Instant, then: Time },
    /// Milliseconds since the Unix epoch, moved by a [`Hand`].
    Manual(Arc<AtomicU64>),
}

/// Turns a manual clock.
#[derive(Clone, Debug)]
pub struct Hand(Arc<AtomicU64>);

impl Clock {
    /// The wall clock as it is now, advanced by the monotonic clock from now on.
    ///
    /// A wall clock before 1970 counts as 1970; the mark of a durable store mends that.
    pub fn system() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Whole milliseconds that have passed: a reading is never ahead of the wall clock.
        let ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        Self(Source::System { origin: Instant::now(), then: Time::from_ms(ms) })
    }

    /// A clock that stands still until its hand is advanced.
    pub fn manual(start: Time) -> (Self, Hand) {
        let ms = Arc::new(AtomicU64::new(start.as_ms()));
        (Self(Source::Manual(Arc::clone(&ms))), Hand(ms))
    }

    /// The same clock, set forward to `mark` if it is behind it.
    #[must_use]
    pub fn starting_at_least(self, mark: Time) -> Self {
        match self.0 {
            Source::System { origin, then } => {
                let behind = self.now().until(mark);
                Self(Source::System { origin, then: then.plus(behind) })
            }
            Source::Manual(ms) => {
                ms.fetch_max(mark.as_ms(), Ordering::SeqCst);
                Self(Source::Manual(ms))
            }
        }
    }

    /// The present reading; never less than an earlier one.
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::System { origin, then } => {
                let passed = u64::try_from(origin.elapsed().as_millis()).unwrap_or(u64::MAX);
                then.plus(Duration::from_millis(passed))
            }
            Source::Manual(ms) => Time::from_ms(ms.load(Ordering::SeqCst)),
        }
    }
}

impl Hand {
    /// Sets the clock forward. Fractions of a millisecond count as a whole one.
    pub fn advance(&self, by: Duration) {
        // The closure never declines, so the update cannot fail.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |ms| {
            Some(Time::from_ms(ms).plus(by).as_ms())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_shows_the_wall_time_and_never_goes_back() {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let clock = Clock::system();
        let mut last = clock.now();
        assert!(last.as_ms() >= wall, "{last:?} is behind {wall}");
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn a_clock_starts_at_its_mark_when_the_wall_clock_is_behind_it() {
        let far = Clock::system().now().plus(Duration::from_secs(1_000_000));
        assert!(Clock::system().starting_at_least(far).now() >= far);
        let past = Time::from_ms(1);
        assert!(Clock::system().starting_at_least(past).now() < far);
    }

    #[test]
    fn a_manual_clock_moves_by_its_hand_only_and_for_all_clones() {
        let (clock, hand) = Clock::manual(Time::from_ms(1_000));
        let clone = clock.clone();
        assert_eq!(clock.now(), clock.now());
        hand.advance(Duration::from_millis(5));
        assert_eq!(clone.now(), Time::from_ms(1_005));
        let clock = clock.starting_at_least(Time::from_ms(900));
        assert_eq!(clock.now(), Time::from_ms(1_005));
        let clock = clock.starting_at_least(Time::from_ms(2_000));
        assert_eq!((clock.now(), clone.now()), (Time::from_ms(2_000), Time::from_ms(2_000)));
        hand.advance(Duration::MAX);
        assert_eq!(clock.now(), Time::from_ms(u64::MAX));
    }
}
