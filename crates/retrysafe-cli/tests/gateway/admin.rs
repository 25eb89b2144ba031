//! What can operators see and do over HTTP? Every action, once.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use super::kit::{
    Gateway, PATIENCE, Step, TOKEN, Upstream, key, program, reply, request, send, until,
};

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
        let seen = gateway.unknown_at(path);
        let answer = gateway.decide(&seen, verb, &body.to_string());
        (seen["id"].as_str().unwrap().to_owned(), answer)
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
    let flipped = json!({"outcome": "failed_retryable", "reason": "no", "fence": 1}).to_string();
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
    let decided = &shown["timeline"][2];
    assert_eq!(decided["reason"], "seen in the ledger");
    assert_eq!(
        (&decided["operator"], &decided["evidence"]),
        (&json!("admin"), &json!("answer: given by the operator"))
    );

    // Expire ends a settled key, and refuses others.
    let expire =
        |id: &str, body: &str| gateway.ask("POST", &format!("/api/v1/keys/{id}/expire"), body);
    assert_eq!(expire(&id, "{\"reason\":\"asked to\"}").status(), 200);
    assert_eq!(gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").status(), 404);
    assert!(!gateway.post("/lost", &given, "{}").is_replay(), "it runs anew");
    // Of a record with one attempt nobody has to say which one is meant; of one with several they do.
    let twice = key();
    upstream.script("/lost4", vec![Step::Drop, Step::Drop]);
    gateway.post("/lost4", &twice, "{}");
    let once = gateway.unknown_at("/lost4")["id"].as_str().unwrap().to_owned();
    let release = format!("/api/v1/keys/{once}/release");
    assert_eq!(gateway.ask("POST", &release, "{\"reason\":\"one attempt\"}").status(), 200);
    gateway.post("/lost4", &twice, "{}");
    let unknown = gateway.unknown_at("/lost4")["id"].as_str().unwrap().to_owned();
    assert_eq!(expire(&unknown, "{\"reason\":\"x\"}").status(), 409);

    // Nonsense is refused.
    for (path, body) in [
        (format!("/api/v1/keys/{unknown}/release"), "{}"),
        (format!("/api/v1/keys/{unknown}/release"), "{\"reason\":\"  \"}"),
        (format!("/api/v1/keys/{unknown}/release"), "{\"reason\":\"no fence\"}"),
        (format!("/api/v1/keys/{unknown}/release"), "not json"),
        (format!("/api/v1/keys/{unknown}/resolve"), "{\"outcome\":\"maybe\",\"reason\":\"x\"}"),
        (
            format!("/api/v1/keys/{unknown}/resolve"),
            "{\"outcome\":\"completed\",\"reason\":\"x\",\"fence\":1,\"response\":{\"status\":99}}",
        ),
        (
            format!("/api/v1/keys/{unknown}/resolve"),
            "{\"outcome\":\"completed\",\"reason\":\"x\",\"fence\":1,\"response\":{\"status\":103}}",
        ),
        (
            format!("/api/v1/keys/{unknown}/resolve"),
            "{\"outcome\":\"completed\",\"reason\":\"x\",\"fence\":1,\"response\":{\"status\":204,\"body\":\"x\"}}",
        ),
        (
            format!("/api/v1/keys/{unknown}/resolve"),
            "{\"outcome\":\"completed\",\"reason\":\"x\",\"fence\":1,\"response\":{\"status\":304,\"body\":\"x\"}}",
        ),
        (format!("/api/v1/keys/{unknown}/release"), "{\"reason\":\"x\",\"fence\":-1}"),
        ("/api/v1/keys/find".into(), "{\"text\":\" \"}"),
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
fn a_decision_is_about_the_attempt_that_was_seen() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    upstream.script("/twice", vec![Step::Drop]);
    let key = key();
    gateway.post("/twice", &key, "{}");
    let first = gateway.unknown_at("/twice");
    let (id, seen) = (first["id"].as_str().unwrap().to_owned(), first["fence"].clone());
    let act = |verb: &str, mut body: serde_json::Value, fence: &serde_json::Value| {
        body["fence"] = fence.clone();
        gateway.ask("POST", &format!("/api/v1/keys/{id}/{verb}"), &body.to_string())
    };
    // Two operators look; one of them lets it run again, and its answer is lost again.
    assert_eq!(act("release", json!({"reason": "not in the ledger"}), &seen).status(), 200);
    gateway.post("/twice", &key, "{}");
    let second = gateway.unknown_at("/twice");
    // What the other one found out is about the first attempt.
    let completed = json!({"outcome": "completed", "reason": "it is in the ledger"});
    for (verb, body) in [("resolve", &completed), ("release", &json!({"reason": "x"}))] {
        let answer = act(verb, body.clone(), &seen);
        assert_eq!((answer.status(), answer.code().as_str()), (409, "another_attempt"), "{verb}");
        assert!(answer.text().contains(&second["fence"].to_string()), "{}", answer.text());
    }
    assert_eq!(gateway.unknown_at("/twice")["fence"], second["fence"], "nothing was changed");
    let admin = format!("http://{}", gateway.admin);
    let run = |arguments: &[&str]| {
        let rest = ["--reason", "x", "--admin", admin.as_str(), "--token", TOKEN];
        program(&[arguments, &rest[..]].concat(), &gateway.folder)
    };
    let (old, new) = (seen.to_string(), second["fence"].to_string());
    let (code, _, err) = run(&["keys", "release", &id, "--fence", &old]);
    assert!(code == 1 && err.contains("another attempt"), "{err}");
    let (code, _, err) = run(&["keys", "release", &id, &id, "--fence", &new]);
    assert!(code == 1 && err.contains("one id"), "{err}");
    let (code, out, err) =
        run(&["keys", "resolve", &id, "--outcome", "completed", "--fence", &new]);
    assert!(code == 0 && out.contains("1 done"), "{out}{err}");
    assert_eq!(act("resolve", completed, &second["fence"]).code(), "already_decided");
    assert_eq!(upstream.count("/twice"), 2);
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

    let body = json!({"text": wanted}).to_string();
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
        assert_ne!(ask(path, Some(TOKEN)), 401, "{path}");
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
fn what_is_no_cursor_of_ours_is_a_mistake_of_the_caller() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    for _ in 0..3 {
        gateway.post("/page", &key(), "{}");
    }
    for cursor in ["AAAA", "", "%21", &"A".repeat(43), "AAAAAAAAAAAAAAAA"] {
        let told = gateway.ask("GET", &format!("/api/v1/keys?cursor={cursor}"), "");
        assert_eq!((told.status(), told.code().as_str()), (400, "invalid"), "{cursor:?}");
        assert!(told.text().contains("`cursor`"), "{}", told.text());
    }
    let mut cursor = String::new();
    let mut seen = 0;
    loop {
        let page = gateway.ask("GET", &format!("/api/v1/keys?limit=1{cursor}"), "").json();
        seen += page["keys"].as_array().unwrap().len();
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, 3);
}

#[test]
fn the_admin_listener_waits_for_nobody() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "head_time_max = \"500ms\"\n---\n");
    // A head that does not end, and one that does not begin.
    for head in [&b"GET /livez HTTP/1.1\r\nHost: x\r\n"[..], b""] {
        let mut stream = TcpStream::connect(gateway.admin).unwrap();
        stream.write_all(head).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("it is closed in time");
    }
    // A body that is too large is refused before it is read.
    let large = vec![b'x'; 3 << 20];
    let told = send(gateway.admin, &request("POST", "/api/v1/keys/find", &[], &large));
    assert_eq!((told.status(), told.code().as_str()), (413, "request_too_large"));
}

#[test]
fn many_idle_connections_keep_no_health_check_out() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let idle: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(gateway.admin).unwrap()).collect();
    for _ in 0..50 {
        until("a health check is answered", || gateway.is_ready());
    }
    drop(idle);
}
