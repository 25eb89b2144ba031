//! Does an operator see what a crash left behind, and find it?

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use retrysafe::stores::disk::DiskStore;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::record::{About, First};
use retrysafe_core::store::Store as _;
use retrysafe_core::{Id, Key, Scope};
use serde_json::{Value, json};

use super::kit::{
    Gate, Gateway, PATIENCE, Step, TOKEN, Upstream, free, key, program_with, raw, reply, request,
    until,
};
use super::postgres::database;

/// How many requests are running when the gateway is killed.
const RUNNING: usize = 50;

/// The value of a metric without labels.
fn gauge(gateway: &Gateway, name: &str) -> Option<f64> {
    let shown = gateway.metrics();
    let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}

/// Runs `retrysafe keys …` against a gateway: exit code, standard output, standard error.
fn keys(gateway: &Gateway, arguments: &[&str]) -> (i32, String, String) {
    let admin = format!("http://{}", gateway.admin);
    let all = [&["keys"], arguments, &["--admin", &admin]].concat();
    program_with(&all, &gateway.folder, &[("RETRYSAFE_ADMIN_TOKEN", TOKEN)])
}

/// What `unknown list` lists.
fn unknown(gateway: &Gateway) -> Vec<Value> {
    let admin = format!("http://{}", gateway.admin);
    let list = ["unknown", "list", "--limit", "5000", "--json", "--admin", &admin];
    let (code, out, err) =
        program_with(&list, &gateway.folder, &[("RETRYSAFE_ADMIN_TOKEN", TOKEN)]);
    assert_eq!(code, 0, "{err}");
    let shown: Value = serde_json::from_str(&out).unwrap();
    shown["unknown"].as_array().unwrap().clone()
}

/// The records that `keys find TEXT` finds.
fn found(gateway: &Gateway, text: &str) -> Vec<Value> {
    let (code, out, err) = keys(gateway, &["find", text, "--json"]);
    let shown: Value = serde_json::from_str(&out).unwrap();
    let found = shown["keys"].as_array().unwrap().clone();
    assert_eq!(code, i32::from(found.is_empty()), "{text}: {err}");
    found
}

/// The lines of the log that are about this, as JSON.
fn lines(gateway: &Gateway, message: &str) -> Vec<Value> {
    let log = gateway.log();
    let read = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    read.filter(|line| line["message"] == message).collect()
}

/// Waits for a line of the log that is about this.
fn line(gateway: &Gateway, message: &str) -> Value {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(line) = lines(gateway, message).pop() {
            return line;
        }
        assert!(std::time::Instant::now() < end, "no {message} in {}", gateway.log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Starts requests that the upstream does not answer, each with a path and a request id of its own.
fn hang(gateway: &Gateway, upstream: &Upstream, count: usize, gate: &Gate) -> Vec<String> {
    let keys: Vec<String> = (0..count).map(|_| key()).collect();
    for (number, key) in keys.iter().enumerate() {
        let path = format!("/crash/{number}");
        upstream.script(&path, vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
        let id = format!("request-{number}");
        let headers = [
            ("Idempotency-Key", key.as_str()),
            ("X-Request-Id", &id),
            ("Authorization", "Bearer operator-test"),
            ("Content-Type", "application/json"),
        ];
        let (asked, address) = (request("POST", &path, &headers, b"{}"), gateway.address);
        std::thread::spawn(move || raw(address, &asked, false));
    }
    for number in 0..count {
        upstream.wait(&format!("/crash/{number}"), 1);
    }
    keys
}

#[test]
fn fifty_requests_that_a_crash_left_are_seen_and_reached_at_once() {
    fifty_are_seen(None, "50 requests were running when this store was last closed");
}

#[test]
fn fifty_requests_that_a_crash_left_in_postgresql_are_seen_and_reached_at_once() {
    fifty_are_seen(Some(&database()), "50 requests were running when this gateway last ended");
}

fn fifty_are_seen(store: Option<&str>, told_at_start: &str) {
    let upstream = Upstream::start();
    let lookups = "[reconcile]\nurl = \"/lookup/{id}\"\nschedule = [\"0s\"]\nevery = \"50ms\"\ntimeout = \"60s\"\n\
                   response = \"/answer\"\n";
    let mut gateway = match store {
        None => Gateway::start(&upstream, lookups),
        Some(store) => Gateway::start_on(store, &upstream, lookups),
    };
    assert_eq!(gauge(&gateway, "retrysafe_unknown"), Some(0.0));
    let gate = Gate::default();
    let sent = hang(&gateway, &upstream, RUNNING, &gate);
    // The upstream knows every second one of them. It says so when it is let.
    let may_tell = Gate::default();
    let tells = |answer: Step| Step::Held(may_tell.clone(), Box::new(answer));
    for number in (0..RUNNING).step_by(2) {
        let id = upstream.seen_at(&format!("/crash/{number}"))[0]
            .header("retrysafe-id")
            .unwrap()
            .to_owned();
        let found = json!({"state": "executed", "answer": {"status": 201, "body": format!("paid {number}")}});
        upstream.script(&format!("/lookup/{id}"), vec![tells(reply(200, &found.to_string()))]);
    }
    upstream.otherwise(Some(tells(reply(404, "{}"))));
    gateway.kill();
    let before = gateway.log().len();
    gateway.restart();

    // The first look after readiness.
    assert_eq!(gauge(&gateway, "retrysafe_unknown"), Some(RUNNING as f64));
    assert!(gauge(&gateway, "retrysafe_unknown_oldest_seconds").is_some_and(|age| age >= 0.0));
    // Lines are written by a thread of their own, for which readiness does not wait.
    gateway.wait_for_log(told_at_start);
    let log = gateway.log()[before..].to_owned();
    assert!(log.contains(told_at_start), "{log}");
    let listed = unknown(&gateway);
    assert_eq!(listed.len(), RUNNING);
    let ages: Vec<_> = listed.iter().map(|it| it["since"].as_str().unwrap().to_owned()).collect();
    assert!(ages.is_sorted(), "the oldest first: {ages:?}");

    // Each of them by its request id, its key's digest and its path.
    for (number, sent) in sent.iter().enumerate() {
        let path = format!("/crash/{number}");
        let here: Vec<_> = listed.iter().filter(|key| key["path"] == *path).collect();
        let [record] = here[..] else { panic!("{here:?}") };
        let id = record["id"].as_str().unwrap();
        let find = |text: &str| {
            let body = json!({ "text": text }).to_string();
            gateway.ask("POST", "/api/v1/keys/find", &body).json()["keys"].clone()
        };
        for text in [&format!("request-{number}"), record["key"].as_str().unwrap(), sent] {
            let found = find(text);
            assert_eq!(found.as_array().map(Vec::len), Some(1), "{text}: {found}");
            assert_eq!(found[0]["id"], id, "{text}");
        }
        let by_path = gateway.ask("GET", &format!("/api/v1/keys?path=/crash/{number}"), "").json();
        assert_eq!(by_path["keys"][0]["id"], id, "{by_path}");
        assert_eq!(by_path["keys"].as_array().map(Vec::len), Some(1));
    }
    let one = &listed[0];
    assert_eq!(one["doubt"], "owner_gone");
    let id = one["id"].as_str().unwrap();
    for text in
        [&id[..12], &id[..7], id, one["key"].as_str().unwrap(), one["request_id"].as_str().unwrap()]
    {
        let (code, shown, err) = keys(&gateway, &["show", text]);
        assert!(code == 0 && shown.contains(id), "{text}: {shown}{err}");
    }
    let (code, out, err) = keys(&gateway, &["list", "--path", one["path"].as_str().unwrap()]);
    assert!(code == 0 && out.contains(&id[..12]), "{out}{err}");

    // The upstream tells what it knows. That is closed with its answers, and the rest stays listed for a person.
    may_tell.open();
    until("what the upstream knows is closed", || {
        gateway.metrics().contains("retrysafe_dead_lettered 25")
            && gateway.ask("GET", "/api/v1/unknown", "").json()["unknown"].as_array().map(Vec::len)
                == Some(25)
    });
    for left in unknown(&gateway) {
        let number: usize =
            left["path"].as_str().unwrap().trim_start_matches("/crash/").parse().unwrap();
        assert_eq!((number % 2, &left["dead_lettered"]), (1, &json!(true)), "{left}");
        assert_eq!(
            left["last_lookup"]["found"].as_str().unwrap().lines().next(),
            Some("not found")
        );
    }
    // All of them can be decided at once, and nothing else is: what somebody still looks up, or what is not unknown.
    let admin = format!("http://{}", gateway.admin);
    let dead = |more: &[&str]| {
        let verb = ["unknown", "release", "--dead-lettered", "--reason", "not in the books"];
        let all = [&verb[..], more, &["--yes", "--rate", "1000", "--admin", &admin]].concat();
        program_with(&all, &gateway.folder, &[("RETRYSAFE_ADMIN_TOKEN", TOKEN)])
    };
    let (code, out, err) = dead(&["--path", "/crash/0"]);
    assert!(
        code == 0 && out.contains("0 done"),
        "what was closed is not dead-lettered: {out}{err}"
    );
    let (code, out, err) = dead(&["--path", "/crash/3"]);
    assert!(code == 0 && out.contains("release: 1 done, 0 refused"), "{out}{err}");
    let (code, _, err) = dead(&["--max", "23"]);
    assert!(code == 1 && err.contains("more than 23 keys match"), "{err}");
    assert_eq!(unknown(&gateway).len(), 24);
    let credential = [("Authorization", "Bearer operator-test")];
    let told = gateway.post_with("/crash/0", &sent[0], "{}", &credential);
    assert_eq!((told.is_replay(), told.text().as_str()), (true, "paid 0"));
    let told = gateway.post_with("/crash/1", &sent[1], "{}", &credential);
    assert_eq!(told.code(), "outcome_unknown");
    let (code, out, err) = dead(&[]);
    assert!(code == 0 && out.contains("release: 24 done, 0 refused"), "{out}{err}");
    assert_eq!(unknown(&gateway).len(), 0);
    gate.open();
}

#[test]
fn unknown_keys_are_counted_on_every_store() {
    let postgres = database();
    for store in ["memory:", postgres.as_str(), "disk"] {
        let upstream = Upstream::start();
        let often = "[upkeep]\nsweep_every = \"50ms\"\n";
        let gateway = match store {
            "disk" => Gateway::start(&upstream, often),
            _ => Gateway::start_on(store, &upstream, often),
        };
        assert_eq!(gauge(&gateway, "retrysafe_unknown"), Some(0.0), "{store}");
        assert_eq!(gauge(&gateway, "retrysafe_unknown_oldest_seconds"), Some(0.0), "{store}");
        upstream.script("/lost", vec![Step::Drop]);
        gateway.post("/lost", &key(), "{}");
        gateway.post("/fine", &key(), "{}");
        until("one is unknown", || gauge(&gateway, "retrysafe_unknown") == Some(1.0));
        until("it grows older", || {
            gauge(&gateway, "retrysafe_unknown_oldest_seconds").is_some_and(|age| age > 0.0)
        });
        if store != postgres {
            until("records are counted", || {
                gauge(&gateway, "retrysafe_store_records") == Some(2.0)
            });
        }
        until("bytes are counted", || {
            gauge(&gateway, "retrysafe_store_bytes").is_some_and(|bytes| bytes > 0.0)
        });
        let seen = gateway.unknown_at("/lost");
        let released = gateway.decide(&seen, "release", "{\"reason\":\"x\"}");
        assert_eq!(released.status(), 200, "{}", released.text());
        until("none is unknown", || gauge(&gateway, "retrysafe_unknown") == Some(0.0));
        assert_eq!(gauge(&gateway, "retrysafe_unknown_oldest_seconds"), Some(0.0));
    }
}

#[test]
fn what_stands_in_a_log_line_finds_its_record() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    upstream.script("/lost", vec![Step::Drop]);
    upstream.script("/again", vec![reply(500, "{}"), reply(201, "{}")]);
    let (lost, again) = (key(), key());
    gateway.post("/lost", &lost, "{}");
    gateway.post_with("/again", &again, "{}", &[("X-Request-Id", "first-try")]);
    gateway.post_with("/again", &again, "{}", &[("X-Request-Id", "second-try")]);

    // A warning about the upstream says whose request it was.
    let warning = line(&gateway, "upstream_failed");
    let id = gateway.unknown_at("/lost")["id"].as_str().unwrap().to_owned();
    assert_eq!(warning["route"], "/{*rest}", "{warning}");
    for name in ["key", "request_id"] {
        let text = warning[name].as_str().unwrap();
        let records = found(&gateway, text);
        assert_eq!((records.len(), &records[0]["id"]), (1, &json!(id)), "{name} {text}");
    }
    // So does the request's own line, and every attempt has left its request's id.
    for text in ["first-try", "second-try"] {
        let records = found(&gateway, text);
        assert_eq!((records.len(), &records[0]["path"]), (1, &json!("/again")), "{text}");
    }
    let (_, shown, _) = keys(&gateway, &["show", "second-try"]);
    assert!(shown.contains("first-try") && shown.contains("second-try"), "{shown}");
    assert!(found(&gateway, "third-try").is_empty());
    // A caller that sends its key as its request's id is found by it, and the key is not kept.
    let both = key();
    gateway.post_with("/both", &both, "{}", &[("X-Request-Id", &both)]);
    let records = found(&gateway, &both);
    assert_eq!((records.len(), &records[0]["request_id"]), (1, &Value::Null), "{records:?}");
    let (code, _, err) = keys(&gateway, &["show", "third-try"]);
    assert!(code == 1 && err.contains("third-try"), "{err}");

    // What an operator did is logged with the record's id, which is accepted as well.
    let (code, _, err) = keys(&gateway, &["release", &id[..10], "--reason", "never arrived"]);
    assert_eq!(code, 0, "{err}");
    let audit = line(&gateway, "admin_action");
    assert_eq!(found(&gateway, audit["id"].as_str().unwrap())[0]["id"], id.as_str());
}

#[test]
fn an_upstream_that_is_away_is_reported_with_the_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let away = free();
    let config = std::fs::read_to_string(gateway.config()).unwrap();
    let moved = config.replace(&upstream.address.to_string(), &away.to_string());
    std::fs::write(gateway.config(), moved).unwrap();
    gateway.signal("HUP");
    gateway.wait_for_log("configuration reloaded");
    assert_eq!(gateway.post("/away", &key(), "{}").code(), "upstream_unreachable");
    let warning = line(&gateway, "upstream_unreachable");
    assert_eq!(warning["route"], "/{*rest}", "{warning}");
    for name in ["key", "request_id"] {
        let records = found(&gateway, warning[name].as_str().unwrap());
        assert_eq!((records.len(), &records[0]["path"]), (1, &json!("/away")), "{name}");
    }
}

/// More records than the 4,096 that the disk store reads for one page.
const MANY: u64 = 4_500;

/// Fills a disk store with records in progress, and gives the key of the one with the greatest id.
fn fill(folder: &Path) -> String {
    let store = DiskStore::open(folder).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let scope = Scope::of([("tenant", &b"acme"[..])]);
    let first = |number: u64| {
        let key = Key::new(&format!("key-{number}")).unwrap().digest();
        First {
            id: Id::of(&scope, &key),
            scope: scope.clone(),
            key,
            fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
            mark: None,
            about: About { method: "POST".into(), route: "/m".into(), path: "/m".into() },
            ttl: PATIENCE,
            lease: PATIENCE,
            owner: number,
            request_id: Some(format!("request-{number}").into()),
            flow: None,
        }
    };
    runtime.block_on(async {
        let inserts: Vec<_> = (0..MANY)
            .map(|number| {
                let (store, first) = (store.clone(), first(number));
                tokio::spawn(async move { store.insert(first).await.map(drop) })
            })
            .collect();
        for insert in inserts {
            insert.await.unwrap().unwrap();
        }
    });
    store.close();
    let last = (0..MANY).max_by_key(|number| first(*number).id).unwrap();
    format!("key-{last}")
}

#[test]
fn a_key_is_found_among_more_records_than_one_page_reads() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let last = fill(folder.path());
    let gateway = Gateway::start_on(&format!("disk:{}", folder.path().display()), &upstream, "");
    assert_eq!(gauge(&gateway, "retrysafe_unknown"), Some(MANY as f64));
    for text in [last.clone(), last.replace("key", "request")] {
        let records = found(&gateway, &text);
        assert_eq!(records.len(), 1, "{text}");
        assert_eq!(records[0]["request_id"], last.replace("key", "request"), "{text}");
    }
    assert!(found(&gateway, "key-none").is_empty());
    // And all of them can be listed, newest first.
    let (code, out, err) = keys(&gateway, &["list", "--limit", "5000", "--json"]);
    assert_eq!(code, 0, "{err}");
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (listed["keys"].as_array().map(Vec::len), &listed["more"]),
        (Some(MANY as usize), &json!(false))
    );
    // So can what is unknown, by age, in pages that no store knows of.
    let mut ids: Vec<_> = unknown(&gateway).iter().map(|it| it["id"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), MANY as usize);
}

#[test]
fn lookups_that_decide_nothing_are_told_and_push_nothing_out() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "[reconcile]\nurl = \"/lookup/{id}\"\nevery = \"10ms\"\nschedule = \"24×1ms\"\n",
    );
    upstream.script("/pay", vec![reply(500, "{}"), Step::Drop]);
    upstream.otherwise(Some(reply(503, "{}")));
    let key = key();
    gateway.post_with("/pay", &key, "{}", &[("X-Request-Id", "pay-1")]);
    gateway.post_with("/pay", &key, "{}", &[("X-Request-Id", "pay-2")]);
    until("the schedule is used up", || gateway.metrics().contains("retrysafe_dead_lettered 1"));

    let record = gateway.unknown_at("/pay");
    assert_eq!(record["lookups"], 24);
    let shown = gateway.ask("GET", &format!("/api/v1/keys/{}", record["id"].as_str().unwrap()), "");
    let shown = shown.json();
    let timeline = shown["timeline"].as_array().unwrap();
    let of = |what: &str| timeline.iter().filter(|m| m["what"] == what).collect::<Vec<_>>();
    let begins = of("began");
    assert_eq!(begins.len(), 2, "{timeline:?}");
    assert_eq!(
        (&begins[0]["request_id"], &begins[1]["request_id"]),
        (&json!("pay-1"), &json!("pay-2"))
    );
    assert_eq!(of("settled").len(), 2, "{timeline:?}");
    let lookups = of("looked_up");
    assert!(!lookups.is_empty(), "{timeline:?}");
    assert!(lookups.iter().all(|m| m["found"].as_str().unwrap().contains("503")), "{lookups:?}");

    let warning = line(&gateway, "reconcile_lookup");
    assert!(warning["found"].as_str().unwrap().contains("503"), "{warning}");
    assert_eq!((&warning["route"], &warning["request_id"]), (&json!("/{*rest}"), &json!("pay-2")));
    assert_eq!(warning["key"], record["key"]);
}

/// Runs `retrysafe keys …` in a terminal of 100 columns, with this typed: exit code and all output.
fn in_terminal(gateway: &Gateway, arguments: &str, typed: &str) -> (i32, String) {
    let command = format!(
        "stty cols 100; exec '{}' keys {arguments} --admin http://{} --token {TOKEN}",
        env!("CARGO_BIN_EXE_retrysafe"),
        gateway.admin
    );
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keyboard = child.stdin.take().unwrap();
    keyboard.write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(keyboard);
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_list_fits_the_terminal_newest_first_and_says_when_it_is_cut() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "[defaults]\nscope = [\"header:x-tenant\"]\n");
    let long = format!("/a/very/long/path/{}/that/does/not/fit", "segment-".repeat(20));
    let tenant = "t".repeat(80);
    upstream.script("/first/0", vec![reply(500, "{}")]);
    for number in 0..5 {
        let path = format!("/first/{number}");
        gateway.post_with(&path, &key(), "{}", &[("X-Tenant", &tenant)]);
    }
    gateway.post_with(&long, &key(), "{}", &[("X-Tenant", &tenant)]);

    let in_width = |text: &str| {
        let longest = text.lines().map(|line| line.trim_end().chars().count()).max();
        assert!(longest.is_some_and(|chars| chars <= 100), "{longest:?}: {text}");
    };
    let (code, out, err) = keys(&gateway, &["list"]);
    assert_eq!((code, err.as_str()), (0, ""), "nothing is cut");
    in_width(&out);
    let rows: Vec<&str> = out.lines().skip(1).collect();
    assert_eq!(rows.len(), 6, "{out}");
    assert!(rows[0].contains("/a/very") && rows[0].contains("not/fit"), "both ends: {}", rows[0]);
    for (row, number) in rows[1..].iter().zip([4, 3, 2, 1, 0]) {
        assert!(row.contains(&format!("/first/{number}")), "newest first: {out}");
    }
    let (code, out) = in_terminal(&gateway, "list", "");
    assert_eq!(code, 0, "{out}");
    in_width(&out);

    // A cut list says so, and how to see more; what it shows is the newest.
    let (code, out, err) = keys(&gateway, &["list", "--limit", "2"]);
    assert_eq!(code, 0);
    assert!(
        out.contains("/a/very") && out.contains("/first/4") && !out.contains("/first/3"),
        "{out}"
    );
    assert!(err.contains("There are more") && err.contains("--limit 20"), "{err}");
    let (_, out, _) = keys(&gateway, &["list", "--limit", "2", "--json"]);
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(listed["more"], json!(true));
    let (_, _, err) = keys(&gateway, &["list", "--limit", "6"]);
    assert_eq!(err, "", "all of them are not cut");

    // One key with a long story fits too.
    let id = listed["keys"][0]["id"].as_str().unwrap();
    let (code, out) = in_terminal(&gateway, &format!("show {}", &id[..12]), "");
    assert!(code == 0 && out.contains("began"), "{out}");
    let timeline = out.split("WHAT").nth(1).unwrap();
    in_width(timeline);
}

#[test]
fn a_verb_with_a_filter_shows_what_it_would_do_and_asks() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    for number in 0..2 {
        upstream.script(&format!("/lost/{number}"), vec![Step::Drop]);
        gateway.post(&format!("/lost/{number}"), &key(), "{}");
    }
    let unknown = || {
        let listed = gateway.ask("GET", "/api/v1/keys?state=unknown", "").json();
        listed["keys"].as_array().unwrap().len()
    };
    let release = "release --state unknown --reason 'not in the ledger'";
    for typed in ["n\n", "\n", "what\n"] {
        let (code, out) = in_terminal(&gateway, release, typed);
        assert_eq!(code, 1, "{out}");
        assert!(out.contains("/lost/0") && out.contains("/lost/1"), "it shows them: {out}");
        assert!(out.contains("release these 2 keys?") && out.contains("runs again"), "{out}");
        assert!(out.contains("nothing was done"), "{out}");
        assert_eq!(unknown(), 2, "{typed:?}");
    }
    // Without a terminal nobody can be asked: only --yes does it.
    let resolve = ["resolve", "--state", "unknown", "--outcome", "completed", "--reason", "x"];
    let (code, out, err) = keys(&gateway, &resolve);
    assert!(code == 1 && err.contains("--yes") && out.contains("/lost/0"), "{out}{err}");
    assert_eq!(unknown(), 2);
    let (code, out) = in_terminal(&gateway, release, "y\n");
    assert!(code == 0 && out.contains("release: 2 done, 0 refused"), "{out}");
    assert_eq!(unknown(), 0);
    // What is named is not asked about, and nothing that is listed is nothing to ask about.
    let (code, out, err) = keys(&gateway, &["release", "--state", "unknown", "--reason", "x"]);
    assert!(code == 0 && out.contains("0 done"), "{out}{err}");
    for number in 0..2 {
        upstream.script(&format!("/lost/{number}"), vec![Step::Drop]);
    }
    gateway.post("/lost/9", &key(), "{}");
    let (code, _, err) =
        keys(&gateway, &["expire", "--state", "completed", "--reason", "x", "--yes"]);
    assert_eq!(code, 0, "{err}");
}

/// A gateway whose token nobody has set, on a disk store of its own.
fn without_token() -> (Upstream, Gateway) {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    gateway.signal("TERM");
    gateway.wait();
    let config = std::fs::read_to_string(gateway.config()).unwrap();
    let lines =
        config.lines().filter(|line| !line.starts_with("token") && !line.starts_with("state"));
    std::fs::write(gateway.config(), lines.collect::<Vec<_>>().join("\n")).unwrap();
    gateway.restart();
    (upstream, gateway)
}

#[test]
fn a_token_that_was_made_is_kept_for_its_owner_and_found_by_the_commands() {
    let (_upstream, mut gateway) = without_token();
    gateway.post("/paid", &key(), "{}");
    let path = gateway.folder.join("data/admin-token");
    let token = std::fs::read_to_string(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(token.trim().len() >= 32);
    let told = line(
        &gateway,
        "the admin token stands in this file; set admin.token to choose another one",
    );
    assert_eq!(told["token_file"], path.to_str().unwrap());

    // The commands find it by themselves: by the configuration's name, or by the same settings.
    let list = |arguments: &[&str], variables: &[(&str, &str)]| {
        program_with(&[&["keys", "list"], arguments].concat(), &gateway.folder, variables)
    };
    let config = gateway.config();
    let config = config.to_str().unwrap();
    let (store, admin) =
        (format!("disk:{}", gateway.folder.join("data").display()), gateway.admin.to_string());
    for (arguments, variables) in [
        (&["--config", config][..], &[][..]),
        (&[], &[("RETRYSAFE_CONFIG", config)]),
        (&[], &[("RETRYSAFE_STORE", store.as_str()), ("RETRYSAFE_ADMIN_LISTEN", &admin)]),
    ] {
        let (code, out, err) = list(arguments, variables);
        assert!(code == 0 && out.contains("/paid"), "{arguments:?} {variables:?}: {out}{err}");
    }
    // In a folder whose configuration does not say which token.
    let elsewhere = tempfile::tempdir().unwrap();
    let asked = ["keys", "list", "--admin", &format!("http://{admin}")];
    let (code, _, err) = program_with(&asked, elsewhere.path(), &[]);
    assert!(code == 1 && err.contains("--token-file") && err.contains("admin-token"), "{err}");

    // The same after a restart, and nowhere in the log.
    gateway.kill();
    gateway.restart();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), token);
    let (code, out, err) =
        program_with(&["keys", "list", "--config", config], &gateway.folder, &[]);
    assert!(code == 0 && out.contains("/paid"), "{out}{err}");
    assert!(!gateway.log().contains(token.trim()), "the token is in the log");
}
