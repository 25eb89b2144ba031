//! How does a batch of changes become durable?
//!
//! [`LogWriter`] belongs to one writer. It gathers entries in a batch, writes the batch at the end of the
//! newest segment with one call, flushes it with one call, and only then shows it in the index and
//! answers. A batch counts whole or not at all: its header has a checksum of all its entries.
//!
//! What a crash leaves behind, at any line: batches that were flushed, then at most one that was
//! being written, of whose pages anything may have become. It does not verify, nothing follows it,
//! and it was never acknowledged: it is cut off by opening, and its place is written anew.
//!
//! A segment is taken into use by its header alone, which is flushed before the first batch. A header
//! that a crash has torn is therefore followed by nothing.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use retrysafe_core::record::Record;
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, Stamped, StoreError, StoreErrorKind, Swapped};
use retrysafe_core::time::Time;
use tokio::sync::oneshot;

use super::files::{StoreFile, StoreFolder};
use super::format::{
    BATCH_BYTES, BatchHeader, ENTRY_BYTES, EntryHeader, EntryPlace, LogState, PAGE, TRAILER_BYTES,
    batch_bytes, checksum_of,
};
use super::index::{IndexEntry, ReapMark, prefix_of};
use super::read::LogReader;
use super::segments::SegmentRing;
use super::{Durability, StoreSettings};

/// How many bytes a batch gathers before it is written. Large enough that the flush is what costs,
/// small enough that nobody waits for megabytes of strangers.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// What a batch is padded with, and its trailer written over.
const ZEROS: [u8; PAGE + TRAILER_BYTES] = [0; PAGE + TRAILER_BYTES];

/// The writer's side of the store.
#[derive(Debug)]
pub(crate) struct LogWriter {
    pub(crate) shared: Arc<LogReader>,
    pub(crate) folder: Arc<dyn StoreFolder>,
    pub(crate) settings: StoreSettings,
    pub(crate) store: u64,
    pub(crate) segments: SegmentRing,
    /// The generation and end of the segment that is written.
    pub(crate) generation: u64,
    pub(crate) end: u32,
    /// The last version given out.
    pub(crate) sequence: u64,
    /// How far records are reaped.
    pub(crate) reaped: ReapMark,
    /// The clock's reading in the last header that was written.
    pub(crate) clock_mark: Time,
    pub(crate) batch: PendingBatch,
    pub(crate) reaps: VecDeque<super::ops::PendingReap>,
    pub(crate) cleaning: Option<super::clean::CleaningProgress>,
    pub(crate) snapshots: super::snapshot::SnapshotTaker,
    /// How many entries were copied forward.
    pub(crate) copied: u64,
}

/// Entries that are not durable yet, and who waits for them.
#[derive(Debug)]
pub(crate) struct PendingBatch {
    /// Room for the batch's header, then the entries.
    bytes: Vec<u8>,
    pending: Vec<PendingEntry>,
    answers: Vec<Answer>,
    /// Which answer holds the last pending change of an id.
    latest: HashMap<Id, usize>,
    /// Whether it is to be written even without entries, for the sake of its header.
    marked: bool,
    /// Where in the newest segment that begins which this batch holds anew. See
    /// [`BatchHeader::after`].
    pub(crate) renews: Option<u32>,
}

#[derive(Debug)]
struct PendingEntry {
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
pub(crate) enum WriteFailure {
    /// The disk had no room to write it. It surely is not there.
    Full,
    /// The disk failed. It may be there.
    Disk,
}

impl PendingBatch {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; BATCH_BYTES],
            pending: Vec::new(),
            latest: HashMap::new(),
            answers: Vec::new(),
            marked: false,
            renews: None,
        }
    }

    /// Writes the batch even if it stays empty.
    pub(crate) fn mark(&mut self) {
        self.marked = true;
    }

    /// Makes this batch hold what stands at the end of the newest segment from there on.
    pub(crate) fn renew_from(&mut self, offset: u32) {
        self.renews = Some(offset);
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

    pub(crate) fn length(&self) -> usize {
        batch_bytes(self.bytes.len() - BATCH_BYTES)
    }

    fn clear(&mut self) {
        self.bytes.truncate(BATCH_BYTES);
        self.pending.clear();
        self.latest.clear();
        self.answers.clear();
        self.marked = false;
        self.renews = None;
    }
}

impl LogWriter {
    /// The record that an id will have once the batch is durable, if the batch changes it.
    pub(crate) fn pending(&self, id: &Id) -> Option<&Record> {
        let at = *self.batch.latest.get(id)?;
        self.batch.answers.get(at)?.record()
    }

    /// Adds a record to the batch.
    ///
    /// `reserve` says whether it may use what is kept for settling: a begin may not.
    pub(crate) fn append(
        &mut self,
        record: &Record,
        previous: u64,
        reserve: ReserveUse,
    ) -> Result<(), StoreError> {
        let start = self.batch.bytes.len();
        let mut header = EntryHeader::of(record, previous);
        self.batch.bytes.resize(start + ENTRY_BYTES, 0);
        record.encode_into(&mut self.batch.bytes);
        header.length = (self.batch.bytes.len() - start - ENTRY_BYTES) as u32;
        self.admit(start, reserve)?;
        self.sequence = self.sequence.max(record.version);
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
        self.batch.bytes.extend_from_slice(record);
        self.admit(start, ReserveUse::Usable)?;
        self.copied += 1;
        self.push(header);
        Ok(())
    }

    /// Notes the entry that the batch's bytes end with.
    fn push(&mut self, header: EntryHeader) {
        let at = self.batch.bytes.len() - header.length as usize;
        self.batch.pending.push(PendingEntry { header, at });
    }

    /// Whether the batch has gathered enough to be written before more is added.
    pub(crate) fn is_batch_full(&self) -> bool {
        self.batch.length() >= BATCH_BYTES_MAX.min(self.settings.segment_bytes as usize / 4)
    }

    /// Makes sure that a begin would find a place, as far as the batch is known.
    pub(crate) fn room_for_a_begin(&mut self) -> Result<(), StoreError> {
        self.admit(self.batch.bytes.len(), ReserveUse::Kept)
    }

    /// How long a batch may be: one page of a segment is its header's, and one is kept so that a
    /// full segment can still say which segments hold nothing any more.
    fn batch_bytes_max(&self) -> usize {
        (self.settings.segment_bytes as usize).saturating_sub(2 * PAGE)
    }

    /// Whether a batch of this length has no place in the newest segment.
    fn must_turn(&self, length: usize) -> bool {
        self.end as usize + length + PAGE > self.settings.segment_bytes as usize
    }

    /// Makes sure that there is a place for the batch with the entry that begins at `start`; else
    /// takes the entry out again.
    fn admit(&mut self, start: usize, reserve: ReserveUse) -> Result<(), StoreError> {
        if self.batch.length() > self.batch_bytes_max() && start > BATCH_BYTES {
            let entry = self.batch.bytes.split_off(start);
            let flushed = self.write_and_answer();
            self.shared.check()?;
            if flushed.is_err() {
                // The entry may replace what was not written just now.
                return Err(no_room());
            }
            self.batch.bytes.extend_from_slice(&entry);
        }
        let start = if self.batch.pending.is_empty() { BATCH_BYTES } else { start };
        let length = self.batch.length();
        if length > self.batch_bytes_max() {
            self.batch.bytes.truncate(start);
            return Err(StoreError::not_applied(StoreErrorKind::Full)
                .because("the record is larger than a segment of the store"));
        }
        let turns = usize::from(self.must_turn(length));
        let kept = match reserve {
            ReserveUse::Kept => 1,
            ReserveUse::Usable => 0,
        };
        if self.segments.spares() >= turns + kept || self.make_room(turns + kept) {
            return Ok(());
        }
        self.release();
        if reserve == ReserveUse::Usable && self.segments.has_freed() {
            return Ok(());
        }
        self.batch.bytes.truncate(start);
        // A segment that was given up can be written again once a header has said so, and on a full
        // disk there may be no other reason to write one.
        self.batch.marked |= self.segments.has_freed();
        Err(no_room())
    }

    /// Writes and flushes the batch, shows it in the index, and answers. Whoever waits for the batch is
    /// told if that failed.
    pub(crate) fn flush(&mut self) {
        let _ = self.write_and_answer();
    }

    fn write_and_answer(&mut self) -> Result<(), WriteFailure> {
        let is_empty = self.batch.pending.is_empty() && !self.batch.marked;
        let written = match self.shared.check() {
            Err(_) => Err(WriteFailure::Disk),
            Ok(()) if is_empty => Ok(()),
            Ok(()) => self.write().map(|offset| self.show(offset)),
        };
        // What was flushed to a folder that is no longer ours is not acknowledged.
        let written =
            written.and_then(|()| self.shared.check_folder().map_err(|_| WriteFailure::Disk));
        for answer in std::mem::take(&mut self.batch.answers) {
            answer.tell(match written {
                Ok(()) => Ok(()),
                Err(WriteFailure::Full) => Err(StoreError::not_applied(StoreErrorKind::Full)),
                Err(WriteFailure::Disk) => {
                    Err(StoreError::maybe_applied(StoreErrorKind::Unavailable)
                        .because("the store has failed; open it again"))
                }
            });
        }
        self.batch.clear();
        written
    }

    /// Writes the batch at the end of the log and flushes it. Says where it stands.
    fn write(&mut self) -> Result<u32, WriteFailure> {
        self.release();
        let length = self.batch.length();
        if self.must_turn(length) {
            self.find_spare()?;
            if let Some(from) = self.batch.renews {
                return self.turn_with_batch(from);
            }
            self.turn()?;
        }
        let offset = self.end;
        let after = self.batch.renews.unwrap_or(offset);
        let Some((_, file)) = self.segments.newest() else { return Err(WriteFailure::Full) };
        self.seal(self.generation, offset, after);
        self.write_batch(&*file, offset)?;
        self.end = offset + length as u32;
        Ok(offset)
    }

    /// Writes the sealed batch to a place and flushes it.
    pub(crate) fn write_batch(
        &mut self,
        file: &dyn StoreFile,
        offset: u32,
    ) -> Result<(), WriteFailure> {
        if let Err(error) = file.write(&self.batch.bytes, u64::from(offset)) {
            // Half a batch does not verify, and the next one is written over it.
            return Err(if is_full(&error) {
                WriteFailure::Full
            } else {
                self.fail("write", &error)
            });
        }
        if self.settings.durability == Durability::Full
            && let Err(error) = file.flush()
        {
            return Err(self.fail("flush", &error));
        }
        match file.is_removed() {
            Ok(false) => Ok(()),
            Ok(true) => {
                let why = "the segment was removed while the store was open";
                Err(self.fail("write", &io::Error::new(io::ErrorKind::NotFound, why)))
            }
            Err(error) => Err(self.fail("write", &error)),
        }
    }

    /// What headers say of the log.
    pub(crate) fn state(&self, generation: u64) -> LogState {
        LogState {
            oldest: self.segments.oldest().unwrap_or(generation),
            sequence: self.sequence,
            clock: self.shared.clock.now().as_ms(),
            slots: self.segments.slots(),
            reaped: self.reaped,
        }
    }

    /// Fills in the headers of the batch and of its entries.
    pub(crate) fn seal(&mut self, generation: u64, offset: u32, after: u32) {
        let (store, state) = (self.store, self.state(generation));
        self.clock_mark = Time::from_ms(state.clock);
        let PendingBatch { bytes, pending, .. } = &mut self.batch;
        for PendingEntry { header, at } in pending {
            let start = *at - ENTRY_BYTES;
            let place = EntryPlace { store, generation, offset: offset + start as u32 };
            header.encode(bytes.get_mut(start..).unwrap_or_default(), place);
        }
        let body = bytes.get(BATCH_BYTES..).unwrap_or_default();
        let (length, checksum) = (body.len() as u32, checksum_of(body));
        let header = BatchHeader { store, generation, offset, length, after, checksum, state };
        let padding = header.bytes_on_disk() - bytes.len();
        bytes.extend_from_slice(ZEROS.get(..padding).unwrap_or_default());
        header.encode(bytes);
    }

    /// Shows a batch that is durable in the index.
    fn show(&mut self, offset: u32) {
        self.snapshots.written(self.batch.bytes.len() as u64);
        // The header that was flushed says that these hold nothing any more.
        self.segments.recycle_freed();
        let Some((slot, _)) = self.segments.newest() else { return };
        for pending in &self.batch.pending {
            let EntryHeader { id, version, previous, due, standing, length } = pending.header;
            let at = offset + pending.at as u32;
            let prefix = prefix_of(&id);
            if previous == version && self.shared.index.get(prefix, version).is_none() {
                // A copy of what was superseded in the same batch.
                continue;
            }
            let entry = IndexEntry::new(prefix, version, due, standing, (slot, at, length));
            self.segments.gained(slot, length);
            if let Some(old) = self.shared.index.put(entry, previous) {
                self.segments.lost(old.slot, old.length);
            }
        }
    }

    /// From here on the store refuses everything.
    pub(crate) fn fail(&self, doing: &str, error: &io::Error) -> WriteFailure {
        self.shared.fail(format!("cannot {doing} the log: {error}"));
        WriteFailure::Disk
    }
}

/// Whether a write may use the room that is kept for settling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveUse {
    /// A begin may not: one segment stays free, so that whatever runs can be settled on a full disk.
    Kept,
    /// Everything else may.
    Usable,
}

fn no_room() -> StoreError {
    StoreError::not_applied(StoreErrorKind::Full)
        .because("no room on the disk for another segment of the store")
}

/// Whether a disk has refused for want of room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
