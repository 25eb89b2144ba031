//! Does the log say what became of each request?

use std::io::{BufRead as _, BufReader, PipeWriter};

use super::kit::{
    Gate, Gateway, Message, PATIENCE, Step, Upstream, key, raw, reply, request, send, until,
};

/// What the log says of the request with this id.
fn outcome(gateway: &Gateway, id: &str) -> String {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let log = gateway.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        // Warnings about a request have its id, too.
        let said = lines.find(|line: &serde_json::Value| {
            line["message"] == "request" && line["request_id"] == id
        });
        if let Some(line) = said {
            return line["outcome"].as_str().unwrap().to_owned();
        }
        assert!(std::time::Instant::now() < end, "no line for {id}: {log}");
    }
}

#[test]
fn every_outcome_has_its_word() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "[[route]]\npath = \"/watch\"\nmethods = [\"POST\"]\nmode = \"observe\"\n",
    );
    let said = |answer: &Message| outcome(&gateway, answer.header("x-request-id").unwrap());
    let post = |path: &str, key: &str, body: &str| said(&gateway.post(path, key, body));
    let one = key();
    assert_eq!(post("/a", &one, "{}"), "executed");
    assert_eq!(post("/a", &one, "{}"), "replayed");
    assert_eq!(post("/a", &one, "[]"), "mismatch");
    assert_eq!(post("/a", "a b", "[]"), "refused:idempotency_key_invalid");
    assert_eq!(post("/watch", &one, "{}"), "observed");
    upstream.script("/lost", vec![Step::Drop]);
    assert_eq!(post("/lost", &one, "{}"), "mismatch");
    let two = key();
    assert_eq!(post("/lost", &two, "{}"), "unknown", "just now");
    assert_eq!(post("/lost", &two, "{}"), "unknown", "and still");
    upstream.script("/big", vec![reply(201, &"x".repeat(2 << 20))]);
    let three = key();
    assert_eq!(post("/big", &three, "{}"), "executed");
    assert_eq!(post("/big", &three, "{}"), "not_stored");
    let bare = |method: &str, path: &str| {
        said(&send(gateway.address, &request(method, path, &[("Expect", "100-continue")], b"")))
    };
    assert_eq!(bare("POST", "/a"), "passed");
    assert_eq!(bare("GET", "/a"), "passed");
    assert_eq!(bare("PUT", "/lost"), "refused:upstream_failed");
    assert_eq!(bare("GET", "/.well-known/idempotency"), "answered");
    assert_eq!(bare("post", "/a"), "refused:request_malformed");

    let gate = Gate::default();
    upstream.script("/slow", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let (four, address) = (key(), gateway.address);
    let asked = request("POST", "/slow", &[("Idempotency-Key", &four)], b"{}");
    let again = asked.clone();
    let running = std::thread::spawn(move || raw(address, &asked, false));
    upstream.wait("/slow", 1);
    assert_eq!(said(&send(address, &again)), "in_progress");
    gate.open();
    assert_eq!(said(&running.join().unwrap()[0]), "executed");
}

/// A gateway whose log goes into a pipe.
fn started_into(pipe: PipeWriter, upstream: &Upstream, toml: &str) -> Gateway {
    Gateway::start_as(upstream, toml, |gateway| gateway.pipe = Some(pipe))
}

/// Almost as long as a path may be, so that few requests fill a log.
fn long_path() -> String {
    format!("/{}", "x".repeat(60_000))
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    // Events were written by the worker that had them to tell. When nobody read the pipe, the worker
    // stood still for ever, and so did everything it served.
    let (unread, pipe) = std::io::pipe().unwrap();
    let upstream = Upstream::start();
    upstream.otherwise(Some(Step::Drop));
    let mut gateway = started_into(pipe, &upstream, "");
    let lost = || gateway.metric("retrysafe_log_lines_dropped_total");
    // Each of these is an event and a request's line; a pipe holds 64 KiB.
    let ask = || send(gateway.address, &request("POST", &long_path(), &[], b""));
    let end = std::time::Instant::now() + PATIENCE;
    while lost() == 0.0 {
        assert!(std::time::Instant::now() < end, "a queue without an end?");
        for _ in 0..20 {
            assert_eq!(ask().status(), 502);
        }
    }
    assert_eq!(ask().status(), 502);
    assert!(gateway.is_ready());

    // Once somebody reads, the log says how much is missing, and goes on.
    let read = std::thread::spawn(move || {
        let mut lines = BufReader::new(unread).lines().map_while(Result::ok);
        let said = lines.find(|line| line.contains("log lines were dropped"));
        assert!(lines.any(|line| line.contains("/after")), "and nothing came after it");
        said.unwrap()
    });
    until("the log says what it lost, and goes on", || {
        send(gateway.address, &request("POST", "/after", &[], b""));
        read.is_finished()
    });
    let said = read.join().unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(said["dropped"].as_f64().unwrap() > 0.0, "{said}");
    assert!(said["dropped"].as_f64().unwrap() <= lost(), "{said}");
    gateway.kill();
}

#[test]
fn a_stop_does_not_wait_for_a_log_that_nobody_reads() {
    let (_unread, pipe) = std::io::pipe().unwrap();
    let upstream = Upstream::start();
    upstream.otherwise(Some(Step::Drop));
    let mut gateway = started_into(pipe, &upstream, "");
    for _ in 0..5 {
        send(gateway.address, &request("POST", &long_path(), &[], b""));
    }
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0));
}

#[test]
fn a_stop_that_fails_says_so_in_time_also_when_nobody_reads() {
    let (_unread, pipe) = std::io::pipe().unwrap();
    let upstream = Upstream::start();
    let gate = Gate::default();
    upstream.script("/slow", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let mut gateway = started_into(pipe, &upstream, "drain_max = \"100ms\"\n---\n");
    for _ in 0..5 {
        send(gateway.address, &request("GET", &long_path(), &[], b""));
    }
    let address = gateway.address;
    let headers = [("Idempotency-Key", &*key()), ("Authorization", "Bearer a")];
    let asked = request("POST", "/slow", &headers, b"{}");
    let running = std::thread::spawn(move || raw(address, &asked, false));
    upstream.wait("/slow", 1);
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(1));
    gate.open();
    running.join().unwrap();
}

#[test]
fn the_last_lines_of_a_stop_are_written() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    gateway.post("/last", &key(), "{}");
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0));
    let log = gateway.log();
    assert!(log.contains("\"path\":\"/last\""), "{log}");
    assert!(log.trim_end().ends_with('}') && log.contains("\"message\":\"stopped\""), "{log}");
}
