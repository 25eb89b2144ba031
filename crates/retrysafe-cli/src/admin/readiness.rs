//! Can the store be read and written?
//!
//! A store that is full, or whose disk has become read-only, still reads: a gateway that only read it
//! would call itself ready and refuse every new key. So readiness reads, each time it is asked, and
//! has the store try a write, at most once in [`PROBE_EVERY`] however often it is asked.

use std::time::Duration;

use retrysafe_core::scope::Id;
use retrysafe_core::store::Store;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long the store may take to show that it is there.
const READY_MAX: Duration = Duration::from_secs(2);

/// How often a write is tried at the most, so that health checks are no load.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// When a write was last tried, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Readiness(Mutex<Option<(Instant, Result<(), String>)>>);

impl Readiness {
    /// Whether the store can be used, or why not.
    pub(super) async fn judge(&self, store: &impl Store) -> Result<(), String> {
        let judged = async {
            store.load(Id::from_bytes([0; 32])).await.map_err(|error| error.to_string())?;
            self.probe(store).await
        };
        tokio::time::timeout(READY_MAX, judged).await.unwrap_or_else(|_| Err("too slow".into()))
    }

    /// Tries a write, or says what came of the last one if that was just now. Of several who ask at
    /// once one tries, and the others wait for it.
    async fn probe(&self, store: &impl Store) -> Result<(), String> {
        let mut last = self.0.lock().await;
        if let Some((at, result)) = &*last
            && at.elapsed() < PROBE_EVERY
        {
            return result.clone();
        }
        // Whoever gives up waiting leaves this behind; the next one tries anew.
        *last = None;
        let result = store.probe().await.map(drop).map_err(|error| error.to_string());
        *last = Some((Instant::now(), result.clone()));
        result
    }
}
