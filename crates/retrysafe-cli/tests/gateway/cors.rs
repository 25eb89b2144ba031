//! Can a page in a browser read every answer of ours that it may read, and no other?

use super::kit::{Gateway, Message, Step, Upstream, key, reply, request, send};

const SHOP: &str = "https://shop.example";
const OTHER: &str = "https://other.example";

fn ask(
    gateway: &Gateway,
    method: &str,
    path: &str,
    origin: &str,
    more: &[(&str, &str)],
) -> Message {
    let mut headers = vec![("X-Api-Key", "tests"), ("Content-Type", "application/json")];
    if !origin.is_empty() {
        headers.push(("Origin", origin));
    }
    headers.extend_from_slice(more);
    let body: &[u8] = if method == "OPTIONS" { b"" } else { b"{}" };
    send(gateway.address, &request(method, path, &headers, body))
}

/// What an answer permits: the origin, and whether with cookies.
fn permitted(answer: &Message) -> (Vec<&str>, Vec<&str>) {
    (answer.all("access-control-allow-origin"), answer.all("access-control-allow-credentials"))
}

fn permitting(status: u16, origin: &str) -> Step {
    let headers = vec![
        ("Access-Control-Allow-Origin", origin.to_owned()),
        ("Access-Control-Allow-Credentials", "true".to_owned()),
        ("Vary", "Origin".to_owned()),
    ];
    Step::Reply(status, headers, b"{}".to_vec())
}

const REQUIRED: &str =
    "[[route]]\npath = \"/pay/{*rest}\"\nmethods = [\"POST\"]\nkey = \"required\"\n";

// The API's pages could read its own answers, and of ours only that the network had failed.
#[test]
fn a_refusal_permits_what_the_upstream_permits_to_the_same_origin() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, REQUIRED);
    let refused = ask(&gateway, "POST", "/pay/a", SHOP, &[]);
    assert_eq!(refused.code(), "idempotency_key_missing");
    assert_eq!(permitted(&refused), (vec![], vec![]), "nothing is known of this origin");

    // The browser asks in advance, and the upstream answers.
    upstream.script("/pay/a", vec![permitting(204, SHOP), reply(201, "{}")]);
    let wishes = [
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "idempotency-key"),
    ];
    let preflight = ask(&gateway, "OPTIONS", "/pay/a", SHOP, &wishes);
    assert_eq!((preflight.status(), permitted(&preflight)), (204, (vec![SHOP], vec!["true"])));
    assert_eq!(upstream.seen_at("/pay/a")[0].method, "OPTIONS");

    let refused = ask(&gateway, "POST", "/pay/a", SHOP, &[]);
    assert_eq!(refused.code(), "idempotency_key_missing");
    assert_eq!(permitted(&refused), (vec![SHOP], vec!["true"]));
    assert_eq!(refused.all("vary"), ["Origin"]);
    let exposed = refused.all("access-control-expose-headers").join(", ");
    for name in ["Idempotent-Replayed", "Idempotency-Expires", "Retry-After", "X-Request-Id"] {
        assert!(exposed.contains(name), "{name}: {exposed}");
    }
    // At the door, where no rule was looked up, the same.
    let refused = ask(&gateway, "POST", "/pay/b", SHOP, &[("Idempotency_Key", "k")]);
    assert_eq!(refused.code(), "request_malformed");
    assert_eq!(permitted(&refused), (vec![SHOP], vec!["true"]));

    // Another origin, another host and another route have been permitted nothing.
    assert_eq!(permitted(&ask(&gateway, "POST", "/pay/a", OTHER, &[])), (vec![], vec![]));
    assert_eq!(permitted(&ask(&gateway, "POST", "/pay/a", "", &[])), (vec![], vec![]));
    let elsewhere = [("Idempotency-Key", "\"")];
    let refused = ask(&gateway, "POST", "/elsewhere", SHOP, &elsewhere);
    assert_eq!(refused.code(), "idempotency_key_invalid");
    assert_eq!(permitted(&refused), (vec![], vec![]));
}

#[test]
fn an_upstream_that_takes_its_word_back_is_heard() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, REQUIRED);
    let any = vec![("Access-Control-Allow-Origin", "*".to_owned())];
    upstream.script(
        "/pay/a",
        vec![
            Step::Reply(200, any, b"{}".to_vec()),
            reply(500, "{}"),
            permitting(200, OTHER),
            reply(200, "{}"),
        ],
    );
    let run = || ask(&gateway, "POST", "/pay/a", SHOP, &[("Idempotency-Key", &key())]);
    let refused = || ask(&gateway, "POST", "/pay/a", SHOP, &[]);
    run();
    assert_eq!(permitted(&refused()), (vec!["*"], vec![]));
    assert_eq!(refused().all("vary"), Vec::<&str>::new(), "the same for everybody");
    run();
    assert_eq!(permitted(&refused()), (vec!["*"], vec![]), "a failure that says nothing");
    // It permits another origin than the one that asked, so it permits this one nothing.
    let answer = run();
    assert_eq!(permitted(&answer), (vec![OTHER], vec!["true"]), "its answers pass as they are");
    assert_eq!(permitted(&refused()), (vec![], vec![]));
}

// An answer that was stored for one page is replayed to another: the browser of the second would hide it, or worse, a permission
// for one origin would be told to another.
#[test]
fn a_replay_permits_the_page_that_is_asking() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    upstream.script("/r", vec![permitting(201, SHOP)]);
    upstream.script("/x", vec![permitting(201, OTHER)]);
    let key = key();
    let run = |path: &str, origin: &str| {
        ask(&gateway, "POST", path, origin, &[("Idempotency-Key", &key)])
    };
    assert_eq!(permitted(&run("/r", SHOP)), (vec![SHOP], vec!["true"]));
    let again = run("/r", SHOP);
    assert!(again.is_replay());
    assert_eq!(permitted(&again), (vec![SHOP], vec!["true"]));
    assert!(again.all("access-control-expose-headers").join(",").contains("Idempotent-Replayed"));

    let unknown = run("/r", OTHER);
    assert!(unknown.is_replay());
    assert_eq!(permitted(&unknown), (vec![], vec![]), "nothing is known of this origin yet");
    ask(&gateway, "PUT", "/x", OTHER, &[]);
    // Learned for the route of PUT, which is the route of POST as well: the defaults.
    let known = run("/r", OTHER);
    assert_eq!((known.is_replay(), permitted(&known)), (true, (vec![OTHER], vec!["true"])));
    assert_eq!(known.all("vary"), ["Origin"]);
    let plain = run("/r", "");
    assert_eq!(permitted(&plain), (vec![SHOP], vec!["true"]), "no page is asking: as stored");
    assert_eq!(upstream.count("/r"), 1);
}

#[test]
fn an_answer_that_only_passes_stays_as_it_is() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    upstream.script("/get", vec![permitting(200, SHOP)]);
    let answer = ask(&gateway, "GET", "/get", SHOP, &[]);
    assert_eq!(permitted(&answer), (vec![SHOP], vec!["true"]));
    assert_eq!(answer.all("access-control-expose-headers"), Vec::<&str>::new());
    assert_eq!(answer.all("vary"), ["Origin"]);
}

#[test]
fn where_the_operator_lists_origins_the_gateway_decides() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        &format!("{REQUIRED}cors = [\"{SHOP}\"]\ncors_credentials = true\n"),
    );
    let wishes = [
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "idempotency-key, content-type"),
    ];
    let preflight = ask(&gateway, "OPTIONS", "/pay/a", SHOP, &wishes);
    assert_eq!((preflight.status(), permitted(&preflight)), (204, (vec![SHOP], vec!["true"])));
    assert_eq!(preflight.header("access-control-allow-methods"), Some("POST"));
    let allowed = preflight.header("access-control-allow-headers");
    assert_eq!(allowed, Some("idempotency-key, content-type"));
    assert!(preflight.header("access-control-max-age").is_some());
    let stranger = ask(&gateway, "OPTIONS", "/pay/a", OTHER, &wishes);
    assert_eq!((stranger.status(), permitted(&stranger)), (204, (vec![], vec![])));
    assert_eq!(stranger.header("access-control-allow-headers"), None);
    assert_eq!(upstream.count("/pay/a"), 0, "preflights are answered here");

    // Whatever the upstream says, and whoever asked first.
    upstream.script("/pay/a", vec![permitting(201, "https://evil.example")]);
    let key = key();
    let run = |origin: &str| ask(&gateway, "POST", "/pay/a", origin, &[("Idempotency-Key", &key)]);
    assert_eq!(permitted(&run(OTHER)), (vec![], vec![]));
    let again = run(SHOP);
    assert_eq!((again.is_replay(), permitted(&again)), (true, (vec![SHOP], vec!["true"])));
    assert_eq!(again.all("vary"), ["Origin"]);
    assert_eq!(run("").all("vary"), ["Origin"], "a cache must not hand it to a page");
    let refused = ask(&gateway, "POST", "/pay/a", SHOP, &[]);
    assert_eq!(refused.code(), "idempotency_key_missing");
    assert_eq!(permitted(&refused), (vec![SHOP], vec!["true"]));

    // A preflight for a method that the route does not have is the upstream's.
    let wishes = [("Access-Control-Request-Method", "PUT")];
    ask(&gateway, "OPTIONS", "/pay/b", SHOP, &wishes);
    assert_eq!(upstream.count("/pay/b"), 1);
}
