//! Does upkeep go on, and end when it is told to, whatever goes wrong around it?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use retrysafe::stores::clock::Clock;
use retrysafe::stores::memory::MemoryStore;
use retrysafe::upkeep::{Lookup, LookupPauses, Reconciler, Reconciliation, Schedule, Upkeep};
use retrysafe_core::engine::Engine;
use retrysafe_core::policy::Absence;
use retrysafe_core::record::{First, Record, Standing, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, Page, Query, Stamped, Store, StoreError, Swapped};
use retrysafe_core::time::Time;

use super::{LEASE, Lookups as _, begin, record, schedule, store, unknown};

/// Never learns anything, and takes its time over it.
struct Undecided {
    takes: Duration,
    asked: Arc<AtomicUsize>,
}

impl Reconciler for Undecided {
    async fn lookup(&self, _: &Record) -> Lookup {
        self.asked.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(self.takes).await;
        Lookup::Pending
    }
}

/// Says that an absence is proof, except for one record, about which it has a bug.
struct Buggy {
    bug: Id,
    asked: Arc<AtomicUsize>,
}

impl Reconciler for Buggy {
    async fn lookup(&self, _: &Record) -> Lookup {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Lookup::Pending
    }

    fn absence(&self, unknown: &Record) -> Absence {
        assert_ne!(unknown.id, self.bug, "a bug in absence()");
        Absence::Proof
    }
}

// `absence` panicked for one record, once. The task ended, nobody was told, and no unknown record
// was asked about any more until the process was started anew.
#[tokio::test(start_paused = true)]
async fn a_panic_in_absence_costs_its_own_record_only() {
    let (store, hand) = store();
    let engine = Engine::new(store.clone());
    let (bug, fine) = (unknown(&engine, "bug").await, unknown(&engine, "fine").await);
    hand.advance(Duration::from_secs(10));
    let asked = Arc::new(AtomicUsize::new(0));
    let buggy = Buggy { bug, asked: Arc::clone(&asked) };
    let schedule = Schedule { look_every: Duration::from_secs(1), ..schedule(&[10, 10, 10]) };
    let upkeep = Upkeep::new(store.clone()).reconcile(buggy, schedule).start();
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Two of three: where an absence is proof, the last lookup waits for the settle time.
    assert_eq!(record(&store, fine).await.lookups(), 2);
    // What the bug leaves open is "no proof", so that nothing is executed twice for it.
    assert_eq!(record(&store, bug).await.lookups(), 3);
    upkeep.stop().await;
}

// Every process has a reconciler of its own. Four of them asked about one record at the same time and learned nothing,
// and each used up one lookup of the schedule: a person had to decide after a single look.
#[tokio::test(start_paused = true)]
async fn reconcilers_that_ask_at_the_same_time_use_up_one_lookup() {
    let (store, hand) = store();
    let engine = Arc::new(Engine::new(store.clone()));
    let id = unknown(&engine, "k").await;
    hand.advance(Duration::from_secs(10));
    let asked = Arc::new(AtomicUsize::new(0));
    let process = || {
        let silent = Undecided { takes: Duration::from_secs(1), asked: Arc::clone(&asked) };
        Reconciliation::new(Arc::clone(&engine), silent, schedule(&[10, 60, 300, 1_800]))
    };
    let (one, two, three, four) = (process(), process(), process(), process());
    let rounds = tokio::join!(one.round(), two.round(), three.round(), four.round());
    assert!(rounds.0.is_ok() && rounds.1.is_ok() && rounds.2.is_ok() && rounds.3.is_ok());
    assert_eq!(asked.load(Ordering::SeqCst), 4, "they have overlapped");
    assert_eq!(record(&store, id).await.lookups(), 1);
}

/// A provider that never answers holds up its own lookup, for no longer than a lookup may take.
#[tokio::test(start_paused = true)]
async fn a_lookup_that_never_ends_is_given_up() {
    let (store, hand) = store();
    let engine = Engine::new(store.clone());
    let id = unknown(&engine, "silent").await;
    hand.advance(Duration::from_secs(10));
    let silent = Undecided { takes: Duration::MAX, asked: Arc::default() };
    let schedule = Schedule { look_every: Duration::from_secs(1), ..schedule(&[10, 10]) };
    let long_enough = schedule.lookup_max * 2;
    let upkeep = Upkeep::new(store.clone()).reconcile(silent, schedule).start();
    tokio::time::sleep(long_enough).await;
    assert_ne!(record(&store, id).await.lookups(), 0);
    upkeep.stop().await;
}

/// A store that can be made to panic once, and to hang, wholly or on writes.
#[derive(Default)]
struct Treacherous {
    inner: MemoryStore,
    panics: AtomicBool,
    hangs: AtomicBool,
    hangs_on_writes: AtomicBool,
    swaps: AtomicUsize,
}

async fn hang_if(hangs: &AtomicBool) {
    if hangs.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
}

impl Store for Treacherous {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        self.inner.insert(first).await
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        self.inner.load(id).await
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        self.swaps.fetch_add(1, Ordering::SeqCst);
        hang_if(&self.hangs).await;
        hang_if(&self.hangs_on_writes).await;
        self.inner.swap(from, write).await
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a bug in the store");
        hang_if(&self.hangs).await;
        self.inner.scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.inner.reap(limit).await
    }
}

/// A treacherous store with so many ended leases.
async fn overdue(leases: usize) -> (Arc<Treacherous>, Vec<Id>) {
    let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
    let inner = MemoryStore::with_clock(clock);
    let store = Arc::new(Treacherous { inner, ..Treacherous::default() });
    let engine = Engine::new(store.clone());
    let mut ids = Vec::new();
    for at in 0..leases {
        ids.push(begin(&engine, &at.to_string()).await.id());
    }
    hand.advance(LEASE);
    (store, ids)
}

async fn standing(store: &Arc<Treacherous>, id: Id) -> Standing {
    store.load(id).await.unwrap().value.unwrap().standing()
}

/// Plays a scene by a clock that only waiting moves, and returns the metrics that it reported.
fn reported<F: Future<Output = ()>>(scene: impl FnOnce() -> F) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(scene()));
    metrics.render()
}

#[test]
fn a_sweeper_that_panicked_sweeps_again_and_says_so() {
    let metrics = reported(|| async {
        let (store, ids) = overdue(1).await;
        store.panics.store(true, Ordering::SeqCst);
        let every = Duration::from_secs(1);
        let upkeep = Upkeep::new(store.clone()).sweep_every(every).start();
        tokio::time::sleep(every * 3).await;
        assert!(!store.panics.load(Ordering::SeqCst), "it has panicked");
        assert_eq!(standing(&store, ids[0]).await, Standing::Unknown);
        upkeep.stop().await;
    });
    assert!(metrics.contains("retrysafe_upkeep_panics_total{task=\"sweep\"} 1"), "{metrics}");
}

// A call of the store never came back, and no lease was ended any more until the process was
// started anew. Nothing was logged or counted.
#[test]
fn a_store_that_hangs_hangs_no_task_for_ever_and_is_reported() {
    let metrics = reported(|| async {
        let (store, ids) = overdue(600).await;
        store.hangs.store(true, Ordering::SeqCst);
        let every = Duration::from_secs(1);
        let upkeep = Upkeep::new(store.clone()).sweep_every(every).start();
        tokio::time::sleep(Duration::from_secs(60)).await;
        store.hangs.store(false, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(60)).await;
        for id in ids {
            assert_eq!(standing(&store, id).await, Standing::Unknown);
        }
        upkeep.stop().await;
    });
    let told = "retrysafe_store_errors_total{operation=\"scan\",kind=\"unavailable\"}";
    assert!(metrics.contains(told), "{metrics}");
}

// Every write of a sweep would wait for its own time limit: ten thousand of them, for days.
#[tokio::test(start_paused = true)]
async fn a_sweep_ends_when_the_store_goes_away_in_its_middle() {
    let (store, ids) = overdue(600).await;
    store.hangs_on_writes.store(true, Ordering::SeqCst);
    let upkeep = Upkeep::new(store.clone()).sweep_every(Duration::from_secs(1)).start();
    tokio::time::sleep(Duration::from_secs(30 * 60)).await;
    let asked = store.swaps.load(Ordering::SeqCst);
    store.hangs_on_writes.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5 * 60)).await;
    assert!((1..600).contains(&asked), "{asked}");
    for id in ids {
        assert_eq!(standing(&store, id).await, Standing::Unknown);
    }
    upkeep.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_longest_pauses_are_fine() {
    let (store, hand) = store();
    let engine = Engine::new(store.clone());
    let overdue = begin(&engine, "overdue").await.id();
    let doubtful = unknown(&engine, "unknown").await;
    hand.advance(LEASE);
    let takes = Duration::from_secs(1);
    let undecided = || Undecided { takes, asked: Arc::default() };
    let schedule = Schedule {
        pauses: LookupPauses::new(vec![Duration::ZERO, Duration::MAX]).unwrap(),
        look_every: Duration::MAX,
        lookup_max: Duration::MAX,
        settle_time: Duration::MAX,
        ..Schedule::default()
    };
    let upkeep = Upkeep::new(store.clone())
        .sweep_every(Duration::MAX)
        .reap_every(Duration::MAX)
        .store_timeout(Duration::MAX)
        .reconcile(undecided(), schedule)
        .start();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(record(&store, overdue).await.standing(), Standing::Unknown);
    assert_eq!(record(&store, doubtful).await.lookups(), 1);
    upkeep.stop().await;
}

// Eighty records were due and each lookup took half a second: `stop` waited for all of them.
#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_the_rest_of_the_round() {
    let (store, hand) = store();
    let engine = Engine::new(store.clone());
    for at in 0..80 {
        unknown(&engine, &at.to_string()).await;
    }
    hand.advance(Duration::from_secs(10));
    let asked = Arc::new(AtomicUsize::new(0));
    let slow = Undecided { takes: Duration::from_secs(20), asked: Arc::clone(&asked) };
    let upkeep = Upkeep::new(store.clone()).reconcile(slow, schedule(&[10, 20])).start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let under_way = asked.load(Ordering::SeqCst);
    assert!((1..80).contains(&under_way), "{under_way}");
    let told = tokio::time::Instant::now();
    upkeep.stop().await;
    assert_eq!(told.elapsed(), Duration::ZERO, "by a clock that only waiting moves");
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(asked.load(Ordering::SeqCst), under_way, "and nothing goes on behind it");
}
