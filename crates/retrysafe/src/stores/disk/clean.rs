//! How does an old segment come to hold nothing current?
//!
//! Most records of a segment die together, at their TTL, and the segment is simply given up. What
//! outlives its neighbours (running, unknown, kept longer) is copied to the new end of the log. The
//! log is given up from its old end only, in order: then an older version of a record is always gone
//! before a newer one, and nothing that was superseded can come back.

use super::batch::Place;
use super::format::{EntryHeader, SECTOR, entries};
use super::index::{Entry, prefix_of};
use super::log::Log;

/// How many bytes of an old segment are read between two batches, at least: well below the cost of
/// a flush.
const STEP_BYTES: u32 = 128 << 10;

/// How many segments a log has before it is worth cleaning.
const USED_MIN: usize = 4;

/// How far the oldest segment is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cleaning {
    generation: u64,
    at: u32,
    /// Where the segment ends.
    end: u32,
}

impl Log {
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
        let file = std::sync::Arc::clone(&segment.file);
        let (store, bytes) = (self.store, self.settings.segment_bytes);
        let place = Place { file: &*file, store, generation: segment.generation, bytes };
        let start = Cleaning { generation: segment.generation, at: SECTOR as u32, end: bytes };
        let mut cleaning = self
            .cleaning
            .filter(|c| c.generation == start.generation && c.at < c.end)
            .unwrap_or(start);
        let step = STEP_BYTES.max(self.batch.bytes_on_disk().saturating_mul(2));
        let stop = cleaning.at.saturating_add(step).min(cleaning.end);
        let mut body = Vec::new();
        while cleaning.at < stop {
            let Ok(Some(batch)) = place.batch(cleaning.at, &mut body) else {
                // The end of the segment's batches, or damage that has come since they were
                // written. Either way the index knows what is left to be saved.
                if self.copy_rest(slot) {
                    cleaning.at = cleaning.end;
                }
                break;
            };
            if !self.copy_batch(slot, batch.offset, &body) {
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
    fn copy_batch(&mut self, slot: u16, offset: u32, body: &[u8]) -> bool {
        let start = offset as usize + super::format::BATCH_BYTES;
        for (header, at) in entries(body).flatten() {
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

    /// Copies whatever the index still finds in a segment, damaged or not: damage stays what it is,
    /// an error for its own key, and the segment need not be kept for it.
    /// Says whether there was room.
    fn copy_rest(&mut self, slot: u16) -> bool {
        let rest = (0..super::index::SHARDS)
            .flat_map(|number| self.shared.index.shard(number))
            .filter(|entry| entry.slot == slot)
            .collect::<Vec<Entry>>();
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
