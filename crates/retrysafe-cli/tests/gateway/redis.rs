//! What is different when records, or copies of answers, are kept in Redis?

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::kit::{Gateway, Upstream, key, program, until};
use super::postgres::database;
use super::redis_server::{Server, Servers};

/// The server of this test run.
pub(crate) fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&[("appendonly", "yes")]))
}

/// The cluster of this test run.
fn cluster() -> &'static Servers {
    static CLUSTER: OnceLock<Servers> = OnceLock::new();
    CLUSTER.get_or_init(|| Servers::cluster(&[]))
}

/// A place for keys that nobody else uses.
fn fresh(url: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{url}?prefix=gateway-{}&quarantine=1h", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn run(command: &[&str], store: &str) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    program(&[&["store"], command, &["--store", store]].concat(), folder.path())
}

fn initialised(store: String) -> String {
    let (code, out, err) = run(&["init"], &store);
    assert_eq!(code, 0, "{out}{err}");
    store
}

/// The URL of a new store in Redis.
pub(crate) fn in_redis() -> String {
    initialised(fresh(&server().url()))
}

/// The URL of a new store in a cluster of six nodes.
pub(crate) fn in_cluster() -> String {
    initialised(fresh(&cluster().url()))
}

/// The URL of a new database whose answers are copied to Redis.
pub(crate) fn tiered() -> String {
    format!("tiered:{}|{}", database(), fresh(&server().url()))
}

#[test]
fn a_store_is_looked_after_by_its_url() {
    for store in [in_redis(), in_cluster(), tiered()] {
        let upstream = Upstream::start();
        let (code, out, err) = run(&["migrate", "--json"], &store);
        assert!(code == 0 && out.contains("prefix=gateway-"), "{out}{err}");
        let gateway = Gateway::start_on(&store, &upstream, "[defaults]\nttl = \"1ms\"\n");
        for _ in 0..2 {
            assert_eq!(gateway.post("/a", &key(), "{}").status(), 201);
        }
        let (code, out, err) = run(&["doctor", "--json"], &store);
        assert!(code == 0 && out.contains("\"records\": 2"), "{store}: {out}{err}");
        let (code, out, err) = run(&["reap", "--json"], &store);
        assert!(code == 0 && out.contains("\"reaped\": "), "{store}: {out}{err}");
        until("nothing is left", || run(&["doctor"], &store).1.contains("0 records"));
        let (code, _, err) = run(&["init"], &store);
        assert_eq!(code, 0, "{store}: {err}");
    }
}

/// A fail-over, as a gateway sees it: what is there is replayed, nothing new is executed, and a person
/// is told in the log, by a metric, and by whoever starts later.
#[test]
fn a_redis_that_changed_is_told_in_the_log_and_counted() {
    let redis = Server::start(&[("appendonly", "yes"), ("appendfsync", "always")]);
    let store = initialised(fresh(&redis.url()));
    let upstream = Upstream::start();
    let open = "[[route]]\npath = \"/open\"\non_store_error = \"open\"\n";
    let gateway = Gateway::start_on(&store, &upstream, open);
    gateway.wait_for_log("nothing is lost when Redis dies (appendfsync always)");
    let old = key();
    assert_eq!(gateway.post("/old", &old, "{}").status(), 201);
    redis.kill();
    let refused = gateway.post("/during", &key(), "{}");
    assert_eq!((refused.status(), refused.code().as_str()), (503, "store_unavailable"));
    redis.up();
    until("what is there is replayed", || gateway.post("/old", &old, "{}").is_replay());
    // So many refusals once counted as a dead store, which then served no replay either.
    for _ in 0..8 {
        let held = gateway.post("/new", &key(), "{}");
        assert_eq!((held.status(), held.code().as_str()), (503, "store_unavailable"));
    }
    assert!(gateway.post("/old", &old, "{}").is_replay(), "what is there is replayed");
    // A route that runs without a store does not run beside what this one may have forgotten.
    assert_eq!(gateway.post("/open", &key(), "{}").status(), 503);
    assert_eq!((upstream.count("/during"), upstream.count("/new")), (0, 0));
    assert_eq!(upstream.count("/open"), 0);
    gateway.wait_for_log("nothing new is executed until then");
    let metrics = gateway.ask("GET", "/metrics", "").text();
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().parse::<f64>().unwrap_or_default()
    };
    assert!(value("retrysafe_store_changed_total ") >= 1.0, "{metrics}");
    assert!(value("retrysafe_store_held_until_seconds ") > 1.7e9, "{metrics}");
    let later = Gateway::start_on(&store, &upstream, "");
    assert_eq!(later.post("/new", &key(), "{}").status(), 503);
    // Nothing was lost, and an operator says so.
    let (code, out, err) = run(&["init"], &store);
    assert!(code == 0 && out.contains("from now on"), "{out}{err}");
    assert_eq!(later.post("/new", &key(), "{}").status(), 201);
}

#[test]
fn looks_for_copies_are_counted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start_on(&tiered(), &upstream, "");
    let key = key();
    assert_eq!(gateway.post("/a", &key, "{}").status(), 201);
    let counted = |look: &str| {
        let line = format!("retrysafe_copies_total{{look=\"{look}\"}} ");
        gateway.ask("GET", "/metrics", "").text().contains(&line)
    };
    until("a copy is served", || gateway.post("/a", &key, "{}").is_replay() && counted("served"));
    assert!(!counted("refused"));
    assert_eq!(upstream.count("/a"), 1);
}

#[test]
fn a_redis_that_cannot_keep_the_promise_is_refused_with_the_setting() {
    let evicting = Server::start(&[("maxmemory-policy", "allkeys-lru")]);
    // Its master is its own: a server that gets its first replica is held, and the other tests share one.
    let master = Server::start(&[]);
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", master.port))]);
    let upstream = Upstream::start();
    for (store, why) in [
        (fresh(&server().url()), "store init"),
        (evicting.url() + "?quarantine=1h", "maxmemory-policy to noeviction"),
        (replica.url() + "?quarantine=1h", "the server is a replica"),
        (server().url() + "?quarantine=1s", "?quarantine="),
        (server().url() + "?quarantine=1h&require=aof-always", "appendfsync always"),
    ] {
        let mut gateway = Gateway::asleep_on(&store, &upstream, "store_wait_max = \"1h\"\n---\n");
        gateway.spawn();
        assert_ne!(gateway.wait(), Some(0), "{store}: {}", gateway.log());
        assert!(gateway.log().contains(why), "{store}: {}", gateway.log());
    }
}

#[test]
fn a_password_of_redis_is_found_nowhere() {
    let locked = Server::start(&[("requirepass", "planted-word")]);
    let login = "redis://:planted-word@";
    let redis = fresh(&locked.url().replace("redis://", login));
    let stores = [initialised(redis.clone()), format!("tiered:{}|{redis}", database())];
    for store in stores {
        let upstream = Upstream::start();
        let gateway = Gateway::start_on(&store, &upstream, "[log]\nlevel = \"trace\"\n");
        let mut told = gateway.post("/a", &key(), "{}").text();
        for page in ["/readyz", "/metrics", "/api/v1/stats"] {
            told.push_str(&gateway.ask("GET", page, "").text());
        }
        for command in [&["migrate"][..], &["doctor"], &["reap"]] {
            let (code, out, err) = run(command, &store);
            assert_eq!(code, 0, "{command:?}: {err}");
            told.push_str(&format!("{out}{err}"));
        }
        locked.kill();
        told.push_str(&gateway.post("/a", &key(), "{}").text());
        told.push_str(&gateway.ask("GET", "/readyz", "").text());
        locked.up();
        for text in [told, gateway.log()] {
            assert!(text.contains("…@127.0.0.1") || !text.contains("redis:"), "{text}");
            assert_eq!(text.lines().find(|line| line.contains("planted-word")), None);
        }
    }
}
