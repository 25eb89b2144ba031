//! What do all services of one layer share?

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use metrics::gauge;
use retrysafe_core::Engine;
use retrysafe_core::event;
use retrysafe_core::store::Store;

use super::drain::Drain;
use super::guarded::Guarded;
use super::known_replays::KnownReplays;
use super::observed::Observed;
use super::renewal::Renewer;
use super::report::Reports;
use super::running::Running;

/// How many executions may go on at once after their callers were told to ask again, unless set
/// otherwise. Each holds what its handler holds: for a proxy that is a connection.
const LATE_ANSWERS_MAX: usize = 1_024;

/// What all services of one layer share.
#[derive(Debug)]
pub(super) struct LayerShared<S> {
    pub engine: Arc<Engine<Guarded<S>>>,
    pub running: Arc<Running>,
    pub renewer: Renewer,
    pub drain: Drain,
    pub reports: Reports,
    pub observed: Observed,
    pub late_answers: Arc<LateAnswers>,
    pub known_replays: KnownReplays,
    owners: AtomicU64,
}

/// How many executions go on although their callers were told to ask again.
#[derive(Debug)]
pub(super) struct LateAnswers {
    count: AtomicUsize,
    count_max: AtomicUsize,
}

/// The right to be one of them, given back when it is dropped.
#[derive(Debug)]
pub(super) struct LateAnswer(Arc<LateAnswers>);

impl<S: Store> LayerShared<S> {
    pub(super) fn new(store: S) -> Self {
        // Owners are told apart by a random beginning and a count: two processes would have to begin
        // within each other's count to meet.
        let first = RandomState::new().hash_one(std::process::id());
        let running = Arc::<Running>::default();
        let late_answers = LateAnswers {
            count: AtomicUsize::new(0),
            count_max: AtomicUsize::new(LATE_ANSWERS_MAX),
        };
        Self {
            engine: Arc::new(Engine::new(Guarded::new(store))),
            drain: Drain::new(Arc::clone(&running)),
            running,
            renewer: Renewer::new(),
            reports: Reports::default(),
            observed: Observed::default(),
            late_answers: Arc::new(late_answers),
            known_replays: KnownReplays::default(),
            owners: AtomicU64::new(first),
        }
    }
}

impl<S> LayerShared<S> {
    pub(super) fn number_owners_from(&self, first: u64) {
        self.owners.store(first, Ordering::Relaxed);
    }

    /// A number of its own for one begin.
    pub(super) fn next_owner(&self) -> u64 {
        self.owners.fetch_add(1, Ordering::Relaxed)
    }
}

impl LateAnswers {
    pub(super) fn set_max(&self, count_max: usize) {
        self.count_max.store(count_max, Ordering::Release);
    }

    /// The right to one more, if there may be one.
    pub(super) fn one_more(self: &Arc<Self>) -> Option<LateAnswer> {
        let count_max = self.count_max.load(Ordering::Acquire);
        let fits = |count: usize| (count < count_max).then_some(count + 1);
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        gauge!(event::LATE_ANSWERS.name).increment(1.0);
        Some(LateAnswer(Arc::clone(self)))
    }
}

impl Drop for LateAnswer {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        gauge!(event::LATE_ANSWERS.name).decrement(1.0);
    }
}
