//! Is an unknown outcome resolved by asking whoever knows, on every store, once, and never by time alone?

use retrysafe::stores::postgres::PostgresStore;
use retrysafe_core::engine::{Advanced, Ask, Begun, Engine};
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::flow::{FlowVersion, RecoveryPoint, RequestDigest, downstream_key};
use retrysafe_core::machine::flows::FlowStep;
use retrysafe_core::record::{About, Doubt, Outcome, Standing};
use retrysafe_core::{Key, Scope};
use serde_json::{Value, json};

use super::kit::{Gate, Gateway, Message, PATIENCE, Step, Upstream, key, reply, until};
use super::postgres::database;

/// The stores on which every path to a decision is walked.
#[derive(Clone, Copy, Debug)]
enum On {
    Disk,
    Postgres,
}

const BOTH: [On; 2] = [On::Disk, On::Postgres];

impl On {
    fn start(self, upstream: &Upstream, config: &str) -> Gateway {
        match self {
            Self::Disk => Gateway::start(upstream, config),
            Self::Postgres => Gateway::start_on(&database(), upstream, config),
        }
    }
}

const HASTY: &str = "schedule = \"0s, 2×400ms, 2s\"\nsettle_time = \"400ms\"\n";

/// The first lookups are before the settle time on a machine that stalls as well, and the last ones after it.
const STEADY: &str = "schedule = \"0s, 400ms, 10s, 10s\"\nsettle_time = \"10s\"\n";

/// As long as a settle time of 10 s allows.
const WITHIN_STEADY: &str = "lease = \"5s\"\nupstream_timeout = \"5s\"\n";

fn config(more: &str) -> String {
    timed_config(HASTY, more)
}

fn timed_config(times: &str, more: &str) -> String {
    format!(
        "[reconcile]\nurl = \"/lookup?id={{id}}&fence={{fence}}\"\nevery = \"20ms\"\n{times}\
         headers = {{ authorization = \"Bearer gateway\" }}\n{more}"
    )
}

/// Loses the answer of a request, lets the upstream say this when asked, and gives what the caller
/// is told once it is no more `outcome_unknown`.
fn told_on(store: On, lookup: Step, more: &str) -> (Upstream, Gateway, Message, usize) {
    told_with(store, lookup, &config(more))
}

fn told_with(store: On, lookup: Step, config: &str) -> (Upstream, Gateway, Message, usize) {
    let upstream = Upstream::start();
    let gateway = store.start(&upstream, config);
    upstream.script("/pay", vec![Step::Drop, reply(201, "{\"ran\":\"again\"}")]);
    upstream.script("/lookup", vec![lookup]);
    let key = key();
    assert_eq!(gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
    let end = std::time::Instant::now() + PATIENCE;
    let mut asked = 0;
    loop {
        let answer = gateway.post("/pay", &key, "{}");
        asked = asked.max(upstream.count("/lookup"));
        let used_up = gateway.metrics().contains("retrysafe_dead_lettered 1");
        if answer.code() != "outcome_unknown" || used_up {
            return (upstream, gateway, answer, asked);
        }
        assert!(std::time::Instant::now() < end, "never decided: {}", gateway.log());
    }
}

const SIMPLE: &str = "response = \"/answer\"\n";

/// The record of the one request at `/pay`, as an operator sees it.
fn shown(upstream: &Upstream, gateway: &Gateway) -> Value {
    let id = upstream.seen_at("/pay")[0].header("retrysafe-id").unwrap().to_owned();
    gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").json()
}

fn moments(shown: &Value, what: &str) -> Vec<Value> {
    let timeline = shown["timeline"].as_array().unwrap();
    timeline.iter().filter(|moment| moment["what"] == what).cloned().collect()
}

#[test]
fn poll_first_what_the_upstream_executed_is_answered_and_never_run_again() {
    for store in BOTH {
        let found =
            r#"{"state":"executed","answer":{"status":201,"headers":[["X-A","1"]],"body":"paid"}}"#;
        let (upstream, gateway, answer, _) = told_on(store, reply(200, found), SIMPLE);
        assert!(answer.is_replay(), "{store:?}");
        assert_eq!((answer.status(), answer.text().as_str()), (201, "paid"));
        assert_eq!(upstream.count("/pay"), 1);
        let lookup = upstream.seen_at("/lookup").remove(0);
        assert_eq!(lookup.header("authorization"), Some("Bearer gateway"));
        let id = upstream.seen_at("/pay")[0].header("retrysafe-id").unwrap().to_owned();
        let fence = upstream.seen_at("/pay")[0].header("retrysafe-fence").unwrap().to_owned();
        assert_eq!(lookup.target, format!("/lookup?id={id}&fence={fence}"));
        let shown = shown(&upstream, &gateway);
        let resolved = moments(&shown, "resolved");
        assert_eq!((resolved.len(), &resolved[0]["judge"]), (1, &json!("reconciler")));
    }
}

#[test]
fn poll_first_what_the_upstream_refused_for_good_runs_again() {
    for store in BOTH {
        let (upstream, _gateway, answer, _) =
            told_on(store, reply(200, r#"{"state":"not_executed"}"#), SIMPLE);
        assert_eq!((answer.status(), answer.text().as_str()), (201, "{\"ran\":\"again\"}"));
        assert_eq!(upstream.count("/pay"), 2);
    }
}

/// A provider that is asked by the record's id alone may speak of a former attempt, whose cancelled transfer is still in its books.
#[test]
fn not_executed_releases_one_attempt_and_never_a_second_one_that_was_not_named() {
    let upstream = Upstream::start();
    let config = config(SIMPLE).replace("&fence={fence}", "");
    let gateway = On::Disk.start(&upstream, &config);
    upstream.script("/pay", vec![Step::Drop, Step::Drop, reply(201, "{\"ran\":\"twice\"}")]);
    upstream.script("/lookup", vec![reply(200, r#"{"state":"not_executed"}"#)]);
    let key = key();
    until("the second attempt has run", || {
        gateway.post("/pay", &key, "{}");
        upstream.count("/pay") == 2
    });
    until("the schedule is used up", || gateway.metrics().contains("retrysafe_dead_lettered 1"));
    assert_eq!(gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
    assert_eq!(upstream.count("/pay"), 2);
}

const RULES: &str = r#"[reconcile.outcomes]
pending.when = { "/charge/status" = "processing" }
not_executed.when = { "/charge/status" = "void", "/charge/captured" = false }
[reconcile.outcomes.executed]
when = { "/charge/status" = "succeeded" }
status = 201
headers = { Location = "/payments/{/charge/id}" }
template = '{"paid": {/charge/amount}}'
[reconcile.outcomes.declined]
when = { "/charge/status" = "failed" }
status = 402
template = '{"error": {/charge/code}}'
"#;

#[test]
fn poll_first_the_answer_is_made_of_the_providers_document() {
    for store in BOTH {
        let paid = r#"{"charge":{"id":"c/7","status":"succeeded","amount":10.10}}"#;
        let (upstream, _gateway, answer, _) = told_on(store, reply(200, paid), RULES);
        assert_eq!((answer.status(), answer.text().as_str()), (201, "{\"paid\": 10.10}"));
        assert_eq!(answer.header("location"), Some("/payments/c/7"));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert!(answer.is_replay() && upstream.count("/pay") == 1);

        let failed = r#"{"charge":{"status":"failed","code":"no_funds"}}"#;
        let (upstream, _gateway, answer, _) = told_on(store, reply(200, failed), RULES);
        assert_eq!((answer.status(), answer.text().as_str()), (402, "{\"error\": \"no_funds\"}"));
        assert!(answer.is_replay() && upstream.count("/pay") == 1, "a decline is not run again");
    }
}

#[test]
fn not_found_is_refused_before_the_settle_time_and_proves_nothing_unless_the_route_says_so() {
    let proves_nothing = |store| {
        let (upstream, _gateway, answer, asked) = told_on(store, reply(404, "{}"), SIMPLE);
        assert_eq!((answer.code().as_str(), upstream.count("/pay")), ("outcome_unknown", 1));
        assert!(asked >= 1);
    };
    let is_proof = |store| {
        let more = format!("{SIMPLE}[defaults]\nabsence = \"proof\"\n{WITHIN_STEADY}");
        let (upstream, gateway, answer, asked) =
            told_with(store, reply(404, "{}"), &timed_config(STEADY, &more));
        assert_eq!((answer.status(), upstream.count("/pay")), (201, 2));
        // The first answer came before the settle time, and was refused.
        let shown = shown(&upstream, &gateway);
        let found: Vec<_> =
            moments(&shown, "looked_up").iter().map(|moment| moment["found"].clone()).collect();
        assert!(asked >= 2 && found.contains(&json!("not found")), "{asked} {found:?}");
    };
    // Of two rules for one path the one for another method says so.
    let is_proof_of_another_method = || {
        let rule = |method: &str, absence: &str| {
            format!(
                "[[route]]\npath = \"/pay\"\nmethods = [\"{method}\"]\n{absence}{WITHIN_STEADY}"
            )
        };
        let rules = rule("PATCH", "absence = \"proof\"\n") + &rule("POST", "");
        let more = format!("{SIMPLE}{rules}");
        let (upstream, _gateway, answer, asked) =
            told_with(On::Disk, reply(404, "{}"), &timed_config(STEADY, &more));
        assert_eq!((answer.code().as_str(), upstream.count("/pay")), ("outcome_unknown", 1));
        assert!(asked >= 1);
    };
    // All at once: each spends most of its time waiting.
    std::thread::scope(|all| {
        all.spawn(is_proof_of_another_method);
        for store in BOTH {
            all.spawn(move || proves_nothing(store));
            all.spawn(move || is_proof(store));
        }
    });
}

/// Malformed: HTML, a status that says nothing, a redirect, an encoding, a member that is there twice, an endless body, a hang-up.
#[test]
fn malformed_answers_decide_nothing_and_are_shown_without_secrets() {
    let header = |status: u16, name: &'static str, value: &str, body: &str| {
        Step::Reply(status, vec![(name, value.to_owned())], body.into())
    };
    let mut endless = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n".to_vec();
    endless.resize(endless.len() + (3 << 20), b' ');
    for (odd, found, answer) in [
        (reply(200, "<h1>Bearer gateway</h1>"), "not JSON", "<h1>…</h1>"),
        (reply(500, r#"{"state":"executed"}"#), "status 500", "500 application/json"),
        (header(302, "Location", "/pay", ""), "redirects are not followed", "302"),
        (header(200, "Content-Encoding", "gzip", r#"{"state":"executed"}"#), "encoded", "200"),
        (reply(200, r#"{"state":"executed","state":"not_executed"}"#), "twice", "not_executed"),
        (Step::Raw(endless), "larger than", ""),
        (Step::Drop, "", ""),
    ] {
        let (upstream, gateway, told, _) = told_on(On::Disk, odd, SIMPLE);
        assert_eq!((told.code().as_str(), upstream.count("/pay")), ("outcome_unknown", 1));
        let shown = shown(&upstream, &gateway);
        let lookups = moments(&shown, "looked_up");
        assert_eq!(lookups.len(), 4, "{found}: {shown}");
        for moment in lookups {
            assert!(moment["found"].as_str().unwrap().contains(found), "{found}: {moment}");
            assert!(moment["answer"].as_str().unwrap_or_default().contains(answer), "{moment}");
        }
        assert!(!shown.to_string().contains("Bearer gateway"), "{shown}");
    }
    let odd = reply(200, r#"{"charge":{"status":"of Ms Miller"}}"#);
    let (upstream, gateway, told, _) = told_on(On::Postgres, odd, RULES);
    assert_eq!((told.code().as_str(), upstream.count("/pay")), ("outcome_unknown", 1));
    let shown = shown(&upstream, &gateway);
    assert!(shown.to_string().contains("no rule fits: /charge/status is a text"), "{shown}");
    assert!(shown.to_string().contains("of Ms Miller"), "an operator sees it: {shown}");
    assert!(!gateway.log().contains("Miller"), "a log does not");
}

/// The only lookup of the schedule is refused, and asked again: a refusal is no answer.
#[test]
fn a_lookup_that_is_asked_too_often_keeps_its_turn() {
    for store in BOTH {
        let upstream = Upstream::start();
        let once = "[reconcile]\nurl = \"/lookup?id={id}\"\nevery = \"20ms\"\nschedule = \"0s\"\n\
                    response = \"/answer\"\n";
        let gateway = store.start(&upstream, once);
        upstream.script("/pay", vec![Step::Drop]);
        let refusal =
            b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n";
        let found = r#"{"state":"executed","answer":{"status":201,"body":"paid"}}"#;
        let refused = || Step::Raw(refusal.to_vec());
        upstream.script("/lookup", vec![refused(), refused(), reply(200, found)]);
        let key = key();
        assert_eq!(gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
        until("it is decided", || gateway.post("/pay", &key, "{}").is_replay());
        assert_eq!(upstream.count("/lookup"), 3);
        let shown = shown(&upstream, &gateway);
        assert_eq!(moments(&shown, "looked_up").len(), 0, "nothing was used up: {shown}");
        assert!(gateway.log().contains("reconcile_refused"));

        // One that is refused for ever is listed for a person all the same.
        upstream.script("/pay", vec![Step::Drop]);
        upstream.script("/lookup", vec![refused()]);
        gateway.post("/pay", &super::kit::key(), "{}");
        until("it is dead-lettered", || gateway.metrics().contains("retrysafe_dead_lettered 1"));
    }
}

/// The owner answers at the moment in which the provider is asked: whoever is first decides, and the other is a contradiction or nothing.
#[test]
fn poll_and_late_owner_at_once_decide_once() {
    for store in BOTH {
        let upstream = Upstream::start();
        // Longer than a begin takes on a machine that stalls: nothing is sent once the lease has passed.
        let more =
            "[upkeep]\nsweep_every = \"20ms\"\n[defaults]\nlease = \"2s\"\nlease_max = \"2s\"\n";
        let gateway = store.start(&upstream, &config(&format!("{SIMPLE}{more}")));
        let gate = Gate::default();
        let executed =
            r#"{"state":"executed","answer":{"status":201,"headers":[],"body":"by the provider"}}"#;
        upstream
            .script("/pay", vec![Step::Held(gate.clone(), Box::new(reply(200, "by the owner")))]);
        upstream.script("/lookup", vec![Step::Held(gate.clone(), Box::new(reply(200, executed)))]);
        let key = key();
        std::thread::scope(|scope| {
            scope.spawn(|| gateway.post("/pay", &key, "{}"));
            upstream.wait("/lookup", 1);
            gate.open();
        });
        until("it is decided", || gateway.post("/pay", &key, "{}").is_replay());
        let first = gateway.post("/pay", &key, "{}");
        assert!(["by the owner", "by the provider"].contains(&first.text().as_str()), "{first:?}");
        assert_eq!(upstream.count("/pay"), 1, "{store:?}: one effect");
        let shown = shown(&upstream, &gateway);
        let decided = moments(&shown, "resolved").len()
            + moments(&shown, "settled")
                .iter()
                .filter(|moment| moment["state"] == "completed")
                .count();
        assert_eq!(decided, 1, "{store:?}: {shown}");
        assert_eq!(gateway.post("/pay", &key, "{}").body, first.body, "never flipped");
    }
}

#[test]
fn some_routes_are_looked_up_elsewhere() {
    let upstream = Upstream::start();
    let provider = Upstream::start();
    let more = format!(
        "[lookups.provider]\nroutes = [\"/cards\"]\nurl = \"http://{}/charges?from={{from}}\"\nevery = \"20ms\"\n\
         schedule = \"0s\"\n[lookups.provider.list]\nitems = \"/data\"\nkey = \"/metadata/id\"\n\
         next = \"/next\"\nparameter = \"page\"\n[[route]]\npath = \"/cards\"\n",
        provider.address
    );
    let gateway = Gateway::start(&upstream, &config(&more));
    upstream.script("/pay", vec![Step::Drop]);
    upstream.script("/lookup", vec![reply(200, r#"{"state":"pending"}"#)]);
    let here = key();
    let there = key();
    gateway.post("/pay", &here, "{}");
    // The provider has it on its second page.
    let gate = Gate::default();
    let first = reply(200, r#"{"data":[],"next":"p 2"}"#);
    provider.otherwise(Some(Step::Held(gate.clone(), Box::new(first))));
    upstream.script("/cards", vec![Step::Drop]);
    gateway.post("/cards", &there, "{}");
    provider.wait("/charges", 1);
    let id = upstream.seen_at("/cards")[0].header("retrysafe-id").unwrap().to_owned();
    // Twice: that is told, whoever looks for doubled payments must not have to guess.
    let item = format!(r#"{{"metadata":{{"id":"{id}"}},"state":"executed"}}"#);
    let item = format!(r#"{{"data":[{item},{item}],"next":null}}"#);
    provider.script("/charges", vec![reply(500, ""), reply(200, &item)]);
    gate.open();
    until("it is decided", || gateway.post("/cards", &there, "{}").status() == 410);
    let pages = provider.seen_at("/charges");
    assert!(pages[1].target.ends_with("&page=p%202"), "{pages:?}");
    gateway.wait_for_log("lookup_found_several");
    let record = gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").json();
    assert!(record.to_string().contains("2 items of the list say so"), "{record}");
    upstream.wait("/lookup", 1);
    assert!(upstream.seen_at("/lookup").iter().all(|asked| !asked.target.contains(&id)));
}

/// A request finds its upstream by its path alone, and its rule by path and method: here the rule of one route, and the upstream of
/// another. The upstream at the top has never heard of the request, and says truthfully that it did not execute it. If it were asked, the
/// shop would be paid twice.
#[test]
fn a_lookup_that_names_a_path_asks_the_upstream_that_got_the_request() {
    for strips in [false, true] {
        let top = Upstream::start();
        let shop = Upstream::start();
        let routes = format!(
            "[[route]]\npath = \"/shop/{{*rest}}\"\nupstream = \"http://{}\"\nstrip_prefix = {strips}\n\
             [[route]]\npath = \"/shop/pay\"\nkey = \"required\"\n\
             [reconcile]\nurl = \"/lookup?id={{id}}&path={{path}}\"\nevery = \"20ms\"\nschedule = \"0s, 100ms\"\nsettle_time = \"100ms\"\n{SIMPLE}",
            shop.address
        );
        let gateway = Gateway::start(&top, &routes);
        let path = if strips { "/pay" } else { "/shop/pay" };
        top.script("/lookup", vec![reply(200, r#"{"state":"not_executed"}"#)]);
        shop.script("/lookup", vec![reply(200, r#"{"state":"pending"}"#)]);
        shop.script(path, vec![Step::Drop, reply(201, "{\"ran\":\"again\"}")]);
        let key = key();
        assert_eq!(gateway.post("/shop/pay", &key, "{}").code(), "outcome_unknown");
        until("the schedule is used up", || {
            assert_eq!(gateway.post("/shop/pay", &key, "{}").code(), "outcome_unknown");
            gateway.metrics().contains("retrysafe_dead_lettered 1")
        });
        assert_eq!((shop.count(path), top.seen().len()), (1, 0), "{strips}");
        // The shop is asked in its own words: for the path that it was asked for.
        let id = shop.seen_at(path)[0].header("retrysafe-id").unwrap().to_owned();
        let asked = shop.seen_at("/lookup").remove(0).target;
        let written = path.replace('/', "%2F");
        assert_eq!(asked, format!("/lookup?id={id}&path={written}"));
        // An operator who asks out of turn asks the shop, too.
        let found = r#"{"state":"executed","answer":{"status":201,"headers":[],"body":"paid"}}"#;
        shop.script("/lookup", vec![reply(200, found)]);
        let polled = gateway.ask("POST", &format!("/api/v1/keys/{id}/poll"), "{}");
        assert_eq!(polled.json()["result"], "decided", "{}", polled.text());
        let answer = gateway.post("/shop/pay", &key, "{}");
        assert_eq!((answer.is_replay(), answer.text().as_str()), (true, "paid"));
        assert_eq!((shop.count(path), top.seen().len()), (1, 0), "{strips}");
    }
}

/// A flow of an application in PostgreSQL has died in the middle of its call. The gateway beside it asks the provider with the call's own
/// key, and the flow goes on after the call, or before it.
#[test]
fn a_call_of_a_flow_is_looked_up_with_its_own_key() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (state, standing, point) in [
        (r#"{"state":"executed","id":7}"#, Standing::InProgress, RecoveryPoint::Before(1)),
        (r#"{"state":"not_executed"}"#, Standing::FailedRetryable, RecoveryPoint::Before(0)),
    ] {
        let url = database();
        let engine = Engine::new(runtime.block_on(PostgresStore::connect(&url)).unwrap());
        let (id, birth) = runtime.block_on(calling(&engine));
        let upstream = Upstream::start();
        upstream.script("/charges", vec![reply(200, state)]);
        let more = "[lookups.charge]\ncall = { flow = \"ride\", phase = \"charge\", number = 0 }\nurl = \"/charges?key={key}\"\n\
                    every = \"20ms\"\nschedule = \"0s, 1h\"\n[lookups.charge.outcomes]\n\
                    executed = { when = { \"/state\" = \"executed\" }, template = '{\"charge\": {/id}}' }\n\
                    not_executed.when = { \"/state\" = \"not_executed\" }\n";
        let gateway = Gateway::start_on(&url, &upstream, &config(more));
        let record = || runtime.block_on(engine.look(id)).unwrap().value.unwrap();
        until("it is decided", || record().standing() != Standing::Unknown);
        let record = record();
        assert_eq!(
            (record.standing(), record.recovery_point()),
            (standing, Some(point)),
            "{}",
            gateway.log()
        );
        if standing == Standing::InProgress {
            assert_eq!(record.flow.unwrap().outputs(), ["{\"charge\": 7}"]);
        }
        let asked = upstream.seen_at("/charges").remove(0);
        assert_eq!(asked.target, format!("/charges?key={}", downstream_key(id, birth, "charge")));
        assert_eq!(upstream.count("/lookup"), 0, "the others do not ask");
    }
}

async fn calling(
    engine: &Engine<PostgresStore>,
) -> (retrysafe_core::Id, retrysafe_core::record::Fence) {
    let print = Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [7; 32]);
    let ask = Ask {
        scope: &Scope::anonymous(),
        mark: None,
        key: Key::new("k").unwrap().digest(),
        prints: &print,
        about: &About::default(),
        ttl: std::time::Duration::from_secs(3_600),
        lease: std::time::Duration::from_secs(60),
        owner: 1,
        request_id: None,
    };
    let Ok(Begun::Execute(mut lease)) = engine.begin(&ask).await else { panic!() };
    let digest = RequestDigest::of(b"charge");
    for step in [
        FlowStep::Start { flow: FlowVersion::new("ride", 1), input: "input".into() },
        FlowStep::Call { phase: 0, digest, repeatable_for: None },
    ] {
        let Ok(Advanced::Done(next)) = engine.advance(lease, &step).await else { panic!() };
        lease = next;
    }
    let id = lease.id();
    let birth = lease.fence();
    engine.settle(lease, &Outcome::Unknown(Doubt::AnswerLost)).await.unwrap();
    (id, birth)
}
