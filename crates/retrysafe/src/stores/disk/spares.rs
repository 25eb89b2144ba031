//! How does the store come to have spare segments?
//!
//! A spare is filled beside the writer where there is a thread for it, before the writer needs it. A
//! segment is filled with zeros and flushed under another name first: whatever has a segment's name
//! is whole.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::files::{StoreFile, StoreFolder, is_full};
use super::read::LogReader;
use super::segments::{SegmentRing, name_of};

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

/// Adds segments to a store.
#[derive(Debug)]
pub(crate) struct SpareFiller {
    folder: Arc<dyn StoreFolder>,
    segment_bytes: u32,
    /// Whether the writer fills segments itself, in an order that a test can repeat.
    is_inline: bool,
    filling: Option<JoinHandle<io::Result<Arc<dyn StoreFile>>>>,
    paused_until: Option<Instant>,
    /// Whether the last attempt to add a segment failed.
    is_short: bool,
}

impl SpareFiller {
    pub(crate) fn new(folder: Arc<dyn StoreFolder>, segment_bytes: u32, is_inline: bool) -> Self {
        Self {
            folder,
            segment_bytes,
            is_inline,
            filling: None,
            paused_until: None,
            is_short: false,
        }
    }

    /// Whether there is no room on the disk for more.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Keeps spares ready, beside the writer where there is a thread for it.
    pub(crate) fn keep_ready(&mut self, ring: &mut SegmentRing, reader: &LogReader) {
        if self.filling.as_ref().is_some_and(JoinHandle::is_finished) {
            self.wait(ring, reader);
        }
        if self.is_inline {
            self.make_room(1, ring, reader);
        } else if ring.spares_soon() < SPARES_READY {
            self.start(ring, reader);
        }
    }

    /// Waits until there are so many spares, or says that there is no room for them.
    pub(crate) fn make_room(
        &mut self,
        spares: usize,
        ring: &mut SegmentRing,
        reader: &LogReader,
    ) -> bool {
        while ring.spares() < spares {
            let before = ring.spares();
            self.start(ring, reader);
            self.wait(ring, reader);
            if ring.spares() == before {
                return false;
            }
        }
        true
    }

    /// Waits for a segment that is being filled, if there is one.
    pub(crate) fn wait(&mut self, ring: &mut SegmentRing, reader: &LogReader) {
        if let Some(filling) = self.filling.take() {
            let panicked = |_| Err(io::Error::other("the thread that fills segments panicked"));
            let filled = filling.join().unwrap_or_else(panicked);
            self.take(filled, ring, reader);
        }
    }

    fn start(&mut self, ring: &mut SegmentRing, reader: &LogReader) {
        let is_paused = self.paused_until.is_some_and(|until| Instant::now() < until);
        let slot = ring.slots() as usize;
        if is_paused || self.filling.is_some() || slot >= SLOTS_MAX {
            return;
        }
        let folder = Arc::clone(&self.folder);
        let bytes = self.segment_bytes;
        if self.is_inline {
            let filled = fill(&*folder, slot, bytes);
            self.take(filled, ring, reader);
            return;
        }
        let thread = std::thread::Builder::new().name("retrysafe-fill".into());
        match thread.spawn(move || fill(&*folder, slot, bytes)) {
            Ok(filling) => self.filling = Some(filling),
            Err(error) => self.take(Err(error), ring, reader),
        }
    }

    fn take(
        &mut self,
        filled: io::Result<Arc<dyn StoreFile>>,
        ring: &mut SegmentRing,
        reader: &LogReader,
    ) {
        match filled {
            Ok(file) => {
                self.is_short = false;
                self.paused_until = None;
                ring.add(Arc::clone(&file));
                reader.add_segment(file);
            }
            Err(error) => {
                let full = is_full(&error);
                tracing::warn!(%error, full, "the disk store could not add a segment");
                self.is_short = true;
                if !self.is_inline {
                    self.paused_until = Some(Instant::now() + FULL_PAUSE);
                }
            }
        }
    }
}

/// Creates a segment's file, full of zeros, and makes it durable under its name.
pub(crate) fn fill(
    folder: &dyn StoreFolder,
    slot: usize,
    bytes: u32,
) -> io::Result<Arc<dyn StoreFile>> {
    let name = name_of(slot);
    let new = format!("{}.new", name_of(slot));
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
