//! How is a node reached?
//!
//! By one connection that everybody shares, or by several where each write waits for replicas: such a
//! wait holds up whatever is sent behind it. A connection that broke is made anew by whoever needs it
//! next, one at a time, and verified like the first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::error::ConnectError;
use super::settings::{Address, Settings};
use super::wire::Wire;

/// How many connections a node has where writes wait for replicas. Each has one such wait at a time.
const WAITING_LANES: usize = 8;

/// A node, and the connections to it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) address: Address,
    lanes: Vec<Lane>,
    next: AtomicUsize,
}

#[derive(Default)]
struct Lane {
    wire: RwLock<Option<Wire>>,
    connecting: tokio::sync::Mutex<()>,
}

/// A connection, and whether it was made just now.
pub(super) struct Reached {
    pub(super) wire: Wire,
    pub(super) is_new: bool,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lane")
    }
}

impl Link {
    pub(super) fn new(address: Address, settings: &Settings) -> Self {
        let lanes = if settings.wait.is_some() { WAITING_LANES } else { 1 };
        let lanes = (0..lanes).map(|_| Lane::default()).collect();
        Self { address, lanes, next: AtomicUsize::new(0) }
    }

    /// A verified connection.
    pub(super) async fn reach(&self, settings: &Settings) -> Result<Reached, ConnectError> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len().max(1);
        let Some(lane) = self.lanes.get(turn) else {
            return Err(ConnectError::passing("no connection is left"));
        };
        if let Some(wire) = lane.wire() {
            return Ok(Reached { wire, is_new: false });
        }
        let _one_at_a_time = lane.connecting.lock().await;
        if let Some(wire) = lane.wire() {
            return Ok(Reached { wire, is_new: false });
        }
        let wire = Wire::verified(settings, &self.address).await?;
        lane.set(Some(wire.clone()));
        Ok(Reached { wire, is_new: true })
    }

    /// Any connection that is there.
    pub(super) fn any(&self) -> Option<Wire> {
        self.lanes.iter().find_map(Lane::wire)
    }

    /// Gives up a connection that broke, or that says something else than it used to.
    pub(super) fn give_up(&self, wire: &Wire) {
        for lane in &self.lanes {
            if lane.wire().is_some_and(|kept| kept.is_same(wire)) {
                lane.set(None);
            }
        }
    }
}

impl Lane {
    fn wire(&self) -> Option<Wire> {
        let wire = self.wire.read().unwrap_or_else(PoisonError::into_inner).clone();
        // What is sent on a connection that has ended would be ambiguous without need.
        wire.filter(|wire| !wire.is_closed())
    }

    fn set(&self, wire: Option<Wire>) {
        *self.wire.write().unwrap_or_else(PoisonError::into_inner) = wire;
    }
}

/// The node of each bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes(pub(super) Vec<Option<Arc<Link>>>);

impl Routes {
    pub(super) fn link(&self, bucket: usize) -> Option<Arc<Link>> {
        self.0.get(bucket).cloned().flatten()
    }

    /// Every node once, with a bucket of it.
    pub(super) fn nodes(&self) -> Vec<(usize, Arc<Link>)> {
        let mut nodes: Vec<(usize, Arc<Link>)> = Vec::new();
        for (bucket, link) in self.0.iter().enumerate() {
            let Some(link) = link else { continue };
            if !nodes.iter().any(|(_, known)| Arc::ptr_eq(known, link)) {
                nodes.push((bucket, Arc::clone(link)));
            }
        }
        nodes
    }

    /// The buckets of a node.
    pub(super) fn buckets(&self, of: &Arc<Link>) -> Vec<usize> {
        let is_its = |link: &Option<Arc<Link>>| link.as_ref().is_some_and(|l| Arc::ptr_eq(l, of));
        (0..self.0.len()).filter(|bucket| self.0.get(*bucket).is_some_and(is_its)).collect()
    }
}
