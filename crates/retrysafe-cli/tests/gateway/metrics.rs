//! Does every metric rise when it should? Each is provoked over HTTP and read from `/metrics`.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use retrysafe_core::event::{self, METRICS, Met, Metric};

use serde_json::json;

use super::kit::{Gate, Gateway, PATIENCE, Step, Upstream, key, raw, reply, request, send, token};

/// What is provoked in `bounds` and `log`: it takes hundreds of connections, or a log that nobody reads.
const OF_TIGHT_BOUNDS: [Metric; 3] =
    [event::CONNECTIONS_REFUSED, event::HELD_BYTES, event::LOG_LINES_DROPPED];
/// What only a failing store reports.
const OF_FAILING_STORES: [Metric; 3] =
    [event::STORE_ERRORS, event::BREAKER_OPEN, event::SWEEP_FAILURES];
/// What only Redis reports: see `redis`.
const OF_REDIS: [Metric; 3] = [event::STORE_CHANGED, event::STORE_HELD_UNTIL, event::COPIES];
/// What only an application with flows reports: the program runs none.
const OF_FLOWS: [Metric; 3] = [event::PHASE_SECONDS, event::FLOW_RESUMES, event::FLOWS_HELD];
/// What an operator's own lookup reports: see `layer_upkeep` of the library.
const OF_OPERATORS: [Metric; 1] = [event::RECONCILE_OUT_OF_TURN];
/// What only a worker reports: see `tests/worker`.
const OF_EFFECTS: [Metric; 8] = [
    event::EFFECT_LOOKUPS,
    event::EFFECTS_DEAD_LETTERED,
    event::EFFECTS_NOT_CONFIGURED,
    event::EFFECT_DELIVERIES,
    event::EFFECT_BREAKER_OPEN,
    event::EFFECTS,
    event::EFFECT_PAUSED,
    event::EFFECT_OLDEST_READY_SECONDS,
];
/// What only a provider's webhooks raise: see `webhooks`.
const OF_WEBHOOKS: [Metric; 5] = [
    event::WEBHOOKS_RECEIVED,
    event::WEBHOOKS_REFUSED,
    event::WEBHOOKS_ENDED,
    event::INBOX_WAITING,
    event::INBOX_OLDEST_SECONDS,
];
/// What `reconcile compare` writes to a file: see `ledger`.
const OF_LEDGERS: [Metric; 3] =
    [event::LEDGER_LINES, event::LEDGER_DIFFERENCES, event::LEDGER_COMPARED];
/// What is there only where upstreams are checked: tests/gateway/upstreams.rs.
const OF_HEALTH_CHECKS: [Metric; 1] = [event::UPSTREAM_HEALTHY];
/// What is there only where requests are traced: see `traces`.
const OF_TRACES: [Metric; 2] = [event::SPANS_EXPORTED, event::SPANS_DROPPED];
/// What only a connection shows that sends the same bytes again and again: see `same_bytes`.
const OF_SAME_BYTES: [Metric; 1] = [event::REPLAYS_BY_BYTES];
/// What only a bug reports.
const OF_BUGS: [Metric; 1] = [event::UPKEEP_PANICS];
const MET_WITH_FAILING_STORES: [Met; 2] = [Met::StoreError, Met::Unprotected];

/// Reads the metrics, and remembers which of them it has seen above zero.
struct Watch<'a> {
    gateway: &'a Gateway,
    seen: BTreeSet<String>,
}

impl<'a> Watch<'a> {
    fn new(gateway: &'a Gateway) -> Self {
        Self { gateway, seen: BTreeSet::new() }
    }

    fn look(&mut self) -> String {
        let shown = self.gateway.metrics();
        let risen = shown.lines().filter(|line| !line.starts_with('#') && !line.ends_with(" 0"));
        self.seen.extend(risen.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())));
        shown
    }

    /// Waits until a line is shown.
    fn until(&mut self, line: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let shown = self.look();
            if shown.lines().any(|other| other == line) {
                return;
            }
            assert!(Instant::now() < end, "no {line} in {shown}");
        }
    }

    /// Waits until a metric has been above zero.
    fn until_risen(&mut self, start: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.has_risen(start) {
            let shown = self.look();
            assert!(Instant::now() < end, "{start} does not rise in {shown}");
        }
    }

    fn has_risen(&self, start: &str) -> bool {
        self.seen.iter().any(|line| line.starts_with(start))
    }

    fn has_met(&self, met: Met) -> bool {
        let answer = format!("answer=\"{}\"", met.name());
        let begin = self.seen.iter().filter(|line| line.starts_with(event::BEGIN.name));
        begin.into_iter().any(|line| line.contains(&answer))
    }
}

const CONFIG: &str = r#"
[upkeep]
sweep_every = "50ms"
reap_every = "50ms"

[reconcile]
url = "/lookup/{id}"
every = "50ms"
schedule = "0s"

[[route]]
path = "/late"
methods = ["POST"]
lease = "2s"
lease_max = "2s"

[[route]]
path = "/overdue"
methods = ["POST"]
upstream_timeout = "50ms"

[[route]]
path = "/watch"
methods = ["POST"]
mode = "observe"

[[route]]
path = "/wait"
methods = ["POST"]
wait_max = "60s"
"#;

#[test]
fn every_metric_of_a_working_store_rises() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, CONFIG);
    let mut watch = Watch::new(&gateway);
    // Created, replay, misuse, refused, released and tried again, not replayable.
    let one = key();
    for body in ["{\"a\":1}", "{\"a\":1}", "{\"a\":2}"] {
        gateway.post("/m", &one, body);
    }
    gateway.post("/m", "a b", "{}");
    upstream.script("/e", vec![reply(500, "{}"), reply(201, "{}")]);
    let two = key();
    gateway.post("/e", &two, "{}");
    gateway.post("/e", &two, "{}");
    upstream.script("/big", vec![reply(201, &"x".repeat(2 << 20))]);
    let three = key();
    gateway.post("/big", &three, "{}");
    gateway.post("/big", &three, "{}");
    // Another token of the same name.
    for number in 1..=2 {
        let bearer = format!("Bearer {}", token(&json!({"iss": "i", "sub": "s", "jti": number})));
        gateway.post_with("/m", &three, "{}", &[("Authorization", &bearer)]);
    }
    // Observed, refused at the door.
    let four = key();
    gateway.post("/watch", &four, "{}");
    gateway.post("/watch", &four, "{}");
    raw(gateway.address, b"post / HTTP/1.1\r\nHost: a\r\n\r\n", false);

    // One duplicate waits, and one does not want to.
    let gate = Gate::default();
    upstream.script("/wait", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let (five, address) = (key(), gateway.address);
    let asked = request("POST", "/wait", &[("Idempotency-Key", &five)], b"{}");
    let running: Vec<_> = (0..2)
        .map(|_| {
            let asked = asked.clone();
            std::thread::spawn(move || send(address, &asked))
        })
        .collect();
    upstream.wait("/wait", 1);
    watch.until("retrysafe_waiting 1");
    watch.until("retrysafe_executing 1");
    let hasty = [("Idempotency-Key", five.as_str()), ("Prefer", "wait=0")];
    let hasty = send(address, &request("POST", "/wait", &hasty, b"{}"));
    assert_eq!(hasty.code(), "request_in_progress");
    gate.open();
    for thread in running {
        assert_eq!(thread.join().unwrap().status(), 201);
    }

    // A caller is told to ask again, and its request runs on.
    let gate = Gate::default();
    upstream.script("/overdue", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let overdue = gateway.post("/overdue", &key(), "{}");
    assert_eq!((overdue.status(), overdue.code().as_str()), (504, "request_in_progress"));
    watch.until("retrysafe_late_answers 1");
    gate.open();
    watch.until("retrysafe_late_answers 0");

    // A handler outlives its lease, and the upstream knows nothing when it is asked: a person must
    // decide, is wrong, and is contradicted by the late answer.
    let gate = Gate::default();
    upstream.script("/late", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let six = key();
    let asked = request("POST", "/late", &[("Idempotency-Key", &six)], b"{}");
    let again = asked.clone();
    let running = std::thread::spawn(move || raw(address, &asked, false));
    upstream.wait("/late", 1);
    watch.until("retrysafe_dead_lettered 1");
    watch.until("retrysafe_unknown 1");
    watch.until_risen("retrysafe_unknown_oldest_seconds");
    assert_eq!(send(address, &again).code(), "outcome_unknown");
    let seen = gateway.unknown_at("/late");
    let id = seen["id"].as_str().unwrap().to_owned();
    gateway.decide(&seen, "release", "{\"reason\":\"x\"}");
    gate.open();
    running.join().unwrap();
    watch.until("retrysafe_contradictions_total{route=\"/late\"} 1");

    // An answer is lost, and a record is reaped.
    upstream.script("/gone", vec![Step::Drop]);
    gateway.post("/gone", &key(), "{}");
    gateway.ask("POST", &format!("/api/v1/keys/{id}/expire"), "{\"reason\":\"x\"}");
    watch.until_risen("retrysafe_reaped_total");
    let open = std::net::TcpStream::connect(gateway.address).unwrap();
    watch.until_risen("retrysafe_connections");
    drop(open);

    for metric in METRICS {
        let elsewhere = OF_FAILING_STORES.iter().chain(&OF_TIGHT_BOUNDS).chain(&OF_BUGS);
        let of_libraries =
            OF_FLOWS.iter().chain(&OF_EFFECTS).chain(&OF_WEBHOOKS).chain(&OF_OPERATORS);
        let of_libraries = of_libraries
            .chain(&OF_LEDGERS)
            .chain(&OF_HEALTH_CHECKS)
            .chain(&OF_TRACES)
            .chain(&OF_SAME_BYTES);
        let is_elsewhere =
            elsewhere.chain(&OF_REDIS).chain(of_libraries).any(|other| other == metric);
        assert!(is_elsewhere || watch.has_risen(metric.name), "{}", metric.name);
    }
    for met in Met::ALL {
        let is_elsewhere = MET_WITH_FAILING_STORES.contains(&met);
        assert!(is_elsewhere || watch.has_met(met), "{}", met.name());
    }
    for line in [
        "retrysafe_refusals_total{route=\"/{*rest}\",code=\"idempotency_key_invalid\"}",
        "retrysafe_settled_total{route=\"/{*rest}\",standing=\"completed\"}",
        "retrysafe_settled_total{route=\"/{*rest}\",standing=\"failed_retryable\"}",
        "retrysafe_settled_total{route=\"/{*rest}\",standing=\"unknown\"}",
        "retrysafe_store_seconds_count{operation=\"insert\"",
        "retrysafe_reconcile_resolved_total{standing=\"failed_retryable\",judge=\"operator\"}",
        "retrysafe_observed_total{route=\"/watch\",finding=\"duplicate\"}",
        "retrysafe_requests_total{route=\"/{*rest}\",class=\"2xx\"}",
        "http_server_request_duration_seconds_count{http_request_method=\"POST\",http_response_status_code=\"201\",url_scheme=\"http\",http_route=\"/wait\"}",
        "retrysafe_door_refusals_total{code=\"request_malformed\"}",
        "retrysafe_upstream_failures_total{reached=\"lost\"}",
        "retrysafe_admin_actions_total{verb=\"release\",result=\"done\"}",
    ] {
        assert!(watch.has_risen(line), "{line} in {:?}", watch.seen);
    }
}

/// The store's file that holds records of this path, as it begins.
fn segment(gateway: &Gateway, path: &str) -> (File, Vec<u8>) {
    let files = std::fs::read_dir(gateway.folder.join("data")).unwrap().flatten();
    let opened = files.map(|file| File::options().read(true).write(true).open(file.path()));
    opened
        .map(Result::unwrap)
        .find_map(|file| {
            let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
            let mut begin = vec![0; length.min(1 << 20)];
            file.read_exact_at(&mut begin, 0).unwrap();
            let is_here = find(&begin, path).next().is_some();
            is_here.then_some((file, begin))
        })
        .unwrap()
}

fn find<'a>(bytes: &'a [u8], text: &'a str) -> impl Iterator<Item = usize> + 'a {
    let windows = bytes.windows(text.len()).enumerate();
    windows.filter(move |(_, part)| *part == text.as_bytes()).map(|(at, _)| at)
}

#[test]
fn a_store_that_fails_is_reported_and_found_again() {
    let upstream = Upstream::start();
    let config = |sweep_every: &str| {
        format!(
            "[upkeep]\nsweep_every = \"{sweep_every}\"\n\
             [[route]]\npath = \"/open\"\nmethods = [\"POST\"]\non_store_error = \"open\"\n\
             [[route]]\npath = \"/damaged\"\nmethods = [\"POST\"]\n\
             lease = \"3s\"\nlease_max = \"3s\"\n"
        )
    };
    let gateway = Gateway::start(&upstream, &config("1h"));
    let (mut watch, address) = (Watch::new(&gateway), gateway.address);

    // The record of a request that outlives its lease is damaged before the sweeper comes: nobody
    // can say any more whose it is.
    let gate = Gate::default();
    upstream.script("/damaged", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let asked = request("POST", "/damaged", &[("Idempotency-Key", &key())], b"{}");
    assert_eq!(send(address, &asked).status(), 504);
    let (disk, mut begin) = segment(&gateway, "/damaged");
    let mut flipped = Vec::new();
    gateway.configure(&config("50ms"));
    let end = Instant::now() + PATIENCE;
    while !watch.has_risen("retrysafe_sweep_failures_total") {
        assert!(Instant::now() < end, "the damage is not noticed");
        // Every copy of it, and one that a last renewal may have written since.
        for at in find(&begin, "/damaged") {
            disk.write_all_at(b"_", at as u64).unwrap();
            flipped.push(at as u64);
        }
        gateway.signal("HUP");
        disk.read_exact_at(&mut begin, 0).unwrap();
        watch.look();
    }
    assert_eq!(send(address, &asked).code(), "store_unavailable");
    watch.until_risen("retrysafe_store_errors_total{operation=\"insert\",kind=\"damaged\"}");
    for at in flipped {
        disk.write_all_at(b"/", at).unwrap();
    }
    assert_eq!(send(address, &asked).code(), "outcome_unknown", "it can be read again");
    gate.open();

    // The disk is gone: nothing runs, the breaker opens, and closes when the disk is back.
    let (kept, open) = (key(), key());
    gateway.post("/kept", &kept, "{}");
    gateway.post("/open", &open, "{}");
    let (disk, begin) = segment(&gateway, "/kept");
    let length = disk.metadata().unwrap().len();
    disk.set_len(0).unwrap();
    let unprotected = gateway.post("/open", &open, "{}");
    assert_eq!(unprotected.header("retrysafe-unprotected"), Some("store"));
    gateway.wait_for_log("\"outcome\":\"unprotected\"");
    let end = Instant::now() + PATIENCE;
    while !watch.has_risen("retrysafe_breaker_open") {
        assert!(Instant::now() < end, "the breaker does not open");
        assert_eq!(gateway.post("/kept", &kept, "{}").code(), "store_unavailable");
        watch.look();
    }
    disk.set_len(length).unwrap();
    disk.write_all_at(&begin, 0).unwrap();
    let end = Instant::now() + PATIENCE;
    while !gateway.post("/kept", &kept, "{}").is_replay() {
        assert!(Instant::now() < end, "the store is back, and not asked");
    }
    watch.until("retrysafe_breaker_open 0");
    assert_eq!(upstream.count("/kept"), 1);

    for metric in OF_FAILING_STORES {
        assert!(watch.has_risen(metric.name), "{}", metric.name);
    }
    for met in MET_WITH_FAILING_STORES {
        assert!(watch.has_met(met), "{}", met.name());
    }
}

/// A provider asks which of its tenants repeats itself. Tenants are many, and their names are nobody's business on a page without
/// a lock.
#[test]
fn duplicates_and_misuses_are_counted_per_tenant_in_bounded_memory() {
    let upstream = Upstream::start();
    let gateway = Gateway::start_bare(&upstream, "[defaults]\nscope = [\"header:x-tenant\"]\n");
    let post = |tenant: &str, key: &str, body: &str| {
        gateway.post_with("/t", key, body, &[("X-Tenant", tenant)]).status()
    };
    // Many tenants repeat themselves once, more than are ever kept; one does so more often, and misuses keys.
    for at in 0..300 {
        let tenant = format!("tenant-{at}");
        post(&tenant, "k", "{}");
        post(&tenant, "k", "{}");
    }
    let loud = key();
    for _ in 0..20 {
        post("loud@example.com", &loud, "{}");
    }
    for _ in 0..3 {
        assert_eq!(post("loud@example.com", &loud, "{\"a\":1}"), 422);
    }
    let stats = gateway.ask("GET", "/api/v1/stats?top=3", "").json();
    let first = &stats["duplicates"][0];
    assert!(first["scope"].as_str().unwrap().contains("loud@example.com"), "{stats}");
    let count = |member: &str| first[member].as_u64().unwrap();
    assert!(count("count") >= 19 && count("count") - count("excess_max") <= 19, "{first}");
    assert_eq!(stats["duplicates"].as_array().unwrap().len(), 3);
    assert_eq!((&stats["misuses"][0]["count"], stats["misuses"][1].as_object()), (&3.into(), None));

    let shown = gateway.metrics();
    let digest = first["scope_digest"].as_str().unwrap();
    let line = format!("retrysafe_scope_misuses{{scope=\"{digest}\"}} 3");
    assert!(shown.lines().any(|shown| shown == line), "no {line} in {shown}");
    let lines = shown.lines().filter(|line| line.starts_with("retrysafe_scope_duplicates{"));
    assert_eq!(lines.count(), 10);
    assert!(!shown.contains("loud@example.com") && !shown.contains("tenant-"));
}
