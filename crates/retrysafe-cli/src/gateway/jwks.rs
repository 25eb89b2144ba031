//! Which keys verify tokens, and where do they come from?
//!
//! A shared secret, one public key in a file, or a set of public keys (JWKS, RFC 7517) from a file or
//! from a key server. A public key is never a shared secret, and each key counts for its own
//! algorithms only, so that no token can choose how it is judged.
//!
//! Requests never wait for the key server. A task of its own reads the set every
//! [`READ_EVERY`], twice within `keys_max_age` where that is short, and sooner when a token names a key that is not known: the issuer may have changed
//! its keys. Between two readings are at least [`PAUSE`], however many strange tokens come. While the
//! server is down the keys that were read last go on counting, for `keys_max_age`; after that, and
//! before the first reading, nobody can say whether a token verifies, and callers are told to come
//! back (`keys_unavailable`).

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;
use tokio::sync::Notify;

use super::connect::Connector;
use super::single_key::{public_key, secret_key};
use crate::config::{self, Complaint, JwtFile, read_secret, unreadable};

/// How often a key server is asked without being told of a strange key: a key that the issuer has
/// withdrawn goes on counting for so long.
const READ_EVERY: Duration = Duration::from_secs(300);

/// The least time between two readings. Tokens of strangers may name any key they like, and must not
/// make us a burden to the key server.
const PAUSE: Duration = Duration::from_secs(5);

/// How long one reading may take.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

/// The largest key set that is read. Those of large issuers have a few kilobytes.
const SET_BYTES_MAX: usize = 256 << 10;

/// The most keys of a set that are used: a token without a key's name is tried with each.
const KEYS_MAX: usize = 64;

/// How long keys go on counting while their server is down, unless it is set.
const KEYS_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The least `keys_max_age`: the keys are read twice within it, or they would run out between two readings.
const KEYS_MAX_AGE_MIN: Duration = Duration::from_secs(2 * PAUSE.as_secs());

/// Algorithms with a public key, all of which a key set may be used with.
const PUBLIC: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Where keys come from, and which are known now.
pub(crate) struct KeySource {
    set: ArcSwap<KeySet>,
    /// None where the keys do not change while the program runs.
    server: Option<KeyServer>,
}

/// The keys that are known, and since when.
#[derive(Default)]
struct KeySet {
    keys: Vec<VerifyingKey>,
    read_at: Option<Instant>,
}

/// One key, and what it may be used for.
#[derive(Clone)]
struct VerifyingKey {
    /// None for a key that is configured by itself: it counts for every token.
    name: Option<String>,
    algorithms: Vec<Algorithm>,
    key: Arc<DecodingKey>,
}

struct KeyServer {
    url: String,
    connector: Connector,
    host: String,
    path: String,
    algorithms: Vec<Algorithm>,
    keys_max_age: Duration,
    /// Wakes the task that reads.
    wanted: Arc<Notify>,
}

/// What is known about the key of a token.
pub(crate) enum Found {
    /// One of these, if any.
    Keys(Vec<Arc<DecodingKey>>),
    /// There is no such key.
    Nothing,
    /// Nobody can say before the key server has been asked.
    NotYet,
}

impl KeySource {
    /// The keys of a `[jwt]` table. Those of a server are read from now on, by a task that ends with
    /// the last user of them.
    ///
    /// # Errors
    ///
    /// What is wrong with the table or its files.
    pub(crate) fn new(jwt: &JwtFile, algorithms: &[Algorithm]) -> Result<Arc<Self>, Complaint> {
        if jwt.keys_max_age.is_some_and(|length| length.0 < KEYS_MAX_AGE_MIN) {
            let what = format!(
                "is less than {}s: keys would run out between two readings of `jwks_url`",
                KEYS_MAX_AGE_MIN.as_secs()
            );
            return Err(Complaint::new("jwt.keys_max_age", what));
        }
        let JwtFile { secret, secret_file, public_key_file, jwks_file, jwks_url, .. } = jwt;
        let (setting, source) = match (secret, secret_file, public_key_file, jwks_file, jwks_url) {
            (Some(secret), None, None, None, None) => {
                ("jwt.secret", secret_key(secret, algorithms).map(|key| Self::of(key, algorithms)))
            }
            (None, Some(path), None, None, None) => {
                let key = read_secret(path).and_then(|text| secret_key(&text, algorithms));
                ("jwt.secret_file", key.map(|key| Self::of(key, algorithms)))
            }
            (None, None, Some(path), None, None) => {
                let key = public_key(path, algorithms);
                ("jwt.public_key_file", key.map(|key| Self::of(key, algorithms)))
            }
            (None, None, None, Some(path), None) => {
                ("jwt.jwks_file", Self::read_file(path, algorithms))
            }
            (None, None, None, None, Some(url)) => {
                let server = in_a_set(algorithms).and_then(|all| KeyServer::new(jwt, url, all));
                ("jwt.jwks_url", server.map(Self::read_from))
            }
            (_, _, _, _, _) => {
                let what = "set one of `secret`, `secret_file`, `public_key_file`, `jwks_file` and \
                            `jwks_url`";
                ("jwt", Err(what.to_owned()))
            }
        };
        source.map_err(|what| Complaint::new(setting, what))
    }

    /// One key, for every token.
    fn of(key: DecodingKey, algorithms: &[Algorithm]) -> Arc<Self> {
        let key = Arc::new(key);
        Self::fixed(vec![VerifyingKey { name: None, algorithms: algorithms.to_vec(), key }])
    }

    fn read_file(path: &str, algorithms: &[Algorithm]) -> Result<Arc<Self>, String> {
        let algorithms = in_a_set(algorithms)?;
        let text = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
        let keys = read_set(&text, &algorithms).map_err(|why| format!("{path}: {why}"))?;
        Ok(Self::fixed(keys))
    }

    fn fixed(keys: Vec<VerifyingKey>) -> Arc<Self> {
        let set = ArcSwap::from_pointee(KeySet { keys, read_at: None });
        Arc::new(Self { set, server: None })
    }

    /// What is known about the key that a token names.
    pub(crate) fn find(&self, name: Option<&str>, algorithm: Algorithm) -> Found {
        let set = self.set.load();
        let fits = |key: &&VerifyingKey| {
            let is_named = match (&key.name, name) {
                (Some(known), Some(name)) => known == name,
                (None, _) | (_, None) => true,
            };
            is_named && key.algorithms.contains(&algorithm)
        };
        let keys: Vec<_> = set.keys.iter().filter(fits).map(|key| Arc::clone(&key.key)).collect();
        let Some(server) = &self.server else {
            return if keys.is_empty() { Found::Nothing } else { Found::Keys(keys) };
        };
        match set.read_at.map(|at| at.elapsed()) {
            Some(age) if age < server.keys_max_age && !keys.is_empty() => Found::Keys(keys),
            // It was looked for just now, and is not there.
            Some(age) if age < PAUSE && keys.is_empty() => Found::Nothing,
            Some(_) | None => {
                server.wanted.notify_one();
                Found::NotYet
            }
        }
    }

    fn read_from(server: KeyServer) -> Arc<Self> {
        let source = Self { set: ArcSwap::default(), server: Some(server) };
        let source = Arc::new(source);
        // There is a runtime wherever requests are served; a mere check of the settings needs none.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(keep_reading(Arc::downgrade(&source)));
        }
        source
    }
}

/// Reads the keys of a server for as long as anybody uses them.
async fn keep_reading(source: Weak<KeySource>) {
    loop {
        let (wanted, read_every) = {
            let Some(source) = source.upgrade() else { return };
            let Some(server) = &source.server else { return };
            source.read_once(server).await;
            (Arc::clone(&server.wanted), READ_EVERY.min(server.keys_max_age / 2))
        };
        // Nothing is held while waiting, so that a reload ends this task.
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            () = wanted.notified() => {}
            () = tokio::time::sleep(read_every.saturating_sub(PAUSE)) => {}
        }
    }
}

impl KeySource {
    async fn read_once(&self, server: &KeyServer) {
        let read = tokio::time::timeout(READ_TIME_MAX, server.read()).await;
        match read.unwrap_or_else(|_| Err(format!("no answer within {READ_TIME_MAX:?}"))) {
            Ok(keys) => {
                tracing::info!(url = server.url, keys = keys.len(), "jwks_read");
                self.set.store(Arc::new(KeySet { keys, read_at: Some(Instant::now()) }));
            }
            Err(why) => tracing::error!(
                url = server.url,
                why,
                keys_max_age_seconds = server.keys_max_age.as_secs(),
                "jwks_read_failed: keys that were read before go on counting until keys_max_age"
            ),
        }
    }
}

impl KeyServer {
    fn new(jwt: &JwtFile, url: &str, algorithms: Vec<Algorithm>) -> Result<Self, String> {
        let uri = url.parse::<http::Uri>().map_err(|error| error.to_string())?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let base = url.strip_suffix(path.as_str()).unwrap_or(url);
        let server = config::server(base).ok_or(
            "is not a URL such as https://id.example/jwks.json, without a name and a password",
        )?;
        let authorities = jwt.authorities.as_deref().map(Path::new);
        let connector = Connector::new(&server, authorities).map_err(|error| error.to_string())?;
        Ok(Self {
            url: url.to_owned(),
            connector,
            host: server.authority.to_string(),
            path,
            algorithms,
            keys_max_age: jwt.keys_max_age.map_or(KEYS_MAX_AGE, |length| length.0),
            wanted: Arc::default(),
        })
    }

    /// Asks for the set once. Redirects are not followed: a key server says where it is.
    async fn read(&self) -> Result<Vec<VerifyingKey>, String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let request = Request::get(&self.path)
            .header(header::HOST, &self.host)
            .header(header::ACCEPT, "application/jwk-set+json, application/json")
            .body(Empty::<Bytes>::new())
            .map_err(|error| told(&error))?;
        let stream = self.connector.connect().await.map_err(|error| told(&error))?;
        stream.exchange().asked(false);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| told(&error))?;
        let connection = tokio::spawn(async move {
            // Whatever goes wrong here is told to whoever waits for the answer.
            let _ = connection.await;
        });
        let answer = sender.send_request(request).await.map_err(|error| told(&error));
        let read = async {
            let answer = answer?;
            if answer.status() != StatusCode::OK {
                return Err(format!("it answered {}", answer.status()));
            }
            let body = Limited::new(answer.into_body(), SET_BYTES_MAX).collect().await;
            read_set(&body.map_err(|error| error.to_string())?.to_bytes(), &self.algorithms)
        };
        let read = read.await;
        connection.abort();
        read
    }
}

/// The algorithms that keys of a set may be used with: those that are configured, or all there are.
fn in_a_set(algorithms: &[Algorithm]) -> Result<Vec<Algorithm>, String> {
    match algorithms {
        [] => Ok(PUBLIC.to_vec()),
        // A public key taken for a shared secret would let anybody sign.
        some if some.iter().all(|algorithm| PUBLIC.contains(algorithm)) => Ok(some.to_vec()),
        _ => {
            Err("has public keys only, and an HS algorithm of jwt.algorithms needs a secret".into())
        }
    }
}

/// The keys of a set that sign. Others, and kinds that are not known here, are left out: an issuer may
/// publish them beside its own.
fn read_set(text: &[u8], algorithms: &[Algorithm]) -> Result<Vec<VerifyingKey>, String> {
    let set: Value =
        serde_json::from_slice(text).map_err(|error| format!("no key set: {error}"))?;
    let listed =
        set.get("keys").and_then(Value::as_array).ok_or("no key set: `keys` is no list")?;
    let known = listed.iter().filter_map(|key| serde_json::from_value::<Jwk>(key.clone()).ok());
    let keys: Vec<_> = known.filter_map(|jwk| verifying(&jwk, algorithms)).take(KEYS_MAX).collect();
    if keys.is_empty() {
        Err("the key set has no public key for these algorithms".into())
    } else {
        Ok(keys)
    }
}

fn verifying(jwk: &Jwk, algorithms: &[Algorithm]) -> Option<VerifyingKey> {
    let signs =
        jwk.common.public_key_use.as_ref().is_none_or(|used| *used == PublicKeyUse::Signature);
    let of_its_kind = if matches!(jwk.algorithm, AlgorithmParameters::RSA(_)) {
        PUBLIC.get(..6)?
    } else if matches!(jwk.algorithm, AlgorithmParameters::OctetKeyPair(_)) {
        &[Algorithm::EdDSA][..]
    } else if let AlgorithmParameters::EllipticCurve(key) = &jwk.algorithm {
        // No algorithm that is known here uses the other curves.
        if key.curve == EllipticCurve::P256 {
            &[Algorithm::ES256]
        } else if key.curve == EllipticCurve::P384 {
            &[Algorithm::ES384]
        } else {
            return None;
        }
    } else {
        // A shared secret does not belong into a set that is published.
        return None;
    };
    // The key's own word about its algorithm narrows it down further.
    let own =
        jwk.common.key_algorithm.as_ref().map(|own| own.to_string().parse::<Algorithm>().ok());
    let fits = |algorithm: &&Algorithm| {
        algorithms.contains(algorithm) && own.is_none_or(|own| own == Some(**algorithm))
    };
    let algorithms: Vec<_> = of_its_kind.iter().filter(fits).copied().collect();
    let key = Arc::new(DecodingKey::from_jwk(jwk).ok()?);
    let name = Some(jwk.common.key_id.clone().unwrap_or_default());
    (signs && !algorithms.is_empty()).then_some(VerifyingKey { name, algorithms, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RSA: &str = r#""kty":"RSA","e":"AQAB","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw""#;
    const EC: &str = r#""kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0""#;

    fn set(keys: &[String]) -> String {
        format!("{{\"keys\":[{}]}}", keys.join(","))
    }

    #[test]
    fn each_key_counts_for_its_own_algorithms_only() {
        let text = set(&[
            format!("{{{RSA},\"kid\":\"any\"}}"),
            format!("{{{RSA},\"kid\":\"one\",\"alg\":\"RS512\"}}"),
            format!("{{{RSA},\"kid\":\"enc\",\"use\":\"enc\"}}"),
            format!("{{{EC},\"kid\":\"ec\",\"use\":\"sig\"}}"),
            "{\"kty\":\"oct\",\"k\":\"c2VjcmV0\",\"kid\":\"secret\",\"alg\":\"HS256\"}".into(),
            "{\"kty\":\"new\",\"kid\":\"unknown\"}".into(),
        ]);
        let keys = read_set(text.as_bytes(), &PUBLIC).unwrap();
        let source =
            KeySource { set: ArcSwap::from_pointee(KeySet { keys, read_at: None }), server: None };
        let count = |name, algorithm| match source.find(name, algorithm) {
            Found::Keys(keys) => keys.len(),
            Found::Nothing => 0,
            Found::NotYet => panic!("there is no server"),
        };
        assert_eq!(count(Some("any"), Algorithm::RS256), 1);
        assert_eq!(count(Some("one"), Algorithm::RS256), 0);
        assert_eq!(count(Some("one"), Algorithm::RS512), 1);
        assert_eq!(count(Some("ec"), Algorithm::ES256), 1);
        assert_eq!(count(Some("ec"), Algorithm::RS256), 0);
        assert_eq!(count(None, Algorithm::RS512), 2, "a token may leave its key's name out");
        for (name, algorithm) in [
            ("any", Algorithm::HS256),
            ("secret", Algorithm::HS256),
            ("enc", Algorithm::RS256),
            ("none", Algorithm::RS256),
        ] {
            assert_eq!(count(Some(name), algorithm), 0, "{name}");
        }
        assert!(read_set(text.as_bytes(), &[Algorithm::EdDSA]).is_err(), "no key for it");
        for bad in ["", "{}", "[]", "{\"keys\":{}}", "{\"keys\":[]}"] {
            assert!(read_set(bad.as_bytes(), &PUBLIC).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_public_key_is_never_a_shared_secret() {
        let jwt = |algorithms: &[&str], secret: bool| JwtFile {
            algorithms: algorithms.iter().map(|name| (*name).into()).collect(),
            secret: secret.then(|| "a secret of at least 32 bytes, as HS256 needs it".into()),
            jwks_file: (!secret).then(|| "/nonexistent".into()),
            ..JwtFile::default()
        };
        for (names, secret) in [
            (&["RS256"][..], true),
            (&["HS256", "RS256"], true),
            (&["HS256"], false),
            (&["RS256", "HS256"], false),
        ] {
            let algorithms: Vec<Algorithm> =
                names.iter().map(|name| name.parse().unwrap()).collect();
            let told = KeySource::new(&jwt(names, secret), &algorithms).err().unwrap().to_string();
            assert!(!told.contains("no such file"), "refused before it is read: {told}");
        }
        let two = JwtFile { jwks_url: Some("http://x/".into()), ..jwt(&[], true) };
        assert!(KeySource::new(&two, &[]).is_err(), "one source of keys");
        let none = JwtFile { algorithms: vec!["HS256".into()], ..JwtFile::default() };
        assert!(KeySource::new(&none, &[Algorithm::HS256]).is_err());
    }
}
