//! How is what is intact in a damaged store saved to a new one?
//!
//! Whatever verifies is copied as it is. A key whose record is damaged is held in the new store as
//! `unknown`, never left out: a key that is absent would run again. The same holds for a key that
//! is not completed by a record that verifies, if a later version of it may stand where nothing can
//! be read. Only a key whose very name cannot be read is lost; that is said, with the
//! place where it stood.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::key::KeyDigest;
use retrysafe_core::record::{About, Becomes, Doubt, First, Happened, Record, Standing, Write};
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::StoreError;
use retrysafe_core::time::Time;

use super::append::{LogAppender, ReserveUse};
use super::create::{STORE, UNFINISHED, check_vacant};
use super::doctor::is_intact;
use super::error::OpenError;
use super::files::StoreFolder;
use super::folder::LockedFolder;
use super::format::{ENTRY_BYTES, EntryHeader};
use super::open::{check_clock, open_unfinished};
use super::recover::check_finished;
use super::segments::name_of;
use super::survey::{StoreSurvey, SurveyPart};
use super::{DiskOptions, StoreSettings};

/// What was saved, and what was not.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SalvageReport {
    /// How many records were copied as they were.
    pub copied: u64,
    /// The keys that are held as unknown in the new store.
    pub held: Vec<HeldKey>,
    /// Where records stood of which not even the names can be read. Their keys are not known to the
    /// new store.
    pub unreadable: Vec<UnreadablePart>,
}

/// A key that is held as unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldKey {
    /// Its record's name.
    pub id: Id,
    /// Why it is held.
    pub why: &'static str,
}

/// A part of the log of which nothing can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadablePart {
    /// In which file.
    pub file: String,
    /// From which byte on.
    pub offset: u64,
    /// How many bytes; `None` if the file itself is missing.
    pub bytes: Option<u64>,
    /// Versions below this one may have been lost there.
    versions_below: u64,
}

/// Why nothing could be saved.
#[derive(Debug)]
#[non_exhaustive]
pub enum SalvageError {
    /// The damaged store could not be read.
    From(OpenError),
    /// The new store could not be made.
    To(OpenError),
    /// There is a store in the new folder.
    Occupied,
    /// The new store could not be written.
    Write(StoreError),
}

/// How long a key is kept, once it is decided about, of which nothing but its name is known: as long
/// as most.
const RETENTION: Duration = Duration::from_secs(24 * 3_600);

const DAMAGED: &str = "its record is damaged";
const OUTDATED: &str = "a later version of its record may be lost";
const GIVEN_UP: &str = "its record was found in a part of the log that is no longer in use";

/// Where a version of a record stands.
#[derive(Clone, Copy, Debug)]
struct SeenVersion {
    version: u64,
    segment: usize,
    at: u32,
    length: u32,
    standing: Standing,
    due: u64,
    is_intact: bool,
}

/// What was seen of an id.
#[derive(Clone, Copy, Debug)]
struct SeenKey {
    latest: SeenVersion,
    /// An older version that is intact, where the latest is not.
    intact: Option<SeenVersion>,
    /// Whether it was seen in the log, not only in segments that were given up.
    is_in_log: bool,
}

/// Saves a damaged store to a new folder, which must be empty or absent. The damaged one is not
/// changed.
///
/// # Errors
///
/// See [`SalvageError`]. What is damaged is no error: it is in the report.
pub fn salvage(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    options: DiskOptions,
) -> Result<SalvageReport, SalvageError> {
    let damaged = LockedFolder::look_at(from.as_ref()).map_err(SalvageError::From)?;
    let survey = StoreSurvey::of(&damaged).map_err(SalvageError::From)?;
    let mut settings = options.settings;
    let mark = Time::from_ms(survey.state.clock);
    check_clock(&settings, mark).map_err(SalvageError::From)?;
    settings.clock = settings.clock.starting_at_least(mark);
    settings.segment_bytes = survey.store.segment_bytes;
    let new = LockedFolder::own(to.as_ref(), settings.create).map_err(SalvageError::To)?;
    salvage_to(&survey, Arc::new(new), settings)
}

pub(crate) fn salvage_to(
    survey: &StoreSurvey,
    new: Arc<dyn StoreFolder>,
    settings: StoreSettings,
) -> Result<SalvageReport, SalvageError> {
    let names = new.names().map_err(OpenError::io("list", ".")).map_err(SalvageError::To)?;
    check_finished(&*new).map_err(SalvageError::To)?;
    if names.iter().any(|name| name == STORE) {
        return Err(SalvageError::Occupied);
    }
    let (mut seen, unreadable) = collect(survey);
    begin_in(&*new, &names).map_err(SalvageError::To)?;
    let mut log = open_unfinished(Arc::clone(&new), settings).map_err(SalvageError::To)?;
    if !unreadable.is_empty() {
        collect_given_up(survey, &mut seen, log.reader.clock.now());
    }
    log.appender().tail.sequence = sequence_after(survey, &seen);
    let mut salvage = SalvageReport { unreadable, ..SalvageReport::default() };
    let mut all: Vec<(Id, SeenKey)> = seen.into_iter().collect();
    all.sort_unstable_by_key(|(_, seen)| (seen.latest.segment, seen.latest.at));
    for (id, seen) in all {
        let log = log.appender();
        save(survey, log, id, &seen, &mut salvage).map_err(SalvageError::Write)?;
        if log.is_batch_full() {
            log.flush();
            log.reader.check().map_err(SalvageError::Write)?;
        }
    }
    salvage.held.sort_unstable_by_key(|held| held.id);
    log.close();
    log.reader.check_folder().map_err(SalvageError::Write)?;
    end_in(&*new).map_err(SalvageError::To)?;
    Ok(salvage)
}

/// Says that what follows is not a whole store yet, durably. A folder that holds something else is
/// left as it is.
fn begin_in(new: &dyn StoreFolder, names: &[String]) -> Result<(), OpenError> {
    check_vacant(new, names)?;
    let marked = new.create(UNFINISHED).and_then(|_| new.flush());
    marked.map_err(OpenError::io("create", UNFINISHED))
}

/// Says that every key is there.
fn end_in(new: &dyn StoreFolder) -> Result<(), OpenError> {
    let removed = new.remove(UNFINISHED).and_then(|()| new.flush());
    removed.map_err(OpenError::io("remove", UNFINISHED))
}

/// Finds the last version of every id in the log, and the parts of which nothing can be read.
fn collect(survey: &StoreSurvey) -> (HashMap<Id, SeenKey>, Vec<UnreadablePart>) {
    let mut seen = HashMap::new();
    let mut unreadable = lost_as_a_whole(survey);
    let mut bounded = unreadable.len();
    for (generation, segment) in survey.log() {
        let Some(segment) = segment else {
            let file = format!("the segment of generation {generation}");
            unreadable.push(UnreadablePart::new(file, 0, None));
            continue;
        };
        let number = segment.number;
        survey.walk(segment, |part| match part {
            SurveyPart::Batch(batch) => {
                // Whatever was lost before this batch was given out before it.
                for part in unreadable.iter_mut().skip(bounded) {
                    part.versions_below = batch.state.sequence.saturating_add(1);
                }
                bounded = unreadable.len();
            }
            SurveyPart::BrokenBatch(_) => {}
            SurveyPart::Entry(header, record, at) | SurveyPart::TornEntry(header, record, at) => {
                see(&mut seen, header, record, (number, at), true);
            }
            SurveyPart::Unreadable(range) => {
                let bytes = Some(u64::from(range.end - range.start));
                let offset = u64::from(range.start);
                unreadable.push(UnreadablePart::new(segment.name.clone(), offset, bytes));
            }
        });
    }
    (seen, unreadable)
}

/// What is lost without a trace in the log: a segment that is too short, or of which nothing says
/// whether it was in use, and the end of a log that a snapshot has seen.
fn lost_as_a_whole(survey: &StoreSurvey) -> Vec<UnreadablePart> {
    let segments = survey.segments.iter().filter_map(|segment| {
        let is_lost = segment.generation.is_none() && segment.is_header_broken;
        let bytes = if is_lost { u64::from(survey.store.segment_bytes) } else { segment.cut };
        (bytes > 0).then(|| UnreadablePart::new(segment.name.clone(), 0, Some(bytes)))
    });
    let missing = (survey.segments.len()..survey.state.slots as usize)
        .map(|slot| UnreadablePart::new(name_of(slot), 0, None));
    let end = survey
        .is_behind_snapshot
        .then(|| UnreadablePart::new("the end of the log".into(), 0, None));
    segments.chain(missing).chain(end).collect()
}

/// Looks into the segments that were given up for ids that the log does not know. What was current
/// there was copied to the new end of the log before, and the copy may be what cannot be read.
fn collect_given_up(survey: &StoreSurvey, seen: &mut HashMap<Id, SeenKey>, now: Time) {
    let mut old = HashMap::new();
    for segment in survey.given_up() {
        let number = segment.number;
        survey.walk(segment, |part| match part {
            SurveyPart::Entry(header, record, at) | SurveyPart::TornEntry(header, record, at) => {
                see(&mut old, header, record, (number, at), false);
            }
            SurveyPart::Batch(_) | SurveyPart::BrokenBatch(_) | SurveyPart::Unreadable(_) => {}
        });
    }
    let is_alive = |latest: &SeenVersion| match latest.standing {
        Standing::InProgress | Standing::Unknown => true,
        Standing::Completed | Standing::FailedRetryable => latest.due > now.as_ms(),
    };
    for (id, one) in old.into_iter().filter(|(_, one)| is_alive(&one.latest)) {
        seen.entry(id).or_insert(one);
    }
}

fn see(
    seen: &mut HashMap<Id, SeenKey>,
    header: &EntryHeader,
    record: &[u8],
    (segment, at): (usize, u32),
    is_in_log: bool,
) {
    let EntryHeader { id, version, due, standing, length, .. } = *header;
    let is_intact = is_intact(header, record);
    let new = SeenVersion { version, segment, at, length, standing, due, is_intact };
    let Some(known) = seen.get_mut(&id) else {
        seen.insert(id, SeenKey { latest: new, intact: is_intact.then_some(new), is_in_log });
        return;
    };
    let is_better =
        new.version > known.latest.version || new.version == known.latest.version && new.is_intact;
    if is_better {
        known.latest = new;
    }
    if is_intact && known.intact.is_none_or(|intact| intact.version <= version) {
        known.intact = Some(new);
    }
}

/// A version that was surely never given out: above every one that was seen, by as many as can have
/// stood in the whole log.
fn sequence_after(survey: &StoreSurvey, seen: &HashMap<Id, SeenKey>) -> u64 {
    let latest = seen.values().map(|seen| seen.latest.version).max().unwrap_or(0);
    let bytes = u64::from(survey.store.segment_bytes) * survey.segments.len() as u64;
    latest.max(survey.state.sequence).saturating_add(bytes / ENTRY_BYTES as u64)
}

/// Writes one id to the new store, as it was or as unknown.
fn save(
    survey: &StoreSurvey,
    log: &mut LogAppender,
    id: Id,
    seen: &SeenKey,
    salvage: &mut SalvageReport,
) -> Result<(), StoreError> {
    let SeenKey { latest, intact, is_in_log } = *seen;
    let reaped = survey.state.reaped;
    let is_settled = matches!(latest.standing, Standing::Completed | Standing::FailedRetryable);
    if is_settled && (latest.due, latest.version) <= (reaped.due, reaped.version) {
        return Ok(());
    }
    // A completed record says what was done, whatever was noted on it later.
    let may_be_outdated = latest.standing != Standing::Completed
        && salvage.unreadable.iter().any(|part| latest.version < part.versions_below);
    let why = if !latest.is_intact {
        DAMAGED
    } else if !is_in_log {
        GIVEN_UP
    } else if may_be_outdated {
        OUTDATED
    } else {
        let record = read(survey, &latest);
        if let Some(record) = record {
            log.append(&record, 0, ReserveUse::Usable)?;
            salvage.copied += 1;
            return Ok(());
        }
        DAMAGED
    };
    let now = log.reader.clock.now();
    let best = Some(latest).filter(|latest| latest.is_intact);
    let known = best
        .and_then(|best| read(survey, &best))
        .or_else(|| named_by_damaged(survey, &latest, &id, now))
        .or_else(|| intact.and_then(|intact| read(survey, &intact)))
        .unwrap_or_else(|| nameless(id).record(now, 0));
    let doubt = Doubt::AnswerLost;
    let hold = Write {
        becomes: Becomes::Unknown(doubt),
        new_fence: true,
        what: Some(Happened::Doubted(doubt)),
        ttl: None,
    };
    log.append(&hold.onto(&known, now, log.tail.sequence + 1), 0, ReserveUse::Usable)?;
    salvage.held.push(HeldKey { id, why });
    Ok(())
}

fn read(survey: &StoreSurvey, sighting: &SeenVersion) -> Option<Record> {
    Record::decode(Bytes::from(bytes_of(survey, sighting))).ok()
}

fn bytes_of(survey: &StoreSurvey, sighting: &SeenVersion) -> Vec<u8> {
    let segment = survey.segments.get(sighting.segment);
    segment.map(|segment| segment.record(sighting.at, sighting.length)).unwrap_or_default()
}

/// What a damaged record still says of its request, if that proves itself: the name of a record is
/// the digest of its scope and key.
fn named_by_damaged(
    survey: &StoreSurvey,
    sighting: &SeenVersion,
    id: &Id,
    now: Time,
) -> Option<Record> {
    let (scope, key, fingerprint) =
        Record::decode_name(Bytes::from(bytes_of(survey, sighting)), id)?;
    Some(First { scope, key, fingerprint, ..nameless(*id) }.record(now, 0))
}

/// A record of which nothing but the name is known. A retry is refused as another request, because
/// its fingerprint fits none.
fn nameless(id: Id) -> First {
    First {
        id,
        scope: Scope::anonymous(),
        key: KeyDigest::from_bytes([0; 32]),
        fingerprint: Fingerprint::from_parts(0, RulesId::from_bytes([0; 8]), [0; 32]),
        mark: None,
        request_id: None,
        flow: None,
        about: About::default(),
        ttl: RETENTION,
        lease: Duration::ZERO,
        owner: 0,
    }
}

impl fmt::Display for UnreadablePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some(bytes) => write!(f, "{}, {bytes} bytes from byte {} on", self.file, self.offset),
            None => write!(f, "{} is missing", self.file),
        }
    }
}

impl UnreadablePart {
    fn new(file: String, offset: u64, bytes: Option<u64>) -> Self {
        Self { file, offset, bytes, versions_below: u64::MAX }
    }
}

impl SalvageReport {
    /// Whether every key of the damaged store is known to the new one.
    pub fn is_complete(&self) -> bool {
        self.unreadable.is_empty()
    }
}

impl fmt::Display for SalvageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::From(error) => write!(f, "the damaged store: {error}"),
            Self::To(error) => write!(f, "the new store: {error}"),
            Self::Occupied => f.write_str(
                "the new folder holds a store already; name one that is empty or does not exist",
            ),
            Self::Write(error) => write!(f, "the new store cannot be written: {error}"),
        }
    }
}

impl std::error::Error for SalvageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::From(error) | Self::To(error) => Some(error),
            Self::Occupied => None,
            Self::Write(error) => Some(error),
        }
    }
}
