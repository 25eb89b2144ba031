//! Does the disk store survive what happens to real processes and real disks?
//!
//! A child process works on a store and prints what was acknowledged; this process kills it, makes
//! its system calls fail, or fills its disk, and then looks whether everything printed is there.
//! Needs `strace`, and the right to mount a tmpfs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test says what it does not expect by panicking"
)]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use retrysafe::stores::disk::{DiskOptions, DiskStore};
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::record::{
    About, Answer, Becomes, First, Happened, Record, Standing, State, Write,
};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{Inserted, StoreErrorKind, Swapped};
use retrysafe_core::{Key, Store as _};

const KILLS: u64 = 200;
const SEGMENT_BYTES: u32 = 256 << 10;

/// Which child this process is, if it is one, and where its store is.
const ROLE: &str = "RETRYSAFE_CHILD";
const FOLDER: &str = "RETRYSAFE_CHILD_FOLDER";
const BASE: &str = "RETRYSAFE_CHILD_BASE";

fn first(number: u64) -> First {
    let scope = Scope::anonymous();
    let key = Key::new(&format!("k-{number}")).unwrap().digest();
    First {
        id: Id::of(&scope, &key),
        scope,
        key,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([1; 8]), [2; 32]),
        mark: None,
        about: About::default(),
        ttl: Duration::from_secs(86_400),
        lease: Duration::from_secs(60),
        owner: number,
        request_id: None,
        flow: None,
    }
}

fn completed(number: u64) -> Write {
    let body = Bytes::from(vec![number as u8; 200 + (number % 1_000) as usize]);
    let response = StoredResponse { status: StatusCode::CREATED, headers: Vec::new(), body };
    Write {
        becomes: Becomes::Completed(Answer::Kept(response)),
        new_fence: false,
        what: Some(Happened::Settled(Standing::Completed, Some(201))),
        ttl: None,
    }
}

fn open(path: &Path) -> DiskStore {
    let options = DiskOptions::new().segment_bytes(SEGMENT_BYTES);
    options.open(path).unwrap_or_else(|error| panic!("{error}"))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// One line, with one call, so that a kill cannot mix two.
fn say(line: &str) {
    std::io::stdout().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

async fn begin(store: &DiskStore, number: u64) -> Record {
    match store.insert(first(number)).await.unwrap().value {
        Inserted::New(record) => record,
        Inserted::Exists(record) => panic!("nobody else has {record:?}"),
    }
}

/// Not a test of its own: the children run this.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let base: u64 = std::env::var(BASE).unwrap().parse().unwrap();
    if role == "wanderer" {
        return wander(&folder);
    }
    let store = open(&folder);
    say("open");
    match role.as_str() {
        "worker" => runtime().block_on(work(&store, base)),
        "victim" => runtime().block_on(suffer(&store, base)),
        _ => panic!("no such role"),
    }
}

/// Opens a store by a relative path, and then goes elsewhere.
fn wander(folder: &Path) {
    std::env::set_current_dir(folder).unwrap();
    let store = open(Path::new("data"));
    std::env::set_current_dir("/").unwrap();
    runtime().block_on(async {
        begin(&store, 1).await;
        assert!(store.load(first(1).id).await.unwrap().value.is_some());
    });
    say("end");
}

/// Begins and settles until it is killed.
async fn work(store: &DiskStore, base: u64) {
    let tasks = (0..8).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in (base + task..).step_by(8) {
                let record = begin(&store, number).await;
                say(&format!("begun {number} {}", record.version));
                match store.swap(record, completed(number)).await.unwrap().value {
                    Swapped::Done(record) => say(&format!("done {number} {}", record.version)),
                    Swapped::Lost(current) => panic!("lost to {current:?}"),
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Begins and settles, says what fails, and goes on for a while.
async fn suffer(store: &DiskStore, base: u64) {
    for number in base..base + 60 {
        match store.insert(first(number)).await.map(|answer| answer.value) {
            Ok(Inserted::New(record)) => say(&format!("begun {number} {}", record.version)),
            Ok(Inserted::Exists(record)) => panic!("nobody else has {record:?}"),
            Err(error) => {
                say(&format!(
                    "failed {number} {} {}",
                    error.kind().name(),
                    error.may_have_applied()
                ));
            }
        }
        if let Err(error) = store.load(first(base).id).await {
            say(&format!("unread {number} {}", error.kind().name()));
        }
    }
    say("end");
}

fn command(program: &[&str], role: &str, folder: &Path, base: u64) -> Child {
    let me = std::env::current_exe().unwrap();
    let mut words: Vec<std::ffi::OsString> = program.iter().map(Into::into).collect();
    words.extend([me.into_os_string()]);
    words.extend(["child", "--exact", "--nocapture", "--test-threads=1"].map(Into::into));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(ROLE, role).env(FOLDER, folder).env(BASE, base.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("{:?} cannot be started: {error}", words[0]))
}

/// What a child has said was acknowledged.
#[derive(Debug, Default)]
struct Acknowledged {
    begun: HashMap<u64, u64>,
    done: HashMap<u64, u64>,
}

impl Acknowledged {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        if let [verb @ ("begun" | "done"), number, version] = words[..]
            && let (Ok(number), Ok(version)) = (number.parse(), version.parse())
        {
            let known = if verb == "begun" { &mut self.begun } else { &mut self.done };
            known.insert(number, version);
        }
    }

    /// Looks whether everything is there, in a store that was opened after the child was gone.
    fn check(&self, store: &DiskStore, runtime: &tokio::runtime::Runtime) {
        for (number, begun) in &self.begun {
            let loaded = runtime.block_on(store.load(first(*number).id)).unwrap().value;
            let record = loaded.unwrap_or_else(|| panic!("{number} was begun and is gone"));
            assert_eq!(record.fence.0, *begun);
            match (self.done.get(number), &record.state) {
                (Some(version), State::Completed { answer: Answer::Kept(kept), .. }) => {
                    assert_eq!(record.version, *version);
                    let Becomes::Completed(Answer::Kept(expected)) = completed(*number).becomes
                    else {
                        unreachable!()
                    };
                    assert_eq!(*kept, expected);
                }
                (Some(_), state) => panic!("{number} was settled and is {state:?}"),
                (None, State::Completed { .. } | State::Unknown { .. }) => {}
                (None, state) => panic!("{number} lost its owner and is {state:?}"),
            }
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_in_200_kills() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let (mut all, mut acknowledged) = (Acknowledged::default(), 0);
    for kill in 0..KILLS {
        let mut child = command(&[], "worker", folder.path(), kill << 32);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut heard = Acknowledged::default();
        // A different number of lines each time: the kill falls anywhere in a batch.
        let mut left = 5 + kill * 37 % 211;
        while left > 0 {
            let line = lines.next().expect("the child works until it is killed").unwrap();
            left -= u64::from(line.starts_with("begun") || line.starts_with("done"));
            heard.hear(&line);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        lines.map_while(Result::ok).for_each(|line| heard.hear(&line));
        let store = open(folder.path());
        heard.check(&store, &runtime);
        acknowledged += heard.begun.len() + heard.done.len();
        all.begun.extend(heard.begun);
        all.done.extend(heard.done);
    }
    all.check(&open(folder.path()), &runtime);
    println!("{KILLS} kills, {acknowledged} acknowledgements");
}

#[test]
fn a_process_that_goes_to_another_folder_keeps_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let output = command(&[], "wanderer", folder.path(), 0).wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(String::from_utf8_lossy(&output.stdout).lines().any(|line| line == "end"));
}

/// Runs a child under strace, which lets some of its calls fail.
fn under_strace(inject: &str) -> (Vec<String>, Acknowledged, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).close();
    let inject = format!("inject={inject}");
    let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject];
    let child = command(&strace, "victim", folder.path(), 0);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "strace is needed, and ptrace: {errors}\n{text}");
    let mut heard = Acknowledged::default();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.iter().for_each(|line| heard.hear(line));
    (lines, heard, folder)
}

#[test]
fn a_flush_that_fails_with_eio_refuses_everything_and_loses_nothing() {
    let (lines, heard, folder) = under_strace("fdatasync:error=EIO:when=20");
    let failed: Vec<&String> = lines.iter().filter(|line| line.starts_with("failed")).collect();
    assert!(failed[0].ends_with("unavailable true"), "{failed:?}");
    assert!(
        failed.len() > 20 && failed[1..].iter().all(|line| line.ends_with("unavailable false"))
    );
    let unread = lines.iter().filter(|line| line.starts_with("unread")).count();
    assert_eq!(unread, failed.len(), "reads are refused with the first failure");
    heard.check(&open(folder.path()), &runtime());
}

#[test]
fn a_write_that_fails_with_eio_refuses_everything_and_loses_nothing() {
    let (lines, heard, folder) = under_strace("pwrite64:error=EIO:when=20");
    let failed = lines.iter().filter(|line| line.starts_with("failed")).count();
    assert!(failed > 20, "{lines:?}");
    heard.check(&open(folder.path()), &runtime());
}

#[test]
fn a_write_that_finds_the_disk_full_refuses_one_begin_and_goes_on() {
    let (lines, heard, folder) = under_strace("pwrite64:error=ENOSPC:when=20");
    let failed: Vec<&String> = lines.iter().filter(|line| line.starts_with("failed")).collect();
    assert_eq!(failed.len(), 1, "{lines:?}");
    assert!(failed[0].ends_with("full false"), "{failed:?}");
    assert!(lines.iter().any(|line| line == "end"));
    heard.check(&open(folder.path()), &runtime());
}

/// A tmpfs, gone at the end.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::mount(&["-t", "tmpfs", "-o", options, "tmpfs"], folder.path());
        Self(folder)
    }

    fn mount(args: &[&str], path: &Path) {
        let output = Command::new("mount").args(args).arg(path).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "this test must be allowed to mount a tmpfs: {error}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_refuses_begins_replays_and_settles_go_on_and_service_returns() {
    let disk = Mounted::new("size=16m");
    let path = disk.0.path().join("store");
    let runtime = runtime();
    let store = DiskOptions::new().segment_bytes(1 << 20).open(&path).unwrap();
    runtime.block_on(async {
        let settled = begin(&store, 0).await;
        store.swap(settled, completed(0)).await.unwrap();
        let mut running = Vec::new();
        for number in 1..=50 {
            running.push((number, begin(&store, number).await));
        }
        let ballast = disk.0.path().join("ballast");
        fill_to_the_last_byte(&ballast);

        let number = begin_until_full(&store, 1_000).await;
        assert!(store.load(first(number).id).await.unwrap().value.is_none());

        // Replays, settles and the reaper go on.
        let replay = store.insert(first(0)).await.unwrap().value;
        assert!(
            matches!(replay, Inserted::Exists(record) if record.standing() == Standing::Completed)
        );
        for (number, record) in running {
            let swapped = store.swap(record, completed(number)).await.unwrap().value;
            assert!(matches!(swapped, Swapped::Done(_)));
        }
        store.reap(10).await.unwrap();

        // What they have superseded may have made a little room.
        let number = begin_until_full(&store, number).await;
        // Space returns, and with it, after the store's own pause, the service.
        fs::remove_file(ballast).unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while store.insert(first(number)).await.is_err() {
            assert!(tokio::time::Instant::now() < deadline, "service does not return");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    store.close();
    let store = DiskOptions::new().open(&path).unwrap();
    for number in 0..=50 {
        let record = runtime.block_on(store.load(first(number).id)).unwrap().value.unwrap();
        assert_eq!(record.standing(), Standing::Completed);
    }
}

/// Begins until the store is full, and says with which number it was refused.
async fn begin_until_full(store: &DiskStore, from: u64) -> u64 {
    for number in from..from + 100_000 {
        if let Err(error) = store.insert(first(number)).await {
            assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
            assert!(!error.may_have_applied());
            return number;
        }
    }
    panic!("the disk does not get full");
}

fn fill_to_the_last_byte(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        let bytes = vec![0; size];
        while file.write_all(&bytes).is_ok() {}
    }
}

#[test]
fn a_folder_that_cannot_be_written_or_is_no_folder_is_a_clear_error() {
    let disk = Mounted::new("size=4m,mode=755,ro");
    let error = DiskStore::open(disk.0.path()).unwrap_err().to_string();
    assert!(error.starts_with("cannot fill ") && error.contains("ead-only"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = DiskStore::open(file.path()).unwrap_err().to_string();
    assert!(error.starts_with("cannot create "), "{error}");
    let small = Mounted::new("size=1m,mode=755");
    let error = DiskStore::open(small.0.path()).unwrap_err().to_string();
    assert!(error.contains("segment-00000"), "{error}");
}
