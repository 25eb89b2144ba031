//! Which segments are in use, and which may be written anew?
//!
//! Segments are used in a ring: the newest is written, the oldest is given up when nothing in it is
//! current. A segment is filled with zeros when it is created, so that a flush of it never changes
//! the file's metadata, and it is never removed: given up, it waits as a spare.
//!
//! A segment that was given up still holds its old batches. It must not be written before a flushed
//! header says that the log begins after it: a crash would else find it half overwritten and still
//! in use. So it is *freed* first, and a spare after the next flush. The same holds for a segment
//! that only the last batch of a store has given up which is being opened.

use std::collections::VecDeque;
use std::sync::Arc;

use super::files::StoreFile;
use super::format::ENTRY_BYTES;

/// All segments.
#[derive(Debug, Default)]
pub(crate) struct SegmentRing {
    all: Vec<RingSegment>,
    in_use: VecDeque<u16>,
    /// First come, first used: a new segment waits until a header has counted it, so that its
    /// loss would be noticed.
    spare: VecDeque<u16>,
    freed: Vec<u16>,
}

/// One segment.
#[derive(Debug)]
pub(crate) struct RingSegment {
    pub(crate) file: Arc<dyn StoreFile>,
    /// Zero if it was never in use.
    pub(crate) generation: u64,
    /// Where its batches end, if it is in use and not the newest.
    pub(crate) end: u32,
    /// How many bytes of current entries it holds.
    live: u64,
}

/// The name of a segment's file.
pub(crate) fn name_of(slot: usize) -> String {
    format!("segment-{slot:05}")
}

/// Whether this is the name of a segment's file, and not of a copy that somebody has put beside it.
pub(crate) fn is_segment(name: &str) -> bool {
    let slot = name.strip_prefix("segment-").and_then(|digits| digits.parse().ok());
    slot.is_some_and(|slot| name_of(slot) == name)
}

impl RingSegment {
    pub(crate) fn new(file: Arc<dyn StoreFile>, generation: u64, end: u32) -> Self {
        Self { file, generation, end, live: 0 }
    }
}

impl SegmentRing {
    /// The segments of a store that is being opened. Those from `oldest` on are in use. Those before
    /// `oldest_for_sure` are spares; those in between were given up by the last batch.
    pub(crate) fn opened(all: Vec<RingSegment>, oldest: u64, oldest_for_sure: u64) -> Self {
        let mut segments = Self::default();
        let mut in_use: Vec<(u64, u16)> = Vec::new();
        for (slot, segment) in all.iter().enumerate() {
            let slot = slot as u16;
            if segment.generation >= oldest.max(1) {
                in_use.push((segment.generation, slot));
            } else if segment.generation >= oldest_for_sure.max(1) {
                segments.freed.push(slot);
            } else {
                segments.spare.push_back(slot);
            }
        }
        in_use.sort_unstable();
        segments.in_use = in_use.into_iter().map(|(_, slot)| slot).collect();
        segments.all = all;
        segments
    }

    /// How many may be written at once.
    pub(crate) fn spares(&self) -> usize {
        self.spare.len()
    }

    pub(crate) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// How many may be written now or after the next flush.
    pub(crate) fn spares_soon(&self) -> usize {
        self.spare.len() + self.freed.len()
    }

    /// Adds a segment that was filled, as a spare.
    pub(crate) fn add(&mut self, file: Arc<dyn StoreFile>) {
        self.spare.push_back(self.all.len() as u16);
        self.all.push(RingSegment::new(file, 0, 0));
    }

    /// How many there are.
    pub(crate) fn slots(&self) -> u32 {
        self.all.len() as u32
    }

    /// How many are in use.
    pub(crate) fn used(&self) -> usize {
        self.in_use.len()
    }

    /// Those that are in use, the oldest first.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = &RingSegment> {
        self.in_use.iter().filter_map(|slot| self.get(*slot))
    }

    /// How many bytes of current entries there are in all.
    pub(crate) fn live(&self) -> u64 {
        self.in_use().map(|segment| segment.live).sum()
    }

    /// The oldest generation in use.
    pub(crate) fn oldest(&self) -> Option<u64> {
        Some(self.get(*self.in_use.front()?)?.generation)
    }

    /// The oldest segment, if it is not the newest too, and how many live bytes it has.
    pub(crate) fn front(&self) -> Option<(u16, &RingSegment, u64)> {
        let slot = *self.in_use.front().filter(|_| self.in_use.len() > 1)?;
        let segment = self.get(slot)?;
        Some((slot, segment, segment.live))
    }

    /// The segment that is written.
    pub(crate) fn newest(&self) -> Option<(u16, Arc<dyn StoreFile>)> {
        let slot = *self.in_use.back()?;
        Some((slot, Arc::clone(&self.get(slot)?.file)))
    }

    /// The spare that is taken into use next.
    pub(crate) fn next_spare(&self) -> Option<Arc<dyn StoreFile>> {
        Some(Arc::clone(&self.get(*self.spare.front()?)?.file))
    }

    /// Takes the next spare into use. The newest segment so far ends there.
    pub(crate) fn turn(&mut self, generation: u64, previous_end: u32) {
        let Some(slot) = self.spare.pop_front() else { return };
        if let Some(newest) = self.in_use.back()
            && let Some(segment) = self.all.get_mut(usize::from(*newest))
        {
            segment.end = previous_end;
        }
        if let Some(segment) = self.all.get_mut(usize::from(slot)) {
            segment.generation = generation;
            segment.live = 0;
        }
        self.in_use.push_back(slot);
    }

    /// Gives up the oldest segments that hold nothing current.
    pub(crate) fn release(&mut self) {
        while self.front().is_some_and(|(_, _, live)| live == 0) {
            self.freed.extend(self.in_use.pop_front());
        }
    }

    /// Makes spares of what was given up before the last flush.
    pub(crate) fn recycle_freed(&mut self) {
        self.spare.extend(self.freed.drain(..));
    }

    pub(crate) fn gained(&mut self, slot: u16, record: u32) {
        if let Some(segment) = self.all.get_mut(usize::from(slot)) {
            segment.live += cost(record);
        }
    }

    pub(crate) fn lost(&mut self, slot: u16, record: u32) {
        if let Some(segment) = self.all.get_mut(usize::from(slot)) {
            segment.live = segment.live.saturating_sub(cost(record));
        }
    }

    fn get(&self, slot: u16) -> Option<&RingSegment> {
        self.all.get(usize::from(slot))
    }
}

/// What a record of this length takes in its segment.
fn cost(record: u32) -> u64 {
    ENTRY_BYTES as u64 + u64::from(record)
}
