//! What if files are cut, missing or broken, and what do the doctor and the salvage say then?

use std::sync::Arc;

use retrysafe_core::record::Standing;
use retrysafe_core::store::StoreErrorKind;

use super::super::doctor::examine;
use super::super::error::OpenError;
use super::super::log::Log;
use super::super::salvage::{Salvage, salvage_to};
use super::super::survey::Survey;
use super::flips::populated;
use super::folder::{Image, TestFolder};
use super::script::{Model, START, is_same, settings};
use crate::stores::clock::Clock;

fn open(image: &Image) -> Result<Log, OpenError> {
    let (clock, _) = Clock::manual(START);
    Log::open(Arc::new(TestFolder::of(image.clone())), settings(clock))
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
                    match log.shared.find(id) {
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
        let Ok(survey) = Survey::of(&TestFolder::of(image.clone())) else { return };
        let new = TestFolder::default();
        let (clock, _) = Clock::manual(START);
        let saved = salvage_to(&survey, Arc::new(new.clone()), settings(clock)).unwrap();
        let log = open(&new.image()).unwrap_or_else(|error| panic!("{what}: {error}"));
        for (id, was) in truth {
            let found = log.shared.find(id).unwrap();
            let is_held = saved.held.iter().any(|held| held.id == *id);
            match found {
                Some(found) if is_held => assert_eq!(found.standing(), Standing::Unknown),
                Some(found) => assert!(is_kept(was, &found), "{what}: {was:?} became {found:?}"),
                None => assert!(!saved.is_complete(), "{what}: {was:?} is lost without a word"),
            }
        }
        let last = truth.values().map(|record| record.version).max().unwrap_or(0);
        assert!(log.sequence > last, "{what}: versions are given out again");
        self.count(&saved);
    }

    fn count(&mut self, saved: &Salvage) {
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
    let truth = model.keys().map(|id| (*id, log.shared.find(id).unwrap().unwrap())).collect();
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
