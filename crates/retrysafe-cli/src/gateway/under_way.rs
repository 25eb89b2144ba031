//! Which requests of a connection are under way?

use std::sync::{Arc, Weak};

/// The requests of one connection that are not answered to their last byte: each holds a clone.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<()>);

/// Counts them, and is none of them.
pub(super) struct UnderWayCount(Weak<()>);

impl UnderWay {
    pub(super) fn count(&self) -> UnderWayCount {
        UnderWayCount(Arc::downgrade(&self.0))
    }
}

impl UnderWayCount {
    /// Whether there are none. The connection itself holds two: its service's and its own.
    pub(super) fn is_none(&self) -> bool {
        self.0.strong_count() <= 2
    }

    /// One more, while the connection lives.
    pub(super) fn one(&self) -> Option<UnderWay> {
        self.0.upgrade().map(UnderWay)
    }
}
