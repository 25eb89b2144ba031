//! Is a store kept tidy, by several at once and in spite of poison?
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail"
)]

#[path = "layer_upkeep/asking.rs"]
mod asking;
#[path = "layer_upkeep/troubles.rs"]
mod troubles;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use retrysafe::stores::clock::{Clock, Hand};
use retrysafe::stores::memory::MemoryStore;
use retrysafe::upkeep::{
    Lookup, LookupPauses, Reconciled, Reconciler, Reconciliation, Schedule, Upkeep, dead_letters,
};
use retrysafe_core::engine::{Ask, Begun, Engine, Lease};
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::machine::{Evidence, Proof, Verdict};
use retrysafe_core::policy::Absence;
use retrysafe_core::record::{
    About, Answer, Doubt, First, Happened, Judge, Outcome, Record, Standing, State, Write,
};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Inserted, Page, Query, Stamped, Store, StoreError, StoreErrorKind, Swapped,
};
use retrysafe_core::time::Time;
use retrysafe_core::{Key, Scope};

const LEASE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(3_600);

/// A store in which some records cannot be written, and one page mentions a damaged one.
struct Poisoned {
    inner: MemoryStore,
    poison: Mutex<Vec<Id>>,
}

impl Store for Poisoned {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        self.inner.insert(first).await
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        self.inner.load(id).await
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        if self.poison.lock().unwrap().contains(&from.id) {
            return Err(StoreError::not_applied(StoreErrorKind::Damaged));
        }
        self.inner.swap(from, write).await
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        let mut page = self.inner.scan(query.clone()).await?;
        if query.after.is_none() {
            page.value.damaged.extend(self.poison.lock().unwrap().first());
        }
        Ok(page)
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.inner.reap(limit).await
    }
}

fn store() -> (Arc<Poisoned>, Hand) {
    let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
    let inner = MemoryStore::with_clock(clock);
    (Arc::new(Poisoned { inner, poison: Mutex::default() }), hand)
}

async fn begin<S: Store>(engine: &Engine<S>, key: &str) -> Lease {
    let print = Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [7; 32]);
    let ask = Ask {
        scope: &Scope::anonymous(),
        mark: None,
        key: Key::new(key).unwrap().digest(),
        prints: &print,
        about: &About { route: "/pay".into(), ..About::default() },
        ttl: TTL,
        lease: LEASE,
        owner: 1,
        request_id: None,
    };
    match engine.begin(&ask).await.unwrap() {
        Begun::Execute(lease) => lease,
        other => panic!("{other:?}"),
    }
}

async fn unknown(engine: &Engine<Arc<Poisoned>>, key: &str) -> Id {
    let lease = begin(engine, key).await;
    let id = lease.id();
    engine.settle(lease, &Outcome::Unknown(Doubt::AnswerLost)).await.unwrap();
    id
}

async fn record(store: &Arc<Poisoned>, id: Id) -> Record {
    store.load(id).await.unwrap().value.unwrap()
}

#[tokio::test(start_paused = true)]
async fn ended_leases_become_unknown_and_poison_stops_nothing() {
    let (store, hand) = store();
    let engine = Engine::new(store.clone());
    let mut ids = Vec::new();
    for at in 0..600 {
        ids.push(begin(&engine, &at.to_string()).await.id());
    }
    store.poison.lock().unwrap().push(ids[3]);
    hand.advance(LEASE);
    // Two processes, each with its own sweeper.
    let every = Duration::from_secs(1);
    let one = Upkeep::new(store.clone()).sweep_every(every).start();
    let two = Upkeep::new(store.clone()).sweep_every(every).start();
    tokio::time::sleep(every * 2).await;
    for (at, id) in ids.iter().enumerate() {
        let want = if at == 3 { Standing::InProgress } else { Standing::Unknown };
        assert_eq!(record(&store, *id).await.standing(), want, "{at}");
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn expired_records_are_deleted_and_others_never() {
    let (store, hand) = store();
    let engine = Engine::new(store.clone());
    for at in 0..2_000 {
        let lease = begin(&engine, &at.to_string()).await;
        engine.settle(lease, &Outcome::Retryable(None)).await.unwrap();
    }
    let running = begin(&engine, "running").await;
    let doubtful = unknown(&engine, "unknown").await;
    let upkeep = Upkeep::new(store.clone()).reap_every(Duration::from_secs(1)).start();
    hand.advance(TTL * 1_000);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(store.inner.len(), 2);
    upkeep.stop().await;
    // The running one has ended its lease meanwhile; neither is ever deleted.
    assert_eq!(record(&store, doubtful).await.standing(), Standing::Unknown);
    assert_eq!(record(&store, running.id()).await.standing(), Standing::Unknown);
}

/// Answers by the record's key.
struct Provider {
    knows: HashMap<Id, Lookup>,
    absence: Absence,
    asked: Arc<AtomicUsize>,
}

impl Reconciler for Provider {
    async fn lookup(&self, unknown: &Record) -> Lookup {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match self.knows.get(&unknown.id) {
            Some(lookup) => lookup.clone(),
            None if unknown.lookups() == 0 => panic!("a provider that crashes"),
            None => std::future::pending().await,
        }
    }

    fn absence(&self, _: &Record) -> Absence {
        self.absence
    }
}

trait Lookups {
    fn lookups(&self) -> u32;
}

impl Lookups for Record {
    fn lookups(&self) -> u32 {
        match self.state {
            State::Unknown { lookups, .. } => lookups,
            _ => 0,
        }
    }
}

fn provider(knows: impl IntoIterator<Item = (Id, Lookup)>) -> Provider {
    let knows = knows.into_iter().collect();
    Provider { knows, absence: Absence::default(), asked: Arc::default() }
}

fn schedule(after: &[u64]) -> Schedule {
    let times: Vec<Duration> = after.iter().map(|seconds| Duration::from_secs(*seconds)).collect();
    Schedule { pauses: LookupPauses::between(&times).unwrap(), ..Schedule::default() }
}

#[tokio::test(start_paused = true)]
async fn evidence_decides_and_absence_alone_does_not() {
    let (store, hand) = store();
    let engine = Arc::new(Engine::new(store.clone()));
    let mut ids = Vec::new();
    for key in ["answer", "fact", "burnt", "absent", "pending", "poison"] {
        ids.push(unknown(&engine, key).await);
    }
    let answer = Answer::Kept(StoredResponse {
        status: StatusCode::CREATED,
        headers: vec![],
        body: "paid".into(),
    });
    let fact = Answer::NotKept { status: None, location: None };
    let knows = [
        (ids[0], Lookup::Executed(answer.clone())),
        (ids[1], Lookup::Executed(fact)),
        (ids[2], Lookup::NotExecuted(Proof::burnt())),
        (ids[3], Lookup::NotFound),
        (ids[4], Lookup::Pending),
    ];
    let (provider, schedule) = (provider(knows), schedule(&[10, 20]));
    let asked = Arc::clone(&provider.asked);
    let rounds = Reconciliation::new(engine, provider, schedule.clone());
    let before = rounds.round().await.unwrap();
    assert_eq!(before, Reconciled::default(), "nothing is due yet");
    hand.advance(Duration::from_secs(10));
    let done = rounds.round().await.unwrap();
    assert_eq!((done.asked, done.resolved, done.dead_lettered), (6, 3, 0));
    let standing = async |at: usize| record(&store, ids[at]).await.standing();
    assert_eq!(standing(0).await, Standing::Completed);
    assert_eq!(standing(1).await, Standing::Completed);
    assert_eq!(standing(2).await, Standing::FailedRetryable);
    for id in &ids[3..] {
        assert_eq!(record(&store, *id).await.lookups(), 1, "it stays unknown");
    }
    for (at, found) in [(3, "not found"), (4, "pending"), (5, "the lookup panicked")] {
        let record = record(&store, ids[at]).await;
        let last = record.timeline.last().map(|moment| moment.what.clone());
        assert_eq!(last, Some(Happened::LookedUp(found.into())), "it is told what was found");
    }
    match record(&store, ids[0]).await.state {
        State::Completed { answer: kept, .. } => assert_eq!(kept, answer),
        other => panic!("{other:?}"),
    }
    // The schedule is used up: a person must decide, and nothing is asked any more.
    hand.advance(Duration::from_secs(10));
    rounds.round().await.unwrap();
    hand.advance(TTL);
    let before = asked.load(Ordering::SeqCst);
    let done = rounds.round().await.unwrap();
    assert_eq!((done.asked, done.dead_lettered), (0, 3));
    assert_eq!(asked.load(Ordering::SeqCst), before);
    let dead = dead_letters(&store, &schedule, 10).await.unwrap();
    assert_eq!(dead.len(), 3);
    assert_eq!(dead_letters(&store, &schedule, 2).await.unwrap().len(), 2);
    assert!(dead.iter().all(|record| record.standing() == Standing::Unknown));
}

/// An unknown record that nobody has heard of, after its first round: sighted, not yet due.
async fn absent(
    absence: Absence,
) -> (Arc<Poisoned>, Hand, Id, Reconciliation<Arc<Poisoned>, Provider>) {
    let (store, hand) = store();
    let engine = Arc::new(Engine::new(store.clone()));
    let id = unknown(&engine, "k").await;
    let provider = Provider { absence, ..provider([(id, Lookup::NotFound)]) };
    let schedule = Schedule { settle_time: Duration::from_secs(10), ..schedule(&[1, 2, 3]) };
    let rounds = Reconciliation::new(engine, provider, schedule);
    assert_eq!(rounds.round().await.unwrap().asked, 0);
    (store, hand, id, rounds)
}

#[tokio::test(start_paused = true)]
async fn absence_counts_only_where_it_is_proof_and_only_after_the_settle_time() {
    for (absence, seconds, want) in [
        (Absence::Inconclusive, 1_000, Standing::Unknown),
        (Absence::Proof, 9, Standing::Unknown),
        (Absence::Proof, 10, Standing::FailedRetryable),
    ] {
        let (store, hand, id, rounds) = absent(absence).await;
        tokio::time::advance(Duration::from_secs(seconds)).await;
        hand.advance(Duration::from_secs(seconds));
        assert_eq!(rounds.round().await.unwrap().asked, 1);
        assert_eq!(record(&store, id).await.standing(), want, "{absence:?} {seconds}");
    }
}

// The owner may have been paused before it sent; a clock that leaps does not send it.
#[tokio::test(start_paused = true)]
async fn a_leap_of_the_stores_clock_is_no_settle_time() {
    let (store, hand, id, rounds) = absent(Absence::Proof).await;
    hand.advance(Duration::from_secs(400 * 86_400));
    assert_eq!(rounds.round().await.unwrap().asked, 1);
    assert_eq!(record(&store, id).await.standing(), Standing::Unknown);
    hand.advance(Duration::from_secs(1));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(rounds.round().await.unwrap().resolved, 1);
}

// A process that was down past the whole schedule still asks once when the answer can be proof.
#[tokio::test(start_paused = true)]
async fn the_last_lookup_waits_for_the_settle_time() {
    let (store, hand, id, rounds) = absent(Absence::Proof).await;
    hand.advance(Duration::from_secs(86_400));
    let mut asked = 0;
    for _ in 0..9 {
        tokio::time::advance(Duration::from_secs(1)).await;
        hand.advance(Duration::from_secs(1));
        asked += rounds.round().await.unwrap().asked;
    }
    assert_eq!((asked, record(&store, id).await.lookups()), (2, 2), "of three");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(rounds.round().await.unwrap().resolved, 1);
}

// What was unknown before was decided meanwhile, and the record is unknown anew: by another owner.
#[tokio::test(start_paused = true)]
async fn each_owner_has_a_settle_time_of_its_own() {
    let (store, hand, id, rounds) = absent(Absence::Proof).await;
    let engine = Engine::new(store.clone());
    let seen = record(&store, id).await;
    let evidence = Evidence::NotExecuted(Proof::operator());
    let verdict =
        Verdict { fence: seen.fence, evidence, judge: Judge::Operator, reason: "called".into() };
    engine.resolve(id, &verdict).await.unwrap();
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(unknown(&engine, "k").await, id);
    hand.advance(Duration::from_secs(10));
    assert_eq!(rounds.round().await.unwrap().asked, 1);
    assert_eq!(record(&store, id).await.standing(), Standing::Unknown);
}

#[tokio::test]
async fn two_reconcilers_decide_once_and_the_former_owner_loses() {
    let (store, hand) = store();
    let engine = Arc::new(Engine::new(store.clone()));
    let lease = begin(&engine, "k").await;
    let id = lease.id();
    hand.advance(LEASE);
    engine.sweep(10).await.unwrap();
    hand.advance(LEASE);
    let schedule = schedule(&[10]);
    let fact = Answer::NotKept { status: None, location: None };
    let (yes, no) = (
        provider([(id, Lookup::Executed(fact))]),
        provider([(id, Lookup::NotExecuted(Proof::burnt()))]),
    );
    let yes = Reconciliation::new(Arc::clone(&engine), yes, schedule.clone());
    let no = Reconciliation::new(Arc::clone(&engine), no, schedule);
    let (one, two) = tokio::join!(yes.round(), no.round());
    assert_eq!(one.unwrap().resolved + two.unwrap().resolved, 1);
    let decided = record(&store, id).await;
    engine.settle(lease, &Outcome::Retryable(None)).await.unwrap();
    assert_eq!(record(&store, id).await.standing(), decided.standing());
}

#[tokio::test(start_paused = true)]
async fn the_tasks_reconcile_on_their_own_and_stop_when_told() {
    let (store, hand) = store();
    let engine = Engine::new(store.clone());
    let id = unknown(&engine, "k").await;
    hand.advance(Duration::from_secs(10));
    let provider = provider([(id, Lookup::NotExecuted(Proof::rolled_back()))]);
    let upkeep = Upkeep::new(store.clone()).reconcile(provider, schedule(&[10])).start();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(record(&store, id).await.standing(), Standing::FailedRetryable);
    upkeep.stop().await;
}
