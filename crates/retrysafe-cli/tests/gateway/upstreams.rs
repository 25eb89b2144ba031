//! Do several upstreams, sockets, HTTP/2 and unhealthy upstreams keep the same promise?

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use h2::server::SendResponse;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::UnboundedSender;
use tokio_rustls::TlsAcceptor;

use super::kit::{
    Gate, Gateway, Reader, Step, Upstream, key, program, reply, request, send, until, without_stall,
};

fn get(gateway: &Gateway, path: &str) -> u16 {
    send(gateway.address, &request("GET", path, &[], b"")).status()
}

// ------------------------------------------------------------------ several upstreams

#[test]
fn each_path_has_its_upstream_whatever_the_method() {
    let top = Upstream::start();
    let billing = Upstream::start();
    let cards = Upstream::start();
    let gateway = Gateway::start(
        &top,
        &format!(
            "[[route]]\npath = \"/billing/{{*rest}}\"\nupstream = \"http://{}\"\nstrip_prefix = true\n\
             [[route]]\npath = \"/billing/cards/{{*rest}}\"\nupstream = \"http://{}\"\n\
             [[route]]\npath = \"/billing/pay\"\nkey = \"required\"\n",
            billing.address, cards.address
        ),
    );
    let key = key();
    for is_replay in [false, true] {
        let answer =
            gateway.post_with("/billing/pay?x=1", &key, "{}", &[("X-Forwarded-Prefix", "/forged")]);
        assert_eq!((answer.status(), answer.is_replay()), (201, is_replay));
    }
    let seen = billing.seen_at("/pay");
    assert_eq!(seen.len(), 1);
    assert_eq!(
        (seen[0].target.as_str(), seen[0].header("x-forwarded-prefix")),
        ("/pay?x=1", Some("/billing"))
    );
    assert!(seen[0].is_protected());
    assert_eq!(
        gateway.post("/billing/cards/1", &key, "{}").status(),
        422,
        "one key, another request"
    );
    assert_eq!((get(&gateway, "/billing/pay"), get(&gateway, "/billing")), (201, 201));
    assert_eq!((get(&gateway, "/billing/cards/1"), get(&gateway, "/other")), (201, 201));
    assert_eq!((billing.count("/pay"), billing.count("/")), (2, 1));
    assert_eq!((cards.count("/billing/cards/1"), top.count("/other")), (1, 1));
    let before = top.seen().len() + billing.seen().len() + cards.seen().len();
    for path in [
        "/billing/x/..%2fcards/1",
        "/x/../billing/pay",
        "/BILLING/pay",
        "/billing//pay",
        "/billing/%2e%2e/other",
    ] {
        assert_eq!(get(&gateway, path), 400, "{path}");
    }
    let after = top.seen().len() + billing.seen().len() + cards.seen().len();
    assert_eq!(before, after, "what can be read in two ways reaches nobody");
}

/// A lookup that names a path, and may take an absence for proof.
const RECONCILE: &str = "[reconcile]\nurl = \"/requests/{id}\"\nsettle_time = \"1h\"\n";

#[test]
fn wrong_upstreams_are_named_with_their_cure() {
    let check = |toml: &str| {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("upstream = \"http://127.0.0.1:1\"\n{toml}");
        std::fs::write(folder.path().join("retrysafe.toml"), text).unwrap();
        let (code, out, err) = program(&["config", "check"], folder.path());
        (code, format!("{out}{err}"))
    };
    let route = "[[route]]\npath = \"/a/{*rest}\"\n";
    for (toml, wanted) in [
        ("[defaults]\nupstream = \"http://a\"\n".to_owned(), "defaults.upstream"),
        ("[defaults]\nstrip_prefix = true\n".to_owned(), "defaults.strip_prefix"),
        (format!("{route}upstream = \"http://a/b\"\n"), "route[0].upstream"),
        (format!("{route}upstream = \"unix:a.sock\"\n"), "unix:/path/to/socket"),
        ("[[route]]\npath = \"/a/{id}\"\nstrip_prefix = true\n".to_owned(), "/billing/{*rest}"),
        // One operation would have two paths, and the rule of one of them would be passed by.
        (format!("{route}strip_prefix = true\n"), "`upstream` at the top of the file"),
        (
            format!(
                "{route}upstream = \"http://LOCALHOST:3000\"\nstrip_prefix = true\n[[route]]\npath = \"/b\"\nupstream = \"h2c://127.0.0.1:3000\"\n"
            ),
            "route[0].strip_prefix",
        ),
        (
            format!(
                "{route}upstream = \"unix:/a.sock\"\nstrip_prefix = true\n[[route]]\npath = \"/b/{{*rest}}\"\nstrip_prefix = true\nupstream = \"unix:/a.sock\"\n"
            ),
            "the route of /b/{*rest}",
        ),
        (
            format!(
                "{route}upstream = \"http://a\"\nmethods = [\"POST\"]\n{route}upstream = \"http://b\"\nmethods = [\"PUT\"]\n"
            ),
            "route[1].upstream",
        ),
        // Whoever never saw a request finds it nowhere, and that would be proof.
        (
            format!("{route}upstream = \"http://a\"\nabsence = \"proof\"\n{RECONCILE}"),
            "route[0].absence",
        ),
        // The upstream of the path is another route's, and the rule is this one's.
        (
            format!(
                "{route}upstream = \"http://a\"\n[[route]]\npath = \"/a/pay\"\nabsence = \"proof\"\n{RECONCILE}"
            ),
            "route[1].absence",
        ),
        // What the route does not guard is under the defaults, and goes to the route's upstream all the same.
        (
            format!(
                "[defaults]\nabsence = \"proof\"\n{route}methods = [\"POST\"]\nupstream = \"http://a\"\nabsence = \"inconclusive\"\n{RECONCILE}"
            ),
            "defaults.absence",
        ),
        // Which of several applications made a call is not known.
        (
            format!(
                "{route}upstream = \"http://a\"\n[lookups.bank]\ncall = {{ flow = \"payout\", phase = \"transfer\", number = 1 }}\n\
                 url = \"/transfers/{{key}}\"\n"
            ),
            "lookups.bank.url",
        ),
        ("[health]\n".to_owned(), "health.path"),
        ("[health]\npath = \"healthz\"\n".to_owned(), "such as /healthz"),
        ("[health]\npath = \"/\"\nevery = \"1ms\"\n".to_owned(), "health.every"),
        ("[health]\npath = \"/\"\nunhealthy_after = 0\n".to_owned(), "health.unhealthy_after"),
        ("[log]\nfields = [\"method\", \"planet\"]\n".to_owned(), "user_agent"),
    ] {
        let (code, told) = check(&toml);
        assert!(code == 1 && told.contains(wanted), "{toml} lacks {wanted:?}: {told}");
    }
    let same = format!(
        "{route}upstream = \"http://a\"\nmethods = [\"POST\"]\n{route}upstream = \"http://a\"\nmethods = [\"PUT\"]\n"
    );
    assert_eq!(check(&same), (0, "valid: 2 routes and the defaults (retrysafe.toml)\n".into()));
    // Where no request of a rule goes to another upstream, its absences may be proof.
    let shop = format!("{route}upstream = \"http://a\"\nabsence = \"inconclusive\"\n");
    let proof = "absence = \"proof\"\n";
    for toml in [
        format!("[defaults]\n{proof}{shop}{RECONCILE}"),
        format!("{shop}[[route]]\npath = \"/{{*rest}}\"\n{proof}{RECONCILE}"),
        format!("{shop}[[route]]\npath = \"/ab\"\n{proof}{RECONCILE}"),
        format!(
            "{shop}[[route]]\npath = \"/a/b\"\nupstream = \"http://127.0.0.1:1\"\n{proof}{RECONCILE}"
        ),
        format!(
            "{shop}[[route]]\npath = \"/a/b\"\n{proof}[reconcile]\nurl = \"http://a/requests/{{id}}\"\nsettle_time = \"1h\"\n"
        ),
    ] {
        let (code, told) = check(&toml);
        assert_eq!(code, 0, "{toml}: {told}");
    }
}

/// The answer is lost on an upstream that speaks HTTP/2, and lookups speak HTTP/1.1. Nobody else can know, so nobody is asked.
#[test]
fn nobody_is_asked_in_the_place_of_an_upstream_that_no_lookup_can_speak_to() {
    let top = Upstream::start();
    top.script("/lookup", vec![reply(200, r#"{"state":"not_executed"}"#)]);
    let (upstream, address) = Http2Upstream::start(None);
    let gateway = Gateway::start(
        &top,
        &format!(
            "[[route]]\npath = \"/reset\"\nupstream = \"h2c://{address}\"\n\
             [reconcile]\nurl = \"/lookup?id={{id}}\"\nevery = \"20ms\"\nschedule = \"0s, 20ms\"\nsettle_time = \"20ms\"\n"
        ),
    );
    let key = key();
    assert_eq!(gateway.post("/reset", &key, "{}").code(), "outcome_unknown");
    until("the schedule is used up", || gateway.metrics().contains("retrysafe_dead_lettered 1"));
    assert_eq!(gateway.post("/reset", &key, "{}").code(), "outcome_unknown");
    assert_eq!((upstream.count("/reset"), top.seen().len()), (1, 0));
    let seen = upstream.seen.lock().unwrap();
    let id = seen["/reset"][0].headers["retrysafe-id"].to_str().unwrap();
    let record = gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").text();
    assert!(record.contains("lookups speak HTTP/1.1"), "{record}");
}

// ------------------------------------------------------------------ sockets

/// A socket in the file system in front of an upstream, until its file is taken away.
fn socket_to(path: &Path, upstream: SocketAddr) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tcp = TcpStream::connect(upstream).unwrap();
            pass(stream.try_clone().unwrap(), tcp.try_clone().unwrap(), tcp, stream);
        }
    });
}

fn pass(
    mut from: UnixStream,
    mut to: TcpStream,
    mut back_from: TcpStream,
    mut back_to: UnixStream,
) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(std::net::Shutdown::Both);
    });
}

#[test]
fn a_socket_that_goes_and_comes_back_leaves_nothing_unknown() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    socket_to(&path, upstream.address);
    // One thread: each has connections of its own, and those of another would outlive the socket.
    let route = format!(
        "threads = 1\n---\n[[route]]\npath = \"/s/{{*rest}}\"\nupstream = \"unix:{}\"\n",
        path.display()
    );
    let gateway = Gateway::start(&upstream, &route);
    let first = key();
    for is_replay in [false, true] {
        let answer = gateway.post("/s/pay", &first, "{}");
        assert_eq!((answer.status(), answer.is_replay()), (201, is_replay));
    }
    upstream.script("/s/close", vec![Step::Drop]);
    assert_eq!(gateway.post("/s/close", &key(), "{}").code(), "outcome_unknown", "it was sent");
    std::fs::remove_file(&path).unwrap();
    let waiting = key();
    // A connection from before may still be used; without one nothing is sent.
    until("there is no connection left", || get(&gateway, "/s/look") == 502);
    let refused = gateway.post("/s/pay", &waiting, "{}");
    assert_eq!((refused.status(), refused.code()), (502, "upstream_unreachable".into()));
    socket_to(&path, upstream.address);
    assert_eq!(gateway.post("/s/pay", &waiting, "{}").status(), 201);
    assert_eq!(upstream.count("/s/pay"), 2);
}

// ------------------------------------------------------------------ HTTP/2

/// An upstream that speaks HTTP/2, and counts the streams that reached it, by path.
#[derive(Clone, Default)]
struct Http2Upstream {
    connections: Arc<AtomicUsize>,
    /// What it neither reads nor resets.
    unread: Arc<Mutex<Vec<h2::RecvStream>>>,
    seen: Arc<Mutex<HashMap<String, Vec<http::request::Parts>>>>,
}

impl Http2Upstream {
    fn start(tls: Option<TlsAcceptor>) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let upstream = Self::default();
        let serving = upstream.clone();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let stream = listener.accept().await.unwrap().0;
                    let serving = serving.clone();
                    match tls.clone() {
                        None => drop(tokio::spawn(serving.serve(stream))),
                        Some(tls) => drop(tokio::spawn(async move {
                            serving.serve(tls.accept(stream).await.unwrap()).await;
                        })),
                    }
                }
            });
        });
        (upstream, address)
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        let (hang_up, mut hung_up) = tokio::sync::mpsc::unbounded_channel();
        let pings = connection.ping_pong().map(tokio::sync::Mutex::new).map(Arc::new).unwrap();
        // The connection is driven by whoever waits for its next request, so nobody else may be waited for here.
        loop {
            tokio::select! {
                accepted = connection.accept() => match accepted {
                    Some(Ok((request, respond))) => {
                        let pings = Arc::clone(&pings);
                        drop(tokio::spawn(self.clone().answer(request, respond, hang_up.clone(), pings)));
                    }
                    Some(Err(_)) | None => return,
                },
                // The stream is let go of after the GOAWAY: before it, it would be a reset.
                Some(_respond) = hung_up.recv() => connection.abrupt_shutdown(h2::Reason::NO_ERROR),
            }
        }
    }

    async fn answer(
        self,
        request: http::Request<h2::RecvStream>,
        mut respond: SendResponse<Bytes>,
        hang_up: UnboundedSender<SendResponse<Bytes>>,
        pings: Arc<tokio::sync::Mutex<h2::PingPong>>,
    ) {
        let (parts, mut body) = request.into_parts();
        if parts.uri.path() == "/early" {
            let answer = http::Response::builder().status(202).body(()).unwrap();
            respond.send_response(answer, true).unwrap();
        }
        if parts.uri.path() == "/deaf" {
            let answer = http::Response::builder().status(202).body(()).unwrap();
            respond.send_response(answer, true).unwrap();
            return self.unread.lock().unwrap().push(body);
        }
        while let Some(Ok(bytes)) = body.data().await {
            let _ = body.flow_control().release_capacity(bytes.len());
        }
        let path = parts.uri.path().to_owned();
        let count = {
            let mut seen = self.seen.lock().unwrap();
            let here = seen.entry(path.clone()).or_default();
            here.push(parts);
            here.len()
        };
        match (path.as_str(), count) {
            // It was answered before its body had come.
            ("/early", _) => {}
            ("/refuse", 1) => respond.send_reset(h2::Reason::REFUSED_STREAM),
            ("/reset", 1) => respond.send_reset(h2::Reason::INTERNAL_ERROR),
            ("/cancel", 1) => respond.send_reset(h2::Reason::CANCEL),
            ("/goaway", 1) => drop(hang_up.send(respond)),
            // Its head and the beginning of its body, and then an end that is no end.
            ("/cut", 1) => {
                let answer = http::Response::builder().status(201).body(()).unwrap();
                let mut send = respond.send_response(answer, false).unwrap();
                send.send_data("{\"n\":".into(), false).unwrap();
                // What was written before an answered ping has left, and a reset cannot take it back.
                for _ in 0..2 {
                    pings.lock().await.ping(h2::Ping::opaque()).await.unwrap();
                }
                send.send_reset(h2::Reason::NO_ERROR);
            }
            _ => {
                let answer = http::Response::builder().status(201).body(()).unwrap();
                let mut send = respond.send_response(answer, false).unwrap();
                send.send_data(format!("{{\"n\":{count}}}").into_bytes().into(), true).unwrap();
            }
        }
    }

    fn count(&self, path: &str) -> usize {
        self.seen.lock().unwrap().get(path).map_or(0, Vec::len)
    }
}

#[test]
fn only_a_refused_stream_of_http2_is_not_sent() {
    let top = Upstream::start();
    let (upstream, address) = Http2Upstream::start(None);
    let route = format!("[[route]]\npath = \"/{{*rest}}\"\nupstream = \"h2c://{address}\"\n");
    let gateway = Gateway::start(&top, &route);
    let first = key();
    for is_replay in [false, true] {
        let answer = gateway.post("/pay", &first, "{\"amount\":1}");
        assert_eq!((answer.status(), answer.is_replay()), (201, is_replay));
        assert_eq!(answer.text(), "{\"n\":1}");
    }
    assert_eq!(get(&gateway, "/list"), 201);
    {
        let seen = upstream.seen.lock().unwrap();
        let parts = &seen["/pay"][0];
        assert!(
            parts.headers.contains_key("retrysafe-fence") && !parts.headers.contains_key("host")
        );
        let authority = parts.uri.authority().map(|authority| authority.as_str());
        assert_eq!((parts.uri.scheme_str(), authority), (Some("http"), Some("api.test")));
    }
    let refused = key();
    let answer = gateway.post("/refuse", &refused, "{}");
    assert_eq!((answer.status(), answer.code()), (502, "upstream_unreachable".into()));
    assert_eq!(gateway.post("/refuse", &refused, "{}").status(), 201, "it was surely not executed");
    for path in ["/reset", "/cancel", "/goaway", "/cut"] {
        let lost = key();
        for _ in 0..2 {
            assert_eq!(gateway.post(path, &lost, "{}").code(), "outcome_unknown", "{path}");
        }
        assert_eq!(upstream.count(path), 1, "{path}: nobody sends it again");
        assert_eq!(gateway.post(path, &key(), "{}").status(), 201, "{path}: others go on");
    }
    assert_eq!((upstream.count("/pay"), upstream.count("/refuse"), top.seen().len()), (1, 2, 0));
}

#[test]
fn an_http2_connection_whose_upload_goes_on_takes_no_other_request() {
    let opened = without_stall(|| {
        let top = Upstream::start();
        let (upstream, address) = Http2Upstream::start(None);
        let gateway = Gateway::start(
            &top,
            &format!(
                "threads = 1\n---\n[[route]]\npath = \"/{{*rest}}\"\nupstream = \"h2c://{address}\"\n"
            ),
        );
        let begun = Instant::now();
        let list = || {
            assert_eq!(get(&gateway, "/list"), 201);
            upstream.connections.load(Ordering::Relaxed)
        };
        list();
        let before = list();
        let mut caller = TcpStream::connect(gateway.address).unwrap();
        caller
            .write_all(b"POST /early HTTP/1.1\r\nHost: api.test\r\nContent-Length: 10\r\n\r\n12345")
            .unwrap();
        let mut reader = Reader::new(caller.try_clone().unwrap());
        let status = reader.message(false).unwrap().status();
        assert_eq!(status, 202, "it is answered before it is whole");
        let meanwhile = list();
        caller.write_all(b"67890").unwrap();
        until("the upload has arrived", || upstream.count("/early") == 1);
        let afterwards = list();
        (begun.elapsed(), [before, meanwhile, afterwards])
    });
    assert_eq!(opened, [1, 2, 2], "the first one is taken, and then the second one is free");
}

/// A request of several windows is answered before it is read, and then nobody reads it. The connection had taken all of it, so it
/// counted as free: the next request waited for room behind it, and came to be unknown.
#[test]
fn an_http2_connection_whose_upload_is_not_taken_takes_no_other_request() {
    let large = format!("\"{}\"", "x".repeat(200_000));
    let opened = without_stall(|| {
        let top = Upstream::start();
        let (upstream, address) = Http2Upstream::start(None);
        let gateway = Gateway::start(
            &top,
            &format!(
                "threads = 1\n---\n[defaults]\nupstream_timeout = \"5s\"\n\
                 [[route]]\npath = \"/{{*rest}}\"\nupstream = \"h2c://{address}\"\n"
            ),
        );
        let begun = Instant::now();
        assert_eq!(gateway.post("/deaf", &key(), &large).status(), 202);
        assert_eq!(gateway.post("/pay", &key(), "{}").status(), 201);
        // What was written whole leaves its connection free.
        assert_eq!(gateway.post("/pay", &key(), &large).status(), 201);
        assert_eq!(gateway.post("/pay", &key(), "{}").status(), 201);
        (begun.elapsed(), upstream.connections.load(Ordering::Relaxed))
    });
    assert_eq!(opened, 2);
}

#[test]
fn over_tls_the_upstream_chooses_its_http() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let certificate = folder.path().join("c.pem");
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    let key_pem = made.signing_key.serialize_pem();
    let chain = vec![CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).unwrap()];
    let private = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap();
    let mut server =
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, private).unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(server.clone()));
    let (two, two_address) = Http2Upstream::start(Some(acceptor));
    // A server that knows HTTP/1.1 alone.
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let (one, one_address) = tls_bridge(server);
    let top = Upstream::start();
    let gateway = Gateway::start(
        &top,
        &format!(
            "[upstream_tls]\nauthorities = \"{}\"\n\
             [[route]]\npath = \"/two/{{*rest}}\"\nupstream = \"h2://localhost:{}\"\n\
             [[route]]\npath = \"/one/{{*rest}}\"\nupstream = \"h2://localhost:{}\"\n",
            certificate.display(),
            two_address.port(),
            one_address.port()
        ),
    );
    for path in ["/two/pay", "/one/pay"] {
        let key = key();
        for is_replay in [false, true] {
            let answer = gateway.post(path, &key, "{}");
            assert_eq!((answer.status(), answer.is_replay()), (201, is_replay), "{path}");
        }
    }
    assert_eq!((two.count("/two/pay"), one.count("/one/pay")), (1, 1));
    let scheme = two.seen.lock().unwrap()["/two/pay"][0].uri.scheme_str().map(str::to_owned);
    assert_eq!(scheme.as_deref(), Some("https"));
}

/// A recording upstream behind TLS.
fn tls_bridge(server: ServerConfig) -> (Upstream, SocketAddr) {
    let upstream = Upstream::start();
    let to = upstream.address;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let stream = listener.accept().await.unwrap().0;
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut caller = acceptor.accept(stream).await.unwrap();
                    let mut behind = tokio::net::TcpStream::connect(to).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut caller, &mut behind).await;
                });
            }
        });
    });
    (upstream, address)
}

// ------------------------------------------------------------------ health

#[test]
fn an_upstream_that_hangs_is_refused_before_anything_is_sent() {
    let upstream = Upstream::start();
    let gate = Gate::default();
    let hangs = Step::Held(gate.clone(), Box::new(reply(200, "{}")));
    upstream.script("/healthz", vec![reply(200, "{}"), hangs]);
    let gateway = Gateway::start(
        &upstream,
        "[health]\npath = \"/healthz\"\nevery = \"20ms\"\ntimeout = \"2s\"\nunhealthy_after = 2\nhealthy_after = 1\n",
    );
    let word = || {
        gateway.ask("GET", "/readyz", "").json()["upstreams"]
            [format!("http://{}", upstream.address)]
        .clone()
    };
    until("the checks have found it unhealthy", || word() == "unhealthy");
    let key = key();
    let refused = gateway.post("/pay", &key, "{}");
    assert_eq!((refused.status(), refused.code().as_str()), (503, "upstream_unhealthy"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(upstream.count("/pay"), 0);
    // It hangs until it was seen to be refused, however long that takes.
    upstream.script("/healthz", vec![reply(204, "")]);
    until("it is healthy again", || word() == "ok");
    gate.open();
    assert_eq!(gateway.post("/pay", &key, "{}").status(), 201);
    assert_eq!(gateway.ask("GET", "/readyz", "").status(), 200);
    assert!(gateway.metrics().contains("retrysafe_upstream_healthy{"));
    gateway.wait_for_log("upstream_unhealthy");
    gateway.wait_for_log("upstream_healthy");
}

#[test]
fn an_upstream_that_is_unhealthy_stays_refused_and_others_go_on() {
    let top = Upstream::start();
    let ill = Upstream::start();
    ill.script("/healthz", vec![reply(200, "{}")]);
    let gateway = Gateway::start(
        &top,
        &format!(
            "[health]\npath = \"/healthz\"\nevery = \"20ms\"\nunhealthy_after = 1\n\
             [[route]]\npath = \"/ill/{{*rest}}\"\nupstream = \"http://{}\"\n",
            ill.address
        ),
    );
    let paid = key();
    assert_eq!(gateway.post("/ill/pay", &paid, "{}").status(), 201);
    let lost = key();
    ill.script("/ill/lost", vec![Step::Drop]);
    assert_eq!(gateway.post("/ill/lost", &lost, "{}").code(), "outcome_unknown");
    ill.script("/healthz", vec![reply(500, "{}")]);
    until("it is refused", || get(&gateway, "/ill/x") == 503);
    let waiting = key();
    for _ in 0..2 {
        let refused = gateway.post("/ill/pay", &waiting, "{}");
        assert_eq!((refused.status(), refused.code()), (503, "upstream_unhealthy".into()));
        assert!(refused.header("retry-after").is_some());
    }
    // What is known already needs no upstream.
    assert!(gateway.post("/ill/pay", &paid, "{}").is_replay());
    assert_eq!(gateway.post("/ill/pay", &paid, "{\"n\":2}").status(), 422);
    let unknown = gateway.post("/ill/lost", &lost, "{}");
    assert_eq!((unknown.status(), unknown.code()), (409, "outcome_unknown".into()));
    assert_eq!(ill.count("/ill/pay"), 1);
    // A refused request was not begun. A record of it would bind its key to its body, and a crash would make it unknown.
    let keys = gateway.ask("GET", "/api/v1/keys", "").json();
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(2), "{keys}");
    assert!(gateway.metrics().contains("code=\"upstream_unhealthy\"} 2"));
    assert_eq!(gateway.post("/pay", &key(), "{}").status(), 201);
    // Without checks nobody is unhealthy.
    gateway.configure(&format!(
        "[[route]]\npath = \"/ill/{{*rest}}\"\nupstream = \"http://{}\"\n",
        ill.address
    ));
    gateway.signal("HUP");
    until("it is taken again", || get(&gateway, "/ill/x") == 201);
    let other = gateway.post("/ill/pay", &waiting, "{\"n\":2}");
    assert_eq!(other.status(), 201, "its key has stayed free, also for another body");
    assert_eq!(ill.count("/ill/pay"), 2);
}

// ------------------------------------------------------------------ the log

#[test]
fn the_line_of_a_request_has_the_fields_that_were_chosen() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "[log]\nfields = [\"status\", \"peer\", \"host\", \"user_agent\", \"upstream\"]\n",
    );
    let headers = [("Idempotency-Key", "k-1"), ("User-Agent", "a \"b\"")];
    send(gateway.address, &request("POST", "/pay?secret=1", &headers, b"{}"));
    gateway.wait_for_log("\"message\":\"request\"");
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains("\"message\":\"request\"")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    let wanted = serde_json::json!({
        "status": 201, "peer": "127.0.0.1", "host": "api.test", "user_agent": "a \"b\"",
        "upstream": format!("http://{}", upstream.address), "level": "INFO", "message": "request",
    });
    let mut found = line.as_object().unwrap().clone();
    found.remove("timestamp");
    assert_eq!(serde_json::Value::Object(found), wanted);
}
