//! How does a batch of changes become durable?
//!
//! Entries gather in a batch. The batch is written and flushed at the end of the log, and only then
//! shown in the index and answered.
//!
//! Room is found before an entry joins the batch, so that a full disk refuses the entry alone. One
//! spare segment is kept from begins: whatever runs can then be settled on a full disk.

use std::sync::Arc;

use retrysafe_core::record::Record;
use retrysafe_core::store::{StoreError, StoreErrorKind};

use super::format::EntryHeader;
use super::index::{IndexEntry, prefix_of};
use super::pending::PendingBatch;
use super::read::LogReader;
use super::spares::SpareFiller;
use super::tail::{LogTail, WriteFailure};

/// How many bytes a batch gathers before it is written. Large enough that the flush is what costs,
/// small enough that nobody waits for megabytes of strangers.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Whether a write may use the room that is kept for settling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveUse {
    /// A begin may not: one segment stays free, so that whatever runs can be settled on a full disk.
    Kept,
    /// Everything else may.
    Usable,
}

/// Adds entries to the log.
#[derive(Debug)]
pub(crate) struct LogAppender {
    pub(crate) reader: Arc<LogReader>,
    pub(crate) tail: LogTail,
    pub(crate) batch: PendingBatch,
    pub(crate) spares: SpareFiller,
    /// How many entries were copied forward.
    copied: u64,
    /// How many bytes of log there are since the last snapshot was read.
    written: u64,
}

impl LogAppender {
    /// Goes on at the end of a log of which so many bytes were read at the opening.
    pub(crate) fn new(tail: LogTail, spares: SpareFiller, written: u64) -> Self {
        let reader = Arc::clone(&tail.reader);
        let batch = PendingBatch::new();
        Self { reader, tail, batch, spares, copied: 0, written }
    }

    #[cfg(test)]
    pub(crate) fn copied(&self) -> u64 {
        self.copied
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
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
        let (start, length) = self.batch.draft(|bytes| record.encode_into(bytes));
        self.find_room(start, reserve)?;
        self.tail.sequence = self.tail.sequence.max(record.version);
        self.batch.admit(EntryHeader { length, ..EntryHeader::of(record, previous) });
        Ok(())
    }

    /// Adds a copy of an entry to the batch, so that its old segment can be given up.
    pub(crate) fn append_copy(
        &mut self,
        header: EntryHeader,
        record: &[u8],
    ) -> Result<(), StoreError> {
        let (start, length) = self.batch.draft(|bytes| bytes.extend_from_slice(record));
        self.find_room(start, ReserveUse::Usable)?;
        self.copied += 1;
        self.batch.admit(EntryHeader { previous: header.version, length, ..header });
        Ok(())
    }

    /// Whether the batch has gathered enough to be written before more is added.
    pub(crate) fn is_batch_full(&self) -> bool {
        let enough = BATCH_BYTES_MAX.min(self.tail.segment_bytes as usize / 4);
        self.batch.bytes_on_disk() >= enough
    }

    /// Makes sure that a begin would find a place, as far as the batch is known.
    pub(crate) fn find_room_for_a_begin(&mut self) -> Result<(), StoreError> {
        self.find_room(self.batch.draft_start(), ReserveUse::Kept)
    }

    /// Makes sure that there is a place for the batch with the draft that begins at `start`; else
    /// takes the draft out again.
    fn find_room(&mut self, start: usize, reserve: ReserveUse) -> Result<(), StoreError> {
        let start = self.split_if_too_long(start)?;
        let length = self.batch.bytes_on_disk();
        if length > self.tail.batch_bytes_max() {
            self.batch.take_draft(start);
            return Err(StoreError::not_applied(StoreErrorKind::Full)
                .because("the record is larger than a segment of the store"));
        }
        let turns = usize::from(self.tail.must_turn(length));
        let kept = match reserve {
            ReserveUse::Kept => 1,
            ReserveUse::Usable => 0,
        };
        if self.make_room(turns + kept) {
            return Ok(());
        }
        self.tail.ring.release();
        if reserve == ReserveUse::Usable && self.tail.ring.has_freed() {
            return Ok(());
        }
        self.batch.take_draft(start);
        if self.tail.ring.has_freed() {
            // A segment that was given up can be written again once a header has said so, and on a
            // full disk there may be no other reason to write one.
            self.batch.mark();
        }
        Err(no_room())
    }

    /// Writes the batch without its draft if it is too long with it, and lets the draft begin the
    /// next one. Says where the draft begins.
    fn split_if_too_long(&mut self, start: usize) -> Result<usize, StoreError> {
        let is_too_long = self.batch.bytes_on_disk() > self.tail.batch_bytes_max();
        if !is_too_long || !PendingBatch::has_entries_before(start) {
            return Ok(start);
        }
        let draft = self.batch.take_draft(start);
        let flushed = self.write_and_answer();
        self.reader.check()?;
        // The draft may replace what was not written just now.
        flushed.map_err(|_| no_room())?;
        Ok(self.batch.put_draft(&draft))
    }

    /// Sees to it that there are so many spares, or says that there is no room for them.
    fn make_room(&mut self, spares: usize) -> bool {
        self.spares.make_room(spares, &mut self.tail.ring, &self.reader)
    }

    /// Keeps spares ready for what is appended later.
    pub(crate) fn keep_spares(&mut self) {
        self.spares.keep_ready(&mut self.tail.ring, &self.reader);
    }

    /// Waits for a spare that is being filled.
    pub(crate) fn await_spare(&mut self) {
        self.spares.wait(&mut self.tail.ring, &self.reader);
    }

    /// Writes and flushes the batch, shows it in the index, and answers. Whoever waits for the batch is
    /// told if that failed.
    pub(crate) fn flush(&mut self) {
        let _ = self.write_and_answer();
    }

    fn write_and_answer(&mut self) -> Result<(), WriteFailure> {
        let written = match self.reader.check() {
            Err(_) => Err(WriteFailure::Disk),
            Ok(()) if self.batch.is_empty() => Ok(()),
            Ok(()) => self.write().map(|offset| self.show(offset)),
        };
        // What was flushed to a folder that is no longer ours is not acknowledged.
        let is_ours = |()| self.reader.check_folder().map_err(|_| WriteFailure::Disk);
        let written = written.and_then(is_ours);
        self.batch.end(|| match written {
            Ok(()) => Ok(()),
            Err(WriteFailure::Full) => Err(StoreError::not_applied(StoreErrorKind::Full)),
            Err(WriteFailure::Disk) => Err(StoreError::maybe_applied(StoreErrorKind::Unavailable)
                .because("the store has failed; open it again")),
        });
        written
    }

    /// Writes the batch at the end of the log and flushes it. Says where it stands.
    fn write(&mut self) -> Result<u32, WriteFailure> {
        self.tail.ring.release();
        if self.tail.must_turn(self.batch.bytes_on_disk()) {
            self.find_spare()?;
            if let Some(from) = self.batch.renews() {
                return self.tail.turn_with_batch(&mut self.batch, from);
            }
            self.tail.turn()?;
        }
        self.tail.write(&mut self.batch)
    }

    /// Sees to it that there is a spare to turn to.
    fn find_spare(&mut self) -> Result<(), WriteFailure> {
        if self.make_room(1) {
            return Ok(());
        }
        // The last way on a full disk: a segment that was given up just now. Not while the last batch
        // is in doubt: whatever is written after it says that it is durable.
        if self.batch.renews().is_some() {
            return Err(WriteFailure::Full);
        }
        self.tail.write_what_is_freed()
    }

    /// Shows a batch that is durable in the index.
    fn show(&mut self, offset: u32) {
        self.written += self.batch.bytes().len() as u64;
        let ring = &mut self.tail.ring;
        // The header that was flushed says that these hold nothing any more.
        ring.recycle_freed();
        let Some((slot, _)) = ring.newest() else { return };
        for pending in self.batch.entries() {
            let EntryHeader { id, version, previous, due, standing, length } = pending.header;
            let at = offset + pending.at as u32;
            let prefix = prefix_of(&id);
            if previous == version && self.reader.index.get(prefix, version).is_none() {
                // A copy of what was superseded in the same batch.
                continue;
            }
            let entry = IndexEntry::new(prefix, version, due, standing, (slot, at, length));
            ring.gained(slot, length);
            if let Some(old) = self.reader.index.put(entry, previous) {
                ring.lost(old.slot, old.length);
            }
            self.reader.watchers.changed(&id);
        }
    }
}

fn no_room() -> StoreError {
    StoreError::not_applied(StoreErrorKind::Full)
        .because("no room on the disk for another segment of the store")
}
