//! How is the log written at its end?
//!
//! A batch is written at the end of the newest segment with one call and flushed with one call. It
//! counts whole or not at all: its header has a checksum of all its entries.
//!
//! What a crash leaves behind, at any line: batches that were flushed, then at most one that was
//! being written, of whose pages anything may have become. It does not verify, nothing follows it,
//! and it was never acknowledged: it is cut off by opening, and its place is written anew.
//!
//! A segment is taken into use by its header alone, which is flushed before the first batch. A header
//! that a crash has torn is therefore followed by nothing.

use std::io;
use std::sync::Arc;

use retrysafe_core::time::Time;

use super::Durability;
use super::files::{StoreFile, is_full};
use super::format::{BatchHeader, LogState, PAGE, SegmentHeader, checksum_of};
use super::index::ReapMark;
use super::pending::{BatchPlace, PendingBatch};
use super::read::LogReader;
use super::segments::SegmentRing;

/// The end of the log, and what headers say there of all of it.
#[derive(Debug)]
pub(crate) struct LogTail {
    pub(crate) reader: Arc<LogReader>,
    pub(crate) ring: SegmentRing,
    pub(crate) segment_bytes: u32,
    pub(crate) durability: Durability,
    /// The generation and end of the segment that is written.
    pub(crate) generation: u64,
    pub(crate) end: u32,
    /// The last version given out.
    pub(crate) sequence: u64,
    /// How far records are reaped.
    pub(crate) reaped: ReapMark,
    /// The clock's reading in the last header that was written.
    pub(crate) clock_mark: Time,
}

/// Why a batch did not become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteFailure {
    /// The disk had no room to write it. It surely is not there.
    Full,
    /// The disk failed. It may be there.
    Disk,
}

impl LogTail {
    /// How long a batch may be: one page of a segment is its header's, and one is kept so that a
    /// full segment can still say which segments hold nothing any more.
    pub(crate) fn batch_bytes_max(&self) -> usize {
        (self.segment_bytes as usize).saturating_sub(2 * PAGE)
    }

    /// Whether a batch of this length has no place in the newest segment.
    pub(crate) fn must_turn(&self, length: usize) -> bool {
        self.end as usize + length + PAGE > self.segment_bytes as usize
    }

    /// Writes a batch at the end of the log and flushes it. Says where it stands.
    pub(crate) fn write(&mut self, batch: &mut PendingBatch) -> Result<u32, WriteFailure> {
        let offset = self.end;
        let length = batch.bytes_on_disk() as u32;
        let after = batch.renews().unwrap_or(offset);
        let Some((_, file)) = self.ring.newest() else { return Err(WriteFailure::Full) };
        self.seal(batch, self.generation, offset, after);
        self.write_batch(&*file, batch.bytes(), offset)?;
        self.end = offset + length;
        Ok(offset)
    }

    /// Takes a spare into use, by its header.
    pub(crate) fn turn(&mut self) -> Result<(), WriteFailure> {
        let Some(file) = self.ring.next_spare() else { return Err(WriteFailure::Full) };
        self.write_segment_header(&*file, self.end)?;
        self.turned(self.end);
        self.end = PAGE as u32;
        Ok(())
    }

    /// Takes a spare into use together with a batch that holds anew what the newest segment ends
    /// with, from an offset on. The new header cuts that off, so the batch must be durable before.
    pub(crate) fn turn_with_batch(
        &mut self,
        batch: &mut PendingBatch,
        from: u32,
    ) -> Result<u32, WriteFailure> {
        let Some(file) = self.ring.next_spare() else { return Err(WriteFailure::Full) };
        let offset = PAGE as u32;
        let length = batch.bytes_on_disk() as u32;
        self.seal(batch, self.generation + 1, offset, 0);
        self.write_batch(&*file, batch.bytes(), offset)?;
        self.write_segment_header(&*file, from)?;
        self.turned(from);
        self.end = offset + length;
        Ok(offset)
    }

    /// Writes a batch without entries, so that a flushed header says which segments were given up,
    /// and makes spares of them. There is a page for it at the end of every segment.
    pub(crate) fn write_what_is_freed(&mut self) -> Result<(), WriteFailure> {
        let has_page = self.end as usize + PAGE <= self.segment_bytes as usize;
        if !self.ring.has_freed() || !has_page {
            return Err(WriteFailure::Full);
        }
        let Some((_, file)) = self.ring.newest() else { return Err(WriteFailure::Full) };
        let mut page = vec![0; PAGE];
        let store = self.reader.store;
        let generation = self.generation;
        let offset = self.end;
        let checksum = checksum_of(&[]);
        let state = self.state(generation);
        BatchHeader { store, generation, offset, length: 0, after: offset, checksum, state }
            .encode(&mut page);
        self.write_through(&*file, &page, offset)?;
        self.end += PAGE as u32;
        self.ring.recycle_freed();
        Ok(())
    }

    /// What headers say of the log.
    fn state(&self, generation: u64) -> LogState {
        LogState {
            oldest: self.ring.oldest().unwrap_or(generation),
            sequence: self.sequence,
            clock: self.reader.clock.now().as_ms(),
            slots: self.ring.slots(),
            reaped: self.reaped,
        }
    }

    fn seal(&mut self, batch: &mut PendingBatch, generation: u64, offset: u32, after: u32) {
        let state = self.state(generation);
        self.clock_mark = Time::from_ms(state.clock);
        batch.seal(BatchPlace { store: self.reader.store, generation, offset, after }, state);
    }

    /// Writes a sealed batch to a place and flushes it.
    fn write_batch(
        &self,
        file: &dyn StoreFile,
        bytes: &[u8],
        offset: u32,
    ) -> Result<(), WriteFailure> {
        if let Err(error) = file.write(bytes, u64::from(offset)) {
            // Half a batch does not verify, and the next one is written over it.
            let is_full = is_full(&error);
            return Err(if is_full { WriteFailure::Full } else { self.fail("write", &error) });
        }
        if self.durability == Durability::Full
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

    /// Writes and flushes the header of the next generation.
    fn write_segment_header(
        &self,
        file: &dyn StoreFile,
        previous_end: u32,
    ) -> Result<(), WriteFailure> {
        let mut page = vec![0; PAGE];
        let generation = self.generation + 1;
        let store = self.reader.store;
        let state = self.state(generation);
        let previous_end = if generation == 1 { 0 } else { previous_end };
        SegmentHeader { store, generation, previous_end, state }.encode(&mut page);
        self.write_through(file, &page, 0)
    }

    /// Writes and flushes, whatever durability was asked for. A write that fails is the end, also for
    /// want of room: half a page may be a whole header, and would cut off what is written from now on.
    fn write_through(
        &self,
        file: &dyn StoreFile,
        bytes: &[u8],
        at: u32,
    ) -> Result<(), WriteFailure> {
        let written = file.write(bytes, u64::from(at)).and_then(|()| file.flush());
        written.map_err(|error| self.fail("turn", &error))
    }

    /// Notes that the next spare is the newest segment, and where the one before it ends.
    fn turned(&mut self, previous_end: u32) {
        self.generation += 1;
        self.ring.turn(self.generation, previous_end);
        if let Some((slot, _)) = self.ring.newest() {
            self.reader.set_generation(slot, self.generation);
        }
    }

    /// From here on the store refuses everything.
    fn fail(&self, doing: &str, error: &io::Error) -> WriteFailure {
        self.reader.fail(format!("cannot {doing} the log: {error}"));
        WriteFailure::Disk
    }
}
