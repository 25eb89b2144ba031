//! What if a file call fails and the process lives on?

use std::io::ErrorKind;
use std::sync::Arc;

use retrysafe_core::record::{Becomes, First, Write};
use retrysafe_core::store::{Inserted, Stamped, StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use super::super::error::OpenError;
use super::super::format::PAGE;
use super::super::open::open as open_store;
use super::super::ops::{LogWriter, WriterOp};
use super::super::{CreatePolicy, StoreSettings};
use super::crashes::share;
use super::folder::TestFolder;
use super::mixes::{MIXES, script};
use super::script::{Run, SEGMENT, START, first, settings};
use crate::stores::clock::Clock;

/// Of so many calls one is made to fail, in each script another.
const FAILING_EVERY: usize = 8;

#[test]
fn nothing_acknowledged_is_lost_whichever_call_fails() {
    let every = FAILING_EVERY.div_ceil(share() as usize);
    let mut tried = 0;
    for (number, (_, mix)) in MIXES.into_iter().enumerate() {
        let steps = script(mix, 7_000 + number as u64);
        let mut whole = Run::start(TestFolder::default()).unwrap();
        whole.run(&steps).unwrap();
        for at in (number % every..whole.folder.count()).step_by(every) {
            for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
                let mut run = Run::start(TestFolder::failing(at, kind)).unwrap();
                run.run(&steps).unwrap_or_else(|e| panic!("call {at}, {kind}: {e}"));
                run.open().unwrap_or_else(|e| panic!("call {at}, {kind}: {e}"));
                tried += 1;
            }
        }
    }
    println!("{tried} failing calls, 0 failures");
    assert!(tried > 300);
}

fn open(folder: &TestFolder) -> Result<LogWriter, OpenError> {
    let (clock, _) = Clock::manual(START);
    open_store(Arc::new(folder.clone()), settings(clock))
}

fn insert(log: &mut LogWriter, key: u32) -> Result<Stamped<Inserted>, StoreError> {
    let (reply, mut answer) = oneshot::channel();
    log.commit([WriterOp::Insert(Box::new(first(key, 60)), reply)]);
    answer.try_recv().unwrap()
}

/// A folder in which the flush of the second insert's batch fails, once.
fn with_failing_flush() -> (TestFolder, LogWriter) {
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
    assert!(log.reader.check().is_err());
    assert!(log.reader.scan(&Default::default()).is_err());
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
    log.commit([
        WriterOp::Insert(Box::new(first(1, 60)), one),
        WriterOp::Insert(Box::new(first(1, 60)), two),
    ]);
    let Inserted::New(record) = first_told.try_recv().unwrap().unwrap().value else { panic!() };
    let Inserted::Exists(same) = second_told.try_recv().unwrap().unwrap().value else { panic!() };
    assert_eq!(record, same);

    use retrysafe_core::store::Swapped;
    let write =
        Write { becomes: Becomes::FailedRetryable, new_fence: false, what: None, ttl: None };
    let (one, mut first_told) = oneshot::channel();
    let (two, mut second_told) = oneshot::channel();
    log.commit([
        WriterOp::Swap(Box::new((record.clone(), write.clone())), one),
        WriterOp::Swap(Box::new((record, write)), two),
    ]);
    let Swapped::Done(done) = first_told.try_recv().unwrap().unwrap().value else { panic!() };
    let Swapped::Lost(lost) = second_told.try_recv().unwrap().unwrap().value else { panic!() };
    assert_eq!(lost, Some(done));
}

/// A record that leaves no room for another one in its batch.
fn the_longest(key: u32) -> First {
    let fits = |long: &First| {
        let (reply, mut told) = oneshot::channel();
        let mut log = open(&TestFolder::default()).unwrap();
        log.commit([WriterOp::Insert(Box::new(long.clone()), reply)]);
        told.try_recv().unwrap().is_ok()
    };
    let of = |path_bytes: usize| {
        let mut long = first(key, 60);
        long.about.path = "x".repeat(path_bytes).into();
        long
    };
    let mut lengths = (0..SEGMENT as usize - 2 * PAGE).rev();
    let longest = lengths.find(|path_bytes| fits(&of(*path_bytes))).unwrap();
    // Its numbers may take a few bytes more where it is not the first.
    of(longest - 16)
}

/// A key is expired and begun anew within one batch that has to be written in two parts, and the disk is
/// full at any one call in between. The second part must not replace what the first has not written: the
/// index would hold two records of one key.
#[test]
fn a_batch_that_has_no_room_refuses_what_was_built_on_it() {
    let becomes = |becomes| Write { becomes, new_fence: false, what: None, ttl: None };
    let long = the_longest(1);
    let run = |folder: &TestFolder| {
        let mut log = open(folder).unwrap();
        insert(&mut log, 1).unwrap();
        let released = becomes(Becomes::FailedRetryable);
        let begun = log.reader.find(&long.id).unwrap().unwrap();
        log.commit([WriterOp::Swap(Box::new((begun, released)), oneshot::channel().0)]);
        let settled = log.reader.find(&long.id).unwrap().unwrap();
        let before = folder.count();
        let (reply, mut told) = oneshot::channel();
        let expire = becomes(Becomes::Expired);
        log.commit([
            WriterOp::Swap(Box::new((settled, expire)), oneshot::channel().0),
            WriterOp::Insert(Box::new(long.clone()), reply),
        ]);
        (log, before, told.try_recv().unwrap())
    };
    let sound = TestFolder::default();
    let (_, before, told) = run(&sound);
    assert!(matches!(told.unwrap().value, Inserted::New(_)));
    for at in before..sound.count() {
        let (log, _, told) = run(&TestFolder::failing(at, ErrorKind::StorageFull));
        assert!(at > before || told.unwrap_err().kind() == StoreErrorKind::Full);
        assert_eq!(log.reader.index.len(), 1, "one key is one record, with call {at} failing");
    }
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
        // Large enough that the segments are not half empty, and nothing is copied forward.
        let mut one = first(key, 60);
        one.about.path = "x".repeat(3_000).into();
        log.commit([WriterOp::Insert(Box::new(one), oneshot::channel().0)]);
    }
    let whole = folder.image();
    let used: std::collections::BTreeSet<u16> = (0..super::super::index::SHARDS)
        .flat_map(|number| log.reader.index.shard(number))
        .map(|entry| entry.slot)
        .collect();
    assert!(used.len() > 4);
    for slot in used {
        let mut image = whole.clone();
        let name = super::super::segments::name_of(usize::from(slot));
        image.names.remove(&name);
        let opened = open(&TestFolder::of(image)).map(|log| log.tail().generation);
        assert!(matches!(opened, Err(OpenError::Damaged { .. })), "without {name}: {opened:?}");
    }
    let mut image = whole.clone();
    image.names.remove("store");
    assert!(matches!(open(&TestFolder::of(image)), Err(OpenError::Damaged { .. })));

    for (version, cure) in [(1, "another, empty folder"), (3, "or a later one")] {
        let mut image = whole.clone();
        let inode = image.names["store"];
        Arc::make_mut(&mut image.files[inode])[16] = version;
        let error = open(&TestFolder::of(image)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OpenError::Format { found } if found == u32::from(version)));
        assert!(text.contains(&format!("in format {version}")) && text.contains(cure), "{text}");
    }

    let mut image = whole;
    image.names.retain(|name, _| name == "snapshot");
    image.names.insert("holiday.jpg".into(), 0);
    let error = open(&TestFolder::of(image)).unwrap_err();
    assert!(matches!(error, OpenError::NotAStore { .. }), "{error}");
}

/// A store was made in a folder of its own, and the process killed after each call of that. What it
/// left behind was removed twice, the second time by a name that was no longer there, and the next
/// opening failed.
#[test]
fn a_kill_during_creation_leaves_a_folder_that_opens() {
    let whole = TestFolder::default();
    open(&whole).unwrap();
    for at in 0..whole.count() {
        let folder = TestFolder::default();
        folder.die_after(at);
        assert!(open(&folder).is_err());
        folder.revive();
        let mut log = open(&folder).unwrap_or_else(|e| panic!("killed at call {at}: {e}"));
        insert(&mut log, 1).unwrap();
    }
    println!("{} kills during creation, 0 failures", whole.count());
}

#[test]
fn a_folder_that_was_taken_away_refuses_writes_and_reads_at_once() {
    let folder = TestFolder::default();
    let mut log = open(&folder).unwrap();
    insert(&mut log, 1).unwrap();
    folder.take_away();
    for key in [1, 2] {
        let error = insert(&mut log, key).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
    assert!(log.reader.check().is_err());
    assert!(log.reader.scan(&Default::default()).is_err());
}

#[test]
fn a_clock_that_is_weeks_ahead_is_refused_unless_it_is_accepted() {
    let day = std::time::Duration::from_secs(24 * 3_600);
    let folder = TestFolder::default();
    insert(&mut open(&folder).unwrap(), 1).unwrap();
    let at = |days: u32, accept_clock: bool| {
        let (clock, _) = Clock::manual(START.plus(day * days));
        let settings = StoreSettings { accept_clock, ..settings(clock) };
        open_store(Arc::new(TestFolder::of(folder.image())), settings)
    };
    assert!(at(30, false).is_ok());
    let text = at(31, false).unwrap_err().to_string();
    assert!(text.contains("31 days ahead") && text.contains("--accept-clock"), "{text}");
    assert!(at(31, true).is_ok());
}

#[test]
fn an_idle_store_keeps_the_mark_of_its_clock_young() {
    let folder = TestFolder::default();
    let (clock, hand) = Clock::manual(START);
    let mut log = open_store(Arc::new(folder.clone()), settings(clock)).unwrap();
    for _ in 0..40 {
        hand.advance(std::time::Duration::from_secs(24 * 3_600));
        // The reaper comes round, and there is nothing to reap.
        log.commit([WriterOp::Reap(10, oneshot::channel().0)]);
    }
    drop(log);
    let (clock, _) = Clock::manual(START.plus(std::time::Duration::from_secs(40 * 24 * 3_600)));
    let settings = StoreSettings { accept_clock: false, ..settings(clock) };
    open_store(Arc::new(folder), settings).unwrap();
}

#[test]
fn a_folder_without_a_store_is_refused_where_none_may_be_created() {
    let (clock, _) = Clock::manual(START);
    let never = StoreSettings { create: CreatePolicy::Never, ..settings(clock) };
    let folder = TestFolder::default();
    let error = open_store(Arc::new(folder.clone()), never.clone()).unwrap_err();
    assert!(matches!(error, OpenError::Absent), "{error}");
    assert_eq!(folder.calls_len(), 0, "nothing was changed");
    insert(&mut open(&folder).unwrap(), 1).unwrap();
    open_store(Arc::new(folder), never).unwrap();
}
