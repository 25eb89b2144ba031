//! What was kept lately, in a bounded number of bytes and for a bounded time?
//!
//! The oldest give way to new ones. Whatever takes the place of another under the same hash also takes its age, so that the queue stays
//! in order.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// Values by the hash of what they are for.
pub(super) struct KeptLately<T> {
    values: HashMap<u64, Kept<T>>,
    /// Their hashes, oldest first.
    order: VecDeque<u64>,
    bytes: usize,
    bytes_max: usize,
    time_max: Duration,
}

struct Kept<T> {
    value: T,
    bytes: usize,
    since: Instant,
}

impl<T> KeptLately<T> {
    pub(super) fn new(bytes_max: usize, time_max: Duration) -> Self {
        Self { values: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max, time_max }
    }

    pub(super) fn get_mut(&mut self, hash: u64) -> Option<&mut T> {
        self.values.get_mut(&hash).map(|kept| &mut kept.value)
    }

    /// Keeps a value that takes up so many bytes.
    pub(super) fn put(&mut self, hash: u64, value: T, bytes: usize) {
        let mut since = Instant::now();
        match self.values.get(&hash) {
            Some(former) => {
                since = former.since;
                self.bytes = self.bytes.saturating_sub(former.bytes);
            }
            None => self.order.push_back(hash),
        }
        self.bytes += bytes;
        self.values.insert(hash, Kept { value, bytes, since });
        while self.bytes > self.bytes_max && self.forget_oldest(|_| true) {}
    }

    /// Forgets what was kept for long enough.
    pub(super) fn tidy(&mut self) {
        let time_max = self.time_max;
        while self.forget_oldest(|kept| kept.since.elapsed() >= time_max) {}
    }

    /// Forgets the oldest value, if it is to be forgotten. Says whether it is.
    fn forget_oldest(&mut self, is_wanted: impl Fn(&Kept<T>) -> bool) -> bool {
        let oldest = self.order.front().and_then(|hash| self.values.get(hash));
        if !oldest.is_some_and(is_wanted) {
            return false;
        }
        let oldest = self.order.pop_front().and_then(|hash| self.values.remove(&hash));
        self.bytes = self.bytes.saturating_sub(oldest.map_or(0, |kept| kept.bytes));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_give_way_and_bytes_and_time_are_bounded() {
        let mut kept = KeptLately::new(100, Duration::from_secs(60));
        for hash in 0..1_000 {
            kept.put(hash, hash, 30);
            assert_eq!(kept.bytes, 30 * kept.values.len());
            assert!(kept.bytes <= 100);
            assert_eq!(kept.order.len(), kept.values.len());
        }
        let has = |kept: &mut KeptLately<u64>, hash| kept.get_mut(hash).is_some();
        assert!(!has(&mut kept, 996) && has(&mut kept, 997) && has(&mut kept, 999));
        tokio::time::advance(Duration::from_secs(40)).await;
        kept.put(997, 1, 10);
        assert_eq!((kept.bytes, kept.get_mut(997).copied()), (70, Some(1)));
        kept.put(1_000, 2, 20);
        kept.tidy();
        assert_eq!(kept.values.len(), 4);
        tokio::time::advance(Duration::from_secs(20)).await;
        kept.tidy();
        assert_eq!((kept.values.len(), kept.bytes), (1, 20), "what took a place is as old as it");
        kept.put(1_001, 3, 101);
        assert_eq!((kept.values.len(), kept.order.len(), kept.bytes), (0, 0, 0), "too large");
    }
}
