//! Does the promise hold, whatever the store?
//!
//! Every case runs on the disk store, on PostgreSQL, on Redis, on a Redis Cluster of six nodes and on
//! PostgreSQL behind copies in Redis, each with a gateway and records of its own.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::kit::{
    Gate, Gateway, Message, PATIENCE, Step, Upstream, key, raw, reply, request, send, until,
};
use super::postgres::database;
use super::redis::{in_cluster, in_redis, tiered};

/// Opens a gateway with this much more configuration.
type Open = fn(&Upstream, &str) -> Gateway;

macro_rules! on_one_store {
    ($store:ident, $open:expr, $($case:ident)*) => {
        mod $store {
            $(#[test]
            fn $case() {
                super::$case($open);
            })*
        }
    };
    ($store:ident at $url:path, $($case:ident)*) => {
        on_one_store!($store, |upstream, toml| super::Gateway::start_on(&$url(), upstream, toml), $($case)*);
    };
}

macro_rules! on_every_store {
    ($($case:ident)*) => {
        on_one_store!(disk, super::Gateway::start, $($case)*);
        on_one_store!(postgres at super::database, $($case)*);
        on_one_store!(redis at super::in_redis, $($case)*);
        on_one_store!(cluster at super::in_cluster, $($case)*);
        on_one_store!(tiered at super::tiered, $($case)*);
    };
}

on_every_store! {
    a_first_answer_and_its_replay_are_the_same_bytes
    what_is_not_covered_runs_every_time
    of_twenty_at_once_one_runs
    duplicates_that_wait_get_the_answer
    another_request_under_the_key_is_refused_in_every_state
    keys_are_read_in_both_spellings_and_refused_when_malformed
    callers_do_not_see_each_other
    what_may_change_is_tried_again_and_what_will_not_is_kept
    the_upstream_and_the_route_can_say_what_an_answer_means
    a_lost_answer_is_unknown_until_somebody_decides
    an_answer_too_large_to_keep_is_never_run_again
    an_expired_key_runs_anew
    a_caller_that_leaves_does_not_stop_the_work
    a_slow_handler_keeps_its_lease
    observing_never_interferes
    after_a_crash_answers_are_remembered_and_the_rest_is_doubted
}

fn told(answer: &Message) -> (u16, String) {
    (answer.status(), answer.code())
}

fn refused(answer: &Message, status: u16, code: &str) {
    assert_eq!(told(answer), (status, code.into()), "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
}

fn held(gate: &Gate, step: Step) -> Step {
    Step::Held(gate.clone(), Box::new(step))
}

fn a_first_answer_and_its_replay_are_the_same_bytes(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "");
    let body: Vec<u8> = (0..=255).collect();
    let headers = vec![
        ("Content-Type", "application/octet-stream".to_owned()),
        ("Link", "</a>".into()),
        ("Link", "</b>".into()),
        ("Set-Cookie", "sid=1".into()),
        ("Cache-Control", "no-store".into()),
    ];
    upstream.script("/a", vec![Step::Reply(201, headers, body.clone()), reply(500, "no")]);
    for method in ["POST", "PATCH"] {
        let key = key();
        let asked = request(method, "/a", &[("Idempotency-Key", &key)], b"\x00\xff");
        let first = send(gateway.address, &asked);
        let again = send(gateway.address, &asked);
        if method == "PATCH" {
            assert_eq!((first.status(), again.status()), (500, 500), "covered, and released");
            continue;
        }
        assert_eq!((first.status(), again.status()), (201, 201));
        assert_eq!((&first.body, &again.body), (&body, &body));
        assert!(!first.is_replay() && again.is_replay());
        assert_eq!(again.all("link"), ["</a>", "</b>"], "order and repetition are kept");
        assert_eq!(again.header("cache-control"), Some("no-store"));
        assert!(first.header("set-cookie").is_some() && again.header("set-cookie").is_none());
        let [seen] = &upstream.seen_at("/a")[..] else { panic!("it ran once") };
        assert_eq!(seen.message.body, b"\x00\xff");
        assert_eq!(seen.header("idempotency-key"), Some(key.as_str()));
        assert!(seen.is_protected());
    }
    assert_eq!(upstream.count("/a"), 3);
}

fn what_is_not_covered_runs_every_time(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "[[route]]\npath = \"/must\"\nkey = \"required\"\n");
    let key = key();
    for _ in 0..2 {
        assert_eq!(send(gateway.address, &request("POST", "/a", &[], b"{}")).status(), 201);
        let get = request("GET", "/a", &[("Idempotency-Key", &key)], b"");
        assert_eq!(send(gateway.address, &get).status(), 201);
    }
    assert_eq!((upstream.count("/a"), gateway.records()), (4, 0));
    let bare = send(gateway.address, &request("POST", "/must", &[], b"{}"));
    refused(&bare, 400, "idempotency_key_missing");
    assert_eq!(upstream.count("/must"), 0);
}

fn of_twenty_at_once_one_runs(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "");
    let (key, gate) = (key(), Gate::default());
    upstream.script("/once", vec![held(&gate, reply(201, "{\"id\":1}"))]);
    let asked = request("POST", "/once", &[("Idempotency-Key", &key)], b"{}");
    let (tell, answers) = mpsc::channel();
    for _ in 0..20 {
        let (address, asked, tell) = (gateway.address, asked.clone(), tell.clone());
        std::thread::spawn(move || tell.send(send(address, &asked)).unwrap());
    }
    // A thread that fails says nothing, and must not be waited for.
    drop(tell);
    for _ in 0..19 {
        let duplicate = answers.recv_timeout(PATIENCE).unwrap();
        refused(&duplicate, 409, "request_in_progress");
        assert!(duplicate.header("retry-after").is_some());
    }
    gate.open();
    let first = answers.recv_timeout(PATIENCE).unwrap();
    assert_eq!((first.status(), first.is_replay()), (201, false));
    let replayed = send(gateway.address, &asked);
    assert!(replayed.is_replay() && replayed.body == first.body);
    assert_eq!(upstream.count("/once"), 1);
}

fn duplicates_that_wait_get_the_answer(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "[defaults]\nwait_max = \"60s\"\n");
    let (key, gate) = (key(), Gate::default());
    upstream.script("/wait", vec![held(&gate, reply(201, "{\"id\":1}"))]);
    let asked = request("POST", "/wait", &[("Idempotency-Key", &key)], b"{}");
    let callers: Vec<_> = (0..5)
        .map(|_| {
            let (address, asked) = (gateway.address, asked.clone());
            std::thread::spawn(move || send(address, &asked))
        })
        .collect();
    upstream.wait("/wait", 1);
    gate.open();
    for caller in callers {
        let answer = caller.join().unwrap();
        assert_eq!((answer.status(), answer.text().as_str()), (201, "{\"id\":1}"));
    }
    assert_eq!(upstream.count("/wait"), 1);
}

fn another_request_under_the_key_is_refused_in_every_state(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "");
    let gate = Gate::default();
    upstream.script("/running", vec![held(&gate, reply(201, "{}"))]);
    upstream.script("/released", vec![reply(500, "{}")]);
    upstream.script("/lost", vec![Step::Drop]);
    let keys = [(); 4].map(|()| key());
    let [running, done, released, lost] = &keys;
    let (address, key) = (gateway.address, running.clone());
    let owner = std::thread::spawn(move || {
        let headers = [("Idempotency-Key", key.as_str()), ("Content-Type", "application/json")];
        send(address, &request("POST", "/running", &headers, b"{\"a\":1}"))
    });
    upstream.wait("/running", 1);
    for (path, key) in [("/done", done), ("/released", released), ("/lost", lost)] {
        gateway.post(path, key, "{\"a\":1}");
    }
    let paths = ["/running", "/done", "/released", "/lost"];
    for (path, key) in paths.into_iter().zip(&keys) {
        refused(&gateway.post(path, key, "{\"a\":2}"), 422, "idempotency_key_reused");
        refused(&gateway.post("/other", key, "{\"a\":1}"), 422, "idempotency_key_reused");
        assert_eq!(upstream.count(path), 1, "{path}");
    }
    // The same meaning in another spelling is the same request; an integer beyond doubles is not.
    assert!(gateway.post("/done", done, "{ \"a\" : 1.0 }").is_replay());
    let big = self::key();
    gateway.post("/big", &big, "{\"a\":9007199254740993}");
    refused(&gateway.post("/big", &big, "{\"a\":9007199254740992}"), 422, "idempotency_key_reused");
    gate.open();
    assert_eq!(owner.join().unwrap().status(), 201);
}

fn keys_are_read_in_both_spellings_and_refused_when_malformed(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "");
    let key = key();
    assert_eq!(gateway.post("/a", &key, "{}").status(), 201);
    assert!(gateway.post("/a", &format!("\"{key}\""), "{}").is_replay());
    assert!(!gateway.post("/a", &key.to_uppercase(), "{}").is_replay(), "case matters");
    assert_eq!(gateway.post("/a", &"k".repeat(255), "{}").status(), 201);
    for wrong in ["", "a b", "\"open", "k\u{e9}", &"k".repeat(256)] {
        let answer = gateway.post("/a", wrong, "{}");
        assert_eq!(answer.status(), 400, "{wrong:?}");
    }
    let twice = gateway.post_with("/a", &key, "{}", &[("Idempotency-Key", &key)]);
    refused(&twice, 400, "idempotency_key_invalid");
    assert_eq!(upstream.count("/a"), 3);
}

fn callers_do_not_see_each_other(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "");
    let key = key();
    let as_caller = |who: &str| gateway.post_with("/a", &key, "{}", &[("Authorization", who)]);
    let (one, two) = (as_caller("Bearer one"), as_caller("Bearer two"));
    assert!(one.body != two.body && !two.is_replay());
    assert_eq!((as_caller("Bearer one").body, as_caller("Bearer two").body), (one.body, two.body));
    assert_eq!(upstream.count("/a"), 2);
    let cookie = gateway.post_with("/a", &key, "{}", &[("Cookie", "sid=1")]);
    refused(&cookie, 400, "scope_unsafe");
}

fn what_may_change_is_tried_again_and_what_will_not_is_kept(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "");
    for status in [500, 503, 401, 429] {
        let (path, key) = (format!("/again/{status}"), key());
        upstream.script(&path, vec![reply(status, "{}"), reply(201, "{}")]);
        assert_eq!(gateway.post(&path, &key, "{}").status(), status);
        assert_eq!(gateway.post(&path, &key, "{}").status(), 201);
        assert!(gateway.post(&path, &key, "{}").is_replay());
        let fences = upstream.seen_at(&path);
        let fences: Vec<u64> =
            fences.iter().map(|s| s.header("retrysafe-fence").unwrap().parse().unwrap()).collect();
        assert!(fences.len() == 2 && fences[0] < fences[1], "{fences:?}");
    }
    for status in [302, 400, 409, 422] {
        let (path, key) = (format!("/kept/{status}"), key());
        upstream.script(&path, vec![reply(status, "{\"no\":1}"), reply(201, "{}")]);
        let first = gateway.post(&path, &key, "{}");
        let again = gateway.post(&path, &key, "{}");
        assert!(first.status() == status && again.is_replay() && again.body == first.body);
        assert_eq!(upstream.count(&path), 1);
    }
    for status in [502, 504] {
        let (path, key) = (format!("/doubt/{status}"), key());
        upstream.script(&path, vec![reply(status, "{}"), reply(201, "{}")]);
        gateway.post(&path, &key, "{}");
        refused(&gateway.post(&path, &key, "{}"), 409, "outcome_unknown");
        assert_eq!(upstream.count(&path), 1, "that upstream does not know either");
    }
}

fn the_upstream_and_the_route_can_say_what_an_answer_means(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(
        &upstream,
        "[[route]]\npath = \"/pinned\"\non_server_error = \"store\"\n\
         [[route]]\npath = \"/money\"\non_server_error = \"unknown\"\n",
    );
    let says = |outcome: &str, status| {
        Step::Reply(status, vec![("Retrysafe-Outcome", outcome.into())], b"x".to_vec())
    };
    upstream.script("/done", vec![says("completed", 500)]);
    upstream.script("/not", vec![says("retryable", 201), reply(201, "{}")]);
    upstream.script("/doubt", vec![says("unknown", 201)]);
    upstream.script("/pinned", vec![reply(500, "{}")]);
    upstream.script("/money", vec![reply(500, "{}")]);
    let twice = |path| {
        let key = key();
        let first = gateway.post(path, &key, "{}");
        // What the upstream says is for us; that nobody knows is for the caller.
        let is_unknown = matches!(path, "/doubt" | "/money");
        assert_eq!(first.header("retrysafe-outcome"), is_unknown.then_some("unknown"), "{path}");
        gateway.post(path, &key, "{}")
    };
    for path in ["/done", "/pinned"] {
        let again = twice(path);
        assert!(again.is_replay() && again.status() == 500, "{path}");
    }
    assert!(!twice("/not").is_replay());
    for path in ["/doubt", "/money"] {
        refused(&twice(path), 409, "outcome_unknown");
    }
    let counts = ["/done", "/pinned", "/not", "/doubt", "/money"].map(|path| upstream.count(path));
    assert_eq!(counts, [1, 1, 2, 1, 1]);
}

fn a_lost_answer_is_unknown_until_somebody_decides(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "");
    for (path, verdict, status) in [
        (
            "/paid",
            "{\"outcome\":\"completed\",\"reason\":\"r\",\"response\":{\"status\":202}}",
            202,
        ),
        ("/fact", "{\"outcome\":\"completed\",\"reason\":\"r\"}", 410),
        ("/never", "{\"outcome\":\"failed_retryable\",\"reason\":\"r\"}", 201),
    ] {
        let key = key();
        upstream.script(path, vec![Step::Drop, reply(201, "{}")]);
        assert_eq!(gateway.post(path, &key, "{}").code(), "outcome_unknown");
        refused(&gateway.post(path, &key, "{}"), 409, "outcome_unknown");
        assert_eq!(upstream.count(path), 1);
        let seen = gateway.unknown_at(path);
        assert_eq!(gateway.decide(&seen, "resolve", verdict).status(), 200);
        assert_eq!(gateway.post(path, &key, "{}").status(), status, "{path}");
        assert_eq!(gateway.decide(&seen, "resolve", verdict).status(), 409, "decided once");
        assert_eq!(upstream.count(path), if status == 201 { 2 } else { 1 });
    }
}

fn an_answer_too_large_to_keep_is_never_run_again(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "[defaults]\nresponse_bytes_max = \"1KiB\"\n");
    let (key, large) = (key(), "x".repeat(5_000));
    upstream.script("/large", vec![reply(201, &large)]);
    assert_eq!(gateway.post("/large", &key, "{}").text(), large, "the first caller gets it whole");
    let again = gateway.post("/large", &key, "{}");
    refused(&again, 410, "response_not_stored");
    assert_eq!(again.json()["original_status"], 201);
    assert_eq!(upstream.count("/large"), 1);
}

fn an_expired_key_runs_anew(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "[defaults]\nttl = \"1s\"\n[upkeep]\nreap_every = \"100ms\"\n");
    let key = key();
    let first = gateway.post("/a", &key, "{}");
    assert!(first.header("idempotency-expires").is_some());
    until("the key runs anew", || gateway.post("/a", &key, "{}").body != first.body);
    assert_eq!(upstream.count("/a"), 2);
    until("the reaper has taken it", || gateway.records() == 0);
}

fn a_caller_that_leaves_does_not_stop_the_work(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "");
    let (key, gate) = (key(), Gate::default());
    upstream.script("/left", vec![held(&gate, reply(201, "{\"id\":1}"))]);
    let asked = request("POST", "/left", &[("Idempotency-Key", &key)], b"{}");
    let mut caller = TcpStream::connect(gateway.address).unwrap();
    caller.write_all(&asked).unwrap();
    upstream.wait("/left", 1);
    drop(caller);
    gate.open();
    until("its answer is replayed", || send(gateway.address, &asked).is_replay());
    assert_eq!(upstream.count("/left"), 1);
}

fn a_slow_handler_keeps_its_lease(open: Open) {
    // It is renewed every third of this; a renewal may come late by two thirds.
    const LEASE: Duration = Duration::from_secs(12);
    let upstream = Upstream::start();
    let gateway = open(
        &upstream,
        "[defaults]\nlease = \"12s\"\nlease_max = \"1h\"\nupstream_timeout = \"1h\"\n\
         [upkeep]\nsweep_every = \"50ms\"\n",
    );
    let (key, gate) = (key(), Gate::default());
    upstream.script("/slow", vec![held(&gate, reply(201, "{}"))]);
    let asked = request("POST", "/slow", &[("Idempotency-Key", &key)], b"{}");
    let (address, first) = (gateway.address, asked.clone());
    let owner = std::thread::spawn(move || send(address, &first));
    upstream.wait("/slow", 1);
    let begun = Instant::now();
    while begun.elapsed() < LEASE * 6 / 5 {
        refused(&send(gateway.address, &asked), 409, "request_in_progress");
        std::thread::sleep(LEASE / 20);
    }
    gate.open();
    assert_eq!(owner.join().unwrap().status(), 201);
    assert_eq!(upstream.count("/slow"), 1);
}

fn observing_never_interferes(open: Open) {
    let upstream = Upstream::start();
    let gateway = open(&upstream, "[defaults]\nmode = \"observe\"\n");
    let key = key();
    for body in ["{}", "{}", "{\"a\":1}"] {
        let answer = gateway.post("/a", &key, body);
        assert!(answer.status() == 201 && !answer.is_replay());
    }
    assert_eq!((upstream.count("/a"), gateway.records()), (3, 0));
}

fn after_a_crash_answers_are_remembered_and_the_rest_is_doubted(open: Open) {
    let upstream = Upstream::start();
    let mut gateway =
        open(&upstream, "[defaults]\nlease = \"3s\"\n[upkeep]\nsweep_every = \"100ms\"\n");
    let (done, half, gate) = (key(), key(), Gate::default());
    upstream.script("/half", vec![held(&gate, reply(201, "{}"))]);
    let first = gateway.post("/done", &done, "{\"a\":1}");
    assert_eq!(first.status(), 201);
    let asked = request("POST", "/half", &[("Idempotency-Key", &half)], b"{}");
    let (address, halved) = (gateway.address, asked.clone());
    let running = std::thread::spawn(move || raw(address, &halved, false));
    upstream.wait("/half", 1);

    gateway.kill();
    assert!(running.join().unwrap().is_empty(), "nobody answers for a dead process");
    gate.open();
    gateway.restart();

    let replayed = gateway.post("/done", &done, "{\"a\":1}");
    assert!(replayed.is_replay());
    assert_eq!((replayed.status(), &replayed.body), (201, &first.body));
    // The disk store has one owner and knows at once; a shared one waits for the lease to end.
    until("its outcome is unknown", || {
        let doubted = send(gateway.address, &asked);
        assert_eq!(doubted.status(), 409);
        doubted.code() == "outcome_unknown"
    });
    assert_eq!((upstream.count("/done"), upstream.count("/half")), (1, 1));
    let doubt = gateway.unknown_at("/half")["doubt"].clone();
    assert!(doubt == "owner_gone" || doubt == "lease_ended", "{doubt}");
}
