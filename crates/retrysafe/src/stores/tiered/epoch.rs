//! What does this process know of the database, without asking it?
//!
//! The secret of copies, the answer epoch, and the clock. The epoch is read every [`READ_EVERY`], and
//! what is older than [`FRESH_FOR`] does not count: then the database is asked. An operator's `expire`
//! raises the epoch in the same transaction, which ends every copy that was made before; so a process
//! serves what was expired elsewhere for [`FRESH_FOR`] at the most.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use retrysafe_core::time::Time;

/// How often the epoch is read.
pub(super) const READ_EVERY: Duration = Duration::from_secs(2);

/// How long a reading counts.
pub(super) const FRESH_FOR: Duration = Duration::from_secs(5);

/// A reading of the database: its answer epoch, and its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) epoch: u64,
    pub(super) now: Time,
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) secret: [u8; 32],
    last: Mutex<Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    epoch: u64,
    epoch_at: Instant,
    /// A reading that was asked for before this moment does not count.
    doubted_at: Instant,
    now: Time,
    now_at: Instant,
}

impl Known {
    /// What was read at `asked`, before the answer came.
    pub(super) fn new(secret: [u8; 32], reading: Reading, asked: Instant) -> Self {
        let last = Last {
            epoch: reading.epoch,
            epoch_at: asked,
            doubted_at: asked,
            now: reading.now,
            now_at: Instant::now(),
        };
        Self { secret, last: Mutex::new(last) }
    }

    /// The epoch and the clock, if the epoch was read lately. The clock is never ahead of the
    /// database's: it is counted from the moment at which its reading arrived.
    pub(super) fn reading(&self) -> Option<Reading> {
        let mut last = self.last();
        let passed = last.now_at.elapsed();
        // Never back: whoever was told of a time is told of no earlier one.
        last.now = last.now.plus(Duration::from_millis(passed.as_millis() as u64));
        last.now_at += Duration::from_millis(passed.as_millis() as u64);
        (last.epoch_at >= last.doubted_at && last.epoch_at.elapsed() <= FRESH_FOR)
            .then_some(Reading { epoch: last.epoch, now: last.now })
    }

    /// Notes the database's clock, as an answer of it says.
    pub(super) fn note_now(&self, now: Time) {
        let mut last = self.last();
        if now > last.now {
            last.now = now;
            last.now_at = Instant::now();
        }
    }

    /// Notes an epoch that was asked for at this moment.
    pub(super) fn note(&self, reading: Reading, asked: Instant) {
        self.note_now(reading.now);
        let mut last = self.last();
        if reading.epoch >= last.epoch {
            last.epoch = reading.epoch;
            last.epoch_at = asked;
        }
    }

    /// Says that the epoch may have risen by now: whatever was read before does not count.
    pub(super) fn doubt(&self) {
        self.last().doubted_at = Instant::now();
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(epoch: u64, ms: u64) -> Reading {
        Reading { epoch, now: Time::from_ms(ms) }
    }

    #[test]
    fn an_old_reading_does_not_count() {
        let long_ago = Instant::now().checked_sub(FRESH_FOR + Duration::from_millis(1)).unwrap();
        let known = Known::new([0; 32], reading(1, 1_000), long_ago);
        assert_eq!(known.reading(), None);
        known.note(reading(1, 2_000), Instant::now());
        let now = known.reading().unwrap();
        assert!(now.epoch == 1 && now.now >= Time::from_ms(2_000));
    }

    #[test]
    fn a_reading_from_before_a_doubt_does_not_count() {
        let known = Known::new([0; 32], reading(1, 1_000), Instant::now());
        let asked = Instant::now();
        known.doubt();
        assert_eq!(known.reading(), None);
        known.note(reading(1, 1_000), asked);
        assert_eq!(known.reading(), None, "it was asked for before");
        known.note(reading(2, 1_000), Instant::now());
        assert_eq!(known.reading().map(|reading| reading.epoch), Some(2));
    }

    #[test]
    fn neither_epoch_nor_clock_go_back() {
        let known = Known::new([0; 32], reading(5, 10_000), Instant::now());
        known.note(reading(4, 1_000), Instant::now());
        let now = known.reading().unwrap();
        assert!(now.epoch == 5 && now.now >= Time::from_ms(10_000));
        known.note(reading(6, 20_000), Instant::now());
        let now = known.reading().unwrap();
        assert!(now.epoch == 6 && now.now >= Time::from_ms(20_000));
    }
}
