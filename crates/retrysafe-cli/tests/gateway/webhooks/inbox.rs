//! Does an operator see events, and have them judged anew?

use serde_json::{Value, json};

use super::super::dashboard::Reader;
use super::super::kit::{Step, TOKEN, key, until};
use super::super::postgres::database;
use super::desk::{Desk, charge, tables};

#[test]
fn events_are_listed_shown_and_replayed_by_new_rules() {
    let mut desk = Desk::open(Some(&database()), "");
    let (key, record) = desk.lose("/pay");
    assert_eq!(desk.deliver("evt_1", &charge("charge.captured", &record)).status(), 200);
    let event = desk.wait_for_event("evt_1", "ignored");
    let id = event["id"].as_i64().unwrap().to_string();
    assert!(event["reason"].as_str().unwrap().contains("no rule fits"), "{event}");

    let (code, out, err) = desk.run(&["inbox", "list", "--state", "ignored", "--provider", "bank"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("evt_1") && out.contains("ignored"), "{out}");
    assert!(desk.run(&["inbox", "list", "--state", "applied"]).1.contains("no events"));
    let (_, out, _) = desk.run(&["inbox", "show", &id]);
    for part in ["charge.captured", &record, "payload_head"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    // By the same rules it says the same.
    let (_, out, _) = desk.run(&["inbox", "replay", &id, "--reason", "looked again"]);
    assert!(out.contains("ignored"), "{out}");

    // The operator has learned what that type means.
    let folder = desk.gateway.folder.display().to_string();
    let toml = tables(&folder, "")
        .replace("\"charge.succeeded\"", "[\"charge.succeeded\", \"charge.captured\"]");
    desk.gateway.toml = toml.clone();
    desk.gateway.configure(&toml);
    desk.gateway.signal("HUP");
    desk.gateway.wait_for_log("configuration reloaded");
    let (code, out, err) = desk.run(&["inbox", "replay", &id, "--reason", "captured is paid"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains(&format!("event {id} is applied now")), "{out}");
    assert!(desk.gateway.post("/pay", &key, "{}").is_replay());
    let (code, _, err) = desk.run(&["inbox", "replay", &id, "--reason", "again"]);
    assert_eq!(code, 1);
    assert!(err.contains("nothing to replay"), "{err}");
    let (code, _, err) = desk.run(&["inbox", "show", "99999"]);
    assert!(code == 1 && err.contains("nothing here"), "{err}");
    assert_eq!(desk.gateway.ask("GET", "/api/v1/inbox?state=odd", "").code(), "invalid");
    let no_reason = desk.gateway.ask("POST", &format!("/api/v1/inbox/{id}/replay"), "{}");
    assert_eq!(no_reason.code(), "invalid");
    until("it is gauged", || {
        desk.gateway.metrics().contains("retrysafe_inbox_waiting{provider=\"bank\"} 0")
    });
}

/// One screen: what was told about a request that nobody knows about, also what has decided nothing.
#[test]
fn a_request_is_shown_with_the_events_about_it() {
    let desk = Desk::open(Some(&database()), "");
    let (key, record) = desk.lose("/pay");
    let mut undated = charge("charge.succeeded", &record);
    undated.as_object_mut().unwrap().remove("created");
    assert_eq!(desk.deliver("evt_waits", &undated).status(), 200);
    assert_eq!(desk.deliver("evt_odd", &charge("charge.captured", &record)).status(), 200);
    assert_eq!(
        desk.deliver("evt_other", &charge("charge.succeeded", &"ab".repeat(32))).status(),
        200
    );
    let shown = || desk.gateway.ask("GET", &format!("/api/v1/keys/{record}"), "").json();
    let states = || -> Vec<(String, String)> {
        let shown = shown();
        let text = |event: &serde_json::Value, name: &str| event[name].as_str().unwrap().to_owned();
        let events = shown["events"].as_array().unwrap().iter();
        events.map(|event| (text(event, "event_id"), text(event, "state"))).collect()
    };
    let told = |id: &str, state: &str| (id.to_owned(), state.to_owned());
    until("both are there, and no other", || {
        states() == [told("evt_odd", "ignored"), told("evt_waits", "waiting")]
    });
    let id = shown()["events"][1]["id"].to_string();
    let (code, screen, err) = desk.run(&["unknown", "show", &record[..12]]);
    assert_eq!(code, 0, "{screen}{err}");
    for part in ["evt_waits", "evt_odd", &format!("retrysafe inbox show {id}"), "unknown release"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    // What has decided is there too, and what contradicts leads to its event.
    assert_eq!(desk.deliver("evt_paid", &charge("charge.succeeded", &record)).status(), 200);
    desk.wait_for(&record, "completed");
    assert_eq!(desk.deliver("evt_void", &charge("charge.voided", &record)).status(), 200);
    until("all of them", || {
        let states = states();
        let has = |id, state| states.contains(&told(id, state));
        has("evt_paid", "applied") && has("evt_void", "contradicts")
    });
    assert!(desk.gateway.post("/pay", &key, "{}").is_replay());
    // Over the disk store there is nothing to show, and that is said.
    let disk = Desk::open(None, "");
    let (_, record) = disk.lose("/pay");
    let shown = disk.gateway.ask("GET", &format!("/api/v1/keys/{record}"), "").json();
    assert!(shown["events"].is_null() && shown["effects"].is_null(), "{shown}");
}

/// Two tenants may choose the same key. The story of one's request showed the other's events, with what the provider had said about them.
#[test]
fn events_about_another_tenants_request_with_the_same_key_are_not_shown() {
    let desk = Desk::open(Some(&database()), "scope = \"/tenant\"\n");
    desk.upstream.script("/tenants", vec![Step::Drop, Step::Drop]);
    let key = key();
    let lose = |tenant: &str| {
        let told = desk.gateway.post_with("/tenants", &key, "{}", &[("X-Tenant", tenant)]);
        assert_eq!(told.code(), "outcome_unknown", "{}", told.text());
        desk.record("/tenants")
    };
    let [acme, other] = ["acme", "other"].map(lose);
    assert_ne!(acme, other);
    // None of them decides: none says when it happened.
    let event = |tenant: Value| json!({"type": "charge.succeeded", "key": key, "tenant": tenant, "charge": {}});
    for (id, event) in [
        ("evt_acme", event(json!("acme"))),
        ("evt_other", event(json!("other"))),
        ("evt_nobodys", event(Value::Null)),
        (
            "evt_by_id",
            json!({"type": "charge.succeeded", "key": key, "record": other, "charge": {}}),
        ),
    ] {
        assert_eq!(desk.deliver(id, &event).status(), 200, "{id}");
        desk.wait_for_event(id, "waiting");
    }
    let story = |record: &str| -> Vec<(String, String)> {
        let shown = desk.gateway.ask("GET", &format!("/api/v1/keys/{record}"), "").json();
        let text = |event: &Value, name: &str| event[name].as_str().unwrap().to_owned();
        let events = shown["events"].as_array().unwrap().iter();
        events.map(|event| (text(event, "event_id"), text(event, "owner"))).collect()
    };
    let told = |id: &str, owner: &str| (id.to_owned(), owner.to_owned());
    assert_eq!(story(&acme), [told("evt_nobodys", "unclear"), told("evt_acme", "this")]);
    assert_eq!(
        story(&other),
        [told("evt_by_id", "this"), told("evt_nobodys", "unclear"), told("evt_other", "this")]
    );
    let page = Reader::logged_in(&desk.gateway, TOKEN).get(&format!("/keys/{acme}")).text();
    assert!(page.contains("evt_acme") && page.contains("Perhaps another caller"), "{page}");
    assert!(!page.contains("evt_other") && !page.contains("evt_by_id"), "{page}");
}

#[test]
fn ended_events_are_forgotten_after_their_time() {
    // Longer than a machine stalls: the event must be seen before it is forgotten.
    let desk = Desk::open(Some(&database()), "keep = \"10s\"\n");
    assert_eq!(desk.deliver("evt_1", &charge("charge.updated", "")).status(), 200);
    desk.wait_for_event("evt_1", "ignored");
    until("it is gone", || desk.event("evt_1").is_null());
}

#[test]
fn a_store_without_an_inbox_says_so() {
    let desk = Desk::open(None, "");
    let told = desk.gateway.ask("GET", "/api/v1/inbox", "");
    assert_eq!((told.status(), told.code().as_str()), (501, "no_inbox"));
}
