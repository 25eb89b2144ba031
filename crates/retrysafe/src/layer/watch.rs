//! Who follows one request through the layer?
//!
//! A server that traces its requests hands a [`RequestWatch`] over with what it knows of the request. The layer tells it when a
//! step ends, also when the caller has left before. Without a watch nothing is measured.

use std::fmt;
use std::time::Duration;

use retrysafe_core::event::Met;
use retrysafe_core::record::Standing;
use retrysafe_core::trace::TracedSpan;

/// A step of a keyed request that has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchedStep {
    /// The store was asked for the right to execute, and the request met this.
    Begin(Met),
    /// The store was told how the execution ended; none if the store failed.
    Settle(Option<Standing>),
}

/// Whoever follows one request.
pub trait RequestWatch: fmt::Debug + Send + Sync {
    /// The span in which the request is executed. The record keeps it, so that a replay can be linked to it; none keeps nothing.
    fn span(&self) -> Option<TracedSpan>;

    /// A step has ended just now, and took this long.
    fn stepped(&self, step: WatchedStep, took: Duration);

    /// The answer comes from an execution that was traced in this span.
    fn replays(&self, executed_in: TracedSpan);
}
