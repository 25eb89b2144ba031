//! How are records read beside the writer?
//!
//! A reader finds a record's place in the index and reads it there; it never waits for the writer or
//! a flush. Between the two steps a segment may be recycled under it. So what was read counts only
//! if it is the id and version that were looked for; else the index is asked again, and only an
//! entry that still says the same is damage.
//!
//! Before an answer leaves, the folder must still be where it was: what is read from a folder that
//! was taken away will not be there after the next start. Only an answer that is at hand already, and was
//! the right one a moment ago, is given without looking each time.

use std::cmp::Ordering;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use retrysafe_core::record::{Record, Standing};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Census, Cursor, Filter, Page, Query, StoreError, StoreErrorKind};
use retrysafe_core::time::Time;

use super::files::{StoreFile, StoreFolder};
use super::format::{ENTRY_BYTES, EntryHeader, EntryPlace};
use super::index::{IndexEntry, RecordIndex, SHARDS, prefix_of};
use super::read_cache::ReadCache;
use super::segments::name_of;
use crate::stores::clock::Clock;
use crate::stores::watchers::Watchers;

/// How often a reader asks the index again. Each time, the record was moved or written meanwhile,
/// and a record is moved once per turn of the whole log.
const TRIES: usize = 32;

/// How many records one page of a scan reads before it returns, with fewer matches than asked for
/// if need be: some ten milliseconds.
const READS_MAX: usize = 4_096;

/// How often the segments are looked at that nobody writes, whether they were removed. The folder
/// itself is looked at before every answer that is read, and the segment that is written after every write.
const FILES_LOOK_EVERY: Duration = Duration::from_millis(100);

/// What readers and the writer share.
#[derive(Debug)]
pub(crate) struct LogReader {
    pub(crate) index: RecordIndex,
    pub(crate) clock: Clock,
    pub(crate) folder: Arc<dyn StoreFolder>,
    /// The store's random number.
    pub(crate) store: u64,
    /// The segments, by slot. Slots are never given up.
    pub(crate) files: RwLock<Vec<Arc<dyn StoreFile>>>,
    /// The generation of each segment, by slot.
    pub(crate) generations: Mutex<Vec<u64>>,
    /// Why the store refuses everything, if it does.
    pub(crate) failure: OnceLock<String>,
    /// How many records were in progress when the store was opened.
    pub(crate) abandoned: AtomicUsize,
    /// Who waits for a record to change.
    pub(crate) watchers: Watchers,
    /// Answers that were replayed lately.
    pub(crate) lately: ReadCache,
    /// When the segments were looked at last.
    pub(crate) looked: Mutex<Instant>,
}

/// A record's bytes that are not that record.
#[derive(Debug)]
pub(crate) enum UnreadRecord {
    Damaged,
    Io(io::Error),
}

impl LogReader {
    /// Refuses everything after a failed write or flush: what the disk holds is not known until the
    /// store is opened anew and verified. A later flush that succeeds proves nothing.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self.failure.get() {
            None => Ok(()),
            Some(why) => Err(StoreError::not_applied(StoreErrorKind::Unavailable)
                .because(format!("{why}; open the store again"))),
        }
    }

    /// Refuses everything, too, once the folder or a segment was taken away.
    pub(crate) fn check_folder(&self) -> Result<(), StoreError> {
        self.check()?;
        if let Err(error) = self.folder.check_present().and_then(|()| self.check_files()) {
            self.fail(error.to_string());
        }
        self.check()
    }

    /// The same, as it was a moment ago: to look takes longer than all else that an answer at hand needs.
    pub(crate) fn check_folder_lately(&self) -> Result<(), StoreError> {
        let looked = self.looked.try_lock().map(|looked| looked.elapsed());
        match looked {
            Ok(ago) if ago >= FILES_LOOK_EVERY => self.check_folder(),
            // Nobody else holds it for longer than it takes to look.
            Ok(_) | Err(_) => self.check(),
        }
    }

    fn check_files(&self) -> io::Result<()> {
        // Somebody else is looking.
        let Ok(mut looked) = self.looked.try_lock() else { return Ok(()) };
        if looked.elapsed() < FILES_LOOK_EVERY {
            return Ok(());
        }
        *looked = Instant::now();
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        for (slot, file) in files.iter().enumerate() {
            if file.is_removed()? {
                let why = format!("{} was removed while the store was open", name_of(slot));
                return Err(io::Error::new(io::ErrorKind::NotFound, why));
            }
        }
        Ok(())
    }

    /// Lets records be read from a segment that was added.
    pub(crate) fn add_segment(&self, file: Arc<dyn StoreFile>) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).push(file);
    }

    /// Notes that a segment is used anew.
    pub(crate) fn set_generation(&self, slot: u16, generation: u64) {
        let mut generations = self.generations();
        let count = generations.len().max(usize::from(slot) + 1);
        generations.resize(count, 0);
        if let Some(place) = generations.get_mut(usize::from(slot)) {
            *place = generation;
        }
    }

    /// The generation of each segment, by slot; zero, or none, if it was never in use.
    pub(crate) fn generations(&self) -> MutexGuard<'_, Vec<u64>> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on everything is refused.
    pub(crate) fn fail(&self, why: String) {
        tracing::error!(why, "the disk store has failed and refuses everything");
        // The first reason is the one to tell.
        let _ = self.failure.set(why);
    }

    /// The record of this id.
    pub(crate) fn find(&self, id: &Id) -> Result<Option<Record>, StoreError> {
        Ok(self.find_measured(id)?.map(|(record, _)| record))
    }

    /// The record of this id, and how many bytes it has in the log.
    fn find_measured(&self, id: &Id) -> Result<Option<(Record, usize)>, StoreError> {
        let prefix = prefix_of(id);
        'again: for _ in 0..TRIES {
            let mut n = 0;
            while let Some(entry) = self.index.nth(prefix, n) {
                match self.read(&entry) {
                    Ok(record) if record.id == *id => {
                        return Ok(Some((record, entry.length as usize)));
                    }
                    Ok(_) => n += 1,
                    Err(unread) => match self.index.get(prefix, entry.version) {
                        Some(now) if now.is_same(&entry) => return Err(unread.into()),
                        Some(_) | None => continue 'again,
                    },
                }
            }
            return Ok(None);
        }
        Err(StoreError::not_applied(StoreErrorKind::Unavailable))
    }

    /// The record of this id, for whoever may be answered with it.
    pub(crate) fn find_answer(&self, id: &Id) -> Result<Option<Record>, StoreError> {
        if let Some(entry) = self.index.nth(prefix_of(id), 0)
            && let Some(record) = self.lately.get(id, entry.version)
        {
            return Ok(Some(record));
        }
        let found = self.find_measured(id)?;
        if let Some((record, log_bytes)) = &found {
            self.lately.put(record, *log_bytes);
        }
        Ok(found.map(|(record, _)| record))
    }

    /// The record that an entry stands for.
    pub(crate) fn read(&self, entry: &IndexEntry) -> Result<Record, UnreadRecord> {
        let mut bytes = vec![0; entry.length as usize];
        self.read_at(entry.slot, u64::from(entry.offset), &mut bytes)?;
        Record::decode(Bytes::from(bytes))
            .ok()
            .filter(|record| record.version == entry.version)
            .filter(|record| prefix_of(&record.id) == entry.prefix)
            .ok_or(UnreadRecord::Damaged)
    }

    /// The whole id of an entry whose record cannot be read: it stands before the record, too. If
    /// even that is damaged, the part that the index knows.
    pub(crate) fn id_of(&self, entry: &IndexEntry) -> Id {
        self.header_of(entry)
            .map(|header| header.id)
            .filter(|id| prefix_of(id) == entry.prefix)
            .unwrap_or_else(|| {
                let mut bytes = [0; 32];
                super::format::put(&mut bytes, 0, &entry.prefix.to_be_bytes());
                Id::from_bytes(bytes)
            })
    }

    /// What stands before an entry's record in the log, if it is intact.
    pub(crate) fn header_of(&self, entry: &IndexEntry) -> Option<EntryHeader> {
        let mut bytes = [0; ENTRY_BYTES];
        let offset = entry.offset.checked_sub(ENTRY_BYTES as u32)?;
        self.read_at(entry.slot, u64::from(offset), &mut bytes).ok()?;
        let generation = *self.generations().get(usize::from(entry.slot))?;
        EntryHeader::decode(&bytes, EntryPlace { store: self.store, generation, offset })
    }

    pub(crate) fn read_at(
        &self,
        slot: u16,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), UnreadRecord> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let file = files.get(usize::from(slot)).map(Arc::clone).ok_or(UnreadRecord::Damaged)?;
        drop(files);
        file.read(into, offset).map_err(UnreadRecord::Io)
    }

    /// One page of a scan. The order is that of ids, so a cursor is an id and outlives a restart.
    pub(crate) fn scan(&self, query: &Query) -> Result<(Time, Page), StoreError> {
        self.check_folder()?;
        let after = query.after.as_ref().map(read_cursor).transpose()?;
        let now = self.clock.now();
        let mut walk =
            PageWalk { shared: self, query, now, after, page: Page::default(), reads: 0 };
        match (&query.filter.scope, query.filter.key) {
            (Some(scope), Some(key)) => walk.one(Id::of(scope, &key))?,
            (Some(_) | None, _) => walk.many()?,
        }
        Ok((now, walk.page))
    }

    /// One page of the records that were written last. The index knows all versions, so nothing is
    /// read that is not among the last.
    pub(crate) fn latest(&self, query: &Query) -> Result<(Time, Page), StoreError> {
        self.check_folder()?;
        let below = query.after.as_ref().map_or(Ok(u64::MAX), Cursor::version)?;
        let now = self.clock.now();
        let mut walk =
            PageWalk { shared: self, query, now, after: None, page: Page::default(), reads: 0 };
        let entries = self.last_entries(query.filter.standing, below);
        let is_cut = entries.len() == READS_MAX;
        for (at, entry) in entries.iter().enumerate() {
            if walk.is_full() {
                let seen = at.checked_sub(1).and_then(|at| entries.get(at));
                walk.page.next = seen.map(|entry| Cursor::of_version(entry.version));
                return Ok((now, walk.page));
            }
            if let Some((id, record)) = walk.current(*entry)? {
                walk.take(id, record);
            }
        }
        let last = entries.last().filter(|_| is_cut);
        walk.page.next = last.map(|entry| Cursor::of_version(entry.version));
        Ok((now, walk.page))
    }

    /// The entries that were written last below a version, the last first, at most [`READS_MAX`].
    fn last_entries(&self, standing: Option<Standing>, below: u64) -> Vec<IndexEntry> {
        let newest_first = |last: &mut Vec<IndexEntry>| {
            last.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.version));
            last.truncate(READS_MAX);
        };
        let fits = |entry: &IndexEntry| {
            entry.version < below && standing.is_none_or(|standing| entry.standing == standing)
        };
        let few = match standing {
            Some(Standing::InProgress) => Some(self.index.running(u64::MAX)),
            Some(Standing::Unknown) => Some(self.index.unknown()),
            Some(Standing::Completed | Standing::FailedRetryable) | None => None,
        };
        if let Some(mut few) = few {
            few.retain(fits);
            newest_first(&mut few);
            return few;
        }
        let mut last: Vec<IndexEntry> = Vec::new();
        // Whatever is older than as many as are wanted is passed over where it lies: a store of millions is not copied for a page.
        let mut oldest = 0;
        for number in 0..SHARDS {
            let is_young = |entry: &IndexEntry| entry.version > oldest && fits(entry);
            last.extend(self.index.shard_where(number, is_young));
            // Not after each shard: sorting what stays anyway would cost more than the memory.
            if last.len() > 2 * READS_MAX {
                newest_first(&mut last);
                oldest = last.last().map_or(0, |entry| entry.version);
            }
        }
        newest_first(&mut last);
        last
    }

    /// What the store holds, in numbers.
    pub(crate) fn census(&self) -> Result<Census, StoreError> {
        self.check_folder()?;
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner).clone();
        let bytes = files.iter().map(|file| file.bytes()).sum::<io::Result<u64>>();
        let (unknown, since) = self.index.count_unknown();
        Ok(Census {
            records: Some(self.index.len() as u64),
            bytes: Some(bytes.map_err(UnreadRecord::Io)?),
            unknown: unknown as u64,
            unknown_since: since.map(Time::from_ms),
        })
    }
}

impl From<UnreadRecord> for StoreError {
    fn from(unread: UnreadRecord) -> Self {
        match unread {
            UnreadRecord::Damaged => Self::not_applied(StoreErrorKind::Damaged),
            UnreadRecord::Io(error) => {
                Self::not_applied(StoreErrorKind::Unavailable).because(error)
            }
        }
    }
}

impl From<io::Error> for UnreadRecord {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A walk through the records of a page.
struct PageWalk<'a> {
    shared: &'a LogReader,
    query: &'a Query,
    now: Time,
    after: Option<Id>,
    page: Page,
    reads: usize,
}

impl PageWalk<'_> {
    fn one(&mut self, id: Id) -> Result<(), StoreError> {
        if self.after.is_some_and(|after| id <= after) {
            return Ok(());
        }
        match self.shared.find(&id) {
            Ok(Some(record)) if self.query.filter.matches(&record, self.now) => {
                self.page.records.push(record);
            }
            Ok(_) => {}
            Err(error) if error.kind() == StoreErrorKind::Damaged => self.page.damaged.push(id),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn many(&mut self) -> Result<(), StoreError> {
        let Filter { standing, lease_over, .. } = self.query.filter;
        let until = if lease_over { self.now.as_ms() } else { u64::MAX };
        match standing {
            Some(Standing::InProgress) => self.each(self.shared.index.running(until)).map(drop),
            None if lease_over => self.each(self.shared.index.running(until)).map(drop),
            Some(_) if lease_over => Ok(()),
            Some(Standing::Unknown) => self.each(self.shared.index.unknown()).map(drop),
            Some(Standing::Completed | Standing::FailedRetryable) | None => {
                let first = self.after.map_or(0, |id| (prefix_of(&id) >> 56) as usize);
                // The ids that are looked for lie together, if their first digits are known.
                let (low, high) = match self.query.filter.id {
                    Some(digits) => (usize::from(digits.low()[0]), usize::from(digits.high()[0])),
                    None => (0, SHARDS - 1),
                };
                for number in first.max(low)..=high {
                    let mut entries = self.shared.index.shard(number);
                    entries.retain(|entry| standing.is_none_or(|s| entry.standing == s));
                    if !self.each(entries)? {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// Adds those of some entries that match, in id order. Says whether there is room for more.
    fn each(&mut self, mut entries: Vec<IndexEntry>) -> Result<bool, StoreError> {
        let from = self.after.map_or(0, |id| prefix_of(&id));
        entries.retain(|entry| entry.prefix >= from);
        if let Some(digits) = self.query.filter.id {
            let [low, high] =
                [digits.low(), digits.high()].map(|id| prefix_of(&Id::from_bytes(*id)));
            entries.retain(|entry| (low..=high).contains(&entry.prefix));
        }
        entries.sort_unstable_by_key(|entry| (entry.prefix, entry.version));
        for alike in entries.chunk_by(|a, b| a.prefix == b.prefix) {
            // A full page ends before the next id, so the next page begins after this one.
            if self.is_full() || self.reads >= READS_MAX {
                self.page.next = self.after.map(|id| Cursor(id.as_bytes().to_vec()));
                return Ok(false);
            }
            for (id, record) in self.in_order(alike)? {
                if self.after.is_some_and(|after| id.cmp(&after) != Ordering::Greater) {
                    continue;
                }
                self.after = Some(id);
                self.take(id, record);
            }
        }
        Ok(true)
    }

    fn is_full(&self) -> bool {
        self.page.records.len() + self.page.damaged.len() >= self.query.page_len()
    }

    /// Adds a record if it matches. `None` stands for a damaged one.
    fn take(&mut self, id: Id, record: Option<Record>) {
        match record {
            Some(record) if self.query.filter.matches(&record, self.now) => {
                self.page.records.push(record);
            }
            Some(_) => {}
            None => self.page.damaged.push(id),
        }
    }

    /// Reads entries whose ids begin alike, in id order. `None` stands for a damaged record.
    fn in_order(&mut self, alike: &[IndexEntry]) -> Result<Vec<(Id, Option<Record>)>, StoreError> {
        let mut found = Vec::with_capacity(alike.len());
        for entry in alike {
            self.reads += 1;
            if let Some(read) = self.current(*entry)? {
                found.push(read);
            }
        }
        found.sort_unstable_by_key(|(id, _)| *id);
        Ok(found)
    }

    /// Reads an entry's record as it is now, which may be another version than the entry's.
    fn current(&self, entry: IndexEntry) -> Result<Option<(Id, Option<Record>)>, StoreError> {
        match self.shared.read(&entry) {
            Ok(record) => Ok(Some((record.id, Some(record)))),
            Err(UnreadRecord::Io(error)) => Err(UnreadRecord::Io(error).into()),
            Err(UnreadRecord::Damaged) => {
                let moved = self.shared.index.get(entry.prefix, entry.version);
                if moved.is_some_and(|now| now.is_same(&entry)) {
                    return Ok(Some((self.shared.id_of(&entry), None)));
                }
                // It was written or moved meanwhile, or reaped. The prefix is all there is to go by;
                // if two ids share it, both are read anyway.
                let Some(now) = self.shared.index.nth(entry.prefix, 0) else { return Ok(None) };
                match self.shared.read(&now) {
                    Ok(record) => Ok(Some((record.id, Some(record)))),
                    Err(_) => Err(StoreError::not_applied(StoreErrorKind::Unavailable)),
                }
            }
        }
    }
}

fn read_cursor(cursor: &Cursor) -> Result<Id, StoreError> {
    match cursor.0.as_slice().try_into() {
        Ok(bytes) => Ok(Id::from_bytes(bytes)),
        Err(_) => Err(StoreError::not_applied(StoreErrorKind::Broken).because("a foreign cursor")),
    }
}
