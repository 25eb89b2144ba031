//! How are records kept in the memory of one process?
//!
//! For tests and trials: a restart forgets everything, so a request that was executed before it may
//! be executed again after it. Everything else that a store promises holds here too.
//!
//! ```
//! use retrysafe::core::Engine;
//! use retrysafe::stores::memory::MemoryStore;
//!
//! let engine = Engine::new(MemoryStore::new().records_max(10_000));
//! # let _ = engine;
//! ```
//!
//! Records lie in shards, each behind a mutex of its own. A shard has four orders beside its map:
//! by birth, in which scans go, since a record keeps its place in it for life; by the end of its
//! lease, for sweeps; by the end of its retention, for reaping; by the beginning of its doubt, for
//! operators. Neither sweep nor reap ever looks at a record that is not due. The number of records is bounded, and nothing is evicted: a record that
//! was dropped to make room would let its request run again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use retrysafe_core::flow::FlowProgress;
use retrysafe_core::record::{Answer, First, Moment, Record, State, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Census, ChangeHint, Cursor, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError,
    StoreErrorKind, Swapped, Voucher,
};
use retrysafe_core::time::Time;

use super::clock::Clock;
use super::watchers::Watchers;
use crate::id_map::IdMap;
use crate::wait_a_turn::wait_a_turn;

/// How many records a store holds unless told otherwise: about half a gigabyte of small answers.
pub const RECORDS_MAX: usize = 1_000_000;

/// How many shards. More than cores, so that two requests rarely meet; few enough that a walk
/// through all of them is nothing.
const SHARDS: usize = 64;

/// How many records are looked at, or deleted, while a shard is locked: well below a millisecond,
/// so that no request waits long for a scan or for the reaper.
const STEP: usize = 256;

/// Keeps records in memory.
///
/// ```
/// use retrysafe::stores::memory::MemoryStore;
///
/// let store = MemoryStore::new().records_max(10_000);
/// assert!(store.is_empty());
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    clock: Clock,
    /// The last version given out, of any record.
    sequence: AtomicU64,
    /// How many records there are, in all shards.
    records: AtomicUsize,
    records_max: usize,
    watchers: Watchers,
}

#[derive(Debug, Default)]
struct Shard {
    records: IdMap<Kept>,
    /// The records by birth: the version with which each was inserted.
    births: BTreeMap<u64, Id>,
    /// Births by the end of the lease, of records in progress.
    leases: BTreeSet<(Time, u64)>,
    /// Births by the end of retention, of settled records.
    expiries: BTreeSet<(Time, u64)>,
    /// Births by the beginning of the doubt, of unknown records.
    doubts: BTreeSet<(Time, u64)>,
    /// How many bytes its records take up, roughly.
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    /// Boxed, so that a growing map moves little.
    record: Box<Record>,
    birth: u64,
}

/// When something is due for a record, as the orders of its shard know it.
#[derive(Clone, Copy)]
struct Due {
    lease_until: Option<Time>,
    expires_at: Option<Time>,
    unknown_since: Option<Time>,
}

/// Where a scan stands: in this shard, past this birth.
#[derive(Clone, Copy)]
struct Place {
    shard: usize,
    birth: u64,
}

impl MemoryStore {
    /// An empty store for [`RECORDS_MAX`] records, by the system's clock.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// An empty store for [`RECORDS_MAX`] records, by this clock.
    pub fn with_clock(clock: Clock) -> Self {
        // Versions begin at the time in microseconds, so that a fence that was shown to a downstream
        // is, as a rule, lower than those of the next process.
        let sequence = AtomicU64::new(clock.now().as_ms().saturating_mul(1_000));
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            clock,
            sequence,
            records: AtomicUsize::new(0),
            records_max: RECORDS_MAX,
            watchers: Watchers::default(),
        }
    }

    /// The same store for at most `count` records. At that number, inserts fail with
    /// [`StoreErrorKind::Full`] until records expire and are reaped.
    #[must_use]
    pub fn records_max(mut self, count: usize) -> Self {
        self.records_max = count;
        self
    }

    /// How many records there are, expired ones that were not reaped yet included.
    pub fn len(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    /// Whether there is no record at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks the shard of a record. An id is a digest, so any byte of it spreads evenly.
    fn shard(&self, id: &Id) -> MutexGuard<'_, Shard> {
        let [first, ..] = id.as_bytes();
        self.shard_at(usize::from(*first) % SHARDS)
    }

    fn shard_at(&self, at: usize) -> MutexGuard<'_, Shard> {
        // A panic elsewhere must not take the store down: nothing between two changes of a shard
        // can panic, so a poisoned shard is whole.
        #[expect(clippy::indexing_slicing, reason = "callers stay below SHARDS")]
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next version. Drawn while the record's shard is locked, so it rises along a record's
    /// history.
    fn next_version(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes the room for one more record, if there is any.
    fn take_room(&self) -> Result<(), StoreError> {
        let more = |count| (count < self.records_max).then_some(count + 1);
        match self.records.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(StoreError::not_applied(StoreErrorKind::Full)),
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        let mut shard = self.shard(&first.id);
        let now = self.clock.now();
        match shard.records.get(&first.id) {
            Some(kept) if !kept.record.is_expired(now) => {
                return Ok(Stamped { now, value: Inserted::Exists((*kept.record).clone()) });
            }
            // The new record takes the room of the expired one.
            Some(_) => shard.remove(&first.id),
            None => self.take_room()?,
        }
        let record = first.into_record(now, self.next_version());
        shard.add(record.clone());
        drop(shard);
        self.watchers.changed(&record.id);
        Ok(Stamped { now, value: Inserted::New(record) })
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        let shard = self.shard(&id);
        let now = self.clock.now();
        Ok(Stamped { now, value: shard.records.get(&id).map(|kept| (*kept.record).clone()) })
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        let mut shard = self.shard(&from.id);
        let now = self.clock.now();
        let value = match shard.records.get(&from.id) {
            Some(kept) if kept.record.version == from.version => {
                // The version is the same, so what the caller has read is what is kept.
                let record = write.over(from, now, self.next_version());
                shard.replace(record.clone());
                drop(shard);
                self.watchers.changed(&record.id);
                Swapped::Done(record)
            }
            current => Swapped::Lost(current.map(|kept| (*kept.record).clone())),
        };
        Ok(Stamped { now, value })
    }

    async fn load_unless(&self, id: Id, version: u64) -> Result<Stamped<LoadedUnless>, StoreError> {
        let shard = self.shard(&id);
        let now = self.clock.now();
        let value = match shard.records.get(&id) {
            Some(kept) if kept.record.version == version => LoadedUnless::AsKnown,
            changed => LoadedUnless::Changed(changed.map(|kept| (*kept.record).clone())),
        };
        Ok(Stamped { now, value })
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        Some(self.watchers.hint(id))
    }

    fn voucher(&self) -> Option<&dyn Voucher> {
        Some(self)
    }

    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        if self.len() >= self.records_max {
            return Err(StoreError::not_applied(StoreErrorKind::Full));
        }
        Ok(Stamped { now: self.clock.now(), value: () })
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        let mut place = match &query.after {
            None => Place { shard: 0, birth: 0 },
            Some(cursor) => Place::parse(cursor)?,
        };
        let mut page = Page::default();
        loop {
            let (now, rest) = {
                let shard = self.shard_at(place.shard);
                let now = self.clock.now();
                (now, shard.step(&query, now, &mut place, &mut page.records))
            };
            match rest {
                Rest::PageIsFull => {
                    page.next = Some(place.cursor());
                    return Ok(Stamped { now, value: page });
                }
                Rest::More => wait_a_turn().await,
                Rest::Nothing if place.shard + 1 == SHARDS => {
                    return Ok(Stamped { now, value: page });
                }
                Rest::Nothing => place = Place { shard: place.shard + 1, birth: 0 },
            }
        }
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        let mut reaped = 0;
        let mut at = 0;
        while at < SHARDS && reaped < limit {
            let room = STEP.min(limit - reaped);
            let taken = self.shard_at(at).reap(self.clock.now(), room);
            self.records.fetch_sub(taken, Ordering::Relaxed);
            reaped += taken;
            if taken < room { at += 1 } else { wait_a_turn().await }
        }
        Ok(Stamped { now: self.clock.now(), value: reaped })
    }

    async fn census(&self) -> Result<Stamped<Census>, StoreError> {
        let mut census = Census { records: Some(self.len() as u64), ..Census::default() };
        let mut bytes = 0;
        for at in 0..SHARDS {
            let shard = self.shard_at(at);
            bytes += shard.bytes;
            census.unknown += shard.doubts.len() as u64;
            let oldest = shard.doubts.first().map(|(since, _)| *since);
            census.unknown_since = census.unknown_since.into_iter().chain(oldest).min();
        }
        census.bytes = Some(bytes as u64);
        Ok(Stamped { now: self.clock.now(), value: census })
    }
}

impl Voucher for MemoryStore {
    fn vouch(&self, id: Id, version: u64) -> Option<Time> {
        let shard = self.shard(&id);
        let is_current = shard.records.get(&id).is_some_and(|kept| kept.record.version == version);
        is_current.then(|| self.clock.now())
    }

    fn at_hand(&self, id: Id) -> Option<Record> {
        self.shard(&id).records.get(&id).map(|kept| (*kept.record).clone())
    }
}

/// What is left of a shard after one step of a scan.
enum Rest {
    Nothing,
    More,
    PageIsFull,
}

impl Shard {
    fn add(&mut self, record: Record) {
        let id = record.id;
        let birth = record.version;
        self.births.insert(birth, id);
        self.note(Due::of(&record), birth);
        self.bytes += bytes_of(&record);
        self.records.insert(id, Kept { record: Box::new(record), birth });
    }

    /// Puts the next version of a record in its place. Its birth stays.
    fn replace(&mut self, record: Record) {
        if let Some(kept) = self.records.get_mut(&record.id) {
            let before = Due::of(&kept.record);
            let after = Due::of(&record);
            let birth = kept.birth;
            self.bytes += bytes_of(&record);
            self.bytes -= bytes_of(&kept.record);
            *kept.record = record;
            self.forget(before, birth);
            self.note(after, birth);
        }
    }

    fn remove(&mut self, id: &Id) {
        if let Some(Kept { record, birth }) = self.records.remove(id) {
            self.births.remove(&birth);
            self.forget(Due::of(&record), birth);
            self.bytes -= bytes_of(&record);
        }
    }

    fn note(&mut self, due: Due, birth: u64) {
        self.leases.extend(due.lease_until.map(|until| (until, birth)));
        self.expiries.extend(due.expires_at.map(|at| (at, birth)));
        self.doubts.extend(due.unknown_since.map(|since| (since, birth)));
    }

    fn forget(&mut self, due: Due, birth: u64) {
        if let Some(until) = due.lease_until {
            self.leases.remove(&(until, birth));
        }
        if let Some(at) = due.expires_at {
            self.expiries.remove(&(at, birth));
        }
        if let Some(since) = due.unknown_since {
            self.doubts.remove(&(since, birth));
        }
    }

    /// Looks at the next few records past `place`, moves it, and keeps those that match.
    fn step(&self, query: &Query, now: Time, place: &mut Place, found: &mut Vec<Record>) -> Rest {
        let births = if query.filter.lease_over {
            self.births_of_ended_leases(now, place.birth)
        } else {
            let past = (Bound::Excluded(place.birth), Bound::Unbounded);
            self.births.range(past).map(|(birth, _)| *birth).take(STEP).collect()
        };
        let more = births.len() == STEP;
        for birth in births {
            place.birth = birth;
            let kept = self.births.get(&birth).and_then(|id| self.records.get(id));
            let Some(kept) = kept.filter(|kept| query.filter.matches(&kept.record, now)) else {
                continue;
            };
            found.push((*kept.record).clone());
            if found.len() == query.page_len() {
                return Rest::PageIsFull;
            }
        }
        if more { Rest::More } else { Rest::Nothing }
    }

    /// The first births past `after` among the leases that are over. They are sorted by birth, not
    /// by the lease: a renewal moves a lease, and a scan must meet each record exactly once.
    fn births_of_ended_leases(&self, now: Time, after: u64) -> Vec<u64> {
        let ended = self.leases.range(..=(now, u64::MAX)).map(|(_, birth)| *birth);
        let mut births: Vec<u64> = ended.filter(|birth| *birth > after).collect();
        if births.len() > STEP {
            births.select_nth_unstable(STEP);
            births.truncate(STEP);
        }
        births.sort_unstable();
        births
    }

    fn reap(&mut self, now: Time, limit: usize) -> usize {
        let due = self.expiries.range(..=(now, u64::MAX)).take(limit);
        let ids: Vec<Id> = due.filter_map(|(_, birth)| self.births.get(birth)).copied().collect();
        for id in &ids {
            self.remove(id);
        }
        ids.len()
    }
}

impl Due {
    fn of(record: &Record) -> Self {
        Self {
            lease_until: record.lease_until(),
            expires_at: record.expires_at(),
            unknown_since: record.unknown_since(),
        }
    }
}

/// How many bytes a record takes up, roughly: the allocator and the maps have theirs, too.
fn bytes_of(record: &Record) -> usize {
    let about = &record.about;
    let texts = about.method.len() + about.route.len() + about.path.len();
    let timeline = record.timeline.len() * size_of::<Moment>();
    let answer = match &record.state {
        State::Completed { answer: Answer::Kept(response), .. } => {
            let fields = response.headers.iter();
            response.body.len() + fields.map(|(n, v)| n.as_str().len() + v.len()).sum::<usize>()
        }
        State::Completed { answer: Answer::NotKept { .. }, .. }
        | State::InProgress { .. }
        | State::FailedRetryable { .. }
        | State::Unknown { .. } => 0,
    };
    let flow = record.flow.as_ref().map_or(0, |flow| size_of::<FlowProgress>() + flow.bytes());
    size_of::<Record>() + record.scope.as_bytes().len() + texts + timeline + answer + flow
}

impl Place {
    fn cursor(self) -> Cursor {
        let mut bytes = vec![self.shard as u8];
        bytes.extend_from_slice(&self.birth.to_be_bytes());
        Cursor(bytes)
    }

    fn parse(cursor: &Cursor) -> Result<Self, StoreError> {
        let parsed = match cursor.0.split_first() {
            Some((shard, birth)) if usize::from(*shard) < SHARDS => {
                let birth = birth.try_into().ok().map(u64::from_be_bytes);
                birth.map(|birth| Self { shard: usize::from(*shard), birth })
            }
            Some(_) | None => None,
        };
        parsed.ok_or_else(|| {
            StoreError::not_applied(StoreErrorKind::Broken)
                .because("the cursor is of another store")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retrysafe_core::fingerprint::{Fingerprint, RulesId};
    use retrysafe_core::key::Key;
    use retrysafe_core::record::{About, Becomes};
    use retrysafe_core::scope::Scope;
    use retrysafe_core::store::{Filter, PAGE_MAX};

    use super::*;
    use crate::stores::clock::Hand;

    const TTL: Duration = Duration::from_secs(60);

    fn store(records_max: usize) -> (MemoryStore, Hand) {
        let (clock, hand) = Clock::manual(Time::from_ms(1_000_000));
        (MemoryStore::with_clock(clock).records_max(records_max), hand)
    }

    fn first(key: usize) -> First {
        let scope = Scope::anonymous();
        let key = Key::new(&key.to_string()).unwrap().digest();
        First {
            id: Id::of(&scope, &key),
            scope,
            key,
            fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
            mark: None,
            about: About::default(),
            ttl: TTL,
            lease: TTL,
            owner: 1,
            request_id: None,
            flow: None,
        }
    }

    async fn begun(store: &MemoryStore, key: usize) -> Record {
        match store.insert(first(key)).await.unwrap().value {
            Inserted::New(record) => record,
            Inserted::Exists(record) => panic!("{record:?}"),
        }
    }

    async fn failed(store: &MemoryStore, key: usize) -> Record {
        let becomes = Becomes::FailedRetryable;
        let write = Write { becomes, new_fence: false, what: None, ttl: None };
        let record = begun(store, key).await;
        match store.swap(record, write).await.unwrap().value {
            Swapped::Done(record) => record,
            Swapped::Lost(current) => panic!("{current:?}"),
        }
    }

    #[tokio::test]
    async fn a_full_store_refuses_new_records_and_keeps_the_old_ones() {
        let (store, hand) = store(3);
        for key in 0..3 {
            failed(&store, key).await;
        }
        let error = store.insert(first(3)).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_applied()), (StoreErrorKind::Full, false));
        assert_eq!(store.len(), 3);
        // What is there is read, written and found as before.
        for key in 0..3 {
            let answer = store.insert(first(key)).await.unwrap().value;
            assert!(matches!(answer, Inserted::Exists(_)), "{answer:?}");
        }
        hand.advance(TTL);
        assert!(store.insert(first(3)).await.is_err(), "expired records take room until reaped");
        begun(&store, 1).await;
        assert_eq!(store.reap(100).await.unwrap().value, 2);
        assert_eq!(store.len(), 1);
        begun(&store, 3).await;
        begun(&store, 4).await;
        assert!(store.insert(first(5)).await.is_err());
    }

    #[tokio::test]
    async fn a_panic_while_a_shard_is_locked_does_not_take_the_store_down() {
        let (store, hand) = store(10_000);
        let store = std::sync::Arc::new(store);
        let record = failed(&store, 1).await;
        for at in 0..SHARDS {
            let store = std::sync::Arc::clone(&store);
            let poisoner = std::thread::spawn(move || {
                let _locked = store.shard_at(at);
                panic!("as a caller's own code might");
            });
            assert!(poisoner.join().is_err());
        }
        assert!(store.shards.iter().all(|shard| shard.is_poisoned()));
        assert_eq!(store.load(record.id).await.unwrap().value.as_ref(), Some(&record));
        for key in 2..100 {
            failed(&store, key).await;
        }
        hand.advance(TTL);
        assert_eq!(store.reap(1_000).await.unwrap().value, 99);
        assert!(store.is_empty());
    }

    /// The orders beside the map hold exactly what the map does, after everything that moves them.
    #[tokio::test]
    async fn the_orders_of_a_shard_agree_with_its_records() {
        let (store, hand) = store(10_000);
        for key in 0..600 {
            match key % 3 {
                0 => drop(begun(&store, key).await),
                1 => drop(failed(&store, key).await),
                _ => {
                    let record = begun(&store, key).await;
                    let becomes = Becomes::Renewed { lease: TTL * 2, lease_max: TTL * 3 };
                    let write = Write { becomes, new_fence: false, what: None, ttl: None };
                    store.swap(record, write).await.unwrap();
                }
            }
        }
        hand.advance(TTL);
        for key in (1..300).step_by(3) {
            begun(&store, key).await;
        }
        assert_eq!(store.reap(50).await.unwrap().value, 50);
        assert_eq!(store.len(), 550);
        let mut records = 0;
        let mut leases = 0;
        let mut expiries = 0;
        for at in 0..SHARDS {
            let shard = store.shard_at(at);
            assert_eq!(shard.records.len(), shard.births.len());
            for (id, kept) in &shard.records {
                assert_eq!(shard.births.get(&kept.birth), Some(id));
                let due = Due::of(&kept.record);
                assert!(due.lease_until.is_none_or(|at| shard.leases.contains(&(at, kept.birth))));
                assert!(due.expires_at.is_none_or(|at| shard.expiries.contains(&(at, kept.birth))));
            }
            records += shard.records.len();
            leases += shard.leases.len();
            expiries += shard.expiries.len();
        }
        assert_eq!((records, leases, expiries), (550, 500, 50));
    }

    #[tokio::test]
    async fn pages_go_on_past_many_records_that_do_not_match() {
        let (store, _hand) = store(100_000);
        for key in 0..30_000 {
            begun(&store, key).await;
        }
        let wanted = first(29_999).key;
        let filter = Filter { key: Some(wanted), ..Filter::default() };
        let query = Query { filter, after: None, limit: PAGE_MAX };
        let page = store.scan(query).await.unwrap().value;
        assert_eq!(page.records.iter().map(|record| record.key).collect::<Vec<_>>(), [wanted]);
        assert_eq!(page.next, None);
    }

    #[tokio::test]
    async fn a_cursor_of_another_store_is_refused() {
        let (store, _hand) = store(10);
        for bytes in [vec![], vec![0], vec![SHARDS as u8, 0, 0, 0, 0, 0, 0, 0, 0], vec![0; 10]] {
            let after = Some(Cursor(bytes));
            let query = Query { filter: Filter::default(), after, limit: 1 };
            assert_eq!(store.scan(query).await.unwrap_err().kind(), StoreErrorKind::Broken);
        }
    }
}
