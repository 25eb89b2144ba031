//! Is a verified claim a caller's name, and nothing else?

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::kit::{Gateway, Message, Upstream, key, request, send};

const SECRET: &str = "a secret that only the issuer and the gateway have";

/// In the year 2096, and in 1970.
const LATER: u64 = 4_000_000_000;
const EARLIER: u64 = 1;

fn scoped(jwt: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::start();
    let config = format!("[jwt]\n{jwt}\n[defaults]\nscope = [\"jwt:sub\"]\n");
    let gateway = Gateway::start(&upstream, &config);
    (upstream, gateway)
}

fn signed(claims: &Value, secret: &str) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes());
    encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
}

fn post(gateway: &Gateway, key: &str, token: &str) -> Message {
    let bearer = format!("Bearer {token}");
    gateway.post_with("/pay", key, "{}", &[("Authorization", &bearer)])
}

fn is_refused(answer: &Message) -> bool {
    (answer.status(), answer.code().as_str()) == (400, "scope_unsafe")
}

#[test]
fn a_refreshed_token_is_the_same_caller() {
    let (upstream, gateway) = scoped(&format!("algorithms = [\"HS256\"]\nsecret = \"{SECRET}\""));
    let token = |sub: &str, number: u32, exp: u64| {
        signed(&json!({"sub": sub, "jti": number, "exp": exp}), SECRET)
    };
    let key = key();
    let first = post(&gateway, &key, &token("alice", 1, LATER));
    assert_eq!(first.status(), 201, "{}", first.text());
    let again = post(&gateway, &key, &token("alice", 2, LATER + 1));
    assert!(again.is_replay() && again.body == first.body, "{}", again.text());
    let other = post(&gateway, &key, &token("bob", 3, LATER));
    assert!(other.status() == 201 && !other.is_replay(), "another caller's key is another key");
    assert_eq!(upstream.count("/pay"), 2);

    // Her own key, and nobody else's, can be asked after with either token.
    let state = |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Idempotency-Key", key.as_str()), ("Authorization", &bearer)];
        let page = request("GET", "/.well-known/idempotency/key", &headers, b"");
        send(gateway.address, &page).status()
    };
    assert_eq!(state(&token("alice", 4, LATER)), 200);
    assert_eq!(state(&token("carol", 4, LATER)), 404);
    assert_eq!(state(&token("alice", 4, EARLIER)), 400);
}

#[test]
fn what_does_not_verify_names_nobody() {
    let (upstream, gateway) = scoped(&format!(
        "algorithms = [\"HS256\"]\nsecret = \"{SECRET}\"\nissuer = \"us\"\naudience = \"api\""
    ));
    let good = json!({"sub": "alice", "exp": LATER, "iss": "us", "aud": "api"});
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        signed(&claims, SECRET)
    };
    let part = |document: &Value| URL_SAFE_NO_PAD.encode(document.to_string());
    let none = |alg: &str| format!("{}.{}.", part(&json!({"alg": alg, "typ": "JWT"})), part(&good));
    let genuine = signed(&good, SECRET);
    let signature = genuine.rsplit_once('.').unwrap().1;
    let exchanged = json!({"sub": "mallory", "exp": LATER, "iss": "us", "aud": "api"});
    let key = key();
    assert_eq!(post(&gateway, &key, &genuine).status(), 201);
    for (what, token) in [
        ("forged", signed(&good, "another secret")),
        ("other claims", {
            let head = genuine.split('.').next().unwrap();
            format!("{head}.{}.{signature}", part(&exchanged))
        }),
        ("alg none", none("none")),
        ("alg None", none("None")),
        ("no signature", genuine.rsplit_once('.').unwrap().0.to_owned() + "."),
        ("expired", with("exp", EARLIER.into())),
        ("never expires", with("exp", Value::Null)),
        ("another issuer", with("iss", "them".into())),
        ("another audience", with("aud", "elsewhere".into())),
        ("no claim", with("sub", Value::Null)),
        ("an empty claim", with("sub", "".into())),
        ("no token", "nonsense".into()),
    ] {
        let answer = post(&gateway, &key, &token);
        assert!(is_refused(&answer), "{what}: {} {}", answer.status(), answer.text());
    }
    assert!(is_refused(&gateway.post("/pay", &key, "{}")), "without any");
    let (one, two) =
        (format!("Bearer {genuine}"), format!("Bearer {}", signed(&exchanged, SECRET)));
    let both = [("Authorization", one.as_str()), ("Authorization", two.as_str())];
    assert!(is_refused(&gateway.post_with("/pay", &key, "{}", &both)), "with two");
    assert_eq!(upstream.count("/pay"), 1);
    assert_eq!(gateway.records(), 1);
}

#[test]
fn a_public_key_verifies_and_never_signs() {
    let pair = rcgen::KeyPair::generate().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("public.pem");
    std::fs::write(&file, pair.public_key_pem()).unwrap();
    let (upstream, gateway) =
        scoped(&format!("algorithms = [\"ES256\"]\npublic_key_file = \"{}\"", file.display()));
    let claims = json!({"sub": "alice", "exp": LATER});
    let private = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
    let genuine = encode(&Header::new(Algorithm::ES256), &claims, &private).unwrap();
    let key = key();
    assert_eq!(post(&gateway, &key, &genuine).status(), 201);
    // Anybody has the public key, and could sign with it if it were taken for a shared secret.
    assert!(is_refused(&post(&gateway, &key, &signed(&claims, &pair.public_key_pem()))));
    assert_eq!(upstream.count("/pay"), 1);
}
