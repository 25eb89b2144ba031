//! When has a length of time passed?

use std::time::Duration;

use tokio::time::Instant;

/// As far ahead as anybody waits: thirty years. Clocks cannot show the end of `Duration::MAX`.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The moment that lies `length` after `start`, or far ahead where no clock reaches.
pub(super) fn after(start: Instant, length: Duration) -> Instant {
    start.checked_add(length).unwrap_or_else(|| start + FAR)
}
