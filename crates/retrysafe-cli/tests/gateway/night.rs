//! What is there to see on the pages of a gateway after a bad night?
//!
//! A gateway over PostgreSQL, with a payment whose answer was lost, an application that shares its records and has staged effects, a provider
//! that tells about both, and an operator who has decided something. Whatever callers, applications, providers and operators choose the words
//! of is in [`Words`], so that all of it can be markup.

use serde_json::{Value, json};

use super::kit::{Gateway, Step, Upstream, key, program, until};
use super::postgres::{new_database, server};
use super::webhooks::deliver;

/// What would run, or become an attribute, if anything that others write became a part of a page.
pub(crate) const STRIKE: &str = "\"' onfocus=window.struck=1 autofocus x='></title>\
    <img src=x onerror=window.struck=1><script>window.struck=1</script>";

/// The same in the path of a request: `<` and `>` cannot stand there as they are.
const STRIKE_PATH: &str =
    "/payments/\"onfocus=window.struck=1'onfocus=window.struck=1/%3Cimg%20src=x%3E";

/// What others choose the words of.
pub(crate) struct Words {
    caller: String,
    /// The path of a request, and its query.
    path: String,
    query: String,
    /// A header of a request, of its stored answer and of a webhook.
    header: String,
    body: String,
    payment_id: String,
    /// What an application says of its own request.
    method: String,
    application_path: String,
    request_id: String,
    /// Its effects.
    kind: String,
    lane: String,
    name: String,
    destination: String,
    payload: String,
    error: String,
    /// A provider's event.
    event_id: String,
    event_kind: String,
    /// An operator.
    who: String,
    reason: String,
    /// A comparison of ledgers, and a key in it.
    ledger: String,
    ledger_key: String,
}

impl Words {
    /// As they would be on a night like any other.
    pub(crate) fn of_a_night() -> Self {
        Self {
            caller: "acme".into(),
            path: "/payments/7/capture".into(),
            query: "expand=charge".into(),
            header: "mobile/4.2".into(),
            body: "{\"amount\":1200}".into(),
            payment_id: "req-7c1f".into(),
            method: "POST".into(),
            application_path: "/rides".into(),
            request_id: "ride-2041".into(),
            kind: "refund".into(),
            lane: "customer 17".into(),
            name: "refund of ride 2041".into(),
            destination: "https://pay.example/refunds".into(),
            payload: "{\"ride\":2041,\"amount\":1200}".into(),
            error: "connection refused".into(),
            event_id: "evt_2041".into(),
            event_kind: "charge.captured".into(),
            who: "alice".into(),
            reason: "the provider has a new address".into(),
            ledger: "payments of 17 November".into(),
            ledger_key: "ch_0".into(),
        }
    }

    /// Markup wherever it is possible.
    pub(crate) fn of_an_attacker() -> Self {
        let strike = || STRIKE.to_owned();
        Self {
            caller: strike(),
            path: STRIKE_PATH.into(),
            query: "note='onfocus=window.struck=1'%3Cscript%3E".into(),
            header: strike(),
            body: strike(),
            payment_id: strike(),
            method: strike(),
            application_path: strike(),
            request_id: strike(),
            kind: strike(),
            lane: strike(),
            name: strike(),
            destination: strike(),
            payload: strike(),
            error: strike(),
            event_id: format!("evt_{STRIKE}"),
            event_kind: strike(),
            // A name may have 64 bytes.
            who: "\"'><img src=x onerror=window.struck=1>".into(),
            reason: strike(),
            ledger: strike(),
            ledger_key: strike(),
        }
    }
}

/// A page, and what a reader finds there.
pub(crate) struct NightPage {
    pub(crate) name: &'static str,
    pub(crate) path: String,
    pub(crate) part: String,
}

/// A gateway on whose pages there is something to see.
pub(crate) struct Night {
    pub(crate) upstream: Upstream,
    pub(crate) gateway: Gateway,
    /// The payment whose answer was lost: its key, and its record.
    pub(crate) key: String,
    pub(crate) payment: String,
    /// The application's request, which was making a call: its record.
    ride: String,
    caller: String,
}

/// A text as a literal of SQL.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A text as a field of a file with commas.
fn field(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

impl Night {
    /// The names of all pages.
    pub(crate) const PAGES: [&str; 11] = [
        "overview", "unknown", "keys", "story", "outbox", "effect", "inbox", "event", "ledger",
        "store", "settings",
    ];

    pub(crate) fn fall(words: &Words) -> Self {
        let database = new_database();
        let upstream = Upstream::start();
        let gateway = Gateway::start_as(&upstream, "", |gateway| {
            gateway.store = server().url(&database);
            let folder = gateway.folder.display();
            gateway.toml = format!(
                "ledger_reports = [\"{folder}/ledger.json\"]\n{}",
                include_str!("night.toml").replace("FOLDER", &folder.to_string())
            );
            let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
            std::fs::write(gateway.folder.join("bank-secret"), secret).unwrap();
        });
        compare_ledgers(&gateway, words);
        let key = lose_payment(&gateway, &upstream, words);
        let payment = gateway.unknown_at("/payments")["id"].as_str().unwrap().to_owned();
        answer_payment(&gateway, &upstream, words);
        let ride = lose_ride(&database, words);
        decide_about_effects(&database, &gateway, words);
        tell_of_ride(&gateway, &ride, words);
        // A level of the log that waits for a restart.
        gateway.configure(&format!("{}\n[log]\nlevel = \"debug\"\n", gateway.toml));
        gateway.signal("HUP");
        gateway.wait_for_log("configuration reloaded");
        Self { upstream, gateway, key, payment, ride, caller: words.caller.clone() }
    }

    /// Every page that a menu leads to, or a list.
    pub(crate) fn pages(&self) -> Vec<NightPage> {
        let number = |path: &str, list: &str| -> Value {
            self.gateway.ask("GET", path, "").json()[list][0]["id"].clone()
        };
        let event = number("/api/v1/inbox?state=ignored", "events");
        let effect = number("/api/v1/outbox?state=dead", "effects");
        let all = [
            ("/".to_owned(), "Outcomes"),
            ("/unknown".to_owned(), self.caller.as_str()),
            ("/keys".to_owned(), self.caller.as_str()),
            (format!("/keys/{}", self.ride), "Effects that were staged with it"),
            ("/outbox".to_owned(), "paused"),
            (format!("/outbox/{effect}"), "Decisions"),
            ("/inbox".to_owned(), "bank"),
            (format!("/inbox/{event}"), "Payload"),
            ("/ledger".to_owned(), "only theirs has"),
            ("/store".to_owned(), "postgres"),
            ("/settings".to_owned(), "Waits for a restart"),
        ];
        let pages = Self::PAGES.into_iter().zip(all);
        pages.map(|(name, (path, part))| NightPage { name, path, part: part.to_owned() }).collect()
    }

    /// Pages on which words of others stand that no other page has. Each shows them.
    pub(crate) fn odd_pages(&self) -> Vec<NightPage> {
        let page = |name, path: String, part: &str| NightPage { name, path, part: part.to_owned() };
        let listed = self.gateway.ask("GET", "/api/v1/keys?state=completed", "").json();
        let answered = listed["keys"][0]["id"].as_str().unwrap();
        vec![
            page("the story of a payment", format!("/keys/{}", self.payment), &self.caller),
            page("the story of an answer", format!("/keys/{answered}"), STRIKE_PATH),
            page("keys by state", "/keys?state=unknown".to_owned(), &self.caller),
            page("effects that are ready", "/outbox?state=ready".to_owned(), &self.caller),
            page("events that wait", "/inbox?state=waiting".to_owned(), "bank"),
        ]
    }
}

fn compare_ledgers(gateway: &Gateway, words: &Words) {
    let ours = format!("id,amount\n{},1\nch_1,12.50\nch_3,1\n", field(&words.ledger_key));
    std::fs::write(gateway.folder.join("ours.csv"), ours).unwrap();
    let theirs = "id,amount\nch_1,13.50\nch_2,7\nch_3,1\n";
    std::fs::write(gateway.folder.join("theirs.csv"), theirs).unwrap();
    let compare =
        ["reconcile", "compare", "--ours", "ours.csv", "--theirs", "theirs.csv", "--key", "id"];
    let more = ["--amount", "amount", "--name", &words.ledger, "--report-file", "ledger.json"];
    let (code, out, err) = program(&[&compare[..], &more].concat(), &gateway.folder);
    assert_eq!(code, 3, "{out}{err}");
}

/// A payment whose answer is lost. Gives its key.
fn lose_payment(gateway: &Gateway, upstream: &Upstream, words: &Words) -> String {
    upstream.script("/payments", vec![Step::Drop]);
    let key = key();
    // A request's id that is no plain word is not taken over.
    let headers = [
        ("X-Tenant", words.caller.as_str()),
        ("X-Request-Id", &words.payment_id),
        ("User-Agent", &words.header),
        ("X-Note", &words.header),
    ];
    let told = gateway.post_with("/payments", &key, &words.body, &headers);
    assert_eq!(told.status(), 502, "{}", told.text());
    key
}

/// A payment with an odd path, whose answer is kept with its headers, and replayed.
fn answer_payment(gateway: &Gateway, upstream: &Upstream, words: &Words) {
    let headers = vec![
        ("Content-Type", "application/json".to_owned()),
        ("Schema-Version", words.header.clone()),
        ("X-Note", words.header.clone()),
    ];
    upstream.script(&words.path, vec![Step::Reply(201, headers, words.body.clone().into_bytes())]);
    let key = key();
    let path = format!("{}?{}", words.path, words.query);
    let post = || {
        let headers = [("X-Tenant", words.caller.as_str()), ("X-Note", &words.header)];
        gateway.post_with(&path, &key, &words.body, &headers)
    };
    let first = post();
    assert_eq!((first.status(), first.header("x-note")), (201, Some(&*words.header)), "{first:?}");
    assert!(post().is_replay());
}

/// A request of an application that shares its records through SQL: it has staged effects, and nobody knows what became of its call.
fn lose_ride(database: &str, words: &Words) -> String {
    let sql = |sql: &str| server().sql(database, sql);
    let begun = sql(&format!(
        "CALL retrysafe.begin(retrysafe.scope('x-tenant', {}), 'ride-2041',
            retrysafe.fingerprint('POST', '/rides', '{{}}', 'application/json'), ARRAY['ride/1'],
            method => {}, route => {path}, path => {path}, request_id => {})",
        literal(&words.caller),
        literal(&words.method),
        literal(&words.request_id),
        path = literal(&words.application_path),
    ));
    let begun: Vec<&str> = begun.split('|').collect();
    let [id, fence] = [begun[1], begun[2]];
    sql(&format!("CALL retrysafe.start('{id}', {fence}, 'ride/1', '{{}}')"));
    sql(&format!(
        "BEGIN;
         SELECT retrysafe.guard('{id}', {fence});
         SELECT retrysafe.stage({}, {}, content_type => 'application/json', destination => {}, lane => {}, name => {});
         SELECT retrysafe.stage('receipt', '{{}}', destination => {});
         SELECT retrysafe.advance_in('{id}', {fence}, 'before 0', '{{}}'::bytea);
         COMMIT",
        literal(&words.kind),
        literal(&words.payload),
        literal(&words.destination),
        literal(&words.lane),
        literal(&words.name),
        literal(&words.destination),
    ));
    sql(&format!(
        "CALL retrysafe.about_to_call('{id}', {fence}, 'before 1', 'charge', 'request', NULL)"
    ));
    sql(&format!("CALL retrysafe.settle('{id}', {fence}, 'unknown', from_point => 'calling 1')"));
    id.trim_start_matches("\\x").to_owned()
}

/// One kind was given up twice, with an operator's word between; the other one is paused.
fn decide_about_effects(database: &str, gateway: &Gateway, words: &Words) {
    let die = format!(
        "UPDATE retrysafe.effect SET state = 4, fence = fence + 1, failures = 20, last_error = {} WHERE kind <> 'receipt'",
        literal(&words.error)
    );
    server().sql(database, &die);
    let dead =
        gateway.ask("GET", "/api/v1/outbox?state=dead", "").json()["effects"][0]["id"].clone();
    let why = json!({"reason": words.reason, "who": words.who}).to_string();
    for path in
        [format!("/api/v1/outbox/{dead}/retry"), "/api/v1/outbox/kinds/receipt/pause".into()]
    {
        let told = gateway.ask("POST", &path, &why);
        assert_eq!(told.status(), 200, "{path}: {}", told.text());
    }
    server().sql(database, &die);
}

/// The provider tells something that nobody understands, and something that has to wait.
fn tell_of_ride(gateway: &Gateway, ride: &str, words: &Words) {
    let odd = json!({"type": words.event_kind, "record": ride, "note": words.body});
    let waits = json!({"type": "charge.succeeded", "record": ride, "charge": {"id": "ch_9"}});
    for (id, event, state) in
        [(&*words.event_id, odd, "ignored"), (&*format!("{}b", words.event_id), waits, "waiting")]
    {
        let told = deliver(gateway, "bank", id, &words.header, &event);
        assert_eq!(told.status(), 200, "{}", told.text());
        until(&format!("the event is {state}"), || {
            let path = format!("/api/v1/inbox?state={state}");
            gateway.ask("GET", &path, "").json()["events"][0]["state"] == state
        });
    }
}
