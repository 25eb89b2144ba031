//! Do tokens verify by the keys that their issuer publishes, also when it changes them or is down?

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::kit::{Gateway, Message, Upstream, free, key, until};

/// A key of an issuer, under a name.
struct IssuerKey {
    name: &'static str,
    pair: rcgen::KeyPair,
}

impl IssuerKey {
    fn new(name: &'static str) -> Self {
        Self { name, pair: rcgen::KeyPair::generate().unwrap() }
    }

    fn public(&self) -> Value {
        let point = self.pair.public_key_raw();
        let half = |at: usize| URL_SAFE_NO_PAD.encode(&point[at..at + 32]);
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.name, "x": half(1), "y": half(33)})
    }

    fn token(&self, subject: &str) -> String {
        let head = Header { kid: Some(self.name.into()), ..Header::new(Algorithm::ES256) };
        let private = EncodingKey::from_ec_pem(self.pair.serialize_pem().as_bytes()).unwrap();
        encode(&head, &json!({"sub": subject, "exp": 4_000_000_000_u64}), &private).unwrap()
    }
}

fn set(keys: &[&IssuerKey]) -> String {
    json!({"keys": keys.iter().map(|key| key.public()).collect::<Vec<_>>()}).to_string()
}

/// A key server that counts its readers. With no set it does not answer.
#[derive(Clone, Default)]
struct KeyServer {
    set: Arc<Mutex<Option<String>>>,
    reads: Arc<AtomicUsize>,
}

impl KeyServer {
    fn start(address: SocketAddr, set: String) -> Self {
        Self::start_over(address, set, |stream, server| server.answer(stream))
    }

    /// Over TLS, with this certificate.
    fn start_secure(
        address: SocketAddr,
        set: String,
        identity: rcgen::CertifiedKey<rcgen::KeyPair>,
    ) -> Self {
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let settings = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![identity.cert.der().clone()], key.into())
            .unwrap();
        let settings = Arc::new(settings);
        Self::start_over(address, set, move |stream, server| {
            let tls = rustls::ServerConnection::new(Arc::clone(&settings)).unwrap();
            server.answer(rustls::StreamOwned::new(tls, stream));
        })
    }

    fn start_over(
        address: SocketAddr,
        set: String,
        serve: impl Fn(TcpStream, &Self) + Send + 'static,
    ) -> Self {
        let server = Self::default();
        server.publish(Some(set));
        let listener = TcpListener::bind(address).unwrap();
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &serving);
            }
        });
        server
    }

    fn answer(&self, mut stream: impl Read + Write) {
        let mut head = [0; 1_024];
        if stream.read(&mut head).is_err() {
            return;
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(set) = self.set.lock().unwrap().as_ref() {
            let length = set.len();
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{set}");
            let _ = stream.flush();
        }
    }

    fn publish(&self, set: Option<String>) {
        *self.set.lock().unwrap() = set;
    }
}

fn scoped(jwt: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::start();
    let config = format!("[jwt]\n{jwt}\n[defaults]\nscope = [\"jwt:sub\"]\n");
    let gateway = Gateway::start_bare(&upstream, &config);
    (upstream, gateway)
}

fn post(gateway: &Gateway, key: &str, token: &str) -> Message {
    let bearer = format!("Bearer {token}");
    gateway.post_with("/pay", key, "{}", &[("Authorization", &bearer)])
}

#[test]
fn a_key_set_can_be_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let (known, unknown) = (IssuerKey::new("known"), IssuerKey::new("unknown"));
    std::fs::write(&file, set(&[&known])).unwrap();
    let (upstream, gateway) = scoped(&format!("jwks_file = \"{}\"", file.display()));
    assert_eq!(post(&gateway, &key(), &known.token("alice")).status(), 201);
    assert_eq!(post(&gateway, &key(), &unknown.token("alice")).code(), "credential_invalid");
    // Signed by somebody else under the name of a known key.
    let forged = IssuerKey { name: "known", ..unknown };
    assert_eq!(post(&gateway, &key(), &forged.token("alice")).status(), 401);
    assert_eq!(upstream.count("/pay"), 1);
}

#[test]
fn a_new_key_is_found_and_strange_ones_do_not_burden_the_server() {
    let (old, new) = (IssuerKey::new("old"), IssuerKey::new("new"));
    let address = free();
    let server = KeyServer::start(address, set(&[&old]));
    let started = Instant::now();
    let (_upstream, gateway) = scoped(&format!("jwks_url = \"http://{address}/keys?a=b\""));
    let key = key();
    until("the keys are read", || post(&gateway, &key, &old.token("alice")).status() == 201);
    server.publish(Some(set(&[&old, &new])));
    // A refreshed token under the new key is the same caller.
    until("the new key is found", || post(&gateway, &key, &new.token("alice")).is_replay());
    for _ in 0..30 {
        let strange = IssuerKey::new("strange").token("alice");
        let code = post(&gateway, &key, &strange).code();
        assert!(code == "credential_invalid" || code == "keys_unavailable", "{code}");
    }
    let reads = server.reads.load(Ordering::Relaxed);
    let reads_max = 1 + usize::try_from(started.elapsed().as_secs() / 5).unwrap();
    assert!(reads <= reads_max, "{reads} readings, {reads_max} at the most");
}

#[test]
fn without_a_key_server_nobody_can_say_and_known_keys_go_on_counting() {
    let (known, new) = (IssuerKey::new("known"), IssuerKey::new("new"));
    let address = free();
    // The server is down at the start.
    let (upstream, gateway) = scoped(&format!("jwks_url = \"http://{address}/keys\""));
    let key = key();
    let early = post(&gateway, &key, &known.token("alice"));
    assert_eq!((early.status(), early.code().as_str()), (503, "keys_unavailable"));
    assert!(early.header("retry-after").is_some());
    assert_eq!(upstream.count("/pay"), 0, "never sent on unguarded");
    let server = KeyServer::start(address, set(&[&known]));
    until("the keys are read", || post(&gateway, &key, &known.token("alice")).status() == 201);
    // It is down again, with a key that nobody has seen: that one's tokens may be good.
    server.publish(None);
    until("nobody can say", || post(&gateway, &key, &new.token("alice")).status() == 503);
    let reads = server.reads.load(Ordering::Relaxed);
    until("it was asked again", || {
        post(&gateway, &key, &new.token("alice"));
        server.reads.load(Ordering::Relaxed) > reads
    });
    assert!(post(&gateway, &key, &known.token("alice")).is_replay(), "known keys count");
    assert_eq!(upstream.count("/pay"), 1);
}

#[test]
fn keys_that_nobody_could_read_again_end_with_their_age() {
    let known = IssuerKey::new("known");
    let address = free();
    let server = KeyServer::start(address, set(&[&known]));
    let settings = format!("jwks_url = \"http://{address}/keys\"\nkeys_max_age = \"10s\"");
    let (upstream, gateway) = scoped(&settings);
    let key = key();
    until("the keys are read", || post(&gateway, &key, &known.token("alice")).status() == 201);
    // While the server is up, keys are read again before their age ends.
    let reads = server.reads.load(Ordering::Relaxed);
    until("they are read again", || {
        assert!(post(&gateway, &key, &known.token("alice")).is_replay());
        server.reads.load(Ordering::Relaxed) > reads
    });
    server.publish(None);
    until("they are too old", || {
        let told = post(&gateway, &key, &known.token("alice"));
        let is_too_old = told.status() == 503;
        assert!(is_too_old || told.is_replay(), "{told:?}");
        assert!(!is_too_old || told.code() == "keys_unavailable", "{told:?}");
        is_too_old
    });
    server.publish(Some(set(&[&known])));
    until("they are read anew", || post(&gateway, &key, &known.token("alice")).is_replay());
    assert_eq!(upstream.count("/pay"), 1);
}

#[test]
fn a_key_set_without_end_is_not_read() {
    let known = IssuerKey::new("known");
    let small = set(&[&known]);
    let spaces = |count: usize| " ".repeat(count);
    let large = format!("{small}{}", spaces((256 << 10) + 1 - small.len()));
    let address = free();
    let server = KeyServer::start(address, large);
    let (_upstream, gateway) = scoped(&format!("jwks_url = \"http://{address}/keys\""));
    let key = key();
    gateway.wait_for_log("jwks_read_failed");
    assert_eq!(post(&gateway, &key, &known.token("alice")).code(), "keys_unavailable");
    // One byte less is read.
    server.publish(Some(format!("{small}{}", spaces((256 << 10) - small.len()))));
    until("the keys are read", || post(&gateway, &key, &known.token("alice")).status() == 201);
}

#[test]
fn a_key_server_shows_a_certificate_that_is_trusted() {
    let known = IssuerKey::new("known");
    let identity = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (trusted, strange) = (identity(), identity());
    let folder = tempfile::tempdir().unwrap();
    let authorities = folder.path().join("authorities.pem");
    std::fs::write(&authorities, trusted.cert.pem()).unwrap();
    for (shown, is_trusted) in [(trusted, true), (strange, false)] {
        let address = free();
        KeyServer::start_secure(address, set(&[&known]), shown);
        let url = format!("https://localhost:{}/keys", address.port());
        let settings = format!("jwks_url = \"{url}\"\nauthorities = \"{}\"", authorities.display());
        let (upstream, gateway) = scoped(&settings);
        let key = key();
        if is_trusted {
            let posted = || post(&gateway, &key, &known.token("alice")).status();
            until("the keys are read", || posted() == 201);
        } else {
            gateway.wait_for_log("jwks_read_failed");
            assert_eq!(post(&gateway, &key, &known.token("alice")).code(), "keys_unavailable");
            assert_eq!(upstream.count("/pay"), 0);
        }
    }
}
