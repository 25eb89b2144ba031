//! What becomes of a begin whose run is dropped, or fails, before its flow has started?
//!
//! A record that was there before has no flow yet, and looks like that of a plain request: it would be unknown when its lease
//! ends. But nothing was sent, and only this run knows. So the begin is taken back, in the background. Where the begin has
//! made the record, the flow has started with it; then only the lease ends, and whoever comes next goes on at once.

use retrysafe_core::scope::Id;

use super::persist::Unwritten;
use super::runner::Runner;

/// A begin that is asked for, or that is answered and whose flow has not started. Dropped, it is taken back.
pub(super) struct BeginInFlight<'a> {
    runner: &'a Runner,
    id: Id,
    owner: u64,
    is_over: bool,
}

impl<'a> BeginInFlight<'a> {
    /// Made before the begin is sent.
    pub(super) fn new(runner: &'a Runner, id: Id, owner: u64) -> Self {
        Self { runner, id, owner, is_over: false }
    }

    /// Nothing is taken back any more: nothing has begun, or the flow has started.
    pub(super) fn stands(mut self) {
        self.is_over = true;
    }
}

impl Drop for BeginInFlight<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.runner.write_on(Unwritten::Begin { id: self.id, owner: self.owner });
        }
    }
}
