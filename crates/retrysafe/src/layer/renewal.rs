//! Who renews the leases while handlers run?
//!
//! One task per layer, apart from the handlers': a handler that blocks its thread or uses up its
//! task's budget must not cost its own lease. The table of running executions says what is due. A
//! renewal that fails is tried again soon, because there is time before the lease ends.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use retrysafe_core::Engine;
use retrysafe_core::engine::Renewed;
use retrysafe_core::store::Store;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::guarded::Guarded;
use super::running::{RenewalOrder, Running};

/// The task that renews, and how it is woken.
#[derive(Debug)]
pub(super) struct Renewer {
    is_earlier: Arc<Notify>,
    /// Where the layer was made. That runtime does not block as a handler's may.
    home: Option<Handle>,
    task: Mutex<Option<AbortHandle>>,
}

impl Renewer {
    pub(super) fn new() -> Self {
        let home = Handle::try_current().ok();
        Self { is_earlier: Arc::default(), home, task: Mutex::default() }
    }

    /// Something is due earlier than the task knows.
    pub(super) fn wake(&self) {
        self.is_earlier.notify_one();
    }

    /// Starts the task if it does not run: it may have ended with its runtime.
    pub(super) fn ensure_running<S: Store>(
        &self,
        engine: &Arc<Engine<Guarded<S>>>,
        running: &Arc<Running>,
    ) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let is_earlier = Arc::clone(&self.is_earlier);
        let work = renew_leases(Arc::downgrade(engine), Arc::clone(running), is_earlier);
        let home = self.home.as_ref().filter(|_| task.is_none());
        let spawned = match home {
            Some(home) => home.spawn(work),
            None => tokio::spawn(work),
        };
        *task = Some(spawned.abort_handle());
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task {
            task.abort();
        }
    }
}

async fn renew_leases<S: Store>(
    engine: Weak<Engine<Guarded<S>>>,
    running: Arc<Running>,
    is_earlier: Arc<Notify>,
) {
    loop {
        let next = {
            let Some(engine) = engine.upgrade() else { return };
            let (due, next) = running.take_due(Instant::now());
            for order in due {
                let is_earlier = Arc::clone(&is_earlier);
                tokio::spawn(renew_once(
                    Arc::clone(&engine),
                    Arc::clone(&running),
                    is_earlier,
                    order,
                ));
            }
            next
        };
        match next {
            None => is_earlier.notified().await,
            Some(at) => {
                // Either may come first; both lead to another look at the table.
                let _ = tokio::time::timeout_at(at, is_earlier.notified()).await;
            }
        }
    }
}

async fn renew_once<S: Store>(
    engine: Arc<Engine<Guarded<S>>>,
    running: Arc<Running>,
    is_earlier: Arc<Notify>,
    order: RenewalOrder,
) {
    let asked_at = Instant::now();
    let renewed = engine.renew(order.renewal, order.lease, order.lease_max).await;
    let next = match renewed {
        Ok(Renewed::For(_)) => order.due_after(asked_at),
        // The lease stands as it was, and there is time for another try before it ends.
        Err(_) => order.again_after(Instant::now()),
        // The handler is not killed: its late settle still counts.
        Ok(Renewed::Lost) => return order.report.lease_lost(order.key),
    };
    if running.renew_again(order, next) {
        is_earlier.notify_one();
    }
}
