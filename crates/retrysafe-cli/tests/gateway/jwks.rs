//! Do tokens verify by the keys that their issuer publishes, also when it changes them or is down?

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
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
        let server = Self::default();
        server.publish(Some(set));
        let listener = TcpListener::bind(address).unwrap();
        let serving = server.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = [0; 1_024];
                let _ = stream.read(&mut head);
                serving.reads.fetch_add(1, Ordering::Relaxed);
                if let Some(set) = serving.set.lock().unwrap().as_ref() {
                    let length = set.len();
                    let _ =
                        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{set}");
                }
            }
        });
        server
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
