//! Does a webhook decide about effects and about calls of flows?

use serde_json::{Value, json};

use super::super::postgres::{new_database, server};
use super::desk::{Desk, MATCH, charge, tables};

const MORE: &str = "effects = [\"charge\"]\nreference = \"/charge/id\"\n\
    calls = [{ flow = \"ride\", phase = \"charge\", place = 0 }]\n";

struct Office {
    database: String,
    desk: Desk,
}

impl Office {
    fn open() -> Self {
        let database = new_database();
        let matches = "[{ by = \"downstream_key\", at = \"/sent\" }, { by = \"effect\", at = \"/effect\" }, \
            { by = \"reference\", at = \"/charge/id\" }]";
        let url = server().url(&database);
        let desk = Desk::open_as(Some(&url), |folder| tables(folder, MORE).replace(MATCH, matches));
        Self { database, desk }
    }

    fn sql(&self, sql: &str) -> String {
        server().sql(&self.database, sql)
    }

    /// An effect that is unknown after its first delivery: its number and key.
    fn unknown(&self, kind: &str, fence: i64) -> (i64, String) {
        let staged =
            self.sql(&format!("SELECT id, downstream_key FROM retrysafe.stage('{kind}', 'x')"));
        let (id, key) = staged.split_once('|').unwrap();
        self.sql(&format!(
            "UPDATE retrysafe.effect SET state = 3, fence = {fence}, marked_by = {fence} WHERE id = {id}"
        ));
        (id.parse().unwrap(), key.to_owned())
    }

    fn effect(&self, id: i64) -> Value {
        self.desk.gateway.ask("GET", &format!("/api/v1/outbox/{id}"), "").json()
    }

    fn tell(&self, event_id: &str, kind: &str, more: Value) -> Value {
        let mut event = charge(kind, "");
        for (name, value) in more.as_object().unwrap() {
            event[name] = value.clone();
        }
        assert_eq!(self.desk.deliver(event_id, &event).status(), 200);
        event
    }
}

#[test]
fn an_event_decides_about_an_unknown_effect_of_its_provider_alone() {
    let office = Office::open();
    let (by_key, key) = office.unknown("charge", 1);
    office.tell("evt_1", "charge.succeeded", json!({"sent": key, "charge": {"id": "ch_7"}}));
    office.desk.wait_for_event("evt_1", "applied");
    let shown = office.effect(by_key);
    assert_eq!((&shown["state"], &shown["reference"]), (&json!("delivered"), &json!("ch_7")));
    assert_eq!(shown["decisions"][0]["who"], "webhook bank");

    // What is known agrees or contradicts, also by the provider's own name for it.
    office.tell("evt_2", "charge.succeeded", json!({"sent": key}));
    office.desk.wait_for_event("evt_2", "agrees");
    office.tell("evt_3", "charge.voided", json!({"charge": {"id": "ch_7"}}));
    let event = office.desk.wait_for_event("evt_3", "contradicts");
    assert_eq!(event["matched"], format!("effect {by_key}"));

    // By number; what had no effect is sent again.
    let (by_number, _) = office.unknown("charge", 1);
    office.tell("evt_4", "charge.voided", json!({"effect": by_number, "charge": {}}));
    office.desk.wait_for_event("evt_4", "applied");
    assert_eq!(office.effect(by_number)["state"], "ready");

    // What is refused for good was not done, and nobody wants it done again.
    let (refused, refused_key) = office.unknown("charge", 1);
    office.tell("evt_8", "charge.failed", json!({"sent": refused_key, "charge": {"code": "x"}}));
    office.desk.wait_for_event("evt_8", "applied");
    assert_eq!(office.effect(refused)["state"], "cancelled");
    office.tell("evt_9", "charge.failed", json!({"sent": key, "charge": {"code": "x"}}));
    office.desk.wait_for_event("evt_9", "contradicts");

    // Another provider's kind is not found, and after several deliveries nobody knows which one had no effect.
    let (foreign, foreign_key) = office.unknown("refund", 1);
    let (second, second_key) = office.unknown("charge", 3);
    office.tell("evt_5", "charge.succeeded", json!({"sent": foreign_key, "charge": {}}));
    office.tell("evt_6", "charge.voided", json!({"sent": second_key, "charge": {}}));
    let event = office.desk.wait_for_event("evt_6", "waiting");
    super::super::kit::until("it says why", || {
        office.desk.event("evt_6")["reason"].as_str().is_some_and(|why| why.contains("deliveries"))
    });
    assert!(event["matched"].is_null());
    for id in [foreign, second] {
        assert_eq!(office.effect(id)["state"], "unknown");
    }
    // An early one: the event is here before the effect is unknown.
    office.tell("evt_7", "charge.succeeded", json!({"sent": "not-yet", "charge": {}}));
    office.desk.wait_for_event("evt_7", "waiting");
    let (early, _) = office.unknown("charge", 2);
    office
        .sql(&format!("UPDATE retrysafe.effect SET downstream_key = 'not-yet' WHERE id = {early}"));
    office.desk.wait_for_event("evt_7", "applied");
    assert_eq!(office.effect(early)["state"], "delivered");
}

/// Evidence about a call moves its flow. It does not complete it.
#[test]
fn an_event_about_a_call_moves_the_flow_to_the_next_phase() {
    let office = Office::open();
    let begin = "CALL retrysafe.begin(retrysafe.scope('t', 'acme'), 'ride-1', \
        retrysafe.fingerprint('POST', '/rides', '{}', 'application/json'), ARRAY['ride/1'])";
    let begun = office.sql(begin);
    let begun: Vec<&str> = begun.split('|').collect();
    let (id, fence) = (begun[1], begun[2]);
    office.sql(&format!("CALL retrysafe.start('{id}', {fence}, 'ride/1', '{{}}')"));
    office.sql(&format!(
        "CALL retrysafe.about_to_call('{id}', {fence}, 'before 0', 'charge', 'request', NULL)"
    ));
    let key = office.sql(&format!("SELECT retrysafe.downstream_key('{id}', 'charge')"));
    let record = id.trim_start_matches("\\x").to_owned();
    // Early: the call is still under way.
    let event =
        office.tell("evt_1", "charge.succeeded", json!({"sent": key, "charge": {"id": "ch_9"}}));
    office.desk.wait_for_event("evt_1", "waiting");
    office.sql(&format!(
        "CALL retrysafe.settle('{id}', {fence}, 'unknown', from_point => 'calling 0')"
    ));
    office.desk.wait_for_event("evt_1", "applied");
    let shown = office.desk.gateway.ask("GET", &format!("/api/v1/keys/{record}"), "").json();
    assert_eq!(shown["state"], "in_progress", "{shown}");
    let (_, resolved) = office.desk.shown(&record);
    assert_eq!((resolved.len(), &resolved[0]["judge"]), (1, &json!("webhook")));
    // The next phase sees the charge as its call's result.
    let again = office.sql(begin);
    assert!(again.starts_with("execute"), "{again}");
    let result: String =
        event["charge"].to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
    assert!(again.contains(&result), "{again}");
}
