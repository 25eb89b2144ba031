//! What can be read of a store, past what cannot?
//!
//! Opening stops at the first damage. This goes on: a batch that does not verify is searched for its
//! entries, each of which has a checksum of its own and stands for its place; a segment whose header
//! is broken is known by its batches. What cannot be read from the disk counts as zeros.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::batch::{NextBatch, SegmentPlace, latest_generation};
use super::create::STORE;
use super::error::OpenError;
use super::files::{StoreFile, StoreFolder};
use super::format::{
    BATCH_BYTES, BatchHeader, ENTRY_BYTES, EntryHeader, EntryPlace, LogState, PAGE,
    SEGMENT_HEADER_BYTES, SegmentHeader, StoreDescription,
};
use super::index::ReapMark;
use super::recover::read_store;
use super::segments::is_segment;
use super::snapshot;

/// A store, as far as it can be read.
#[derive(Debug)]
pub(crate) struct StoreSurvey {
    pub(crate) store: StoreDescription,
    /// Whether the file `store` is missing or damaged.
    pub(crate) is_store_file_broken: bool,
    pub(crate) segments: Vec<SurveyedSegment>,
    /// What the last readable header says of the log.
    pub(crate) state: LogState,
    /// Whether the snapshot speaks of a part of the log that is not there.
    pub(crate) is_behind_snapshot: bool,
    newest: u64,
}

/// A segment, as far as it can be read.
#[derive(Debug)]
pub(crate) struct SurveyedSegment {
    /// Its place among the segments of the survey.
    pub(crate) number: usize,
    pub(crate) name: String,
    file: Arc<dyn StoreFile>,
    /// Its place in the log, by its header or its batches; none if it was never in use.
    pub(crate) generation: Option<u64>,
    header: Option<SegmentHeader>,
    /// Whether its header is lost: its first page is none and batches need one, or is not even blank.
    pub(crate) is_header_broken: bool,
    /// How many bytes it has too few or too many.
    pub(crate) cut: u64,
}

/// A stretch of a segment of the log, in order.
#[derive(Debug)]
pub(crate) enum SurveyPart<'a> {
    /// A batch that verifies.
    Batch(&'a BatchHeader),
    /// A batch that does not, and where the next one begins. Its entries follow as far as they can
    /// be read.
    BrokenBatch(Range<u32>),
    /// An entry and its record, which may be damaged, and where the record begins.
    Entry(&'a EntryHeader, &'a [u8], u32),
    /// The same in a last batch that does not verify: nobody may have been told of it.
    TornEntry(&'a EntryHeader, &'a [u8], u32),
    /// Bytes that hold entries of which nothing can be read, not even their names.
    Unreadable(Range<u32>),
}

/// A file of which every byte can be read: as zero, if the disk has it no more.
#[derive(Debug)]
struct ZeroFilled(Arc<dyn StoreFile>);

impl StoreFile for ZeroFilled {
    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        if self.0.read(into, offset).is_ok() {
            return Ok(());
        }
        for (n, page) in into.chunks_mut(PAGE).enumerate() {
            if self.0.read(page, offset + (n * PAGE) as u64).is_err() {
                page.fill(0);
            }
        }
        Ok(())
    }

    fn write(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_removed(&self) -> io::Result<bool> {
        self.0.is_removed()
    }
}

impl StoreSurvey {
    /// Finds out what there is.
    pub(crate) fn of(folder: &dyn StoreFolder) -> Result<Self, OpenError> {
        let mut names = folder.names().map_err(OpenError::io("list", "."))?;
        names.sort();
        if !names.iter().any(|name| name == STORE || is_segment(name)) {
            return Err(match names.into_iter().next() {
                Some(found) => OpenError::NotAStore { found },
                None => OpenError::Absent,
            });
        }
        let store = match read_store(folder) {
            Ok(store) => Some(store),
            Err(OpenError::Format { found }) => return Err(OpenError::Format { found }),
            Err(_) => None,
        };
        let mut segments = Vec::new();
        for name in names.into_iter().filter(|name| is_segment(name)) {
            segments.push(SurveyedSegment::of(folder, name, segments.len())?);
        }
        let is_store_file_broken = store.is_none();
        let store = store.or_else(|| guess_store(&segments)).ok_or_else(|| {
            OpenError::damaged(STORE, 0, "the file is missing or damaged, and so is every segment")
        })?;
        let reaped = ReapMark::default();
        let state = LogState { oldest: 1, sequence: 0, clock: 0, slots: 0, reaped };
        let newest = 0;
        let is_behind_snapshot = false;
        let mut survey =
            Self { store, is_store_file_broken, segments, state, is_behind_snapshot, newest };
        survey.find_generations();
        survey.find_state();
        survey.compare_snapshot(folder);
        Ok(survey)
    }

    fn compare_snapshot(&mut self, folder: &dyn StoreFolder) {
        let Ok(file) = folder.open(snapshot::NAME) else { return };
        let Ok(Some(position)) = snapshot::read(&*file, self.store.store, |_| None, drop) else {
            return;
        };
        let mut end = PAGE as u32;
        if let Some(newest) = self.segments.iter().find(|s| s.generation == Some(self.newest)) {
            self.walk(newest, |part| match part {
                SurveyPart::Batch(batch) => end = batch.end(),
                SurveyPart::BrokenBatch(range) => end = range.end,
                SurveyPart::Entry(..) | SurveyPart::TornEntry(..) | SurveyPart::Unreadable(_) => {}
            });
        }
        self.is_behind_snapshot = (position.generation, position.offset) > (self.newest, end);
    }

    fn find_generations(&mut self) {
        let StoreDescription { store, segment_bytes } = self.store;
        for segment in &mut self.segments {
            let bytes = segment.file.bytes().unwrap_or_default();
            segment.cut = bytes.abs_diff(u64::from(segment_bytes));
            segment.header = segment.header.filter(|header| header.store == store);
            segment.generation = match segment.header {
                Some(header) => Some(header.generation),
                None => {
                    let latest = latest_generation(&*segment.file, &self.store, segment_bytes);
                    let latest = latest.ok().flatten();
                    // A batch that was begun after the header was durable needs it.
                    segment.is_header_broken = latest
                        .map_or(segment.is_header_broken, |(_, is_after_header)| is_after_header);
                    latest.map(|(generation, _)| generation)
                }
            };
        }
        self.newest = self.segments.iter().filter_map(|one| one.generation).max().unwrap_or(0);
    }

    /// What the last header of the newest segment says, or of the newest one that says anything.
    fn find_state(&mut self) {
        let mut last = None;
        let by_generation: BTreeMap<u64, &SurveyedSegment> =
            self.segments.iter().filter_map(|one| Some((one.generation?, one))).collect();
        for (generation, segment) in by_generation.into_iter().rev() {
            last = segment.header.map(|header| header.state);
            let place = self.place(segment, generation);
            let mut from = PAGE as u32;
            while let Ok(Some(batch)) = place.next_header(from) {
                last = Some(batch.state);
                from = batch.end().max(from.saturating_add(PAGE as u32));
            }
            if last.is_some() {
                break;
            }
        }
        self.state = last.unwrap_or(self.state);
    }

    fn place<'a>(&self, segment: &'a SurveyedSegment, generation: u64) -> SegmentPlace<'a> {
        let StoreDescription { store, segment_bytes } = self.store;
        SegmentPlace { file: &*segment.file, store, generation, bytes: segment_bytes }
    }

    /// Whether the log needs a segment of this generation.
    pub(crate) fn is_in_use(&self, generation: Option<u64>) -> bool {
        generation.is_some_and(|one| (self.state.oldest.max(1)..=self.newest).contains(&one))
    }

    /// The segments of the log in order; none where one is missing.
    pub(crate) fn log(&self) -> Vec<(u64, Option<&SurveyedSegment>)> {
        let of = |generation| self.segments.iter().find(|s| s.generation == Some(generation));
        (self.state.oldest.max(1)..=self.newest).map(|one| (one, of(one))).collect()
    }

    /// The segments that the log does not need any more, with what stands in them from before.
    pub(crate) fn given_up(&self) -> impl Iterator<Item = &SurveyedSegment> {
        self.segments
            .iter()
            .filter(|one| one.generation.is_some() && !self.is_in_use(one.generation))
    }

    /// Shows what stands in a segment, past what does not verify.
    pub(crate) fn walk(&self, segment: &SurveyedSegment, mut show: impl FnMut(SurveyPart<'_>)) {
        let Some(generation) = segment.generation else { return };
        let next = self.segments.iter().find(|one| one.generation == Some(generation + 1));
        let stop = next.and_then(|next| next.header).map(|header| header.previous_end);
        // Only the end of the log can be torn: that of the newest segment, or of the one before if the
        // newest was being taken into use together with a batch.
        let may_be_torn = generation == self.newest
            || next.is_some_and(|next| next.header.is_none() && !next.is_header_broken);
        let place = self.place(segment, generation);
        let mut at = PAGE as u32;
        let mut body = Vec::new();
        while at < stop.unwrap_or(place.bytes) {
            // Reading never fails: see `ZeroFilled`.
            let Ok(next) = place.next(at, &mut body) else { return };
            let until = match next {
                NextBatch::Batch(batch) => {
                    show(SurveyPart::Batch(&batch));
                    for (header, record) in batch.entries(&body).flatten() {
                        let bytes = body.get(record..record + header.length as usize);
                        let stands = batch.offset + (BATCH_BYTES + record) as u32;
                        show(SurveyPart::Entry(&header, bytes.unwrap_or_default(), stands));
                    }
                    at = batch.end();
                    continue;
                }
                NextBatch::Broken => {
                    place.next_header(at.saturating_add(PAGE as u32)).ok().flatten()
                }
                // Where nothing follows, a crash may have torn the last batch: nobody was told of
                // it. A segment that others follow was whole.
                NextBatch::End => None,
            };
            let header = place.header(at).ok().flatten();
            if next == NextBatch::End && stop.is_none() && !may_be_torn && header.is_none() {
                // The header of the next segment would say whether anything stood here.
                show(SurveyPart::Unreadable(at..place.bytes));
                return;
            }
            let is_torn = next == NextBatch::End && stop.is_none() && may_be_torn;
            let end = match (until, stop) {
                (Some(later), _) => later.offset,
                (None, Some(stop)) => stop,
                (None, None) => header.map_or(at, |header| header.end()),
            };
            if !is_torn {
                show(SurveyPart::BrokenBatch(at..end));
            }
            self.search(&place, at..end, header, is_torn, &mut show);
            if is_torn {
                return;
            }
            at = end;
        }
    }

    /// Shows the entries in a stretch in which no batch verifies, and what lies between them.
    fn search(
        &self,
        place: &SegmentPlace<'_>,
        range: Range<u32>,
        header: Option<BatchHeader>,
        is_torn: bool,
        show: &mut impl FnMut(SurveyPart<'_>),
    ) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        if place.file.read(&mut bytes, u64::from(range.start)).is_err() {
            return;
        }
        let SegmentPlace { store, generation, .. } = *place;
        let offset_of = |at: usize| range.start + at as u32;
        let mut at = BATCH_BYTES;
        // Without the header it is not known how much there was; the header itself then counts as
        // lost. With it, padding is known to be padding.
        let mut lost_from = if header.is_some() { BATCH_BYTES } else { 0 };
        let end = header.map_or(bytes.len(), |header| BATCH_BYTES + header.length as usize);
        while at < end {
            let place = EntryPlace { store, generation, offset: offset_of(at) };
            let found = bytes.get(at..).and_then(|rest| EntryHeader::decode(rest, place));
            let record = found.and_then(|header| {
                let start = at + ENTRY_BYTES;
                Some((header, start, bytes.get(start..start + header.length as usize)?))
            });
            let Some((header, start, record)) = record else {
                at += 1;
                continue;
            };
            if lost_from < at && !is_torn {
                show(SurveyPart::Unreadable(offset_of(lost_from)..offset_of(at)));
            }
            if is_torn {
                show(SurveyPart::TornEntry(&header, record, offset_of(start)));
            } else {
                show(SurveyPart::Entry(&header, record, offset_of(start)));
            }
            at = start + record.len();
            lost_from = at;
        }
        if lost_from < end && !is_torn {
            show(SurveyPart::Unreadable(offset_of(lost_from)..offset_of(end)));
        }
    }
}

impl SurveyedSegment {
    fn of(folder: &dyn StoreFolder, name: String, number: usize) -> Result<Self, OpenError> {
        let file = folder.open(&name).map_err(OpenError::io("open", &name))?;
        let file: Arc<dyn StoreFile> = Arc::new(ZeroFilled(file));
        let mut first = [0; SEGMENT_HEADER_BYTES];
        file.read(&mut first, 0).map_err(OpenError::io("read", &name))?;
        let header = SegmentHeader::decode(&first);
        let is_header_broken = header.is_none() && first.iter().any(|byte| *byte != 0);
        let generation = None;
        let cut = 0;
        Ok(Self { number, name, file, generation, header, is_header_broken, cut })
    }

    /// Reads a record that was shown.
    pub(crate) fn record(&self, at: u32, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        if self.file.read(&mut bytes, u64::from(at)).is_err() {
            bytes.clear();
        }
        bytes
    }
}

/// What the file `store` must have said, by the segments.
fn guess_store(segments: &[SurveyedSegment]) -> Option<StoreDescription> {
    let store = segments.iter().find_map(|segment| segment.header)?.store;
    let bytes = segments.iter().filter_map(|segment| segment.file.bytes().ok()).max()?;
    Some(StoreDescription { store, segment_bytes: u32::try_from(bytes).ok()? })
}
