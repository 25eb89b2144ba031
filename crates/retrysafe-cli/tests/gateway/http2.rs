//! Do TLS and HTTP/2 keep the same promise?

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::kit::{Gate, Gateway, PATIENCE, Step, Upstream, key, reply, request, send};

/// A certificate for `localhost` and its key, as files.
fn certificate(folder: &Path) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (certificate, key) = (folder.join("c.pem"), folder.join("k.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate.display().to_string(), key.display().to_string())
}

fn client(certificate: &str, protocol: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let mut client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(client)
}

#[test]
fn requests_over_http2_and_tls_run_once() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, private) = certificate(folder.path());
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "[tls]\ncertificate = \"{certificate}\"\nkey = \"{private}\"\n\
             [[route]]\npath = \"/required\"\nmethods = [\"POST\"]\nkey = \"required\"\n"
        ),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(client(&certificate, b"h2"));
        let name = ServerName::try_from("localhost").unwrap();
        let stream = connector.connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let key = key();
        let post = |path: &str, key: Option<&str>| {
            let mut request = Request::post(format!("https://localhost{path}"));
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            request.body(Full::new(bytes::Bytes::from_static(b"{}"))).unwrap()
        };
        let mut bodies = Vec::new();
        for replayed in [false, true] {
            let answer = sender.send_request(post("/h2", Some(&key))).await.unwrap();
            assert_eq!(answer.status(), StatusCode::CREATED);
            assert_eq!(answer.headers().contains_key("idempotent-replayed"), replayed);
            bodies.push(answer.into_body().collect().await.unwrap().to_bytes());
        }
        assert_eq!(bodies[0], bodies[1]);
        for path in ["/required", "//required", "/%72equired", "/REQUIRED/"] {
            let answer = sender.send_request(post(path, None)).await.unwrap();
            assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{path}");
        }
        let refused = sender
            .send_request(
                Request::builder()
                    .method("TRACE")
                    .uri("https://localhost/x")
                    .body(Full::default())
                    .unwrap(),
            )
            .await
            .unwrap();
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    });
    let seen = upstream.seen_at("/h2");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("host"), Some("localhost"));
    assert_eq!(seen[0].header("x-forwarded-proto"), Some("https"));
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn duplicates_over_h2c_run_once() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "h2c = true\n---\n[[route]]\npath = \"/crowd\"\nmethods = [\"POST\"]\nwait_max = \"60s\"\n",
    );
    let gate = Gate::default();
    let answer = Box::new(reply(201, "{\"paid\":1}"));
    upstream.script("/crowd", vec![Step::Held(gate.clone(), answer)]);
    let post = |path: &str, key: &str| {
        Request::post(format!("http://api.test{path}"))
            .header("idempotency-key", key)
            .body(Full::new(bytes::Bytes::from_static(b"{}")))
            .unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connect = async || {
            let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
            let io = TokioIo::new(stream);
            let (sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            sender
        };
        // Many at once, over two connections: one runs, the others wait for it.
        let (mut one, mut two, shared) = (connect().await, connect().await, key());
        let asked: Vec<_> = (0..20)
            .map(|number| {
                let sender = if number % 2 == 0 { &mut one } else { &mut two };
                tokio::spawn(sender.send_request(post("/crowd", &shared)))
            })
            .collect();
        until("nineteen wait", || gateway.metrics().contains("retrysafe_waiting 19")).await;
        gate.open();
        let mut replays = 0;
        for asked in asked {
            let answer = asked.await.unwrap().unwrap();
            assert_eq!(answer.status(), StatusCode::CREATED);
            replays += usize::from(answer.headers().contains_key("idempotent-replayed"));
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "{\"paid\":1}");
        }
        assert_eq!(replays, 19);

        // A caller who takes its request back does not take back what it has begun.
        let (gate, given_up) = (Gate::default(), key());
        let answer = Box::new(reply(201, "{\"paid\":2}"));
        upstream.script("/left", vec![Step::Held(gate.clone(), answer)]);
        let asked = tokio::spawn(one.send_request(post("/left", &given_up)));
        until("it runs", || upstream.count("/left") == 1).await;
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
        gate.open();
        let settled = "retrysafe_settled_total{route=\"/{*rest}\",standing=\"completed\"} 1";
        until("it is settled", || gateway.metrics().contains(settled)).await;
        let answer = two.send_request(post("/left", &given_up)).await.unwrap();
        assert!(answer.headers().contains_key("idempotent-replayed"));
        // The same key over HTTP/1.1 is the same key.
        let answer = gateway.post_with("/left", &given_up, "{}", &[]);
        assert_eq!(answer.code(), "idempotency_key_reused", "with a media type it means another");
        let bare = request("POST", "/left", &[("Idempotency-Key", &given_up)], b"{}");
        assert!(send(gateway.address, &bare).is_replay());
    });
    assert_eq!((upstream.count("/crowd"), upstream.count("/left")), (1, 1));
}

/// The story: "no error" is the code with which some libraries take a request back. To the HTTP library it looked like the end of the body,
/// so a part was sent on as the whole, and with a key it was also kept.
#[test]
fn an_upload_that_is_reset_without_error_is_not_whole() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "h2c = true\n---\n");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (path, length, key) in [
        ("/streamed", None, Some(key())),
        ("/stated", Some(10), Some(key())),
        ("/free", None, None),
    ] {
        runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
            let (mut sender, mut connection) = h2::client::handshake(stream).await.unwrap();
            let mut pings = connection.ping_pong().unwrap();
            tokio::spawn(connection);
            let mut request = Request::post(format!("http://api.test{path}"));
            for (name, value) in [
                ("idempotency-key", key.clone()),
                ("content-length", length.map(|length: u64| length.to_string())),
                ("content-type", Some("application/json".into())),
            ] {
                if let Some(value) = value {
                    request = request.header(name, value);
                }
            }
            let (answer, mut body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
            body.send_data("{\"n\":".into(), false).unwrap();
            // What was written before an answered ping has arrived.
            pings.ping(h2::Ping::opaque()).await.unwrap();
            body.send_reset(h2::Reason::NO_ERROR);
            pings.ping(h2::Ping::opaque()).await.unwrap();
            assert!(answer.await.is_err());
        });
        assert_eq!(upstream.count(path), 0, "{path}");
        let Some(key) = key else { continue };
        // Had the part been kept, the whole would be another request.
        let answer = gateway.post(path, &key, "{\"n\":1234}");
        assert_eq!((answer.status(), answer.is_replay()), (201, false), "{path}");
        assert_eq!(upstream.count(path), 1, "{path}");
    }
}

/// Waits until something holds, and lets the connections' tasks go on meanwhile.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < end, "never: {what}");
        tokio::task::yield_now().await;
    }
}

#[test]
fn http1_over_tls_is_protected_too() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, private) = certificate(folder.path());
    let gateway = Gateway::start(
        &upstream,
        &format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{private}\"\n"),
    );
    let key = key();
    let asked = request("POST", "/tls", &[("Idempotency-Key", &key)], b"{}");
    let exchange = || {
        let name = ServerName::try_from("localhost").unwrap();
        let client = client(&certificate, b"http/1.1");
        let mut connection = rustls::ClientConnection::new(client, name).unwrap();
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        let mut tls = rustls::Stream::new(&mut connection, &mut stream);
        tls.write_all(&asked).unwrap();
        let mut answer = String::new();
        tls.read_to_string(&mut answer).unwrap();
        answer
    };
    let (first, second) = (exchange(), exchange());
    assert!(first.starts_with("HTTP/1.1 201") && second.starts_with("HTTP/1.1 201"), "{first}");
    assert!(!first.contains("idempotent-replayed") && second.contains("idempotent-replayed: true"));
    assert_eq!(upstream.seen_at("/tls")[0].header("x-forwarded-proto"), Some("https"));
    // In plain text nobody is heard.
    assert!(super::kit::raw(gateway.address, &asked, true).is_empty());
    assert_eq!(upstream.count("/tls"), 1);
}

#[test]
fn the_upstream_may_speak_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, private) = certificate(folder.path());
    let chain = vec![CertificateDer::from_pem_file(&certificate).unwrap()];
    let private = PrivateKeyDer::from_pem_file(&private).unwrap();
    let server = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, private);
    let server = Arc::new(server.unwrap());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serve_tls(stream, &server);
        }
    });
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, &format!("[upstream_tls]\nauthorities = \"{certificate}\"\n"));
    let toml = std::fs::read_to_string(gateway.config()).unwrap();
    let plain = format!("http://{}", upstream.address);
    std::fs::write(gateway.config(), toml.replace(&plain, &format!("https://localhost:{port}")))
        .unwrap();
    gateway.signal("HUP");
    gateway.wait_for_log("configuration reloaded");
    let key = key();
    assert_eq!(gateway.post("/tls", &key, "{}").text(), "secure");
    assert!(gateway.post("/tls", &key, "{}").is_replay());
    assert!(upstream.seen().is_empty(), "the reload has named another upstream");
}

fn serve_tls(mut stream: TcpStream, server: &Arc<ServerConfig>) {
    let mut connection = rustls::ServerConnection::new(Arc::clone(server)).unwrap();
    let mut tls = rustls::Stream::new(&mut connection, &mut stream);
    let mut seen = Vec::new();
    let mut chunk = [0; 4096];
    while !seen.ends_with(b"{}") {
        match tls.read(&mut chunk) {
            Ok(n) if n > 0 => seen.extend_from_slice(&chunk[..n]),
            _ => return,
        }
    }
    let _ =
        tls.write_all(b"HTTP/1.1 201 X\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecure");
    tls.conn.send_close_notify();
    let _ = tls.flush();
}

/// A caller who had sent one byte of the preface made its worker look for the second one a thousand
/// times a second.
#[test]
fn a_preface_that_comes_byte_by_byte_is_waited_for_in_peace() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "h2c = true\n---\n");
    let begun: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(gateway.address).unwrap();
            stream.write_all(b"P").unwrap();
            stream
        })
        .collect();
    // Somebody is served meanwhile, so the workers have seen those bytes.
    for _ in 0..4 {
        assert_eq!(gateway.post("/meanwhile", &key(), "{}").status(), 201);
    }
    let before = switches(&gateway);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let woken = switches(&gateway) - before;
    assert!(woken < 400, "the threads woke up {woken} times in a second to do nothing");

    let mut stream = begun.into_iter().next().unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for byte in b"RI * HTTP/2.0\r\n\r\nSM\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    // Empty settings; the gateway answers with its own.
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!(frame[3], 4, "settings come first: {frame:?}");
    // What only begins like a preface is no preface.
    for begin in ["PUT /p HTTP/1.1\r\nHost: a\r\n", "PRI * HTTP/1.1\r\nHost: a\r\n"] {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in format!("{begin}Connection: close\r\n\r\n").bytes() {
            stream.write_all(&[byte]).unwrap();
        }
        let answer = super::kit::Reader::new(stream).message(false).expect("an answer");
        assert!(matches!(answer.status(), 201 | 400), "{begin}");
    }
    assert_eq!(upstream.count("/p"), 1);
}

/// How often the threads of a gateway have gone to sleep.
fn switches(gateway: &Gateway) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", gateway.pid())).unwrap();
    let counts = threads.flatten().map(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or_default()
    });
    counts.sum()
}
