//! Which server has this process talked to so far?

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::fault::ConnectError;

/// Which server it was so far. A connection to another one, or to an older life of the same one, is
/// refused: a former primary that still answers would hand out leases that nobody else sees.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    system: OnceLock<String>,
    timeline: AtomicU32,
    /// On which timeline this process has seen that nobody waits for commits; 0 for none. Whoever
    /// turns the waiting off writes that down where no standby need hear of it.
    unawaited_on: AtomicU32,
    is_awaited: AtomicBool,
}

impl Identity {
    /// Which cluster was seen so far, and the latest timeline of it; none and 0 before the first.
    #[cfg(feature = "outbox")]
    pub(crate) fn seen(&self) -> (Option<&str>, u32) {
        (self.system.get().map(String::as_str), self.timeline.load(Ordering::Acquire))
    }

    pub(crate) fn admit(&self, system: &str, timeline: u32) -> Result<(), ConnectError> {
        if self.system.get_or_init(|| system.to_owned()) != system {
            return Err(ConnectError::new(
                "this is another database cluster than before: its records are not ours",
            ));
        }
        let seen = self.timeline.fetch_max(timeline, Ordering::AcqRel);
        if timeline < seen {
            return Err(ConnectError::new(format!(
                "this server is on timeline {timeline}, and a later one ({seen}) was seen: it is a \
                 former primary"
            )));
        }
        Ok(())
    }

    /// Whether commits were lost, for all that this process knows, when this timeline began.
    pub(super) fn knows_loss(&self, timeline: u32) -> bool {
        let unawaited_on = self.unawaited_on.load(Ordering::Acquire);
        unawaited_on != 0 && unawaited_on < timeline
    }

    /// Whether a synchronous standby waits for commits, as far as this process has seen.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Acquire)
    }

    pub(super) fn note(&self, timeline: u32, is_awaited: bool) {
        let was_awaited = self.is_awaited.swap(is_awaited, Ordering::AcqRel);
        self.unawaited_on.store(if is_awaited { 0 } else { timeline }, Ordering::Release);
        if was_awaited && !is_awaited {
            tracing::warn!(
                "no synchronous standby waits for commits any more: a fail-over may lose the last of \
                 them"
            );
        }
    }
}
