//! Do the pages about the store, the configuration and ledgers say what holds, and nothing that must stay secret?

use serde_json::json;

use super::dashboard::Reader;
use super::kit::{Gate, Gateway, Step, TOKEN, Upstream, key, program, reply, request, until};

#[test]
fn what_the_former_process_left_running_stands_on_the_first_page_and_at_the_store() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    let gate = Gate::default();
    upstream.script("/pay", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let asked = request("POST", "/pay", &[("Idempotency-Key", &key())], b"{}");
    let mut caller = std::net::TcpStream::connect(gateway.address).unwrap();
    std::io::Write::write_all(&mut caller, &asked).unwrap();
    upstream.wait("/pay", 1);
    gateway.kill();
    gate.open();
    gateway.restart();
    let reader = Reader::logged_in(&gateway, TOKEN);
    let first = reader.get("/").text();
    assert!(first.contains("had left 1 running, and 1 were"), "{first}");
    let store = reader.get("/store").text();
    for part in
        ["<dd>disk</dd>", "every answer is flushed", "in doubt", "deleted every 1 min", "<dd>1:"]
    {
        assert!(store.contains(part), "{part}: {store}");
    }
    let told = gateway.ask("GET", "/api/v1/store", "").json();
    assert_eq!(
        (&told["kind"], &told["at_start"]["left_running"]),
        (&"disk".into(), &1.into()),
        "{told}"
    );
    assert_eq!((&told["records"], &told["unknown"]), (&1.into(), &1.into()), "{told}");
}

#[test]
fn the_settings_that_hold_are_shown_without_secrets_and_a_reload_changes_them() {
    let upstream = Upstream::start();
    let tables = |ttl: &str| {
        format!(
            "[admin.tokens.nightwatch]\nrole = \"read\"\ntoken = \"token-of-the-nightwatch\"\n\
             [jwt]\nissuer = \"<b>issuer\"\nalgorithms = [\"HS256\"]\nsecret = \"planted-jwt-secret-of-some-length\"\n\
             [reconcile]\nurl = \"/lookup/{{id}}?token=planted-lookup-query\"\nheaders = {{ Authorization = \"planted-lookup-header\" }}\n\
             [[route]]\npath = \"/payments\"\nttl = \"{ttl}\"\nmethods = [\"POST\"]\n"
        )
    };
    let gateway = Gateway::start(&upstream, &tables("7d"));
    let reader = Reader::logged_in(&gateway, "token-of-the-nightwatch");
    let shown = reader.get("/settings").text();
    for part in
        ["&#60;b&#62;issuer", "\"Kept for\">7d<", "everything else", "retrysafe.toml", "/payments"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let told = gateway.ask("GET", "/api/v1/config", "").text();
    for secret in [TOKEN, "token-of-the-nightwatch", "planted-jwt", "planted-lookup"] {
        assert!(!shown.contains(secret) && !told.contains(secret), "{secret}");
    }
    gateway.configure(&tables("9d"));
    gateway.signal("HUP");
    gateway.wait_for_log("configuration reloaded");
    let shown = reader.get("/settings").text();
    // The whole cell: a bare "7d" also stands in some random folder names, commits and tokens.
    let kept_for = |ttl: &str| shown.contains(&format!("data-label=\"Kept for\">{ttl}<"));
    assert!(kept_for("9d") && !kept_for("7d"), "{shown}");
    assert!(!shown.contains("Waits for a restart"), "{shown}");
}

/// After a reload the page showed a level of the log that no line was written by.
#[test]
fn what_waits_for_a_restart_is_told_and_what_holds_is_shown() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "[log]\nlevel = \"info\"\n");
    let reader = Reader::logged_in(&gateway, TOKEN);
    gateway.configure(
        "drain_max = \"7s\"\n---\n[log]\nlevel = \"info,retrysafe=debug\"\nrequests = false\n",
    );
    gateway.signal("HUP");
    gateway.wait_for_log("configuration reloaded");
    let told = gateway.ask("GET", "/api/v1/config", "").json();
    assert_eq!(
        told["waits_for_restart"],
        json!([
            {"setting": "log.level", "holds": "info", "after_restart": "info,retrysafe=debug"},
            {"setting": "log.requests", "holds": true, "after_restart": false},
        ])
    );
    assert_eq!(
        (&told["settings"]["log"]["level"], &told["settings"]["drain_max"]),
        (&json!("info"), &json!("7s"))
    );
    assert!(told["toml"].as_str().unwrap().contains("level = \"info\""), "{told}");
    let shown = reader.get("/settings").text();
    for part in ["Waits for a restart", "log.level", "retrysafe=debug", "wait for a restart"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(gateway.log().contains("holds after a restart"), "{}", gateway.log());
    // The lines of requests are written on, as the page says.
    assert_eq!(gateway.post("/pay", &key(), "{}").status(), 201);
    gateway.wait_for_log("/pay");
    // What was changed back waits no more.
    gateway.configure("[log]\nlevel = \"info\"\n");
    gateway.signal("HUP");
    until("the second reload is taken", || {
        gateway.ask("GET", "/api/v1/config", "").json()["waits_for_restart"] == json!([])
    });
}

/// A stop waits by the configuration that holds, not by the one of the start.
#[test]
fn a_stop_after_a_reload_waits_as_the_new_configuration_says() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "drain_max = \"10m\"\n---\n");
    let gate = Gate::default();
    upstream.script("/pay", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let asked = request("POST", "/pay", &[("Idempotency-Key", &key())], b"{}");
    let mut caller = std::net::TcpStream::connect(gateway.address).unwrap();
    std::io::Write::write_all(&mut caller, &asked).unwrap();
    upstream.wait("/pay", 1);
    gateway.configure("drain_max = \"100ms\"\n---\n");
    gateway.signal("HUP");
    gateway.wait_for_log("configuration reloaded");
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(1), "{}", gateway.log());
    gate.open();
}

#[test]
fn the_last_comparison_of_ledgers_is_shown_as_it_was_written() {
    let upstream = Upstream::start();
    let gateway = Gateway::start_as(&upstream, "", |gateway| {
        let folder = gateway.folder.display();
        gateway.toml = format!(
            "ledger_reports = [\"{folder}/day.json\", \"{folder}/never.json\", \"{folder}/other.json\"]\n"
        );
    });
    let reader = Reader::logged_in(&gateway, TOKEN);
    assert_eq!(reader.get("/ledger").text().matches("not there yet").count(), 3);
    let write = |name: &str, text: &str| std::fs::write(gateway.folder.join(name), text).unwrap();
    // Something else that looks like a report hides no other.
    write("other.json", "{\"equal\":\"yes\",\"compared_at\":\"today\"}");
    write("ours.csv", "id,amount\n<b>a</b>,1.50\nb,2\n");
    write("theirs.csv", "id,amount\nb,2.25\nc,3\n");
    let compare =
        ["reconcile", "compare", "--ours", "ours.csv", "--theirs", "theirs.csv", "--key", "id"];
    let more = ["--amount", "amount", "--name", "the <i>day</i>", "--report-file", "day.json"];
    let (code, out, err) = program(&[&compare[..], &more].concat(), &gateway.folder);
    assert_eq!(code, 3, "{out}{err}");
    let shown = reader.get("/ledger").text();
    for part in [
        "the &#60;i&#62;day&#60;/i&#62;",
        "&#60;b&#62;a",
        "missing here",
        "2.25",
        "not there yet",
        "not a report",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("<i>") && !shown.contains("<b>a"), "{shown}");
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(gateway.folder.join("day.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "keys and amounts are for its owner");
    let (code, _, err) =
        program(&[&compare[..], &["--report-file", "absent/day.json"]].concat(), &gateway.folder);
    assert!(code == 1 && err.contains("--report-file absent/day.json"), "{err}");
}

#[test]
fn rates_and_lengths_are_told_without_scripts() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let reader = Reader::logged_in(&gateway, TOKEN);
    reader.get("/");
    for _ in 0..3 {
        assert_eq!(gateway.post("/pay", &key(), "{}").status(), 201);
    }
    until("the first page says how many in a second, and how long", || {
        let first = reader.get("/").text();
        let rate =
            first.split("data-rate=\"executed\">").nth(1).and_then(|rest| rest.split('<').next());
        let is_rate = rate.and_then(|rate| rate.parse::<f64>().ok()).is_some_and(|rate| rate > 0.0);
        is_rate && first.contains("half: at most")
    });
}
