//! Does a store do what a plain map would do?
//!
//! Random commands go to the store and to a map beside it, 60 at a time, and every answer is
//! compared. The map takes two things on trust, the clock's reading and the version that the store
//! draws, and checks that neither goes back. A failure is shrunk to the commands that matter.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::samples::*;
use super::stand::{AnyStore, ReopenStand, Soon, Stand};
use super::{Owners, chance};
use crate::flow::{FirstSentMark, FlowMove, FlowVersion, RequestDigest};
use crate::machine::{Decision, OwnerGone, decide};
use crate::record::{Becomes, Doubt, Fence, First, Happened, Record, Standing, Write};
use crate::scope::{CredentialMark, Id};
use crate::store::{Filter, Inserted, Store, Swapped};
use crate::time::Time;

/// How many sequences one run tries.
const CASES: u32 = 256;

/// How many commands a sequence has.
const STEPS: usize = 60;

/// Few keys, so that commands meet.
const KEYS: u8 = 4;

/// The unit of all lengths. Long beside what a run takes, so that a clock that runs by itself meets
/// the same ends in the same order as one that stands still.
const UNIT: Duration = Duration::from_secs(1_000);

#[derive(Clone, Debug)]
enum Command {
    /// Nothing; what shrinking turns other commands into.
    Rest,
    Insert {
        key: u8,
        meaning: u8,
        ttl: u8,
        lease: u8,
    },
    Load {
        key: u8,
    },
    /// From the record seen last, or from one seen `back` versions before.
    Swap {
        key: u8,
        back: u8,
        change: Change,
    },
    Scan {
        filter: Sought,
        limit: u8,
    },
    Reap {
        limit: u8,
    },
    Advance {
        by: u8,
    },
    Reopen,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Begin(u8),
    Renew(u8),
    KeepHead(u8),
    Complete(u8),
    Fail,
    Doubt,
    LookUp,
    Expire,
    Touch,
    Ttl(u8),
    StartFlow,
    MarkCall(u8),
    EndPhase(u8),
    EndLease,
}

#[derive(Clone, Copy, Debug)]
enum Sought {
    All,
    Standing(Standing),
    LeaseOver,
    Scope(bool),
    Route(u8),
    Key(u8),
}

fn command() -> impl Strategy<Value = Command> {
    let key = || 0..KEYS;
    prop_oneof![
        1 => Just(Command::Rest),
        30 => (key(), 0..3u8, 0..4u8, 0..4u8)
            .prop_map(|(key, meaning, ttl, lease)| Command::Insert { key, meaning, ttl, lease }),
        10 => key().prop_map(|key| Command::Load { key }),
        40 => (key(), 0..4u8, change())
            .prop_map(|(key, back, change)| Command::Swap { key, back: back.saturating_sub(1), change }),
        10 => (sought(), 0..4u8).prop_map(|(filter, limit)| Command::Scan { filter, limit }),
        8 => (0..4u8).prop_map(|limit| Command::Reap { limit }),
        15 => (0..4u8).prop_map(|by| Command::Advance { by }),
        5 => Just(Command::Reopen),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Touch),
        (0..3u8).prop_map(Change::Begin),
        (0..4u8).prop_map(Change::Renew),
        (0..4u8).prop_map(Change::KeepHead),
        any::<u8>().prop_map(Change::Complete),
        any::<u8>().prop_map(Change::Complete),
        Just(Change::Fail),
        Just(Change::Doubt),
        Just(Change::LookUp),
        Just(Change::Expire),
        (0..4u8).prop_map(Change::Ttl),
        Just(Change::StartFlow),
        (0..4u8).prop_map(Change::MarkCall),
        any::<u8>().prop_map(Change::EndPhase),
        Just(Change::EndLease),
    ]
}

fn sought() -> impl Strategy<Value = Sought> {
    prop_oneof![
        Just(Sought::All),
        (0..4usize).prop_map(|at| Sought::Standing(Standing::ALL[at])),
        Just(Sought::LeaseOver),
        any::<bool>().prop_map(Sought::Scope),
        (0..3u8).prop_map(Sought::Route),
        (0..KEYS).prop_map(Sought::Key),
    ]
}

/// A bench, and what [`Command::Reopen`] means for it.
pub(super) enum Stage {
    /// The store cannot be reopened, so nothing happens.
    Once(Stand),
    /// The store is reopened.
    Again(ReopenStand),
}

/// 256 sequences of 60 random commands over fresh benches, against a plain map.
///
/// # Panics
///
/// If the store and the map disagree, with the fewest commands that show it and the seed.
pub(super) fn check(fresh: fn() -> Soon<'static, Stage>) {
    let seed = chance::seed();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let runtime = super::runtime();
    let outcome = TestRunner::new_with_rng(config, rng).run(&vec(command(), STEPS), |commands| {
        runtime.block_on(async {
            let mut pair = Pair { stage: fresh().await, map: Map::default() };
            for command in commands {
                pair.step(command).await;
            }
            pair.compare().await;
        });
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure} ({}={seed} repeats it)", chance::SEED_VARIABLE);
    }
}

/// The store, and the map beside it.
struct Pair {
    stage: Stage,
    map: Map,
}

#[derive(Default)]
struct Map {
    records: BTreeMap<Id, Record>,
    /// Every record that was ever seen under a key, oldest first.
    seen: BTreeMap<Id, Vec<Record>>,
    now: Time,
}

impl Stage {
    fn store(&self) -> AnyStore {
        match self {
            Self::Once(bench) => bench.store(),
            Self::Again(bench) => bench.store(),
        }
    }

    async fn advance(&self, by: Duration) {
        match self {
            Self::Once(bench) => bench.advance(by).await,
            Self::Again(bench) => bench.advance(by).await,
        }
    }

    async fn restart(&mut self) -> Owners {
        match self {
            Self::Once(_) => Owners::Remain,
            Self::Again(bench) => bench.reopen().await,
        }
    }
}

impl Pair {
    async fn step(&mut self, command: Command) {
        match command {
            Command::Rest => {}
            Command::Insert { key, meaning, ttl, lease } => {
                self.insert(asked(key, meaning, ttl, lease)).await;
            }
            Command::Load { key } => self.load(named(key).id).await,
            Command::Swap { key, back, change } => {
                self.swap(named(key).id, usize::from(back), write(change)).await;
            }
            Command::Scan { filter, limit } => self.scan(filter_of(filter), limit.into()).await,
            Command::Reap { limit } => self.reap(limit.into()).await,
            Command::Advance { by } => self.stage.advance(UNIT * by.into()).await,
            Command::Reopen => {
                let owners = self.stage.restart().await;
                self.reopened(owners).await;
            }
        }
    }

    async fn insert(&mut self, first: First) {
        let answer = insert(&self.stage.store(), first.clone()).await;
        let now = self.map.read(answer.now);
        let live = self.map.records.get(&first.id).filter(|record| !record.is_expired(now));
        match (answer.value, live) {
            (Inserted::Exists(found), Some(live)) => assert_eq!(found, *live),
            (Inserted::New(record), None) => {
                assert_eq!(record, first.record(record.created_at, record.version));
                assert!(record.created_at <= now);
                self.map.keep(record);
            }
            (answer, live) => panic!("{answer:?}, but the map has {live:?}"),
        }
    }

    async fn load(&mut self, id: Id) {
        let answer = self.stage.store().load(id).await.expect("the load is answered");
        self.map.read(answer.now);
        assert_eq!(answer.value.as_ref(), self.map.records.get(&id));
    }

    async fn swap(&mut self, id: Id, back: usize, write: Write) {
        let Some(from) = self.map.seen.get(&id).and_then(|seen| seen.iter().rev().nth(back)) else {
            return;
        };
        let from = from.clone();
        let answer = self.stage.store().swap(from.clone(), write.clone()).await;
        let answer = answer.expect("the swap is answered");
        let now = self.map.read(answer.now);
        match (answer.value, self.map.records.get(&id)) {
            (Swapped::Done(next), Some(current)) if current.version == from.version => {
                let at = next.timeline.last().expect("every write has a moment").at;
                assert!(at <= now);
                assert_eq!(next, write.onto(current, at, next.version));
                self.map.keep(next);
            }
            (Swapped::Lost(found), current)
                if current.is_none_or(|current| current.version != from.version) =>
            {
                assert_eq!(found.as_ref(), current);
            }
            (answer, current) => panic!("{answer:?} from {from:?}, but the map has {current:?}"),
        }
    }

    async fn scan(&mut self, filter: Filter, limit: usize) {
        let mut found = all(&self.stage.store(), filter.clone(), limit).await;
        let now = self.now().await;
        found.sort_by_key(|record| record.id);
        let matching = self.map.records.values().filter(|record| filter.matches(record, now));
        assert_eq!(found, matching.cloned().collect::<Vec<_>>(), "of {filter:?}");
    }

    async fn reap(&mut self, limit: usize) {
        let store = self.stage.store();
        let answer = store.reap(limit).await.expect("the reap is answered");
        let now = self.map.read(answer.now);
        let expired = |record: &&Record| record.is_expired(now);
        let due: Vec<Id> = self.map.records.values().filter(expired).map(|r| r.id).collect();
        assert_eq!(answer.value, due.len().min(limit), "of {} that are due", due.len());
        // Which of them it took is the store's own choice.
        let mut gone = 0;
        for id in due {
            if load(&store, id).await.is_none() {
                self.map.records.remove(&id);
                gone += 1;
            }
        }
        assert_eq!(gone, answer.value, "as many are gone as were counted");
    }

    async fn reopened(&mut self, owners: Owners) {
        if owners == Owners::Gone {
            // What a restart makes of a flow depends on the time.
            let now = self.now().await;
            let store = self.stage.store();
            for before in self.map.records.values().cloned().collect::<Vec<_>>() {
                let write = decide(Some(&before), &OwnerGone, now).and_then(Decision::write);
                let Some(write) = write else { continue };
                let after = load(&store, before.id).await.expect("a reservation is durable");
                let at = after.timeline.last().expect("it was doubted").at;
                assert_eq!(after, write.onto(&before, at, after.version));
                self.map.keep(after);
            }
        }
        self.compare().await;
    }

    /// Everything, in the end.
    async fn compare(&mut self) {
        self.scan(Filter::default(), 3).await;
        for key in 0..KEYS {
            self.load(named(key).id).await;
        }
    }

    async fn now(&mut self) -> Time {
        let answer = self.stage.store().load(named(0).id).await.expect("the load is answered");
        self.map.read(answer.now)
    }
}

impl Map {
    /// Takes a reading of the store's clock, which must not go back.
    fn read(&mut self, now: Time) -> Time {
        assert!(now >= self.now, "{now:?} after {:?}", self.now);
        self.now = now;
        now
    }

    /// Keeps what the store has written, under a version that must be higher than any before.
    fn keep(&mut self, record: Record) {
        let seen = self.seen.entry(record.id).or_default();
        let last = seen.last().map_or(0, |record| record.version);
        assert!(record.version > last, "{} after {last}", record.version);
        assert!(record.fence.0 <= record.version);
        seen.push(record.clone());
        self.records.insert(record.id, record);
    }
}

/// The keys lie in two scopes.
fn named(key: u8) -> First {
    first_in(&scope(if key.is_multiple_of(2) { "even" } else { "odd" }), &format!("k{}", key / 2))
}

fn asked(key: u8, meaning: u8, ttl: u8, lease: u8) -> First {
    let mut first = named(key);
    first.fingerprint = print(meaning);
    first.about.route = format!("/{meaning}").into();
    first.owner = meaning.into();
    first.mark = mark(meaning);
    (first.ttl, first.lease) = (UNIT * ttl.into(), UNIT * lease.into());
    first
}

/// Some requests have a mark and some have none.
fn mark(number: u8) -> Option<CredentialMark> {
    (number > 0).then(|| CredentialMark::from_bytes([number; CredentialMark::LENGTH]))
}

fn write(change: Change) -> Write {
    let becomes = match change {
        Change::Begin(number) => Becomes::Begun { owner: 9, lease: UNIT, mark: mark(number) },
        Change::Renew(lease) => {
            Becomes::Renewed { lease: UNIT * lease.into(), lease_max: UNIT * 4 }
        }
        Change::KeepHead(number) => Becomes::HeadKept {
            head: head(200 + u16::from(number), (number > 1).then_some("/a")),
            lease: UNIT,
            lease_max: UNIT * 4,
        },
        Change::Complete(byte) => Becomes::Completed(answer(vec![byte; usize::from(byte)])),
        Change::Fail => Becomes::FailedRetryable,
        Change::Doubt => Becomes::Unknown(Doubt::Said),
        Change::LookUp => Becomes::LookedUp,
        Change::Expire => Becomes::Expired,
        Change::StartFlow => Becomes::Advanced(FlowMove::Started {
            flow: FlowVersion::new("flow", 1),
            input: "input".into(),
        }),
        Change::MarkCall(number) => Becomes::Advanced(FlowMove::CallMarked(FirstSentMark {
            digest: RequestDigest::of(&[number]),
            set_by: Fence(number.into()),
            resume_until: (number > 1).then(|| Time::from_ms(number.into())),
        })),
        Change::EndPhase(byte) => Becomes::Advanced(FlowMove::PhaseDone(vec![byte; 3].into())),
        Change::EndLease => Becomes::LeaseEnded,
        Change::Touch | Change::Ttl(_) => Becomes::Same,
    };
    Write {
        new_fence: matches!(change, Change::Begin(_)),
        becomes,
        // Every write leaves a moment here, so that the map learns when it was.
        what: Some(Happened::LookedUp("x".into())),
        ttl: if let Change::Ttl(ttl) = change { Some(UNIT * ttl.into()) } else { None },
    }
}

fn filter_of(sought: Sought) -> Filter {
    let mut filter = Filter::default();
    match sought {
        Sought::All => {}
        Sought::Standing(standing) => filter.standing = Some(standing),
        Sought::LeaseOver => filter.lease_over = true,
        Sought::Scope(even) => filter.scope = Some(scope(if even { "even" } else { "odd" })),
        Sought::Route(meaning) => filter.route = Some(format!("/{meaning}").into()),
        Sought::Key(key) => filter.key = Some(named(key).key),
    }
    filter
}
