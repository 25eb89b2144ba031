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

    /// An effect that is unknown after one delivery: its number and key.
    fn unknown(&self, kind: &str) -> (i64, String) {
        let (id, key) = self.staged(kind);
        self.lose_answer(id, kind, None);
        (id, key)
    }

    fn staged(&self, kind: &str) -> (i64, String) {
        let staged =
            self.sql(&format!("SELECT id, downstream_key FROM retrysafe.stage('{kind}', 'x')"));
        let (id, key) = staged.split_once('|').unwrap();
        (id.parse().unwrap(), key.to_owned())
    }

    /// Claims an effect and marks it as a worker does: its fence.
    fn send(&self, id: i64, kind: &str, resend_ms: Option<u64>) -> i64 {
        let claimed = self
            .sql(&format!("SELECT id, fence FROM retrysafe.claim_effects_v1('{kind}', 1, 60000)"));
        let (claimed, fence) = claimed.split_once('|').unwrap();
        assert_eq!(claimed, id.to_string());
        let resend = resend_ms.map_or("NULL".to_owned(), |ms| ms.to_string());
        let mark = format!(
            "SELECT is_sendable FROM retrysafe.mark_effects_v1('{{{id}}}', '{{{fence}}}', '{{7}}', {resend})"
        );
        assert_eq!(self.sql(&mark), "t");
        fence.parse().unwrap()
    }

    /// Says how a delivery ended: the state in which the effect is then.
    fn finish(&self, id: i64, fence: i64, end: u8) -> String {
        self.sql(&format!(
            "SELECT state FROM retrysafe.finish_effects_v1('{{{id}}}', '{{{fence}}}', '{{{end}}}', '{{0}}', '{{NULL}}', '{{NULL}}', 20)"
        ))
    }

    /// Delivers an effect whose answer is lost: it is unknown, or ready where its receiver remembers the key.
    fn lose_answer(&self, id: i64, kind: &str, resend_ms: Option<u64>) {
        let fence = self.send(id, kind, resend_ms);
        let state = self.finish(id, fence, 3);
        assert_eq!(state, if resend_ms.is_some() { "1" } else { "3" });
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
    let (by_key, key) = office.unknown("charge");
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
    let (by_number, _) = office.unknown("charge");
    office.tell("evt_4", "charge.voided", json!({"effect": by_number, "charge": {}}));
    office.desk.wait_for_event("evt_4", "applied");
    assert_eq!(office.effect(by_number)["state"], "ready");
    // Nobody sends it here, and the next claim is about another one.
    office.sql(&format!("SELECT retrysafe.cancel_effect_v1({by_number})"));

    // What is refused for good was not done, and nobody wants it done again.
    let (refused, refused_key) = office.unknown("charge");
    office.tell("evt_8", "charge.failed", json!({"sent": refused_key, "charge": {"code": "x"}}));
    office.desk.wait_for_event("evt_8", "applied");
    assert_eq!(office.effect(refused)["state"], "cancelled");
    office.tell("evt_9", "charge.failed", json!({"sent": key, "charge": {"code": "x"}}));
    office.desk.wait_for_event("evt_9", "contradicts");

    // Another provider's kind is not found.
    let (foreign, foreign_key) = office.unknown("refund");
    office.tell("evt_5", "charge.succeeded", json!({"sent": foreign_key, "charge": {}}));
    office.desk.wait_for_event("evt_5", "waiting");
    assert_eq!(office.effect(foreign)["state"], "unknown");
    // An early one: the event is here before the effect is unknown.
    office.tell("evt_7", "charge.succeeded", json!({"sent": "not-yet", "charge": {}}));
    office.desk.wait_for_event("evt_7", "waiting");
    let (early, _) = office.unknown("charge");
    office
        .sql(&format!("UPDATE retrysafe.effect SET downstream_key = 'not-yet' WHERE id = {early}"));
    office.desk.wait_for_event("evt_7", "applied");
    assert_eq!(office.effect(early)["state"], "delivered");
}

/// After several deliveries nobody knows which one had no effect: the event may be about the first, and the second was done.
#[test]
fn an_event_that_says_no_waits_where_there_were_several_deliveries() {
    let office = Office::open();
    // Sent, and sent again to a receiver that remembers the key; then too late for a third time.
    let (resent, resent_key) = office.staged("charge");
    office.lose_answer(resent, "charge", Some(60_000));
    office.lose_answer(resent, "charge", Some(60_000));
    office.sql(&format!("UPDATE retrysafe.effect SET resend_until = 0 WHERE id = {resent}"));
    assert_eq!(office.sql("SELECT unknown FROM retrysafe.sweep_effects_v1(5, 10)"), "1");
    // The first delivery had no effect, so that the mark is the second one's. The event may still be about the first.
    let (again, again_key) = office.staged("charge");
    let fence = office.send(again, "charge", None);
    assert_eq!(office.finish(again, fence, 2), "1");
    office.lose_answer(again, "charge", None);
    for (event_id, kind, key) in [
        ("evt_1", "charge.voided", &resent_key),
        ("evt_2", "charge.failed", &resent_key),
        ("evt_3", "charge.voided", &again_key),
        ("evt_4", "charge.failed", &again_key),
    ] {
        office.tell(event_id, kind, json!({"sent": key, "charge": {"code": "x"}}));
        super::super::kit::until("it says why", || {
            let reason = &office.desk.event(event_id)["reason"];
            reason.as_str().is_some_and(|why| why.contains("deliveries"))
        });
        let event = office.desk.wait_for_event(event_id, "waiting");
        assert!(event["matched"].is_null());
    }
    for id in [resent, again] {
        assert_eq!(office.effect(id)["state"], "unknown");
    }
}

/// A claim that was given back has sent nothing, and one that waited past its receiver's memory was sent once.
#[test]
fn an_event_that_says_no_decides_where_only_one_delivery_may_have_left() {
    let office = Office::open();
    let (handed_back, handed_back_key) = office.staged("charge");
    let fence = office.send(handed_back, "charge", None);
    office.sql(&format!(
        "SELECT count(*) FROM retrysafe.hand_back_effects_v1('{{{handed_back}}}', '{{{fence}}}')"
    ));
    office.lose_answer(handed_back, "charge", None);
    let (forgotten, forgotten_key) = office.staged("charge");
    office.lose_answer(forgotten, "charge", Some(60_000));
    office.sql(&format!("UPDATE retrysafe.effect SET resend_until = 0 WHERE id = {forgotten}"));
    assert_eq!(office.sql("SELECT unknown FROM retrysafe.sweep_effects_v1(5, 10)"), "1");
    for (event_id, id, key) in
        [("evt_1", handed_back, handed_back_key), ("evt_2", forgotten, forgotten_key)]
    {
        office.tell(event_id, "charge.failed", json!({"sent": key, "charge": {"code": "x"}}));
        office.desk.wait_for_event(event_id, "applied");
        assert_eq!(office.effect(id)["state"], "cancelled");
    }
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
