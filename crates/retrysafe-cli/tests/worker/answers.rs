//! What does each answer of a receiver lead to?

use super::bench::{Bench, KEYED, UNKEYED};
use super::kit::{Step, reply, until};

/// What becomes of an effect that is answered with a status once, and with 200 ever after.
fn after(bench: &Bench, status: u16) -> (String, usize) {
    let before = bench.provider.count("/mail");
    let seen = |count: usize| bench.provider.count("/mail") - before >= count;
    let steps = (0..before).map(|_| reply(200, "{}"));
    let steps = steps.chain([reply(status, "{}"), reply(200, "{}")]).collect();
    bench.provider.script("/mail", steps);
    let id = bench.stage();
    until("it was sent", || seen(1));
    until("it is over, or a person must decide", || {
        ["delivered", "dead", "unknown"].contains(&bench.state(id).0.as_str())
    });
    (bench.state(id).0, bench.provider.count("/mail") - before)
}

/// An effect whose receiver remembers keys is sent again unless its end is known.
#[test]
fn each_status_means_what_it_says_where_keys_are_remembered() {
    let bench = Bench::start(KEYED);
    for status in [200, 201, 202, 204] {
        assert_eq!(after(&bench, status), ("delivered".into(), 1), "{status}");
    }
    for status in [400, 402, 410, 413, 415, 422] {
        assert_eq!(after(&bench, status), ("dead".into(), 1), "{status}");
    }
    for status in [401, 403, 404, 407, 421, 425, 429, 307, 308] {
        assert_eq!(after(&bench, status), ("delivered".into(), 2), "{status}: tried again");
    }
    for status in [408, 409, 423, 301, 302, 303, 500, 502, 503, 504] {
        assert_eq!(after(&bench, status), ("delivered".into(), 2), "{status}: asked again");
    }
}

/// Where no key is taken, whatever leaves a doubt is unknown, and nothing with a doubt is sent again.
#[test]
fn each_status_means_what_it_says_where_no_key_is_taken() {
    let bench = Bench::start(UNKEYED);
    for status in [200, 204] {
        assert_eq!(after(&bench, status), ("delivered".into(), 1), "{status}");
    }
    for status in [400, 422] {
        assert_eq!(after(&bench, status), ("dead".into(), 1), "{status}");
    }
    for status in [401, 404, 429, 308] {
        assert_eq!(after(&bench, status), ("delivered".into(), 2), "{status}: it did nothing");
    }
    for status in [408, 409, 423, 301, 302, 303, 500, 502, 503, 504] {
        assert_eq!(after(&bench, status), ("unknown".into(), 1), "{status}: it may have done it");
        // So that the receiver is not left alone for failing again and again.
        assert_eq!(after(&bench, 200).0, "delivered");
    }
}

#[test]
fn the_rules_of_a_kind_win_over_the_defaults() {
    let rules = "delivered = [409]\nrejected = [404]\nno_effect = [\"5xx\"]\nunknown = [400]\n";
    let bench = Bench::start(&format!("{UNKEYED}{rules}"));
    assert_eq!(after(&bench, 409), ("delivered".into(), 1));
    assert_eq!(after(&bench, 404), ("dead".into(), 1));
    assert_eq!(after(&bench, 503), ("delivered".into(), 2));
    assert_eq!(after(&bench, 400), ("unknown".into(), 1));
}

/// The first delivery may have been done. The second one is refused, by a receiver that looks at the body before it looks for the
/// key: that is no proof.
#[test]
fn a_refusal_after_a_lost_answer_is_no_proof() {
    let bench = Bench::start(&format!("{KEYED}failures_max = 3\n"));
    bench.provider.script("/mail", vec![Step::Drop, reply(422, "{}")]);
    let id = bench.stage();
    let error = bench.wait_for(id, "unknown");
    assert!(error.contains("422") && error.contains("earlier delivery"), "{error}");
    assert_eq!(bench.provider.count("/mail"), 3);
}

#[test]
fn the_key_is_the_same_on_every_delivery() {
    let bench =
        Bench::start(&format!("{KEYED}[effects.mail.headers]\nAuthorization = \"Bearer x\"\n"));
    bench
        .provider
        .script("/mail", vec![Step::Drop, reply(503, ""), reply(429, ""), reply(200, "")]);
    let id = bench.stage();
    bench.wait_for(id, "delivered");
    let seen = bench.provider.seen_at("/mail");
    assert_eq!(seen.len(), 4);
    for seen in seen {
        assert_eq!(seen.header("idempotency-key"), Some(bench.key(id).as_str()));
        assert_eq!(seen.header("authorization"), Some("Bearer x"));
        assert_eq!(seen.header("content-type"), Some("application/json"));
        assert_eq!((seen.method.as_str(), seen.message.text()), ("POST", "{\"ride\":7}".into()));
        assert_eq!(seen.header("host"), Some(bench.provider.address.to_string().as_str()));
    }
}

#[test]
fn a_receiver_is_left_alone_for_as_long_as_it_asks() {
    let bench = Bench::start(KEYED);
    for (status, after) in [(429, "7200"), (503, "7200")] {
        let asked = Step::Reply(status, vec![("Retry-After", after.into())], vec![]);
        bench.provider.script("/mail", vec![asked]);
        let id = bench.stage();
        until("it waits", || bench.state(id) == ("ready".into(), format!("status {status}")));
        let due = format!(
            "SELECT (at - retrysafe.now_ms()) BETWEEN 7100000 AND 7200000 FROM retrysafe.effect WHERE id = {id}"
        );
        assert_eq!(bench.sql(&due), "t", "{status}");
    }
}

#[test]
fn the_receivers_reference_is_kept() {
    let bench = Bench::start(&format!("{KEYED}reference = \"/mail/id\"\n"));
    for (body, kept) in [
        (r#"{"mail":{"id":"msg_7"}}"#, "msg_7"),
        (r#"{"mail":{"id":7}}"#, "7"),
        (r#"{"mail":{}}"#, ""),
        ("no JSON", ""),
    ] {
        bench.provider.script("/mail", vec![reply(200, body)]);
        let id = bench.stage();
        assert_eq!(bench.wait_for(id, "delivered"), kept, "{body}");
    }
    let bench = Bench::start(&format!("{KEYED}reference = \"header:Location\"\n"));
    let created = Step::Reply(201, vec![("Location", "/mails/8".into())], vec![]);
    bench.provider.script("/mail", vec![created]);
    let id = bench.stage();
    assert_eq!(bench.wait_for(id, "delivered"), "/mails/8");
}

/// The head is the answer. A body that does not end costs no more than the reference.
#[test]
fn an_answer_that_does_not_end_is_not_read_to_its_end() {
    let bench = Bench::start(&format!("{KEYED}deadline = \"6s\"\nreference = \"/id\"\n"));
    let mut endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..64 {
        endless.extend_from_slice(b"4000\r\n");
        endless.extend(std::iter::repeat_n(b'x', 0x4000));
        endless.extend_from_slice(b"\r\n");
    }
    let silent = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{\"id\":";
    let broken = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"id\":\"msg\"}";
    let held = super::kit::Gate::default();
    for (what, step) in [
        ("endless", Step::Raw(endless)),
        ("broken off", Step::Raw(broken.to_vec())),
        ("silent", Step::RawHeld(silent.to_vec(), held.clone())),
    ] {
        let before = bench.provider.count("/mail");
        bench.provider.script("/mail", vec![step]);
        let id = bench.stage();
        assert_eq!(bench.wait_for(id, "delivered"), "", "{what}");
        assert_eq!(bench.provider.count("/mail"), before + 1, "{what}");
    }
    held.open();
}

#[test]
fn a_head_that_does_not_come_is_cut_off_at_the_deadline() {
    let bench = Bench::start(&format!("{UNKEYED}deadline = \"6s\"\n"));
    let held = super::kit::Gate::default();
    bench.provider.script("/mail", vec![Step::Held(held.clone(), Box::new(reply(200, "{}")))]);
    let id = bench.stage();
    let error = bench.wait_for(id, "unknown");
    assert!(error.contains("deadline"), "{error}");
    held.open();
    // 1xx are no answer, however many there are.
    let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(20_000);
    bench.provider.script("/mail", vec![Step::Raw(hints)]);
    let id = bench.stage();
    let error = bench.wait_for(id, "unknown");
    assert!(error.contains("too much"), "{error}");
    assert_eq!(bench.provider.count("/mail"), 2);
}

#[test]
fn a_redirect_is_not_followed() {
    let bench = Bench::start(&format!("{UNKEYED}failures_max = 1\n"));
    for status in [301, 302, 303, 307, 308] {
        let elsewhere = format!("http://{}/elsewhere", bench.provider.address);
        let away = Step::Reply(status, vec![("Location", elsewhere)], vec![]);
        bench.provider.script("/mail", vec![away]);
        let id = bench.stage();
        until("it was answered", || bench.state(id).1 == format!("status {status}"));
    }
    assert_eq!(bench.provider.count("/elsewhere"), 0);
}

/// A receiver that takes two at a time is sent two at a time, and the rest is no failure.
#[test]
fn a_destination_is_sent_as_many_at_once_as_it_takes() {
    let bench = Bench::start(&format!("{UNKEYED}at_once_per_destination = 2\nfailures_max = 1\n"));
    let gate = super::kit::Gate::default();
    bench.provider.script("/mail", vec![Step::Held(gate.clone(), Box::new(reply(200, "{}")))]);
    let staged: Vec<i64> = (0..6).map(|_| bench.stage()).collect();
    bench.provider.wait("/mail", 2);
    let handed_back =
        "SELECT count(*) FROM retrysafe.effect WHERE state = 1 AND fence > 0 AND marked_by IS NULL";
    until("one was given back", || bench.sql(handed_back) != "0");
    assert_eq!(bench.provider.count("/mail"), 2);
    gate.open();
    for id in staged {
        bench.wait_for(id, "delivered");
    }
    let failures = "SELECT coalesce(sum(failures), 0) FROM retrysafe.effect_done";
    assert_eq!((bench.sql(failures).as_str(), bench.provider.count("/mail")), ("0", 6));
}
