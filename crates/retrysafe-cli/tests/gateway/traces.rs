//! What does a collector receive of a request, and what if there is none?
//!
//! The collector is a server of ours that takes OTLP over HTTP and writes everything down, as the upstream does.

use std::collections::BTreeSet;

use serde_json::Value;

use super::kit::{
    Gate, Gateway, PATIENCE, Step, Upstream, free, key, program_with, reply, request, send, until,
};

const TRACES: &str = "/v1/traces";

/// A caller's span, and the trace it is in.
const CALLERS_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLERS_SPAN: &str = "00f067aa0ba902b7";

/// A gateway that sends its spans to a collector.
fn traced(collector: &str, upstream: &Upstream, more: &str) -> Gateway {
    let toml = "h2c = true\n---\n[[route]]\npath = \"/pay\"\nmethods = [\"POST\"]\n";
    Gateway::start_as(upstream, toml, |gateway| {
        gateway.before = format!(
            "export OTEL_EXPORTER_OTLP_ENDPOINT=http://{collector} OTEL_BSP_SCHEDULE_DELAY=20 \
             OTEL_EXPORTER_OTLP_PROTOCOL=http/json OTEL_SERVICE_NAME=pay {more}"
        );
    })
}

/// Every span that has come so far.
fn spans(collector: &Upstream) -> Vec<Value> {
    let mut spans = Vec::new();
    for seen in collector.seen_at(TRACES) {
        assert_eq!(seen.header("content-type"), Some("application/json"));
        let document: Value = serde_json::from_slice(&seen.message.body).unwrap();
        let of_resource = &document["resourceSpans"][0];
        let resource = of_resource["resource"]["attributes"].to_string();
        assert!(resource.contains("{\"stringValue\":\"pay\"}"), "{resource}");
        let scope = &of_resource["scopeSpans"][0];
        spans.extend(scope["spans"].as_array().unwrap().clone());
    }
    spans
}

/// Waits until a trace has so many spans, and gives them by name: the root first, then by the time they began.
fn trace(collector: &Upstream, trace_id: &str, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    until("the spans have come", || {
        found = spans(collector);
        found.retain(|span| span["traceId"] == trace_id);
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:#?}");
    let begun = |span: &Value| span["startTimeUnixNano"].as_str().unwrap().parse::<u64>().unwrap();
    found.sort_by_key(|span| (span["kind"] != 2, begun(span)));
    found
}

fn names(spans: &[Value]) -> Vec<&str> {
    spans.iter().map(|span| span["name"].as_str().unwrap()).collect()
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a str {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == name);
    let value = &found.unwrap_or_else(|| panic!("no {name} in {span}"))["value"];
    value["stringValue"].as_str().or(value["intValue"].as_str()).unwrap()
}

fn parent(trace: &str, span: &str, flags: &str) -> String {
    format!("00-{trace}-{span}-{flags}")
}

#[test]
fn a_request_is_a_span_with_its_steps_and_a_replay_is_linked_to_the_first_execution() {
    let upstream = Upstream::start();
    let collector = Upstream::start();
    let mut gateway = traced(&collector.address.to_string(), &upstream, "");
    let key = key();
    let context = parent(CALLERS_TRACE, CALLERS_SPAN, "01");
    let asked = [("traceparent", context.as_str()), ("tracestate", "vendor=1")];
    assert_eq!(gateway.post_with("/pay", &key, "{}", &asked).status(), 201);

    // The request is the caller's child, and its steps are the request's.
    let first = trace(&collector, CALLERS_TRACE, 4);
    assert_eq!(names(&first), ["POST /pay", "begin", "upstream", "settle"]);
    let root = &first[0];
    assert_eq!(root["parentSpanId"], CALLERS_SPAN);
    assert_eq!((&root["traceState"], root.get("links")), (&"vendor=1".into(), None));
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/pay"),
        ("http.response.status_code", "201"),
        ("url.path", "/pay"),
        ("url.scheme", "http"),
        ("retrysafe.outcome", "executed"),
    ] {
        assert_eq!(attribute(root, name), value, "{name}");
    }
    for step in &first[1..] {
        assert_eq!(step["parentSpanId"], root["spanId"]);
    }
    assert_eq!(attribute(&first[1], "retrysafe.answer"), "created");
    assert_eq!(attribute(&first[2], "http.response.status_code"), "201");
    assert_eq!(attribute(&first[3], "retrysafe.standing"), "completed");

    // The upstream is told in which span it works.
    let seen = &upstream.seen_at("/pay")[0];
    let exchange = first[2]["spanId"].as_str().unwrap();
    assert_eq!(seen.header("traceparent"), Some(&*parent(CALLERS_TRACE, exchange, "01")));
    assert_eq!(seen.header("tracestate"), Some("vendor=1"));

    // The line of the request leads to its trace.
    gateway.wait_for_log(&format!("\"trace_id\":\"{CALLERS_TRACE}\""));

    // A replay has a trace of its own, linked to the execution; also one whose answer is at hand, and by another process.
    for digit in ["a", "b", "c", "d"] {
        if digit == "c" {
            gateway.signal("TERM");
            assert_eq!(gateway.wait(), Some(0));
            gateway.restart();
        }
        let trace_id = &*digit.repeat(32);
        let context = parent(trace_id, "1111111111111111", "01");
        // A caller may take its key for the request's id.
        let asked = [("traceparent", context.as_str()), ("X-Request-Id", &key)];
        let replay = gateway.post_with("/pay", &key, "{}", &asked);
        assert!(replay.is_replay());
        let again = trace(&collector, trace_id, 2);
        assert_eq!(names(&again), ["POST /pay", "begin"]);
        assert_eq!(attribute(&again[0], "retrysafe.outcome"), "replayed");
        let link = &again[0]["links"][0];
        assert_eq!((&link["traceId"], &link["spanId"]), (&root["traceId"], &root["spanId"]));
    }
    assert_eq!(upstream.count("/pay"), 1);

    // An operator who has a trace finds the record, and the other way round.
    let shown = gateway.ask("GET", "/api/v1/keys?limit=10", "").json();
    let id = shown["keys"][0]["id"].as_str().unwrap().to_owned();
    let record = gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").json();
    assert_eq!(record["timeline"][0]["trace_id"], CALLERS_TRACE);
    let address = format!("http://{}", gateway.admin);
    let asked = ["keys", "find", CALLERS_TRACE, "--admin", &address, "--token", super::kit::TOKEN];
    let (code, out, err) = program_with(&asked, &gateway.folder, &[]);
    assert!(code == 0 && out.contains(&id[..12]), "{out}{err}");

    // What the key, the body and the credential are stands nowhere.
    let told: String = collector
        .seen_at(TRACES)
        .iter()
        .map(|seen| String::from_utf8_lossy(&seen.message.body).into_owned())
        .collect();
    assert!(!told.contains(&key));
}

#[test]
fn what_is_not_sampled_is_passed_on_and_told_to_nobody() {
    let upstream = Upstream::start();
    let collector = Upstream::start();
    let gateway = traced(&collector.address.to_string(), &upstream, "");
    let context = parent(CALLERS_TRACE, CALLERS_SPAN, "00");
    gateway.post_with("/pay", &key(), "{}", &[("traceparent", &context)]);
    let seen = upstream.seen_at("/pay")[0].clone();
    let passed = seen.header("traceparent").unwrap();
    assert!(passed.starts_with(&format!("00-{CALLERS_TRACE}-")) && passed.ends_with("-00"));
    assert!(!passed.contains(CALLERS_SPAN), "{passed}");

    // Whoever names no trace begins one; a request that is not covered has spans, too.
    let plain = send(gateway.address, &request("GET", "/list", &[("Baggage", "a=1")], b""));
    assert_eq!(plain.status(), 201);
    until("the spans have come", || spans(&collector).len() >= 2);
    let found = spans(&collector);
    let mut shown = names(&found);
    shown.sort_unstable();
    assert_eq!(shown, ["GET", "upstream"], "only what was sampled");
    assert!(found.iter().all(|span| span["traceId"] != CALLERS_TRACE));
    assert_eq!(upstream.seen_at("/list")[0].header("baggage"), Some("a=1"));
    let traces: BTreeSet<&str> =
        found.iter().map(|span| span["traceId"].as_str().unwrap()).collect();
    assert_eq!(traces.len(), 1);
}

#[test]
fn an_answer_that_is_lost_is_told_as_what_it_is() {
    let upstream = Upstream::start();
    let collector = Upstream::start();
    let gateway = traced(&collector.address.to_string(), &upstream, "");
    upstream.script("/pay", vec![Step::Drop]);
    let context = parent(CALLERS_TRACE, CALLERS_SPAN, "01");
    let lost = gateway.post_with("/pay", &key(), "{}", &[("traceparent", &context)]);
    assert_eq!(lost.status(), 502);
    let found = trace(&collector, CALLERS_TRACE, 4);
    assert_eq!(names(&found), ["POST /pay", "begin", "upstream", "settle"]);
    assert_eq!(attribute(&found[0], "retrysafe.outcome"), "unknown");
    assert_eq!(attribute(&found[2], "error.type"), "lost");
    assert_eq!(attribute(&found[3], "retrysafe.standing"), "unknown");
    for at in [0, 2] {
        assert_eq!(found[at]["status"]["code"], 2, "{}", found[at]);
    }
}

/// A caller that left took the span of its request with it, and the steps belonged to nothing.
#[test]
fn a_request_whose_caller_has_left_is_told_all_the_same() {
    let upstream = Upstream::start();
    let collector = Upstream::start();
    let gateway = traced(&collector.address.to_string(), &upstream, "");
    let gate = Gate::default();
    upstream.script("/pay", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let (mut sender, mut connection) = h2::client::handshake(stream).await.unwrap();
        let mut pings = connection.ping_pong().unwrap();
        tokio::spawn(connection);
        let request = http::Request::post("http://api.test/pay")
            .header("idempotency-key", key())
            .header("traceparent", parent(CALLERS_TRACE, CALLERS_SPAN, "01"));
        let (_, mut body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        body.send_data("{}".into(), true).unwrap();
        let is_sent = async {
            while upstream.count("/pay") == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, is_sent).await.unwrap();
        body.send_reset(h2::Reason::CANCEL);
        pings.ping(h2::Ping::opaque()).await.unwrap();
    });
    gate.open();
    let found = trace(&collector, CALLERS_TRACE, 4);
    assert_eq!(names(&found), ["POST", "begin", "upstream", "settle"]);
    assert_eq!(attribute(&found[0], "error.type"), "caller_left");
    assert_eq!(attribute(&found[3], "retrysafe.standing"), "completed");
    assert!(found[1..].iter().all(|step| step["parentSpanId"] == found[0]["spanId"]));
}

/// Nobody waits for a collector: it may be slow, refuse, or not be there at all.
#[test]
fn a_collector_that_fails_costs_spans_and_nothing_else() {
    let upstream = Upstream::start();
    let collector = Upstream::start();
    let gate = Gate::default();
    collector.script(TRACES, vec![Step::Held(gate.clone(), Box::new(reply(400, "{}")))]);
    // A batch leaves when it is full.
    let bounds = "OTEL_BSP_MAX_QUEUE_SIZE=4 OTEL_BSP_MAX_EXPORT_BATCH_SIZE=2 \
                  OTEL_BSP_SCHEDULE_DELAY=60000";
    let mut gateway = traced(&collector.address.to_string(), &upstream, bounds);
    // The collector holds the first batch for as long as this lasts, and the queue is full soon.
    for _ in 0..20 {
        assert_eq!(gateway.post("/pay", &key(), "{}").status(), 201);
    }
    let dropped = |gateway: &Gateway| gateway.metric("retrysafe_spans_dropped_total");
    // Four spans each: the queue holds four of them, and the batch that is on its way two more.
    let lost = dropped(&gateway);
    assert!((74.0..=76.0).contains(&lost), "{lost}");
    gate.open();
    until("what was refused is dropped", || dropped(&gateway) == 80.0);
    assert_eq!(gateway.metric("retrysafe_spans_exported_total"), 0.0);
    gateway.wait_for_log("spans_dropped");
    collector.script(TRACES, vec![reply(200, "{}")]);
    assert_eq!(gateway.post("/pay", &key(), "{}").status(), 201);
    until("spans are taken again", || gateway.metric("retrysafe_spans_exported_total") == 4.0);

    // Nobody listens: requests are answered, and a stop does not wait for long.
    let nobody = traced(&free().to_string(), &upstream, "OTEL_EXPORTER_OTLP_TIMEOUT=100");
    assert_eq!(nobody.post("/pay", &key(), "{}").status(), 201);
    drop(nobody);
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0));
}

#[test]
fn without_variables_nothing_is_traced_and_a_callers_context_passes_as_it_is() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let context = parent(CALLERS_TRACE, CALLERS_SPAN, "01");
    let asked = [("traceparent", context.as_str()), ("tracestate", "vendor=1")];
    gateway.post_with("/pay", &key(), "{}", &asked);
    let seen = upstream.seen_at("/pay")[0].clone();
    assert_eq!(seen.header("traceparent"), Some(&*context));
    assert_eq!(seen.header("tracestate"), Some("vendor=1"));
    let shown = gateway.ask("GET", "/api/v1/keys?limit=10", "").json();
    let id = shown["keys"][0]["id"].as_str().unwrap();
    let record = gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").json();
    assert_eq!(record["timeline"][0]["trace_id"], Value::Null);
}
