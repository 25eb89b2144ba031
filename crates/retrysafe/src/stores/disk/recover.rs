//! What does a folder hold, and where does its log end?
//!
//! Every batch but the last must verify, for each was flushed before the next was begun. The last may
//! be torn by a crash; then nothing follows it, and it is cut off. Anything else is damage. Nothing is
//! changed here: opening and the doctor read with the same eyes.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::batch::{NextBatch, SegmentPlace, latest_generation};
use super::create::{SEGMENTS_FIRST, STORE, UNFINISHED};
use super::error::OpenError;
use super::files::{StoreFile, StoreFolder};
use super::format::{
    BATCH_BYTES, BatchHeader, DescriptionError, EntryHeader, LogState, PAGE, SEGMENT_HEADER_BYTES,
    STORE_BYTES, SegmentHeader, StoreDescription,
};
use super::index::{IndexEntry, ReapMark};
use super::segments::{is_segment, name_of};
use super::snapshot::{self, LogPosition};

/// How much of a segment is looked through whose first page is blank. A batch is a mebibyte at the most
/// or one record, so there is one in these if the segment is in use and has lost its first pages; a
/// segment that was never in use is not read to its end at every opening.
const BLANK_BYTES_READ: u32 = 4 << 20;

const BROKEN: &str = "a batch that was flushed does not verify";

/// The segments of a store as they are found.
#[derive(Debug)]
pub(crate) struct FoundStore {
    pub(crate) store: StoreDescription,
    pub(crate) files: Vec<Arc<dyn StoreFile>>,
    /// The segments that were ever in use, by generation.
    pub(crate) headers: BTreeMap<u64, (usize, SegmentHeader)>,
    /// The generation of each segment, by slot; zero if it was never in use.
    pub(crate) generations: Vec<u64>,
    /// The segments without a header that verifies, and how their first page looks.
    unmarked: Vec<(usize, UnmarkedSegment)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnmarkedSegment {
    /// Never in use.
    Blank,
    /// Being taken into use when a crash came, or damaged.
    Broken,
}

/// Where the log ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEnd {
    pub(crate) generation: u64,
    pub(crate) offset: u32,
    pub(crate) state: LogState,
    /// The newest segment's header.
    pub(crate) header: SegmentHeader,
    /// The last batch of the newest segment: it may be no more than the page cache's.
    pub(crate) last: Option<BatchHeader>,
    /// The oldest generation in use as of the batch before that: surely durable.
    pub(crate) oldest_for_sure: u64,
    /// Whether the newest segment's own header may be no more than the page cache's.
    pub(crate) is_header_in_doubt: bool,
}

/// Whoever is shown the log, in order.
pub(crate) trait LogVisitor {
    /// An entry of the snapshot, with which the log begins.
    fn snapshot_entry(&mut self, entry: IndexEntry);
    /// The snapshot turned out not to verify: everything it has shown is void.
    fn forget_snapshot(&mut self);
    /// Settled records up to this mark were reaped.
    fn reaped(&mut self, mark: ReapMark);
    /// An entry, in which slot its record stands and from which byte on, and its record.
    fn entry(&mut self, header: &EntryHeader, slot: u16, at: u32, record: &[u8]);
}

/// Reads the file `store`.
pub(crate) fn read_store(folder: &dyn StoreFolder) -> Result<StoreDescription, OpenError> {
    let read = || {
        let file = folder.open(STORE)?;
        let mut bytes = vec![0; (file.bytes()? as usize).min(STORE_BYTES + 1)];
        file.read(&mut bytes, 0)?;
        Ok(bytes)
    };
    let bytes = read().map_err(OpenError::io("read", STORE))?;
    StoreDescription::decode(&bytes).map_err(|error| match error {
        DescriptionError::NotOurs => OpenError::NotAStore { found: STORE.into() },
        DescriptionError::Version(found) => OpenError::Format { found },
        DescriptionError::Damaged => OpenError::damaged(STORE, 0, "the checksum does not fit"),
    })
}

/// Refuses a folder to which a salvage did not come to its end.
pub(crate) fn check_finished(folder: &dyn StoreFolder) -> Result<(), OpenError> {
    let names = folder.names().map_err(OpenError::io("list", "."))?;
    if names.iter().any(|name| name == UNFINISHED) {
        return Err(OpenError::Unfinished);
    }
    Ok(())
}

/// Finds the segments and reads their headers.
pub(crate) fn find(folder: &dyn StoreFolder) -> Result<FoundStore, OpenError> {
    let store = read_store(folder)?;
    let names = folder.names().map_err(OpenError::io("list", "."))?;
    let names: HashSet<String> = names.into_iter().collect();
    let count = names.iter().filter(|name| is_segment(name)).count().max(SEGMENTS_FIRST);
    let mut found = FoundStore {
        store,
        files: Vec::with_capacity(count),
        headers: BTreeMap::new(),
        generations: vec![0; count],
        unmarked: Vec::new(),
    };
    for slot in 0..count {
        let name = name_of(slot);
        if !names.contains(&name) {
            return Err(OpenError::damaged(name, 0, "the segment is missing"));
        }
        let (file, first) = read_first(folder, &name, store.segment_bytes)?;
        found.files.push(file);
        let Some(header) = SegmentHeader::decode(&first) else {
            let is_blank = first.iter().all(|byte| *byte == 0);
            let looks = if is_blank { UnmarkedSegment::Blank } else { UnmarkedSegment::Broken };
            found.unmarked.push((slot, looks));
            continue;
        };
        if header.store != store.store {
            return Err(OpenError::damaged(name, 0, "the segment belongs to another store"));
        }
        if let Some(generation) = found.generations.get_mut(slot) {
            *generation = header.generation;
        }
        if found.headers.insert(header.generation, (slot, header)).is_some() {
            return Err(OpenError::damaged(name, 0, "another segment has the same generation"));
        }
    }
    found.admit_unmarked()?;
    Ok(found)
}

/// Opens a segment and reads the bytes of its header.
fn read_first(
    folder: &dyn StoreFolder,
    name: &str,
    segment_bytes: u32,
) -> Result<(Arc<dyn StoreFile>, Vec<u8>), OpenError> {
    let file = folder.open(name).map_err(OpenError::io("open", name))?;
    let bytes = file.bytes().map_err(OpenError::io("read", name))?;
    if bytes != u64::from(segment_bytes) {
        return Err(OpenError::damaged(name, bytes, "the segment is not of its full length"));
    }
    let mut first = vec![0; SEGMENT_HEADER_BYTES];
    file.read(&mut first, 0).map_err(OpenError::io("read", name))?;
    Ok((file, first))
}

impl FoundStore {
    /// A segment of the log, to be read.
    pub(crate) fn place(&self, generation: u64) -> Result<(usize, SegmentPlace<'_>), OpenError> {
        let missing = || OpenError::damaged("the log", 0, "a segment of the log is missing");
        let (slot, _) = self.headers.get(&generation).ok_or_else(missing)?;
        let place = self.place_in(*slot, generation).ok_or_else(missing)?;
        Ok((*slot, place))
    }

    fn place_in(&self, slot: usize, generation: u64) -> Option<SegmentPlace<'_>> {
        let StoreDescription { store, segment_bytes } = self.store;
        let file = self.files.get(slot)?;
        Some(SegmentPlace { file: &**file, store, generation, bytes: segment_bytes })
    }

    /// Finds where the log ends.
    pub(crate) fn end(&self) -> Result<LogEnd, OpenError> {
        let newest = self.headers.last_key_value();
        let generation = newest.map_or(0, |(generation, _)| *generation);
        self.check_unmarked(generation)?;
        let Some((_, (slot, header))) = newest else {
            // Nothing was ever written: the first batch will turn to the first segment.
            let reaped = ReapMark::default();
            let state = LogState { oldest: 1, sequence: 0, clock: 0, slots: 0, reaped };
            let StoreDescription { store, segment_bytes: offset } = self.store;
            let header = SegmentHeader { store, generation, previous_end: 0, state };
            return Ok(LogEnd {
                generation,
                offset,
                state,
                header,
                last: None,
                oldest_for_sure: 1,
                is_header_in_doubt: false,
            });
        };
        let end = self.end_of(generation, *header).map_err(|error| error.in_file(*slot))?;
        if end.state.slots as usize > self.files.len() {
            let name = name_of(self.files.len());
            return Err(OpenError::damaged(name, 0, "the segment is missing"));
        }
        Ok(end)
    }

    /// Reads the newest segment to its end.
    fn end_of(&self, generation: u64, header: SegmentHeader) -> Result<LogEnd, OpenError> {
        let (_, place) = self.place(generation)?;
        let mut end = LogEnd {
            generation,
            offset: PAGE as u32,
            state: header.state,
            header,
            last: None,
            oldest_for_sure: header.state.oldest,
            is_header_in_doubt: true,
        };
        let mut body = Vec::new();
        loop {
            match place.next(end.offset, &mut body).map_err(OpenError::io("read", "."))? {
                NextBatch::Batch(batch) => {
                    end.oldest_for_sure = end.state.oldest;
                    (end.offset, end.state, end.last) = (batch.end(), batch.state, Some(batch));
                    end.is_header_in_doubt &= batch.after < PAGE as u32;
                }
                NextBatch::End => break,
                NextBatch::Broken => return Err(OpenError::damaged("", end.offset.into(), BROKEN)),
            }
        }
        // A batch that a crash has torn was begun after the segment's header was flushed, too.
        let torn = place.header(end.offset).map_err(OpenError::io("read", "."))?;
        end.is_header_in_doubt &= torn.is_none_or(|torn| torn.after < PAGE as u32);
        Ok(end)
    }

    /// A segment that is taken into use together with a batch is the newest as soon as that batch is
    /// there, whatever became of its header: the batch was durable before.
    fn admit_unmarked(&mut self) -> Result<(), OpenError> {
        let Some((generation, (slot, header))) = self.headers.last_key_value() else {
            return Ok(());
        };
        let newest = *generation;
        let last_slot = *slot;
        let last_header = *header;
        let mut body = Vec::new();
        for number in 0..self.unmarked.len() {
            let Some((slot, _)) = self.unmarked.get(number).copied() else { break };
            let Some(place) = self.place_in(slot, newest + 1) else { continue };
            let batch = place.batch(PAGE as u32, &mut body);
            let batch = batch.map_err(OpenError::io("read", name_of(slot)))?;
            let Some(batch) = batch.filter(|batch| batch.after < PAGE as u32) else { continue };
            let end = self.end_of(newest, last_header);
            let previous_end = end.map_err(|error| error.in_file(last_slot))?.offset;
            let BatchHeader { store, generation, state, .. } = batch;
            let header = SegmentHeader { store, generation, previous_end, state };
            self.headers.insert(generation, (slot, header));
            if let Some(place) = self.generations.get_mut(slot) {
                *place = generation;
            }
            self.unmarked.remove(number);
            return Ok(());
        }
        Ok(())
    }

    /// A segment whose header does not verify was being taken into use when a crash came. Nothing
    /// can follow such a header. Where a batch does that is later than the newest segment, the header
    /// was durable and is damaged.
    fn check_unmarked(&self, newest: u64) -> Result<(), OpenError> {
        for (slot, looks) in &self.unmarked {
            let name = name_of(*slot);
            let Some(file) = self.files.get(*slot) else { continue };
            let until = match looks {
                UnmarkedSegment::Blank => self.store.segment_bytes.min(BLANK_BYTES_READ),
                UnmarkedSegment::Broken => self.store.segment_bytes,
            };
            let latest = latest_generation(&**file, &self.store, until);
            let is_damaged = latest.map_err(OpenError::io("read", &name))?.is_some_and(
                |(generation, is_after_header)| {
                    generation > newest + 1 || generation > newest && is_after_header
                },
            );
            if is_damaged {
                return Err(OpenError::damaged(name, 0, "the segment's header does not verify"));
            }
        }
        Ok(())
    }

    /// Shows the log: what the snapshot knows, if there is an intact one, and the batches behind it.
    /// Says how many bytes of batches there were.
    pub(crate) fn read_log(
        &self,
        folder: &dyn StoreFolder,
        end: &LogEnd,
        visitor: &mut impl LogVisitor,
    ) -> Result<u64, OpenError> {
        let from = self.read_snapshot(folder, end, visitor)?;
        self.read_batches(end, from, visitor)
    }

    /// Where the log begins.
    pub(crate) fn beginning(&self, end: &LogEnd) -> LogPosition {
        LogPosition {
            generation: end.state.oldest,
            offset: PAGE as u32,
            reaped: ReapMark::default(),
        }
    }

    /// Shows the batches of the log from a position on.
    pub(crate) fn read_batches(
        &self,
        end: &LogEnd,
        from: LogPosition,
        visitor: &mut impl LogVisitor,
    ) -> Result<u64, OpenError> {
        let mut bytes = 0;
        let mut reaped = from.reaped;
        for generation in end.state.oldest.max(1)..=end.generation {
            let (slot, place) = self.place(generation)?;
            if generation < from.generation {
                continue;
            }
            let start = if generation == from.generation { from.offset } else { PAGE as u32 };
            let stop = self.end_of_generation(generation, end);
            self.read_segment(place, slot as u16, start..stop, &mut reaped, visitor)
                .map_err(|error| error.in_file(slot))?;
            bytes += u64::from(stop.saturating_sub(start));
        }
        Ok(bytes)
    }

    /// Where the batches of a segment of the log end.
    pub(crate) fn end_of_generation(&self, generation: u64, end: &LogEnd) -> u32 {
        match self.headers.get(&(generation + 1)) {
            Some((_, next)) => next.previous_end,
            None => end.offset,
        }
    }

    fn read_segment(
        &self,
        place: SegmentPlace<'_>,
        slot: u16,
        range: Range<u32>,
        reaped: &mut ReapMark,
        visitor: &mut impl LogVisitor,
    ) -> Result<(), OpenError> {
        let mut body = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let damaged = || OpenError::damaged("", u64::from(at), BROKEN);
            let next = place.next(at, &mut body).map_err(OpenError::io("read", "."))?;
            let NextBatch::Batch(batch) = next else { return Err(damaged()) };
            if batch.end() > range.end {
                return Err(damaged());
            }
            // What was reaped with this batch was there before its entries were.
            if batch.state.reaped != *reaped {
                *reaped = batch.state.reaped;
                visitor.reaped(*reaped);
            }
            for found in batch.entries(&body) {
                let (header, record) = found.ok_or_else(damaged)?;
                let stands = batch.offset + (BATCH_BYTES + record) as u32;
                let bytes = body.get(record..record + header.length as usize).unwrap_or_default();
                visitor.entry(&header, slot, stands, bytes);
            }
            at = batch.end();
        }
        Ok(())
    }

    /// Shows the entries of the snapshot, and says from where on the log must be read.
    fn read_snapshot(
        &self,
        folder: &dyn StoreFolder,
        end: &LogEnd,
        visitor: &mut impl LogVisitor,
    ) -> Result<LogPosition, OpenError> {
        let Ok(file) = folder.open(snapshot::NAME) else { return Ok(self.beginning(end)) };
        let slot_of = |generation: u64| {
            let (slot, _) =
                self.headers.get(&generation).filter(|_| generation >= end.state.oldest)?;
            Some(*slot as u16)
        };
        let read = snapshot::read(&*file, self.store.store, slot_of, |entry| {
            visitor.snapshot_entry(entry);
        });
        let Some(position) = read.map_err(OpenError::io("read", snapshot::NAME))? else {
            tracing::warn!("the snapshot of the disk store's index is damaged; reading the log");
            visitor.forget_snapshot();
            return Ok(self.beginning(end));
        };
        if (position.generation, position.offset) > (end.generation, end.offset) {
            let what = "the log ends before the position of the snapshot";
            return Err(OpenError::damaged(snapshot::NAME, 0, what));
        }
        Ok(position)
    }
}
