//! Is every caller told from every other, and is a retry the same caller?

use serde_json::json;

use super::kit::{Gateway, Message, Upstream, key, reply, request, send, token};

fn post(gateway: &Gateway, path: &str, key: &str, shown: &[(&str, &str)]) -> Message {
    gateway.post_with(path, key, "{}", shown)
}

fn bearer(claims: &serde_json::Value) -> String {
    format!("Bearer {}", token(claims))
}

// A token that was refreshed between two attempts made another caller of the same one: the retry ran
// again.
#[test]
fn a_refreshed_token_is_refused_and_never_runs_again() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let key = key();
    let ask = |sub: &str, exp: u64| {
        let bearer = bearer(&json!({"iss": "https://id.test", "sub": sub, "exp": exp}));
        post(&gateway, "/jwt", &key, &[("Authorization", &bearer)])
    };
    let first = ask("alice", 1);
    assert_eq!(first.status(), 201, "{}", first.text());
    assert!(ask("alice", 1).is_replay(), "the same token");
    let refreshed = ask("alice", 2);
    assert_eq!((refreshed.status(), refreshed.code().as_str()), (409, "credential_changed"));
    let detail = refreshed.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("[jwt]") && detail.contains("jwt:sub"), "{detail}");
    assert_eq!(upstream.count("/jwt"), 1);
    let other = ask("bob", 1);
    assert!(other.status() == 201 && !other.is_replay() && other.body != first.body);
}

// The 401 that made the client refresh its token must not stand in the new one's way.
#[test]
fn a_released_request_runs_with_the_refreshed_token() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let key = key();
    upstream.script("/jwt", vec![reply(401, "{}"), reply(201, "done")]);
    let ask = |exp: u64| {
        let bearer = bearer(&json!({"iss": "i", "sub": "carol", "exp": exp}));
        post(&gateway, "/jwt", &key, &[("Authorization", &bearer)])
    };
    assert_eq!(ask(1).status(), 401);
    assert_eq!(ask(2).status(), 201);
    assert!(ask(2).is_replay());
    assert_eq!(ask(1).code(), "credential_changed", "the old one is another one now");
    assert_eq!(upstream.count("/jwt"), 2);
}

#[test]
fn another_body_of_another_token_is_another_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let key = key();
    let ask = |exp: u64, body: &str| {
        let bearer = bearer(&json!({"iss": "i", "sub": "dora", "exp": exp}));
        gateway.post_with("/jwt", &key, body, &[("Authorization", &bearer)])
    };
    assert_eq!(ask(1, "{}").status(), 201);
    assert_eq!(ask(2, "{\"a\":1}").code(), "idempotency_key_reused");
    assert_eq!(ask(1, "{\"a\":1}").code(), "idempotency_key_reused");
    assert_eq!(upstream.count("/jwt"), 1);
}

// Anybody can write a token that names Alice. It must not learn where her key stands.
#[test]
fn a_keys_state_is_told_to_its_own_token_only() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let key = key();
    let hers = bearer(&json!({"iss": "i", "sub": "alice", "exp": 1}));
    let forged = bearer(&json!({"iss": "i", "sub": "alice", "exp": 2}));
    assert_eq!(post(&gateway, "/jwt", &key, &[("Authorization", &hers)]).status(), 201);
    let state = |bearer: &str| {
        let headers = [("Idempotency-Key", key.as_str()), ("Authorization", bearer)];
        send(gateway.address, &request("GET", "/.well-known/idempotency/key", &headers, b""))
    };
    assert_eq!(state(&hers).json()["state"], "completed");
    assert_eq!((state(&forged).status(), state(&forged).code()), (404, "key_not_found".into()));
}
