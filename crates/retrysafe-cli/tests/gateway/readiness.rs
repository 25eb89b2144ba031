//! Does `/readyz` say whether a new key would be served?

use std::process::Command;

use super::cluster::Cluster;
use super::kit::{Gateway, Upstream, key, until};

/// A small file system of its own, gone at the end.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new(size: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tmpfs = Self(folder);
        tmpfs.mount(&format!("size={size}"));
        tmpfs
    }

    fn mount(&self, options: &str) {
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(self.0.path())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "this test must be allowed to mount a tmpfs: {error}");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_disk_is_not_ready_and_room_makes_it_ready_again() {
    // Room for two segments of the store, and one of them is kept for settling.
    let tmpfs = Tmpfs::new("140m");
    let upstream = Upstream::start();
    let store = format!("disk:{}", tmpfs.0.path().join("data").display());
    let gateway = Gateway::start_on(&store, &upstream, "");
    let before = key();
    assert_eq!(gateway.post("/before", &before, "{}").status(), 201);
    upstream.script("/large", vec![super::kit::reply(201, &"x".repeat(1 << 20))]);
    until("the disk is full", || {
        let told = gateway.post("/large", &key(), "{}");
        told.status() == 503 && told.code() == "store_unavailable"
    });
    until("it says that it is not ready", || !gateway.is_ready());
    let told = gateway.ask("GET", "/readyz", "").json();
    assert_eq!(told["ready"], false);
    assert!(told["store"].as_str().unwrap().contains("full"), "{told}");
    assert_eq!(gateway.ask("GET", "/livez", "").status(), 200);
    assert!(gateway.post("/before", &before, "{}").is_replay(), "replays go on");

    tmpfs.mount("remount,size=300m");
    until("it is ready again", || gateway.is_ready());
    assert_eq!(gateway.post("/after", &key(), "{}").status(), 201);
}

#[test]
fn a_database_that_reads_and_does_not_commit_is_not_ready() {
    let cluster = Cluster::start(&[]);
    let upstream = Upstream::start();
    let store = format!("{}?deadline=1s", cluster.url("postgres"));
    let gateway = Gateway::start_on(&store, &upstream, "");
    // Commits wait for a standby that is not there; reads do not.
    cluster.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    cluster.sql("postgres", "SELECT pg_reload_conf()");
    until("nothing new is served", || gateway.post("/x", &key(), "{}").status() == 503);
    until("it says that it is not ready", || !gateway.is_ready());
    cluster.sql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
    cluster.sql("postgres", "SELECT pg_reload_conf()");
    until("it is ready again", || gateway.is_ready());
    until("it serves again", || gateway.post("/y", &key(), "{}").status() == 201);
}

// A file system that is in use for writing cannot be made read-only, so this is seen at the start.
#[test]
fn a_disk_that_may_only_be_read_is_refused_at_the_start() {
    let tmpfs = Tmpfs::new("300m");
    let upstream = Upstream::start();
    let store = format!("disk:{}", tmpfs.0.path().join("data").display());
    let mut gateway = Gateway::start_on(&store, &upstream, "");
    let before = key();
    assert_eq!(gateway.post("/before", &before, "{}").status(), 201);
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0));
    tmpfs.mount("remount,ro");
    gateway.spawn();
    assert_eq!(gateway.wait(), Some(1));
    gateway.wait_for_log("Read-only file system");
    tmpfs.mount("remount,rw");
    gateway.restart();
    assert!(gateway.post("/before", &before, "{}").is_replay());
}

#[test]
fn a_database_that_may_only_be_read_is_not_ready_until_it_may_be_written() {
    let cluster = Cluster::start(&[]);
    let upstream = Upstream::start();
    let store = format!("{}?deadline=3s", cluster.url("postgres"));
    let gateway = Gateway::start_on(&store, &upstream, "");
    assert_eq!(gateway.post("/before", &key(), "{}").status(), 201);
    let restart = |is_read_only| {
        cluster.kill();
        cluster.set_read_only(is_read_only);
        cluster.up();
    };
    restart(true);
    until("it says that it is not ready", || !gateway.is_ready());
    assert_eq!(gateway.post("/x", &key(), "{}").code(), "store_unavailable");
    assert_eq!(upstream.count("/x"), 0, "nothing runs that could not be kept");
    restart(false);
    until("it is ready again", || gateway.is_ready());
    until("it serves again", || gateway.post("/y", &key(), "{}").status() == 201);
}

#[test]
fn being_asked_leaves_no_trace() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    gateway.post("/one", &key(), "{}");
    for _ in 0..50 {
        until("it is ready", || gateway.is_ready());
    }
    assert_eq!(gateway.records(), 1);
    let (code, told, _) = {
        let mut gateway = gateway;
        gateway.signal("TERM");
        assert_eq!(gateway.wait(), Some(0));
        super::kit::program(&["store", "doctor", "--store", &gateway.store], &gateway.folder)
    };
    assert_eq!(code, 0, "{told}");
}
