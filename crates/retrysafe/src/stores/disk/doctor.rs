//! What is intact in a store that does not open?
//!
//! The doctor reads everything and changes nothing. It goes past damage that opening refuses, and
//! says for each segment what verifies and what does not.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use retrysafe_core::record::Record;
use retrysafe_core::scope::Id;

use super::batch::Place;
use super::error::OpenError;
use super::files::{File, Folder, RealFolder};
use super::format::{BATCH_BYTES, BatchHeader, SECTOR, SegmentHeader, entries};
use super::recover::{STORE, read_store};
use super::segments::name_of;
use super::{lock, snapshot};

/// What the doctor has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Every segment, in the order of their names.
    pub segments: Vec<SegmentReport>,
    /// How many records are intact and current, expired ones among them.
    pub records: usize,
    /// Faults outside the segments.
    pub faults: Vec<Fault>,
}

/// What the doctor has found in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// The segment's file.
    pub file: String,
    /// Its place in the log; `None` if it was never in use or its header is damaged.
    pub generation: Option<u64>,
    /// Whether the log still needs it.
    pub is_in_use: bool,
    /// How many batches verify.
    pub batches: usize,
    /// How many records stand in it, current or not.
    pub records: usize,
    /// What does not verify.
    pub faults: Vec<Fault>,
}

/// Something that does not verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// In which file.
    pub file: String,
    /// From which byte on.
    pub offset: u64,
    /// What is wrong.
    pub what: &'static str,
}

/// A record that was found intact.
struct Salvaged {
    generation: u64,
    segment: String,
    offset: u64,
    bytes: Bytes,
    record: Record,
}

/// Reads a whole store without changing it.
///
/// # Errors
///
/// If another process has the store open, or the folder is not a store. Damage is no error here: it
/// is in the report.
pub fn doctor(path: impl AsRef<Path>) -> Result<Report, OpenError> {
    examine(path.as_ref()).map(|(report, _)| report)
}

/// Writes every intact, current record of a store as a line of JSON: its id, state, version, times,
/// place, and its bytes in hexadecimal. Says how many.
///
/// # Errors
///
/// As [`doctor`], or if `out` cannot be written.
pub fn export(path: impl AsRef<Path>, out: &mut dyn Write) -> Result<usize, OpenError> {
    let (_, mut salvaged) = examine(path.as_ref())?;
    salvaged.sort_by_key(|found| found.record.version);
    for found in &salvaged {
        write_line(out, found).map_err(OpenError::io("write", "the export"))?;
    }
    Ok(salvaged.len())
}

fn write_line(out: &mut dyn Write, found: &Salvaged) -> io::Result<()> {
    // Names and numbers only, so nothing needs escaping.
    let Salvaged { record, segment, offset, bytes, .. } = found;
    let number = |time: Option<retrysafe_core::time::Time>| {
        time.map_or_else(|| "null".to_owned(), |time| time.as_ms().to_string())
    };
    write!(
        out,
        "{{\"id\":\"{}\",\"state\":\"{}\",\"version\":{},\"fence\":{},\"created_at\":{},\
         \"lease_until\":{},\"expires_at\":{},\"segment\":\"{segment}\",\"offset\":{offset},\
         \"record\":\"",
        record.id,
        record.standing().name(),
        record.version,
        record.fence.0,
        record.created_at.as_ms(),
        number(record.lease_until()),
        number(record.expires_at()),
    )?;
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
    out.write_all(b"\"}\n")
}

fn examine(path: &Path) -> Result<(Report, Vec<Salvaged>), OpenError> {
    // Only a store that exists is locked: the doctor makes no files.
    let _lock = match fs::exists(path.join(lock::NAME)) {
        Ok(true) => Some(lock::look(path)?),
        Ok(false) | Err(_) => None,
    };
    let folder = RealFolder::at(path);
    let mut names = folder.names().map_err(OpenError::io("list", path))?;
    if !names.iter().any(|name| name == STORE || name.starts_with("segment-")) {
        let found = names.into_iter().next().unwrap_or_default();
        return Err(OpenError::NotAStore { found });
    }
    names.sort();
    let mut faults = Vec::new();
    let store = match read_store(&folder) {
        Ok(store) => Some(store.store),
        Err(OpenError::Format { found }) => return Err(OpenError::Format { found }),
        Err(_) => {
            let what = "the file is missing or damaged";
            faults.push(Fault { file: STORE.into(), offset: 0, what });
            None
        }
    };
    let mut examiner =
        Examiner { store, segments: Vec::new(), latest: HashMap::new(), state: None };
    for name in names.iter().filter(|n| n.starts_with("segment-") && !n.ends_with(".new")) {
        examiner.segment(&folder, name)?;
    }
    examiner.find_missing(&mut faults);
    if names.iter().any(|name| name == snapshot::NAME) && !examiner.is_snapshot_intact(&folder) {
        let what = "the snapshot is damaged; opening does without it";
        faults.push(Fault { file: snapshot::NAME.into(), offset: 0, what });
    }
    let Examiner { segments, latest, .. } = examiner;
    let salvaged: Vec<Salvaged> = latest.into_values().collect();
    Ok((Report { segments, records: salvaged.len(), faults }, salvaged))
}

struct Examiner {
    store: Option<u64>,
    segments: Vec<SegmentReport>,
    latest: HashMap<Id, Salvaged>,
    /// The latest header of a batch: generation and offset, oldest generation, number of segments.
    state: Option<(u64, u32, u64, u32)>,
}

impl Examiner {
    fn segment(&mut self, folder: &dyn Folder, name: &str) -> Result<(), OpenError> {
        let file = folder.open(name).map_err(OpenError::io("open", name))?;
        let bytes = file.bytes().map_err(OpenError::io("read", name))?;
        let mut sector = vec![0; SECTOR.min(bytes as usize)];
        file.read(&mut sector, 0).map_err(OpenError::io("read", name))?;
        let mut report = SegmentReport {
            file: name.to_owned(),
            generation: None,
            is_in_use: false,
            batches: 0,
            records: 0,
            faults: Vec::new(),
        };
        match SegmentHeader::decode(&sector) {
            Some(header) if self.store.is_none_or(|store| store == header.store) => {
                report.generation = Some(header.generation);
                let place = Place {
                    file: &*file,
                    store: header.store,
                    generation: header.generation,
                    bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                };
                self.see(header.generation, 0, header.state.oldest, header.state.slots);
                self.batches(&place, &mut report).map_err(OpenError::io("read", name))?;
            }
            None if sector.iter().all(|byte| *byte == 0) => {}
            Some(_) | None => {
                let what = "the segment's header does not verify";
                report.faults.push(Fault { file: name.into(), offset: 0, what });
            }
        }
        self.segments.push(report);
        Ok(())
    }

    /// Reads the batches of a segment, past those that do not verify.
    fn batches(&mut self, place: &Place<'_>, report: &mut SegmentReport) -> io::Result<()> {
        let mut at = SECTOR as u32;
        let mut body = Vec::new();
        while at < place.bytes {
            let (batch, offset) = match place.batch(at, &mut body)? {
                Some(batch) => (batch, at),
                None => {
                    let torn = place.header(at)?;
                    let Some(next) = place.next_header(at.saturating_add(SECTOR as u32))? else {
                        // Nothing follows: the end of the log, or a write that a crash has torn.
                        break;
                    };
                    let what = "a batch that was flushed does not verify";
                    let file = report.file.clone();
                    report.faults.push(Fault { file, offset: u64::from(at), what });
                    if let Some(header) = torn {
                        body.resize(header.length as usize, 0);
                        place.file.read(&mut body, u64::from(at) + BATCH_BYTES as u64)?;
                        self.entries(place, &header, &body, report);
                    }
                    at = next;
                    continue;
                }
            };
            report.batches += 1;
            let BatchHeader { generation, state, .. } = batch;
            self.see(generation, offset, state.oldest, state.slots);
            self.entries(place, &batch, &body, report);
            at = batch.end();
        }
        Ok(())
    }

    fn entries(
        &mut self,
        place: &Place<'_>,
        batch: &BatchHeader,
        body: &[u8],
        report: &mut SegmentReport,
    ) {
        for (header, at) in entries(body).flatten() {
            let offset = u64::from(batch.offset) + (BATCH_BYTES + at) as u64;
            let bytes = body.get(at..at + header.length as usize).unwrap_or_default();
            let bytes = Bytes::copy_from_slice(bytes);
            let Ok(record) = Record::decode(bytes.clone()) else {
                let what = "a record does not verify";
                report.faults.push(Fault { file: report.file.clone(), offset, what });
                continue;
            };
            report.records += 1;
            let (generation, segment) = (place.generation, report.file.clone());
            let is_newer = self
                .latest
                .get(&record.id)
                .is_none_or(|known| known.record.version <= record.version);
            if is_newer {
                self.latest
                    .insert(record.id, Salvaged { generation, segment, offset, bytes, record });
            }
        }
    }

    fn see(&mut self, generation: u64, offset: u32, oldest: u64, slots: u32) {
        let is_later = self.state.is_none_or(|(g, o, ..)| (generation, offset) >= (g, o));
        if is_later {
            self.state = Some((generation, offset, oldest, slots));
        }
    }

    /// Notes which segments are in use and which are missing, and forgets what stands in segments
    /// that were given up.
    fn find_missing(&mut self, faults: &mut Vec<Fault>) {
        let Some((newest, _, oldest, slots)) = self.state else { return };
        let is_in_use = |generation: u64| (oldest..=newest).contains(&generation);
        for segment in &mut self.segments {
            segment.is_in_use = segment.generation.is_some_and(is_in_use);
            if !segment.is_in_use {
                // Batches of a former life are no longer anybody's.
                segment.faults.retain(|fault| fault.offset == 0);
            }
        }
        self.latest.retain(|_, found| is_in_use(found.generation));
        let here: Vec<&str> = self.segments.iter().map(|segment| &*segment.file).collect();
        for name in (0..slots as usize).map(name_of).filter(|name| !here.contains(&&**name)) {
            faults.push(Fault { file: name, offset: 0, what: "the segment is missing" });
        }
    }

    fn is_snapshot_intact(&self, folder: &dyn Folder) -> bool {
        let load = |file: Arc<dyn File>| snapshot::load(&*file, self.store?, |_| None).ok()?;
        folder.open(snapshot::NAME).ok().and_then(load).is_some()
    }
}

impl Report {
    /// Whether nothing is wrong. A last batch that does not verify is not wrong: a crash may have
    /// torn it, and nobody was told of it.
    pub fn is_sound(&self) -> bool {
        self.faults().next().is_none()
    }

    /// All faults.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().chain(self.segments.iter().flat_map(|segment| &segment.faults))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, byte {}: {}", self.file, self.offset, self.what)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            let SegmentReport { file, batches, records, .. } = segment;
            match segment.generation {
                Some(generation) if segment.is_in_use => writeln!(
                    f,
                    "{file}: generation {generation}, {batches} batches, {records} records"
                )?,
                Some(_) | None => writeln!(f, "{file}: free")?,
            }
        }
        for fault in self.faults() {
            writeln!(f, "damaged: {fault}")?;
        }
        let verdict = if self.is_sound() { "sound" } else { "damaged" };
        write!(f, "{verdict}; {} records are intact", self.records)
    }
}
