//! What of webhooks that are forged, stale, odd or enormous?

use serde_json::json;

use super::super::kit::{raw, request, send, until};
use super::super::postgres::{database, new_database, server};
use super::desk::{Desk, OTHER_SECRET, SECRET, charge, desks, now, signed};

#[test]
fn forged_stale_and_foreign_events_are_refused_and_change_nothing() {
    for desk in desks("") {
        let (_, record) = desk.lose("/pay");
        let body = charge("charge.succeeded", &record).to_string();
        let body = body.as_bytes();
        let refused = |provider: &str, secret: &str, time: u64| {
            let told = desk.deliver_as(provider, secret, "evt_1", time, body);
            assert_eq!((told.status(), told.code().as_str()), (400, "webhook_refused"), "{told:?}");
        };
        refused("bank", OTHER_SECRET, now());
        refused("other", SECRET, now());
        refused("bank", SECRET, now() - 301);
        refused("bank", SECRET, now() + 330);
        // One bit of the body, of the signature, of the time, of the id.
        let right = signed("/hooks/bank", SECRET, "evt_1", now(), body);
        let places = [("\"type\"", 8), ("v1,", 5), ("webhook-timestamp: 1", 22), ("evt_1", 4)];
        for (place, offset) in places {
            let mut bytes = right.clone();
            let at = bytes.windows(place.len()).position(|part| part == place.as_bytes()).unwrap();
            bytes[at + offset] ^= 1;
            let told = raw(desk.gateway.address, &bytes, false);
            assert!(told.iter().all(|told| told.status() == 400), "{place}: {told:?}");
        }
        // A header twice; no header at all.
        let text = String::from_utf8(right.clone()).unwrap();
        let line = text.lines().find(|line| line.starts_with("webhook-signature")).unwrap();
        let twice = text.replacen(line, &format!("{line}\r\n{line}"), 1);
        assert_eq!(send(desk.gateway.address, twice.as_bytes()).code(), "webhook_refused");
        let none = text.replacen(&format!("{line}\r\n"), "", 1);
        assert_eq!(send(desk.gateway.address, none.as_bytes()).code(), "webhook_refused");
        assert_eq!(desk.shown(&record).0, "unknown");
        assert_eq!(desk.upstream.count("/hooks/bank"), 0, "the upstream never sees them");

        // Another provider that is known, with its own secret, may not speak of this route.
        let told = desk.deliver_as("other", OTHER_SECRET, "evt_1", now(), body);
        assert_eq!(told.status(), if desk.has_inbox { 200 } else { 503 });
        assert_eq!(desk.shown(&record).0, "unknown");
        let metrics = desk.gateway.metrics();
        for reason in
            ["signature_wrong", "too_old", "too_early", "header_repeated", "header_missing"]
        {
            let line = format!("refused_total{{provider=\"bank\",reason=\"{reason}\"}}");
            assert!(metrics.contains(&line), "{reason}: {metrics}");
        }
        // And the true one still decides.
        assert_eq!(send(desk.gateway.address, &right).status(), 200);
        desk.wait_for(&record, "completed");
    }
}

#[test]
fn odd_events_are_kept_as_malformed_or_ignored_and_large_ones_refused() {
    for desk in desks("") {
        let (_, record) = desk.lose("/pay");
        let deliver = |id: &str, body: &[u8]| desk.deliver_as("bank", SECRET, id, now(), body);
        // No JSON; an id of 10,000 characters; a name that is there twice, or is no name; a type that no rule knows.
        assert_eq!(deliver("evt_1", b"not JSON").status(), 200);
        assert_eq!(deliver("evt_1", b"not JSON").status(), 200, "and again");
        let event = charge("charge.succeeded", &record);
        assert_eq!(deliver(&"x".repeat(10_000), event.to_string().as_bytes()).status(), 200);
        desk.wait_for_ended("malformed", if desk.has_inbox { 2 } else { 3 });
        let twice =
            format!(r#"{{"type":"charge.succeeded","record":"{record}","record":"{record}"}}"#);
        let boolean = r#"{"type":"charge.succeeded","record":true}"#;
        let number = r#"{"type":"charge.succeeded","record":17}"#;
        let unruly = format!(r#"{{"type":"charge.updated","record":"{record}"}}"#);
        for (at, body) in [&twice, boolean, number, &unruly].into_iter().enumerate() {
            assert_eq!(deliver(&format!("odd_{at}"), body.as_bytes()).status(), 200, "{body}");
        }
        desk.wait_for_ended("ignored", 4);
        assert_eq!(desk.shown(&record).0, "unknown");

        // 200 MB that are only announced, two that come in pieces, and another method.
        let head =
            "POST /hooks/bank HTTP/1.1\r\nHost: api.test\r\nContent-Length: 200000000\r\n\r\n";
        let told = raw(desk.gateway.address, head.as_bytes(), false);
        assert_eq!(told[0].code(), "request_too_large");
        let piece = format!("10000\r\n{}\r\n", "x".repeat(0x10000)).repeat(32);
        let chunked = format!(
            "POST /hooks/bank HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n{piece}0\r\n\r\n"
        );
        let told = raw(desk.gateway.address, chunked.as_bytes(), false);
        assert!(told.iter().all(|told| told.code() == "request_too_large"), "{told:?}");
        let get = request("GET", "/hooks/bank", &[], b"");
        assert_eq!(send(desk.gateway.address, &get).status(), 405);
        assert!(desk.gateway.peak_bytes() < 300 << 20);

        // Chunked, and with a foreign content type, a true event is a true event.
        let body = event.to_string();
        let right =
            String::from_utf8(signed("/hooks/bank", SECRET, "evt_9", now(), body.as_bytes()))
                .unwrap();
        let right = right.replace("Content-Type: application/json", "Content-Type: text/html");
        let (head, _) = right.split_once("\r\n\r\n").unwrap();
        let length = format!("Content-Length: {}", body.len());
        let head = head.replace(&length, "Transfer-Encoding: chunked");
        let chunked = format!("{head}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        assert_eq!(send(desk.gateway.address, chunked.as_bytes()).status(), 200);
        desk.wait_for(&record, "completed");
    }
}

/// While a secret is exchanged either verifies, and no process is started or signalled.
#[test]
fn a_secret_is_exchanged_while_the_gateway_runs() {
    let desk = Desk::open(None, "");
    let deliver = |secret: &str| {
        let event = charge("charge.updated", "");
        desk.deliver_as("bank", secret, "evt", now(), event.to_string().as_bytes()).status()
    };
    assert_eq!((deliver(SECRET), deliver(OTHER_SECRET)), (200, 400));
    std::fs::write(desk.gateway.folder.join("bank-secret"), OTHER_SECRET).unwrap();
    until("the new secret counts", || deliver(OTHER_SECRET) == 200);
    assert_eq!(deliver(SECRET), 400, "the old one does not");
    std::fs::remove_file(desk.gateway.folder.join("bank-secret")).unwrap();
    until("nothing is believed without a secret", || deliver(OTHER_SECRET) == 503);
    assert!(!desk.gateway.log().contains("plJ3nmy"), "a secret stands in no log");
}

/// Two gateways over one database are told the same at the same moment.
#[test]
fn two_gateways_that_receive_one_event_decide_once() {
    let store = database();
    let desk = Desk::open(Some(&store), "");
    let second = Desk::open(Some(&store), "");
    for round in 0..5 {
        let (_, record) = desk.lose(&format!("/pay-{round}"));
        let event = charge("charge.succeeded", &record);
        let id = format!("evt_{round}");
        std::thread::scope(|scope| {
            let first = scope.spawn(|| desk.deliver(&id, &event).status());
            let other = scope.spawn(|| second.deliver(&id, &event).status());
            assert_eq!((first.join().unwrap(), other.join().unwrap()), (200, 200));
        });
        desk.wait_for(&record, "completed");
        assert_eq!(desk.shown(&record).1.len(), 1);
        assert_eq!(desk.wait_for_event(&id, "applied")["copies"], 2);
    }
}

/// The process dies after the event is kept and before it is applied, or after it has decided and before that is written down.
#[test]
fn an_event_that_a_dead_process_has_left_is_applied_by_the_next() {
    let database = new_database();
    let desk = Desk::open(Some(&server().url(&database)), "");
    let (_, record) = desk.lose("/pay");
    let event = charge("charge.succeeded", &record);
    // What a process has committed that dies before it judges.
    let keep = json!({
        "provider": "bank", "event_id": "evt_1", "state": 0, "names": [format!("id:{record}")], "wait_ms": 60_000,
    });
    server().sql(
        &database,
        &format!("SELECT retrysafe.inbox_v1('keep', '{keep}', convert_to('{event}', 'UTF8'))"),
    );
    desk.wait_for(&record, "completed");
    desk.wait_for_event("evt_1", "applied");
    // The same event waits once more, as if its end had not been written down: it was this one that has decided.
    let again =
        "UPDATE retrysafe.inbox SET state = 0, look_at = 0, ended_at = NULL, matched = NULL";
    server().sql(&database, again);
    desk.wait_for_event("evt_1", "applied");
    assert_eq!(desk.shown(&record).1.len(), 1);
    // A copy that comes after its record is gone finds nothing, and nothing is made of it.
    assert_eq!(
        desk.gateway
            .ask("POST", &format!("/api/v1/keys/{record}/expire"), "{\"reason\":\"test\"}")
            .status(),
        200
    );
    assert_eq!(desk.deliver("evt_1", &event).status(), 200);
    assert_eq!(desk.deliver("evt_2", &event).status(), 200);
    desk.wait_for_event("evt_2", "waiting");
    assert_eq!(desk.gateway.ask("GET", &format!("/api/v1/keys/{record}"), "").status(), 404);
}

/// A gateway without its database keeps nothing, so it takes nothing.
#[test]
fn an_event_that_cannot_be_kept_is_not_taken() {
    let cluster = super::super::cluster::Cluster::start(&[]);
    let store = format!("{}?deadline=1s", cluster.url("postgres"));
    let desk = Desk::open(Some(&store), "");
    cluster.kill();
    let told = desk.deliver("evt_1", &charge("charge.succeeded", &"ab".repeat(32)));
    assert_eq!((told.status(), told.code().as_str()), (503, "webhook_not_taken"));
    cluster.up();
    until("it is taken", || {
        desk.deliver("evt_1", &charge("charge.succeeded", &"ab".repeat(32))).status() == 200
    });
}
