//! What does opening find, and what does it refuse?
//!
//! Opening reads what is there, decides where the log ends, and builds the index from the snapshot
//! and the log behind it. Every batch but the last must verify, for each was flushed before the next
//! was begun. The last may be torn by a crash; then nothing follows it, and it is cut off. Anything
//! else is damage: opening changes nothing and says where.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use retrysafe_core::machine::{Decision, Event, decide};
use retrysafe_core::time::Time;

use super::batch::Place;
use super::error::OpenError;
use super::files::{File, Folder};
use super::format::{
    BATCH_BYTES, EntryHeader, LogState, SECTOR, STORE_BYTES, SegmentHeader, StoreFile,
    StoreFileError, entries,
};
use super::index::{Entry, Index, Mark, SHARDS, prefix_of};
use super::log::{Batch, Log, Reserve};
use super::read::Shared;
use super::segments::{Segment, Segments, fill, name_of};
use super::snapshot::{self, Position};
use super::{Settings, lock};

pub(crate) const STORE: &str = "store";
const STORE_NEW: &str = "store.new";

/// How many segments a store begins with: one to write, one kept for settling on a full disk.
const SEGMENTS_FIRST: usize = 2;

/// The segments of a store as they are found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) store: StoreFile,
    pub(crate) files: Vec<Arc<dyn File>>,
    /// The segments that were ever in use, by generation.
    pub(crate) headers: BTreeMap<u64, (usize, SegmentHeader)>,
}

/// Where the log ends.
#[derive(Clone, Copy, Debug)]
struct End {
    generation: u64,
    offset: u32,
    state: LogState,
}

impl Log {
    /// Opens the store in a folder, or creates one if the folder is empty.
    pub(crate) fn open(folder: Arc<dyn Folder>, mut settings: Settings) -> Result<Self, OpenError> {
        let names = folder.names().map_err(OpenError::io("list", "."))?;
        if !names.iter().any(|name| name == STORE) {
            create(&*folder, &names, &settings)?;
        }
        for name in names.iter().filter(|name| name.ends_with(".new")) {
            folder.remove(name).map_err(OpenError::io("remove", name))?;
        }
        let found = find(&*folder)?;
        settings.segment_bytes = found.store.segment_bytes;
        let end = found.end()?;
        let (index, replayed) = found.index(&*folder, end)?;
        let clock = settings.clock.clone().starting_at_least(Time::from_ms(end.state.clock));
        let mut log = found.into_log(folder, settings, end, index, clock);
        log.snapshots.written(replayed);
        log.adopt()?;
        Ok(log)
    }

    /// Takes the store over: whatever was in progress has lost its owner. Durable before anybody is
    /// served, like the mark of the clock.
    fn adopt(&mut self) -> Result<(), OpenError> {
        for entry in self.shared.index.running(u64::MAX) {
            // A record that cannot be read stays an error for its own key.
            let Ok(record) = self.shared.read(&entry) else { continue };
            let now = self.shared.clock.now();
            let Decision::Write(write) = decide(Some(&record), &Event::OwnerGone, now) else {
                continue;
            };
            let unknown = write.onto(&record, now, self.sequence + 1);
            self.append(&unknown, record.version, Reserve::Usable)
                .map_err(|error| io::Error::new(io::ErrorKind::StorageFull, error.to_string()))
                .map_err(OpenError::io("write to", "the log"))?;
            self.shared.abandoned.fetch_add(1, Ordering::Relaxed);
            if self.is_batch_full() {
                self.flush_opening()?;
            }
        }
        self.batch.mark();
        self.flush_opening()?;
        self.keep_spares();
        Ok(())
    }

    fn flush_opening(&mut self) -> Result<(), OpenError> {
        let before = (self.generation, self.end);
        self.flush();
        match self.shared.failure.get() {
            None if (self.generation, self.end) != before => Ok(()),
            None => Err(OpenError::io("write to", "the log")(io::ErrorKind::StorageFull.into())),
            Some(why) => Err(OpenError::io("write to", "the log")(io::Error::other(why.clone()))),
        }
    }
}

/// Makes a store of an empty folder. The file `store` comes last: without it there is no store, and
/// with it there are segments.
fn create(folder: &dyn Folder, names: &[String], settings: &Settings) -> Result<(), OpenError> {
    for name in names {
        let is_segment = name.starts_with("segment-");
        if is_segment && !name.ends_with(".new") && !is_blank(folder, name)? {
            return Err(OpenError::damaged(STORE, 0, "the file is missing"));
        }
        if !is_segment && ![STORE_NEW, lock::NAME, "lost+found"].contains(&name.as_str()) {
            return Err(OpenError::NotAStore { found: name.clone() });
        }
    }
    for slot in 0..SEGMENTS_FIRST {
        fill(folder, slot, settings.segment_bytes).map_err(OpenError::io("fill", name_of(slot)))?;
    }
    let random = std::hash::RandomState::new().build_hasher().finish();
    let store = StoreFile { store: random, segment_bytes: settings.segment_bytes };
    let written = || {
        let file = folder.create(STORE_NEW)?;
        file.write(&store.encode(), 0)?;
        file.flush()?;
        folder.rename(STORE_NEW, STORE)?;
        folder.flush()
    };
    written().map_err(OpenError::io("create", STORE))
}

/// Whether a segment was never in use.
fn is_blank(folder: &dyn Folder, name: &str) -> Result<bool, OpenError> {
    let read = || {
        let file = folder.open(name)?;
        let mut sector = vec![0; SECTOR.min(file.bytes()? as usize)];
        file.read(&mut sector, 0)?;
        Ok(sector.iter().all(|byte| *byte == 0))
    };
    read().map_err(OpenError::io("read", name))
}

/// Reads the file `store`.
pub(crate) fn read_store(folder: &dyn Folder) -> Result<StoreFile, OpenError> {
    let read = || {
        let file = folder.open(STORE)?;
        let mut bytes = vec![0; (file.bytes()? as usize).min(STORE_BYTES + 1)];
        file.read(&mut bytes, 0)?;
        Ok(bytes)
    };
    let bytes = read().map_err(OpenError::io("read", STORE))?;
    StoreFile::decode(&bytes).map_err(|error| match error {
        StoreFileError::NotOurs => OpenError::NotAStore { found: STORE.into() },
        StoreFileError::Version(found) => OpenError::Format { found },
        StoreFileError::Damaged => OpenError::damaged(STORE, 0, "the checksum does not fit"),
    })
}

/// Finds the segments and reads their headers.
fn find(folder: &dyn Folder) -> Result<Found, OpenError> {
    let store = read_store(folder)?;
    let names = folder.names().map_err(OpenError::io("list", "."))?;
    let is_segment = |name: &&String| name.starts_with("segment-") && !name.ends_with(".new");
    let count = names.iter().filter(is_segment).count().max(SEGMENTS_FIRST);
    let mut found = Found { store, files: Vec::with_capacity(count), headers: BTreeMap::new() };
    for slot in 0..count {
        let name = name_of(slot);
        if !names.contains(&name) {
            return Err(OpenError::damaged(name, 0, "the segment is missing"));
        }
        let (file, sector) = read_first(folder, &name, store.segment_bytes)?;
        found.files.push(file);
        if sector.iter().all(|byte| *byte == 0) {
            continue;
        }
        let header = SegmentHeader::decode(&sector)
            .ok_or_else(|| OpenError::damaged(&*name, 0, "the segment's header does not verify"))?;
        if header.store != store.store {
            return Err(OpenError::damaged(name, 0, "the segment belongs to another store"));
        }
        if found.headers.insert(header.generation, (slot, header)).is_some() {
            return Err(OpenError::damaged(name, 0, "another segment has the same generation"));
        }
    }
    Ok(found)
}

fn read_first(
    folder: &dyn Folder,
    name: &str,
    segment_bytes: u32,
) -> Result<(Arc<dyn File>, Vec<u8>), OpenError> {
    let file = folder.open(name).map_err(OpenError::io("open", name))?;
    let bytes = file.bytes().map_err(OpenError::io("read", name))?;
    if bytes != u64::from(segment_bytes) {
        return Err(OpenError::damaged(name, bytes, "the segment is not of its full length"));
    }
    let mut sector = vec![0; SECTOR];
    file.read(&mut sector, 0).map_err(OpenError::io("read", name))?;
    Ok((file, sector))
}

impl Found {
    /// A segment that was in use, to be read.
    fn place(&self, generation: u64) -> Result<(usize, Place<'_>), OpenError> {
        let missing = || OpenError::damaged("the log", 0, "a segment of the log is missing");
        let (slot, _) = self.headers.get(&generation).ok_or_else(missing)?;
        let file = self.files.get(*slot).ok_or_else(missing)?;
        let StoreFile { store, segment_bytes } = self.store;
        Ok((*slot, Place { file: &**file, store, generation, bytes: segment_bytes }))
    }

    /// Finds where the log ends.
    fn end(&self) -> Result<End, OpenError> {
        let Some((generation, (slot, header))) = self.headers.last_key_value() else {
            // Nothing was ever written: the first batch will turn to the first segment.
            let state =
                LogState { oldest: 1, sequence: 0, clock: 0, slots: 0, reaped: Mark::default() };
            return Ok(End { generation: 0, offset: self.store.segment_bytes, state });
        };
        let name = name_of(*slot);
        let (_, place) = self.place(*generation)?;
        let mut end = End { generation: *generation, offset: SECTOR as u32, state: header.state };
        let mut body = Vec::new();
        while let Some(batch) =
            place.batch(end.offset, &mut body).map_err(OpenError::io("read", &name))?
        {
            (end.offset, end.state) = (batch.end(), batch.state);
        }
        // The sector at the end may hold the header of the batch that was torn; what comes after
        // it may not.
        let after = end.offset.saturating_add(SECTOR as u32);
        if place.next_header(after).map_err(OpenError::io("read", &name))?.is_some() {
            let what = "a batch that was flushed does not verify";
            return Err(OpenError::damaged(name, u64::from(end.offset), what));
        }
        if end.state.slots as usize > self.files.len() {
            let name = name_of(self.files.len());
            return Err(OpenError::damaged(name, 0, "the segment is missing"));
        }
        Ok(end)
    }

    /// Builds the index, and says how many bytes of log were replayed for it.
    fn index(&self, folder: &dyn Folder, end: End) -> Result<(Index, u64), OpenError> {
        let oldest = end.state.oldest;
        let (index, from) = match self.snapshot(folder, end)? {
            Some((index, position)) => (index, position),
            None => {
                let start =
                    Position { generation: oldest, offset: SECTOR as u32, reaped: Mark::default() };
                (Index::new(), start)
            }
        };
        let (mut replayed, mut reaped) = (0, from.reaped);
        for generation in oldest.max(1)..=end.generation {
            let place = self.place(generation)?;
            if generation < from.generation {
                continue;
            }
            let is_first = generation == from.generation;
            let start = if is_first { from.offset } else { SECTOR as u32 };
            let stop = match self.headers.get(&(generation + 1)) {
                Some((_, next)) => next.previous_end,
                None => end.offset,
            };
            self.replay(&index, place, start..stop, &mut reaped)?;
            replayed += u64::from(stop.saturating_sub(start));
        }
        Ok((index, replayed))
    }

    fn snapshot(
        &self,
        folder: &dyn Folder,
        end: End,
    ) -> Result<Option<(Index, Position)>, OpenError> {
        let Ok(file) = folder.open(snapshot::NAME) else { return Ok(None) };
        let slot_of = |generation: u64| {
            let (slot, _) =
                self.headers.get(&generation).filter(|_| generation >= end.state.oldest)?;
            Some(*slot as u16)
        };
        let loaded = snapshot::load(&*file, self.store.store, slot_of)
            .map_err(OpenError::io("read", snapshot::NAME))?;
        if let Some((_, position)) = &loaded
            && (position.generation, position.offset) > (end.generation, end.offset)
        {
            let what = "the log ends before the position of the snapshot";
            return Err(OpenError::damaged(snapshot::NAME, 0, what));
        }
        if loaded.is_none() {
            tracing::warn!("the snapshot of the disk store's index is damaged; reading the log");
        }
        Ok(loaded)
    }

    /// Replays a segment's batches into the index.
    fn replay(
        &self,
        index: &Index,
        (slot, place): (usize, Place<'_>),
        range: Range<u32>,
        reaped: &mut Mark,
    ) -> Result<(), OpenError> {
        let Range { start, end: stop } = range;
        let name = name_of(slot);
        let damaged = |at: u32| {
            let what = "a batch that was flushed does not verify";
            OpenError::damaged(&*name, u64::from(at), what)
        };
        let mut body = Vec::new();
        let mut at = start;
        while at < stop {
            let batch = place
                .batch(at, &mut body)
                .map_err(OpenError::io("read", &name))?
                .filter(|batch| batch.end() <= stop)
                .ok_or_else(|| damaged(at))?;
            // What was reaped with this batch was in the index before its entries were.
            if batch.state.reaped != *reaped {
                *reaped = batch.state.reaped;
                index.reap(*reaped, usize::MAX, drop);
            }
            for found in entries(&body) {
                let (header, record) = found.ok_or_else(|| damaged(at))?;
                let stands = at + (BATCH_BYTES + record) as u32;
                self.replay_entry(index, &header, (slot as u16, stands));
            }
            at = batch.end();
        }
        Ok(())
    }

    fn replay_entry(&self, index: &Index, header: &EntryHeader, (slot, at): (u16, u32)) {
        let EntryHeader { id, version, previous, due, standing, length } = *header;
        let prefix = prefix_of(&id);
        let entry = Entry::new(prefix, version, due, standing, (slot, at, length));
        if previous != 0 && index.get(prefix, previous).is_some() {
            index.put(entry, previous);
            return;
        }
        // What it replaces was reaped or is not known here. Whatever else begins with the same
        // bytes is the same id or, hardly ever, another one.
        let mut n = 0;
        while let Some(other) = index.nth(prefix, n) {
            if self.id_of(&other).is_some_and(|other| other == id) {
                // A snapshot may be ahead of its position.
                if other.version <= version {
                    index.put(entry, other.version);
                }
                return;
            }
            n += 1;
        }
        index.put(entry, 0);
    }

    fn id_of(&self, entry: &Entry) -> Option<retrysafe_core::scope::Id> {
        let file = self.files.get(usize::from(entry.slot))?;
        let mut bytes = [0; super::format::ENTRY_BYTES];
        let offset = u64::from(entry.offset).checked_sub(bytes.len() as u64)?;
        file.read(&mut bytes, offset).ok()?;
        EntryHeader::decode(&bytes).map(|header| header.id)
    }

    fn into_log(
        self,
        folder: Arc<dyn Folder>,
        settings: Settings,
        end: End,
        index: Index,
        clock: crate::stores::clock::Clock,
    ) -> Log {
        let mut generations = vec![0; self.files.len()];
        for (generation, (slot, _)) in &self.headers {
            if let Some(place) = generations.get_mut(*slot) {
                *place = *generation;
            }
        }
        let with_generation = |(file, generation): (&Arc<dyn File>, &u64)| {
            Segment::new(Arc::clone(file), *generation)
        };
        let all = self.files.iter().zip(&generations).map(with_generation).collect();
        let mut segments = Segments::opened(all, end.state.oldest);
        for entry in (0..SHARDS).flat_map(|number| index.shard(number)) {
            segments.gained(entry.slot, entry.length);
        }
        let shared = Shared {
            index,
            clock,
            files: RwLock::new(self.files),
            generations: Mutex::new(generations),
            failure: OnceLock::new(),
            abandoned: AtomicUsize::new(0),
        };
        Log {
            shared: Arc::new(shared),
            folder,
            settings,
            store: self.store.store,
            segments,
            generation: end.generation,
            end: end.offset,
            sequence: end.state.sequence,
            reaped: end.state.reaped,
            batch: Batch::new(),
            reaps: Default::default(),
            cleaning: None,
            snapshots: Default::default(),
            copied: 0,
        }
    }
}
