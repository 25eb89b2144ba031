//! Does the disk store keep the promises of a store, on real files?

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test says what it does not expect by panicking"
)]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use retrysafe::stores::clock::{Clock, Hand};
use retrysafe::stores::disk::{DiskOptions, DiskStore, OpenError, doctor, export};
use retrysafe_core::Store as _;
use retrysafe_core::conformance::{Bench, Damage, Owners, Reopen, Still};
use retrysafe_core::scope::Id;
use retrysafe_core::time::Time;
use tempfile::TempDir;

/// Large enough for the largest record of the suite.
const SEGMENT_BYTES: u32 = 8 << 20;

/// A disk store by a clock that is turned by hand.
struct DiskBench {
    folder: TempDir,
    store: Option<Arc<DiskStore>>,
    clock: Clock,
    hand: Hand,
}

fn open(path: &Path, clock: &Clock) -> Result<DiskStore, OpenError> {
    DiskOptions::new().segment_bytes(SEGMENT_BYTES).clock(clock.clone()).open(path)
}

impl Bench for DiskBench {
    type Store = DiskStore;

    async fn fresh() -> Self {
        let (clock, hand) = Clock::manual(Time::from_ms(1_700_000_000_000));
        let folder = tempfile::tempdir().unwrap();
        let store = Some(Arc::new(open(folder.path(), &clock).unwrap()));
        Self { folder, store, clock, hand }
    }

    fn store(&self) -> Arc<DiskStore> {
        Arc::clone(self.store.as_ref().unwrap())
    }

    async fn advance(&self, by: Duration) {
        self.hand.advance(by);
    }
}

impl Still for DiskBench {}

impl DiskBench {
    /// Finds a record's bytes in the segments and lets them be changed.
    async fn change(&self, id: Id, change: impl FnOnce(&mut Vec<u8>)) {
        let record = self.store().load(id).await.unwrap().value.unwrap();
        let mut bytes = record.encode();
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let whole = fs::read(&path).unwrap();
            let found = whole.windows(bytes.len()).position(|part| part == bytes);
            if let Some(at) = found {
                change(&mut bytes);
                let file = fs::OpenOptions::new().write(true).open(path).unwrap();
                file.write_all_at(&bytes, at as u64).unwrap();
                return;
            }
        }
        panic!("the record is not in any file");
    }
}

impl Damage for DiskBench {
    async fn flip(&self, id: Id, at: usize) {
        self.change(id, |bytes| {
            let at = at % bytes.len();
            bytes[at] ^= 0x10;
        })
        .await;
    }

    async fn make_newer(&self, id: Id) {
        self.change(id, |bytes| {
            bytes[0] += 1;
            let end = bytes.len() - 4;
            let checksum = crc32c::crc32c(&bytes[..end]);
            bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        })
        .await;
    }
}

impl Reopen for DiskBench {
    async fn reopen(&mut self) -> Owners {
        // What a kill would leave behind is what the files hold now. The old store closes
        // afterwards, and nobody sees what it says last.
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        self.store = Some(Arc::new(open(copy.path(), &self.clock).unwrap()));
        self.folder = copy;
        Owners::Gone
    }
}

retrysafe_core::conformance!(disk, DiskBench: Still + Damage + Reopen);

#[test]
fn a_second_owner_is_refused_and_told_who_the_first_is() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, _) = Clock::manual(Time::from_ms(1));
    let store = open(folder.path(), &clock).unwrap();
    let error = open(folder.path(), &clock).unwrap_err();
    let me = std::process::id();
    assert!(matches!(error, OpenError::Busy { pid: Some(pid) } if pid == me), "{error}");
    assert!(error.to_string().contains(&me.to_string()));
    assert!(matches!(doctor(folder.path()), Err(OpenError::Busy { pid: Some(pid) }) if pid == me));
    store.close();
    open(folder.path(), &clock).unwrap();
}

#[test]
fn the_doctor_names_what_is_damaged_and_exports_what_is_intact() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (clock, _) = Clock::manual(Time::from_ms(1));
    let store = open(folder.path(), &clock).unwrap();
    let scope = retrysafe_core::Scope::anonymous();
    let mut records = Vec::new();
    for number in 0..10 {
        let first = first(&scope, number);
        let id = first.id;
        runtime.block_on(store.insert(first)).unwrap();
        records.push(runtime.block_on(store.load(id)).unwrap().value.unwrap());
    }
    store.close();
    let report = doctor(folder.path()).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!(report.records, 10);

    let victim = records[4].encode();
    let path = folder.path().join("segment-00000");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(victim.len()).position(|part| part == victim).unwrap();
    bytes[at + 40] ^= 1;
    fs::write(&path, bytes).unwrap();
    fs::remove_file(folder.path().join("snapshot")).unwrap();

    let error = open(folder.path(), &clock).unwrap_err();
    let OpenError::Damaged { file, offset, .. } = &error else { panic!("{error}") };
    assert_eq!(file, "segment-00000");
    assert!((at as u64) > *offset && (at as u64) - offset < 512, "{error}");

    let report = doctor(folder.path()).unwrap();
    assert!(!report.is_sound());
    assert!(report.to_string().contains("damaged: segment-00000, byte"), "{report}");
    assert_eq!(report.records, 9);
    let mut lines = Vec::new();
    assert_eq!(export(folder.path(), &mut lines).unwrap(), 9);
    let text = String::from_utf8(lines).unwrap();
    for (number, record) in records.iter().enumerate() {
        let line = text.lines().find(|line| line.contains(&record.id.to_string()));
        assert_eq!(line.is_some(), number != 4);
        if let Some(line) = line {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["state"], "in_progress");
            assert_eq!(value["version"], record.version);
        }
    }
}

#[test]
fn what_is_asked_of_a_closed_store_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = DiskOptions::new().segment_bytes(SEGMENT_BYTES).open(folder.path()).unwrap();
    store.close();
    let first = first(&retrysafe_core::Scope::anonymous(), 1);
    let error = runtime.block_on(store.insert(first)).unwrap_err();
    assert!(!error.may_have_applied(), "{error}");
}

fn first(scope: &retrysafe_core::Scope, number: u64) -> retrysafe_core::record::First {
    use retrysafe_core::fingerprint::{Fingerprint, RulesId};
    let key = retrysafe_core::Key::new(&format!("k-{number}")).unwrap().digest();
    retrysafe_core::record::First {
        id: Id::of(scope, &key),
        scope: scope.clone(),
        key,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([1; 8]), [2; 32]),
        mark: None,
        about: Default::default(),
        ttl: Duration::from_secs(60),
        lease: Duration::from_secs(60),
        owner: number,
        request_id: None,
    }
}
