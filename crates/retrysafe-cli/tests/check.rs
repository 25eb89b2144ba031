//! Does the checker find what is wrong, and only that?
//!
//! Little servers, each with one fault that real implementations have, and one without. Each fault
//! must be named in the checker's report; the right one must get none.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "check_report/schema.rs"]
mod schema;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    NoProtection,
    CheckThenAct,
    NoFingerprint,
    GlobalKey,
    ReplayAs200,
    PinnedServerError,
    KeyIgnoredOnOtherRoute,
    BodyCorruptedOnReplay,
    StuckAfterDisconnect,
    WaitsForEver,
    InFlightAsSuccess,
    MismatchAfterCompletionOnly,
    ExpiredLeaseRunsTwice,
    HeadersLost,
    RefusedRequestStuck,
    MisuseOverwrites,
    MarkedAlways,
    HostCompared,
    BoundaryCompared,
    TokenIsTheCaller,
    NodesApart,
    ForgetsEarly,
    ForgetsAtRestart,
    RunsAgainAfterRestart,
}

#[derive(Clone)]
struct Stored {
    status: u16,
    body: Vec<u8>,
}

enum Entry {
    Running {
        fingerprint: Vec<u8>,
        since: Instant,
    },
    Done {
        fingerprint: Vec<u8>,
        answer: Stored,
        at: Instant,
    },
    Released {
        fingerprint: Vec<u8>,
    },
    /// Whoever ran it is gone.
    Unknown {
        fingerprint: Vec<u8>,
    },
}

struct Server {
    fault: Fault,
    /// How long it remembers a key; for good where that is not asked about.
    ttl: Option<Duration>,
    entries: Mutex<HashMap<String, Entry>>,
    changed: Condvar,
    effects: Mutex<Vec<u64>>,
    next: AtomicU64,
}

struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// How long a server remembers a key whose time is asked about: longer than any other case takes between two requests.
const TTL: Duration = Duration::from_secs(12);

/// Starts a server with a fault and gives its port. It lives as long as the test process.
fn serve(fault: Fault) -> u16 {
    node_of(&server(fault, None))
}

fn server(fault: Fault, ttl: Option<Duration>) -> Arc<Server> {
    Arc::new(Server {
        fault,
        ttl,
        entries: Mutex::default(),
        changed: Condvar::new(),
        effects: Mutex::default(),
        next: AtomicU64::new(1),
    })
}

/// Another port of a server.
fn node_of(server: &Arc<Server>) -> u16 {
    let server = server.clone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = server.clone();
            std::thread::spawn(move || server.connection(stream));
        }
    });
    port
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let mut request = Request { method, path, headers, body: Vec::new() };
    let length = request.header("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
    request.body = vec![0; length];
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

fn answer(mut stream: &TcpStream, stored: &Stored, headers: &[(&str, &str)]) {
    let mut head = format!(
        "HTTP/1.1 {} X\r\ncontent-length: {}\r\nconnection: close\r\n",
        stored.status,
        stored.body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
    let _ = stream.write_all(&stored.body);
}

fn problem(stream: &TcpStream, status: u16, code: &str, more: &[(&str, &str)]) {
    let body =
        format!(r#"{{"type":"about:{code}","title":"{code}","status":{status},"code":"{code}"}}"#);
    let mut headers = vec![("content-type", "application/problem+json")];
    headers.extend_from_slice(more);
    answer(stream, &Stored { status, body: body.into_bytes() }, &headers);
}

impl Server {
    fn connection(&self, stream: TcpStream) {
        let Some(request) = read(&stream) else { return };
        if request.path == "/restart" {
            self.restart();
            return answer(&stream, &Stored { status: 204, body: Vec::new() }, &[]);
        }
        if request.method == "GET" {
            let effects = self.effects.lock().unwrap().clone();
            let body = serde_json::json!({ "data": effects }).to_string().into_bytes();
            return answer(
                &stream,
                &Stored { status: 200, body },
                &[("content-type", "application/json")],
            );
        }
        let keys: Vec<&str> = request
            .headers
            .iter()
            .filter(|(n, _)| n == "idempotency-key")
            .map(|(_, v)| v.as_str())
            .collect();
        let key = match keys.as_slice() {
            [] => return self.plain(&stream, &request),
            [key] => key.trim_matches('"').to_owned(),
            _ => return problem(&stream, 400, "idempotency_key_invalid", &[]),
        };
        if self.fault == Fault::NoProtection
            || (self.fault == Fault::KeyIgnoredOnOtherRoute && request.path != "/payments")
        {
            return self.plain(&stream, &request);
        }
        if key.is_empty() || key.len() > 255 || keys[0].starts_with('"') != keys[0].ends_with('"') {
            return problem(&stream, 400, "idempotency_key_invalid", &[]);
        }
        self.guarded(&stream, &request, &key);
    }

    fn plain(&self, stream: &TcpStream, request: &Request) {
        let stored = self.execute(request, "");
        self.first(stream, &stored);
    }

    fn first(&self, stream: &TcpStream, stored: &Stored) {
        let location = format!("/payments/{}", stored.body.len());
        let mut headers =
            vec![("content-type", "application/json"), ("location", location.as_str())];
        if self.fault == Fault::MarkedAlways {
            headers.push(("idempotent-replayed", "true"));
        }
        answer(stream, stored, &headers);
    }

    fn fingerprint(&self, request: &Request) -> Vec<u8> {
        let body = match serde_json::from_slice::<Value>(&request.body) {
            // Whole decimals are numbers like any other; members come out sorted.
            Ok(json) => json.to_string().replace(".0", "").into_bytes(),
            Err(_) => request.body.clone(),
        };
        let kind = request.header("content-type").unwrap_or_default();
        let body = match kind.split_once("boundary=") {
            Some((_, boundary)) if self.fault != Fault::BoundaryCompared => {
                String::from_utf8_lossy(&body).replace(boundary, "").into_bytes()
            }
            Some(_) | None => body,
        };
        let host = match self.fault {
            Fault::HostCompared => request.header("host").unwrap_or_default(),
            _ => "",
        };
        [request.method.as_bytes(), host.as_bytes(), request.path.as_bytes(), &body].concat()
    }

    fn guarded(&self, stream: &TcpStream, request: &Request, key: &str) {
        let scope = match self.fault {
            Fault::GlobalKey => "",
            Fault::TokenIsTheCaller => request.header("authorization").unwrap_or(""),
            // The number of a token is that of its renewal.
            _ => {
                let token = request.header("authorization").unwrap_or("");
                token.trim_end_matches(|c: char| c.is_ascii_digit())
            }
        };
        let id = format!("{scope}|{key}");
        let fingerprint = self.fingerprint(request);
        if self.fault != Fault::CheckThenAct {
            match self.begin(stream, &id, &fingerprint) {
                Begun::Execute => {}
                Begun::Answered => return,
            }
        } else if let Some(Entry::Done { answer: stored, .. }) =
            self.entries.lock().unwrap().get(&id)
        {
            return self.replay(stream, stored);
        }
        let stored = self.execute(request, &id);
        if self.fault == Fault::StuckAfterDisconnect && hung_up(stream) {
            return;
        }
        let mut entries = self.entries.lock().unwrap();
        let entry = match stored.status {
            500.. if self.fault != Fault::PinnedServerError => Entry::Released { fingerprint },
            400 if self.fault == Fault::RefusedRequestStuck => {
                Entry::Running { fingerprint, since: Instant::now() }
            }
            _ => Entry::Done { fingerprint, answer: stored.clone(), at: Instant::now() },
        };
        // A restart has decided meanwhile.
        if !matches!(entries.get(&id), Some(Entry::Unknown { .. })) {
            entries.insert(id, entry);
        }
        drop(entries);
        self.changed.notify_all();
        self.first(stream, &stored);
    }

    fn begin(&self, stream: &TcpStream, id: &str, fingerprint: &[u8]) -> Begun {
        let mut entries = self.entries.lock().unwrap();
        let parts = if self.fault == Fault::ForgetsEarly { 4 } else { 1 };
        if let (Some(ttl), Some(Entry::Done { at, .. })) = (self.ttl, entries.get(id))
            && at.elapsed() > ttl / parts
        {
            entries.remove(id);
        }
        let same = match entries.get(id) {
            None => true,
            Some(Entry::Running { fingerprint: f, .. }) => {
                f == fingerprint || self.fault == Fault::MismatchAfterCompletionOnly
            }
            Some(
                Entry::Done { fingerprint: f, .. }
                | Entry::Released { fingerprint: f }
                | Entry::Unknown { fingerprint: f },
            ) => f == fingerprint,
        };
        if !same && self.fault == Fault::MisuseOverwrites {
            entries.remove(id);
            problem(stream, 422, "idempotency_key_reused", &[]);
            return Begun::Answered;
        }
        if !same && self.fault != Fault::NoFingerprint {
            problem(stream, 422, "idempotency_key_reused", &[]);
            return Begun::Answered;
        }
        match entries.get(id) {
            None | Some(Entry::Released { .. }) => {}
            Some(Entry::Unknown { .. }) => {
                problem(stream, 409, "outcome_unknown", &[("retry-after", "5")]);
                return Begun::Answered;
            }
            Some(Entry::Done { answer, .. }) => {
                let stored = answer.clone();
                drop(entries);
                self.replay(stream, &stored);
                return Begun::Answered;
            }
            Some(Entry::Running { since, .. }) => match self.fault {
                Fault::ExpiredLeaseRunsTwice if since.elapsed() > Duration::from_millis(500) => {}
                Fault::WaitsForEver => {
                    // A waiter that is never told: it waits on, whatever happens.
                    loop {
                        entries = self.changed.wait(entries).unwrap();
                    }
                }
                Fault::InFlightAsSuccess => {
                    let body = br#"{"status":"processing"}"#.to_vec();
                    answer(
                        stream,
                        &Stored { status: 200, body },
                        &[("content-type", "application/json")],
                    );
                    return Begun::Answered;
                }
                _ => {
                    problem(stream, 409, "request_in_progress", &[("retry-after", "1")]);
                    return Begun::Answered;
                }
            },
        }
        entries.insert(
            id.into(),
            Entry::Running { fingerprint: fingerprint.into(), since: Instant::now() },
        );
        Begun::Execute
    }

    /// What a kill and a start leave of the keys. Whoever runs goes on, as a call does that was sent already.
    fn restart(&self) {
        let mut entries = self.entries.lock().unwrap();
        match self.fault {
            Fault::ForgetsAtRestart => entries.clear(),
            Fault::RunsAgainAfterRestart => {
                entries.retain(|_, entry| !matches!(entry, Entry::Running { .. }));
            }
            _ => {
                for entry in entries.values_mut() {
                    if let Entry::Running { fingerprint, .. } = entry {
                        *entry = Entry::Unknown { fingerprint: std::mem::take(fingerprint) };
                    }
                }
            }
        }
    }

    fn replay(&self, stream: &TcpStream, stored: &Stored) {
        let mut stored = stored.clone();
        let location = format!("/payments/{}", stored.body.len());
        let mut headers = vec![
            ("content-type", "application/json"),
            ("idempotent-replayed", "true"),
            ("idempotency-expires", "tomorrow"),
        ];
        match self.fault {
            Fault::ReplayAs200 => stored.status = 200,
            Fault::BodyCorruptedOnReplay => {
                stored.body = stored.body.iter().map(|b| b & 0x5f).collect()
            }
            _ => {}
        }
        if self.fault != Fault::HeadersLost {
            headers.push(("location", &location));
        }
        answer(stream, &stored, &headers);
    }

    /// The work: it takes as long as the caller asks for, and leaves an effect.
    fn execute(&self, request: &Request, id: &str) -> Stored {
        let slow: u64 = request.header("x-slow").and_then(|ms| ms.parse().ok()).unwrap_or(20);
        std::thread::sleep(Duration::from_millis(slow));
        if request.body.windows(5).any(|w| w == b"\"bad\"") {
            return Stored { status: 400, body: br#"{"error":"bad"}"#.to_vec() };
        }
        let first = !self.entries.lock().unwrap().contains_key(&format!("failed|{id}"));
        if request.header("x-fail-once").is_some() && first {
            let mark = Entry::Released { fingerprint: Vec::new() };
            self.entries.lock().unwrap().insert(format!("failed|{id}"), mark);
            return Stored { status: 500, body: br#"{"error":"boom"}"#.to_vec() };
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.effects.lock().unwrap().push(number);
        Stored {
            status: 201,
            body: format!(r#"{{"id":"pay-{number}","state":"done"}}"#).into_bytes(),
        }
    }
}

enum Begun {
    Execute,
    Answered,
}

/// Whether the caller has closed its side.
fn hung_up(stream: &TcpStream) -> bool {
    let _ = stream.set_nonblocking(true);
    let gone = matches!(stream.peek(&mut [0]), Ok(0));
    let _ = stream.set_nonblocking(false);
    gone
}

/// Runs the checker against a fault, with the listing or without.
fn check(fault: Fault, listing: bool) -> (Option<i32>, Value) {
    check_with(serve(fault), fault, listing, &[])
}

/// The same with everything that it can be told: another node, another token, a restart, a length of time.
fn check_everywhere(fault: Fault) -> (Option<i32>, Value) {
    let first = server(fault, Some(TTL));
    let port = node_of(&first);
    let second = if fault == Fault::NodesApart { serve(fault) } else { node_of(&first) };
    let second = format!("http://127.0.0.1:{second}/payments");
    // Built into every shell that runs these tests.
    let restart = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'POST /restart HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3"
    );
    let restart = format!("bash -c {}", shell_quoted(&restart));
    let refreshed = "Authorization: Bearer a2";
    check_with(
        port,
        fault,
        true,
        &[
            "--second-url",
            &second,
            "--refreshed-credential",
            refreshed,
            "--ttl",
            &format!("{}s", TTL.as_secs()),
            "--restart-command",
            &restart,
        ],
    )
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// How many seconds the checker waits for an answer. Faults that leave it waiting are found within a short time; for the others a
/// machine that stalls must not look like one of them.
fn timeout_of(fault: Fault) -> &'static str {
    match fault {
        Fault::WaitsForEver | Fault::StuckAfterDisconnect | Fault::RefusedRequestStuck => "3",
        _ => "10",
    }
}

/// How long the work of a slow request takes, where the checker must meet it running.
fn slow_header(fault: Fault) -> &'static str {
    match fault {
        Fault::None
        | Fault::MismatchAfterCompletionOnly
        | Fault::StuckAfterDisconnect
        | Fault::RunsAgainAfterRestart
        | Fault::ExpiredLeaseRunsTwice => "X-Slow: 2000",
        _ => "X-Slow: 1000",
    }
}

fn check_with(port: u16, fault: Fault, listing: bool, more: &[&str]) -> (Option<i32>, Value) {
    let url = format!("http://127.0.0.1:{port}/payments");
    let mut command = Command::new(env!("CARGO_BIN_EXE_retrysafe"));
    command
        .args(["check", &url, "--yes", "--json", "--timeout", timeout_of(fault), "--rate", "200"])
        .args(["-H", "Authorization: Bearer a", "--second-caller", "Authorization: Bearer b"])
        .args([
            "--other-path",
            "/refunds",
            "--slow",
            slow_header(fault),
            "--client-error",
            r#"{"bad":"{{uuid}}"}"#,
        ])
        .args(["--server-error", "X-Fail-Once: 1"]);
    if listing {
        command.args(["--list", "/payments", "--list-pointer", "/data"]);
    }
    let output = command.args(more).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
    });
    schema::check(&json);
    (output.status.code(), json)
}

/// The ids of the findings of a verdict.
fn ids(report: &Value, verdict: &str) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap();
    findings
        .iter()
        .filter(|finding| finding["verdict"] == verdict)
        .map(|finding| finding["id"].as_str().unwrap().to_owned())
        .collect()
}

fn finds(fault: Fault, verdict: &str, id: &str) {
    let (exit, report) = check(fault, false);
    let found = ids(&report, verdict);
    assert!(found.iter().any(|found| found == id), "{fault:?}: {report:#}");
    assert_eq!(exit, Some(if verdict == "fault" { 1 } else { 0 }), "{fault:?}");
}

#[test]
fn a_correct_server_gets_no_fault() {
    // Both at once: each spends most of its time waiting.
    std::thread::scope(|both| {
        for listing in [false, true] {
            both.spawn(move || {
                let (exit, report) = check(Fault::None, listing);
                assert_eq!(ids(&report, "fault"), Vec::<String>::new(), "{report:#}");
                assert_eq!(ids(&report, "weak"), Vec::<String>::new(), "{report:#}");
                assert_eq!(ids(&report, "undecided"), Vec::<String>::new(), "{report:#}");
                assert_eq!((exit, report["dialect"].as_str()), (Some(0), Some("ietf")));
            });
        }
    });
}

/// Nothing could be counted, and a second execution would pass unseen.
#[test]
fn a_list_that_cannot_be_read_is_told_and_nothing_is_judged() {
    let url = format!("http://127.0.0.1:{}/payments", serve(Fault::None));
    let output = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["check", &url, "--yes", "-H", "Authorization: Bearer a"])
        .args(["--list", "/payments", "--list-pointer", "/nix"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("--list /payments does not answer"), "{told}");
}

#[test]
fn a_retry_by_another_name_or_under_another_boundary_is_judged() {
    std::thread::scope(|all| {
        all.spawn(|| finds(Fault::HostCompared, "weak", "host_name"));
        all.spawn(|| finds(Fault::BoundaryCompared, "weak", "form_boundary"));
        all.spawn(|| {
            let (_, report) = check(Fault::None, false);
            let passed = ids(&report, "pass");
            assert!(["host_name", "form_boundary"].iter().all(|id| passed.contains(&(*id).into())));
        });
        all.spawn(|| {
            let (_, report) = check(Fault::NoProtection, false);
            assert!(ids(&report, "undecided").contains(&"host_name".into()), "{report:#}");
        });
    });
}

#[test]
fn a_correct_server_is_right_at_every_place_and_time() {
    let (exit, report) = check_everywhere(Fault::None);
    for verdict in ["fault", "weak", "undecided"] {
        assert_eq!(ids(&report, verdict), Vec::<String>::new(), "{report:#}");
    }
    let passed = ids(&report, "pass");
    for id in [
        "refreshed_credential",
        "second_node",
        "second_node_race",
        "ttl",
        "restart",
        "restart_in_flight",
    ] {
        assert!(passed.iter().any(|passed| passed == id), "{id}: {report:#}");
    }
    assert_eq!(exit, Some(0));
}

#[test]
fn faults_of_places_and_times_are_found() {
    // All at once: each spends most of its time waiting.
    std::thread::scope(|all| {
        for (fault, found) in [
            (Fault::TokenIsTheCaller, &["refreshed_credential"][..]),
            (Fault::NodesApart, &["second_node", "second_node_race"]),
            (Fault::ForgetsEarly, &["ttl"]),
            (Fault::ForgetsAtRestart, &["restart"]),
            (Fault::RunsAgainAfterRestart, &["restart_in_flight"]),
        ] {
            all.spawn(move || {
                let (exit, report) = check_everywhere(fault);
                let faults = ids(&report, "fault");
                let is_found = |id: &&str| faults.iter().any(|fault| fault == id);
                assert!(found.iter().all(is_found), "{fault:?}: {report:#}");
                assert_eq!(exit, Some(1));
            });
        }
    });
}

#[test]
fn no_protection_at_all_is_found_and_nothing_passes() {
    for listing in [false, true] {
        let (exit, report) = check(Fault::NoProtection, listing);
        assert_eq!(ids(&report, "pass"), Vec::<String>::new(), "{report:#}");
        // One cause is one fault, and names what follows from it.
        assert_eq!(ids(&report, "fault"), ["runs_again"], "{report:#}");
        assert_eq!(ids(&report, "weak"), Vec::<String>::new(), "{report:#}");
        assert_eq!((exit, report["faults"].as_u64()), (Some(1), Some(1)));
        let findings = report["findings"].as_array().unwrap();
        let cause = findings.iter().find(|finding| finding["id"] == "runs_again").unwrap();
        for consequence in ["race", "mismatch", "host_name"] {
            assert!(cause["seen"].as_str().unwrap().contains(consequence), "{report:#}");
        }
    }
}

#[test]
fn check_then_act_is_found() {
    finds(Fault::CheckThenAct, "fault", "race");
}

#[test]
fn a_missing_fingerprint_is_found() {
    finds(Fault::NoFingerprint, "fault", "mismatch");
}

#[test]
fn a_global_key_is_found() {
    finds(Fault::GlobalKey, "fault", "isolation");
}

#[test]
fn a_replay_as_200_is_found() {
    finds(Fault::ReplayAs200, "fault", "replay_status");
}

#[test]
fn a_pinned_server_error_is_found() {
    finds(Fault::PinnedServerError, "fault", "after_server_error");
}

#[test]
fn a_key_ignored_on_another_route_is_found() {
    finds(Fault::KeyIgnoredOnOtherRoute, "fault", "other_route");
}

#[test]
fn a_body_corrupted_on_replay_is_found() {
    finds(Fault::BodyCorruptedOnReplay, "fault", "replay_body");
}

#[test]
fn a_key_stuck_after_disconnect_is_found() {
    finds(Fault::StuckAfterDisconnect, "fault", "disconnect");
}

#[test]
fn an_endless_wait_is_found() {
    finds(Fault::WaitsForEver, "fault", "hangs");
}

#[test]
fn success_told_in_flight_is_found() {
    finds(Fault::InFlightAsSuccess, "fault", "in_flight_success");
}

#[test]
fn a_mismatch_told_only_after_completion_is_found() {
    finds(Fault::MismatchAfterCompletionOnly, "weak", "mismatch_in_flight");
}

#[test]
fn an_expired_lease_that_runs_twice_is_found() {
    finds(Fault::ExpiredLeaseRunsTwice, "fault", "lease");
}

#[test]
fn lost_headers_are_found() {
    finds(Fault::HeadersLost, "fault", "replay_headers");
}

#[test]
fn a_refused_request_that_sticks_is_found() {
    finds(Fault::RefusedRequestStuck, "fault", "after_client_error");
}

#[test]
fn a_misuse_that_overwrites_is_found() {
    finds(Fault::MisuseOverwrites, "fault", "mismatch");
}

#[test]
fn a_marker_on_first_answers_is_found() {
    finds(Fault::MarkedAlways, "fault", "marker");
}

#[test]
fn a_dry_run_sends_nothing_and_nobody_is_surprised() {
    let port = serve(Fault::None);
    let url = format!("http://127.0.0.1:{port}/payments");
    let run = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_retrysafe")).arg("check").args(args).output().unwrap()
    };
    let dry = run(&[&url, "--dry-run"]);
    assert!(dry.status.success());
    assert!(String::from_utf8_lossy(&dry.stdout).contains("duplicates at once"));
    let unasked = run(&[&url]);
    assert_eq!(unasked.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unasked.stderr).contains("--yes"));
    for nonsense in [
        vec!["ftp://x/", "--yes"],
        vec!["--yes"],
        vec!["http://127.0.0.1:1/x", "--yes"],
        vec![&url, "-H", "nonsense", "--yes"],
    ] {
        let output = run(&nonsense);
        assert_eq!(output.status.code(), Some(2), "{nonsense:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn an_openapi_document_shows_the_unprotected_steps() {
    let folder = std::env::temp_dir().join(format!("retrysafe-check-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("api.json");
    let document = serde_json::json!({ "openapi": "3.1.0", "paths": {
        "/payments": { "post": { "parameters": [{ "$ref": "#/components/parameters/Key" }] }, "get": {} },
        "/refunds/{id}": { "post": {} },
    }, "components": { "parameters": { "Key": { "in": "header", "name": "Idempotency-Key" } } } });
    std::fs::write(&file, document.to_string()).unwrap();
    let url = format!("http://127.0.0.1:{}/", serve(Fault::KeyIgnoredOnOtherRoute));
    let output = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["check", &url, "--yes", "--json", "--openapi"])
        .arg(&file)
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(rows[0]["verdict"], "enforced", "{rows:#}");
    assert_eq!(rows[1]["verdict"], "unprotected", "{rows:#}");
}
