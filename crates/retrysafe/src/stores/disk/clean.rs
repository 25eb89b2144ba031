//! How does an old segment come to hold nothing current?
//!
//! Most records of a segment die together, at their TTL, and the segment is simply given up. What
//! outlives its neighbours (running, unknown, kept longer) is copied to the new end of the log. The
//! log is given up from its old end only, in order: then an older version of a record is always gone
//! before a newer one, and nothing that was superseded can come back.

use super::batch::{NextBatch, SegmentPlace};
use super::format::{BATCH_BYTES, BatchHeader, EntryHeader, PAGE};
use super::index::{SHARDS, prefix_of};
use super::log::LogWriter;

/// How many bytes of an old segment are read between two batches, at least: well below the cost of
/// a flush.
const STEP_BYTES: u32 = 128 << 10;

/// How many segments a log has before it is worth cleaning.
const USED_MIN: usize = 4;

/// How far the oldest segment is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CleaningProgress {
    generation: u64,
    /// Up to where its batches were read.
    at: u32,
    /// Which shard of the index comes next, where its batches cannot be read.
    shard: usize,
}

impl LogWriter {
    /// Gives up the oldest segments that hold nothing current.
    pub(crate) fn release(&mut self) {
        while self.segments.front().is_some_and(|(_, _, live)| live == 0) {
            self.segments.free_front();
        }
    }

    /// Copies some of what is still current in the oldest segment into the batch.
    pub(crate) fn clean(&mut self) {
        if self.shared.failure.get().is_some() || !self.wants_cleaning() {
            return;
        }
        let Some((slot, segment, _)) = self.segments.front() else { return };
        let (generation, end) = (segment.generation, segment.end);
        let file = std::sync::Arc::clone(&segment.file);
        let bytes = self.settings.segment_bytes;
        let place = SegmentPlace { file: &*file, store: self.store, generation, bytes };
        let start = CleaningProgress { generation, at: PAGE as u32, shard: 0 };
        let mut cleaning = self.cleaning.filter(|c| c.generation == generation).unwrap_or(start);
        if cleaning.at >= end {
            // Everything readable is copied, and something is left: damage that has come since it
            // was written. The index knows where it stands.
            if self.copy_from_shard(slot, cleaning.shard) {
                cleaning.shard = (cleaning.shard + 1) % SHARDS;
            }
            self.cleaning = Some(cleaning);
            return;
        }
        let step = STEP_BYTES.max(self.batch.bytes_on_disk().saturating_mul(2));
        let stop = cleaning.at.saturating_add(step).min(end);
        let mut body = Vec::new();
        while cleaning.at < stop {
            let Ok(NextBatch::Batch(batch)) = place.next(cleaning.at, &mut body) else {
                cleaning.at = end;
                break;
            };
            if !self.copy_batch(slot, &batch, &body) {
                break;
            }
            cleaning.at = batch.end();
        }
        self.cleaning = Some(cleaning);
    }

    /// Cleaning costs writes, so it waits until half of the log is dead. A full disk cannot wait:
    /// there it is enough that a quarter of the oldest segment is gained.
    fn wants_cleaning(&self) -> bool {
        let capacity = u64::from(self.settings.segment_bytes);
        let Some((_, _, live)) = self.segments.front() else { return false };
        let is_half_dead = self.segments.live() * 2 < self.segments.used() as u64 * capacity;
        let is_worth_it = self.segments.used() >= USED_MIN && is_half_dead;
        let is_needed = self.segments.is_short() && live * 4 <= capacity * 3;
        live > 0 && (is_worth_it || is_needed)
    }

    /// Copies what is current in a batch. Says whether there was room.
    fn copy_batch(&mut self, slot: u16, batch: &BatchHeader, body: &[u8]) -> bool {
        let start = batch.offset as usize + BATCH_BYTES;
        for (header, at) in batch.entries(body).flatten() {
            let stands = (start + at) as u32;
            let is_current = self
                .shared
                .index
                .get(prefix_of(&header.id), header.version)
                .is_some_and(|entry| (entry.slot, entry.offset) == (slot, stands));
            if !is_current || self.pending(&header.id).is_some() {
                continue;
            }
            let record = body.get(at..at + header.length as usize).unwrap_or_default();
            if self.append_copy(header, record).is_err() {
                return false;
            }
        }
        true
    }

    /// Copies what a shard of the index still finds in a segment, damaged or not: damage stays what
    /// it is, an error for its own key, and the segment need not be kept for it. One shard at a time,
    /// because nobody may wait while the whole index is looked through.
    /// Says whether there was room.
    fn copy_from_shard(&mut self, slot: u16, shard: usize) -> bool {
        let mut rest = self.shared.index.shard(shard);
        rest.retain(|entry| entry.slot == slot);
        for entry in rest {
            let mut record = vec![0; entry.length as usize];
            if self.shared.read_at(slot, u64::from(entry.offset), &mut record).is_err() {
                return false;
            }
            let header = EntryHeader {
                id: self.shared.id_of(&entry),
                version: entry.version,
                previous: entry.version,
                due: entry.due,
                standing: entry.standing,
                length: entry.length,
            };
            if self.pending(&header.id).is_none() && self.append_copy(header, &record).is_err() {
                return false;
            }
        }
        true
    }
}
