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
    let gateway = Gateway::start_bare(&upstream, &config);
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

/// Whether a caller is told to get another token: else clients would never refresh theirs.
fn is_refused(answer: &Message) -> bool {
    let challenge = answer.header("www-authenticate").unwrap_or_default();
    (answer.status(), answer.code().as_str()) == (401, "credential_invalid")
        && challenge.starts_with("Bearer error=\"invalid_token\"")
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
    assert_eq!(state(&token("alice", 4, EARLIER)), 401);
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
        ("not valid yet", with("nbf", (LATER - 1).into())),
        ("no token", "nonsense".into()),
        ("a critical header", {
            let crit = Some(vec!["exp".to_owned()]);
            let head = Header { crit, ..Header::new(Algorithm::HS256) };
            encode(&head, &good, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap()
        }),
    ] {
        let answer = post(&gateway, &key, &token);
        assert!(is_refused(&answer), "{what}: {} {}", answer.status(), answer.text());
    }
    let without = gateway.post("/pay", &key, "{}");
    assert_eq!((without.status(), without.header("www-authenticate")), (401, Some("Bearer")));
    // A refreshed token would not have it either.
    for token in [with("sub", Value::Null), with("sub", "".into())] {
        let answer = post(&gateway, &key, &token);
        assert_eq!((answer.status(), answer.code().as_str()), (400, "scope_unsafe"));
    }
    let (one, two) =
        (format!("Bearer {genuine}"), format!("Bearer {}", signed(&exchanged, SECRET)));
    let both = [("Authorization", one.as_str()), ("Authorization", two.as_str())];
    assert_eq!(gateway.post_with("/pay", &key, "{}", &both).code(), "scope_unsafe", "with two");
    assert_eq!(upstream.count("/pay"), 1);
    assert_eq!(gateway.records(), 1);
}

#[test]
fn where_rules_are_only_observed_no_token_is_judged() {
    let upstream = Upstream::start();
    let config = format!(
        "[jwt]\nalgorithms = [\"HS256\"]\nsecret = \"{SECRET}\"\n\
         [defaults]\nscope = [\"jwt:sub\"]\nmode = \"observe\"\n"
    );
    let gateway = Gateway::start_bare(&upstream, &config);
    assert_eq!(post(&gateway, &key(), "nonsense").status(), 201);
    assert_eq!(gateway.post("/pay", &key(), "{}").status(), 201);
    assert_eq!(upstream.count("/pay"), 2);
}

#[test]
fn clocks_may_differ_by_the_leeway() {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let expired = signed(&json!({"sub": "alice", "exp": now - 600}), SECRET);
    let settings = format!("algorithms = [\"HS256\"]\nsecret = \"{SECRET}\"");
    let (_upstream, strict) = scoped(&settings);
    assert!(is_refused(&post(&strict, &key(), &expired)));
    let (_upstream, lenient) = scoped(&format!("{settings}\nleeway = \"1h\""));
    assert_eq!(post(&lenient, &key(), &expired).status(), 201);
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
