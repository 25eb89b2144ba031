//! Who delivers effects?

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::backoff::Jitter;
use super::delivery::{Delivery, DeliveryEnd, DeliveryError};
use super::kind::{DeliverFn, KindWorker};
use super::receiver::Receiver;
use super::statements::PooledEffects;
use super::store::EffectStore;
use super::sweeper::sweep_until_stopped;

/// How long a listener that failed is left alone.
const LISTEN_PAUSE: Duration = Duration::from_secs(5);

/// Delivers effects. Any number of workers may work on one database.
pub struct Worker<S = PooledEffects> {
    store: S,
    jitter: Jitter,
    kinds: Vec<(Box<str>, Receiver, DeliverFn)>,
}

/// A worker that works. Dropped, it stops as a process that is killed does.
#[derive(Debug)]
pub struct Working {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Worker {
    /// A worker on this database. The pool needs two connections for each kind, and two more.
    pub fn new(pool: PgPool) -> Self {
        Self { store: PooledEffects::new(pool), jitter: Jitter::new(), kinds: Vec::new() }
    }
}

impl<S: EffectStore> Worker<S> {
    /// A worker over another store, whose pauses are drawn from a seed: for simulators.
    #[doc(hidden)]
    pub fn simulated(store: S, seed: u64) -> Self {
        Self { store, jitter: Jitter::from_seed(seed), kinds: Vec::new() }
    }

    /// Delivers effects of this kind by this function, which sends once. It is cut off at the receiver's deadline.
    #[must_use]
    pub fn deliver<F, Fut>(mut self, kind: &str, receiver: Receiver, deliver: F) -> Self
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<DeliveryEnd, DeliveryError>> + Send + 'static,
    {
        let deliver: DeliverFn = Arc::new(move |delivery| Box::pin(deliver(delivery)));
        self.kinds.retain(|(known, ..)| **known != *kind);
        self.kinds.push((kind.into(), receiver, deliver));
        self
    }

    /// Begins to work, in tasks of the present runtime.
    pub fn start(self) -> Working {
        let (stop, stopping) = watch::channel(false);
        let wake = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(sweep_until_stopped(self.store.clone(), stopping.clone()));
        tasks.spawn(listen_until_stopped(self.store.clone(), Arc::clone(&wake), stopping.clone()));
        for (kind, receiver, deliver) in self.kinds {
            let worker = KindWorker {
                store: self.store.clone(),
                kind,
                receiver,
                deliver,
                jitter: self.jitter,
                wake: Arc::clone(&wake),
                stopping: stopping.clone(),
            };
            tasks.spawn(worker.run());
        }
        Working { tasks, stop }
    }
}

impl Working {
    /// Claims nothing more, and waits until what is under way has ended and is told, at most this long. True if nothing
    /// was left; what was left is found by other workers when its lease is over.
    pub async fn stop(mut self, patience: Duration) -> bool {
        // Nobody listens any more if every task has ended.
        let _ = self.stop.send(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        tokio::time::timeout(patience, all).await.is_ok()
    }
}

/// Wakes this worker when somebody says that something was staged. Where that cannot be heard, behind a pooler of
/// transactions for instance, the worker finds it at its next look.
async fn listen_until_stopped(
    store: impl EffectStore,
    wake: Arc<Notify>,
    mut stopping: watch::Receiver<bool>,
) {
    let listen = async {
        loop {
            if let Err(error) = store.listen(&wake).await {
                tracing::debug!(target: "retrysafe", %error, "outbox_listens_not");
            }
            tokio::time::sleep(LISTEN_PAUSE).await;
        }
    };
    tokio::select! {
        biased;
        () = listen => {}
        _ = stopping.wait_for(|is_stopping| *is_stopping) => {}
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<&str> = self.kinds.iter().map(|(kind, ..)| &**kind).collect();
        f.debug_struct("Worker").field("kinds", &kinds).finish_non_exhaustive()
    }
}
