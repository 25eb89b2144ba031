//! Do our stores keep the promises of a store?

use std::sync::Arc;
use std::time::Duration;

use retrysafe::stores::clock::{Clock, Hand};
use retrysafe::stores::memory::MemoryStore;
use retrysafe_core::conformance::{Bench, Shaken, Still};
use retrysafe_core::time::Time;

/// A memory store by a clock that is turned by hand.
struct MemoryBench {
    store: Arc<MemoryStore>,
    hand: Hand,
}

impl Bench for MemoryBench {
    type Store = MemoryStore;

    async fn fresh() -> Self {
        let (clock, hand) = Clock::manual(Time::from_ms(1_700_000_000_000));
        Self { store: Arc::new(MemoryStore::with_clock(clock)), hand }
    }

    fn store(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.store)
    }

    async fn advance(&self, by: Duration) {
        self.hand.advance(by);
    }
}

impl Still for MemoryBench {}

retrysafe_core::conformance!(memory, MemoryBench: Still);
retrysafe_core::conformance!(memory_shaken, Shaken<MemoryBench>: Still);
