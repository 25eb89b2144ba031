//! Who may decide about what is unknown, about which attempt, and by which evidence?

use std::thread;

use serde_json::{Value, json};

use super::kit::{
    Gate, Gateway, Message, Step, TOKEN, Upstream, key, program_with, raw, reply, request, send,
    until,
};
use super::postgres::database;

/// Opens a gateway with this much more configuration.
type Open = fn(&Upstream, &str) -> Gateway;

/// Shows it on a disk store and on PostgreSQL.
fn on_both_stores(shown: impl Fn(Open)) {
    shown(Gateway::start);
    shown(|upstream, toml| Gateway::start_on(&database(), upstream, toml));
}

/// An owner that is slower than its lease: its record is unknown while it runs.
const SLOW: &str =
    "[defaults]\nlease = \"2s\"\nlease_max = \"2s\"\n[upkeep]\nsweep_every = \"50ms\"\n";

/// A reconciler that asks nobody by itself.
const ASKED: &str =
    "[reconcile]\nurl = \"/lookup/{id}\"\nschedule = [\"24h\"]\nresponse = \"/answer\"\n";

/// Runs `retrysafe …` against a gateway: exit code, standard output, standard error.
fn run(gateway: &Gateway, arguments: &[&str]) -> (i32, String, String) {
    let admin = format!("http://{}", gateway.admin);
    let all = [arguments, &["--admin", &admin]].concat();
    program_with(&all, &gateway.folder, &[("RETRYSAFE_ADMIN_TOKEN", TOKEN), ("USER", "nightwatch")])
}

fn shown(gateway: &Gateway, id: &str) -> Value {
    gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").json()
}

fn moments<'a>(record: &'a Value, what: &str) -> Vec<&'a Value> {
    let timeline = record["timeline"].as_array().unwrap();
    timeline.iter().filter(|moment| moment["what"] == what).collect()
}

/// Sends a request whose answer is held, and waits until its record is unknown.
fn overdue(
    gateway: &Gateway,
    upstream: &Upstream,
    path: &str,
    gate: &Gate,
    answer: Step,
) -> (String, Value) {
    upstream.script(path, vec![Step::Held(gate.clone(), Box::new(answer)), reply(201, "again")]);
    let key = key();
    let asked = request(
        "POST",
        path,
        &[("Idempotency-Key", &key), ("Content-Type", "application/json")],
        b"{}",
    );
    let address = gateway.address;
    thread::spawn(move || raw(address, &asked, false));
    upstream.wait(path, 1);
    let listed = || {
        let told = gateway.ask("GET", &format!("/api/v1/unknown?path={path}"), "").json();
        told["unknown"].as_array().and_then(|list| list.first().cloned())
    };
    until("the request is unknown", || listed().is_some());
    (key, listed().unwrap())
}

#[test]
fn operator_first_and_the_late_owner_is_kept_as_a_contradiction() {
    on_both_stores(|open| {
        let upstream = Upstream::start();
        let gateway = open(&upstream, SLOW);
        let gate = Gate::default();
        let (_, seen) =
            overdue(&gateway, &upstream, "/late", &gate, reply(201, "\u{1b}[2J<b>paid</b>"));
        let id = seen["id"].as_str().unwrap();
        for (body, why) in [("{}", "reason"), ("{\"reason\":\" \"}", "reason")] {
            let told = gateway.decide(&seen, "release", body);
            assert_eq!(told.status(), 400, "{}", told.text());
            assert!(told.text().contains(why), "{}", told.text());
        }
        let wrong = json!({"id": id, "fence": seen["fence"].as_u64().unwrap() + 1});
        assert_eq!(
            gateway.decide(&wrong, "release", "{\"reason\":\"x\"}").code(),
            "another_attempt"
        );
        assert_eq!(
            gateway.decide(&seen, "release", "{\"reason\":\"not in the ledger\"}").status(),
            200
        );
        assert_eq!(
            gateway.decide(&seen, "release", "{\"reason\":\"x\"}").code(),
            "already_decided"
        );
        gate.open();
        until("the late result is kept", || {
            !moments(&shown(&gateway, id), "late_result").is_empty()
        });
        let record = shown(&gateway, id);
        assert_eq!(record["state"], "failed_retryable", "decided once, never flipped");
        let resolved = moments(&record, "resolved");
        assert_eq!(resolved.len(), 1);
        assert_eq!(
            (&resolved[0]["operator"], &resolved[0]["judge"]),
            (&json!("admin"), &json!("operator"))
        );
        // The worker counts it after the store has it.
        let counted = "retrysafe_contradictions_total{route=\"/{*rest}\"} 1";
        until("it is counted", || gateway.metrics().contains(counted));
        // What the late owner brought does nothing to a terminal.
        let (code, screen, err) = run(&gateway, &["unknown", "show", id]);
        assert!(code == 0 && screen.contains("paid</b>"), "{screen}{err}");
        assert!(!screen.contains('\u{1b}'), "{screen:?}");
        let (_, screen, _) = run(&gateway, &["keys", "show", id, "--json"]);
        assert!(!screen.contains('\u{1b}'), "{screen:?}");
    });
}

#[test]
fn operator_and_late_owner_at_once_decide_once() {
    on_both_stores(|open| {
        let upstream = Upstream::start();
        let gateway = open(&upstream, SLOW);
        let gate = Gate::default();
        let keys: Vec<(String, Value)> = (0..3)
            .map(|n| {
                overdue(&gateway, &upstream, &format!("/both/{n}"), &gate, reply(201, "first"))
            })
            .collect();
        let decided: Vec<u16> = thread::scope(|scope| {
            let opened = scope.spawn(|| gate.open());
            let asked: Vec<_> = keys
                .iter()
                .map(|(_, seen)| {
                    scope.spawn(|| gateway.decide(seen, "release", "{\"reason\":\"x\"}").status())
                })
                .collect();
            opened.join().unwrap();
            asked.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (number, ((key, seen), status)) in keys.iter().zip(&decided).enumerate() {
            let id = seen["id"].as_str().unwrap();
            until("both have spoken", || {
                let record = shown(&gateway, id);
                record["state"] != "unknown"
                    && (*status == 409 || !moments(&record, "late_result").is_empty())
            });
            let record = shown(&gateway, id);
            let path = format!("/both/{number}");
            match status {
                200 => {
                    assert_eq!(record["state"], "failed_retryable", "{record}");
                    assert_eq!(gateway.post(&path, key, "{}").text(), "again");
                }
                409 => {
                    assert_eq!(record["state"], "completed", "{record}");
                    assert!(moments(&record, "resolved").is_empty());
                    assert_eq!(gateway.post(&path, key, "{}").text(), "first");
                }
                other => panic!("{other}"),
            }
        }
    });
}

#[test]
fn operator_and_poll_at_once_decide_once() {
    on_both_stores(|open| {
        let upstream = Upstream::start();
        let gateway = open(&upstream, ASKED);
        for number in 0..6 {
            let path = format!("/poll/{number}");
            upstream.script(&path, vec![Step::Drop]);
            let key = key();
            gateway.post(&path, &key, "{}");
            let seen = gateway.unknown_at(&path);
            let id = seen["id"].as_str().unwrap();
            let found = json!({"state": "executed", "answer": {"status": 201, "body": "upstream"}});
            upstream.script(&format!("/lookup/{id}"), vec![reply(200, &found.to_string())]);
            let by_hand = json!({"outcome": "completed", "reason": "x", "response": {"status": 202, "body": "operator"}});
            let second = json!({"outcome": "failed_retryable", "reason": "y"});
            let (polled, one, other) = thread::scope(|scope| {
                let polled =
                    scope.spawn(|| gateway.ask("POST", &format!("/api/v1/keys/{id}/poll"), "{}"));
                let one = scope.spawn(|| gateway.decide(&seen, "resolve", &by_hand.to_string()));
                let other = scope.spawn(|| gateway.decide(&seen, "resolve", &second.to_string()));
                (polled.join().unwrap(), one.join().unwrap(), other.join().unwrap())
            });
            let record = shown(&gateway, id);
            assert_eq!(moments(&record, "resolved").len(), 1, "{record}");
            let by_poll = polled.json()["result"] == "decided";
            let winners = [by_poll, one.status() == 200, other.status() == 200];
            assert_eq!(
                winners.iter().filter(|won| **won).count(),
                1,
                "{} {}",
                polled.text(),
                one.text()
            );
            if other.status() == 200 {
                assert_eq!(record["state"], "failed_retryable");
            } else {
                let replay = gateway.post(&path, &key, "{}");
                assert!(replay.is_replay());
                assert_eq!(replay.text(), if by_poll { "upstream" } else { "operator" });
            }
        }
    });
}

#[test]
fn a_late_result_is_the_answer_that_is_replayed() {
    on_both_stores(|open| {
        let upstream = Upstream::start();
        let gateway = open(&upstream, SLOW);
        let gate = Gate::default();
        let paid = Step::Reply(
            201,
            vec![("Content-Type", "application/json".into())],
            b"{\"id\":7}".to_vec(),
        );
        let (key, first) = overdue(&gateway, &upstream, "/twice", &gate, paid);
        // Released too early, and lost once more; then the first owner reports.
        upstream.script("/twice", vec![Step::Drop]);
        assert_eq!(gateway.decide(&first, "release", "{\"reason\":\"too early\"}").status(), 200);
        gateway.post("/twice", &key, "{}");
        let second = gateway.unknown_at("/twice");
        let id = second["id"].as_str().unwrap();
        let fence = second["fence"].to_string();
        let resolve = [
            "unknown",
            "resolve",
            id,
            "--fence",
            &fence,
            "--outcome",
            "completed",
            "--use",
            "late-result",
            "--reason",
            "r",
        ];
        let (code, _, err) = run(&gateway, &resolve);
        assert!(code == 1 && err.contains("no late result"), "{err}");
        gate.open();
        until("the late result is kept", || {
            !moments(&shown(&gateway, id), "late_result").is_empty()
        });
        let (code, screen, err) = run(&gateway, &["unknown", "show", id]);
        assert!(code == 0 && screen.contains("--use late-result"), "{screen}{err}");
        // A filter does not run again what its own timeline says was executed.
        let all = ["unknown", "release", "--path", "/twice", "--yes", "--reason", "r"];
        let (code, out, err) = run(&gateway, &all);
        assert!(code != 0 && (out + &err).contains("says that it was executed"), "{err}");
        assert_eq!(shown(&gateway, id)["state"], "unknown");
        let (code, out, err) = run(&gateway, &resolve);
        assert!(code == 0 && out.contains(&format!("decided about fence {fence}")), "{out}{err}");
        let replay = gateway.post("/twice", &key, "{}");
        assert_eq!((replay.status(), replay.text().as_str()), (201, "{\"id\":7}"));
        assert!(replay.is_replay() && replay.header("content-type") == Some("application/json"));
        let record = shown(&gateway, id);
        let last = *moments(&record, "resolved").last().unwrap();
        assert_eq!(
            last["evidence"],
            format!("answer: the late result of fence {}", first["fence"])
        );
        assert_eq!(last["operator"], "admin, says nightwatch");
        assert_eq!(upstream.count("/twice"), 2);
    });
}

#[test]
fn a_preview_tells_what_would_happen_and_writes_nothing() {
    on_both_stores(|open| {
        let upstream = Upstream::start();
        let gateway = open(&upstream, "");
        upstream.script("/pay", vec![Step::Drop]);
        let key = key();
        gateway.post("/pay", &key, "{}");
        let seen = gateway.unknown_at("/pay");
        let id = seen["id"].as_str().unwrap().to_owned();
        let before = shown(&gateway, &id);
        let preview = |verb: &str, body: Value| {
            let mut body = body;
            body["preview"] = true.into();
            let told = gateway.decide(&seen, verb, &body.to_string());
            assert_eq!(told.status(), 200, "{}", told.text());
            told.json()
        };
        let told = preview("release", json!({}));
        assert_eq!(
            (&told["would"]["state"], &told["refused"]),
            (&json!("failed_retryable"), &Value::Null)
        );
        assert_eq!(told["retry_gets"], "it is executed again");
        let given = json!({"outcome": "completed", "response": {"status": 201, "body": "paid"}});
        assert_eq!(preview("resolve", given)["retry_gets"], "a replay: status 201, 4 bytes");
        let fact = preview("resolve", json!({"outcome": "completed"}));
        assert!(fact["retry_gets"].as_str().unwrap().starts_with("410"), "{fact}");
        let late = preview("resolve", json!({"outcome": "completed", "use": "late_result"}));
        assert_eq!(late["refused"]["code"], "evidence_insufficient");
        assert_eq!(preview("expire", json!({}))["refused"]["code"], "already_decided");
        let other =
            json!({"reason": "x", "fence": seen["fence"].as_u64().unwrap() + 1, "preview": true})
                .to_string();
        let other = gateway.ask("POST", &format!("/api/v1/keys/{id}/release"), &other).json();
        assert_eq!(other["refused"]["code"], "another_attempt");
        let (code, out, err) = run(&gateway, &["unknown", "release", &id, "--preview"]);
        assert!(code == 0 && out.contains("would become failed_retryable"), "{out}{err}");
        assert!(out.contains("Nothing was changed."), "{out}");
        assert_eq!(shown(&gateway, &id), before, "nothing was written, not even a version");
        assert!(!gateway.log().contains("admin_action"), "a preview is no action");
    });
}

#[test]
fn a_poll_is_noted_and_uses_up_nothing_of_the_schedule() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ASKED);
    upstream.script("/pay", vec![Step::Drop]);
    gateway.post("/pay", &key(), "{}");
    let seen = gateway.unknown_at("/pay");
    let id = seen["id"].as_str().unwrap();
    let lookup = format!("/lookup/{id}");
    upstream.script(
        &lookup,
        vec![reply(404, "{}"), reply(200, "{\"state\":\"pending\"}"), reply(500, "x")],
    );
    for found in ["not found", "pending"] {
        let (code, out, err) = run(&gateway, &["unknown", "poll", id]);
        assert!(code == 0 && out.contains("still_unknown") && out.contains(found), "{out}{err}");
    }
    let record = shown(&gateway, id);
    assert_eq!((&record["lookups"], &record["dead_lettered"]), (&json!(0), &json!(false)));
    assert_eq!(moments(&record, "looked_up").len(), 2);
    let (code, table, err) = run(&gateway, &["unknown", "list"]);
    assert!(code == 0 && table.contains("0/1"), "{table}{err}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    // Who decides about what lookups have given up does not decide about what is still looked up.
    let release = format!("/api/v1/keys/{id}/release");
    let given_up = "{\"reason\":\"x\",\"dead_lettered\":true}";
    let told = gateway.ask("POST", &release, given_up);
    assert_eq!((told.status(), told.code().as_str()), (409, "lookups_differ"));
    let (code, out, err) = run(&gateway, &["unknown", "list", "--dead-lettered"]);
    assert!(code == 0 && !out.contains("/pay"), "{out}{err}");
    // Where nobody can be asked, that is said.
    gateway.configure("");
    gateway.signal("HUP");
    gateway.wait_for_log("configuration reloaded");
    let told = gateway.ask("POST", &format!("/api/v1/keys/{id}/poll"), "{}");
    assert_eq!((told.status(), told.code().as_str()), (501, "no_reconciler"));
    // A process that looks nothing up cannot know what lookups have given up: on a shared store another process may still ask.
    let record = shown(&gateway, id);
    let (planned, dead) = (&record["lookups_planned"], &record["dead_lettered"]);
    assert_eq!((planned, dead), (&Value::Null, &json!(false)));
    let told = gateway.ask("POST", &release, given_up);
    assert_eq!((told.status(), told.code().as_str()), (501, "no_reconciler"));
    for verb in [&["list"][..], &["release", "--reason", "x", "--yes"]] {
        let (code, out, err) = run(&gateway, &[&["unknown"], verb, &["--dead-lettered"]].concat());
        assert!(code == 1 && err.contains("[reconcile]"), "{out}{err}");
    }
    let (code, table, err) = run(&gateway, &["unknown", "list"]);
    assert!(code == 0 && table.contains("0/-"), "{table}{err}");
    assert_eq!(shown(&gateway, id)["state"], "unknown");
}

const TOKENS: &str = "[admin.tokens.grafana]\nrole = \"read\"\ntoken = \"read-token-0123456789\"\n\
    [admin.tokens.alice]\nrole = \"decide\"\ntoken = \"alice-token-0123456789\"\n\
    [admin.tokens.root]\nrole = \"administer\"\ntoken_file = \"ROOT\"\n";

/// Every page that changes something, and the role that it takes.
const WRITES: [(&str, &str); 12] = [
    ("/keys/ID/resolve", "decide"),
    ("/keys/ID/release", "decide"),
    ("/keys/ID/poll", "decide"),
    ("/outbox/1/retry", "decide"),
    ("/outbox/1/cancel", "decide"),
    ("/outbox/1/resolve", "decide"),
    ("/inbox/1/replay", "decide"),
    ("/keys/ID/expire", "administer"),
    ("/outbox/kinds/mail/pause", "administer"),
    ("/outbox/kinds/mail/resume", "administer"),
    ("/outbox/dead/requeue", "administer"),
    ("/outbox/dead/purge", "administer"),
];

fn ask_as(gateway: &Gateway, token: &str, method: &str, path: &str, body: &str) -> Message {
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    send(gateway.admin, &request(method, &format!("/api/v1{path}"), &headers, body.as_bytes()))
}

#[test]
fn every_route_demands_its_role_and_the_token_names_the_operator() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root-token");
    std::fs::write(&root, "root-token-0123456789\n").unwrap();
    let tokens = TOKENS.replace("ROOT", root.to_str().unwrap());
    let gateway = Gateway::start(&upstream, &tokens);
    upstream.script("/pay", vec![Step::Drop]);
    let key = key();
    gateway.post("/pay", &key, "{}");
    let seen = gateway.unknown_at("/pay");
    let id = seen["id"].as_str().unwrap().to_owned();
    let (read, decide, whole) =
        ("read-token-0123456789", "alice-token-0123456789", "root-token-0123456789");
    let why = json!({"reason": "r", "fence": seen["fence"], "outcome": "completed"}).to_string();
    for (path, needed) in WRITES {
        let path = path.replace("ID", &id);
        for token in ["", "wrong", "read-token-012345678", "read-token-01234567890"] {
            assert_eq!(ask_as(&gateway, token, "POST", &path, &why).status(), 401, "{path}");
        }
        let told = ask_as(&gateway, read, "POST", &path, &why);
        assert_eq!((told.status(), told.code().as_str()), (403, "role_needed"), "{path}");
        assert_eq!(told.json()["needed_role"], needed, "{path}");
        assert!(told.text().contains("grafana"), "{}", told.text());
        if needed == "administer" {
            let told = ask_as(&gateway, decide, "POST", &path, &why);
            assert_eq!(
                (told.status(), &told.json()["needed_role"]),
                (403, &json!(needed)),
                "{path}"
            );
        }
    }
    assert_eq!(gateway.unknown_at("/pay"), seen, "nothing was changed");
    for path in ["/keys", "/unknown", "/stats", &format!("/keys/{id}")] {
        assert_eq!(ask_as(&gateway, read, "GET", path, "").status(), 200, "{path}");
    }
    let find = json!({"text": key}).to_string();
    assert_eq!(ask_as(&gateway, read, "POST", "/keys/find", &find).status(), 200);

    // Whoever decides is who the token says, whatever is claimed beside it.
    let release = format!("/keys/{id}/release");
    for claimed in ["\u{1b}[2Jroot", "root]; x", &"n".repeat(100)] {
        let body = json!({"reason": "r", "fence": seen["fence"], "operator": claimed}).to_string();
        assert_eq!(ask_as(&gateway, decide, "POST", &release, &body).status(), 400, "{claimed:?}");
    }
    for reason in ["a\u{1b}]0;x\u{7}", "a\u{202e}b", "two\nlines", &"x".repeat(1 << 20)] {
        let body = json!({"reason": reason, "fence": seen["fence"]}).to_string();
        assert_eq!(ask_as(&gateway, decide, "POST", &release, &body).status(), 400);
    }
    let markup = "<script>alert(1)</script> & \"quotes\"";
    let body = json!({"reason": markup, "fence": seen["fence"], "operator": "root"}).to_string();
    let told = ask_as(&gateway, decide, "POST", &release, &body);
    assert_eq!(told.status(), 200, "{}", told.text());
    let record = told.json();
    let resolved = moments(&record, "resolved");
    assert_eq!(
        (&resolved[0]["operator"], &resolved[0]["reason"]),
        (&json!("alice, says root"), &json!(markup))
    );
    gateway.wait_for_log("alice, says root");
    assert_eq!(
        ask_as(&gateway, whole, "POST", &format!("/keys/{id}/expire"), "{\"reason\":\"r\"}")
            .status(),
        200
    );

    // Tokens change with a reload, and never show themselves.
    gateway.configure(&tokens.replace("alice-token-0123456789", "alice-token-9876543210"));
    gateway.signal("HUP");
    gateway.wait_for_log("configuration reloaded");
    assert_eq!(ask_as(&gateway, decide, "GET", "/keys", "").status(), 401);
    assert_eq!(ask_as(&gateway, "alice-token-9876543210", "GET", "/keys", "").status(), 200);
    let log = gateway.log();
    assert!(!log.contains("-token-0123456789") && !log.contains("-token-9876543210"));
    let config = gateway.config();
    let (code, printed, err) = program_with(
        &["config", "print", "--config", config.to_str().unwrap()],
        &gateway.folder,
        &[],
    );
    assert!(
        code == 0 && printed.contains("grafana") && !printed.contains("-token-"),
        "{printed}{err}"
    );
}
