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
use retrysafe::stores::disk::{DiskOptions, DiskStore, Durability, OpenError, doctor, salvage};
use retrysafe_core::Store as _;
use retrysafe_core::conformance::{Bench, Damage, Owners, Reopen, Still};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{PAGE_MAX, Query};
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

/// A closed store with ten begun records, and the last byte of the fifth's record in its segment.
fn with_ten(folder: &Path, clock: &Clock) -> (Vec<retrysafe_core::record::Record>, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = open(folder, clock).unwrap();
    let scope = retrysafe_core::Scope::anonymous();
    let mut records = Vec::new();
    for number in 0..10 {
        let first = first(&scope, number);
        let id = first.id;
        runtime.block_on(store.insert(first)).unwrap();
        records.push(runtime.block_on(store.load(id)).unwrap().value.unwrap());
    }
    store.close();
    let bytes = fs::read(folder.join("segment-00000")).unwrap();
    let victim = records[4].encode();
    let at = bytes.windows(victim.len()).position(|part| part == victim).unwrap();
    (records, (at + victim.len() - 1) as u64)
}

fn damage(folder: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(folder.join("segment-00000"));
    let (file, mut byte) = (file.unwrap(), [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn the_doctor_names_what_is_damaged_and_repeats_what_opening_says() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, _) = Clock::manual(Time::from_ms(1));
    let (records, at) = with_ten(folder.path(), &clock);
    let report = doctor(folder.path()).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!(report.versions(), 10);

    damage(folder.path(), at);
    fs::remove_file(folder.path().join("snapshot")).unwrap();
    let error = open(folder.path(), &clock).unwrap_err();
    let OpenError::Damaged { file, offset, .. } = &error else { panic!("{error}") };
    assert_eq!(file, "segment-00000");
    assert!(at > *offset && at - offset < 4_096, "{error}");
    assert!(error.to_string().contains("retrysafe store salvage"), "{error}");

    let report = doctor(folder.path()).unwrap();
    assert_eq!(report.refusal, Some(error.to_string()));
    let text = report.to_string();
    assert!(text.contains("damaged: segment-00000, byte"), "{text}");
    assert!(text.contains(&records[4].id.to_string()), "{text}");
    assert_eq!(report.versions(), 9);
}

#[test]
fn a_damaged_store_is_saved_to_a_new_one_and_the_damaged_key_is_unknown_there() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, _) = Clock::manual(Time::from_ms(1));
    let (records, at) = with_ten(folder.path(), &clock);
    damage(folder.path(), at);
    let (from, to) = (folder.path(), tempfile::tempdir().unwrap());
    let options = || DiskOptions::new().clock(clock.clone());
    let saved = salvage(from, to.path(), options()).unwrap();
    assert!(saved.is_complete(), "{saved:?}");
    assert_eq!(saved.copied, 9);
    assert_eq!(saved.held.iter().map(|held| held.id).collect::<Vec<_>>(), [records[4].id]);
    let error = salvage(from, to.path(), options()).unwrap_err().to_string();
    assert!(error.contains("holds a store already"), "{error}");

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = open(to.path(), &clock).unwrap();
    for record in &records {
        let found = runtime.block_on(store.load(record.id)).unwrap().value.unwrap();
        // Those that were in progress have lost their owner.
        assert_eq!(found.standing(), retrysafe_core::record::Standing::Unknown);
        assert_eq!((&found.scope, found.key), (&record.scope, record.key));
        assert_eq!(found.fingerprint, record.fingerprint);
        assert!(found.version > record.version);
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
        flow: None,
    }
}

/// More records than are looked at for one page, twice over: those that are passed over must be the older ones.
#[test]
fn the_latest_of_many_records_come_first_page_after_page() {
    const RECORDS: u64 = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let store = DiskOptions::new().durability(Durability::Process).open(folder.path()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let seen = runtime.block_on(async {
        let scope = retrysafe_core::Scope::of([("tenant", &b"acme"[..])]);
        let inserts = (0..RECORDS).map(|number| {
            let (store, first) = (store.clone(), first(&scope, number));
            tokio::spawn(async move { store.insert(first).await.unwrap() })
        });
        for insert in inserts.collect::<Vec<_>>() {
            insert.await.unwrap();
        }
        let mut seen = Vec::new();
        let mut query = Query { limit: PAGE_MAX, ..Query::default() };
        loop {
            let page = store.latest(query.clone()).await.unwrap().value;
            seen.extend(page.records.iter().map(|record| record.version));
            match page.next {
                Some(cursor) => query.after = Some(cursor),
                None => return seen,
            }
        }
    });
    assert_eq!(seen.len() as u64, RECORDS);
    assert!(seen.is_sorted_by(|newer, older| newer > older), "{seen:?}");
}
