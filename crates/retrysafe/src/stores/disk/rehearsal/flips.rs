//! Is one changed byte ever taken for the truth?

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::store::StoreErrorKind;

use super::super::index::SHARDS;
use super::super::open::open as open_store;
use super::super::ops::LogWriter;
use super::crashes::share;
use super::folder::{Image, TestFolder};
use super::script::{Ask, Model, Run, START, Step, settings};
use crate::stores::clock::Clock;

/// A small store with everything in it: segments in use, recycled and free, copies, a snapshot,
/// records in every state. Closed in good order.
pub(super) fn populated() -> (Image, Model, BTreeSet<(usize, usize)>) {
    let mut run = Run::start(TestFolder::default()).unwrap();
    let mut steps =
        vec![Step::Ask(vec![Ask::Insert { key: 0, ttl: 60 }, Ask::Insert { key: 1, ttl: 60 }])];
    for key in 2..60 {
        let ttl = if key % 5 == 0 { 100_000 } else { 2 };
        steps.push(Step::Ask(vec![Ask::Insert { key, ttl }]));
        steps.push(Step::Ask(vec![match key % 7 {
            0 => Ask::Doubt { key },
            1 => Ask::Release { key },
            _ => Ask::Complete { key, body: 40 },
        }]));
        steps.push(Step::Wait(Duration::from_millis(200)));
        steps.push(Step::Ask(vec![Ask::Reap { limit: 10 }]));
    }
    run.run(&steps).unwrap();
    let log = run.log.as_mut().unwrap();
    assert!(log.tail().generation > u64::from(log.tail().ring.slots()), "segments were recycled");
    assert!(log.copied() > 0, "stragglers were copied");
    log.close();
    let reader = Arc::clone(&log.reader);
    run.model.retain(|id, _| reader.find(id).unwrap().is_some());
    let image = run.folder.image();
    let needed = needed(&image, run.log.as_ref().unwrap());
    (image, run.model, needed)
}

/// Where the current records stand: file and bytes.
fn needed(image: &Image, log: &LogWriter) -> BTreeSet<(usize, usize)> {
    let entries = (0..SHARDS).flat_map(|number| log.reader.index.shard(number));
    entries
        .flat_map(|entry| {
            let inode = image.names[&super::super::segments::name_of(usize::from(entry.slot))];
            let start = entry.offset as usize;
            (start..start + entry.length as usize).map(move |at| (inode, at))
        })
        .collect()
}

#[derive(Debug, Default)]
struct Count {
    refused: usize,
    failed_closed: usize,
    holds_nothing: usize,
}

/// Of so many bytes of entries one is changed.
const FLIPPED_EVERY: usize = 7;

/// The bytes to change: of headers every one, of entries some, and one in each sector of zeros.
fn places(file: &[u8]) -> Vec<usize> {
    let every = FLIPPED_EVERY.div_ceil(share() as usize);
    let is_worth_it = |at: usize| {
        let sector = at / 512 * 512;
        let is_blank = file[sector..file.len().min(sector + 512)].iter().all(|byte| *byte == 0);
        let is_header = at % 4_096 < 170;
        at == sector || !is_blank && (is_header || at.is_multiple_of(every))
    };
    (0..file.len()).filter(|at| is_worth_it(*at)).collect()
}

fn flip_everything(image: &Image, model: &Model, needed: &BTreeSet<(usize, usize)>) -> Count {
    let (clock, _) = Clock::manual(START);
    let log = open_store(Arc::new(TestFolder::of(image.clone())), settings(clock)).unwrap();
    let truth: Model =
        model.keys().map(|id| (*id, log.reader.find(id).unwrap().unwrap())).collect();
    let mut count = Count::default();
    for (name, inode) in &image.names {
        for at in places(&image.files[*inode]) {
            let folder = TestFolder::of(image.clone());
            folder.damage(name, at);
            let (clock, _) = Clock::manual(START);
            let Ok(log) = open_store(Arc::new(folder), settings(clock)) else {
                count.refused += 1;
                continue;
            };
            let mut damaged = 0;
            for (id, was) in &truth {
                match log.reader.find(id) {
                    Ok(Some(found)) => {
                        let is_same = super::script::is_same(was, &found)
                            || (was.standing() == found.standing() && was.fence == found.fence);
                        assert!(is_same, "{name}, byte {at}: {was:?} became {found:?}");
                    }
                    Ok(None) => panic!("{name}, byte {at}: {was:?} is gone"),
                    Err(error) => {
                        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{name}, byte {at}");
                        damaged += 1;
                    }
                }
            }
            assert!(damaged <= 1, "{name}, byte {at}: {damaged} keys fail");
            let is_needed = needed.contains(&(*inode, at));
            assert!(damaged == 1 || !is_needed, "{name}, byte {at}: not noticed");
            match damaged {
                0 => count.holds_nothing += 1,
                _ => count.failed_closed += 1,
            }
        }
    }
    count
}

#[test]
fn a_changed_byte_is_refused_fails_closed_for_its_key_or_holds_nothing() {
    let (image, model, needed) = populated();
    let with_snapshot = flip_everything(&image, &model, &needed);
    println!("with a snapshot: {with_snapshot:?}");
    assert!(with_snapshot.failed_closed > 0 && with_snapshot.refused > 0);
    let mut image = image;
    image.names.remove("snapshot");
    let whole_log = flip_everything(&image, &model, &needed);
    println!("with the whole log read: {whole_log:?}");
    assert_eq!(whole_log.failed_closed, 0, "damage is found when the log is read");
}

#[test]
fn damage_that_comes_later_fails_closed_for_its_key_and_is_listed() {
    let (image, model, _) = populated();
    let folder = TestFolder::of(image);
    let (clock, _) = Clock::manual(START);
    let mut log = open_store(Arc::new(folder.clone()), settings(clock)).unwrap();
    let entry = log.reader.index.unknown()[0];
    let id = log.reader.read(&entry).unwrap().id;
    let name = super::super::segments::name_of(usize::from(entry.slot));
    folder.damage(&name, entry.offset as usize + 50);
    let all_others = |log: &LogWriter| {
        for other in model.keys().filter(|other| **other != id) {
            assert!(log.reader.find(other).unwrap().is_some());
        }
    };
    let is_listed = |log: &LogWriter| {
        assert_eq!(log.reader.find(&id).unwrap_err().kind(), StoreErrorKind::Damaged);
        let (_, page) = log.reader.scan(&Default::default()).unwrap();
        assert!(page.damaged.contains(&id) || page.next.is_some());
    };
    is_listed(&log);
    all_others(&log);
    // The log turns over many times; the damage is carried along and stays what it is.
    let before = log.tail().generation;
    for round in 0..200 {
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        let first = super::script::first(5_000 + round % 3, 0);
        log.commit([super::super::ops::WriterOp::Insert(Box::new(first), reply)]);
        let _ = answer.try_recv().unwrap().unwrap();
    }
    assert!(log.tail().generation > before);
    is_listed(&log);
    all_others(&log);
    log.close();
    drop(log);
    let (clock, _) = Clock::manual(START);
    let log = open_store(Arc::new(folder), settings(clock)).unwrap();
    is_listed(&log);
    all_others(&log);
}
