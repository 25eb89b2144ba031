//! Is the gateway a good proxy where it has nothing to protect?

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use super::kit::{
    Gateway, PATIENCE, Reader, Step, Upstream, free, key, raw, reply, request, send, until,
    without_stall,
};

#[test]
fn headers_say_who_is_asking_and_nobody_can_forge_them() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let forged = [
        ("X-Forwarded-For", "6.6.6.6"),
        ("Forwarded", "for=6.6.6.6"),
        ("X-Real-IP", "6.6.6.6"),
        ("Retrysafe-Fence", "99"),
        ("Retrysafe-Id", "99"),
        ("Idempotent-Replayed", "true"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("Proxy-Connection", "keep-alive"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("X-Request-Id", "mine-1"),
    ];
    let answer = gateway.post_with("/h", &key(), "{}", &forged);
    assert_eq!(answer.header("x-request-id"), Some("mine-1"));
    let seen = upstream.seen_at("/h").remove(0);
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-forwarded-host"), Some("api.test"));
    assert_eq!(seen.header("host"), Some("api.test"));
    assert_eq!(seen.header("x-request-id"), Some("mine-1"));
    assert!(seen.header("traceparent").is_some());
    assert_eq!(seen.header("retrysafe-attempt"), Some("1"));
    assert_eq!(seen.header("retrysafe-id").map(str::len), Some(64));
    assert_ne!(seen.header("retrysafe-fence"), Some("99"));
    for gone in ["forwarded", "x-real-ip", "x-hop", "proxy-connection", "idempotent-replayed"] {
        assert_eq!(seen.header(gone), None, "{gone}");
    }
    // Nothing is announced for a request that is not covered, and nothing forged passes either.
    send(gateway.address, &request("PUT", "/u", &forged, b"{}"));
    let seen = upstream.seen_at("/u").remove(0);
    for gone in ["retrysafe-fence", "retrysafe-id", "retrysafe-attempt", "idempotent-replayed"] {
        assert_eq!(seen.header(gone), None, "{gone}");
    }
    let word = vec![("Retrysafe-Outcome", "completed".to_owned())];
    upstream.script("/word", vec![Step::Reply(201, word, b"{}".to_vec())]);
    for method in ["PUT", "POST"] {
        let answer = send(gateway.address, &request(method, "/word", &[], b"{}"));
        assert_eq!(answer.header("retrysafe-outcome"), None, "{method}");
    }
    let made = gateway.post_with("/h", &key(), "{}", &[("X-Request-Id", "<bad>")]);
    assert_eq!(made.header("x-request-id").map(str::len), Some(32));

    let trusting = Gateway::start(&upstream, "trusted_networks = [\"127.0.0.0/8\"]\n---\n");
    trusting.post_with("/t", &key(), "{}", &[("X-Forwarded-For", "1.2.3.4")]);
    let seen = upstream.seen_at("/t").remove(0);
    assert_eq!(seen.header("x-forwarded-for"), Some("1.2.3.4, 127.0.0.1"));
}

#[test]
fn a_released_key_runs_again_with_a_higher_fence() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    upstream.script("/f", vec![reply(503, "{}"), reply(201, "{}")]);
    let key = key();
    gateway.post("/f", &key, "{}");
    gateway.post("/f", &key, "{}");
    let fence = |at: usize| -> u64 {
        upstream.seen_at("/f")[at].header("retrysafe-fence").unwrap().parse().unwrap()
    };
    assert!(fence(1) > fence(0));
    assert_eq!(upstream.seen_at("/f")[1].header("retrysafe-attempt"), Some("2"));
    assert_eq!(
        upstream.seen_at("/f")[0].header("retrysafe-id"),
        upstream.seen_at("/f")[1].header("retrysafe-id")
    );
}

/// An upstream that does what a closure says with each connection.
pub(super) fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut upstream = Upstream::start();
    upstream.address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serve(stream);
        }
    });
    upstream
}

pub(super) fn head(stream: &mut TcpStream) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => seen.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[test]
fn an_uncovered_answer_streams_before_it_has_ended() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = server(move |mut stream| {
        head(&mut stream);
        let first = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n";
        stream.write_all(first).unwrap();
        wait.lock().unwrap().recv().unwrap();
        stream.write_all(b"3\r\ntwo\r\n0\r\n\r\n").unwrap();
    });
    let gateway = Gateway::start(&upstream, "");
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.write_all(&request("GET", "/events", &[], b"")).unwrap();
    let mut seen = String::new();
    let mut chunk = [0; 1024];
    while !seen.contains("one") {
        let n = stream.read(&mut chunk).unwrap();
        assert!(n > 0, "ended early: {seen}");
        seen.push_str(&String::from_utf8_lossy(&chunk[..n]));
    }
    go.send(()).unwrap();
    stream.read_to_string(&mut seen).unwrap();
    assert!(seen.contains("two"), "{seen}");
}

#[test]
fn another_protocol_passes_through_on_an_uncovered_route() {
    let upstream = server(|mut stream| {
        let asked = head(&mut stream).to_lowercase();
        assert!(asked.contains("upgrade: echo"), "{asked}");
        let switched = b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        stream.write_all(switched).unwrap();
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        bytes.reverse();
        stream.write_all(&bytes).unwrap();
    });
    let gateway = Gateway::start(&upstream, "");
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream
        .write_all(b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        .unwrap();
    let answer = head(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    stream.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"olleh");
}

#[test]
fn connections_are_reused_and_a_stale_one_is_replaced_before_anything_is_sent() {
    let connections = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&connections);
    let (closed, gone) = std::sync::mpsc::channel();
    let upstream = server(move |stream| {
        counted.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        let closed = closed.clone();
        std::thread::spawn(move || {
            let mut out = stream.try_clone().unwrap();
            let mut reader = Reader::new(stream);
            while let Some(message) = reader.message(false) {
                out.write_all(b"HTTP/1.1 201 X\r\nContent-Length: 2\r\n\r\n{}").unwrap();
                // Told to, the upstream closes the idle connection, as servers do after a while. The
                // gateway hangs up in turn; a request that had come before that would be lost.
                if message.start.contains("/last") {
                    out.shutdown(std::net::Shutdown::Write).unwrap();
                    let nothing_more = reader.message(false).is_none();
                    closed.send(nothing_more).unwrap();
                    return;
                }
            }
        });
    });
    let count = || connections.load(std::sync::atomic::Ordering::Acquire);
    let (gateway, opened) = without_stall(|| {
        let gateway = Gateway::start(&upstream, "threads = 1\n---\n");
        let (before, begun) = (count(), Instant::now());
        for _ in 0..5 {
            assert_eq!(gateway.post("/more", &key(), "{}").status(), 201);
        }
        (begun.elapsed(), (gateway, count() - before))
    });
    assert_eq!(opened, 1);
    for _ in 0..5 {
        assert_eq!(gateway.post("/last", &key(), "{}").status(), 201);
        let nothing_more = gone.recv_timeout(PATIENCE);
        assert_eq!(nothing_more, Ok(true), "the gateway hangs up, and sends nothing on");
    }
}

/// An upstream may answer before it has read the request. The connection is still busy with that
/// request's body then, for as long as its caller takes; it was put back, and whoever got it next
/// waited for a stranger.
#[test]
fn nobody_waits_for_a_connection_that_still_sends_a_strangers_body() {
    let upstream = server(|mut stream| {
        std::thread::spawn(move || {
            while head(&mut stream).starts_with(|first: char| first.is_ascii_uppercase()) {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
            }
        });
    });
    // Nobody cuts the stranger off: whoever waits for it gets no answer at all.
    let settings = "[defaults]\nrequest_time_max = \"1h\"\nupstream_timeout = \"1h\"\n";
    let gateway = Gateway::start(&upstream, &format!("threads = 1\n---\n{settings}"));
    let mut slow = TcpStream::connect(gateway.address).unwrap();
    slow.write_all(
        b"PUT /early HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
    )
    .unwrap();
    assert!(head(&mut slow).starts_with("HTTP/1.1 200"));
    assert_eq!(gateway.post("/next", &key(), "").status(), 200);
    assert_eq!(send(gateway.address, &request("GET", "/next", &[], b"")).status(), 200);
    drop(slow);
}

/// An upstream may answer before it has read the request, and then never read the rest. Its connection
/// and the body were kept for ever, and the body counted against `held_bytes_max`.
#[test]
fn an_upstream_that_answers_and_does_not_read_on_costs_no_memory() {
    let unread = Mutex::new(Vec::new());
    let upstream = server(move |mut stream| {
        head(&mut stream);
        stream.write_all(b"HTTP/1.1 201 X\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        unread.lock().unwrap().push(stream);
    });
    let settings = "[defaults]\nupstream_timeout = \"2s\"\nrequest_bytes_max = \"16MiB\"\n";
    let gateway = Gateway::start(&upstream, settings);
    assert_eq!(gateway.post("/early", &key(), &"x".repeat(12 << 20)).status(), 201);
    until("the body is let go", || gateway.metric("retrysafe_held_bytes") == 0.0);
}

#[test]
fn lost_and_unreachable_are_told_apart_without_a_key_too() {
    let upstream = Upstream::start();
    let patient = Gateway::start(&upstream, "");
    let hasty = Gateway::start(&upstream, "[defaults]\nupstream_timeout = \"200ms\"\n");
    upstream.script("/lost", vec![Step::Drop]);
    upstream.script("/slow", vec![Step::Held(Default::default(), Box::new(reply(201, "{}")))]);
    for method in ["PUT", "POST"] {
        let lost = send(patient.address, &request(method, "/lost", &[], b"{}"));
        assert_eq!((lost.status(), lost.code().as_str()), (502, "upstream_failed"), "{method}");
        let slow = send(hasty.address, &request(method, "/slow", &[], b"{}"));
        assert_eq!((slow.status(), slow.code().as_str()), (504, "upstream_failed"), "{method}");
    }
    let slow = hasty.post("/slow", &key(), "{}");
    assert_eq!((slow.status(), slow.code().as_str()), (504, "request_in_progress"));

    let mut nobody = upstream.clone();
    nobody.address = free();
    let gateway = Gateway::start(&nobody, "");
    // Who has sent no key is not told to send the same one again.
    for method in ["GET", "PUT", "POST"] {
        let bare = send(gateway.address, &request(method, "/x", &[], b"{}"));
        assert_eq!((bare.status(), bare.code().as_str()), (502, "upstream_unreachable"));
        assert_eq!(bare.json()["detail"], "Nothing was sent. Retry later.", "{method}");
    }
    let post = gateway.post("/x", &key(), "{}");
    assert_eq!(post.json()["detail"], "Nothing was sent. Retry later with the same key.");
    assert_eq!((post.status(), post.code().as_str()), (502, "upstream_unreachable"));
    let listed = gateway.ask("GET", "/api/v1/keys", "").json();
    assert_eq!(listed["keys"][0]["state"], "failed_retryable");
}

#[test]
fn large_bodies_pass_where_nothing_is_kept() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let body = vec![7_u8; 5 << 20];
    let answers = raw(gateway.address, &request("PUT", "/upload", &[], &body), false);
    assert_eq!(answers[0].status(), 201);
    assert!(upstream.seen_at("/upload")[0].message.body == body);
}

#[test]
fn the_policy_is_published_and_a_caller_sees_its_own_keys_only() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "[[route]]\npath = \"/const\"\nmethods = [\"POST\"]\nscope = [\"const:x\"]\n\
         [[route]]\npath = \"/each\"\nmethods = [\"POST\"]\nscope = [\"credential\", \"route\"]\n",
    );
    let get = |path: &str, headers: &[(&str, &str)]| {
        send(gateway.address, &request("GET", path, headers, b""))
    };
    let policy = get("/.well-known/idempotency", &[]).json();
    assert_eq!(policy["routes"][2]["retention_seconds"], 86_400.0);
    let key = key();
    gateway.post_with("/a", &key, "{}", &[("Authorization", "Bearer a")]);
    for path in ["/const", "/a", "/each"] {
        gateway.post(path, &key, "{}");
    }
    let page = "/.well-known/idempotency/key";
    let name = ("Idempotency-Key", key.as_str());
    let mine = get(page, &[name, ("Authorization", "Bearer a")]);
    assert_eq!((mine.status(), mine.json()["state"].as_str()), (200, Some("completed")));
    assert!(mine.json()["expires_at"].as_str().is_some());
    assert_eq!(get(page, &[name, ("Authorization", "Bearer b")]).status(), 404);
    assert_eq!(get(page, &[name]).status(), 404, "anonymous callers cannot ask");
    for path in ["/const", "/each"] {
        assert_eq!(get(&format!("{page}?path={path}"), &[name]).status(), 404, "{path}");
    }
    assert_eq!(get(page, &[("Authorization", "Bearer a")]).status(), 400);
    let guess = || get(page, &[name, ("Authorization", "Bearer z")]).status();
    // Ten a second are answered, so of forty within two seconds some are not. Whoever is slower asks anew.
    until("guessing is slowed down", || {
        let begun = Instant::now();
        let is_slowed = (0..40).any(|_| guess() == 429);
        assert!(is_slowed || begun.elapsed() >= Duration::from_secs(2), "it is not slowed down");
        is_slowed
    });
    assert_eq!(upstream.count(page), 0);
}

// An upstream may have marks of its own, and so may a gateway behind this one. Whether this answer is
// a replay is for this gateway to say.
#[test]
fn marks_of_the_upstream_say_nothing_about_ours() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let marks = || {
        vec![
            ("Idempotent-Replayed", "true".to_owned()),
            ("Idempotency-Expires", "Thu, 01 Jan 1970 00:00:00 GMT".to_owned()),
            ("Retrysafe-Unprotected", "store".to_owned()),
            ("X-Own", "1".to_owned()),
        ]
    };
    let marked = || Step::Reply(503, marks(), b"{}".to_vec());
    upstream.script("/marked", vec![marked(), Step::Reply(201, marks(), b"{}".to_vec())]);
    let key = key();
    for (status, is_replay) in [(503, false), (201, false), (201, true)] {
        let answer = gateway.post("/marked", &key, "{}");
        assert_eq!((answer.status(), answer.is_replay()), (status, is_replay));
        assert_eq!(answer.all("retrysafe-unprotected"), Vec::<&str>::new());
        assert_ne!(answer.header("idempotency-expires"), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
        assert_eq!(answer.header("x-own"), Some("1"));
    }
    assert_eq!(upstream.count("/marked"), 2);
    // What is not protected is the upstream's own affair, except for our name.
    upstream.script("/passed", vec![Step::Reply(200, marks(), b"{}".to_vec())]);
    let answer = send(gateway.address, &request("PUT", "/passed", &[], b"{}"));
    assert!(answer.is_replay());
    assert_eq!(answer.header("retrysafe-unprotected"), None);
}

#[test]
fn the_upstream_always_hears_whom_a_request_is_for() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    gateway.post_with("/named", &key(), "{}", &[("Connection", "host, content-length")]);
    assert_eq!(upstream.seen_at("/named")[0].header("host"), Some("api.test"));
    let old = b"POST /old HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(send(gateway.address, old).status(), 201);
    let address = upstream.address.to_string();
    assert_eq!(upstream.seen_at("/old")[0].header("host"), Some(address.as_str()));
}
