//! Does a header count under its own name, and under no other?

use super::kit::{Gateway, Message, Step, Upstream, key, request, send};

fn post(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> Message {
    let mut all = vec![("X-Api-Key", "tests"), ("Content-Type", "application/json")];
    all.extend_from_slice(headers);
    send(gateway.address, &request("POST", path, &all, b"{}"))
}

const NAMED: &str = "[[route]]\npath = \"/named/{*rest}\"\nmethods = [\"POST\"]\nkey = \"required\"\n\
                     key_header = \"X-Idempotency-Key\"\n";

#[test]
fn the_keys_header_can_be_named_per_route() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, NAMED);
    let (one, other) = (key(), key());
    let first = post(&gateway, "/named/x", &[("X-Idempotency-Key", &one)]);
    assert_eq!(first.status(), 201);
    let again = post(&gateway, "/named/x", &[("X-Idempotency-Key", &one)]);
    assert!(again.is_replay() && again.body == first.body);
    assert_eq!(upstream.seen_at("/named/x")[0].header("x-idempotency-key"), Some(one.as_str()));

    // The default name is a header like any other here.
    let missing = post(&gateway, "/named/x", &[("Idempotency-Key", &other)]);
    assert_eq!((missing.status(), missing.code().as_str()), (400, "idempotency_key_missing"));
    assert!(missing.text().contains("X-Idempotency-Key"), "{}", missing.text());
    let twice = [("X-Idempotency-Key", one.as_str()), ("X-Idempotency-Key", other.as_str())];
    let twice = post(&gateway, "/named/x", &twice);
    assert_eq!(twice.code(), "idempotency_key_invalid");
    assert!(twice.text().contains("X-Idempotency-Key"), "{}", twice.text());
    let high = post(&gateway, "/named/x", &[("X-Idempotency-Key", "caf\u{e9}")]);
    assert_eq!(high.code(), "idempotency_key_invalid", "judged by the key's own rules");
    for disguised in ["X_Idempotency_Key", "X-Idempotency_Key", "X.Idempotency.Key"] {
        let refused = post(&gateway, "/named/x", &[(disguised, &other)]);
        assert_eq!((refused.status(), refused.code().as_str()), (400, "request_malformed"));
    }
    let hop = [("X-Idempotency-Key", other.as_str()), ("Connection", "X-Idempotency-Key")];
    assert_eq!(post(&gateway, "/named/x", &hop).code(), "request_malformed");
    assert_eq!(upstream.count("/named/x"), 1);

    // Everywhere else the default name holds.
    assert_eq!(post(&gateway, "/other", &[("Idempotency-Key", &other)]).status(), 201);
    assert!(post(&gateway, "/other", &[("Idempotency-Key", &other)]).is_replay());
    gateway.wait_for_log("replayed");
}

#[test]
fn whoever_asks_is_told_the_keys_header() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, &format!("[defaults]\nkey_header = \"X-Once\"\n{NAMED}"));
    let published =
        send(gateway.address, &request("GET", "/.well-known/idempotency", &[], b"")).json();
    assert_eq!(published["header"], "X-Once");
    assert_eq!(published["routes"][0]["key_header"], "X-Idempotency-Key");
    assert_eq!(published["routes"][1]["key_header"], "X-Once");

    let one = key();
    assert_eq!(post(&gateway, "/named/x", &[("X-Idempotency-Key", &one)]).status(), 201);
    let status = |header: &str, query: &str| {
        let path = format!("/.well-known/idempotency/key{query}");
        let headers = [("X-Api-Key", "tests"), (header, one.as_str())];
        send(gateway.address, &request("GET", &path, &headers, b""))
    };
    let found = status("X-Idempotency-Key", "?path=/named/x&method=POST");
    assert_eq!(found.json()["state"], "completed", "{}", found.text());
    assert_eq!(status("X-Once", "").json()["state"], "completed", "one key of one caller");
    let unnamed = status("Idempotency-Key", "");
    assert_eq!(unnamed.code(), "idempotency_key_invalid");
    assert!(unnamed.text().contains("X-Once"), "{}", unnamed.text());
}

// Behind a server in the tradition of CGI, `X_Tenant` is `X-Tenant`: a caller could be one tenant to the gateway and another
// to the application.
#[test]
fn no_header_that_counts_passes_in_another_spelling() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "[fingerprint]\nheaders = [\"Api-Version\"]\n[defaults]\nscope = [\"header:X-Tenant\"]\nreplay_marker = \"X-Again\"\n",
    );
    let tenant = ("X-Tenant", "a");
    let ask = |method: &str, more: &[(&str, &str)]| {
        let key = key();
        let mut headers = vec![("X-Api-Key", "tests"), ("Idempotency-Key", key.as_str())];
        headers.extend_from_slice(more);
        send(gateway.address, &request(method, "/guarded", &headers, b"{}"))
    };
    for (name, value) in [
        ("X_Tenant", "b"),
        ("X.Tenant", "b"),
        ("X_Forwarded_For", "6.6.6.6"),
        ("X-Forwarded_Host", "evil.test"),
        ("X_Real_IP", "6.6.6.6"),
        ("Idempotent_Replayed", "true"),
        ("X_Again", "true"),
        ("Idempotency_Key", "k"),
        ("Idempotency_Expires", "now"),
        ("Retrysafe_Fence", "9"),
        ("Retrysafe_Id", "9"),
        ("Api_Version", "2"),
        ("Content_Length", "0"),
        ("Transfer_Encoding", "chunked"),
        ("Content_Type", "text/plain"),
        ("X_Request_Id", "r"),
        ("X_HTTP_Method_Override", "DELETE"),
    ] {
        // Covered (POST), covered with the real one beside it, and not covered (PUT).
        for (method, headers) in [
            ("POST", vec![(name, value)]),
            ("POST", vec![tenant, (name, value)]),
            ("PUT", vec![tenant, (name, value)]),
        ] {
            let refused = ask(method, &headers);
            assert_eq!(refused.status(), 400, "{method} {headers:?}: {}", refused.text());
        }
    }
    // What ends at this hop would be missing at the upstream.
    for method in ["POST", "PUT"] {
        assert_eq!(ask(method, &[tenant, ("Connection", "X-Tenant")]).status(), 400, "{method}");
    }
    assert_eq!(upstream.count("/guarded"), 0);
    assert_eq!(ask("POST", &[tenant, ("X_Their_Own", "1")]).status(), 201);
    assert_eq!(upstream.seen_at("/guarded")[0].header("x_their_own"), Some("1"));
}

#[test]
fn marks_are_ours_in_both_directions_and_a_request_has_one_id() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "[defaults]\nreplay_marker = \"X-Again\"\n");
    let forged = vec![
        ("X-Again", "true".to_owned()),
        ("X_Again", "true".to_owned()),
        ("Idempotent_Replayed", "true".to_owned()),
        ("Idempotent-Replayed", "true".to_owned()),
        ("Idempotency_Expires", "never".to_owned()),
        ("Retrysafe_Outcome", "completed".to_owned()),
        ("Retrysafe.Unprotected", "store".to_owned()),
    ];
    upstream.script("/marks", vec![Step::Reply(201, forged, b"{}".to_vec())]);
    let key = key();
    let first = post(
        &gateway,
        "/marks",
        &[
            ("Idempotency-Key", &key),
            ("X-Again", "true"),
            ("X-Request-Id", "one"),
            ("X-Request-Id", "two"),
        ],
    );
    assert_eq!(first.status(), 201);
    for (name, _) in &first.headers {
        let name = name.to_ascii_lowercase();
        let is_forged = name.contains('_')
            || name.contains('.')
            || name.contains("again")
            || name.contains("replayed");
        assert!(!is_forged, "{name}");
    }
    let seen = upstream.seen_at("/marks").remove(0);
    assert_eq!(seen.message.all("x-request-id"), ["one"]);
    assert_eq!(seen.header("x-again"), None);
    assert_eq!(first.header("x-request-id"), Some("one"));
    let again = post(&gateway, "/marks", &[("Idempotency-Key", &key)]);
    assert_eq!(again.all("x-again"), ["true"]);

    // Where nothing is protected, our own name still is.
    let passed = send(
        gateway.address,
        &request("PUT", "/marks", &[("X-Request-Id", "a"), ("X-Request-Id", "b")], b"{}"),
    );
    assert_eq!(upstream.seen_at("/marks")[1].message.all("x-request-id"), ["a"]);
    for name in ["retrysafe_outcome", "retrysafe.unprotected"] {
        assert_eq!(passed.header(name), None, "{name}");
    }
}
