//! What if a file call fails and the process lives on?

use std::io::ErrorKind;
use std::sync::Arc;

use retrysafe_core::store::{Inserted, Stamped, StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use super::super::error::OpenError;
use super::super::log::Log;
use super::super::ops::Op;
use super::crashes::{MIXES, script};
use super::folder::TestFolder;
use super::script::{Run, START, first, settings};
use crate::stores::clock::Clock;

#[test]
fn nothing_acknowledged_is_lost_whichever_call_fails() {
    let mut tried = 0;
    for (number, (_, mix)) in MIXES.into_iter().enumerate() {
        let steps = script(mix, 7_000 + number as u64);
        let mut whole = Run::start(TestFolder::default()).unwrap();
        whole.run(&steps).unwrap();
        for at in 0..whole.folder.count() {
            for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
                let mut run = Run::start(TestFolder::failing(at, kind)).unwrap();
                run.run(&steps).unwrap_or_else(|e| panic!("call {at}, {kind}: {e}"));
                run.open().unwrap_or_else(|e| panic!("call {at}, {kind}: {e}"));
                tried += 1;
            }
        }
    }
    println!("{tried} failing calls");
    assert!(tried > 1_000);
}

fn open(folder: &TestFolder) -> Result<Log, OpenError> {
    let (clock, _) = Clock::manual(START);
    Log::open(Arc::new(folder.clone()), settings(clock))
}

fn insert(log: &mut Log, key: u32) -> Result<Stamped<Inserted>, StoreError> {
    let (reply, mut answer) = oneshot::channel();
    log.commit([Op::Insert(Box::new(first(key, 60)), reply)]);
    answer.try_recv().unwrap()
}

/// A folder in which the flush of the second insert's batch fails, once.
fn with_failing_flush() -> (TestFolder, Log) {
    let counted = TestFolder::default();
    let mut log = open(&counted).unwrap();
    insert(&mut log, 1).unwrap();
    // A write, then the flush.
    let folder = TestFolder::failing(counted.count() + 1, ErrorKind::Other);
    let mut log = open(&folder).unwrap();
    insert(&mut log, 1).unwrap();
    (folder, log)
}

#[test]
fn a_failed_flush_refuses_reads_and_writes_until_the_store_is_opened_again() {
    let (folder, mut log) = with_failing_flush();
    let error = insert(&mut log, 2).unwrap_err();
    assert!(error.may_have_applied());
    // The disk works again. That proves nothing about what it has dropped.
    for key in [1, 2, 3] {
        let error = insert(&mut log, key).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(!error.may_have_applied());
    }
    assert!(log.shared.check().is_err());
    assert!(log.shared.scan(&Default::default()).is_err());
    drop(log);
    let mut log = open(&folder).unwrap();
    assert!(matches!(insert(&mut log, 1).unwrap().value, Inserted::Exists(_)));
    assert!(matches!(insert(&mut log, 3).unwrap().value, Inserted::New(_)));
}

#[test]
fn two_inserts_of_one_id_and_two_swaps_of_one_version_in_a_batch_have_one_winner() {
    let mut log = open(&TestFolder::default()).unwrap();
    let (one, mut first_told) = oneshot::channel();
    let (two, mut second_told) = oneshot::channel();
    log.commit([Op::Insert(Box::new(first(1, 60)), one), Op::Insert(Box::new(first(1, 60)), two)]);
    let Inserted::New(record) = first_told.try_recv().unwrap().unwrap().value else { panic!() };
    let Inserted::Exists(same) = second_told.try_recv().unwrap().unwrap().value else { panic!() };
    assert_eq!(record, same);

    use retrysafe_core::record::{Becomes, Write};
    use retrysafe_core::store::Swapped;
    let write =
        Write { becomes: Becomes::FailedRetryable, new_fence: false, what: None, ttl: None };
    let (one, mut first_told) = oneshot::channel();
    let (two, mut second_told) = oneshot::channel();
    log.commit([
        Op::Swap(Box::new((record.clone(), write.clone())), one),
        Op::Swap(Box::new((record, write)), two),
    ]);
    let Swapped::Done(done) = first_told.try_recv().unwrap().unwrap().value else { panic!() };
    let Swapped::Lost(lost) = second_told.try_recv().unwrap().unwrap().value else { panic!() };
    assert_eq!(lost, Some(done));
}

#[test]
fn a_folder_that_cannot_be_written_is_a_clear_error() {
    for at in 0..4 {
        // Creating, filling, flushing and naming the first segment.
        let folder = TestFolder::failing(at, ErrorKind::ReadOnlyFilesystem);
        let text = open(&folder).unwrap_err().to_string();
        assert!(text.starts_with("cannot ") && text.contains("read-only"), "{text}");
    }
}

#[test]
fn a_removed_segment_a_foreign_folder_and_a_foreign_format_are_refused() {
    let folder = TestFolder::default();
    let mut log = open(&folder).unwrap();
    for key in 0..80 {
        insert(&mut log, key).unwrap();
    }
    let whole = folder.image();
    let used: std::collections::BTreeSet<u16> = (0..super::super::index::SHARDS)
        .flat_map(|number| log.shared.index.shard(number))
        .map(|entry| entry.slot)
        .collect();
    assert!(used.len() > 4);
    for slot in used {
        let mut image = whole.clone();
        let name = super::super::segments::name_of(usize::from(slot));
        image.names.remove(&name);
        let opened = open(&TestFolder::of(image)).map(|log| log.generation);
        assert!(matches!(opened, Err(OpenError::Damaged { .. })), "without {name}: {opened:?}");
    }
    let mut image = whole.clone();
    image.names.remove("store");
    assert!(matches!(open(&TestFolder::of(image)), Err(OpenError::Damaged { .. })));

    let mut image = whole.clone();
    let inode = image.names["store"];
    image.files[inode][16] = 2;
    let error = open(&TestFolder::of(image)).unwrap_err();
    assert!(matches!(error, OpenError::Format { found: 2 }), "{error}");

    let mut image = whole;
    image.names.retain(|name, _| name == "snapshot");
    image.names.insert("holiday.jpg".into(), 0);
    let error = open(&TestFolder::of(image)).unwrap_err();
    assert!(matches!(error, OpenError::NotAStore { .. }), "{error}");
}
