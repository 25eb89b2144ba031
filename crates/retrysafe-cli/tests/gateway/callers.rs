//! Is every caller told from every other, and is a retry the same caller?

use serde_json::json;

use super::kit::{Gateway, Message, Upstream, key, reply, request, send, token};

fn post(gateway: &Gateway, path: &str, key: &str, shown: &[(&str, &str)]) -> Message {
    gateway.post_with(path, key, "{}", shown)
}

/// What each of two callers shows.
type TwoCallers<'a> = [Vec<(&'a str, &'a str)>; 2];

/// A path, what two callers there show, and the setting and name that cure their refusal.
type KindOfCaller<'a> = (&'a str, TwoCallers<'a>, Option<(&'a str, &'a str)>);

fn bearer(claims: &serde_json::Value) -> String {
    format!("Bearer {}", token(claims))
}

// A token that was refreshed between two attempts made another caller of the same one: the retry ran
// again.
#[test]
fn a_refreshed_token_is_refused_and_never_runs_again() {
    let upstream = Upstream::start();
    let gateway = Gateway::start_bare(&upstream, "");
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
    let gateway = Gateway::start_bare(&upstream, "");
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
    let gateway = Gateway::start_bare(&upstream, "");
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
    let gateway = Gateway::start_bare(&upstream, "");
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

/// What a refusal says is to be set, with a name for its placeholder.
fn cure(refusal: &Message, setting: &str, name: &str) -> String {
    assert_eq!((refusal.status(), refusal.code().as_str()), (400, "scope_unsafe"));
    let detail = refusal.json()["detail"].as_str().unwrap().to_owned();
    let start = detail.find(&format!("{setting} = ")).unwrap_or_else(|| panic!("{detail}"));
    let rest = &detail[start..];
    let end = rest.find(['.', ',', ';']).unwrap();
    rest[..end].trim().replace("NAME", name)
}

// One caller got another's answer, or its retry ran again, and nobody said what to do about it.
#[test]
fn callers_of_six_kinds_are_safe_and_every_refusal_names_its_cure() {
    let alice = bearer(&json!({"iss": "i", "sub": "alice", "exp": 1}));
    let bob = bearer(&json!({"iss": "i", "sub": "bob", "exp": 1}));
    let kinds: [KindOfCaller<'_>; 6] = [
        ("/bearer", ["Bearer a", "Bearer b"].map(|shown| vec![("Authorization", shown)]), None),
        ("/jwt", [&alice, &bob].map(|shown| vec![("Authorization", shown.as_str())]), None),
        ("/api-key", ["a", "b"].map(|shown| vec![("X-Api-Key", shown)]), None),
        (
            "/cookie",
            ["t=1; sid=a", "sid=b"].map(|shown| vec![("Cookie", shown)]),
            Some(("scope", "sid")),
        ),
        (
            "/custom",
            ["a", "b"].map(|shown| vec![("X-Shop-User", shown)]),
            Some(("scope", "X-Shop-User")),
        ),
        ("/none", [vec![], vec![]], Some(("anonymous", ""))),
    ];
    let upstream = Upstream::start();
    let bare = Gateway::start_bare(&upstream, "");
    for (path, callers, cured_by) in kinds {
        let key = key();
        let ask = |gateway: &Gateway, at: usize| post(gateway, path, &key, &callers[at]);
        let Some((setting, name)) = cured_by else {
            is_each_callers_own(&bare, &upstream, path, &key, &callers);
            continue;
        };
        let cures: Vec<String> =
            (0..4).map(|at| cure(&ask(&bare, at % 2), setting, name)).collect();
        assert_eq!(upstream.count(path), 0, "{path}: refused is not run");
        assert!(cures.iter().all(|cure| *cure == cures[0]), "{cures:?}");
        let cured = Gateway::start_bare(&upstream, &format!("[defaults]\n{}\n", cures[0]));
        if setting == "anonymous" {
            assert_eq!(ask(&cured, 0).status(), 201, "{}", cures[0]);
            assert!(ask(&cured, 1).is_replay(), "all who show nothing are one, as it says");
            assert_eq!(upstream.count(path), 1);
        } else {
            is_each_callers_own(&cured, &upstream, path, &key, &callers);
        }
    }
}

/// Each of two callers runs once, is answered with the same bytes again, and not with the other's.
fn is_each_callers_own(
    gateway: &Gateway,
    upstream: &Upstream,
    path: &str,
    key: &str,
    callers: &TwoCallers<'_>,
) {
    let firsts = callers.each_ref().map(|shown| post(gateway, path, key, shown));
    for (first, shown) in firsts.iter().zip(callers) {
        assert_eq!((first.status(), first.is_replay()), (201, false), "{path}: {}", first.text());
        let again = post(gateway, path, key, shown);
        assert!(again.is_replay() && again.body == first.body, "{path}: {}", again.text());
    }
    assert_ne!(firsts[0].body, firsts[1].body, "{path}: another's answer");
    assert_eq!(upstream.count(path), 2, "{path}: runs");
}

#[test]
fn credentials_that_are_made_anew_are_refused_and_end_at_the_gateway() {
    let upstream = Upstream::start();
    let gateway = Gateway::start_bare(&upstream, "");
    for made in [
        "AWS4-HMAC-SHA256 Credential=AKID/20260101/eu/execute-api/aws4_request, Signature=fe5f80",
        "Digest username=\"me\", nonce=\"n1\", nc=00000001, response=\"6629\"",
        "Hawk id=\"dh37\", ts=\"1353832234\", mac=\"6R4r\"",
        "OAuth oauth_consumer_key=\"k\", oauth_nonce=\"n\", oauth_signature=\"s\"",
        "Signature keyId=\"k\", signature=\"s\"",
        "Negotiate YIIJvwYGKwYBBQUC",
        "DPoP opaque",
        "opaque",
    ] {
        let answer = post(&gateway, "/anew", &key(), &[("Authorization", made)]);
        assert_eq!((answer.status(), answer.code().as_str()), (400, "scope_unsafe"), "{made}");
    }
    assert_eq!(upstream.count("/anew"), 0);
    // What it says about a scheme that is not known works.
    let opaque = [("Authorization", "opaque")];
    let told = cure(&post(&gateway, "/anew", &key(), &opaque), "scope", "");
    let cured = Gateway::start_bare(
        &upstream,
        &format!("[defaults]\n{}\n", told.split(" if").next().unwrap()),
    );
    let key = key();
    assert_eq!(post(&cured, "/anew", &key, &opaque).status(), 201, "{told}");
    assert!(post(&cured, "/anew", &key, &opaque).is_replay());
    let proxy = [("Authorization", "Bearer me"), ("Proxy-Authorization", "Basic cHJveHk6cHc=")];
    assert_eq!(post(&gateway, "/proxied", &key, &proxy).status(), 201);
    let seen = &upstream.seen_at("/proxied")[0];
    assert_eq!(
        (seen.header("proxy-authorization"), seen.header("authorization")),
        (None, Some("Bearer me"))
    );
}
