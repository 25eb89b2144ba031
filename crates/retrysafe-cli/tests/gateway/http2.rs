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

use super::kit::{Gateway, Upstream, key};

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
