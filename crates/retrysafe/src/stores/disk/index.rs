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

/// How many handles of the present second are looked at for exactness. A bucket with more waits
/// until its second is over, so that a reap never walks through records that are not due.
const PRESENT_MAX: usize = 4_096;

/// No entry.
const NONE: u32 = u32::MAX;

/// What the index knows of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The first eight bytes of its id, as a number in id order.
    pub(crate) prefix: u64,
    /// Its version; zero marks an entry that is free.
    pub(crate) version: u64,
    /// When its lease or retention ends, in milliseconds.
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
pub(crate) struct Index {
    shards: Box<[RwLock<Shard>]>,
    order: Mutex<Order>,
    records: AtomicUsize,
}

#[derive(Debug)]
struct Shard {
    table: HashTable<u32>,
    entries: Vec<Entry>,
    free: u32,
}

/// Which records are due when. A handle is a shard and a place in it; it is a record's own for as
/// long as the record is in the index.
#[derive(Debug, Default)]
struct Order {
    running: BTreeSet<(u64, u32)>,
    unknown: BTreeSet<u32>,
    /// Handles of settled records by the second in which they expire. A record's handle lies in
    /// one bucket at the latest known expiry or earlier; when its bucket comes up too early, it is
    /// moved on. So a record that is settled again and again still costs four bytes here.
    expiring: BTreeMap<u32, Vec<u32>>,
}

/// The first eight bytes of an id.
pub(crate) fn prefix_of(id: &Id) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *id.as_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The bucket in which something due then lies. Zero is no bucket.
fn bucket_of(due: u64) -> u32 {
    u32::try_from(due / 1_000 + 1).unwrap_or(u32::MAX)
}

/// Ids are digests, so their bytes are the hash. The first byte is the shard's own number; turned,
/// it lies where the table does not look.
fn hash_of(prefix: u64) -> u64 {
    prefix.rotate_left(32)
}

fn shard_of(prefix: u64) -> usize {
    (prefix >> 56) as usize
}

impl Entry {
    pub(crate) fn new(
        prefix: u64,
        version: u64,
        due: u64,
        standing: Standing,
        (slot, offset, length): (u16, u32, u32),
    ) -> Self {
        Self { prefix, version, due, offset, length, queued: 0, slot, standing }
    }

    /// Whether both stand at the same place as the same version.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.version, self.slot, self.offset) == (other.version, other.slot, other.offset)
    }
}

impl Index {
    pub(crate) fn new() -> Self {
        let shard =
            || RwLock::new(Shard { table: HashTable::new(), entries: Vec::new(), free: NONE });
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
    pub(crate) fn nth(&self, prefix: u64, n: usize) -> Option<Entry> {
        let shard = self.read(shard_of(prefix))?;
        shard.with_prefix(prefix).nth(n).map(|(_, entry)| *entry)
    }

    /// The entry whose id begins so and that is of this version. Versions are never given out
    /// twice, so this is one record beyond doubt.
    pub(crate) fn get(&self, prefix: u64, version: u64) -> Option<Entry> {
        let shard = self.read(shard_of(prefix))?;
        shard.with_prefix(prefix).map(|(_, entry)| *entry).find(|e| e.version == version)
    }

    /// Puts an entry in place of the one of version `replaces`, which is returned, or beside it if
    /// there is none.
    pub(crate) fn put(&self, mut entry: Entry, replaces: u64) -> Option<Entry> {
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
            let Shard { table, entries, .. } = &mut *shard;
            table.insert_unique(hash_of(entry.prefix), at, |at| {
                hash_of(entries.get(*at as usize).map_or(0, |e| e.prefix))
            });
            self.records.fetch_add(1, Ordering::Relaxed);
        }
        found.map(|(_, old)| old)
    }

    /// Takes out at most `limit` settled records that are due, and shows each.
    pub(crate) fn reap(&self, now: u64, limit: usize, mut taken: impl FnMut(Entry)) -> usize {
        let mut count = 0;
        let mut later = Vec::new();
        while count < limit {
            let Some((bucket, handle)) = self.order().next_due(now) else { break };
            match self.judge(bucket, handle, now) {
                Due::Taken(entry) => {
                    count += 1;
                    taken(entry);
                }
                Due::Later(bucket) => later.push((bucket, handle)),
                Due::Nothing => {}
            }
        }
        let mut order = self.order();
        for (bucket, handle) in later {
            order.expiring.entry(bucket).or_default().push(handle);
        }
        count
    }

    /// Decides about a handle whose bucket has come up.
    fn judge(&self, bucket: u32, handle: u32, now: u64) -> Due {
        let Some(mut shard) = self.write((handle >> 24) as usize) else { return Due::Nothing };
        let at = handle & 0x00ff_ffff;
        let Some(entry) = shard.entries.get_mut(at as usize) else { return Due::Nothing };
        if entry.version == 0 || entry.queued != bucket {
            return Due::Nothing;
        }
        match entry.standing {
            // It comes back here when it is settled.
            Standing::InProgress | Standing::Unknown => {
                entry.queued = 0;
                Due::Nothing
            }
            Standing::Completed | Standing::FailedRetryable if entry.due > now => {
                entry.queued = bucket_of(entry.due);
                Due::Later(entry.queued)
            }
            Standing::Completed | Standing::FailedRetryable => {
                self.records.fetch_sub(1, Ordering::Relaxed);
                shard.vacate(at).map_or(Due::Nothing, Due::Taken)
            }
        }
    }

    /// Entries in progress whose lease ends at `until` or before, in no order.
    pub(crate) fn running(&self, until: u64) -> Vec<Entry> {
        let handles: Vec<u32> =
            self.order().running.range(..=(until, NONE)).map(|(_, handle)| *handle).collect();
        handles.into_iter().filter_map(|handle| self.at(handle)).collect()
    }

    /// Unknown entries, in no order.
    pub(crate) fn unknown(&self) -> Vec<Entry> {
        let handles: Vec<u32> = self.order().unknown.iter().copied().collect();
        handles.into_iter().filter_map(|handle| self.at(handle)).collect()
    }

    /// The entries of one shard, in no order. Shard by shard is id order.
    pub(crate) fn shard(&self, number: usize) -> Vec<Entry> {
        let Some(shard) = self.read(number) else { return Vec::new() };
        shard.entries.iter().filter(|entry| entry.version != 0).copied().collect()
    }

    fn at(&self, handle: u32) -> Option<Entry> {
        let shard = self.read((handle >> 24) as usize)?;
        let entry = shard.entries.get((handle & 0x00ff_ffff) as usize)?;
        (entry.version != 0).then_some(*entry)
    }

    // A panic while a lock is held cannot leave an entry half written: entries are copied whole.
    fn read(&self, number: usize) -> Option<RwLockReadGuard<'_, Shard>> {
        Some(self.shards.get(number)?.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, number: usize) -> Option<RwLockWriteGuard<'_, Shard>> {
        Some(self.shards.get(number)?.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What becomes of a handle whose bucket has come up.
enum Due {
    Taken(Entry),
    Later(u32),
    Nothing,
}

impl Shard {
    fn with_prefix(&self, prefix: u64) -> impl Iterator<Item = (u32, &Entry)> {
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
        self.entries.push(Entry::new(0, 0, 0, Standing::Unknown, (0, NONE, 0)));
        (self.entries.len() - 1) as u32
    }

    fn vacate(&mut self, at: u32) -> Option<Entry> {
        let free = self.free;
        let entry = self.entries.get_mut(at as usize)?;
        let taken = *entry;
        *entry = Entry::new(0, 0, 0, Standing::Unknown, (0, free, 0));
        self.free = at;
        let hash = hash_of(taken.prefix);
        if let Ok(place) = self.table.find_entry(hash, |found| *found == at) {
            place.remove();
        }
        Some(taken)
    }
}

impl Order {
    fn forget(&mut self, old: &Entry, handle: u32) {
        match old.standing {
            Standing::InProgress => {
                self.running.remove(&(old.due, handle));
            }
            Standing::Unknown => {
                self.unknown.remove(&handle);
            }
            // Its handle stays in its bucket and is judged when that comes up.
            Standing::Completed | Standing::FailedRetryable => {}
        }
    }

    fn remember(&mut self, new: &mut Entry, handle: u32) {
        match new.standing {
            Standing::InProgress => {
                self.running.insert((new.due, handle));
            }
            Standing::Unknown => {
                self.unknown.insert(handle);
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

    /// Takes a handle out of a bucket that has come up.
    fn next_due(&mut self, now: u64) -> Option<(u32, u32)> {
        let mut first = self.expiring.first_entry()?;
        let bucket = *first.key();
        let past = bucket < bucket_of(now);
        let present = bucket == bucket_of(now) && first.get().len() <= PRESENT_MAX;
        if !past && !present {
            return None;
        }
        let handle = first.get_mut().pop();
        if first.get().is_empty() {
            first.remove();
        }
        handle.map(|handle| (bucket, handle))
    }
}
