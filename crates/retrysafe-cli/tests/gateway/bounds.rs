//! Does the gateway stay within its bounds of memory, descriptors and patience?

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::kit::{Gateway, PATIENCE, Reader, Step, Upstream, key, reply, request, send, until};

const MIB: u64 = 1 << 20;

/// What the process needs by itself, built without optimisation.
const ITSELF: u64 = 80 * MIB;

/// What a connection may need for its buffers: the gateway's bound for a head, and a last read that may be as large again.
const CONNECTION: u64 = 2 * (128 << 10);

/// A gateway whose peak of memory is what was in use at one time. By default the allocator gives memory back a moment after it was freed, and meanwhile
/// takes more: that was up to 50 MiB here, as chance would have it.
fn start_with_exact_peak(upstream: &Upstream, toml: &str) -> Gateway {
    Gateway::start_as(upstream, toml, |gateway| {
        gateway.before = "export MIMALLOC_PURGE_DELAY=0".into();
    })
}

fn held(gateway: &Gateway) -> u64 {
    gateway.metric("retrysafe_held_bytes") as u64
}

/// A keyed request of a megabyte that lacks its last byte.
fn unfinished(key: &str) -> Vec<u8> {
    let body = vec![b'x'; MIB as usize];
    let headers = [("Idempotency-Key", key), ("Authorization", "Bearer a")];
    let mut bytes = request("POST", "/large", &headers, &body);
    bytes.pop();
    bytes
}

#[test]
fn unfinished_bodies_hold_half_of_the_budget_and_what_is_refused_has_not_begun() {
    // Each body was kept with twice its length, however many there were.
    const CALLERS: usize = 150;
    let upstream = Upstream::start();
    let gateway = start_with_exact_peak(&upstream, "held_bytes_max = \"32MiB\"\n---\n");
    let all_sent = Arc::new(Barrier::new(CALLERS + 1));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (address, all_sent) = (gateway.address, Arc::clone(&all_sent));
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                // Whoever is refused may find the connection closed.
                let _ = stream.write_all(&unfinished(&key()));
                all_sent.wait();
                let _ = stream.write_all(b"x");
                Reader::new(stream).message(false)
            })
        })
        .collect();
    // Half of the budget is sixteen megabytes, and nobody has sent a last byte: all others are refused.
    let refusals = "retrysafe_refusals_total{route=\"/{*rest}\",code=\"overloaded\"} ";
    until("all but sixteen are refused", || {
        let text = gateway.metrics();
        let count = text.lines().find_map(|line| line.strip_prefix(refusals));
        count.is_some_and(|count| count.parse::<usize>().unwrap() >= CALLERS - 16)
    });
    assert!(held(&gateway) <= 16 * MIB, "{}", held(&gateway));
    all_sent.wait();
    let answers: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
    let with = |status| answers.iter().flatten().filter(|a| a.status() == status).count();
    for refused in answers.iter().flatten().filter(|answer| answer.status() != 201) {
        assert_eq!((refused.status(), refused.code().as_str()), (503, "overloaded"));
        assert!(refused.header("retry-after").is_some());
    }
    let served = with(201);
    assert!((1..=16).contains(&served), "{served} of {CALLERS} found room for a megabyte");
    assert!(with(503) > 0, "nobody was told");
    assert_eq!(upstream.count("/large"), served, "what is refused has not begun");
    until("everything is given back", || held(&gateway) == 0);
    let peak = gateway.peak_bytes();
    // Sizes are rounded up, and pages that are free in part stay: a third more.
    let in_use = 32 * MIB + CALLERS as u64 * CONNECTION;
    assert!(peak < ITSELF + in_use * 4 / 3, "{} MiB", peak / MIB);
    // And now there is room again.
    let headers = [("Idempotency-Key", &*key()), ("Authorization", "Bearer a")];
    let large = request("POST", "/large", &headers, &vec![b'x'; MIB as usize]);
    assert_eq!(send(gateway.address, &large).status(), 201);
}

/// A connection over HTTP/2 that has no window for answers.
async fn shut(gateway: &Gateway) -> SendRequest<Full<bytes::Bytes>> {
    let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .max_concurrent_streams(256)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

fn post(path: &str, key: &str) -> Request<Full<bytes::Bytes>> {
    Request::post(format!("http://api.test{path}"))
        .header("idempotency-key", key)
        .header("authorization", "Bearer a")
        .body(Full::new(bytes::Bytes::from_static(b"{}")))
        .unwrap()
}

/// Waits until something holds, and lets the connections' tasks go on meanwhile.
async fn soon(what: &str, holds: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "it never came to be that {what}");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn replays_that_nobody_reads_share_their_answer_and_have_a_part_of_their_own() {
    // One connection with a window of nothing and 250 streams held 250 copies of one answer.
    let upstream = Upstream::start();
    upstream.otherwise(Some(reply(201, &"x".repeat(1_000_000))));
    let toml = "h2c = true\nheld_bytes_max = \"32MiB\"\n---\n";
    let gateway = start_with_exact_peak(&upstream, toml);
    let ask = |key: &str| {
        let headers = [("Idempotency-Key", key), ("Authorization", "Bearer a")];
        send(gateway.address, &request("POST", "/big", &headers, b"{}"))
    };
    let keys: Vec<String> = (0..60).map(|_| key()).collect();
    for key in &keys {
        assert_eq!(ask(key).status(), 201);
    }
    runtime().block_on(async {
        let mut one = shut(&gateway).await;
        let mut answers = Vec::new();
        for _ in 0..250 {
            let answer = one.send_request(post("/big", &keys[0])).await.unwrap();
            assert_eq!(answer.status(), StatusCode::CREATED);
            assert!(answer.headers().contains_key("idempotent-replayed"));
            answers.push(answer);
        }
        assert!(held(&gateway) <= MIB, "{}", held(&gateway));
        drop((answers, one));
        soon("the answer is given back", || held(&gateway) == 0).await;

        // Different answers cannot be shared: those past their part of the budget are refused, and
        // may be asked for again.
        let mut other = shut(&gateway).await;
        let (mut answers, mut refused) = (Vec::new(), Vec::new());
        for key in &keys {
            let answer = other.send_request(post("/big", key)).await.unwrap();
            match answer.status() {
                StatusCode::CREATED => answers.push(answer),
                StatusCode::SERVICE_UNAVAILABLE => {
                    assert!(answer.headers().contains_key("retry-after"));
                    refused.push(key);
                }
                status => panic!("{status}"),
            }
        }
        assert_eq!((answers.len(), refused.len()), (8, 52));
        assert!(held(&gateway) <= 8 * MIB, "{}", held(&gateway));
        // New requests have their own part.
        assert_eq!(ask(&key()).status(), 201);
        drop((answers, other));
        soon("the answers are given back", || held(&gateway) == 0).await;
        assert!(ask(refused[0]).is_replay());
    });
    let peak = gateway.peak_bytes();
    assert!(peak < ITSELF + 32 * MIB, "{} MiB", peak / MIB);
    assert_eq!(upstream.count("/big"), 61);
}

#[test]
fn executions_are_bounded_by_number_and_replays_go_on() {
    let upstream = Upstream::start();
    let gate = super::kit::Gate::default();
    let held_back = Step::Held(gate.clone(), Box::new(reply(201, "{}")));
    upstream.script("/slow", vec![held_back]);
    // Room for four.
    let toml = "held_bytes_max = \"1MiB\"\n---\n[defaults]\nrequest_bytes_max = \"64KiB\"\n\
                response_bytes_max = \"64KiB\"\n";
    let gateway = Gateway::start(&upstream, toml);
    let known = key();
    assert_eq!(gateway.post("/known", &known, "{}").status(), 201);
    let running: Vec<_> = (0..4)
        .map(|_| {
            let (address, key) = (gateway.address, key());
            std::thread::spawn(move || {
                let headers = [("Idempotency-Key", &*key), ("Authorization", "Bearer a")];
                send(address, &request("POST", "/slow", &headers, b"{}"))
            })
        })
        .collect();
    upstream.wait("/slow", 4);
    let fifth = key();
    let refused = gateway.post("/fifth", &fifth, "{}");
    assert_eq!((refused.status(), refused.code().as_str()), (503, "overloaded"));
    assert_eq!(upstream.count("/fifth"), 0);
    assert!(gateway.post("/known", &known, "{}").is_replay(), "an answer needs no execution");
    gate.open();
    for caller in running {
        assert_eq!(caller.join().unwrap().status(), 201);
    }
    until("there is room again", || gateway.post("/fifth", &fifth, "{}").status() == 201);
    assert_eq!(upstream.count("/fifth"), 1);
}

#[test]
fn who_waits_for_a_duplicate_keeps_no_copy_of_its_body() {
    let upstream = Upstream::start();
    let gate = super::kit::Gate::default();
    let held_back = Step::Held(gate.clone(), Box::new(reply(201, "{}")));
    upstream.script("/wait", vec![held_back]);
    let toml = "[[route]]\npath = \"/wait\"\nmethods = [\"POST\"]\nwait_max = \"60s\"\n";
    let gateway = Gateway::start(&upstream, toml);
    let key = key();
    let headers = [("Idempotency-Key", &*key), ("Authorization", "Bearer a")];
    let asked = request("POST", "/wait", &headers, &vec![b'x'; 500_000]);
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let (address, asked) = (gateway.address, asked.clone());
            std::thread::spawn(move || send(address, &asked))
        })
        .collect();
    until("nineteen wait", || gateway.metric("retrysafe_waiting") == 19.0);
    // That of the execution, if the upstream has not read it yet, and that of all who wait.
    until("they share one body", || held(&gateway) <= 2 * MIB);
    gate.open();
    let answers = callers.into_iter().map(|caller| caller.join().unwrap());
    assert_eq!(answers.filter(|answer| answer.is_replay()).count(), 19);
    until("everything is given back", || held(&gateway) == 0);
    assert_eq!(upstream.count("/wait"), 1);
}

#[test]
fn a_reader_that_takes_nothing_is_let_go() {
    let upstream = Upstream::start();
    // More than the sockets' buffers hold.
    upstream.otherwise(Some(reply(201, &"x".repeat(24 << 20))));
    let gateway = Gateway::start(
        &upstream,
        "write_time_max = \"500ms\"\n---\n[defaults]\nresponse_bytes_max = \"32MiB\"\n",
    );
    let keyed = [("Idempotency-Key", &*key()), ("Authorization", "Bearer a")];
    for (method, headers) in [("GET", &[][..]), ("POST", &keyed)] {
        let mut unread = TcpStream::connect(gateway.address).unwrap();
        unread.write_all(&request(method, "/big", headers, b"")).unwrap();
        until("it is served", || upstream.seen().iter().any(|seen| seen.method == method));
        until("it is let go", || gateway.metric("retrysafe_connections") == 0.0);
        until("its answer is given back", || held(&gateway) == 0);
        // It has been told so: what is left to read ends before the answer does.
        unread.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut read = Vec::new();
        let _ = unread.read_to_end(&mut read);
        assert!(read.len() < 24 << 20, "{method}: {} bytes", read.len());
    }
}

#[test]
fn over_http2_a_stream_that_is_not_read_is_let_go_and_its_connection_goes_on() {
    let upstream = Upstream::start();
    upstream.script("/big", vec![reply(201, &"x".repeat(100_000))]);
    upstream.script("/empty", vec![reply(204, "")]);
    let gateway = Gateway::start(&upstream, "h2c = true\nwrite_time_max = \"500ms\"\n---\n");
    runtime().block_on(async {
        let mut sender = shut(&gateway).await;
        let key = key();
        for _ in 0..2 {
            let answer = sender.send_request(post("/big", &key)).await.unwrap();
            assert_eq!(answer.status(), StatusCode::CREATED);
            let ended = tokio::time::timeout(PATIENCE, answer.into_body().collect()).await;
            assert!(ended.expect("it is let go").is_err());
            soon("its answer is given back", || held(&gateway) == 0).await;
        }
        let asked = Request::get("http://api.test/empty").body(Full::default()).unwrap();
        assert_eq!(sender.send_request(asked).await.unwrap().status(), StatusCode::NO_CONTENT);
    });
    assert_eq!(upstream.count("/big"), 1);
}

#[test]
fn over_http2_a_large_answer_arrives_whole() {
    let upstream = Upstream::start();
    let body: String = (0..60_000).map(|n| format!("{n:05}")).collect();
    upstream.otherwise(Some(reply(201, &body)));
    let gateway = Gateway::start(&upstream, "h2c = true\nwrite_time_max = \"20s\"\n---\n");
    runtime().block_on(async {
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1_000)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let key = key();
        for asked in [post("/a", &key), post("/a", &key), {
            Request::get("http://api.test/b").body(Full::default()).unwrap()
        }] {
            let answer = sender.send_request(asked).await.unwrap();
            let length = answer.headers()["content-length"].to_str().unwrap().to_owned();
            let arrived = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(length, body.len().to_string());
            assert!(arrived == body, "{} bytes", arrived.len());
        }
    });
}

#[test]
fn starved_of_descriptors_it_still_answers_health_checks_and_serves_whom_it_let_in() {
    // Connections took every descriptor there was, and then nobody was told anything.
    let upstream = Upstream::start();
    let limited = |gateway: &mut Gateway| gateway.before = "ulimit -n 250".into();
    let gateway = Gateway::start_as(&upstream, "", limited);
    let mut callers: Vec<TcpStream> =
        (0..400).map(|_| TcpStream::connect(gateway.address).unwrap()).collect();
    until("some are turned away", || gateway.metric("retrysafe_connections_refused_total") > 100.0);
    let open = gateway.metric("retrysafe_connections");
    assert!((8.0..125.0).contains(&open), "{open}");
    for page in ["/readyz", "/livez", "/metrics"] {
        assert_eq!(gateway.ask("GET", page, "").status(), 200, "{page}");
    }
    // The first ones were let in, and the upstream can be reached for each of them.
    for caller in callers.iter_mut().take(open as usize) {
        let headers = [("Idempotency-Key", &*key()), ("Authorization", "Bearer a")];
        caller.write_all(&request("POST", "/in", &headers, b"{}")).unwrap();
    }
    for caller in callers.drain(..open as usize) {
        assert_eq!(Reader::new(caller).message(false).unwrap().status(), 201);
    }
    drop(callers);
    until("there is room again", || {
        TcpStream::connect(gateway.address).is_ok_and(|mut stream| {
            stream.write_all(&request("GET", "/again", &[], b"")).is_ok()
                && Reader::new(stream).message(false).is_some()
        })
    });
}

#[test]
fn too_few_descriptors_are_said_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 100; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["serve", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"])
        .args(["--admin", "127.0.0.1:0", "--store", "memory:"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("RLIMIT_NOFILE") && told.contains("ulimit -n"), "{told}");
}

#[test]
fn a_file_that_may_not_grow_is_an_error_and_not_the_end() {
    // The system sends a signal as well, and nobody had taken it.
    let upstream = Upstream::start();
    let limited = |gateway: &mut Gateway| {
        gateway.store = "memory:".into();
        gateway.before = "ulimit -f 16".into();
    };
    let mut gateway = Gateway::start_as(&upstream, "", limited);
    let path = format!("/{}", "x".repeat(4_000));
    until("the log has reached its bound", || {
        assert_eq!(gateway.post(&path, &key(), "{}").status(), 201);
        gateway.metric("retrysafe_log_lines_dropped_total") > 0.0
    });
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0));

    // A store that may not have its first segment says so.
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 16; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["serve", "--upstream", "http://127.0.0.1:1", "--store", "disk:data"])
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("File too large"), "{told}");
}
