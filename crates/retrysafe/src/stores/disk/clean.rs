//! How does an old segment come to hold nothing current?
//!
//! Most records of a segment die together, at their TTL, and the segment is simply given up. What
//! outlives its neighbours (running, unknown, kept longer) is copied to the new end of the log. The
//! log is given up from its old end only, in order: then an older version of a record is always gone
//! before a newer one, and nothing that was superseded can come back.

use std::ops::Range;
use std::sync::Arc;

use super::append::LogAppender;
use super::batch::{NextBatch, SegmentPlace};
use super::format::{BATCH_BYTES, BatchHeader, EntryHeader, PAGE};
use super::index::{SHARDS, prefix_of};
use super::segments::SegmentRing;

/// How many bytes of an old segment are read between two batches, at least: well below the cost of
/// a flush.
const STEP_BYTES: u32 = 128 << 10;

/// How many segments a log has before it is worth cleaning.
const USED_MIN: usize = 4;

/// Copies forward what is still current in the oldest segment.
#[derive(Debug, Default)]
pub(crate) struct SegmentCleaner {
    progress: Option<CleaningProgress>,
}

/// How far the oldest segment is read.
#[derive(Clone, Copy, Debug)]
struct CleaningProgress {
    generation: u64,
    /// Up to where its batches were read.
    at: u32,
    /// Which shard of the index comes next, where its batches cannot be read.
    shard: usize,
}

impl SegmentCleaner {
    /// Copies some of what is still current in the oldest segment into the batch.
    pub(crate) fn step(&mut self, log: &mut LogAppender) {
        if log.reader.failure.get().is_some() || !wants_cleaning(log) {
            return;
        }
        let Some((slot, segment, _)) = log.tail.ring.front() else { return };
        let generation = segment.generation;
        let end = segment.end;
        let file = Arc::clone(&segment.file);
        let bytes = log.tail.segment_bytes;
        let place = SegmentPlace { file: &*file, store: log.reader.store, generation, bytes };
        let start = CleaningProgress { generation, at: PAGE as u32, shard: 0 };
        let former = self.progress.filter(|former| former.generation == generation);
        let mut progress = former.unwrap_or(start);
        if progress.at < end {
            progress.at = copy_step(log, &place, slot, progress.at..end);
        } else if copy_from_shard(log, slot, progress.shard) {
            // Everything readable is copied, and something is left: damage that has come since it
            // was written. The index knows where it stands.
            progress.shard = (progress.shard + 1) % SHARDS;
        }
        self.progress = Some(progress);
    }
}

/// Cleaning costs writes, so it waits until half of the log is dead. A full disk cannot wait: there it
/// is enough that a quarter of the oldest segment is gained.
fn wants_cleaning(log: &LogAppender) -> bool {
    let ring: &SegmentRing = &log.tail.ring;
    let capacity = u64::from(log.tail.segment_bytes);
    let Some((_, _, live)) = ring.front() else { return false };
    let is_half_dead = ring.live() * 2 < ring.used() as u64 * capacity;
    let is_worth_it = ring.used() >= USED_MIN && is_half_dead;
    let is_needed = log.spares.is_short() && live * 4 <= capacity * 3;
    live > 0 && (is_worth_it || is_needed)
}

/// Copies what is current in the next batches of a segment. Says up to where.
fn copy_step(log: &mut LogAppender, place: &SegmentPlace<'_>, slot: u16, range: Range<u32>) -> u32 {
    let step = STEP_BYTES.max((log.batch.bytes_on_disk() as u32).saturating_mul(2));
    let stop = range.start.saturating_add(step).min(range.end);
    let mut at = range.start;
    let mut body = Vec::new();
    while at < stop {
        let Ok(NextBatch::Batch(batch)) = place.next(at, &mut body) else { return range.end };
        if !copy_batch(log, slot, &batch, &body) {
            return at;
        }
        at = batch.end();
    }
    at
}

/// Copies what is current in a batch. Says whether there was room.
fn copy_batch(log: &mut LogAppender, slot: u16, batch: &BatchHeader, body: &[u8]) -> bool {
    let start = batch.offset as usize + BATCH_BYTES;
    for (header, at) in batch.entries(body).flatten() {
        let stands = (start + at) as u32;
        let current = log.reader.index.get(prefix_of(&header.id), header.version);
        let is_current = current.is_some_and(|entry| (entry.slot, entry.offset) == (slot, stands));
        if !is_current || log.batch.record(&header.id).is_some() {
            continue;
        }
        let record = body.get(at..at + header.length as usize).unwrap_or_default();
        if log.append_copy(header, record).is_err() {
            return false;
        }
    }
    true
}

/// Copies what a shard of the index still finds in a segment, damaged or not: damage stays what it is,
/// an error for its own key, and the segment need not be kept for it. One shard at a time, because
/// nobody may wait while the whole index is looked through. Says whether there was room.
fn copy_from_shard(log: &mut LogAppender, slot: u16, shard: usize) -> bool {
    let mut rest = log.reader.index.shard(shard);
    rest.retain(|entry| entry.slot == slot);
    for entry in rest {
        let mut record = vec![0; entry.length as usize];
        if log.reader.read_at(slot, u64::from(entry.offset), &mut record).is_err() {
            return false;
        }
        let header = EntryHeader {
            id: log.reader.id_of(&entry),
            version: entry.version,
            previous: entry.version,
            due: entry.due,
            standing: entry.standing,
            length: entry.length,
        };
        let is_pending = log.batch.record(&header.id).is_some();
        if !is_pending && log.append_copy(header, &record).is_err() {
            return false;
        }
    }
    true
}
