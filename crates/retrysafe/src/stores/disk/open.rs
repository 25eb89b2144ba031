//! How is a store opened?
//!
//! Opening reads what is there, builds the index from the snapshot and the log behind it, and takes
//! the store over. If anything acknowledged is damaged it changes nothing and says where.
//!
//! What was read may be no more than the page cache's: the last owner may have been killed between a
//! write and its flush, or its flush may have failed and left the pages clean. So whatever can be in
//! doubt is written anew and flushed before anything is built on it. That is the last batch alone,
//! for every other was flushed before the next was begun, or the header of a segment without one. The
//! last batch is not overwritten, for it may hold something acknowledged: the first batch of the new
//! owner holds it once more.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant};

use retrysafe_core::machine::{Decision, OwnerGone, decide};
use retrysafe_core::scope::Id;
use retrysafe_core::time::Time;

use super::StoreSettings;
use super::append::{LogAppender, ReserveUse};
use super::create::{STORE, create, remove_unfinished};
use super::error::OpenError;
use super::files::{StoreFile, StoreFolder};
use super::format::{BATCH_BYTES, ENTRY_BYTES, EntryHeader, EntryPlace, PAGE};
use super::index::{IndexEntry, ReapMark, RecordIndex, SHARDS, prefix_of};
use super::ops::LogWriter;
use super::read::LogReader;
use super::read_cache::ReadCache;
use super::recover::{FoundStore, LogEnd, LogVisitor, check_finished, find};
use super::segments::{RingSegment, SegmentRing};
use super::snapshot_taker::SnapshotTaker;
use super::spares::SpareFiller;
use super::tail::LogTail;
use crate::stores::watchers::Watchers;

/// How far the wall clock may be ahead of the store's mark. Longer than a store is out of use as a
/// rule; a clock that is further ahead is rather wrong, and would expire everything.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Opens the store in a folder, or creates one if the folder is empty.
pub(crate) fn open(
    folder: Arc<dyn StoreFolder>,
    settings: StoreSettings,
) -> Result<LogWriter, OpenError> {
    check_finished(&*folder)?;
    open_unfinished(folder, settings)
}

/// The same, also where not every key is in the folder yet: only for whoever puts them there.
pub(crate) fn open_unfinished(
    folder: Arc<dyn StoreFolder>,
    mut settings: StoreSettings,
) -> Result<LogWriter, OpenError> {
    let names = folder.names().map_err(OpenError::io("list", "."))?;
    if !names.iter().any(|name| name == STORE) {
        create(&*folder, &names, &settings)?;
    }
    let found = find(&*folder)?;
    settings.segment_bytes = found.store.segment_bytes;
    let end = found.end()?;
    check_clock(&settings, Time::from_ms(end.state.clock))?;
    let mut builder = IndexBuilder { found: &found, index: RecordIndex::new() };
    let replayed = found.read_log(&*folder, &end, &mut builder)?;
    let index = builder.index;
    // Everything is read and sound; from here on the folder may be changed.
    let names = folder.names().map_err(OpenError::io("list", "."))?;
    remove_unfinished(&*folder, &names)?;
    folder.close_to_others().map_err(OpenError::io("protect", "."))?;
    let spares = SpareFiller::new(Arc::clone(&folder), settings.segment_bytes, settings.inline);
    let tail = tail_of(found, folder, &settings, &end, index);
    let mut appender = LogAppender::new(tail, spares, replayed);
    take_over(&mut appender, &end)?;
    Ok(LogWriter::new(appender, SnapshotTaker::new(settings.inline)))
}

/// Takes the store over: makes durable what was read, and makes unknown what was in progress, for
/// that has lost its owner. Durable before anybody is served, like the mark of the clock.
fn take_over(log: &mut LogAppender, end: &LogEnd) -> Result<(), OpenError> {
    let folder = &log.reader.folder;
    let flushed = folder.flush().and_then(|()| folder.flush_parents());
    flushed.map_err(OpenError::io("flush", "."))?;
    renew_header(&log.tail, end)?;
    flush_segments(&log.tail)?;
    renew_last(log, end)?;
    for entry in log.reader.index.running(u64::MAX) {
        // A record that cannot be read stays an error for its own key.
        let Ok(record) = log.reader.read(&entry) else { continue };
        let now = log.reader.clock.now();
        let Some(Decision::Write(write)) = decide(Some(&record), &OwnerGone, now) else {
            continue;
        };
        let unknown = write.onto(&record, now, log.tail.sequence + 1);
        log.append(&unknown, record.version, ReserveUse::Usable).map_err(no_room)?;
        log.reader.abandoned.fetch_add(1, Ordering::Relaxed);
        if log.is_batch_full() {
            flush_opening(log)?;
        }
    }
    log.batch.mark();
    flush_opening(log)?;
    log.keep_spares();
    Ok(())
}

/// Writes the newest segment's header anew if it is in doubt. Nothing else stands in its page, and
/// nothing that is after it needs it: see [`FoundStore::end`].
fn renew_header(tail: &LogTail, end: &LogEnd) -> Result<(), OpenError> {
    let Some((_, file)) = tail.ring.newest().filter(|_| end.is_header_in_doubt) else {
        return Ok(());
    };
    let mut page = vec![0; PAGE];
    end.header.encode(&mut page);
    file.write(&page, 0).map_err(OpenError::io("write to", "the log"))
}

/// Flushes every segment of the log: with [`Durability::Process`](super::Durability) the last owner
/// flushed none.
fn flush_segments(tail: &LogTail) -> Result<(), OpenError> {
    let flushed = tail.ring.in_use().try_for_each(|segment| segment.file.flush());
    flushed.map_err(OpenError::io("flush", "the log"))
}

/// Puts what the last batch holds into the first of this owner.
fn renew_last(log: &mut LogAppender, end: &LogEnd) -> Result<(), OpenError> {
    let Some((last, (_, file))) = end.last.zip(log.tail.ring.newest()) else { return Ok(()) };
    let mut body = vec![0; last.length as usize];
    let at = u64::from(last.offset) + BATCH_BYTES as u64;
    file.read(&mut body, at).map_err(OpenError::io("read", "the log"))?;
    for (header, at) in last.entries(&body).flatten() {
        let record = body.get(at..at + header.length as usize).unwrap_or_default();
        log.append_copy(header, record).map_err(no_room)?;
    }
    log.batch.renew_from(last.after);
    Ok(())
}

fn flush_opening(log: &mut LogAppender) -> Result<(), OpenError> {
    let before = (log.tail.generation, log.tail.end);
    log.flush();
    match log.reader.failure.get() {
        None if (log.tail.generation, log.tail.end) != before => Ok(()),
        None => Err(OpenError::io("write to", "the log")(io::ErrorKind::StorageFull.into())),
        Some(why) => Err(OpenError::io("write to", "the log")(io::Error::other(why.clone()))),
    }
}

fn no_room(error: retrysafe_core::store::StoreError) -> OpenError {
    let error = io::Error::new(io::ErrorKind::StorageFull, error.to_string());
    OpenError::io("write to", "the log")(error)
}

/// Refuses a clock that would expire everything.
pub(crate) fn check_clock(settings: &StoreSettings, mark: Time) -> Result<(), OpenError> {
    let now = settings.clock.now();
    // A store that was just created has no mark.
    let is_new = mark.as_ms() == 0;
    if is_new || settings.accept_clock || now <= mark.plus(CLOCK_AHEAD_MAX) {
        return Ok(());
    }
    Err(OpenError::ClockAhead { mark, now })
}

/// Makes an index of what is read.
struct IndexBuilder<'a> {
    found: &'a FoundStore,
    index: RecordIndex,
}

impl LogVisitor for IndexBuilder<'_> {
    fn snapshot_entry(&mut self, entry: IndexEntry) {
        self.index.put(entry, 0);
    }

    fn forget_snapshot(&mut self) {
        self.index = RecordIndex::new();
    }

    fn reaped(&mut self, mark: ReapMark) {
        self.index.reap(mark, usize::MAX, drop);
    }

    fn entry(&mut self, header: &EntryHeader, slot: u16, at: u32, _record: &[u8]) {
        let EntryHeader { id, version, previous, due, standing, length } = *header;
        let prefix = prefix_of(&id);
        let entry = IndexEntry::new(prefix, version, due, standing, (slot, at, length));
        if previous != 0 && self.index.get(prefix, previous).is_some() {
            self.index.put(entry, previous);
            return;
        }
        // What it replaces was reaped or is not known here. Whatever else begins with the same
        // bytes is the same id or, hardly ever, another one.
        let mut n = 0;
        while let Some(other) = self.index.nth(prefix, n) {
            if id_of(self.found, &other).is_some_and(|other| other == id) {
                // A snapshot may be ahead of its position.
                if other.version <= version {
                    self.index.put(entry, other.version);
                }
                return;
            }
            n += 1;
        }
        self.index.put(entry, 0);
    }
}

/// The id that stands before an entry's record in the log, if that is intact.
fn id_of(found: &FoundStore, entry: &IndexEntry) -> Option<Id> {
    let file = found.files.get(usize::from(entry.slot))?;
    let offset = entry.offset.checked_sub(ENTRY_BYTES as u32)?;
    let mut bytes = [0; ENTRY_BYTES];
    file.read(&mut bytes, u64::from(offset)).ok()?;
    let generation = *found.generations.get(usize::from(entry.slot))?;
    let place = EntryPlace { store: found.store.store, generation, offset };
    EntryHeader::decode(&bytes, place).map(|header| header.id)
}

/// The end of a log that was read, with what readers need of it.
fn tail_of(
    found: FoundStore,
    folder: Arc<dyn StoreFolder>,
    settings: &StoreSettings,
    end: &LogEnd,
    index: RecordIndex,
) -> LogTail {
    let mark = Time::from_ms(end.state.clock);
    let with_generation = |(file, generation): (&Arc<dyn StoreFile>, &u64)| {
        let stop = found.end_of_generation(*generation, end);
        RingSegment::new(Arc::clone(file), *generation, stop)
    };
    let all = found.files.iter().zip(&found.generations).map(with_generation).collect();
    let mut ring = SegmentRing::opened(all, end.state.oldest, end.oldest_for_sure);
    for entry in (0..SHARDS).flat_map(|number| index.shard(number)) {
        ring.gained(entry.slot, entry.length);
    }
    let reader = LogReader {
        index,
        clock: settings.clock.clone().starting_at_least(mark),
        folder,
        store: found.store.store,
        files: RwLock::new(found.files),
        generations: Mutex::new(found.generations),
        failure: OnceLock::new(),
        watchers: Watchers::default(),
        lately: ReadCache::default(),
        looked: Mutex::new(Instant::now()),
        abandoned: AtomicUsize::new(0),
    };
    LogTail {
        reader: Arc::new(reader),
        ring,
        segment_bytes: settings.segment_bytes,
        durability: settings.durability,
        generation: end.generation,
        end: end.offset,
        sequence: end.state.sequence,
        reaped: end.state.reaped,
        clock_mark: mark,
    }
}
