//! How is a segment taken into use?

use std::sync::PoisonError;

use super::files::StoreFile;
use super::format::{BatchHeader, PAGE, SegmentHeader, checksum_of};
use super::log::{LogWriter, WriteFailure};

impl LogWriter {
    /// Sees to it that there is a spare to turn to.
    pub(crate) fn find_spare(&mut self) -> Result<(), WriteFailure> {
        if self.segments.spares() > 0 || self.make_room(1) {
            return Ok(());
        }
        // The last way on a full disk: a segment that was given up just now. First a flushed header
        // must say so. There is a page for it at the end of every segment. Not while the last batch
        // is in doubt: whatever is written after it says that it is durable.
        let has_page = self.end as usize + PAGE <= self.settings.segment_bytes as usize;
        if !self.segments.has_freed() || !has_page || self.batch.renews.is_some() {
            return Err(WriteFailure::Full);
        }
        let Some((_, file)) = self.segments.newest() else { return Err(WriteFailure::Full) };
        let mut page = vec![0; PAGE];
        let (store, generation, offset) = (self.store, self.generation, self.end);
        let (checksum, state) = (checksum_of(&[]), self.state(generation));
        BatchHeader { store, generation, offset, length: 0, after: offset, checksum, state }
            .encode(&mut page);
        self.write_through(&*file, &page, offset)?;
        self.end += PAGE as u32;
        self.segments.recycle_freed();
        Ok(())
    }

    /// Takes a spare into use, by its header.
    pub(crate) fn turn(&mut self) -> Result<(), WriteFailure> {
        let Some(file) = self.segments.next_spare() else { return Err(WriteFailure::Full) };
        self.write_segment_header(&*file, self.end)?;
        self.turned(self.end);
        self.end = PAGE as u32;
        Ok(())
    }

    /// Takes a spare into use together with a batch that holds anew what the newest segment ends
    /// with, from an offset on. The new header cuts that off, so the batch must be durable before.
    pub(crate) fn turn_with_batch(&mut self, from: u32) -> Result<u32, WriteFailure> {
        let Some(file) = self.segments.next_spare() else { return Err(WriteFailure::Full) };
        let (offset, length) = (PAGE as u32, self.batch.length() as u32);
        self.seal(self.generation + 1, offset, 0);
        self.write_batch(&*file, offset)?;
        self.write_segment_header(&*file, from)?;
        self.turned(from);
        self.end = offset + length;
        Ok(offset)
    }

    /// Writes and flushes the header of the next generation.
    fn write_segment_header(
        &self,
        file: &dyn StoreFile,
        previous_end: u32,
    ) -> Result<(), WriteFailure> {
        let mut page = vec![0; PAGE];
        let generation = self.generation + 1;
        let (store, state) = (self.store, self.state(generation));
        let previous_end = if generation == 1 { 0 } else { previous_end };
        SegmentHeader { store, generation, previous_end, state }.encode(&mut page);
        self.write_through(file, &page, 0)
    }

    /// Writes and flushes, whatever durability was asked for.
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
        self.segments.turn(self.generation, previous_end);
        let Some((slot, _)) = self.segments.newest() else { return };
        let mut generations =
            self.shared.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let count = generations.len().max(usize::from(slot) + 1);
        generations.resize(count, 0);
        if let Some(place) = generations.get_mut(usize::from(slot)) {
            *place = self.generation;
        }
    }
}
