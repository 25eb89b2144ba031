//! What if files are cut, missing or broken, and what do the doctor and the salvage say then?

use std::sync::Arc;

use retrysafe_core::record::Standing;
use retrysafe_core::store::StoreErrorKind;

use super::super::doctor::examine;
use super::super::error::OpenError;
use super::super::format::PAGE;
use super::super::open::open as open_store;
use super::super::ops::LogWriter;
use super::super::recover::find;
use super::super::salvage::{SalvageError, SalvageReport, salvage_to};
use super::super::segments::name_of;
use super::super::survey::StoreSurvey;
use super::flips::populated;
use super::folder::{Image, TestFolder};
use super::script::{Model, START, is_same, settings};
use crate::stores::clock::Clock;

fn open(image: &Image) -> Result<LogWriter, OpenError> {
    let (clock, _) = Clock::manual(START);
    open_store(Arc::new(TestFolder::of(image.clone())), settings(clock))
}

/// How an image was judged.
#[derive(Debug, Default)]
struct Judged {
    refused: usize,
    opened: usize,
    salvaged: usize,
    held: usize,
    incomplete: usize,
}

impl Judged {
    /// An image is refused, or everything in it is there or fails closed; the doctor agrees; and a
    /// salvage loses no key without a word.
    fn judge(&mut self, image: &Image, truth: &Model, what: &str) {
        let report = examine(&TestFolder::of(image.clone()));
        match open(image) {
            Err(_) => {
                self.refused += 1;
                assert!(!report.is_ok_and(|report| report.is_sound()), "{what}: it does not open");
            }
            Ok(log) => {
                self.opened += 1;
                let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(report.refusal.is_none(), "{what}: it opens, and the doctor says {report}");
                for (id, was) in truth {
                    match log.reader.find(id) {
                        Ok(Some(found)) => assert!(is_kept(was, &found), "{what}: {found:?}"),
                        Ok(None) => panic!("{what}: {was:?} is gone"),
                        Err(error) => {
                            assert_eq!(error.kind(), StoreErrorKind::Damaged, "{what}");
                            assert!(!report.is_sound(), "{what}: the doctor overlooks {id}");
                        }
                    }
                }
            }
        }
        self.salvage(image, truth, what);
    }

    fn salvage(&mut self, image: &Image, truth: &Model, what: &str) {
        let Ok(survey) = StoreSurvey::of(&TestFolder::of(image.clone())) else { return };
        let new = TestFolder::default();
        let (clock, _) = Clock::manual(START);
        let saved = salvage_to(&survey, Arc::new(new.clone()), settings(clock)).unwrap();
        let log = open(&new.image()).unwrap_or_else(|error| panic!("{what}: {error}"));
        for (id, was) in truth {
            let found = log.reader.find(id).unwrap();
            let is_held = saved.held.iter().any(|held| held.id == *id);
            match found {
                Some(found) if is_held => assert_eq!(found.standing(), Standing::Unknown),
                Some(found) => assert!(is_kept(was, &found), "{what}: {was:?} became {found:?}"),
                None => assert!(!saved.is_complete(), "{what}: {was:?} is lost without a word"),
            }
        }
        let last = truth.values().map(|record| record.version).max().unwrap_or(0);
        assert!(log.tail().sequence > last, "{what}: versions are given out again");
        self.count(&saved);
    }

    fn count(&mut self, saved: &SalvageReport) {
        self.salvaged += 1;
        self.held += saved.held.len();
        self.incomplete += usize::from(!saved.is_complete());
    }
}

/// What was in progress has lost its owner; everything else is as it was.
fn is_kept(was: &retrysafe_core::record::Record, found: &retrysafe_core::record::Record) -> bool {
    is_same(was, found) || was.standing() == found.standing() && was.fence == found.fence
}

/// A store with everything in it, and what it holds.
fn stocked() -> (Image, Model) {
    let (image, model, _) = populated();
    let log = open(&image).unwrap();
    let truth = model.keys().map(|id| (*id, log.reader.find(id).unwrap().unwrap())).collect();
    (image, truth)
}

#[test]
fn a_sound_store_is_sound_to_the_doctor_and_is_salvaged_whole() {
    let (image, truth) = stocked();
    let report = examine(&TestFolder::of(image.clone())).unwrap();
    assert!(report.is_sound(), "{report}");
    let mut judged = Judged::default();
    judged.judge(&image, &truth, "untouched");
    assert_eq!((judged.opened, judged.held, judged.incomplete), (1, 0, 0));
}

#[test]
fn a_file_that_is_cut_or_missing_is_refused_or_loses_nothing() {
    let (image, truth) = stocked();
    let mut judged = Judged::default();
    for (name, inode) in &image.names {
        let length = image.files[*inode].len();
        let cuts = [0, 1, 75, 511, 512, 4_095, 4_096, 4_200, length / 2, length - 1];
        for cut in cuts.into_iter().filter(|cut| *cut < length) {
            let mut image = image.clone();
            Arc::make_mut(&mut image.files[*inode]).truncate(cut);
            judged.judge(&image, &truth, &format!("{name} cut to {cut} bytes"));
        }
        let mut longer = image.clone();
        Arc::make_mut(&mut longer.files[*inode]).extend_from_slice(&[0; 100]);
        judged.judge(&longer, &truth, &format!("{name} with bytes added"));
        let mut without = image.clone();
        without.names.remove(name);
        judged.judge(&without, &truth, &format!("without {name}"));
    }
    println!("cut, longer and missing files, 0 failures: {judged:?}");
    assert!(judged.refused > 20 && judged.opened > 5, "{judged:?}");
}

#[test]
fn sectors_and_pages_that_are_lost_are_refused_or_fail_closed_and_no_key_is_lost_silently() {
    let (image, truth) = stocked();
    let mut without_snapshot = image.clone();
    without_snapshot.names.remove("snapshot");
    let mut judged = Judged::default();
    for image in [&image, &without_snapshot] {
        for (name, inode) in &image.names {
            let length = image.files[*inode].len();
            for (step, fill) in [(512, 0), (512, 0xa5), (4_096, 0), (4_096, 0xa5)] {
                for start in (0..length).step_by(step) {
                    let mut broken = image.clone();
                    let file = Arc::make_mut(&mut broken.files[*inode]);
                    let end = length.min(start + step);
                    if file[start..end].iter().all(|byte| *byte == fill) {
                        continue;
                    }
                    file[start..end].fill(fill);
                    judged.judge(&broken, &truth, &format!("{name}, {start}..{end} is {fill:#x}"));
                }
            }
        }
    }
    println!("lost sectors and pages, 0 failures: {judged:?}");
    assert!(judged.refused > 50 && judged.opened > 50 && judged.held > 50, "{judged:?}");
    assert!(judged.incomplete > 0 && judged.incomplete < judged.salvaged, "{judged:?}");
}

/// The pages of a store that hold anything, by file and offset.
fn pages(image: &Image) -> Vec<(usize, usize)> {
    let of_file = |inode: &usize| {
        let (inode, file) = (*inode, &image.files[*inode]);
        let starts = (0..file.len()).step_by(PAGE);
        starts
            .filter(move |at| file[*at..file.len().min(at + PAGE)].iter().any(|byte| *byte != 0))
            .map(move |at| (inode, at))
    };
    image.names.values().flat_map(of_file).collect()
}

fn lose(image: &Image, lost: &[(usize, usize)], fill: u8) -> Image {
    let mut broken = image.clone();
    for (inode, at) in lost {
        let file = Arc::make_mut(&mut broken.files[*inode]);
        let end = file.len().min(at + PAGE);
        file[*at..end].fill(fill);
    }
    broken
}

/// The last record of the log and the mark of the closing. Who loses both, and the snapshot, has lost the
/// end of the log, and nothing says that there was one.
fn last_two_pages(image: &Image) -> [(usize, usize); 2] {
    let found = find(&TestFolder::of(image.clone())).unwrap();
    let end = found.end().unwrap();
    let (slot, _) = found.headers[&end.generation];
    let inode = image.names[&name_of(slot)];
    let end = end.offset as usize;
    [(inode, end - 2 * PAGE), (inode, end - PAGE)]
}

/// A segment that had lost its header and its first batch was taken for one that was never in use.
/// A segment that had lost its last batch was taken for whole by the salvage where its successor had
/// lost the header that names its end.
#[test]
fn two_lost_pages_are_refused_or_fail_closed_and_no_key_is_lost_silently() {
    let (mut image, truth) = stocked();
    image.names.remove("snapshot");
    let pages = pages(&image);
    let last_two = last_two_pages(&image);
    let mut judged = Judged::default();
    for (number, one) in pages.iter().enumerate() {
        for two in pages.iter().skip(number + 1).filter(|two| [*one, **two] != last_two) {
            for fill in [0, 0xa5] {
                let what = format!("{one:?} and {two:?} are {fill:#x}");
                judged.judge(&lose(&image, &[*one, *two], fill), &truth, &what);
            }
        }
    }
    println!("two lost pages, 0 failures: {judged:?}");
    assert!(judged.refused > 1_000 && judged.incomplete < judged.salvaged, "{judged:?}");
}

/// Without the headers of all segments and without a snapshot nothing says how old a store is. It was
/// taken for an empty one.
#[test]
fn a_store_that_has_lost_the_headers_of_all_segments_is_not_an_empty_one() {
    let (mut image, truth) = stocked();
    image.names.remove("snapshot");
    let first_pages: Vec<(usize, usize)> = image
        .names
        .values()
        .map(|inode| (*inode, 0))
        .filter(|one| image.files[one.0].len() > PAGE)
        .collect();
    for fill in [0, 0xa5] {
        let broken = lose(&image, &first_pages, fill);
        assert!(matches!(open(&broken), Err(OpenError::Damaged { .. })), "{fill:#x}");
        Judged::default().judge(&broken, &truth, "no headers");
    }
}

/// A salvage that was killed, or met a full disk, left a folder that opened, and the keys that it had
/// not copied ran again.
#[test]
fn a_salvage_that_was_killed_is_never_taken_for_a_store() {
    let (image, truth) = stocked();
    let survey = StoreSurvey::of(&TestFolder::of(image)).unwrap();
    let salvage = |folder: &TestFolder| {
        let (clock, _) = Clock::manual(START);
        salvage_to(&survey, Arc::new(folder.clone()), settings(clock))
    };
    let whole = TestFolder::default();
    salvage(&whole).unwrap();
    let mut refused = 0;
    let mut finished = 0;
    for at in 0..whole.count() {
        let folder = TestFolder::default();
        folder.die_after(at);
        let killed = salvage(&folder);
        folder.revive();
        match open(&folder.image()) {
            Err(OpenError::Unfinished) => {
                refused += 1;
                let again = salvage(&folder).map(|_| ());
                assert!(matches!(again, Err(SalvageError::To(OpenError::Unfinished))), "{again:?}");
            }
            Err(error) => panic!("killed at call {at}: {error}"),
            Ok(_) if folder.image().names.is_empty() => {}
            Ok(log) => {
                finished += 1;
                for id in truth.keys() {
                    assert!(log.reader.find(id).unwrap().is_some(), "killed at call {at}");
                }
            }
        }
        assert!(killed.is_err() || finished > 0, "killed at call {at}");
    }
    println!("{refused} salvages killed and refused, {finished} finished");
    assert!(refused > 20 && finished > 0);
}
