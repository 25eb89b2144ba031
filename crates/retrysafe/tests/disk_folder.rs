//! Whose is the folder of a disk store, and what if somebody meddles with it?

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what it does not expect by panicking"
)]

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use retrysafe::stores::clock::Clock;
use retrysafe::stores::disk::{CreatePolicy, DiskOptions, DiskStore, OpenError};
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::record::{About, First};
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{Inserted, Query, StoreErrorKind};
use retrysafe_core::time::Time;
use retrysafe_core::{Key, Store as _};

const SEGMENT_BYTES: u32 = 64 << 10;

fn options() -> DiskOptions {
    DiskOptions::new().segment_bytes(SEGMENT_BYTES)
}

fn first(number: u64) -> First {
    let scope = Scope::anonymous();
    let key = Key::new(&format!("k-{number}")).unwrap().digest();
    First {
        id: Id::of(&scope, &key),
        scope,
        key,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([1; 8]), [2; 32]),
        mark: None,
        request_id: None,
        flow: None,
        about: About::default(),
        ttl: Duration::from_secs(60),
        lease: Duration::from_secs(60),
        owner: number,
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn assert_closed(folder: &Path) {
    assert_eq!(mode(folder), 0o700, "{}", folder.display());
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match fs::metadata(&path) {
            // The store gives the next segment its name meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => {
                let mode = found.unwrap().permissions().mode() & 0o7777;
                assert_eq!(mode, 0o600, "{}", path.display());
            }
        }
    }
}

#[tokio::test]
async fn the_folder_and_its_files_are_the_owners_alone() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("a/b/data");
    let store = options().open(&folder).unwrap();
    for number in 0..200 {
        store.insert(first(number)).await.unwrap();
    }
    assert_closed(&folder);
    store.close();
    // A snapshot was taken, and everything was opened wide meanwhile.
    set_mode(&folder, 0o755);
    for entry in fs::read_dir(&folder).unwrap() {
        set_mode(&entry.unwrap().path(), 0o644);
    }
    let store = options().open(&folder).unwrap();
    assert_closed(&folder);
    store.close();
}

#[test]
fn a_folder_that_is_everybodys_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o1777);
    let error = options().open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::SharedFolder), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
    assert_eq!(mode(folder.path()), 0o1777);
}

#[test]
fn no_file_that_is_deleted_lets_a_second_owner_in() {
    let folder = tempfile::tempdir().unwrap();
    let _store = options().open(folder.path()).unwrap();
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
    for path in names {
        // The store gives the next segment its name meanwhile.
        let kept = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            read => read.unwrap(),
        };
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            removed => removed.unwrap(),
        }
        let error = options().open(folder.path()).unwrap_err();
        assert!(matches!(error, OpenError::Busy { .. }), "without {}: {error}", path.display());
        fs::write(&path, kept).unwrap();
    }
}

/// Removes a folder into which the store may still put its next segment.
fn remove_all(folder: &Path) {
    loop {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
            removed => return removed.unwrap(),
        }
    }
}

async fn assert_refuses_everything(store: &DiskStore, what: &str) {
    let unavailable = StoreErrorKind::Unavailable;
    assert_eq!(store.load(first(1).id).await.unwrap_err().kind(), unavailable, "{what}: a read");
    assert_eq!(store.insert(first(1)).await.unwrap_err().kind(), unavailable, "{what}: a replay");
    assert_eq!(store.insert(first(2)).await.unwrap_err().kind(), unavailable, "{what}: a begin");
    let scan = store.scan(Query::default()).await.unwrap_err();
    assert_eq!(scan.kind(), unavailable, "{what}: a scan");
    assert_eq!(store.reap(1).await.unwrap_err().kind(), unavailable, "{what}: a reap");
}

#[tokio::test]
async fn a_folder_that_is_taken_away_or_replaced_stops_everything_at_once() {
    type Meddle = fn(&Path);
    let ways: [(&str, Meddle); 5] = [
        ("removed", remove_all),
        ("moved", |folder| fs::rename(folder, folder.with_extension("away")).unwrap()),
        ("replaced", |folder| {
            fs::rename(folder, folder.with_extension("away")).unwrap();
            fs::create_dir(folder).unwrap();
        }),
        ("replaced by a link to it", |folder| {
            let away = folder.with_extension("away");
            fs::create_dir(&away).unwrap();
            fs::rename(folder, folder.with_extension("other")).unwrap();
            std::os::unix::fs::symlink(away, folder).unwrap();
        }),
        ("moved with its parent", |folder| {
            let parent = folder.parent().unwrap();
            fs::rename(parent, parent.with_extension("away")).unwrap();
        }),
    ];
    // The first question after it is refused, whichever it is.
    for (what, meddle) in ways {
        for question in 0..3 {
            let outer = tempfile::tempdir().unwrap();
            let folder = outer.path().join("parent/data");
            let store = options().open(&folder).unwrap();
            let begun = store.insert(first(1)).await.unwrap().value;
            assert!(matches!(begun, Inserted::New(_)));
            meddle(&folder);
            match question {
                0 => drop(store.load(first(1).id).await.expect_err(what)),
                1 => drop(store.insert(first(1)).await.expect_err(what)),
                _ => drop(store.insert(first(3)).await.expect_err(what)),
            }
            assert_refuses_everything(&store, what).await;
            store.close();
            assert!(
                !folder.join("snapshot").exists(),
                "{what}: nothing is put into another folder"
            );
        }
    }
}

#[tokio::test]
async fn files_that_are_removed_from_the_folder_stop_everything() {
    let folder = tempfile::tempdir().unwrap();
    let store = options().open(folder.path()).unwrap();
    store.insert(first(1)).await.unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        match fs::remove_file(entry.unwrap().path()) {
            // The store gives the next segment its name meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.unwrap(),
        }
    }
    // A write notices at once; whoever only reads, within a moment.
    let error = store.insert(first(2)).await.unwrap_err();
    assert!(error.may_have_applied(), "{error}");
    assert_refuses_everything(&store, "emptied").await;
}

#[test]
fn a_folder_without_a_store_is_left_alone_where_none_may_be_created() {
    let parent = tempfile::tempdir().unwrap();
    let (absent, empty) = (parent.path().join("absent"), parent.path().join("empty"));
    fs::create_dir(&empty).unwrap();
    set_mode(&empty, 0o755);
    for folder in [&absent, &empty] {
        let error = options().create(CreatePolicy::Never).open(folder).unwrap_err();
        assert!(matches!(error, OpenError::Absent), "{error}");
    }
    assert!(!absent.exists());
    assert_eq!((fs::read_dir(&empty).unwrap().count(), mode(&empty)), (0, 0o755));
    options().open(&empty).unwrap().close();
    options().create(CreatePolicy::Never).open(&empty).unwrap();
}

#[test]
fn a_clock_that_is_weeks_ahead_expires_nothing_unless_it_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(24 * 3_600);
    let start = Time::from_ms(1_700_000_000_000);
    let at = |days: u32| options().clock(Clock::manual(start.plus(day * days)).0);
    at(0).open(folder.path()).unwrap().close();
    let error = at(31).open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::ClockAhead { .. }), "{error}");
    at(29).open(folder.path()).unwrap().close();
    at(90).accept_clock().open(folder.path()).unwrap().close();
    at(91).open(folder.path()).unwrap().close();
}

#[tokio::test]
async fn a_copy_of_a_segment_that_lies_beside_it_is_not_a_segment() {
    let folder = tempfile::tempdir().unwrap();
    let store = options().open(folder.path()).unwrap();
    store.insert(first(1)).await.unwrap();
    store.close();
    for name in ["segment-00000.bak", "segment-1", "segment-00000~", "segment-000000"] {
        fs::copy(folder.path().join("segment-00000"), folder.path().join(name)).unwrap();
    }
    let store = options().open(folder.path()).unwrap();
    assert!(store.load(first(1).id).await.unwrap().value.is_some());
    store.close();
    let report = retrysafe::stores::disk::doctor(folder.path()).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// On a full disk there may be no room for it.
#[test]
fn an_owner_that_cannot_be_written_down_is_no_reason_not_to_open() {
    let folder = tempfile::tempdir().unwrap();
    options().open(folder.path()).unwrap().close();
    let owner = folder.path().join("owner");
    fs::remove_file(&owner).unwrap();
    fs::create_dir(&owner).unwrap();
    options().open(folder.path()).unwrap().close();
}

/// The order in which a folder is listed decided whether the store was called damaged, or no store
/// at all with the advice to name an empty folder.
#[test]
fn a_store_without_its_first_file_is_a_damaged_store() {
    let folder = tempfile::tempdir().unwrap();
    options().open(folder.path()).unwrap().close();
    fs::remove_file(folder.path().join("store")).unwrap();
    fs::write(folder.path().join("a-note"), "").unwrap();
    let error = options().open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}

/// The file `owner` names a former process then, which may be somebody else's by now.
#[test]
fn a_store_that_is_only_being_read_names_no_process_to_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    options().open(folder.path()).unwrap().close();
    let reader = fs::File::open(folder.path()).unwrap();
    reader.lock_shared().unwrap();
    let error = options().open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::BeingRead), "{error}");
    drop(reader);
    options().open(folder.path()).unwrap().close();
}
