//! What is different when records are kept in PostgreSQL?

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::cluster::Cluster;
use super::kit::{Gateway, Upstream, key, program, program_with, request, send, until};

/// The server of this test run.
pub(crate) fn server() -> &'static Cluster {
    static SERVER: OnceLock<Cluster> = OnceLock::new();
    SERVER.get_or_init(|| Cluster::start(&[]))
}

/// A new, empty database: its name.
pub(crate) fn new_database() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("gateway_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    server().sql("postgres", &format!("CREATE DATABASE {name}"));
    name
}

/// The URL of a new, empty database.
pub(crate) fn database() -> String {
    server().url(&new_database())
}

#[test]
fn the_database_may_go_away_and_come_back() {
    let cluster = Cluster::start(&[]);
    let upstream = Upstream::start();
    let store = format!("{}?deadline=3s", cluster.url("postgres"));
    let gateway = Gateway::start_on(&store, &upstream, "");
    let before = key();
    let first = gateway.post("/before", &before, "{}");
    assert_eq!(first.status(), 201);

    cluster.kill();
    let refused = gateway.post("/during", &key(), "{}");
    assert_eq!((refused.status(), refused.code().as_str()), (503, "store_unavailable"));
    assert_eq!(gateway.post("/before", &before, "{}").status(), 503, "a replay needs the store");
    assert_eq!(upstream.count("/during"), 0, "no store, no execution");
    assert_eq!(gateway.ask("GET", "/readyz", "").status(), 503);
    assert_eq!(gateway.ask("GET", "/livez", "").status(), 200);

    cluster.up();
    until("it is ready again", || gateway.is_ready());
    until("it serves again", || gateway.post("/after", &key(), "{}").status() == 201);
    let replayed = gateway.post("/before", &before, "{}");
    assert!(replayed.is_replay() && replayed.body == first.body);
    assert_eq!(upstream.count("/before"), 1);
}

/// Records are the same for everybody. An application in another language answers by the SQL functions.
#[test]
fn sql_and_the_gateway_replay_each_others_answers() {
    let database = new_database();
    let upstream = Upstream::start();
    let toml = "[defaults]\nscope = [\"header:x-tenant\"]\n\
        [fingerprint]\nhost = false\nraw_bodies = true\n";
    let gateway = Gateway::start_on(&server().url(&database), &upstream, toml);
    let body = "{\"cents\": 100 }";
    let post = |path: &str, key: &str, body: &str| {
        gateway.post_with(path, key, body, &[("X-Tenant", "acme")])
    };
    let begin = |path: &str, key: &str| {
        let begin = format!(
            "CALL retrysafe.begin(retrysafe.scope('x-tenant', 'acme'), '{key}',
            retrysafe.fingerprint('POST', '{path}', '{body}', 'application/json'))"
        );
        let told = server().sql(&database, &begin);
        told.split('|').map(str::to_owned).collect::<Vec<_>>()
    };

    // SQL answers first.
    let of_sql = key();
    let begun = begin("/sql", &of_sql);
    assert_eq!(begun[0], "execute", "{begun:?}");
    assert_eq!(post("/sql", &of_sql, body).code(), "request_in_progress");
    let settle = format!(
        "CALL retrysafe.settle('{}', {}, 'completed', 201::smallint,
        ARRAY[['content-type', 'text/plain'], ['location', '/rides/7']], 'by \\303\\244 ride'::bytea)",
        begun[1], begun[2]
    );
    server().sql(&database, &settle);
    let replayed = post("/sql", &of_sql, body);
    assert!(replayed.is_replay() && replayed.status() == 201, "{replayed:?}");
    assert_eq!((&*replayed.text(), replayed.header("location")), ("by ä ride", Some("/rides/7")));
    assert_eq!(post("/sql", &of_sql, "{\"cents\":100}").status(), 422, "bodies count byte by byte");
    assert_eq!(upstream.count("/sql"), 0, "the upstream was never asked");

    // The gateway answers first.
    let of_gateway = key();
    let first = post("/gateway", &of_gateway, body);
    assert_eq!(first.status(), 201);
    assert_eq!(begin("/gateway", &of_gateway)[0], "replay");
    let kept = format!(
        "SELECT status, encode(body, 'hex') FROM retrysafe.look(
        retrysafe.record_id(retrysafe.scope('x-tenant', 'acme'), '{of_gateway}'))"
    );
    let hex: String = first.body.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(server().sql(&database, &kept), format!("201|{hex}"));
    assert_eq!(upstream.count("/gateway"), 1);
}

#[test]
fn without_its_database_it_does_not_start_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let store = "postgres://u:planted@127.0.0.1:1/d";
    let serve = ["serve", "--upstream", "http://127.0.0.1:1", "--store", store];
    let bound = [("RETRYSAFE_STORE_WAIT_MAX", "300ms")];
    let (code, out, err) = program_with(&serve, folder.path(), &bound);
    assert_eq!(code, 1);
    assert!(err.contains("127.0.0.1:1/d: cannot connect to PostgreSQL"), "{err}");
    assert!(err.contains("300ms") && err.contains("store_wait_max"), "{err}");
    assert!(format!("{out}{err}").contains("out of reach: waiting"), "{out}{err}");
    assert!(!format!("{out}{err}").contains("planted"), "{out}{err}");
}

/// Two machines come back after a power cut, and the database is the second.
#[test]
fn a_database_that_is_down_at_the_start_is_waited_for() {
    let cluster = Cluster::start(&[]);
    cluster.kill();
    let upstream = Upstream::start();
    let mut gateway = Gateway::asleep_on(&cluster.url("postgres"), &upstream, "");
    gateway.spawn();
    gateway.wait_for_log("out of reach: waiting");
    assert!(!gateway.is_ready());
    cluster.up();
    gateway.await_ready();
    assert_eq!(gateway.post("/a", &key(), "{}").status(), 201);
}

#[test]
fn a_stop_ends_the_wait_for_the_database() {
    let upstream = Upstream::start();
    for signal in ["TERM", "INT"] {
        let mut gateway =
            Gateway::asleep_on("postgres://u@127.0.0.1:1/d?sslmode=disable", &upstream, "");
        gateway.spawn();
        gateway.wait_for_log("out of reach: waiting");
        gateway.signal("HUP");
        gateway.wait_for_log("nothing to reload");
        gateway.signal(signal);
        assert_eq!(gateway.wait(), Some(0), "{}", gateway.log());
    }
}

#[test]
fn what_is_wrong_for_good_is_not_waited_for() {
    let upstream = Upstream::start();
    let forgetful = Cluster::start(&[("fsync", "off")]);
    let held = Gateway::start(&upstream, "");
    let url = server().url("postgres");
    for (store, why) in [
        (url.replace("postgres@", "nobody@"), "role \"nobody\" does not exist"),
        (server().url("no_such_database"), "does not exist"),
        (format!("{url}?sslmode=require"), "does not support TLS"),
        (forgetful.url("postgres"), "fsync is off"),
        (format!("disk:{}", held.folder.join("data").display()), "in use by process"),
    ] {
        let mut gateway = Gateway::asleep_on(&store, &upstream, "store_wait_max = \"1h\"\n---\n");
        gateway.spawn();
        assert_eq!(gateway.wait(), Some(1), "{store}: {}", gateway.log());
        let told = gateway.log();
        assert!(told.contains(why) && !told.contains("waiting"), "{store}: {told}");
    }
}

#[test]
fn a_password_is_found_nowhere() {
    let upstream = Upstream::start();
    // This server asks for no password; it is given one all the same.
    let store = database().replace("postgres@", "postgres:planted-word@");
    let gateway = Gateway::start_on(&store, &upstream, "[log]\nlevel = \"trace\"\n");
    let mut told = gateway.post("/a", &key(), "{}").text();
    let policy = request("GET", "/.well-known/idempotency", &[], b"");
    told.push_str(&send(gateway.address, &policy).text());
    for page in ["/readyz", "/metrics", "/api/v1/keys", "/api/v1/stats"] {
        told.push_str(&gateway.ask("GET", page, "").text());
    }
    let config = gateway.config();
    let config = config.to_str().unwrap();
    for command in [
        &["config", "print"][..],
        &["config", "check"],
        &["store", "migrate"],
        &["store", "doctor"],
        &["store", "reap"],
    ] {
        let (code, out, err) = program(&[command, &["--config", config]].concat(), &gateway.folder);
        assert_eq!(code, 0, "{command:?}: {err}");
        told.push_str(&format!("{out}{err}"));
    }
    assert!(told.contains("postgres://…@127.0.0.1"), "{told}");
    // A reload that changes the store is refused, and one that breaks its URL too.
    let text = std::fs::read_to_string(config).unwrap();
    for (broken, why) in [
        (store.replace("gateway_", "other_"), "cannot change without a restart"),
        (store.replace("planted-word", "planted-word@"), "an @ too many"),
    ] {
        std::fs::write(config, text.replace(&store, &broken)).unwrap();
        let (_, out, err) = program(&["config", "check", "--config", config], &gateway.folder);
        told.push_str(&format!("{out}{err}"));
        gateway.signal("HUP");
        gateway.wait_for_log(why);
    }
    for (place, text) in [("answers", told), ("log", gateway.log())] {
        let found = text.lines().find(|line| line.contains("planted-word"));
        assert_eq!(found, None, "in the {place}");
    }
}

#[test]
fn a_store_is_looked_after_while_the_gateway_runs() {
    let upstream = Upstream::start();
    let name = new_database();
    let store = server().url(&name);
    let run = |verb: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        program(&[&["store"], verb, &["--store", &store]].concat(), folder.path())
    };
    let (code, _, err) = run(&["doctor"]);
    assert!(code == 1 && err.contains("run `retrysafe store migrate`"), "{err}");
    let (code, script, _) = run(&["migrate", "--print"]);
    assert!(code == 0 && script.contains("CREATE TABLE retrysafe.record"), "{script}");
    assert_eq!(server().sql(&name, "SELECT to_regclass('retrysafe.record') IS NULL"), "t");
    let (code, out, err) = run(&["migrate", "--json"]);
    assert!(code == 0 && out.contains("postgres://…@"), "{out}{err}");

    let gateway = Gateway::start_on(&store, &upstream, "[defaults]\nttl = \"1ms\"\n");
    gateway.post("/a", &key(), "{}");
    gateway.post("/a", &key(), "{}");
    let (code, out, err) = run(&["doctor", "--json"]);
    assert!(code == 0 && out.contains("\"records\": 2"), "{out}{err}");
    server().sql(&name, "UPDATE retrysafe.record SET request = set_byte(request, 80, 0)");
    let (code, out, err) = run(&["doctor"]);
    assert!(code == 1 && out.contains(": damaged") && err.contains("damaged"), "{out}{err}");
    let (code, out, err) = run(&["reap", "--json"]);
    assert!(code == 0 && out.contains("\"reaped\": "), "{out}{err}");

    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = program(&["store", "migrate", "--print"], folder.path());
    assert!(code == 1 && err.contains("only a PostgreSQL store"), "{err}");
}
