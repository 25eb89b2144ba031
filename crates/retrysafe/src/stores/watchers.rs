//! Who waits for a record to change?
//!
//! For stores of one process: whoever waits is woken by whoever writes. A write that nobody waits for
//! costs one look at a counter. A hint is asked for before the record is read, so a write is either
//! seen by that read or finds the waiter here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use retrysafe_core::scope::Id;
use retrysafe_core::store::ChangeHint;

/// Those who wait, by record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watchers(Arc<Table>);

#[derive(Debug, Default)]
struct Table {
    waiting: AtomicUsize,
    by_id: Mutex<HashMap<Id, Vec<Arc<Watcher>>>>,
}

#[derive(Debug, Default)]
struct Watcher(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    is_changed: bool,
    waker: Option<Waker>,
}

/// Takes its watcher from the table when the hint is dropped.
struct Registered {
    table: Arc<Table>,
    id: Id,
    watcher: Arc<Watcher>,
}

impl Watchers {
    /// A hint that comes with the next change of this record.
    pub(crate) fn hint(&self, id: Id) -> ChangeHint {
        let watcher = Arc::new(Watcher::default());
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        self.0.by_id().entry(id).or_default().push(Arc::clone(&watcher));
        let registered = Registered { table: Arc::clone(&self.0), id, watcher };
        ChangeHint::new(std::future::poll_fn(move |context| {
            let mut seen = registered.watcher.seen();
            if seen.is_changed {
                return Poll::Ready(());
            }
            seen.waker = Some(context.waker().clone());
            Poll::Pending
        }))
    }

    /// Wakes those who wait for this record, which was written.
    pub(crate) fn changed(&self, id: &Id) {
        if self.0.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let watchers = self.0.by_id().get(id).cloned().unwrap_or_default();
        for watcher in watchers {
            let waker = {
                let mut seen = watcher.seen();
                seen.is_changed = true;
                seen.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Table {
    fn by_id(&self) -> MutexGuard<'_, HashMap<Id, Vec<Arc<Watcher>>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut by_id = self.table.by_id();
        if let Some(watchers) = by_id.get_mut(&self.id) {
            watchers.retain(|watcher| !Arc::ptr_eq(watcher, &self.watcher));
            if watchers.is_empty() {
                by_id.remove(&self.id);
            }
        }
        self.table.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_those_who_went_away() {
        let watchers = Watchers::default();
        let id = Id::from_bytes([1; 32]);
        let hints = [watchers.hint(id), watchers.hint(id), watchers.hint(Id::from_bytes([2; 32]))];
        assert_eq!((watchers.0.by_id().len(), watchers.0.waiting.load(Ordering::SeqCst)), (2, 3));
        watchers.changed(&id);
        drop(hints);
        assert_eq!((watchers.0.by_id().len(), watchers.0.waiting.load(Ordering::SeqCst)), (0, 0));
    }
}
