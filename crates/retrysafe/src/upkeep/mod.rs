//! Who keeps a store tidy?
//!
//! Tasks that are started with one call. The [sweeper](Upkeep::sweep_every) makes ended leases
//! unknown and counts what is unknown, the [reaper](Upkeep::reap_every) deletes expired records, and
//! a [reconciler](Upkeep::reconcile) of yours finds out what became of unknown ones. With the feature
//! `phases` a completer finishes the flows that nobody has come back for. Each works in bounded steps,
//! may run in several processes at once, and is not stopped by a record that cannot be read, by a store
//! that hangs, or by a panic. Each of these is reported.
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

mod ask;
mod limited;
mod question;
mod reconciler;
mod rounds;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::engine::Engine;
use retrysafe_core::event;
use retrysafe_core::store::{Census, Stamped, Store, StoreError};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;

pub use crate::schedule::{LOOKUPS_MAX, LookupPauses, PausesError, Schedule};
use ask::AskAbout;
pub use ask::Asker;
use limited::TimeLimited;
pub use reconciler::{Lookup, LookupAnswer, Reconciler};
pub use rounds::{AskedNow, LookupNow, Reconciled, Reconciliation, dead_letters};

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

/// How long one call of the store may take, unless set otherwise. Longer than a request waits: nobody
/// waits for upkeep, and a page of a large store takes its time.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Round = Arc<dyn Fn() -> Work + Send + Sync>;
type NewRound<S> = Box<dyn FnOnce(Arc<Engine<TimeLimited<S>>>) -> NewTask + Send + Sync>;

/// A further task as it is started: its rounds, and whom to ask out of turn.
struct NewTask {
    round: Round,
    asked: Option<Arc<dyn AskAbout>>,
}

/// The tasks that keep a store tidy, before they are started.
///
/// ```
/// # async fn example() {
/// use std::time::Duration;
/// use retrysafe::stores::memory::MemoryStore;
/// use retrysafe::upkeep::{Tending, Upkeep};
///
/// let tending: Tending =
///     Upkeep::new(MemoryStore::default()).sweep_every(Duration::from_secs(1)).start();
/// tending.stop().await;
/// # }
/// ```
pub struct Upkeep<S> {
    store: S,
    store_timeout: Duration,
    sweep_every: Duration,
    reap_every: Duration,
    further: Vec<FurtherTask<S>>,
}

/// A task beside the sweeper and the reaper.
struct FurtherTask<S> {
    name: &'static str,
    pause: Duration,
    new_round: NewRound<S>,
}

/// The tasks that keep a store tidy. Dropped, they end as if they were told to
/// [stop](Self::stop).
#[derive(Debug)]
pub struct Tending {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    asker: Asker,
}

impl<S: Store> Upkeep<S> {
    /// The tasks over this store.
    pub fn new(store: S) -> Self {
        Self {
            store,
            store_timeout: STORE_TIMEOUT,
            sweep_every: SWEEP_EVERY,
            reap_every: REAP_EVERY,
            further: Vec::new(),
        }
    }

    /// How long one call of the store may take before it is given up and reported.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = timeout;
        self
    }

    /// How often ended leases are made unknown, and the store's [`Census`] is taken.
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
        let new_round: NewRound<S> = Box::new(move |engine| {
            let rounds = Arc::new(Reconciliation::new(engine, reconciler, schedule));
            let asked: Arc<dyn AskAbout> = Arc::clone(&rounds) as _;
            let round: Round = Arc::new(move || {
                let rounds = Arc::clone(&rounds);
                Box::pin(async move {
                    if let Err(error) = rounds.round().await {
                        tracing::warn!(target: "retrysafe", %error, "reconcile_failed");
                    }
                })
            });
            NewTask { round, asked: Some(asked) }
        });
        self.further.push(FurtherTask { name: "reconcile", pause, new_round });
        self
    }

    /// Finishes the flows whose owners have died and whose callers do not come back, and counts those that
    /// are held. It looks for them at this pace.
    #[cfg(feature = "phases")]
    #[must_use]
    pub fn complete(mut self, flows: crate::phases::Flows, pause: Duration) -> Self {
        // Flows have a store of their own: that of their database.
        let new_round: NewRound<S> = Box::new(move |_| {
            let round: Round = Arc::new(move || {
                let flows = flows.clone();
                Box::pin(async move {
                    if let Err(error) = flows.complete().await {
                        tracing::warn!(target: "retrysafe", %error, "complete_failed");
                    }
                })
            });
            NewTask { round, asked: None }
        });
        self.further.push(FurtherTask { name: "complete", pause, new_round });
        self
    }

    /// Judges the webhooks that had to wait, ends those whose time is over, and forgets old ones, at this pace.
    #[cfg(feature = "webhooks")]
    #[must_use]
    pub fn webhooks<W: Store>(
        mut self,
        webhooks: crate::webhooks::Webhooks<W>,
        pause: Duration,
    ) -> Self {
        // Webhooks have a store of their own, with an inbox.
        let new_round: NewRound<S> = Box::new(move |_| {
            let round: Round = Arc::new(move || {
                let webhooks = webhooks.clone();
                Box::pin(async move {
                    if let Err(error) = webhooks.round().await {
                        tracing::warn!(target: "retrysafe", %error, "webhooks_failed");
                    }
                })
            });
            NewTask { round, asked: None }
        });
        self.further.push(FurtherTask { name: "webhooks", pause, new_round });
        self
    }

    /// Starts the tasks, in the present tokio runtime.
    pub fn start(self) -> Tending {
        let limited = TimeLimited { store: self.store, limit: self.store_timeout };
        let engine = Arc::new(Engine::new(limited));
        let (stop, stopped) = watch::channel(false);
        let sweeper = Arc::clone(&engine);
        let reaper = Arc::clone(&engine);
        let sweep: Round = Arc::new(move || Box::pin(sweep(Arc::clone(&sweeper))));
        let reap: Round = Arc::new(move || Box::pin(reap(Arc::clone(&reaper))));
        let mut tasks = vec![
            tokio::spawn(repeat("sweep", self.sweep_every, sweep, stopped.clone())),
            tokio::spawn(repeat("reap", self.reap_every, reap, stopped.clone())),
        ];
        let mut asker = Asker::default();
        for FurtherTask { name, pause, new_round } in self.further {
            let NewTask { round, asked } = new_round(Arc::clone(&engine));
            asker.add(asked);
            tasks.push(tokio::spawn(repeat(name, pause, round, stopped.clone())));
        }
        Tending { stop, tasks, asker }
    }
}

impl Tending {
    /// Whom to ask about a record out of turn. It goes on working after the tasks have ended.
    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// Ends the tasks at once: a round under way is cut off where it waits, and a lookup with it.
    /// A write that was under way may have been applied, as after a crash. The next process finds
    /// the rest.
    pub async fn stop(self) {
        let Self { stop, tasks, asker } = self;
        drop(asker);
        // Without receivers all have ended already.
        let _ = stop.send(true);
        for task in tasks {
            // A task whose runtime is shutting down has ended too.
            let _ = task.await;
        }
    }
}

impl<S> fmt::Debug for Upkeep<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upkeep")
            .field("store_timeout", &self.store_timeout)
            .field("sweep_every", &self.sweep_every)
            .field("reap_every", &self.reap_every)
            .field("further_tasks", &self.further.len())
            .finish_non_exhaustive()
    }
}

/// Plays a round again and again until told to stop.
///
/// Each round is a task of its own: a panic ends that round, is reported, and the next one comes
/// at its time.
async fn repeat(
    name: &'static str,
    pause: Duration,
    round: Round,
    mut stopped: watch::Receiver<bool>,
) {
    let mut ticks = tokio::time::interval(pause.max(Duration::from_millis(1)));
    // After a long round the next one waits its turn: nothing is gained by hurrying after it.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Dropped, it ends the round that is under way.
    let mut under_way = JoinSet::new();
    loop {
        tokio::select! {
            // Either told to stop, or nobody is left who could tell.
            _ = stopped.changed() => break,
            _ = ticks.tick() => {}
        }
        under_way.spawn(round());
        tokio::select! {
            _ = stopped.changed() => break,
            ended = under_way.join_next() => {
                if let Some(Err(error)) = ended
                    && let Ok(payload) = error.try_into_panic()
                {
                    panicked(name, &*payload);
                }
            }
        }
    }
    under_way.shutdown().await;
}

fn panicked(task: &'static str, payload: &(dyn Any + Send)) {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    metrics::counter!(event::UPKEEP_PANICS.name, "task" => task).increment(1);
    tracing::error!(target: "retrysafe", task, panic = text, "upkeep_panicked");
}

async fn sweep<S: Store>(engine: Arc<Engine<S>>) {
    // What the store refuses it has reported itself.
    let Ok(swept) = engine.sweep(SWEEP_MAX).await else { return };
    metrics::counter!(event::SWEPT.name).increment(swept.doubted as u64);
    metrics::counter!(event::SWEEP_FAILURES.name).increment(swept.failed as u64);
    if swept.doubted + swept.failed > 0 {
        let doubted = swept.doubted;
        let failed = swept.failed;
        tracing::warn!(target: "retrysafe", doubted, failed, "swept");
    }
    // A failure is reported, too; what was counted before stays.
    let _ = take_census(engine.store()).await;
}

/// Counts what a store holds, and reports it. The sweeper does so after each round; a server that
/// must be right from its first moment does it before it is ready.
///
/// # Errors
///
/// The store's. What was reported before stays.
pub async fn take_census<S: Store>(store: &S) -> Result<Census, StoreError> {
    let Stamped { now, value: census } = store.census().await?;
    let age = census.unknown_since.map_or(Duration::ZERO, |since| now.since(since));
    metrics::gauge!(event::UNKNOWN.name).set(census.unknown as f64);
    metrics::gauge!(event::UNKNOWN_OLDEST_SECONDS.name).set(age.as_secs_f64());
    metrics::gauge!(event::STORE_RECORDS.name).set(census.records.unwrap_or_default() as f64);
    metrics::gauge!(event::STORE_BYTES.name).set(census.bytes.unwrap_or_default() as f64);
    Ok(census)
}

async fn reap<S: Store>(engine: Arc<Engine<S>>) {
    for _ in 0..REAP_STEPS_MAX {
        let Ok(reaped) = engine.reap(REAP_STEP).await else { return };
        metrics::counter!(event::REAPED.name).increment(reaped as u64);
        if reaped < REAP_STEP {
            return;
        }
        tokio::task::yield_now().await;
    }
}
