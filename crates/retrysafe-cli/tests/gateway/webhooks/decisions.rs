//! Who decides, when a webhook, a lookup, the owner and an operator may all know?

use serde_json::json;

use super::super::kit::{Gate, Step, key, reply, until};
use super::super::postgres::database;
use super::desk::{Desk, charge, desks, now};

#[test]
fn a_webhook_that_comes_first_decides_and_its_answer_is_replayed() {
    for desk in desks("") {
        let (key, record) = desk.lose("/pay");
        let event = charge("charge.succeeded", &record);
        assert_eq!(desk.deliver("evt_1", &event).status(), 200);
        desk.wait_for(&record, "completed");
        let replay = desk.gateway.post("/pay", &key, "{}");
        assert!(replay.is_replay() && replay.status() == 201, "{replay:?}");
        assert_eq!(replay.json(), event["charge"]);
        let (_, resolved) = desk.shown(&record);
        assert_eq!(resolved.len(), 1);
        assert_eq!(resolved[0]["judge"], "webhook");
        assert_eq!(resolved[0]["reason"], "event evt_1 of bank");

        // Twice, and again under another id: nothing is decided a second time.
        assert_eq!(desk.deliver("evt_1", &event).status(), 200);
        assert_eq!(desk.deliver("evt_2", &event).status(), 200);
        if desk.has_inbox {
            assert_eq!(desk.wait_for_event("evt_1", "applied")["copies"], 2);
            desk.wait_for_event("evt_2", "agrees");
        }
        // And one that says the opposite is shown, and changes nothing.
        let voided = charge("charge.voided", &record);
        assert_eq!(desk.deliver("evt_3", &voided).status(), 200);
        desk.wait_for_ended("contradicts", 1);
        if desk.has_inbox {
            let event = desk.wait_for_event("evt_3", "contradicts");
            assert_eq!(event["matched"], format!("record {record}"));
            assert!(event["reason"].as_str().unwrap().contains("not executed"), "{event}");
        }
        let (state, resolved) = desk.shown(&record);
        assert_eq!((state.as_str(), resolved.len()), ("completed", 1));
        assert_eq!(desk.upstream.count("/pay"), 1);
    }
}

#[test]
fn what_was_declined_is_the_answer_and_what_was_not_executed_runs_again() {
    for desk in desks("") {
        let (declined, record) = desk.lose("/declined");
        desk.deliver_until_taken("evt_1", &charge("charge.failed", &record));
        desk.wait_for(&record, "completed");
        let replay = desk.gateway.post("/declined", &declined, "{}");
        assert_eq!(
            (replay.status(), replay.text().as_str()),
            (402, "{\"error\": \"card_declined\"}")
        );

        let (voided, record) = desk.lose("/voided");
        desk.deliver_until_taken("evt_2", &charge("charge.voided", &record));
        desk.wait_for(&record, "failed_retryable");
        assert_eq!(desk.gateway.post("/voided", &voided, "{}").text(), "{\"ran\":\"again\"}");
        assert_eq!(desk.upstream.count("/voided"), 2);
    }
}

/// By the caller's key and by the request's id, which stand in no index: the unknown records are searched.
#[test]
fn an_event_finds_its_request_by_key_and_by_request_id() {
    for desk in desks("") {
        let (key, record) = desk.lose("/by-key");
        let mut event = charge("charge.succeeded", "");
        event["key"] = json!(key);
        desk.deliver_until_taken("evt_1", &event);
        desk.wait_for(&record, "completed");

        let (_, record) = desk.lose("/by-request");
        let seen = desk.upstream.seen_at("/by-request");
        let mut event = charge("charge.succeeded", "");
        event["request"] = json!(seen[0].header("x-request-id").unwrap());
        desk.deliver_until_taken("evt_2", &event);
        desk.wait_for(&record, "completed");
    }
}

/// A caller that chooses the key of another tenant, and loses its answer, does not get that tenant's.
#[test]
fn a_key_finds_a_request_of_its_own_tenant_only() {
    for desk in desks("scope = \"/tenant\"\n") {
        desk.upstream.script("/tenants", vec![Step::Drop]);
        let key = key();
        let post =
            |tenant: &str| desk.gateway.post_with("/tenants", &key, "{}", &[("X-Tenant", tenant)]);
        assert_eq!(post("mallory").code(), "outcome_unknown");
        let record = desk.record("/tenants");
        let mut event = charge("charge.succeeded", "");
        event["key"] = json!(key);
        let taken = if desk.has_inbox { 200 } else { 503 };
        assert_eq!(desk.deliver("evt_1", &event).status(), taken, "of nobody");
        event["tenant"] = json!("acme");
        assert_eq!(desk.deliver("evt_2", &event).status(), taken, "of another tenant");
        if desk.has_inbox {
            until("both were judged", || {
                ["evt_1", "evt_2"].iter().all(|id| !desk.event(id)["reason"].is_null())
            });
        }
        assert_eq!(desk.shown(&record).0, "unknown");
        event["tenant"] = json!("mallory");
        assert_eq!(desk.deliver("evt_3", &event).status(), 200);
        desk.wait_for(&record, "completed");
    }
}

/// The event comes while the request is still running, and decides once its answer is lost.
#[test]
fn an_early_event_waits_and_decides_when_the_answer_is_lost() {
    for desk in desks("") {
        let gate = Gate::default();
        desk.upstream.script("/pay", vec![Step::RawHeld(Vec::new(), gate.clone())]);
        let key = key();
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| desk.gateway.post("/pay", &key, "{}"));
            desk.upstream.wait("/pay", 1);
            let record = desk.record("/pay");
            let event = charge("charge.succeeded", &record);
            let told = desk.deliver("evt_1", &event);
            if desk.has_inbox {
                assert_eq!(told.status(), 200);
                desk.wait_for_event("evt_1", "waiting");
            } else {
                assert_eq!((told.status(), told.code().as_str()), (503, "webhook_not_taken"));
                assert!(told.header("retry-after").is_some());
            }
            assert_eq!(desk.shown(&record).0, "in_progress", "an event does not end an execution");
            gate.open();
            assert_eq!(caller.join().unwrap().code(), "outcome_unknown");
            if !desk.has_inbox {
                assert_eq!(desk.deliver("evt_1", &event).status(), 200);
            }
            desk.wait_for(&record, "completed");
            assert_eq!(desk.gateway.post("/pay", &key, "{}").json(), event["charge"]);
        });
    }
}

/// The owner's own answer comes after the event and before it is applied.
#[test]
fn a_late_owner_that_is_first_decides_and_the_event_agrees() {
    for desk in desks("") {
        let gate = Gate::default();
        let answer = Step::Held(gate.clone(), Box::new(reply(201, "{\"of\":\"the owner\"}")));
        desk.upstream.script("/pay", vec![answer]);
        let key = key();
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| desk.gateway.post("/pay", &key, "{}"));
            desk.upstream.wait("/pay", 1);
            let record = desk.record("/pay");
            let event = charge("charge.succeeded", &record);
            desk.deliver("evt_1", &event);
            gate.open();
            assert_eq!(caller.join().unwrap().status(), 201);
            desk.deliver_until_taken("evt_1", &event);
            desk.wait_for_ended("agrees", 1);
            assert_eq!(desk.shown(&record), ("completed".to_owned(), vec![]));
            assert_eq!(desk.gateway.post("/pay", &key, "{}").text(), "{\"of\":\"the owner\"}");
        });
    }
}

#[test]
fn an_operator_that_is_first_decides_and_a_contradiction_is_shown() {
    for desk in desks("") {
        let decide = |record: &str, verdict: &str| {
            let seen = desk.gateway.ask("GET", &format!("/api/v1/keys/{record}"), "").json();
            let told = desk.gateway.decide(&seen, "resolve", verdict);
            assert_eq!(told.status(), 200, "{}", told.text());
        };
        let (_, record) = desk.lose("/released");
        decide(&record, r#"{"outcome":"failed_retryable","reason":"the bank says no"}"#);
        assert_eq!(desk.deliver("evt_1", &charge("charge.succeeded", &record)).status(), 200);
        desk.wait_for_ended("contradicts", 1);
        let (state, resolved) = desk.shown(&record);
        assert_eq!((state.as_str(), resolved.len()), ("failed_retryable", 1));
        assert_eq!(resolved[0]["judge"], "operator");
        desk.gateway.wait_for_log("webhook_contradicts");

        let (_, record) = desk.lose("/completed");
        decide(&record, r#"{"outcome":"completed","reason":"seen at the bank"}"#);
        assert_eq!(desk.deliver("evt_2", &charge("charge.succeeded", &record)).status(), 200);
        desk.wait_for_ended("agrees", 1);
    }
}

/// A lookup and a webhook find out at the same time: one decides, and both bytes are right.
#[test]
fn a_webhook_and_a_lookup_at_once_decide_once() {
    let reconcile = "[reconcile]\nurl = \"/lookup?id={id}\"\nevery = \"20ms\"\nschedule = \"0s, 2×1s\"\n\
        response = \"/answer\"\n";
    for store in [None, Some(database())] {
        let desk = Desk::open_with(store.as_deref(), "", reconcile);
        let gate = Gate::default();
        let found = r#"{"state":"executed","answer":{"status":201,"body":"by lookup"}}"#;
        let held = Step::Held(gate.clone(), Box::new(reply(200, found)));
        desk.upstream.script("/lookup", vec![held, reply(200, found)]);
        let (key, record) = desk.lose("/pay");
        desk.upstream.wait("/lookup", 1);
        let event = charge("charge.succeeded", &record);
        std::thread::scope(|scope| {
            scope.spawn(|| gate.open());
            scope.spawn(|| desk.deliver_until_taken("evt_1", &event));
        });
        desk.wait_for(&record, "completed");
        until("the event has ended", || {
            let metrics = desk.gateway.metrics();
            ["applied", "agrees"].iter().any(|state| {
                metrics.contains(&format!("ended_total{{provider=\"bank\",state=\"{state}\"}} 1"))
            })
        });
        let (_, resolved) = desk.shown(&record);
        assert_eq!(resolved.len(), 1, "{resolved:?}");
        let replay = desk.gateway.post("/pay", &key, "{}").text();
        let by_webhook = resolved[0]["judge"] == "webhook";
        assert_eq!(
            replay,
            if by_webhook { event["charge"].to_string() } else { "by lookup".into() }
        );
    }
}

/// Proof that something was not executed is about one attempt. Where there were several, a person decides.
#[test]
fn an_event_about_a_former_attempt_does_not_release_a_later_one() {
    for desk in desks("fence = \"/fence\"\n") {
        desk.upstream.script("/pay", vec![Step::Drop]);
        let key = key();
        assert_eq!(desk.gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
        let record = desk.record("/pay");
        let release = r#"{"reason":"the first one is void"}"#;
        let seen = desk.gateway.unknown_at("/pay");
        assert_eq!(desk.gateway.decide(&seen, "release", release).status(), 200);
        assert_eq!(desk.gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
        let seen = desk.upstream.seen_at("/pay");
        let fence = |at: usize| seen[at].header("retrysafe-fence").unwrap().parse::<u64>().unwrap();

        // It does not say which attempt: it waits. It says the former one: that was known.
        let mut event = charge("charge.voided", &record);
        let told = desk.deliver("evt_1", &event).status();
        assert_eq!(told, if desk.has_inbox { 200 } else { 503 });
        event["fence"] = json!(fence(0));
        assert_eq!(desk.deliver("evt_2", &event).status(), 200);
        desk.wait_for_ended("agrees", 1);
        assert_eq!(desk.shown(&record).0, "unknown", "the second attempt is not decided");
        // That the former one was executed after all is a contradiction.
        event["type"] = json!("charge.succeeded");
        assert_eq!(desk.deliver("evt_3", &event).status(), 200);
        desk.wait_for_ended("contradicts", 1);
        assert_eq!(desk.shown(&record).0, "unknown");
        event["type"] = json!("charge.voided");
        event["fence"] = json!(fence(1));
        assert_eq!(desk.deliver("evt_4", &event).status(), 200);
        desk.wait_for(&record, "failed_retryable");
    }
}

/// The former attempt was released as not executed, the next one was answered, and then the provider says that the former one was
/// executed: two charges. Without the fence nobody could tell.
#[test]
fn a_former_attempt_that_was_executed_after_all_contradicts_a_completed_request() {
    for desk in desks("fence = \"/fence\"\n") {
        let (key, record) = desk.lose("/pay");
        let seen = desk.gateway.unknown_at("/pay");
        let release = r#"{"reason":"the bank says no"}"#;
        assert_eq!(desk.gateway.decide(&seen, "release", release).status(), 200);
        assert_eq!(desk.gateway.post("/pay", &key, "{}").status(), 201);
        let seen = desk.upstream.seen_at("/pay");
        let mut event = charge("charge.succeeded", &record);
        for (at, (id, state)) in [("evt_1", "contradicts"), ("evt_2", "agrees")].iter().enumerate()
        {
            event["fence"] = json!(seen[at].header("retrysafe-fence").unwrap());
            assert_eq!(desk.deliver(id, &event).status(), 200);
            desk.wait_for_ended(state, 1);
        }
        desk.gateway.wait_for_log("webhook_contradicts");
        if desk.has_inbox {
            let kept = desk.wait_for_event("evt_1", "contradicts");
            assert!(kept["reason"].as_str().unwrap().contains("twice"), "{kept}");
        }
        // A decline of the former one is no second charge.
        let mut event = charge("charge.failed", &record);
        event["fence"] = json!(seen[0].header("retrysafe-fence").unwrap());
        assert_eq!(desk.deliver("evt_3", &event).status(), 200);
        assert_eq!(desk.shown(&record).0, "completed");
    }
}

/// A key is used again when its record is gone. The provider then sends an event about the former request once more, signed anew, as Standard
/// Webhooks do: it must not decide about the new one.
#[test]
fn an_event_about_a_former_life_of_a_key_decides_nothing() {
    for desk in desks("fence = \"/fence\"\n") {
        let key = key();
        desk.upstream.script("/pay", vec![reply(201, "{}"), Step::Drop]);
        assert_eq!(desk.gateway.post("/pay", &key, "{}").status(), 201);
        let record = desk.record("/pay");
        let path = format!("/api/v1/keys/{record}/expire");
        assert_eq!(desk.gateway.ask("POST", &path, r#"{"reason":"reused"}"#).status(), 200);
        assert_eq!(desk.gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
        assert_eq!(desk.record("/pay"), record, "the same name");
        let seen = desk.upstream.seen_at("/pay");
        let fence = |at: usize| json!(seen[at].header("retrysafe-fence").unwrap());

        let taken = if desk.has_inbox { 200 } else { 503 };
        for (id, kind) in [("evt_1", "charge.voided"), ("evt_2", "charge.succeeded")] {
            let mut event = charge(kind, &record);
            event.as_object_mut().unwrap().remove("created");
            assert_eq!(desk.deliver(id, &event).status(), taken, "{kind} without a time");
            if desk.has_inbox {
                until("it was judged", || {
                    let why = desk.event(id)["reason"].as_str().unwrap_or_default().to_owned();
                    why.contains("does not say when it happened")
                });
            }
            event["fence"] = fence(0);
            assert_eq!(desk.deliver(&format!("{id}f"), &event).status(), taken, "{kind}, fence");
        }
        assert_eq!(desk.shown(&record), ("unknown".to_owned(), vec![]));
        let ended = desk.gateway.metrics();
        assert!(!ended.contains("state=\"contradicts\""), "nothing is wrong with either request");
        // With the fence of the new one it is about the new one, whenever it happened.
        let mut event = charge("charge.succeeded", &record);
        event.as_object_mut().unwrap().remove("created");
        event["fence"] = fence(1);
        assert_eq!(desk.deliver("evt_3", &event).status(), 200);
        desk.wait_for(&record, "completed");
    }
}

/// The key's former request ended a minute ago, and its event comes late: its time is within the clocks' difference.
#[test]
fn an_event_that_is_a_little_older_than_its_request_waits() {
    for desk in desks("") {
        let (_, record) = desk.lose("/pay");
        let mut event = charge("charge.succeeded", &record);
        event["created"] = json!(now() - 60);
        let taken = if desk.has_inbox { 200 } else { 503 };
        assert_eq!(desk.deliver("evt_1", &event).status(), taken);
        if desk.has_inbox {
            until("it was judged", || {
                let why = desk.event("evt_1")["reason"].as_str().unwrap_or_default().to_owned();
                why.contains("shortly before")
            });
        }
        assert_eq!(desk.shown(&record), ("unknown".to_owned(), vec![]));
        event["created"] = json!(now());
        assert_eq!(desk.deliver("evt_2", &event).status(), 200);
        desk.wait_for(&record, "completed");
    }
}

/// A decline of the first attempt that comes late would be the answer to the second one, which may have charged.
#[test]
fn an_event_that_may_be_about_a_former_attempt_does_not_decide_about_a_later_one() {
    for desk in desks("fence = \"/fence\"\n") {
        desk.upstream.script("/pay", vec![Step::Drop]);
        let key = key();
        assert_eq!(desk.gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
        let record = desk.record("/pay");
        let seen = desk.gateway.unknown_at("/pay");
        let release = r#"{"reason":"the first one is void"}"#;
        assert_eq!(desk.gateway.decide(&seen, "release", release).status(), 200);
        assert_eq!(desk.gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
        let mut event = charge("charge.failed", &record);
        let taken = if desk.has_inbox { 200 } else { 503 };
        assert_eq!(desk.deliver("evt_1", &event).status(), taken, "of which attempt?");
        event["fence"] = json!("the last one");
        assert_eq!(desk.deliver("evt_2", &event).status(), taken, "not a fence");
        if desk.has_inbox {
            until("both were judged", || {
                ["evt_1", "evt_2"].iter().all(|id| !desk.event(id)["reason"].is_null())
            });
        }
        assert_eq!(desk.shown(&record).0, "unknown");
        let seen = desk.upstream.seen_at("/pay");
        event["fence"] = json!(seen[1].header("retrysafe-fence").unwrap());
        assert_eq!(desk.deliver("evt_3", &event).status(), 200);
        desk.wait_for(&record, "completed");
    }
}

/// The first name finds a request that is still running, and a later name another one that is unknown: that one has nothing to do with it.
#[test]
fn a_later_name_does_not_lead_to_another_request() {
    for desk in desks("") {
        let (other_key, other) = desk.lose("/other");
        let gate = Gate::default();
        desk.upstream.script("/pay", vec![Step::RawHeld(Vec::new(), gate.clone())]);
        let key = key();
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| desk.gateway.post("/pay", &key, "{}"));
            desk.upstream.wait("/pay", 1);
            let mut event = charge("charge.succeeded", &desk.record("/pay"));
            event["key"] = json!(other_key);
            let taken = if desk.has_inbox { 200 } else { 503 };
            assert_eq!(desk.deliver("evt_1", &event).status(), taken);
            if desk.has_inbox {
                until("it was judged", || !desk.event("evt_1")["reason"].is_null());
            }
            assert_eq!(desk.shown(&other), ("unknown".to_owned(), vec![]));
            gate.open();
            assert_eq!(caller.join().unwrap().code(), "outcome_unknown");
        });
    }
}

/// Nothing ever fits: over PostgreSQL the event is listed as unmatched, over the disk store its sender is told to stop when it is old.
#[test]
fn an_event_that_never_matches_is_listed_or_ends_and_decides_nothing() {
    for desk in desks("wait = \"5s\"\n") {
        let (_, record) = desk.lose("/pay");
        let mut event = charge("charge.succeeded", &"ab".repeat(32));
        if desk.has_inbox {
            assert_eq!(desk.deliver("evt_1", &event).status(), 200);
            desk.wait_for_event("evt_1", "unmatched");
        } else {
            assert_eq!(desk.deliver("evt_1", &event).status(), 503);
            event["created"] = json!(now() - 10);
            assert_eq!(desk.deliver("evt_1", &event).status(), 200);
            desk.gateway.wait_for_log("webhook_unmatched");
        }
        desk.wait_for_ended("unmatched", 1);
        // The time of an event decides nothing about anything else either.
        assert_eq!(desk.shown(&record).0, "unknown");
        // An event that happened before the request began is about another one with the same key.
        let mut former = charge("charge.succeeded", &record);
        former["created"] = json!(now() - 3_600);
        assert_eq!(desk.deliver("evt_2", &former).status(), 200);
        desk.wait_for_ended("unmatched", 2);
        assert_eq!(desk.shown(&record).0, "unknown");
    }
}
