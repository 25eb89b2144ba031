//! How do the store's files look as bytes?
//!
//! `docs/disk-format.md` is the same in prose. Numbers are little-endian. Every structure carries a
//! CRC-32C and says where it stands (store, generation, offset), so that bytes of an earlier life of
//! a segment, of another store or inside a response body are never taken for ours.
//!
//! The entries of a batch have a checksum of another kind, XXH3, over all of them. A CRC-32C would
//! not do: over data that ends in its own CRC-32C, as every record does, it depends on nothing but
//! the length, and a batch of which half is from an earlier life would verify.

use retrysafe_core::record::{Record, Standing};
use retrysafe_core::scope::Id;

use super::index::ReapMark;

/// The version of the format that is written. See "Upgrades" in `docs/disk-format.md`.
pub(crate) const VERSION: u32 = 2;

/// What a file system writes back as one. A segment's header and every batch begin on such a
/// boundary: whatever a crash makes of the page that was being written, no page that holds something
/// acknowledged was touched.
pub(crate) const PAGE: usize = 4 << 10;

/// The length of the file `store`.
pub(crate) const STORE_BYTES: usize = 44;
/// The length of a segment's header.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 76;
/// The length of a batch's header.
pub(crate) const BATCH_BYTES: usize = 92;
/// The length of what a batch ends with: its checksum once more, in the last bytes of its last page.
/// Without it a write that came half way would be a whole batch if only padding was missing.
pub(crate) const TRAILER_BYTES: usize = 8;
/// The length of an entry's header.
pub(crate) const ENTRY_BYTES: usize = 68;

const STORE_MAGIC: &[u8; 16] = b"retrysafe-disk\r\n";
const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"RSG2");
const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"RSB2");

/// What the file `store` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreDescription {
    /// A random number that all files of this store carry.
    pub(crate) store: u64,
    /// How long a segment is, for the store's whole life.
    pub(crate) segment_bytes: u32,
}

/// Why the file `store` cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptionError {
    NotOurs,
    Version(u32),
    Damaged,
}

/// What the first page of a segment in use begins with. A segment that never was in use has zeros
/// there.
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
    pub(crate) reaped: ReapMark,
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
    /// Up to where the segment was durable when this batch was begun. As a rule that is its own
    /// offset. An opening cannot know whether the last batch that it reads is more than the page
    /// cache's: its own first batch holds that one anew, and names the place where it begins.
    pub(crate) after: u32,
    /// See [`checksum_of`].
    pub(crate) checksum: u64,
    pub(crate) state: LogState,
}

/// Where an entry stands. Its checksum covers this, so it is an entry nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryPlace {
    pub(crate) store: u64,
    pub(crate) generation: u64,
    /// Where in the segment its header begins.
    pub(crate) offset: u32,
}

/// What stands before a record: all that the index needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryHeader {
    pub(crate) id: Id,
    pub(crate) version: u64,
    /// The version that this one replaces; its own if it is a copy; zero if there was none.
    pub(crate) previous: u64,
    /// When the lease or the retention ends or, while it is unknown, when that began, in milliseconds.
    pub(crate) due: u64,
    pub(crate) standing: Standing,
    /// The length of the record that follows.
    pub(crate) length: u32,
}

impl StoreDescription {
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

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DescriptionError> {
        if bytes.get(..16) != Some(STORE_MAGIC) {
            return Err(DescriptionError::NotOurs);
        }
        let intact = bytes.len() == STORE_BYTES && sealed(bytes);
        match u32_at(bytes, 16) {
            Some(VERSION) if intact => Ok(Self {
                segment_bytes: u32_at(bytes, 20).unwrap_or_default(),
                store: u64_at(bytes, 24).unwrap_or_default(),
            }),
            Some(VERSION) | None => Err(DescriptionError::Damaged),
            // A later format may lay out the rest differently; only magic and version stay.
            Some(version) => Err(DescriptionError::Version(version)),
        }
    }
}

/// Whether the last four bytes are the checksum of all before them.
fn sealed(bytes: &[u8]) -> bool {
    let Some((body, checksum)) = bytes.split_last_chunk::<4>() else { return false };
    crc32c::crc32c(body).to_le_bytes() == *checksum
}

/// The checksum of a batch's entries.
pub(crate) fn checksum_of(entries: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(entries)
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
            reaped: ReapMark { due: u64_at(bytes, at + 28)?, version: u64_at(bytes, at + 36)? },
        })
    }
}

impl SegmentHeader {
    /// Writes the header into a page of zeros.
    pub(crate) fn encode(&self, out: &mut [u8]) {
        put(out, 0, &SEGMENT_MAGIC.to_le_bytes());
        put(out, 8, &self.store.to_le_bytes());
        put(out, 16, &self.generation.to_le_bytes());
        put(out, 24, &self.previous_end.to_le_bytes());
        self.state.put(out.get_mut(32..).unwrap_or_default());
        let checksum = crc32c::crc32c(out.get(8..SEGMENT_HEADER_BYTES).unwrap_or_default());
        put(out, 4, &checksum.to_le_bytes());
    }

    /// The header that these bytes begin with; `None` if there is no intact one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let checked = bytes.get(8..SEGMENT_HEADER_BYTES)?;
        let intact =
            u32_at(bytes, 0)? == SEGMENT_MAGIC && u32_at(bytes, 4)? == crc32c::crc32c(checked);
        if !intact {
            return None;
        }
        Some(Self {
            store: u64_at(bytes, 8)?,
            generation: u64_at(bytes, 16)?,
            previous_end: u32_at(bytes, 24)?,
            state: LogState::get(bytes, 32)?,
        })
    }
}

impl BatchHeader {
    /// Fills in the header and the trailer of a batch whose entries are there.
    pub(crate) fn encode(&self, out: &mut [u8]) {
        put(out, 0, &BATCH_MAGIC.to_le_bytes());
        put(out, 8, &self.store.to_le_bytes());
        put(out, 16, &self.generation.to_le_bytes());
        put(out, 24, &self.offset.to_le_bytes());
        put(out, 28, &self.length.to_le_bytes());
        put(out, 32, &self.after.to_le_bytes());
        put(out, 36, &[0; 4]);
        put(out, 40, &self.checksum.to_le_bytes());
        self.state.put(out.get_mut(48..).unwrap_or_default());
        let checksum = crc32c::crc32c(out.get(8..BATCH_BYTES).unwrap_or_default());
        put(out, 4, &checksum.to_le_bytes());
        let trailer = self.bytes_on_disk() - TRAILER_BYTES;
        put(out, trailer, &self.checksum.to_le_bytes());
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
            after: u32_at(bytes, 32)?,
            checksum: u64_at(bytes, 40)?,
            state: LogState::get(bytes, 48)?,
        })
    }

    /// How many bytes the batch has in all, with its padding.
    pub(crate) fn bytes_on_disk(&self) -> usize {
        batch_bytes(self.length as usize)
    }

    /// Where the next batch begins.
    pub(crate) fn end(&self) -> u32 {
        self.offset.saturating_add(self.bytes_on_disk() as u32)
    }

    /// Whether these are the bytes after its header, up to its end.
    pub(crate) fn verifies(&self, rest: &[u8]) -> bool {
        let Some((before, trailer)) = rest.split_last_chunk() else { return false };
        u64::from_le_bytes(*trailer) == self.checksum
            && before.get(..self.length as usize).map(checksum_of) == Some(self.checksum)
    }

    /// Where an entry stands whose header begins there in the body.
    fn place_of(&self, at: usize) -> EntryPlace {
        let Self { store, generation, offset, .. } = *self;
        EntryPlace { store, generation, offset: offset + (BATCH_BYTES + at) as u32 }
    }

    /// The entries of this batch's body, each with the offset of its record in the body. `None`
    /// marks the place from which on the body cannot be read.
    pub(crate) fn entries(
        &self,
        body: &[u8],
    ) -> impl Iterator<Item = Option<(EntryHeader, usize)>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = body.get(at..).filter(|rest| !rest.is_empty())?;
            let found = EntryHeader::decode(rest, self.place_of(at)).and_then(|header| {
                let record = at + ENTRY_BYTES;
                let end = record.checked_add(header.length as usize)?;
                (end <= body.len()).then_some((header, record, end))
            });
            at = found.map_or(body.len(), |(_, _, end)| end);
            Some(found.map(|(header, record, _)| (header, record)))
        })
    }
}

impl EntryPlace {
    /// What the checksum of an entry at this place goes on from.
    fn checksum(&self) -> u32 {
        let mut bytes = [0; 20];
        put(&mut bytes, 0, &self.store.to_le_bytes());
        put(&mut bytes, 8, &self.generation.to_le_bytes());
        put(&mut bytes, 16, &self.offset.to_le_bytes());
        crc32c::crc32c(&bytes)
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

    pub(crate) fn encode(&self, out: &mut [u8], place: EntryPlace) {
        put(out, 0, &self.length.to_le_bytes());
        put(out, 4, &[standing_byte(self.standing), 0, 0, 0]);
        put(out, 8, &self.version.to_le_bytes());
        put(out, 16, &self.previous.to_le_bytes());
        put(out, 24, &self.due.to_le_bytes());
        put(out, 32, self.id.as_bytes());
        let fields = out.get(..64).unwrap_or_default();
        let checksum = crc32c::crc32c_append(place.checksum(), fields);
        put(out, 64, &checksum.to_le_bytes());
    }

    /// The header that these bytes begin with; `None` if there is none that is intact and stands
    /// in its own place.
    pub(crate) fn decode(bytes: &[u8], place: EntryPlace) -> Option<Self> {
        let fields = bytes.get(..64)?;
        if u32_at(bytes, 64)? != crc32c::crc32c_append(place.checksum(), fields) {
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

/// How many bytes a batch has with entries of this length: whole pages.
pub(crate) fn batch_bytes(entries: usize) -> usize {
    (BATCH_BYTES + entries + TRAILER_BYTES).next_multiple_of(PAGE)
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
