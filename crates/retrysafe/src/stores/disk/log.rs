//! How does a batch of changes become durable?
//!
//! [`Log`] belongs to one writer. It gathers entries in a batch, writes the batch at the end of the
//! newest segment with one call, flushes it with one call, and only then shows it in the index and
//! answers. A batch counts whole or not at all: its header has a checksum of all its entries.
//!
//! What a crash leaves behind, at any line: batches that were flushed, then at most one that was
//! being written, of which any sectors may be missing. It does not verify, nothing follows it, and
//! it was never acknowledged: it is cut off by opening, and its place is written anew.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, PoisonError};

use retrysafe_core::record::Record;
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, Stamped, StoreError, StoreErrorKind, Swapped};
use tokio::sync::oneshot;

use super::files::Folder;
use super::format::{
    BATCH_BYTES, BatchHeader, ENTRY_BYTES, EntryHeader, LogState, SECTOR, SegmentHeader, sector_up,
};
use super::index::{Entry, Mark, prefix_of};
use super::read::Shared;
use super::segments::Segments;
use super::{Durability, Settings};

/// Where the entries of a batch begin in its buffer: after room for a segment's header, which goes
/// out with the same write when the batch is the first of a segment.
const BODY: usize = SECTOR + BATCH_BYTES;

/// How many bytes a batch gathers before it is written. Large enough that the flush is what costs,
/// small enough that nobody waits for megabytes of strangers.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// The writer's side of the store.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) shared: Arc<Shared>,
    pub(crate) folder: Arc<dyn Folder>,
    pub(crate) settings: Settings,
    pub(crate) store: u64,
    pub(crate) segments: Segments,
    /// The generation and end of the segment that is written.
    pub(crate) generation: u64,
    pub(crate) end: u32,
    /// The last version given out.
    pub(crate) sequence: u64,
    /// How far records are reaped.
    pub(crate) reaped: Mark,
    pub(crate) batch: Batch,
    pub(crate) reaps: VecDeque<super::ops::Reaping>,
    pub(crate) cleaning: Option<super::clean::Cleaning>,
    pub(crate) snapshots: super::snapshot::Snapshots,
    /// How many entries were copied forward.
    pub(crate) copied: u64,
}

/// Entries that are not durable yet, and who waits for them.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Room for a segment's header, the batch's header, the entries.
    bytes: Vec<u8>,
    pending: Vec<Pending>,
    answers: Vec<Answer>,
    /// Which answer holds the last pending change of an id.
    latest: HashMap<Id, usize>,
    /// Whether it is to be written even without entries, for the sake of its header.
    marked: bool,
}

#[derive(Debug)]
struct Pending {
    header: EntryHeader,
    /// Where the record's bytes begin in the buffer.
    at: usize,
}

/// What to say once the batch is durable, and to whom.
#[derive(Debug)]
pub(crate) enum Answer {
    Inserted(Reply<Inserted>, Stamped<Inserted>),
    Swapped(Reply<Swapped>, Stamped<Swapped>),
    Reaped(Reply<usize>, Stamped<usize>),
    Probed(Reply<()>, Stamped<()>),
}

/// Where an answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<Stamped<T>, StoreError>>;

impl Answer {
    fn tell(self, verdict: Result<(), StoreError>) {
        // A caller that went away does not want to know.
        match self {
            Self::Inserted(to, answer) => drop(to.send(verdict.map(|()| answer))),
            Self::Swapped(to, answer) => drop(to.send(verdict.map(|()| answer))),
            Self::Reaped(to, answer) => drop(to.send(verdict.map(|()| answer))),
            Self::Probed(to, answer) => drop(to.send(verdict.map(|()| answer))),
        }
    }

    fn record(&self) -> Option<&Record> {
        match self {
            Self::Inserted(_, Stamped { value: Inserted::New(record), .. })
            | Self::Swapped(_, Stamped { value: Swapped::Done(record), .. }) => Some(record),
            Self::Inserted(_, Stamped { value: Inserted::Exists(_), .. })
            | Self::Swapped(_, Stamped { value: Swapped::Lost(_), .. })
            | Self::Reaped(..)
            | Self::Probed(..) => None,
        }
    }
}

/// Why a batch did not become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    /// The disk had no room to write it. It surely is not there.
    Full,
    /// The disk failed. It may be there.
    Disk,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; BODY],
            pending: Vec::new(),
            latest: HashMap::new(),
            answers: Vec::new(),
            marked: false,
        }
    }

    /// Writes the batch even if it stays empty.
    pub(crate) fn mark(&mut self) {
        self.marked = true;
    }

    /// Answers when the batch is durable.
    pub(crate) fn answer(&mut self, answer: Answer) {
        if let Some(record) = answer.record() {
            self.latest.insert(record.id, self.answers.len());
        }
        self.answers.push(answer);
    }

    /// How many bytes it has on disk, so far.
    pub(crate) fn bytes_on_disk(&self) -> u32 {
        self.length() as u32
    }

    fn length(&self) -> usize {
        sector_up(self.bytes.len() - SECTOR)
    }

    fn clear(&mut self) {
        self.bytes.truncate(BODY);
        self.pending.clear();
        self.latest.clear();
        self.answers.clear();
        self.marked = false;
    }
}

impl Log {
    /// The record that an id will have once the batch is durable, if the batch changes it.
    pub(crate) fn pending(&self, id: &Id) -> Option<&Record> {
        let at = *self.batch.latest.get(id)?;
        self.batch.answers.get(at)?.record()
    }

    /// Adds a record to the batch. The next version must be its own.
    ///
    /// `reserve` says whether it may use what is kept for settling: a begin may not.
    pub(crate) fn append(
        &mut self,
        record: &Record,
        previous: u64,
        reserve: Reserve,
    ) -> Result<(), StoreError> {
        let start = self.batch.bytes.len();
        let mut header = EntryHeader::of(record, previous);
        self.batch.bytes.resize(start + ENTRY_BYTES, 0);
        record.encode_into(&mut self.batch.bytes);
        header.length = (self.batch.bytes.len() - start - ENTRY_BYTES) as u32;
        if let Some(place) = self.batch.bytes.get_mut(start..) {
            header.encode(place);
        }
        self.admit(start, reserve)?;
        self.sequence = record.version;
        self.push(header);
        Ok(())
    }

    /// Adds a copy of an entry to the batch, so that its old segment can be given up.
    pub(crate) fn append_copy(
        &mut self,
        mut header: EntryHeader,
        record: &[u8],
    ) -> Result<(), StoreError> {
        let start = self.batch.bytes.len();
        header.previous = header.version;
        header.length = record.len() as u32;
        self.batch.bytes.resize(start + ENTRY_BYTES, 0);
        if let Some(place) = self.batch.bytes.get_mut(start..) {
            header.encode(place);
        }
        self.batch.bytes.extend_from_slice(record);
        self.admit(start, Reserve::Usable)?;
        self.copied += 1;
        self.push(header);
        Ok(())
    }

    /// Notes the entry that the batch's bytes end with.
    fn push(&mut self, header: EntryHeader) {
        let at = self.batch.bytes.len() - header.length as usize;
        self.batch.pending.push(Pending { header, at });
    }

    /// Whether the batch has gathered enough to be written before more is added.
    pub(crate) fn is_batch_full(&self) -> bool {
        self.batch.length() >= BATCH_BYTES_MAX.min(self.settings.segment_bytes as usize / 4)
    }

    /// Makes sure that a begin would find a place, as far as the batch is known.
    pub(crate) fn room_for_a_begin(&mut self) -> Result<(), StoreError> {
        self.admit(self.batch.bytes.len(), Reserve::Kept)
    }

    /// Makes sure that there is a place for the batch with the entry that begins at `start`; else
    /// takes the entry out again.
    fn admit(&mut self, start: usize, reserve: Reserve) -> Result<(), StoreError> {
        let segment_bytes = self.settings.segment_bytes as usize;
        if self.batch.length() + SECTOR > segment_bytes && start > BODY {
            let entry = self.batch.bytes.split_off(start);
            self.flush();
            self.shared.check()?;
            self.batch.bytes.extend_from_slice(&entry);
        }
        let start = if self.batch.pending.is_empty() { BODY } else { start };
        let length = self.batch.length();
        if length + SECTOR > segment_bytes {
            self.batch.bytes.truncate(start);
            return Err(StoreError::not_applied(StoreErrorKind::Full)
                .because("the record is larger than a segment of the store"));
        }
        let turns = usize::from(self.end as usize + length > segment_bytes);
        let kept = match reserve {
            Reserve::Kept => 1,
            Reserve::Usable => 0,
        };
        if self.segments.spares() >= turns + kept || self.make_room(turns + kept) {
            return Ok(());
        }
        self.release();
        if reserve == Reserve::Usable && self.segments.has_freed() {
            return Ok(());
        }
        self.batch.bytes.truncate(start);
        // A segment that was given up can be written again once a header has said so, and on a full
        // disk there may be no other reason to write one.
        self.batch.marked |= self.segments.has_freed();
        Err(StoreError::not_applied(StoreErrorKind::Full)
            .because("no room on the disk for another segment of the store"))
    }

    /// Writes and flushes the batch, shows it in the index, and answers.
    pub(crate) fn flush(&mut self) {
        let written = match self.shared.check() {
            Err(_) => Err(Failed::Disk),
            Ok(()) if self.batch.pending.is_empty() && !self.batch.marked => Ok(()),
            Ok(()) => self.write().map(|offset| self.show(offset)),
        };
        for answer in std::mem::take(&mut self.batch.answers) {
            answer.tell(match written {
                Ok(()) => Ok(()),
                Err(Failed::Full) => Err(StoreError::not_applied(StoreErrorKind::Full)),
                Err(Failed::Disk) => Err(StoreError::maybe_applied(StoreErrorKind::Unavailable)
                    .because("the disk failed; open the store again")),
            });
        }
        self.batch.clear();
    }

    /// Writes the batch at the end of the log and flushes it. Says where it stands.
    fn write(&mut self) -> Result<usize, Failed> {
        self.release();
        let length = self.batch.length();
        let mut turns = self.end as usize + length > self.settings.segment_bytes as usize;
        if turns && self.segments.spares() == 0 && !self.make_room(1) {
            // The last way on a full disk: a segment that was given up just now.
            self.turn_to_freed()?;
            turns = false;
        }
        if turns {
            self.turn();
        }
        let offset = if turns { SECTOR } else { self.end as usize };
        let generation = self.generation + u64::from(turns);
        let Some((_, file)) = self.segments.newest() else { return Err(Failed::Full) };
        self.seal(generation, offset, turns);
        self.batch.bytes.resize(SECTOR + length, 0);
        let (start, at) = if turns { (0, 0) } else { (SECTOR, offset as u64) };
        let bytes = self.batch.bytes.get(start..).unwrap_or_default();
        if let Err(error) = file.write(bytes, at) {
            // Half a batch does not verify, and the next one is written over it. A segment's
            // header, though, must not say where the one before ended and then be wrong.
            let full = is_full(&error) && !turns;
            return Err(if full { Failed::Full } else { self.fail("write", &error) });
        }
        if self.settings.durability == Durability::Full
            && let Err(error) = file.flush()
        {
            return Err(self.fail("flush", &error));
        }
        self.generation = generation;
        self.end = (offset + length) as u32;
        Ok(offset)
    }

    /// Takes a segment into use that was given up without a flushed header to say so. Its new header
    /// says it, and is flushed alone, before anything else in it is overwritten: a crash leaves
    /// either the old segment whole or a new one that is empty.
    fn turn_to_freed(&mut self) -> Result<(), Failed> {
        if !self.segments.has_freed() {
            return Err(Failed::Full);
        }
        self.segments.recycle_freed();
        self.turn();
        let Some((_, file)) = self.segments.newest() else { return Err(Failed::Full) };
        let generation = self.generation + 1;
        let mut sector = [0; SECTOR];
        let (store, previous_end, state) = (self.store, self.end, self.state(generation));
        SegmentHeader { store, generation, previous_end, state }.encode(&mut sector);
        let written = file.write(&sector, 0).and_then(|()| file.flush());
        written.map_err(|error| self.fail("turn", &error))?;
        (self.generation, self.end) = (generation, SECTOR as u32);
        Ok(())
    }

    /// Takes a spare segment into use.
    fn turn(&mut self) {
        let generation = self.generation + 1;
        self.segments.turn(generation);
        let Some((slot, _)) = self.segments.newest() else { return };
        let mut generations =
            self.shared.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let count = generations.len().max(usize::from(slot) + 1);
        generations.resize(count, 0);
        if let Some(place) = generations.get_mut(usize::from(slot)) {
            *place = generation;
        }
    }

    /// What headers say of the log.
    fn state(&self, generation: u64) -> LogState {
        LogState {
            oldest: self.segments.oldest().unwrap_or(generation),
            sequence: self.sequence,
            clock: self.shared.clock.now().as_ms(),
            slots: self.segments.slots(),
            reaped: self.reaped,
        }
    }

    /// Fills in the headers.
    fn seal(&mut self, generation: u64, offset: usize, turns: bool) {
        let (store, state) = (self.store, self.state(generation));
        let Some((front, body)) = self.batch.bytes.split_at_mut_checked(BODY) else { return };
        let Some((first, batch)) = front.split_at_mut_checked(SECTOR) else { return };
        if turns {
            first.fill(0);
            let previous_end = if generation == 1 { 0 } else { self.end };
            SegmentHeader { store, generation, previous_end, state }.encode(first);
        }
        let (length, checksum) = (body.len() as u32, crc32c::crc32c(body));
        let offset = offset as u32;
        BatchHeader { store, generation, offset, length, checksum, state }.encode(batch);
    }

    /// Shows a batch that is durable in the index.
    fn show(&mut self, offset: usize) {
        self.snapshots.written(self.batch.length() as u64);
        // The header that was flushed says that these hold nothing any more.
        self.segments.recycle_freed();
        let Some((slot, _)) = self.segments.newest() else { return };
        for pending in &self.batch.pending {
            let EntryHeader { id, version, previous, due, standing, length } = pending.header;
            let at = (offset + pending.at - SECTOR) as u32;
            let prefix = prefix_of(&id);
            if previous == version && self.shared.index.get(prefix, version).is_none() {
                // A copy of what was superseded in the same batch.
                continue;
            }
            let entry = Entry::new(prefix, version, due, standing, (slot, at, length));
            self.segments.gained(slot, length);
            if let Some(old) = self.shared.index.put(entry, previous) {
                self.segments.lost(old.slot, old.length);
            }
        }
    }

    /// From here on the store refuses everything.
    fn fail(&self, doing: &str, error: &io::Error) -> Failed {
        tracing::error!(%error, "the disk store could not {doing} its log and refuses everything");
        let _ = self.shared.failure.set(format!("the log could not {doing}: {error}"));
        Failed::Disk
    }
}

/// Whether a write may use the room that is kept for settling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// A begin may not: one segment stays free, so that whatever runs can be settled on a full disk.
    Kept,
    /// Everything else may.
    Usable,
}

/// Whether a disk has refused for want of room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
