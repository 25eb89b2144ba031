//! How are the upstreams, for whoever asks the admin listener?

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

/// The last word about each upstream that is checked. Clones are one board.
#[derive(Clone, Debug, Default)]
pub(crate) struct UpstreamBoard(Arc<Mutex<Vec<(String, bool)>>>);

impl UpstreamBoard {
    /// Takes what is known now: each upstream, and whether it is healthy.
    pub(crate) fn show(&self, upstreams: Vec<(String, bool)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = upstreams;
    }

    /// The same as a document.
    pub(crate) fn document(&self) -> Map<String, Value> {
        let upstreams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let word = |is_healthy: bool| Value::from(if is_healthy { "ok" } else { "unhealthy" });
        upstreams.iter().map(|(name, is_healthy)| (name.clone(), word(*is_healthy))).collect()
    }
}
