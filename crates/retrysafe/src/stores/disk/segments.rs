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
use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::files::{StoreFile, StoreFolder};
use super::format::ENTRY_BYTES;
use super::log::{LogWriter, is_full};

/// How many spares a running store keeps ready: one for settling on a full disk, and one to turn to
/// while the next is being filled.
const SPARES_READY: usize = 2;

/// How long a full disk is left alone before another segment is tried. A try fills what is left of
/// the disk and gives it back, which others on it would notice.
const FULL_PAUSE: Duration = Duration::from_millis(500);

/// How many segments there may be: their number takes two bytes in the index.
const SLOTS_MAX: usize = 1 << 16;

/// How many bytes are filled with one call.
const FILL_BYTES: usize = 1 << 20;

/// All segments.
#[derive(Debug, Default)]
pub(crate) struct SegmentRing {
    all: Vec<RingSegment>,
    in_use: VecDeque<u16>,
    /// First come, first used: a new segment waits until a header has counted it, so that its
    /// loss would be noticed.
    spare: VecDeque<u16>,
    freed: Vec<u16>,
    filling: Option<JoinHandle<io::Result<Arc<dyn StoreFile>>>>,
    paused_until: Option<Instant>,
    /// Whether the last attempt to add a segment failed.
    is_short: bool,
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

/// Creates a segment's file, full of zeros, and makes it durable under its name.
pub(crate) fn fill(
    folder: &dyn StoreFolder,
    slot: usize,
    bytes: u32,
) -> io::Result<Arc<dyn StoreFile>> {
    let (name, new) = (name_of(slot), format!("{}.new", name_of(slot)));
    let filled = fill_file(folder, &new, bytes);
    if filled.is_err() {
        // Whatever was filled is given back; a name that stays is removed by the next opening.
        let _ = folder.remove(&new);
    }
    let file = filled?;
    folder.rename(&new, &name)?;
    folder.flush()?;
    Ok(file)
}

fn fill_file(folder: &dyn StoreFolder, name: &str, bytes: u32) -> io::Result<Arc<dyn StoreFile>> {
    let file = folder.create(name)?;
    let zeros = vec![0; FILL_BYTES.min(bytes as usize)];
    let mut at = 0;
    while at < u64::from(bytes) {
        let length = zeros.len().min((u64::from(bytes) - at) as usize);
        file.write(zeros.get(..length).unwrap_or_default(), at)?;
        at += length as u64;
    }
    file.flush()?;
    Ok(file)
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

    /// Whether there is no room on the disk for more.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
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

    /// Gives up the oldest segment, which must hold nothing current.
    pub(crate) fn free_front(&mut self) {
        self.freed.extend(self.in_use.pop_front());
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

impl LogWriter {
    /// Keeps spares ready, beside the writer where there is a thread for it.
    pub(crate) fn keep_spares(&mut self) {
        if self.segments.filling.as_ref().is_some_and(JoinHandle::is_finished) {
            self.await_filling();
        }
        if self.settings.inline {
            self.make_room(1);
        } else if self.segments.spares() + self.segments.freed.len() < SPARES_READY {
            self.start_filling();
        }
    }

    /// Waits until there are so many spares, or says that there is no room for them.
    pub(crate) fn make_room(&mut self, spares: usize) -> bool {
        while self.segments.spares() < spares {
            let before = self.segments.spares();
            self.start_filling();
            self.await_filling();
            if self.segments.spares() == before {
                return false;
            }
        }
        true
    }

    fn start_filling(&mut self) {
        let paused = self.segments.paused_until.is_some_and(|until| Instant::now() < until);
        let slot = self.segments.all.len();
        if paused || self.segments.filling.is_some() || slot >= SLOTS_MAX {
            return;
        }
        let (folder, bytes) = (Arc::clone(&self.folder), self.settings.segment_bytes);
        if self.settings.inline {
            let filled = fill(&*folder, slot, bytes);
            self.filled(filled);
            return;
        }
        let thread = std::thread::Builder::new().name("retrysafe-fill".into());
        match thread.spawn(move || fill(&*folder, slot, bytes)) {
            Ok(filling) => self.segments.filling = Some(filling),
            Err(error) => self.filled(Err(error)),
        }
    }

    /// Waits for a segment that is being filled, if there is one.
    fn await_filling(&mut self) {
        if let Some(filling) = self.segments.filling.take() {
            let panicked = |_| Err(io::Error::other("the thread that fills segments panicked"));
            let filled = filling.join().unwrap_or_else(panicked);
            self.filled(filled);
        }
    }

    fn filled(&mut self, filled: io::Result<Arc<dyn StoreFile>>) {
        match filled {
            Ok(file) => {
                self.segments.is_short = false;
                self.segments.paused_until = None;
                self.segments.spare.push_back(self.segments.all.len() as u16);
                self.segments.all.push(RingSegment::new(Arc::clone(&file), 0, 0));
                let mut files = self.shared.files.write().unwrap_or_else(PoisonError::into_inner);
                files.push(file);
            }
            Err(error) => {
                let full = is_full(&error);
                tracing::warn!(%error, full, "the disk store could not add a segment");
                self.segments.is_short = true;
                if !self.settings.inline {
                    self.segments.paused_until = Some(Instant::now() + FULL_PAUSE);
                }
            }
        }
    }

    /// Waits for whatever runs beside the writer.
    pub(crate) fn await_threads(&mut self) {
        self.await_filling();
        self.snapshots.wait();
    }
}
