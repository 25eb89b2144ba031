//! How do the store's files look as bytes?
//!
//! `docs/disk-format.md` is the same in prose. Numbers are little-endian; every structure begins
//! with a magic number and carries a CRC-32C. Each says where it stands (store, generation, offset),
//! so that bytes of an earlier life of a segment, of another store or inside a response body are
//! never taken for ours.

use retrysafe_core::record::{Record, Standing};
use retrysafe_core::scope::Id;

use super::index::Mark;

/// The version of the format that is written. See "Upgrades" in `docs/disk-format.md`.
pub(crate) const VERSION: u32 = 1;

/// What a disk writes whole or not at all. Batches begin on such a boundary, so that a write never
/// touches a sector that holds something acknowledged.
pub(crate) const SECTOR: usize = 512;

/// The length of the file `store`.
pub(crate) const STORE_BYTES: usize = 44;
/// The length of a batch's header.
pub(crate) const BATCH_BYTES: usize = 80;
/// The length of an entry's header.
pub(crate) const ENTRY_BYTES: usize = 68;

const STORE_MAGIC: &[u8; 16] = b"retrysafe-disk\r\n";
const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"RSG1");
const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"RSB1");

/// What the file `store` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreFile {
    /// A random number that all files of this store carry.
    pub(crate) store: u64,
    /// How long a segment is, for the store's whole life.
    pub(crate) segment_bytes: u32,
}

/// Why the file `store` cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFileError {
    NotOurs,
    Version(u32),
    Damaged,
}

/// The first sector of a segment in use. A segment that never was in use has zeros there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) store: u64,
    /// Rises by one with every segment that is taken into use.
    pub(crate) generation: u64,
    /// Where the segment of the generation before ended.
    pub(crate) previous_end: u32,
    pub(crate) state: LogState,
}

/// What is true of the whole log when a header is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogState {
    /// The oldest generation that holds anything. Older segments are free.
    pub(crate) oldest: u64,
    /// The last version given out.
    pub(crate) sequence: u64,
    /// The clock's reading, in milliseconds: the mark behind which it never starts again.
    pub(crate) clock: u64,
    /// How many segments there are, in use or not.
    pub(crate) slots: u32,
    /// Every settled record up to this mark is reaped, as of the batch that names it first.
    pub(crate) reaped: Mark,
}

/// What stands before a batch of entries that were written and flushed as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) store: u64,
    pub(crate) generation: u64,
    /// Where in the segment this header stands.
    pub(crate) offset: u32,
    /// How many bytes of entries follow.
    pub(crate) length: u32,
    pub(crate) checksum: u32,
    pub(crate) state: LogState,
}

/// What stands before a record: all that the index needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryHeader {
    pub(crate) id: Id,
    pub(crate) version: u64,
    /// The version that this one replaces; its own if it is a copy; zero if there was none.
    pub(crate) previous: u64,
    /// When the lease or the retention ends, in milliseconds; zero while unknown.
    pub(crate) due: u64,
    pub(crate) standing: Standing,
    /// The length of the record that follows.
    pub(crate) length: u32,
}

impl StoreFile {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(STORE_BYTES);
        out.extend_from_slice(STORE_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.segment_bytes.to_le_bytes());
        out.extend_from_slice(&self.store.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreFileError> {
        if bytes.get(..16) != Some(STORE_MAGIC) {
            return Err(StoreFileError::NotOurs);
        }
        let intact = bytes.len() == STORE_BYTES && sealed(bytes);
        match u32_at(bytes, 16) {
            Some(VERSION) if intact => Ok(Self {
                segment_bytes: u32_at(bytes, 20).unwrap_or_default(),
                store: u64_at(bytes, 24).unwrap_or_default(),
            }),
            Some(VERSION) | None => Err(StoreFileError::Damaged),
            // A later format may lay out the rest differently; only magic and version stay.
            Some(version) => Err(StoreFileError::Version(version)),
        }
    }
}

/// Whether the last four bytes are the checksum of all before them.
fn sealed(bytes: &[u8]) -> bool {
    let Some((body, checksum)) = bytes.split_last_chunk::<4>() else { return false };
    crc32c::crc32c(body).to_le_bytes() == *checksum
}

impl LogState {
    fn put(&self, out: &mut [u8]) {
        put(out, 0, &self.oldest.to_le_bytes());
        put(out, 8, &self.sequence.to_le_bytes());
        put(out, 16, &self.clock.to_le_bytes());
        put(out, 24, &self.slots.to_le_bytes());
        put(out, 28, &self.reaped.due.to_le_bytes());
        put(out, 36, &self.reaped.version.to_le_bytes());
    }

    fn get(bytes: &[u8], at: usize) -> Option<Self> {
        Some(Self {
            oldest: u64_at(bytes, at)?,
            sequence: u64_at(bytes, at + 8)?,
            clock: u64_at(bytes, at + 16)?,
            slots: u32_at(bytes, at + 24)?,
            reaped: Mark { due: u64_at(bytes, at + 28)?, version: u64_at(bytes, at + 36)? },
        })
    }
}

impl SegmentHeader {
    /// Writes the header into a sector of zeros.
    pub(crate) fn encode(&self, out: &mut [u8]) {
        put(out, 0, &SEGMENT_MAGIC.to_le_bytes());
        put(out, 8, &self.store.to_le_bytes());
        put(out, 16, &self.generation.to_le_bytes());
        put(out, 24, &self.previous_end.to_le_bytes());
        self.state.put(out.get_mut(32..).unwrap_or_default());
        let checksum = crc32c::crc32c(out.get(8..SECTOR).unwrap_or_default());
        put(out, 4, &checksum.to_le_bytes());
    }

    /// The header in this sector; `None` if there is no intact one.
    pub(crate) fn decode(sector: &[u8]) -> Option<Self> {
        let checked = sector.get(8..SECTOR)?;
        let intact =
            u32_at(sector, 0)? == SEGMENT_MAGIC && u32_at(sector, 4)? == crc32c::crc32c(checked);
        if !intact {
            return None;
        }
        Some(Self {
            store: u64_at(sector, 8)?,
            generation: u64_at(sector, 16)?,
            previous_end: u32_at(sector, 24)?,
            state: LogState::get(sector, 32)?,
        })
    }
}

impl BatchHeader {
    pub(crate) fn encode(&self, out: &mut [u8]) {
        put(out, 0, &BATCH_MAGIC.to_le_bytes());
        put(out, 8, &self.store.to_le_bytes());
        put(out, 16, &self.generation.to_le_bytes());
        put(out, 24, &self.offset.to_le_bytes());
        put(out, 28, &self.length.to_le_bytes());
        put(out, 32, &self.checksum.to_le_bytes());
        self.state.put(out.get_mut(36..).unwrap_or_default());
        let checksum = crc32c::crc32c(out.get(8..BATCH_BYTES).unwrap_or_default());
        put(out, 4, &checksum.to_le_bytes());
    }

    /// The header that these bytes begin with; `None` if there is no intact one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let checked = bytes.get(8..BATCH_BYTES)?;
        let intact =
            u32_at(bytes, 0)? == BATCH_MAGIC && u32_at(bytes, 4)? == crc32c::crc32c(checked);
        if !intact {
            return None;
        }
        Some(Self {
            store: u64_at(bytes, 8)?,
            generation: u64_at(bytes, 16)?,
            offset: u32_at(bytes, 24)?,
            length: u32_at(bytes, 28)?,
            checksum: u32_at(bytes, 32)?,
            state: LogState::get(bytes, 36)?,
        })
    }
}

impl EntryHeader {
    /// The header of a record that replaces the version `previous`. The length is not known yet.
    pub(crate) fn of(record: &Record, previous: u64) -> Self {
        let due = record.lease_until().or(record.expires_at()).or(record.unknown_since());
        Self {
            id: record.id,
            version: record.version,
            previous,
            due: due.map_or(0, |time| time.as_ms()),
            standing: record.standing(),
            length: 0,
        }
    }

    pub(crate) fn encode(&self, out: &mut [u8]) {
        put(out, 0, &self.length.to_le_bytes());
        put(out, 4, &[standing_byte(self.standing), 0, 0, 0]);
        put(out, 8, &self.version.to_le_bytes());
        put(out, 16, &self.previous.to_le_bytes());
        put(out, 24, &self.due.to_le_bytes());
        put(out, 32, self.id.as_bytes());
        let checksum = crc32c::crc32c(out.get(..64).unwrap_or_default());
        put(out, 64, &checksum.to_le_bytes());
    }

    /// The header that these bytes begin with; `None` if there is no intact one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if !sealed(bytes.get(..ENTRY_BYTES)?) {
            return None;
        }
        Some(Self {
            length: u32_at(bytes, 0)?,
            standing: standing_of(*bytes.get(4)?)?,
            version: u64_at(bytes, 8)?,
            previous: u64_at(bytes, 16)?,
            due: u64_at(bytes, 24)?,
            id: Id::from_bytes(bytes.get(32..64)?.try_into().ok()?),
        })
    }
}

/// The entries of a batch's body, each with the offset of its record. `None` marks the place from
/// which on the body cannot be read.
pub(crate) fn entries(body: &[u8]) -> impl Iterator<Item = Option<(EntryHeader, usize)>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= body.len() {
            return None;
        }
        let header = body.get(at..).and_then(EntryHeader::decode);
        let found = header.and_then(|header| {
            let record = at + ENTRY_BYTES;
            let end = record.checked_add(header.length as usize)?;
            (end <= body.len()).then_some((header, record, end))
        });
        at = found.map_or(body.len(), |(_, _, end)| end);
        Some(found.map(|(header, record, _)| (header, record)))
    })
}

pub(crate) fn standing_byte(standing: Standing) -> u8 {
    match standing {
        Standing::InProgress => 0,
        Standing::Completed => 1,
        Standing::FailedRetryable => 2,
        Standing::Unknown => 3,
    }
}

pub(crate) fn standing_of(byte: u8) -> Option<Standing> {
    Standing::ALL.get(usize::from(byte)).copied()
}

/// The next boundary of sectors.
pub(crate) fn sector_up(bytes: usize) -> usize {
    bytes.next_multiple_of(SECTOR)
}

pub(crate) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(field) = out.get_mut(at..at + bytes.len()) {
        field.copy_from_slice(bytes);
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
