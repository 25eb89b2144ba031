//! Where does each record stand, and which ones are due?
//!
//! The index is in memory: 40 bytes for each record, five to eleven for the table that finds it,
//! four or a little more for the order in which retentions end. It holds the first eight bytes of a
//! record's id, not all 32: whoever finds an entry reads the record and compares the rest, so two
//! ids that begin alike are two entries and cost one more read.
//!
//! Only the writer changes the index, and only after a flush: what it shows is durable. Readers lock
//! one shard for a moment. Sweeping and reaping follow the orders kept here and never look at a
//! record that is not due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use hashbrown::HashTable;
use retrysafe_core::record::Standing;
use retrysafe_core::scope::Id;

/// How many shards. A table that grows is rehashed whole; with this many, ten million records make
/// that a matter of milliseconds. A shard is the first byte of an id, so shards are in id order.
pub(crate) const SHARDS: usize = 256;

/// The length of a bucket of the expiry order, in milliseconds. A bucket is put in exact order when
/// it comes up; at this length that is a matter of milliseconds even for a busy store.
const BUCKET_MS: u64 = 256;

/// Where buckets begin to count: 2020, so that their numbers fit until 2054. What is due earlier
/// or later shares the first or last bucket, which is slower and as right.
const BUCKETS_FROM_MS: u64 = 1_577_836_800_000;

/// No entry.
const NONE: u32 = u32::MAX;

/// What the index knows of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    /// The first eight bytes of its id, as a number in id order.
    pub(crate) prefix: u64,
    /// Its version; zero marks an entry that is free.
    pub(crate) version: u64,
    /// When its lease or retention ends, or since when it is unknown, in milliseconds.
    pub(crate) due: u64,
    /// Where in the segment its bytes begin; in a free entry, the next free one.
    pub(crate) offset: u32,
    /// How many bytes it has.
    pub(crate) length: u32,
    /// In which bucket of the expiry order its handle lies; zero if in none.
    queued: u32,
    /// In which segment.
    pub(crate) slot: u16,
    pub(crate) standing: Standing,
}

/// All records.
#[derive(Debug)]
pub(crate) struct RecordIndex {
    shards: Box<[RwLock<IndexShard>]>,
    order: Mutex<DueOrder>,
    records: AtomicUsize,
}

#[derive(Debug)]
struct IndexShard {
    table: HashTable<u32>,
    entries: Vec<IndexEntry>,
    free: u32,
}

/// Which records are due when. A handle is a shard and a place in it; it is a record's own for as
/// long as the record is in the index.
#[derive(Debug, Default)]
struct DueOrder {
    running: BTreeSet<(u64, u32)>,
    /// Since when, and the handle.
    unknown: BTreeSet<(u64, u32)>,
    /// Handles of settled records by when they expire, roughly. A record's handle lies in one
    /// bucket, at its expiry or earlier; when its bucket comes up too early, it is moved on. So a
    /// record that is settled again and again still costs four bytes here.
    expiring: BTreeMap<u32, Vec<u32>>,
    /// The buckets that have come up, in exact order, as they were then.
    ready: BTreeSet<(ReapMark, u32)>,
    ready_bucket: u32,
}

/// When a settled record expires, and its version: the order in which records are reaped. Because
/// the order is exact, "everything up to this mark" is all that the log needs to say of a reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct ReapMark {
    pub(crate) due: u64,
    pub(crate) version: u64,
}

/// The first eight bytes of an id.
pub(crate) fn prefix_of(id: &Id) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *id.as_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The bucket in which something due then lies. Zero is no bucket.
fn bucket_of(due: u64) -> u32 {
    let number = due.saturating_sub(BUCKETS_FROM_MS) / BUCKET_MS + 1;
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Ids are digests, so their bytes are the hash. The first byte is the shard's own number; turned,
/// it lies where the table does not look.
fn hash_of(prefix: u64) -> u64 {
    prefix.rotate_left(32)
}

fn shard_of(prefix: u64) -> usize {
    (prefix >> 56) as usize
}

impl IndexEntry {
    pub(crate) fn new(
        prefix: u64,
        version: u64,
        due: u64,
        standing: Standing,
        (slot, offset, length): (u16, u32, u32),
    ) -> Self {
        Self { prefix, version, due, offset, length, queued: 0, slot, standing }
    }

    fn is_settled(&self) -> bool {
        match self.standing {
            Standing::Completed | Standing::FailedRetryable => true,
            Standing::InProgress | Standing::Unknown => false,
        }
    }

    /// Whether both stand at the same place as the same version.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.version, self.slot, self.offset) == (other.version, other.slot, other.offset)
    }
}

impl RecordIndex {
    pub(crate) fn new() -> Self {
        let shard =
            || RwLock::new(IndexShard { table: HashTable::new(), entries: Vec::new(), free: NONE });
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
            order: Mutex::default(),
            records: AtomicUsize::new(0),
        }
    }

    /// How many records there are.
    pub(crate) fn len(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    /// The how-manieth entry whose id begins so. There is hardly ever more than one.
    pub(crate) fn nth(&self, prefix: u64, n: usize) -> Option<IndexEntry> {
        let shard = self.read(shard_of(prefix))?;
        shard.with_prefix(prefix).nth(n).map(|(_, entry)| *entry)
    }

    /// The entry whose id begins so and that is of this version. Versions are never given out
    /// twice, so this is one record beyond doubt.
    pub(crate) fn get(&self, prefix: u64, version: u64) -> Option<IndexEntry> {
        let shard = self.read(shard_of(prefix))?;
        shard.with_prefix(prefix).map(|(_, entry)| *entry).find(|e| e.version == version)
    }

    /// Puts an entry in place of the one of version `replaces`, which is returned, or beside it if
    /// there is none.
    pub(crate) fn put(&self, mut entry: IndexEntry, replaces: u64) -> Option<IndexEntry> {
        let number = shard_of(entry.prefix);
        let mut shard = self.write(number)?;
        let found = shard
            .with_prefix(entry.prefix)
            .find(|(_, old)| old.version == replaces)
            .map(|(at, old)| (at, *old));
        let at = match found {
            Some((at, _)) => at,
            None => shard.vacancy(),
        };
        let handle = (number as u32) << 24 | at;
        let mut order = self.order();
        if let Some((_, old)) = found {
            order.forget(&old, handle);
            entry.queued = old.queued;
        }
        order.remember(&mut entry, handle);
        drop(order);
        if let Some(place) = shard.entries.get_mut(at as usize) {
            *place = entry;
        }
        if found.is_none() {
            let IndexShard { table, entries, .. } = &mut *shard;
            table.insert_unique(hash_of(entry.prefix), at, |at| {
                hash_of(entries.get(*at as usize).map_or(0, |e| e.prefix))
            });
            self.records.fetch_add(1, Ordering::Relaxed);
        }
        found.map(|(_, old)| old)
    }

    /// Takes out at most `limit` settled records up to a mark, in order, and shows each. Says how
    /// many, and the mark of the last.
    pub(crate) fn reap(
        &self,
        until: ReapMark,
        limit: usize,
        mut taken: impl FnMut(IndexEntry),
    ) -> (usize, Option<ReapMark>) {
        let mut count = 0;
        let mut last = None;
        while count < limit {
            let mut order = self.order();
            self.ready(&mut order, until);
            let Some((mark, handle)) = order.ready.first().copied() else { break };
            if mark > until {
                break;
            }
            order.ready.pop_first();
            drop(order);
            let Some(mut shard) = self.write((handle >> 24) as usize) else { break };
            let at = handle & 0x00ff_ffff;
            // Another version has a place of its own in the order.
            let is_it = shard
                .entries
                .get(at as usize)
                .is_some_and(|e| e.version == mark.version && e.is_settled() && e.due == mark.due);
            if is_it && let Some(entry) = shard.vacate(at) {
                self.records.fetch_sub(1, Ordering::Relaxed);
                (count, last) = (count + 1, Some(mark));
                taken(entry);
            }
        }
        (count, last)
    }

    /// Puts the next bucket that has come up in exact order, and all that were added before it.
    fn ready(&self, order: &mut DueOrder, until: ReapMark) {
        while let Some(first) = order.expiring.first_entry() {
            let bucket = *first.key();
            let is_next = order.ready.is_empty() || bucket <= order.ready_bucket;
            if !is_next || bucket > bucket_of(until.due) {
                return;
            }
            let handles = first.remove();
            order.ready_bucket = order.ready_bucket.max(bucket);
            for handle in handles {
                let Some(mut shard) = self.write((handle >> 24) as usize) else { continue };
                let Some(entry) = shard.entries.get_mut((handle & 0x00ff_ffff) as usize) else {
                    continue;
                };
                if entry.version == 0 || entry.queued != bucket {
                    continue;
                }
                let later = bucket_of(entry.due);
                if !entry.is_settled() {
                    // It comes back here when it is settled.
                    entry.queued = 0;
                } else if later > bucket {
                    entry.queued = later;
                    order.expiring.entry(later).or_default().push(handle);
                } else {
                    entry.queued = 0;
                    let mark = ReapMark { due: entry.due, version: entry.version };
                    order.ready.insert((mark, handle));
                }
            }
        }
    }

    /// Entries in progress whose lease ends at `until` or before, in no order.
    pub(crate) fn running(&self, until: u64) -> Vec<IndexEntry> {
        let handles: Vec<u32> =
            self.order().running.range(..=(until, NONE)).map(|(_, handle)| *handle).collect();
        handles.into_iter().filter_map(|handle| self.at(handle)).collect()
    }

    /// Unknown entries, in no order.
    pub(crate) fn unknown(&self) -> Vec<IndexEntry> {
        let handles: Vec<u32> = self.order().unknown.iter().map(|(_, handle)| *handle).collect();
        handles.into_iter().filter_map(|handle| self.at(handle)).collect()
    }

    /// How many entries are unknown, and since when the oldest of them is.
    pub(crate) fn count_unknown(&self) -> (usize, Option<u64>) {
        let order = self.order();
        (order.unknown.len(), order.unknown.first().map(|(since, _)| *since))
    }

    /// The entries of one shard, in no order. Shard by shard is id order.
    pub(crate) fn shard(&self, number: usize) -> Vec<IndexEntry> {
        self.shard_where(number, |_| true)
    }

    /// The entries of one shard that fit.
    pub(crate) fn shard_where(
        &self,
        number: usize,
        fits: impl Fn(&IndexEntry) -> bool,
    ) -> Vec<IndexEntry> {
        let Some(shard) = self.read(number) else { return Vec::new() };
        let used = shard.entries.iter().filter(|entry| entry.version != 0);
        used.filter(|entry| fits(entry)).copied().collect()
    }

    fn at(&self, handle: u32) -> Option<IndexEntry> {
        let shard = self.read((handle >> 24) as usize)?;
        let entry = shard.entries.get((handle & 0x00ff_ffff) as usize)?;
        (entry.version != 0).then_some(*entry)
    }

    // A panic while a lock is held cannot leave an entry half written: entries are copied whole.
    fn read(&self, number: usize) -> Option<RwLockReadGuard<'_, IndexShard>> {
        Some(self.shards.get(number)?.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, number: usize) -> Option<RwLockWriteGuard<'_, IndexShard>> {
        Some(self.shards.get(number)?.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn order(&self) -> MutexGuard<'_, DueOrder> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IndexShard {
    fn with_prefix(&self, prefix: u64) -> impl Iterator<Item = (u32, &IndexEntry)> {
        self.table
            .iter_hash(hash_of(prefix))
            .filter_map(|at| Some((*at, self.entries.get(*at as usize)?)))
            .filter(move |(_, entry)| entry.prefix == prefix)
    }

    /// A place for another entry.
    fn vacancy(&mut self) -> u32 {
        if let Some(entry) = self.entries.get(self.free as usize) {
            let at = self.free;
            self.free = entry.offset;
            return at;
        }
        if self.entries.len() == self.entries.capacity() {
            // An eighth at a time: doubling would leave half of the memory unused.
            self.entries.reserve_exact((self.entries.len() / 8).max(16));
        }
        self.entries.push(IndexEntry::new(0, 0, 0, Standing::Unknown, (0, NONE, 0)));
        (self.entries.len() - 1) as u32
    }

    fn vacate(&mut self, at: u32) -> Option<IndexEntry> {
        let free = self.free;
        let entry = self.entries.get_mut(at as usize)?;
        let taken = *entry;
        *entry = IndexEntry::new(0, 0, 0, Standing::Unknown, (0, free, 0));
        self.free = at;
        let hash = hash_of(taken.prefix);
        if let Ok(place) = self.table.find_entry(hash, |found| *found == at) {
            place.remove();
        }
        Some(taken)
    }
}

impl DueOrder {
    fn forget(&mut self, old: &IndexEntry, handle: u32) {
        match old.standing {
            Standing::InProgress => {
                self.running.remove(&(old.due, handle));
            }
            Standing::Unknown => {
                self.unknown.remove(&(old.due, handle));
            }
            // Its handle stays in its bucket and is judged when that comes up.
            Standing::Completed | Standing::FailedRetryable => {}
        }
    }

    fn remember(&mut self, new: &mut IndexEntry, handle: u32) {
        match new.standing {
            Standing::InProgress => {
                self.running.insert((new.due, handle));
            }
            Standing::Unknown => {
                self.unknown.insert((new.due, handle));
            }
            Standing::Completed | Standing::FailedRetryable => {
                let bucket = bucket_of(new.due);
                if new.queued == 0 || bucket < new.queued {
                    new.queued = bucket;
                    self.expiring.entry(bucket).or_default().push(handle);
                }
            }
        }
    }
}
