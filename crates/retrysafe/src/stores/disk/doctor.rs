//! What is wrong with a store?
//!
//! The doctor reads everything and changes nothing. First it reads as opening does, and repeats what
//! opening would say. Then it goes past the damage and says for each segment what verifies. It keeps
//! no record in memory, however many there are.

use std::fmt;
use std::path::Path;

use bytes::Bytes;
use retrysafe_core::record::Record;

use super::error::OpenError;
use super::files::StoreFolder;
use super::folder::LockedFolder;
use super::format::EntryHeader;
use super::index::{IndexEntry, ReapMark};
use super::recover::{LogVisitor, check_finished, find};
use super::segments::name_of;
use super::snapshot;
use super::survey::{StoreSurvey, SurveyPart, SurveyedSegment};

/// How many faults are listed. A store with more is broken through and through.
const FAULTS_MAX: usize = 1_000;

/// What the doctor has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoctorReport {
    /// Why the store does not open, in the words of the opening.
    pub refusal: Option<String>,
    /// Every segment, in the order of their names.
    pub segments: Vec<SegmentReport>,
    /// The first thousand faults.
    pub faults: Vec<StoreFault>,
    /// How many more there are.
    pub more_faults: usize,
}

/// What the doctor has found in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// The segment's file.
    pub file: String,
    /// Its place in the log; `None` if it was never in use or nothing of it can be read.
    pub generation: Option<u64>,
    /// Whether the log still needs it.
    pub is_in_use: bool,
    /// How many batches verify.
    pub batches: u64,
    /// How many versions of records verify, current or not.
    pub versions: u64,
}

/// Something that does not verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFault {
    /// In which file.
    pub file: String,
    /// From which byte on.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// Reads a whole store without changing it.
///
/// # Errors
///
/// If another process has the store open, or the folder is not a store of this format. Damage is no
/// error here: it is in the report.
pub fn doctor(path: impl AsRef<Path>) -> Result<DoctorReport, OpenError> {
    let folder = LockedFolder::look_at(path.as_ref())?;
    examine(&folder)
}

pub(crate) fn examine(folder: &dyn StoreFolder) -> Result<DoctorReport, OpenError> {
    let survey = StoreSurvey::of(folder)?;
    let refusal = read_as_opening(folder).err().map(|error| error.to_string());
    let mut report =
        DoctorReport { refusal, segments: Vec::new(), faults: Vec::new(), more_faults: 0 };
    if survey.is_store_file_broken {
        report.fault(super::create::STORE, 0, "the file is missing or damaged");
    }
    for segment in &survey.segments {
        report.segment(&survey, segment);
    }
    for (generation, segment) in survey.log() {
        if segment.is_none() {
            report.fault(
                "the log",
                0,
                format!("the segment of generation {generation} is missing"),
            );
        }
    }
    for name in (survey.segments.len()..survey.state.slots as usize).map(name_of) {
        report.fault(&name, 0, "a segment is missing");
    }
    if let Ok(file) = folder.open(snapshot::NAME)
        && !matches!(snapshot::read(&*file, survey.store.store, |_| None, drop), Ok(Some(_)))
    {
        report.fault(snapshot::NAME, 0, "the snapshot is damaged; opening does without it");
    }
    Ok(report)
}

/// Does what opening does before it changes anything.
fn read_as_opening(folder: &dyn StoreFolder) -> Result<(), OpenError> {
    check_finished(folder)?;
    let found = find(folder)?;
    let end = found.end()?;
    found.read_log(folder, &end, &mut Unremembered)?;
    Ok(())
}

/// Is shown everything and keeps nothing.
struct Unremembered;

impl LogVisitor for Unremembered {
    fn snapshot_entry(&mut self, _entry: IndexEntry) {}
    fn forget_snapshot(&mut self) {}
    fn reaped(&mut self, _mark: ReapMark) {}
    fn entry(&mut self, _header: &EntryHeader, _slot: u16, _at: u32, _record: &[u8]) {}
}

/// Whether an entry's record is the one that the entry speaks of.
pub(crate) fn is_intact(header: &EntryHeader, record: &[u8]) -> bool {
    Record::decode(Bytes::copy_from_slice(record))
        .is_ok_and(|record| record.id == header.id && record.version == header.version)
}

impl DoctorReport {
    fn segment(&mut self, survey: &StoreSurvey, segment: &SurveyedSegment) {
        let is_in_use = survey.is_in_use(segment.generation);
        let mut batches = 0;
        let mut versions = 0;
        if segment.cut > 0 {
            self.fault(&segment.name, 0, "the segment is not of its full length");
        }
        if is_in_use {
            if segment.is_header_broken {
                self.fault(&segment.name, 0, "the segment's header does not verify");
            }
            survey.walk(segment, |part| match part {
                SurveyPart::Batch(_) => batches += 1,
                SurveyPart::BrokenBatch(range) => {
                    let what = "a batch that was flushed does not verify";
                    self.fault(&segment.name, u64::from(range.start), what);
                }
                SurveyPart::TornEntry(..) => {}
                SurveyPart::Entry(header, record, _) if is_intact(header, record) => versions += 1,
                SurveyPart::Entry(header, _, at) => {
                    let what = format!("the record of {} does not verify", header.id);
                    self.fault(&segment.name, u64::from(at), what);
                }
                SurveyPart::Unreadable(range) => {
                    let length = range.end - range.start;
                    let what = format!("{length} bytes of records cannot be read at all");
                    self.fault(&segment.name, u64::from(range.start), what);
                }
            });
        }
        let file = segment.name.clone();
        let generation = segment.generation;
        self.segments.push(SegmentReport { file, generation, is_in_use, batches, versions });
    }

    fn fault(&mut self, file: &str, offset: u64, what: impl Into<String>) {
        if self.faults.len() >= FAULTS_MAX {
            self.more_faults += 1;
            return;
        }
        self.faults.push(StoreFault { file: file.to_owned(), offset, what: what.into() });
    }

    /// Whether nothing is wrong. A last batch that does not verify is not wrong: a crash may have
    /// torn it, and nobody was told of it.
    pub fn is_sound(&self) -> bool {
        self.refusal.is_none() && self.faults.is_empty()
    }

    /// How many versions of records verify, current or not.
    pub fn versions(&self) -> u64 {
        self.segments.iter().map(|segment| segment.versions).sum()
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, byte {}: {}", self.file, self.offset, self.what)
    }
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            let SegmentReport { file, batches, versions, .. } = segment;
            match segment.generation {
                Some(generation) if segment.is_in_use => writeln!(
                    f,
                    "{file}: generation {generation}, {batches} batches, {versions} versions of \
                     records"
                )?,
                Some(_) | None => writeln!(f, "{file}: free")?,
            }
        }
        for fault in &self.faults {
            writeln!(f, "damaged: {fault}")?;
        }
        if self.more_faults > 0 {
            writeln!(f, "and {} more faults", self.more_faults)?;
        }
        match &self.refusal {
            Some(refusal) => write!(f, "it does not open: {refusal}"),
            None if self.faults.is_empty() => f.write_str("sound"),
            None => f.write_str("it opens; what is damaged fails for its own key"),
        }
    }
}
