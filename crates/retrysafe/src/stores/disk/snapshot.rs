//! How is a large store opened quickly?
//!
//! From time to time, and when the store is closed, the index is written to a file with the position
//! in the log at which that began. Opening reads it and replays the log from there. A snapshot that
//! is missing or damaged costs time only: the whole log is read instead.
//!
//! The snapshot is taken beside the writer, shard by shard, so it may hold changes that are later
//! than its position. The replay meets those again and leaves them as they are.

use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use super::Durability;
use super::files::{StoreFile, StoreFolder};
use super::format::{put, standing_byte, standing_of, u32_at, u64_at};
use super::index::{IndexEntry, ReapMark, SHARDS};
use super::log::LogWriter;
use super::read::LogReader;

pub(crate) const NAME: &str = "snapshot";
const NEW: &str = "snapshot.new";

const MAGIC: &[u8; 8] = b"RSS1\0\0\0\0";
const HEADER: usize = 48;
const ENTRY: usize = 40;
const TRAILER: usize = 8;

/// How many segments are written between two snapshots, at least.
const SEGMENTS_BETWEEN: u64 = 4;

/// How many bytes are read or written with one call: a whole number of entries.
const CHUNK: usize = ENTRY * 16_384;

/// A place in the log: everything before it is in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) generation: u64,
    pub(crate) offset: u32,
    /// How far records were reaped there.
    pub(crate) reaped: ReapMark,
}

/// When snapshots are taken.
#[derive(Debug, Default)]
pub(crate) struct SnapshotTaker {
    /// How many bytes of log there are since the last one.
    since: u64,
    taking: Option<JoinHandle<()>>,
}

impl SnapshotTaker {
    pub(crate) fn written(&mut self, bytes: u64) {
        self.since += bytes;
    }

    pub(crate) fn wait(&mut self) {
        if let Some(taking) = self.taking.take() {
            // Its failure was reported by itself, and costs nothing but time.
            let _ = taking.join();
        }
    }
}

impl LogWriter {
    /// Takes a snapshot if the log has grown enough: by several segments, and by more than the
    /// snapshot itself would be.
    pub(crate) fn keep_snapshot(&mut self) {
        let segments = u64::from(self.settings.segment_bytes) * SEGMENTS_BETWEEN;
        let itself = (self.shared.index.len() * ENTRY * 2) as u64;
        let is_taking = self.snapshots.taking.as_ref().is_some_and(|taking| !taking.is_finished());
        let has_failed = self.shared.failure.get().is_some();
        if self.snapshots.since < segments.max(itself) || is_taking || has_failed {
            return;
        }
        self.snapshots.wait();
        self.snapshots.since = 0;
        let Some(job) = self.snapshot_job() else { return };
        if self.settings.inline {
            job();
        } else {
            let thread = std::thread::Builder::new().name("retrysafe-snapshot".into());
            self.snapshots.taking = thread.spawn(job).ok();
        }
    }

    /// Takes a snapshot now, for the next opening.
    pub(crate) fn last_snapshot(&mut self) {
        self.snapshots.wait();
        if self.shared.failure.get().is_none()
            && let Some(job) = self.snapshot_job()
        {
            job();
        }
    }

    /// The work of taking a snapshot of the log as it is now, to be done here or beside the writer.
    pub(crate) fn snapshot_job(&self) -> Option<impl FnOnce() + Send + 'static> {
        let (folder, shared, store) =
            (Arc::clone(&self.folder), Arc::clone(&self.shared), self.store);
        let (generation, offset) = (self.generation, self.end);
        let position = LogPosition { generation, offset, reaped: self.reaped };
        if self.settings.durability == Durability::Process {
            // The snapshot is durable, so what it speaks of must be.
            self.segments.newest()?.1.flush().ok()?;
        }
        Some(move || {
            if let Err(error) = take(&*folder, &shared, store, position) {
                tracing::warn!(%error, "the disk store could not take a snapshot of its index");
                let _ = folder.remove(NEW);
            }
        })
    }
}

fn take(
    folder: &dyn StoreFolder,
    shared: &LogReader,
    store: u64,
    position: LogPosition,
) -> io::Result<()> {
    let file = folder.create(NEW)?;
    let mut out =
        SnapshotOutput { file: &*file, at: 0, bytes: Vec::with_capacity(CHUNK), checksum: 0 };
    let mut header = [0; HEADER];
    put(&mut header, 0, MAGIC);
    put(&mut header, 8, &store.to_le_bytes());
    put(&mut header, 16, &position.generation.to_le_bytes());
    put(&mut header, 24, &position.offset.to_le_bytes());
    put(&mut header, 32, &position.reaped.due.to_le_bytes());
    put(&mut header, 40, &position.reaped.version.to_le_bytes());
    out.put(&header)?;
    for number in 0..SHARDS {
        for (entry, generation) in shard(shared, number) {
            let mut bytes = [0; ENTRY];
            put(&mut bytes, 0, &entry.prefix.to_le_bytes());
            put(&mut bytes, 8, &entry.version.to_le_bytes());
            put(&mut bytes, 16, &entry.due.to_le_bytes());
            // Six bytes of generation and one of standing share a word.
            let word = generation << 8 | u64::from(standing_byte(entry.standing));
            put(&mut bytes, 24, &word.to_le_bytes());
            put(&mut bytes, 32, &entry.offset.to_le_bytes());
            put(&mut bytes, 36, &entry.length.to_le_bytes());
            out.put(&bytes)?;
        }
    }
    out.finish()?;
    file.flush()?;
    folder.rename(NEW, NAME)?;
    folder.flush()
}

/// The entries of a shard with their segments' generations. A segment that is taken into use
/// meanwhile would give an entry the wrong one, so the shard is then read again.
fn shard(shared: &LogReader, number: usize) -> Vec<(IndexEntry, u64)> {
    let generations = || shared.generations.lock().unwrap_or_else(PoisonError::into_inner).clone();
    loop {
        let before = generations();
        let entries = shared.index.shard(number);
        if generations() == before {
            let generation = |entry: &IndexEntry| before.get(usize::from(entry.slot)).copied();
            return entries
                .into_iter()
                .filter_map(|entry| Some((entry, generation(&entry)?)))
                .collect();
        }
    }
}

/// Writes in chunks and sums up.
struct SnapshotOutput<'a> {
    file: &'a dyn StoreFile,
    at: u64,
    bytes: Vec<u8>,
    checksum: u32,
}

impl SnapshotOutput<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= CHUNK { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        self.checksum = crc32c::crc32c_append(self.checksum, &self.bytes);
        self.file.write(&self.bytes, self.at)?;
        self.at += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.write()?;
        let mut trailer = [0; TRAILER];
        put(&mut trailer, 0, b"END\0");
        put(&mut trailer, 4, &self.checksum.to_le_bytes());
        self.file.write(&trailer, self.at)
    }
}

/// Reads a snapshot: shows the entries of the index as it was, and says from where on to replay the
/// log. `None` if it is not intact; then what was shown is void. `slot_of` names the segment of a
/// generation that is still in use: entries of others were superseded, copied or reaped since.
pub(crate) fn read(
    file: &dyn StoreFile,
    store: u64,
    slot_of: impl Fn(u64) -> Option<u16>,
    mut show: impl FnMut(IndexEntry),
) -> io::Result<Option<LogPosition>> {
    let bytes = file.bytes()?;
    let Some(body) = bytes.checked_sub((HEADER + TRAILER) as u64) else { return Ok(None) };
    let mut header = [0; HEADER];
    file.read(&mut header, 0)?;
    if header.get(..8) != Some(MAGIC)
        || u64_at(&header, 8) != Some(store)
        || body % ENTRY as u64 != 0
    {
        return Ok(None);
    }
    let mut checksum = crc32c::crc32c(&header);
    let mut chunk = vec![0; CHUNK.min(body as usize)];
    let (mut at, end) = (HEADER as u64, HEADER as u64 + body);
    while at < end {
        let length = chunk.len().min((end - at) as usize);
        let part = chunk.get_mut(..length).unwrap_or_default();
        file.read(part, at)?;
        checksum = crc32c::crc32c_append(checksum, part);
        for bytes in part.chunks_exact(ENTRY) {
            if let Some(entry) = read_entry(bytes, &slot_of) {
                show(entry);
            }
        }
        at += length as u64;
    }
    let mut trailer = [0; TRAILER];
    file.read(&mut trailer, end)?;
    let is_intact = trailer.get(..4) == Some(b"END\0") && u32_at(&trailer, 4) == Some(checksum);
    let generation = u64_at(&header, 16).unwrap_or_default();
    let offset = u32_at(&header, 24).unwrap_or_default();
    let due = u64_at(&header, 32).unwrap_or_default();
    let version = u64_at(&header, 40).unwrap_or_default();
    let position = LogPosition { generation, offset, reaped: ReapMark { due, version } };
    Ok(is_intact.then_some(position))
}

fn read_entry(bytes: &[u8], slot_of: impl Fn(u64) -> Option<u16>) -> Option<IndexEntry> {
    let word = u64_at(bytes, 24)?;
    let slot = slot_of(word >> 8)?;
    let place = (slot, u32_at(bytes, 32)?, u32_at(bytes, 36)?);
    let (prefix, version, due) = (u64_at(bytes, 0)?, u64_at(bytes, 8)?, u64_at(bytes, 16)?);
    Some(IndexEntry::new(prefix, version, due, standing_of(word as u8)?, place))
}
