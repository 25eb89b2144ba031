//! Does an operator see effects and decide about them, over HTTP and in a shell?

use serde_json::{Value, json};

use super::kit::{Gateway, TOKEN, Upstream, program_with};
use super::postgres::{new_database, server};

/// A gateway over a database with an outbox.
struct Office {
    database: String,
    gateway: Gateway,
    _upstream: Upstream,
}

impl Office {
    fn open() -> Self {
        let database = new_database();
        let upstream = Upstream::start();
        let gateway = Gateway::start_on(&server().url(&database), &upstream, "");
        Self { database, gateway, _upstream: upstream }
    }

    fn sql(&self, sql: &str) -> String {
        server().sql(&self.database, sql)
    }

    /// Stages an effect, changes it as told, and gives its number.
    fn effect(&self, arguments: &str, change: &str) -> i64 {
        let id = self.sql(&format!("SELECT id FROM retrysafe.stage({arguments})")).parse().unwrap();
        if !change.is_empty() {
            self.sql(&format!("UPDATE retrysafe.effect SET {change} WHERE id = {id}"));
        }
        id
    }

    fn dead(&self) -> i64 {
        self.effect("'mail', 'x'", DEAD)
    }

    fn get(&self, path: &str) -> Value {
        let told = self.gateway.ask("GET", &format!("/api/v1/outbox{path}"), "");
        assert_eq!(told.status(), 200, "{path}: {}", told.text());
        told.json()
    }

    /// The status, and the document or the code.
    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let told = self.gateway.ask("POST", &format!("/api/v1/outbox{path}"), &body.to_string());
        (told.status(), told.json())
    }

    /// Runs a command: exit code, standard output, standard error.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let admin = format!("http://{}", self.gateway.admin);
        let all = [arguments, &["--admin", &admin]].concat();
        let variables = [("RETRYSAFE_ADMIN_TOKEN", TOKEN), ("USER", "alice")];
        program_with(&all, &self.gateway.folder, &variables)
    }

    /// The same, where it must end well.
    fn told(&self, arguments: &[&str]) -> String {
        let (code, out, err) = self.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {out}{err}");
        out
    }
}

const DEAD: &str = "state = 4, fence = 1, failures = 20, last_error = 'connection refused'";
const UNKNOWN: &str = "state = 3, fence = 4, marked_by = 4, last_error = 'reset by peer'";

#[test]
fn every_action_over_http_does_what_it_says_and_is_audited() {
    let office = Office::open();
    let why = json!({"reason": "the receiver is back", "who": "alice"});
    let [first, second] = [office.dead(), office.dead()];
    let unknown = office.effect("'mail', 'hello', lane => 'l', name => 'ride 7'", UNKNOWN);
    let next = office.effect("'mail', 'next', lane => 'l'", "");

    // What is there.
    let ids = |page: &Value| -> Vec<i64> {
        page["effects"].as_array().unwrap().iter().map(|it| it["id"].as_i64().unwrap()).collect()
    };
    assert_eq!(ids(&office.get("")), [next, unknown, second, first]);
    assert_eq!(ids(&office.get("?state=dead&kind=mail&error=refused")), [second, first]);
    assert_eq!(ids(&office.get("?lane=l&state=waiting")), [next]);
    let page = office.get("?limit=3");
    let rest = office.get(&format!("?limit=3&cursor={}", page["cursor"]));
    assert_eq!((ids(&page).len(), ids(&rest), rest["cursor"].is_null()), (3, vec![first], true));
    let shown = office.get(&format!("/{unknown}"));
    assert_eq!((&shown["state"], &shown["name"]), (&json!("unknown"), &json!("ride 7")));
    assert_eq!((&shown["payload_head"], &shown["may"]), (&json!("hello"), &json!(["resolve"])));
    assert_eq!((&shown["was_sent"], &shown["resend_until"]), (&json!(true), &Value::Null));
    assert_eq!(office.get(&format!("/{next}"))["waits_for"], json!(unknown));

    // What is decided.
    let (status, told) = office.post(&format!("/{first}/retry"), &why);
    assert_eq!((status, &told["state"], &told["failures"]), (200, &json!("ready"), &json!(0)));
    assert_eq!(told["decisions"][0]["who"], "admin, says alice");
    let (status, told) = office.post(&format!("/{first}/retry"), &why);
    assert_eq!((status, &told["code"]), (409, &json!("wrong_state")));
    assert_eq!(office.post(&format!("/{first}/cancel"), &why).1["state"], "cancelled");
    let (status, told) = office.post(&format!("/{unknown}/cancel"), &why);
    assert_eq!((status, &told["code"]), (409, &json!("wrong_state")));
    let verdict = |outcome: &str, more: Value| {
        let mut verdict = why.clone();
        verdict["outcome"] = outcome.into();
        for (name, value) in more.as_object().unwrap() {
            verdict[name] = value.clone();
        }
        office.post(&format!("/{unknown}/resolve"), &verdict)
    };
    let (status, told) = verdict("not_found", json!({"settle_time": "1h"}));
    assert_eq!((status, &told["code"]), (409, &json!("too_early")));
    assert_eq!(verdict("delivered", json!({"fence": 3})).0, 409, "another delivery");
    let (status, told) = verdict("unwanted", json!({"fence": 4}));
    assert_eq!((status, &told["state"]), (200, &json!("cancelled")));
    assert_eq!(office.get(&format!("/{next}"))["state"], "ready", "its lane goes on");
    let (status, told) = office.post("/kinds/mail/pause", &why);
    assert_eq!((status, &told["changed"]), (200, &json!(true)));
    let stats = office.get("/stats");
    assert_eq!((&stats["kinds"][0]["ready"], &stats["kinds"][0]["dead"]), (&json!(1), &json!(1)));
    assert_eq!(stats["kinds"][0]["pause_reason"], "the receiver is back");
    assert_eq!(office.post("/kinds/mail/resume", &why).1["changed"], true);
    let (status, told) = office.post("/dead/requeue", &json!({"kind": "mail", "dry_run": true}));
    assert_eq!((status, &told["changed"], &told["refused"]), (200, &json!(1), &json!(0)));
    let mut purge = why.clone();
    purge["error"] = "refused".into();
    assert_eq!(office.post("/dead/purge", &purge).1["changed"], 1);
    office.gateway.wait_for_log("outbox_resolve");
    let counted = "retrysafe_admin_actions_total{verb=\"outbox_retry\",result=\"refused\"} 1";
    assert!(office.gateway.metrics().contains(counted), "{}", office.gateway.metrics());

    // Nonsense is refused.
    for (path, body) in [
        (format!("/{second}/retry"), json!({})),
        (format!("/{second}/retry"), json!({"reason": " "})),
        (format!("/{second}/resolve"), json!({"outcome": "maybe", "reason": "x"})),
        (format!("/{second}/resolve"), json!({"outcome": "not_found", "reason": "x"})),
        ("/dead/purge".into(), json!({"reason": "all of them"})),
        ("/dead/requeue".into(), json!({"kind": "mail"})),
        ("/dead/requeue".into(), json!({"kind": "mail", "reason": "x", "per_second": 0})),
        ("/kinds/mail/pause".into(), json!({})),
    ] {
        assert_eq!(office.post(&path, &body).0, 400, "{path} {body}");
    }
    for path in ["?state=odd", "?nope=1", "?older_than=soon"] {
        let told = office.gateway.ask("GET", &format!("/api/v1/outbox{path}"), "");
        assert_eq!(told.status(), 400, "{path}");
    }
    for path in ["/999", "/zz"] {
        let told = office.gateway.ask("GET", &format!("/api/v1/outbox{path}"), "");
        assert_eq!(told.status(), 404, "{path}");
    }
}

#[test]
fn every_command_does_what_it_says() {
    let office = Office::open();
    let id = office.dead();
    let id = id.to_string();
    let shown = office.told(&["outbox", "show", &id]);
    assert!(shown.contains("connection refused") && shown.contains("retry, cancel"), "{shown}");
    let told = office.told(&["outbox", "retry", &id, "--reason", "it is back"]);
    assert_eq!(told, "retry: 1 done, 0 refused\n");
    let (code, _, err) = office.run(&["outbox", "retry", &id, "--reason", "it is back"]);
    assert!(code == 1 && err.contains("409"), "{err}");
    let shown = office.told(&["outbox", "show", &id]);
    assert!(shown.contains("alice") && shown.contains("it is back"), "{shown}");
    assert!(office.told(&["outbox", "pause", "mail", "--reason", "x"]).contains("is paused"));
    let stats = office.told(&["outbox", "stats"]);
    assert!(stats.contains("PAUSED") && stats.contains("mail"), "{stats}");
    assert!(office.told(&["outbox", "resume", "mail", "--reason", "x"]).contains("goes on"));
    office.told(&["outbox", "cancel", &id, "--reason", "x"]);
    assert_eq!(office.told(&["outbox", "list"]), "no effects\n");
    assert!(office.told(&["outbox", "list", "--state", "cancelled"]).contains(&id));

    let unknown = office.effect("'mail'", UNKNOWN).to_string();
    let resolve = ["outbox", "resolve", &unknown, "--outcome", "delivered", "--reference", "m_1"];
    let told = office.told(&[&resolve[..], &["--reason", "seen in its list"]].concat());
    assert_eq!(told, format!("effect {unknown} is delivered now\n"));
    let shown: Value =
        serde_json::from_str(&office.told(&["outbox", "show", &unknown, "--json"])).unwrap();
    assert_eq!((&shown["reference"], &shown["may"]), (&json!("m_1"), &json!([])));

    for _ in 0..3 {
        office.dead();
    }
    let listed = office.told(&["dlq", "list", "--kind", "mail", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["effects"].as_array().unwrap().len(), 3);
    assert!(
        office.told(&["dlq", "show", &listed["effects"][0]["id"].to_string()]).contains("dead")
    );
    // Many only by a filter, and only to a yes.
    for verb in ["requeue", "purge"] {
        let (code, _, err) = office.run(&["dlq", verb, "--reason", "x", "--yes"]);
        assert!(code == 1 && err.contains("by kind, by error or by age"), "{err}");
        let (code, _, err) = office.run(&["dlq", verb, "--kind", "mail", "--reason", "x"]);
        assert!(code == 1 && err.contains("3 dead effects") && err.contains("--yes"), "{err}");
        let told = office.told(&["dlq", verb, "--kind", "mail", "--dry-run"]);
        assert_eq!(told, format!("{verb}: 3 would be done, 0 refused\n"));
    }
    assert_eq!(office.sql("SELECT count(*) FROM retrysafe.effect WHERE state = 4"), "3");
    let requeue = ["dlq", "requeue", "--kind", "mail", "--rate", "2", "--reason", "x", "--yes"];
    assert_eq!(office.told(&requeue), "requeue: 3 done, 0 refused\n");
    // Half a second apart, and as long as it took to make them so.
    let apart = "SELECT max(at) - min(at) >= 1000 FROM retrysafe.effect WHERE state = 1";
    assert_eq!(office.sql(apart), "t");
    office.sql(&format!("UPDATE retrysafe.effect SET {DEAD}"));
    let purge = ["dlq", "purge", "--error", "refused", "--reason", "x", "--yes"];
    assert_eq!(office.told(&purge), "purge: 3 done, 0 refused\n");
}

#[test]
fn tables_fit_a_terminal() {
    let office = Office::open();
    let long = "x".repeat(120);
    let arguments = format!("'{long}', lane => '{long}', name => '{long}'");
    office.effect(&arguments, &format!("{DEAD} || '{long}'"));
    office.sql(&format!(
        "INSERT INTO retrysafe.effect_pause VALUES ('{long}', 0, '{long}', 'alice')"
    ));
    for command in [&["outbox", "list"][..], &["dlq", "list"], &["outbox", "stats"]] {
        let shown = office.told(command);
        assert!(shown.lines().count() == 2, "{shown}");
        let wide = shown.lines().map(|line| line.chars().count()).max().unwrap();
        assert!((60..=100).contains(&wide), "{wide}: {shown}");
    }
}

#[test]
fn a_store_without_an_outbox_says_so() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let told = gateway.ask("GET", "/api/v1/outbox", "");
    assert_eq!((told.status(), told.code().as_str()), (501, "no_outbox"));
    let admin = format!("http://{}", gateway.admin);
    for command in [
        &["outbox", "list"][..],
        &["outbox", "stats"],
        &["outbox", "retry", "1", "--reason", "x"],
        &["dlq", "purge", "--kind", "mail", "--dry-run"],
    ] {
        let all = [command, &["--admin", &admin]].concat();
        let (code, out, err) =
            program_with(&all, &gateway.folder, &[("RETRYSAFE_ADMIN_TOKEN", TOKEN)]);
        let told = format!("{out}{err}");
        assert!(code == 1 && told.contains("501") && told.contains("postgres://"), "{told}");
    }
}

/// What a request has staged is shown beside it, and what another request has staged, or nobody's, is not.
#[test]
fn a_request_is_shown_with_the_effects_that_it_has_staged() {
    let office = Office::open();
    let request = |key: &str, name: &str, outcome: &str| {
        office.sql(&format!(
            "DO $$ DECLARE b retrysafe.begun; BEGIN
                b := retrysafe.begin_in(retrysafe.scope('tenant', 'acme'), '{key}', retrysafe.fingerprint('POST', '/ride', ''));
                PERFORM retrysafe.stage('mail', 'x', name => '{name}');
                PERFORM retrysafe.settle_in(b.id, b.fence, '{outcome}');
            END $$"
        ));
        office.sql(&format!(
            "SELECT encode(retrysafe.record_id(retrysafe.scope('tenant', 'acme'), '{key}'), 'hex')"
        ))
    };
    let record = request("k", "receipt of k", "unknown");
    let other = request("other", "receipt of other", "unknown");
    office.effect("'mail', 'x', name => 'of nobody'", "");
    let shown =
        |record: &str| office.gateway.ask("GET", &format!("/api/v1/keys/{record}"), "").json();
    let effects = |record: &str| shown(record)["effects"].as_array().unwrap().clone();
    let [staged] = &effects(&record)[..] else { panic!("{}", shown(&record)) };
    assert_eq!((&staged["name"], &staged["state"]), (&json!("receipt of k"), &json!("ready")));
    assert_eq!(staged["record"], json!(record));
    assert_eq!(effects(&other)[0]["name"], json!("receipt of other"));
    let id = staged["id"].as_i64().unwrap();
    office.sql(&format!("UPDATE retrysafe.effect SET {UNKNOWN} WHERE id = {id}"));
    let screen = office.told(&["unknown", "show", &record[..12]]);
    for part in ["receipt of k", "reset by peer", &format!("retrysafe outbox show {id}")] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    assert!(!screen.contains("receipt of other") && !screen.contains("of nobody"), "{screen}");
    // It stays there when it is over.
    let verdict = json!({"outcome": "delivered", "reason": "seen", "fence": 4});
    assert_eq!(office.post(&format!("/{id}/resolve"), &verdict).0, 200);
    assert_eq!(effects(&record)[0]["state"], json!("delivered"));
}
