//! How is a large store opened quickly?
//!
//! By a file that holds the index, with the position in the log at which the writing of the file began.
//! Opening reads it and replays the log from there. A snapshot that is missing or damaged costs time
//! only: the whole log is read instead.
//!
//! The snapshot is taken beside the writer, shard by shard, so it may hold changes that are later
//! than its position. The replay meets those again and leaves them as they are.

use std::io;

use super::files::{StoreFile, StoreFolder};
use super::format::{put, standing_byte, standing_of, u32_at, u64_at};
use super::index::{IndexEntry, ReapMark, SHARDS};
use super::read::LogReader;

pub(crate) const NAME: &str = "snapshot";
/// What it is called until it is whole.
pub(crate) const NEW: &str = "snapshot.new";

const MAGIC: &[u8; 8] = b"RSS1\0\0\0\0";
const HEADER: usize = 48;
/// How many bytes an entry takes.
pub(crate) const ENTRY: usize = 40;
const TRAILER: usize = 8;

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

/// Writes a snapshot of the index as it is now, for a log that ends at a position.
pub(crate) fn take(
    folder: &dyn StoreFolder,
    reader: &LogReader,
    position: LogPosition,
) -> io::Result<()> {
    let file = folder.create(NEW)?;
    let mut out =
        SnapshotOutput { file: &*file, at: 0, bytes: Vec::with_capacity(CHUNK), checksum: 0 };
    let mut header = [0; HEADER];
    put(&mut header, 0, MAGIC);
    put(&mut header, 8, &reader.store.to_le_bytes());
    put(&mut header, 16, &position.generation.to_le_bytes());
    put(&mut header, 24, &position.offset.to_le_bytes());
    put(&mut header, 32, &position.reaped.due.to_le_bytes());
    put(&mut header, 40, &position.reaped.version.to_le_bytes());
    out.put(&header)?;
    for number in 0..SHARDS {
        for (entry, generation) in shard(reader, number) {
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
fn shard(reader: &LogReader, number: usize) -> Vec<(IndexEntry, u64)> {
    loop {
        let before = reader.generations().clone();
        let entries = reader.index.shard(number);
        if *reader.generations() == before {
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
    let mut at = HEADER as u64;
    let end = HEADER as u64 + body;
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
    let prefix = u64_at(bytes, 0)?;
    let version = u64_at(bytes, 8)?;
    let due = u64_at(bytes, 16)?;
    Some(IndexEntry::new(prefix, version, due, standing_of(word as u8)?, place))
}
