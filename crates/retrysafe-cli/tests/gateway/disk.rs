//! What does an operator see of a disk store that is taken away, damaged, old or out of time?

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use retrysafe::stores::clock::Clock;
use retrysafe::stores::disk::DiskOptions;

use super::kit::{Gateway, Upstream, key, program, reply, until};

fn data(gateway: &Gateway) -> PathBuf {
    gateway.folder.join("data")
}

fn stop(gateway: &mut Gateway) {
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0));
}

/// What `serve` says that must not come up.
fn refusal(store: &str, folder: &Path) -> String {
    let arguments = ["serve", "--store", store, "--upstream", "http://127.0.0.1:1"];
    let listeners = ["--listen", "127.0.0.1:0", "--admin", "off"];
    let (code, _, told) = program(&[&arguments[..], &listeners[..]].concat(), folder);
    assert_eq!(code, 1, "{told}");
    told
}

#[test]
fn a_folder_that_is_taken_away_refuses_new_requests_and_replays_and_the_process_stays_alive() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let known = key();
    assert_eq!(gateway.post("/a", &known, "{}").status(), 201);
    assert!(gateway.post("/a", &known, "{}").is_replay());
    fs::remove_dir_all(data(&gateway)).unwrap();
    // At once: the very next request, and from then on every replay.
    assert_eq!(gateway.post("/a", &key(), "{}").status(), 503);
    let replay = gateway.post("/a", &known, "{}");
    assert_eq!((replay.status(), replay.code()), (503, "store_unavailable".into()));
    assert!(replay.header("retry-after").is_some());
    assert_eq!(upstream.count("/a"), 1);
    until("it is not ready", || !gateway.is_ready());
    assert_eq!(gateway.ask("GET", "/livez", "").status(), 200);
    // A write finds its segment removed, a read finds the folder gone: whichever comes first says so.
    gateway.wait_for_log("while the store was open");
}

/// An answer that is at hand is the right one; but soon nothing more is said in the name of a folder that is gone.
#[test]
fn replays_alone_find_out_that_the_folder_was_taken_away() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let known = key();
    assert_eq!(gateway.post("/a", &known, "{}").status(), 201);
    for _ in 0..3 {
        assert!(gateway.post("/a", &known, "{}").is_replay());
    }
    fs::remove_dir_all(data(&gateway)).unwrap();
    until("replays are refused", || gateway.post("/a", &known, "{}").status() == 503);
    assert_eq!(upstream.count("/a"), 1);
    gateway.wait_for_log("while the store was open");
}

#[test]
fn a_damaged_store_is_saved_to_a_new_one_and_no_damaged_key_runs_again() {
    let upstream = Upstream::start();
    upstream.otherwise(Some(reply(201, "{\"paid\":\"a-mark-in-the-answer\"}")));
    let mut gateway = Gateway::start(&upstream, "");
    let keys: Vec<String> = (0..5).map(|_| key()).collect();
    for one in &keys {
        assert_eq!(gateway.post("/pay", one, "{}").status(), 201);
    }
    stop(&mut gateway);
    let (folder, store) = (gateway.folder.clone(), gateway.store.clone());
    let examine = || program(&["store", "doctor", "--store", &store], &folder);
    assert_eq!(examine().0, 0);

    // The third answer in the log is damaged, and so is the snapshot: the log must be read.
    let segment = data(&gateway).join("segment-00000");
    let bytes = fs::read(&segment).unwrap();
    let mark = b"a-mark-in-the-answer";
    let places: Vec<usize> =
        (0..bytes.len() - mark.len()).filter(|at| bytes[*at..].starts_with(mark)).collect();
    let file = fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.write_all_at(b"X", places[2] as u64).unwrap();
    fs::remove_file(data(&gateway).join("snapshot")).unwrap();

    let told = refusal(&store, &folder);
    assert!(told.contains("segment-00000") && told.contains("store salvage"), "{told}");
    let (code, report, _) = examine();
    assert!(code == 1 && report.contains("it does not open"), "{report}");
    let (from, to) = (data(&gateway), folder.join("saved"));
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    let (code, saved, err) = program(&["store", "salvage", from, to, "--json"], &folder);
    assert_eq!(code, 0, "{err}");
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!((&saved["complete"], &saved["copied"]), (&true.into(), &4.into()), "{saved}");
    assert_eq!(saved["held"].as_array().unwrap().len(), 1, "{saved}");

    gateway.store = format!("disk:{to}");
    gateway.configure("");
    gateway.restart();
    let answers: Vec<_> = keys.iter().map(|one| gateway.post("/pay", one, "{}")).collect();
    for (number, answer) in answers.iter().enumerate() {
        if number == 2 {
            assert_eq!((answer.status(), answer.code()), (409, "outcome_unknown".into()));
        } else {
            assert!(answer.is_replay(), "{}", answer.text());
        }
    }
    assert_eq!(upstream.count("/pay"), 5, "nothing ran again");
    stop(&mut gateway);
}

#[test]
fn keys_that_cannot_be_named_make_a_salvage_fail_and_are_told() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    for _ in 0..5 {
        gateway.post("/pay", &key(), "{}");
    }
    stop(&mut gateway);
    // The page of a batch, with everything in it.
    let segment = data(&gateway).join("segment-00000");
    let file = fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.write_all_at(&[0xa5; 4_096], 3 * 4_096).unwrap();
    let (from, to) = (data(&gateway), gateway.folder.join("saved"));
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    let (code, out, err) = program(&["store", "salvage", from, to], &gateway.folder);
    assert!(code == 1 && err.contains("is not complete"), "{out}{err}");
    assert!(out.contains("unreadable: segment-00000, 4096 bytes from byte 12288 on"), "{out}");
}

#[test]
fn a_clock_that_is_weeks_ahead_of_the_store_is_refused_unless_it_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let then = Clock::system().now().as_ms() - 40 * 24 * 3_600_000;
    let (clock, _) = Clock::manual(retrysafe_core::time::Time::from_ms(then));
    DiskOptions::new().segment_bytes(1 << 20).clock(clock).open(&data).unwrap().close();
    let store = format!("disk:{}", data.display());
    let told = refusal(&store, folder.path());
    assert!(told.contains("40 days ahead") && told.contains("--accept-clock"), "{told}");
    let reap = |flags: &[&str]| {
        let arguments = [&["store", "reap", "--store", &store], flags].concat();
        program(&arguments, folder.path()).0
    };
    assert_eq!(reap(&[]), 1);
    assert_eq!(reap(&["--accept-clock"]), 0);
    assert_eq!(reap(&[]), 0, "the store has seen this clock");
}

#[test]
fn a_store_of_the_former_format_is_refused_with_a_cure_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let mut old = b"retrysafe-disk\r\n".to_vec();
    old.extend_from_slice(&1_u32.to_le_bytes());
    old.resize(44, 0);
    fs::write(data.join("store"), &old).unwrap();
    fs::write(data.join("segment-00000"), b"RSG1").unwrap();
    let told = refusal(&format!("disk:{}", data.display()), folder.path());
    assert!(told.contains("in format 1") && told.contains("another, empty folder"), "{told}");
    assert_eq!(fs::read(data.join("store")).unwrap(), old);
    assert_eq!(fs::read_dir(&data).unwrap().count(), 2, "nothing was made");
}

#[test]
fn a_folder_without_a_store_is_refused_where_none_may_be_created() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("volume");
    fs::create_dir(&empty).unwrap();
    let told = refusal(&format!("disk:{}?create=never", empty.display()), folder.path());
    assert!(told.contains("volume") && told.contains("mount"), "{told}");
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
}

/// The soft limit of open files was raised only after the store was open. Most systems have a soft limit
/// of 1,024 and a hard one far above it, so a store of 64 GB refused to open.
#[test]
fn a_store_with_more_segments_than_the_soft_limit_of_open_files_opens() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    DiskOptions::new().segment_bytes(32 << 10).open(&data).unwrap().close();
    // Segments that were never in use.
    for slot in 3..60 {
        fs::write(data.join(format!("segment-{slot:05}")), vec![0; 32 << 10]).unwrap();
    }
    let store = format!("disk:{}", data.display());
    for command in ["migrate", "doctor", "reap"] {
        let line = format!(
            "ulimit -S -n 32; exec {} store {command} --store {store}",
            env!("CARGO_BIN_EXE_retrysafe")
        );
        let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
