//! How is the store opened when the program starts?
//!
//! After a power cut everything starts at once, and the database is seldom first. A store that is out
//! of reach is waited for, for `store_wait_max` at the most. What is wrong for good (a password, a
//! server that forgets, a folder that another process holds) ends the start at once.

use std::time::Duration;

use retrysafe::stores::any::{AnyStore, StoreUrl, WallClock};
use retrysafe_core::units::show_duration;
use tokio::time::Instant;

use crate::Failure;

/// The first pause between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest pause: a database that has come up is found this late.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Opens a store, and waits for one that is out of reach.
///
/// # Errors
///
/// Why it cannot be opened.
pub(crate) async fn open(
    url: StoreUrl,
    clock: WallClock,
    wait_max: Duration,
) -> Result<AnyStore, Failure> {
    let deadline = Instant::now() + wait_max;
    let mut pause = PAUSE_MIN;
    loop {
        let error = match AnyStore::open_by_clock(&url, clock).await {
            Ok(store) => return Ok(store),
            Err(error) => error,
        };
        if !error.may_pass() {
            return Err(format!("{url}: {error}").into());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let waited = show_duration(wait_max);
            let what = format!("{url}: {error} (waited for {waited}, as store_wait_max says)");
            return Err(what.into());
        }
        let left_seconds = left.as_secs();
        tracing::warn!(store = %url, %error, left_seconds, "the store is out of reach: waiting");
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
