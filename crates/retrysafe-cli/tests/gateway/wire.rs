//! Do the caller and the upstream read the same messages, however odd one of them frames its own?

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::kit::{Gateway, Message, PATIENCE, Reader, Step, Upstream};
use super::kit::{key, raw, request, send, without_stall};
use super::proxying::{head, server};

const OWN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown";

/// An upstream that writes the same bytes to every request for `/odd`, and its own answer to all
/// others. It keeps its connections, and counts the requests that come after an odd answer.
fn odd_upstream(answer: Vec<u8>) -> (Upstream, Arc<AtomicUsize>) {
    let after_odd = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&after_odd);
    let upstream = server(move |stream| {
        let (answer, counted) = (answer.clone(), Arc::clone(&counted));
        std::thread::spawn(move || {
            let mut out = stream.try_clone().unwrap();
            let mut reader = Reader::new(stream);
            let mut was_odd = false;
            while let Some(message) = reader.message(false) {
                counted.fetch_add(usize::from(was_odd), Ordering::AcqRel);
                was_odd = message.start.contains("/odd");
                let _ = out.write_all(if was_odd { &answer } else { OWN });
            }
        });
    });
    (upstream, after_odd)
}

/// One caller's connection, kept for several requests.
struct Caller {
    out: TcpStream,
    reader: Reader,
}

impl Caller {
    fn new(gateway: &Gateway) -> Self {
        let out = TcpStream::connect(gateway.address).unwrap();
        Self { reader: Reader::new(out.try_clone().unwrap()), out }
    }

    /// The next answer that the connection holds, or none if it was closed.
    fn ask(&mut self, method: &str, path: &str, headers: &str) -> Option<Message> {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: api.test\r\n{headers}\r\n");
        self.out.write_all(head.as_bytes()).ok()?;
        self.reader.message(method == "HEAD")
    }
}

#[test]
fn an_answer_that_can_be_read_in_two_ways_is_refused_and_reaches_nobody_else() {
    let smuggled = "{}HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nEMBEDDED";
    let chunked = format!("{:x}\r\n{smuggled}\r\n0\r\n\r\n", smuggled.len());
    let answers = [
        ("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", chunked.as_str()),
        ("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", &chunked),
        ("Content-Length: 900\r\nTransfer-Encoding: chunked\r\n", &chunked),
        ("Transfer-Encoding: identity\r\nContent-Length: 2\r\n", smuggled),
        ("Transfer-Encoding: identity\r\n", smuggled),
        ("Transfer-Encoding: gzip, chunked\r\n", &chunked),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", &chunked),
        ("Transfer-Encoding: chunked, chunked\r\n", &chunked),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", &chunked),
        ("Content-Length: 2\r\nContent-Length: 3\r\n", smuggled),
    ];
    for (fields, body) in answers {
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}").into_bytes();
        let (upstream, after_odd) = odd_upstream(answer);
        let gateway = Gateway::start(&upstream, "threads = 1\n---\n");
        let key = format!("Idempotency-Key: {}\r\nAuthorization: Bearer a\r\n", key());
        let length = "Content-Length: 0\r\n";
        let covered = format!("{key}{length}");
        for (method, headers, status, code) in [
            ("POST", covered.as_str(), 502, "outcome_unknown"),
            ("POST", &covered, 409, "outcome_unknown"),
            ("POST", length, 502, "upstream_failed"),
            ("PUT", length, 502, "upstream_failed"),
            ("GET", "", 502, "upstream_failed"),
        ] {
            let mut caller = Caller::new(&gateway);
            let odd = caller.ask(method, "/odd", headers).expect("an answer");
            assert_eq!((odd.status(), odd.code().as_str()), (status, code), "{method} {fields}");
            let next = caller.ask("GET", "/own", "").expect("an answer");
            assert_eq!((next.status(), next.text().as_str()), (200, "own"), "{method} {fields}");
        }
        assert_eq!(after_odd.load(Ordering::Acquire), 0, "used again after {fields}");
    }
}

#[test]
fn another_protocol_that_nobody_asked_for_is_refused() {
    let switched = "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nstray";
    let (upstream, after_odd) = odd_upstream(switched.into());
    let gateway = Gateway::start(&upstream, "threads = 1\n---\n");
    let asked = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    for (method, headers) in [
        ("GET", ""),
        ("PUT", "Content-Length: 0\r\n"),
        ("POST", "Content-Length: 0\r\n"),
        ("GET", asked),
    ] {
        let mut caller = Caller::new(&gateway);
        let odd = caller.ask(method, "/odd", headers).expect("an answer");
        assert_eq!((odd.status(), odd.code().as_str()), (502, "upstream_failed"), "{method}");
        let next = caller.ask("GET", "/own", "");
        assert!(next.is_none_or(|next| next.text() == "own"), "{method}");
    }
    assert_eq!(after_odd.load(Ordering::Acquire), 0);
}

#[test]
fn answers_without_a_body_are_told_from_those_with_one() {
    for (method, answer, status, length) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 0500\r\n\r\n", 200, Some("500")),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, None),
        ("GET", "HTTP/1.1 204 X\r\n\r\n", 204, None),
        ("GET", "HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n", 204, None),
        ("GET", "HTTP/1.1 304 X\r\nContent-Length: 500\r\n\r\n", 304, None),
        ("GET", "HTTP/1.1 103 X\r\nLink: </x>\r\n\r\nHTTP/1.1 204 X\r\n\r\n", 204, None),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, Some("0")),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 000\r\n\r\n", 200, Some("0")),
    ] {
        let used_again = without_stall(|| {
            let (upstream, after_odd) = odd_upstream(answer.into());
            let gateway = Gateway::start(&upstream, "threads = 1\n---\n");
            let begun = Instant::now();
            let mut caller = Caller::new(&gateway);
            for _ in 0..2 {
                let odd = caller.ask(method, "/odd", "").expect(answer);
                let told = (odd.status(), odd.header("content-length"));
                assert_eq!(told, (status, length), "{answer}");
                assert_eq!(odd.header("transfer-encoding"), None, "{answer}");
                assert_eq!(caller.ask("GET", "/own", "").expect(answer).text(), "own", "{answer}");
            }
            (begun.elapsed(), after_odd.load(Ordering::Acquire))
        });
        assert_eq!(used_again, 2, "the connection is kept: {answer}");
    }
    // Whoever announces a body where none may be will send one, and the next caller would read it.
    for fields in ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"] {
        let (upstream, after_odd) =
            odd_upstream(format!("HTTP/1.1 204 X\r\n{fields}\r\n").into_bytes());
        let gateway = Gateway::start(&upstream, "threads = 1\n---\n");
        let mut caller = Caller::new(&gateway);
        assert_eq!(caller.ask("GET", "/odd", "").expect(fields).status(), 204, "{fields}");
        assert_eq!(caller.ask("GET", "/own", "").expect(fields).text(), "own", "{fields}");
        assert_eq!(after_odd.load(Ordering::Acquire), 0, "{fields}");
    }
}

#[test]
fn an_answer_that_breaks_off_is_seen_to_break_off() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "h2c = true\n---\n");
    let chunked = "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n";
    let long = "HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\npart";
    for (path, bytes) in [("/chunked", chunked), ("/long", long)] {
        upstream.script(path, vec![Step::Raw(bytes.into())]);
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&request("GET", path, &[], b"")).unwrap();
        let mut seen = String::new();
        stream.read_to_string(&mut seen).unwrap();
        assert!(seen.starts_with("HTTP/1.1 200") && seen.contains("part"), "{seen}");
        let is_whole = seen.ends_with("0\r\n\r\n") || seen.contains("content-length: 4");
        assert!(!is_whole, "{seen}");
        over_http2(&gateway, async |mut sender| {
            let asked = http::Request::get(format!("http://api.test{path}"));
            let answer = sender.send_request(asked.body(Pieces::default()).unwrap()).await.unwrap();
            assert_eq!(answer.status(), 200);
            let body = http_body_util::BodyExt::collect(answer.into_body()).await;
            assert!(body.is_err(), "{path}: cut without a word");
        });
    }
}

/// HTTP/1.0 ends an answer by closing the connection. Written on like that, its end could not be told
/// from a broken connection, and no further answer could follow.
#[test]
fn an_answer_in_http_1_0_is_written_on_in_http_1_1() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    upstream.otherwise(Some(Step::Raw(b"HTTP/1.0 200 OK\r\n\r\nold".to_vec())));
    let mut caller = Caller::new(&gateway);
    for (method, headers) in [("GET", ""), ("POST", "Content-Length: 0\r\n"), ("GET", "")] {
        let answer = caller.ask(method, "/old", headers).expect("an answer");
        assert_eq!((answer.start.as_str(), answer.text().as_str()), ("HTTP/1.1 200 OK", "old"));
        assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    }
}

/// A body that does not say how long it is.
#[derive(Default)]
struct Pieces(Vec<&'static str>);

impl http_body::Body for Pieces {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        let next = if self.0.is_empty() { None } else { Some(self.0.remove(0)) };
        std::task::Poll::Ready(next.map(|text| Ok(http_body::Frame::data(text.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}

/// Does something with a connection in HTTP/2.
fn over_http2(
    gateway: &Gateway,
    what: impl AsyncFnOnce(hyper::client::conn::http2::SendRequest<Pieces>),
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        what(sender).await;
    });
}

#[test]
fn a_request_of_any_method_keeps_its_body() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "h2c = true\n---\n");
    for method in ["GET", "HEAD", "OPTIONS", "DELETE", "PUT", "POST"] {
        let path = format!("/one/{method}");
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
        let sent = format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        raw(gateway.address, sent.as_bytes(), false);
        upstream.wait(&path, 1);
        assert_eq!(upstream.seen_at(&path)[0].message.text(), "hello", "{method}");
        let path = format!("/two/{method}");
        over_http2(&gateway, async |mut sender| {
            let asked = http::Request::builder().method(method);
            let asked = asked.uri(format!("http://api.test{path}"));
            sender.send_request(asked.body(Pieces(vec!["hel", "lo"])).unwrap()).await.unwrap();
        });
        assert_eq!(upstream.seen_at(&path)[0].message.text(), "hello", "{method}");
    }
}

#[test]
fn framing_is_written_anew() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "h2c = true\n---\n");
    let (mine, lengths) = (key(), |path: &str| {
        let seen = upstream.seen_at(path).remove(0).message;
        assert_eq!(seen.all("trailer"), Vec::<&str>::new(), "{path}");
        assert_eq!(seen.all("transfer-encoding").len() + seen.all("content-length").len(), 1);
        seen.header("content-length").map(str::to_owned)
    });
    let keyed = format!("Idempotency-Key: {mine}\r\nAuthorization: Bearer a\r\n");
    for (path, method, fields, body, length) in [
        ("/zeros", "PUT", "Content-Length: 0005\r\n", "hello", Some("5")),
        ("/zeros-post", "POST", "Content-Length: 0005\r\n", "hello", Some("5")),
        ("/zeros-keyed", "POST", &format!("{keyed}Content-Length: 0005\r\n"), "hello", Some("5")),
        ("/none", "PUT", "Content-Length: 000\r\n", "", Some("0")),
        ("/nothing", "POST", "", "", Some("0")),
    ] {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}");
        assert_eq!(send(gateway.address, format!("{head}\r\n{body}").as_bytes()).status(), 201);
        assert_eq!(lengths(path).as_deref(), length, "{path}");
    }
    // A trailer is not passed on, least of all one that names a key; neither is its announcement.
    let chunks = "Trailer: Idempotency-Key, X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
                  5\r\nhello\r\n0\r\nIdempotency-Key: late\r\nX-Sum: 1\r\n\r\n";
    for (path, method, fields) in
        [("/t1", "PUT", ""), ("/t2", "POST", ""), ("/t3", "POST", keyed.as_str())]
    {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
        let answer = send(gateway.address, format!("{head}{fields}{chunks}").as_bytes());
        assert!(matches!(answer.status(), 201 | 422), "{}", answer.text());
        if answer.status() == 201 {
            lengths(path);
        }
    }
    over_http2(&gateway, async |mut sender| {
        for (path, key) in [("/twice", None), ("/twice-keyed", Some(&mine))] {
            let mut asked = http::Request::post(format!("http://api.test{path}"))
                .header("content-length", "5")
                .header("content-length", "5")
                .header("authorization", "Bearer b");
            if let Some(key) = key {
                asked = asked.header("idempotency-key", key);
            }
            let asked = asked.body(Pieces(vec!["hel", "lo"])).unwrap();
            assert_eq!(sender.send_request(asked).await.unwrap().status(), 201);
            assert_eq!(lengths(path).as_deref(), Some("5"), "{path}");
        }
        let asked = http::Request::post("http://api.test/differ")
            .header("content-length", "5")
            .header("content-length", "6");
        let asked = asked.body(Pieces(vec!["hello"])).unwrap();
        assert!(sender.send_request(asked).await.is_err(), "two lengths that differ");
        assert_eq!(upstream.count("/differ"), 0);
    });
}

/// HTTP/2 lets a caller split its cookies, HTTP/1.1 does not (RFC 9113 §8.2.3).
#[test]
fn cookies_that_came_in_pieces_are_joined() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "h2c = true\n---\n");
    over_http2(&gateway, async |mut sender| {
        for (path, method) in [("/cookies", "GET"), ("/cookies-post", "POST")] {
            let asked = http::Request::builder()
                .method(method)
                .uri(format!("http://api.test{path}"))
                .header("cookie", "a=1")
                .header("cookie", "b=2; c=3")
                .header("cookie", "d=4");
            sender.send_request(asked.body(Pieces::default()).unwrap()).await.unwrap();
            let seen = upstream.seen_at(path).remove(0).message;
            assert_eq!(seen.all("cookie"), ["a=1; b=2; c=3; d=4"], "{method}");
        }
    });
}

#[test]
fn a_trailer_is_announced_only_where_it_follows() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "h2c = true\n---\n");
    let answer = "HTTP/1.1 200 X\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
                  5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n";
    upstream.otherwise(Some(Step::Raw(answer.into())));
    let takes = [("TE", "trailers")];
    for (method, headers, announced) in [
        ("GET", &[][..], false),
        ("POST", &[], false),
        ("GET", &takes, true),
        ("POST", &[("TE", "trailers"), ("Idempotency-Key", &key()), ("X-Api-Key", "a")], false),
    ] {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&request(method, "/sum", headers, b"")).unwrap();
        let mut seen = String::new();
        stream.read_to_string(&mut seen).unwrap();
        let seen = seen.to_lowercase();
        let told = (seen.contains("\r\ntrailer:"), seen.contains("\r\nx-sum: 1\r\n"));
        assert_eq!(told, (announced, announced), "{method} {headers:?}: {seen}");
    }
}

#[test]
fn headers_that_are_not_ascii_pass_where_nothing_is_judged_by_them() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    for (path, method) in [("/latin/put", "PUT"), ("/latin/get", "GET"), ("/latin/post", "POST")] {
        let line = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
        let head = [line.as_bytes(), b"X-Name: caf\xc3\xa9\xff\r\n\r\n"].concat();
        assert_eq!(send(gateway.address, &head).status(), 201, "{method}");
        let seen = upstream.seen_at(path).remove(0);
        assert_eq!(seen.header("x-name"), Some("caf\u{c3}\u{a9}\u{ff}"), "{method}");
    }
    // What a hop ends at is still read, whatever stands beside it.
    let head = b"GET /latin/hop HTTP/1.1\r\nHost: a\r\nConnection: \xff, x-secret, close\r\n\
                 X-Secret: 1\r\n\r\n";
    raw(gateway.address, head, true);
    upstream.wait("/latin/hop", 1);
    assert_eq!(upstream.seen_at("/latin/hop")[0].header("x-secret"), None);
}

/// How long an upstream may take until its answer's head, and then between two pieces.
const TIMEOUT: &str = "[defaults]\nupstream_timeout = \"6s\"\n";

/// Well below it; several of them are well above it.
const PAUSE: Duration = Duration::from_millis(1_500);

#[test]
fn an_upload_may_take_longer_than_the_answer() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, TIMEOUT);
    let upload = |path: &str, method: &str| {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n");
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
        for piece in ["h", "e", "l", "l", "o"] {
            std::thread::sleep(PAUSE);
            stream.write_all(piece.as_bytes()).unwrap();
        }
        let answer = Reader::new(stream).message(false).expect("an answer");
        assert_eq!(answer.status(), 201, "{method}: {}", answer.text());
        assert_eq!(upstream.seen_at(path)[0].message.text(), "hello");
    };
    std::thread::scope(|both| {
        both.spawn(|| upload("/upload", "PUT"));
        both.spawn(|| upload("/upload-post", "POST"));
    });
}

#[test]
fn an_answer_may_take_longer_than_its_head() {
    let upstream = server(|mut stream| {
        std::thread::spawn(move || {
            head(&mut stream);
            stream.write_all(b"HTTP/1.1 200 X\r\nContent-Length: 5\r\n\r\n").unwrap();
            for piece in ["h", "e", "l", "l", "o"] {
                std::thread::sleep(PAUSE);
                stream.write_all(piece.as_bytes()).unwrap();
            }
        });
    });
    let gateway = Gateway::start(&upstream, TIMEOUT);
    let key = key();
    let keyed = [("Idempotency-Key", key.as_str()), ("Authorization", "Bearer a")];
    let ask = |method: &str, headers: &[(&str, &str)]| {
        let answer = send(gateway.address, &request(method, "/slow", headers, b""));
        assert_eq!((answer.status(), answer.text().as_str()), (200, "hello"), "{method}");
    };
    std::thread::scope(|all| {
        all.spawn(|| ask("GET", &[]));
        all.spawn(|| ask("POST", &[]));
        all.spawn(|| ask("POST", &keyed));
    });
    ask("POST", &keyed);
}

#[test]
fn an_upstream_that_falls_silent_is_given_up() {
    let upstream = server(move |mut stream| {
        // It does not read what it is sent in one case, and pauses in the middle in all others.
        let mut first = [0; 8];
        stream.read_exact(&mut first).unwrap();
        if !first.starts_with(b"PUT /bu") {
            head(&mut stream);
            stream.write_all(b"HTTP/1.1 200 X\r\nContent-Length: 5\r\n\r\nhel").unwrap();
        }
        // It never hangs up by itself.
        std::mem::forget(stream);
    });
    let gateway = Gateway::start(&upstream, "[defaults]\nupstream_timeout = \"2s\"\n");
    let silent = |method: &str| {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&request(method, "/silent", &[], b"")).unwrap();
        let mut seen = String::new();
        stream.read_to_string(&mut seen).expect("the gateway hangs up");
        assert!(seen.ends_with("hel"), "{seen}");
    };
    std::thread::scope(|all| {
        all.spawn(|| silent("GET"));
        all.spawn(|| silent("POST"));
        all.spawn(|| {
            let body = vec![7; 32 << 20];
            let answer = send(gateway.address, &request("PUT", "/busy", &[], &body));
            assert_eq!((answer.status(), answer.code().as_str()), (504, "upstream_failed"));
        });
    });
}

#[test]
fn a_caller_that_falls_silent_is_told_so() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "[defaults]\nrequest_time_max = \"300ms\"\n");
    for method in ["PUT", "POST"] {
        let part = format!("{method} /part HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\npart");
        let answer = send(gateway.address, part.as_bytes());
        assert_eq!((answer.status(), answer.code().as_str()), (408, "request_timeout"));
    }
    assert_eq!(upstream.count("/part"), 0, "no whole request arrived");
}

#[test]
fn a_malformed_chunk_is_the_callers_fault() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    for method in ["PUT", "POST", "GET"] {
        let head = format!("{method} /chunk HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n");
        for chunk in ["zz\r\n{}\r\n0\r\n\r\n", "2\r\n{}\r\nzz\r\n", "2\r\n{}}}\r\n0\r\n\r\n"] {
            let answer = send(gateway.address, format!("{head}\r\n{chunk}").as_bytes());
            let told = (answer.status(), answer.code());
            assert_eq!(told, (400, "request_broken".to_owned()), "{method} {chunk:?}");
        }
    }
    assert_eq!(upstream.count("/chunk"), 0, "no whole request arrived");
    assert!(!gateway.metrics().contains("retrysafe_upstream_failures_total{"), "nobody else's");
}

/// What follows a request that two servers could read differently may be the rest of it.
#[test]
fn a_request_that_is_refused_at_the_door_ends_its_connection() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    for refused in
        ["GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "get /x HTTP/1.1\r\nHost: a\r\n\r\n"]
    {
        let answers = raw(gateway.address, format!("{refused}{next}").as_bytes(), false);
        let statuses: Vec<u16> = answers.iter().map(Message::status).collect();
        assert_eq!(statuses, [400], "{refused:?}");
        assert_eq!(answers[0].header("connection"), Some("close"));
    }
    assert_eq!(upstream.count("/next"), 0);
}
