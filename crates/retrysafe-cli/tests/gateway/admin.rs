//! What can operators see and do over HTTP? Every action and every metric, once.

use serde_json::json;

use super::kit::{Gate, Gateway, Step, Upstream, key, raw, reply, request, send};

const CONFIG: &str = r#"
[upkeep]
sweep_every = "50ms"
reap_every = "50ms"

[[route]]
path = "/late"
methods = ["POST"]
lease = "200ms"
lease_max = "300ms"

[[route]]
path = "/watch"
methods = ["POST"]
mode = "observe"

[[route]]
path = "/wait"
methods = ["POST"]
wait_max = "10s"
"#;

#[test]
fn every_action_does_what_it_says_and_is_audited() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    upstream.script("/lost", vec![Step::Drop, reply(201, "{\"again\":1}")]);
    let (given, fact, released) = (key(), key(), key());
    for (key, path) in [(&given, "/lost"), (&fact, "/lost2"), (&released, "/lost3")] {
        upstream.script(path, vec![Step::Drop, reply(201, "{\"again\":1}")]);
        assert_eq!(gateway.post(path, key, "{}").status(), 502);
    }
    let act = |path: &str, verb: &str, body: serde_json::Value| {
        let id = gateway.unknown_at(path)["id"].as_str().unwrap().to_owned();
        (id.clone(), gateway.ask("POST", &format!("/api/v1/keys/{id}/{verb}"), &body.to_string()))
    };

    // An answer that an operator gives is replayed from then on.
    let response = json!({"status": 201, "headers": [["X-By", "hand"]], "body_base64": "AAEC"});
    let body =
        json!({"outcome": "completed", "reason": "seen in the ledger", "response": response});
    let (id, answer) = act("/lost", "resolve", body);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let replay = gateway.post("/lost", &given, "{}");
    assert_eq!(
        (replay.status(), &replay.body[..], replay.header("x-by")),
        (201, &[0, 1, 2][..], Some("hand"))
    );
    let flipped = json!({"outcome": "failed_retryable", "reason": "no"}).to_string();
    let again = gateway.ask("POST", &format!("/api/v1/keys/{id}/resolve"), &flipped);
    assert_eq!((again.status(), again.code().as_str()), (409, "already_decided"));

    // The mere fact answers 410, and releasing lets it run again.
    act("/lost2", "resolve", json!({"outcome": "completed", "reason": "seen"}));
    assert_eq!(gateway.post("/lost2", &fact, "{}").code(), "response_not_stored");
    assert_eq!(act("/lost3", "release", json!({"reason": "never arrived"})).1.status(), 200);
    assert_eq!(gateway.post("/lost3", &released, "{}").text(), "{\"again\":1}");

    // The timeline tells it all.
    let shown = gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").json();
    let told: Vec<_> =
        shown["timeline"].as_array().unwrap().iter().map(|m| m["what"].clone()).collect();
    assert_eq!(told, ["began", "settled", "resolved"]);
    assert_eq!(shown["timeline"][2]["reason"], "seen in the ledger");

    // Expire ends a settled key, and refuses others.
    let expire =
        |id: &str, body: &str| gateway.ask("POST", &format!("/api/v1/keys/{id}/expire"), body);
    assert_eq!(expire(&id, "{\"reason\":\"asked to\"}").status(), 200);
    assert_eq!(gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").status(), 404);
    assert!(!gateway.post("/lost", &given, "{}").is_replay(), "it runs anew");
    upstream.script("/lost4", vec![Step::Drop]);
    gateway.post("/lost4", &key(), "{}");
    let unknown = gateway.unknown_at("/lost4")["id"].as_str().unwrap().to_owned();
    assert_eq!(expire(&unknown, "{\"reason\":\"x\"}").status(), 409);

    // Nonsense is refused.
    for (path, body) in [
        (format!("/api/v1/keys/{unknown}/release"), "{}"),
        (format!("/api/v1/keys/{unknown}/release"), "{\"reason\":\"  \"}"),
        (format!("/api/v1/keys/{unknown}/release"), "not json"),
        (format!("/api/v1/keys/{unknown}/resolve"), "{\"outcome\":\"maybe\",\"reason\":\"x\"}"),
        (
            format!("/api/v1/keys/{unknown}/resolve"),
            "{\"outcome\":\"completed\",\"reason\":\"x\",\"response\":{\"status\":99}}",
        ),
        ("/api/v1/keys/find".into(), "{\"key\":\"\"}"),
    ] {
        assert_eq!(gateway.ask("POST", &path, body).status(), 400, "{path} {body}");
    }
    assert_eq!(gateway.ask("GET", "/api/v1/keys?state=odd", "").status(), 400);
    assert_eq!(gateway.ask("GET", "/api/v1/keys?nope=1", "").status(), 400);
    assert_eq!(gateway.ask("GET", "/api/v1/keys/zz", "").status(), 404);
    assert_eq!(gateway.ask("GET", "/api/v1/nowhere", "").status(), 404);
    gateway.wait_for_log("seen in the ledger");
}

#[test]
fn keys_are_listed_found_filtered_and_paged() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "[defaults]\nscope = [\"header:x-tenant\"]\n");
    let wanted = key();
    for tenant in ["acme", "bolt"] {
        gateway.post_with("/a", &wanted, "{}", &[("X-Tenant", tenant)]);
        for _ in 0..6 {
            gateway.post_with("/b", &key(), "{}", &[("X-Tenant", tenant)]);
        }
    }
    let ask = |query: &str| gateway.ask("GET", &format!("/api/v1/keys?{query}"), "").json();
    let count = |query: &str| ask(query)["keys"].as_array().unwrap().len();
    assert_eq!(count("limit=1000"), 14);
    assert_eq!(count("scope=x-tenant%3Dacme"), 7);
    assert_eq!(count("state=unknown"), 0);
    assert_eq!(count("older_than=1h"), 0);
    assert_eq!(count("older_than=0s"), 14);
    assert_eq!(count("route=%2F%7B%2Arest%7D"), 14);
    let hex = ask("limit=1")["keys"][0]["scope_hex"].as_str().unwrap().to_owned();
    assert_eq!(count(&format!("scope=hex%3A{hex}")), 7);

    let mut ids = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = ask(&format!("limit=4{cursor}"));
        ids.extend(page["keys"].as_array().unwrap().iter().map(|key| key["id"].to_string()));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 14);

    let body = json!({"key": wanted}).to_string();
    let found = gateway.ask("POST", "/api/v1/keys/find", &body).json();
    assert_eq!(found["keys"].as_array().unwrap().len(), 2);
    let stats = gateway.ask("GET", "/api/v1/stats?top=1", "").json();
    assert_eq!((&stats["all"]["records"], &stats["scopes_total"]), (&json!(14), &json!(2)));
    assert_eq!(stats["scopes"].as_array().unwrap().len(), 1);
    assert_eq!(stats["routes"][0]["completed"], 14);
}

#[test]
fn the_interface_needs_its_token_and_describes_itself() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let ask = |path: &str, token: Option<&str>| {
        let token = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = token.iter().map(|token| ("Authorization", token.as_str())).collect();
        send(gateway.admin, &request("GET", path, &headers, b"")).status()
    };
    for path in ["/api/v1/keys", "/api/v1/stats", "/api/v1/keys/x", "/api/v1/nowhere"] {
        assert_eq!(ask(path, None), 401, "{path}");
        assert_eq!(ask(path, Some("wrong")), 401, "{path}");
        assert_ne!(ask(path, Some(super::kit::TOKEN)), 401, "{path}");
    }
    for path in ["/livez", "/healthz", "/readyz", "/metrics", "/api/v1/openapi.json"] {
        assert_eq!(ask(path, None), 200, "{path}");
    }
    let served = send(gateway.admin, &request("GET", "/api/v1/openapi.json", &[], b"")).json();
    let kept = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json"));
    let kept: serde_json::Value = serde_json::from_slice(&kept.unwrap()).unwrap();
    assert_eq!(served, kept, "docs/openapi.json is what is served");
    for path in ["/api/v1/keys", "/api/v1/keys/{id}/resolve", "/api/v1/stats"] {
        assert!(served["paths"][path].is_object(), "{path}");
    }
}

#[test]
fn every_metric_is_counted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "{CONFIG}\n[reconcile]\nurl = \"/lookup/{{id}}\"\nevery = \"50ms\"\nschedule = [\"0s\"]\n"
        ),
    );
    // Created, replay, misuse, refused, released and tried again, not replayable.
    let one = key();
    gateway.post("/m", &one, "{\"a\":1}");
    gateway.post("/m", &one, "{\"a\":1}");
    gateway.post("/m", &one, "{\"a\":2}");
    gateway.post("/m", "a b", "{}");
    upstream.script("/e", vec![reply(500, "{}"), reply(201, "{}")]);
    let two = key();
    gateway.post("/e", &two, "{}");
    gateway.post("/e", &two, "{}");
    upstream.script("/big", vec![reply(201, &"x".repeat(2 << 20))]);
    let three = key();
    gateway.post("/big", &three, "{}");
    gateway.post("/big", &three, "{}");
    // Observed, refused at the door, unreachable.
    let four = key();
    gateway.post("/watch", &four, "{}");
    gateway.post("/watch", &four, "{}");
    raw(gateway.address, b"post / HTTP/1.1\r\nHost: a\r\n\r\n", false);
    // A duplicate waits; a handler outlives its lease, is overruled, and contradicts.
    let gate = Gate::default();
    upstream.script("/wait", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let (five, address) = (key(), gateway.address);
    let asked = request("POST", "/wait", &[("Idempotency-Key", &five)], b"{}");
    let running: Vec<_> = (0..2)
        .map(|_| {
            let asked = asked.clone();
            std::thread::spawn(move || send(address, &asked))
        })
        .collect();
    upstream.wait("/wait", 1);
    wait_for(&gateway, "retrysafe_waiting 1");
    wait_for(&gateway, "retrysafe_executing 1");
    gate.open();
    for thread in running {
        assert_eq!(thread.join().unwrap().status(), 201);
    }
    // The upstream knows nothing of this one, so the reconciler cannot decide and gives up.
    let gate = Gate::default();
    upstream.script("/late", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let six = key();
    let asked = request("POST", "/late", &[("Idempotency-Key", &six)], b"{}");
    let running = std::thread::spawn(move || raw(address, &asked, false));
    upstream.wait("/late", 1);
    wait_for(&gateway, "retrysafe_dead_lettered 1");
    let id = gateway.unknown_at("/late")["id"].as_str().unwrap().to_owned();
    gateway.ask("POST", &format!("/api/v1/keys/{id}/release"), "{\"reason\":\"x\"}");
    gate.open();
    running.join().unwrap();
    wait_for(&gateway, "retrysafe_contradictions_total{route=\"/late\"} 1");
    // One that is decided by its lookup.
    upstream.script("/gone", vec![Step::Drop]);
    gateway.post("/gone", &key(), "{}");
    gateway.ask("POST", &format!("/api/v1/keys/{id}/expire"), "{\"reason\":\"x\"}");
    wait_for_not(&gateway, "retrysafe_reaped_total 0");

    let open = std::net::TcpStream::connect(gateway.address).unwrap();
    wait_for(&gateway, "retrysafe_connections 1");
    let metrics = gateway.metrics();
    drop(open);
    for line in [
        "retrysafe_begin_total{route=\"/{*rest}\",answer=\"created\"}",
        "retrysafe_begin_total{route=\"/{*rest}\",answer=\"replay\"}",
        "retrysafe_begin_total{route=\"/{*rest}\",answer=\"key_misuse\"}",
        "retrysafe_begin_total{route=\"/{*rest}\",answer=\"failed_retry\"}",
        "retrysafe_begin_total{route=\"/{*rest}\",answer=\"not_replayable\"}",
        "retrysafe_refusals_total{route=\"/{*rest}\",code=\"idempotency_key_invalid\"}",
        "retrysafe_settled_total{route=\"/{*rest}\",standing=\"completed\"}",
        "retrysafe_settled_total{route=\"/{*rest}\",standing=\"failed_retryable\"}",
        "retrysafe_settled_total{route=\"/{*rest}\",standing=\"unknown\"}",
        "retrysafe_late_settles_total{route=\"/late\"}",
        "retrysafe_store_seconds_count{operation=\"insert\"",
        "retrysafe_execute_seconds_count{route=\"/{*rest}\"",
        "retrysafe_swept_total",
        "retrysafe_reaped_total",
        "retrysafe_reconcile_scheduled_total",
        "retrysafe_reconcile_failed_total",
        "retrysafe_reconcile_resolved_total{standing=\"failed_retryable\",judge=\"operator\"}",
        "retrysafe_observed_total{route=\"/watch\",finding=\"duplicate\"}",
        "retrysafe_requests_total{route=\"/{*rest}\",class=\"2xx\"}",
        "retrysafe_door_refusals_total{code=\"request_malformed\"}",
        "retrysafe_connections",
        "retrysafe_upstream_failures_total{reached=\"lost\"}",
        "retrysafe_admin_actions_total{verb=\"release\",result=\"done\"}",
        "retrysafe_config_last_reload_successful",
        "retrysafe_build_info{version=",
    ] {
        let value = metrics.lines().find(|shown| shown.starts_with(line));
        let value = value.unwrap_or_else(|| panic!("{line} is missing in {metrics}"));
        assert!(!value.ends_with(" 0"), "{value}");
    }
    for metric in ["retrysafe_breaker_open", "retrysafe_sweep_failures_total"] {
        assert!(metrics.contains(&format!("{metric} 0")), "{metric}");
    }
}

fn wait_for(gateway: &Gateway, line: &str) {
    let end = std::time::Instant::now() + super::kit::PATIENCE;
    while !gateway.metrics().contains(line) {
        assert!(std::time::Instant::now() < end, "no {line} in {}", gateway.metrics());
    }
}

fn wait_for_not(gateway: &Gateway, line: &str) {
    let end = std::time::Instant::now() + super::kit::PATIENCE;
    while gateway.metrics().contains(line) {
        assert!(std::time::Instant::now() < end, "still {line} in {}", gateway.metrics());
    }
}
