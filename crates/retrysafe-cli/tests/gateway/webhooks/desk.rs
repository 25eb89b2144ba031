//! A gateway that receives webhooks, and the provider that sends them.

use std::time::{SystemTime, UNIX_EPOCH};

use retrysafe::webhooks::{WebhookSecret, standard};
use serde_json::{Value, json};

use super::super::kit::{
    Gateway, Message, Step, TOKEN, Upstream, key, program_with, request, send, until,
};
use super::super::postgres::database;

pub(super) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(super) const OTHER_SECRET: &str = "whsec_plJ3nmyCDGBKInavdOK15jsl+d2aKKDYJ2zZt5GwGPk=";

/// What the provider's events mean.
pub(super) const OUTCOMES: &str = r#"
executed = { when = { "/type" = "charge.succeeded" }, status = 201, body = "/charge" }
declined = { when = { "/type" = "charge.failed" }, status = 402, template = '{"error": {/charge/code}}' }
not_executed = { when = { "/type" = "charge.voided" } }
"#;

/// By what the provider's events name what they are about.
pub(super) const MATCH: &str = r#"[{ by = "id", at = "/record" }, { by = "key", at = "/key" }, { by = "request_id", at = "/request" }]"#;

/// The tables of two providers, whose secrets are in files of these names.
pub(super) fn tables(folder: &str, more: &str) -> String {
    format!(
        r#"
[webhooks.bank]
path = "/hooks/bank"
scheme = "standard"
secret_files = ["{folder}/bank-secret"]
created = "/created"
match = {MATCH}
{more}
[webhooks.bank.outcomes]{OUTCOMES}
[webhooks.other]
path = "/hooks/other"
scheme = "standard"
secret_files = ["{folder}/other-secret"]
match = [{{ by = "id", at = "/record" }}]
routes = ["/elsewhere"]
[webhooks.other.outcomes]{OUTCOMES}
[[route]]
path = "/elsewhere"
[[route]]
path = "/tenants"
scope = ["header:x-tenant"]
"#
    )
}

/// A gateway with two providers.
pub(super) struct Desk {
    pub(super) upstream: Upstream,
    pub(super) gateway: Gateway,
    pub(super) has_inbox: bool,
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// One desk over the disk store, and one over PostgreSQL.
pub(super) fn desks(more: &str) -> [Desk; 2] {
    [Desk::open(None, more), Desk::open(Some(&database()), more)]
}

impl Desk {
    pub(super) fn open(store: Option<&str>, more: &str) -> Self {
        Self::open_with(store, more, "")
    }

    /// With this much more configuration after the tables.
    pub(super) fn open_with(store: Option<&str>, more: &str, after: &str) -> Self {
        Self::open_as(store, |folder| format!("{}{after}", tables(folder, more)))
    }

    /// With the tables that are written for a folder.
    pub(super) fn open_as(store: Option<&str>, tables: impl FnOnce(&str) -> String) -> Self {
        let upstream = Upstream::start();
        let gateway = Gateway::start_as(&upstream, "", |gateway| {
            if let Some(store) = store {
                gateway.store = store.to_owned();
            }
            std::fs::write(gateway.folder.join("bank-secret"), SECRET).unwrap();
            std::fs::write(gateway.folder.join("other-secret"), OTHER_SECRET).unwrap();
            gateway.toml = tables(&gateway.folder.display().to_string());
        });
        Self { upstream, gateway, has_inbox: store.is_some() }
    }

    /// A payment whose answer is lost: its key, and the name of its record.
    pub(super) fn lose(&self, path: &str) -> (String, String) {
        self.upstream
            .script(path, vec![Step::Drop, super::super::kit::reply(201, "{\"ran\":\"again\"}")]);
        let key = key();
        assert_eq!(self.gateway.post(path, &key, "{}").code(), "outcome_unknown");
        (key, self.record(path))
    }

    /// The name of the record of the last request on a path, as the upstream saw it.
    pub(super) fn record(&self, path: &str) -> String {
        let seen = self.upstream.seen_at(path);
        seen.last().unwrap().header("retrysafe-id").unwrap().to_owned()
    }

    /// Delivers an event of the bank, and gives what it is told.
    pub(super) fn deliver(&self, id: &str, event: &Value) -> Message {
        self.deliver_as("bank", SECRET, id, now(), event.to_string().as_bytes())
    }

    pub(super) fn deliver_as(
        &self,
        provider: &str,
        secret: &str,
        id: &str,
        time: u64,
        body: &[u8],
    ) -> Message {
        send(self.gateway.address, &signed(&format!("/hooks/{provider}"), secret, id, time, body))
    }

    /// Delivers an event until it is taken: over the disk store its sender sends it again.
    pub(super) fn deliver_until_taken(&self, id: &str, event: &Value) {
        until("the event is taken", || self.deliver(id, event).status() == 200);
    }

    /// How the one record of this name stands, and what was decided about it.
    pub(super) fn shown(&self, record: &str) -> (String, Vec<Value>) {
        let shown = self.gateway.ask("GET", &format!("/api/v1/keys/{record}"), "").json();
        let timeline = shown["timeline"].as_array().cloned().unwrap_or_default();
        let resolved = timeline.into_iter().filter(|moment| moment["what"] == "resolved").collect();
        (shown["state"].as_str().unwrap_or_default().to_owned(), resolved)
    }

    pub(super) fn wait_for(&self, record: &str, state: &str) {
        until(&format!("the record is {state}"), || self.shown(record).0 == state);
    }

    /// The event of this id in the inbox, in this state.
    pub(super) fn wait_for_event(&self, event_id: &str, state: &str) -> Value {
        let mut found = Value::Null;
        until(&format!("{event_id} is {state}"), || {
            found = self.event(event_id);
            found["state"] == state
        });
        found
    }

    pub(super) fn event(&self, event_id: &str) -> Value {
        let listed = self.gateway.ask("GET", "/api/v1/inbox", "").json();
        let events = listed["events"].as_array().cloned().unwrap_or_default();
        events.into_iter().find(|event| event["event_id"] == event_id).unwrap_or_default()
    }

    /// Waits until so many events of the bank have ended in this state.
    pub(super) fn wait_for_ended(&self, state: &str, count: u64) {
        let line = format!(
            "retrysafe_webhooks_ended_total{{provider=\"bank\",state=\"{state}\"}} {count}"
        );
        until(&line, || self.gateway.metrics().contains(&line));
    }

    /// Runs a command: exit code, standard output, standard error.
    pub(super) fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let admin = format!("http://{}", self.gateway.admin);
        let all = [arguments, &["--admin", &admin]].concat();
        let variables = [("RETRYSAFE_ADMIN_TOKEN", TOKEN), ("USER", "alice")];
        program_with(&all, &self.gateway.folder, &variables)
    }
}

/// A signed event in bytes.
pub(super) fn signed(path: &str, secret: &str, id: &str, time: u64, body: &[u8]) -> Vec<u8> {
    let secret = WebhookSecret::standard(secret).unwrap();
    let signature = standard::sign(&secret, id, time, body);
    let time = time.to_string();
    let headers = [
        ("webhook-id", id),
        ("webhook-timestamp", time.as_str()),
        ("webhook-signature", signature.as_str()),
        ("Content-Type", "application/json"),
    ];
    request("POST", path, &headers, body)
}

/// An event about a record.
pub(super) fn charge(kind: &str, record: &str) -> Value {
    json!({
        "type": kind, "record": record, "created": now(),
        "charge": {"id": "ch_1", "code": "card_declined"},
    })
}
