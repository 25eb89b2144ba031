//! Who keeps a store tidy?
//!
//! Three tasks, started with one call. The [sweeper](Upkeep::sweep_every) makes ended leases
//! unknown, the [reaper](Upkeep::reap_every) deletes expired records, and a
//! [reconciler](Upkeep::reconcile) of yours finds out what became of unknown ones. Each works in
//! bounded steps, may run in several processes at once, and is not stopped by a record that cannot
//! be read.
//!
//! ```
//! # async fn example() {
//! use retrysafe::stores::memory::MemoryStore;
//! use retrysafe::upkeep::Upkeep;
//! use std::sync::Arc;
//!
//! let store = Arc::new(MemoryStore::default());
//! let upkeep = Upkeep::new(Arc::clone(&store)).start();
//! // ... serve ...
//! upkeep.stop().await;
//! # }
//! ```

mod reconciler;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::engine::Engine;
use retrysafe_core::event;
use retrysafe_core::store::{Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

pub use reconciler::{Lookup, Reconciled, Reconciler, Reconciliation, Schedule, dead_letters};

/// How often ended leases are looked for, unless set otherwise. A caller learns of one anyway, as
/// soon as it asks; the sweeper is for those who never ask again.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// How often expired records are deleted, unless set otherwise.
const REAP_EVERY: Duration = Duration::from_secs(60);

/// How many leases one sweep ends at the most; the next one takes the rest.
const SWEEP_MAX: usize = 10_000;

/// How many records are deleted in one step, so that no request waits long for it.
const REAP_STEP: usize = 500;

/// How many steps one reaping takes at the most; the next one takes the rest.
const REAP_STEPS_MAX: usize = 1_000;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Round<S> = Arc<dyn Fn(Arc<Engine<S>>) -> Work + Send + Sync>;

/// The tasks that keep a store tidy, before they are started.
pub struct Upkeep<S> {
    engine: Arc<Engine<S>>,
    sweep_every: Duration,
    reap_every: Duration,
    reconcile: Vec<(Duration, Round<S>)>,
}

/// The tasks that keep a store tidy. Dropped, they end after their present step.
#[derive(Debug)]
pub struct Tending {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl<S: Store> Upkeep<S> {
    /// The tasks over this store.
    pub fn new(store: S) -> Self {
        Self {
            engine: Arc::new(Engine::new(store)),
            sweep_every: SWEEP_EVERY,
            reap_every: REAP_EVERY,
            reconcile: Vec::new(),
        }
    }

    /// How often ended leases are made unknown.
    #[must_use]
    pub fn sweep_every(mut self, pause: Duration) -> Self {
        self.sweep_every = pause;
        self
    }

    /// How often expired records are deleted.
    #[must_use]
    pub fn reap_every(mut self, pause: Duration) -> Self {
        self.reap_every = pause;
        self
    }

    /// Asks this reconciler about unknown records, by this schedule.
    #[must_use]
    pub fn reconcile<R: Reconciler>(mut self, reconciler: R, schedule: Schedule) -> Self {
        let pause = schedule.look_every;
        let rounds = Reconciliation::new(Arc::clone(&self.engine), reconciler, schedule);
        let rounds = Arc::new(rounds);
        let round: Round<S> = Arc::new(move |_| {
            let rounds = Arc::clone(&rounds);
            Box::pin(async move {
                if let Err(error) = rounds.round().await {
                    tracing::warn!(target: "retrysafe", %error, "reconcile_failed");
                }
            })
        });
        self.reconcile.push((pause, round));
        self
    }

    /// Starts the tasks, in the present tokio runtime.
    pub fn start(self) -> Tending {
        let (stop, stopped) = watch::channel(false);
        let sweep: Round<S> = Arc::new(|engine| Box::pin(async move { sweep(&engine).await }));
        let reap: Round<S> = Arc::new(|engine| Box::pin(async move { reap(&engine).await }));
        let mut rounds = self.reconcile;
        rounds.push((self.sweep_every, sweep));
        rounds.push((self.reap_every, reap));
        let tasks = rounds
            .into_iter()
            .map(|(pause, round)| {
                tokio::spawn(repeat(Arc::clone(&self.engine), pause, round, stopped.clone()))
            })
            .collect();
        Tending { stop, tasks }
    }
}

impl Tending {
    /// Ends the tasks after their present step.
    pub async fn stop(self) {
        let Self { stop, tasks } = self;
        // Without receivers all have ended already.
        let _ = stop.send(true);
        for task in tasks {
            // A task that panicked has ended too.
            let _ = task.await;
        }
    }
}

impl<S> fmt::Debug for Upkeep<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upkeep")
            .field("sweep_every", &self.sweep_every)
            .field("reap_every", &self.reap_every)
            .field("reconcilers", &self.reconcile.len())
            .finish_non_exhaustive()
    }
}

async fn repeat<S: Store>(
    engine: Arc<Engine<S>>,
    pause: Duration,
    round: Round<S>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut ticks = tokio::time::interval(pause.max(Duration::from_millis(1)));
    // After a long round the next one waits its turn: nothing is gained by hurrying after it.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // Either told to stop, or nobody is left who could tell.
            _ = stopped.changed() => return,
            _ = ticks.tick() => {}
        }
        round(Arc::clone(&engine)).await;
    }
}

async fn sweep<S: Store>(engine: &Engine<S>) {
    match engine.sweep(SWEEP_MAX).await {
        Ok(swept) => {
            metrics::counter!(event::SWEPT.name).increment(swept.doubted as u64);
            metrics::counter!(event::SWEEP_FAILURES.name).increment(swept.failed as u64);
            if swept.doubted + swept.failed > 0 {
                let (doubted, failed) = (swept.doubted, swept.failed);
                tracing::warn!(target: "retrysafe", doubted, failed, "swept");
            }
        }
        Err(error) => failed("sweep", &error),
    }
}

async fn reap<S: Store>(engine: &Engine<S>) {
    for _ in 0..REAP_STEPS_MAX {
        match engine.reap(REAP_STEP).await {
            Ok(reaped) => {
                metrics::counter!(event::REAPED.name).increment(reaped as u64);
                if reaped < REAP_STEP {
                    return;
                }
            }
            Err(error) => return failed("reap", &error),
        }
        tokio::task::yield_now().await;
    }
}

fn failed(operation: &'static str, error: &StoreError) {
    let kind = error.kind().name();
    metrics::counter!(event::STORE_ERRORS.name, "operation" => operation, "kind" => kind)
        .increment(1);
    tracing::warn!(target: "retrysafe", operation, kind, %error, "store_error");
}
