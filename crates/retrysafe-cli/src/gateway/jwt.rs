//! Which claims of a token are proven?
//!
//! Only a token that verifies under `[jwt]` counts: algorithm, signature, expiry, and issuer and
//! audience where they are configured. Anything else proves nothing about its caller.

use http::header::{self, HeaderMap};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::Value;

use crate::config::{Complaint, JwtFile, read_secret, unreadable};

/// Verifies tokens.
pub(crate) struct Verifier {
    key: DecodingKey,
    validation: Validation,
}

impl Verifier {
    /// The verifier of a `[jwt]` table.
    ///
    /// # Errors
    ///
    /// What is wrong with the table or its files.
    pub(crate) fn new(jwt: &JwtFile) -> Result<Self, Vec<Complaint>> {
        let mut wrong = Vec::new();
        let algorithms = algorithms(jwt, &mut wrong);
        let key = key(jwt, &algorithms, &mut wrong);
        let (Some(first), Some(key), true) = (algorithms.first(), key, wrong.is_empty()) else {
            return Err(wrong);
        };
        let mut validation = Validation::new(*first);
        validation.algorithms = algorithms;
        validation.required_spec_claims = ["exp".to_owned()].into();
        match &jwt.issuer {
            Some(issuer) => validation.set_issuer(&[issuer]),
            None => validation.iss = None,
        }
        match &jwt.audience {
            Some(audience) => validation.set_audience(&[audience]),
            None => validation.validate_aud = false,
        }
        Ok(Self { key, validation })
    }

    /// A claim of the request's bearer token, if the token verifies and has it.
    pub(crate) fn claim(&self, headers: &HeaderMap, claim: &str) -> Option<String> {
        let mut lines = headers.get_all(header::AUTHORIZATION).iter();
        let line = lines.next()?.to_str().ok()?;
        if lines.next().is_some() {
            return None;
        }
        let (kind, token) = line.split_once(' ')?;
        if !kind.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let token =
            jsonwebtoken::decode::<Value>(token.trim(), &self.key, &self.validation).ok()?;
        match token.claims.get(claim)? {
            Value::String(text) if !text.is_empty() => Some(format!("s:{text}")),
            Value::Number(number) => Some(format!("n:{number}")),
            Value::String(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }
}

fn algorithms(jwt: &JwtFile, wrong: &mut Vec<Complaint>) -> Vec<Algorithm> {
    const SETTING: &str = "jwt.algorithms";
    if jwt.algorithms.is_empty() {
        wrong.push(Complaint::new(
            SETTING,
            "is not set: name those that tokens have, such as RS256",
        ));
    }
    let read = jwt.algorithms.iter().filter_map(|name| {
        let read = name.parse::<Algorithm>();
        let what = || Complaint::new(SETTING, format!("{name:?} is no algorithm of signed tokens"));
        read.map_err(|_| wrong.push(what())).ok()
    });
    read.collect()
}

/// The key that the settings name. A public key taken for a shared secret would let anybody sign, so
/// that every algorithm must be of the key's kind.
fn key(jwt: &JwtFile, algorithms: &[Algorithm], wrong: &mut Vec<Complaint>) -> Option<DecodingKey> {
    let (setting, key) = match (&jwt.secret, &jwt.secret_file, &jwt.public_key_file) {
        (Some(secret), None, None) => ("jwt.secret", secret_key(secret, algorithms)),
        (None, Some(path), None) => {
            ("jwt.secret_file", read_secret(path).and_then(|text| secret_key(&text, algorithms)))
        }
        (None, None, Some(path)) => ("jwt.public_key_file", public_key(path, algorithms)),
        (_, _, _) => {
            ("jwt", Err("set one of `secret`, `secret_file` and `public_key_file`".to_owned()))
        }
    };
    key.map_err(|what| wrong.push(Complaint::new(setting, what))).ok()
}

/// How many bytes a shared secret needs: as many as the digest has (RFC 7518 §3.2). None for the
/// algorithms of public keys.
fn secret_bytes_min(algorithm: Algorithm) -> Option<usize> {
    match algorithm {
        Algorithm::HS256 => Some(32),
        Algorithm::HS384 => Some(48),
        Algorithm::HS512 => Some(64),
        Algorithm::ES256
        | Algorithm::ES384
        | Algorithm::EdDSA
        | Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => None,
        // The library may learn more of them; none of its later ones has a shared secret.
        _ => None,
    }
}

fn secret_key(secret: &str, algorithms: &[Algorithm]) -> Result<DecodingKey, String> {
    for algorithm in algorithms {
        match secret_bytes_min(*algorithm) {
            None => return Err(format!("{algorithm:?} needs `public_key_file`, not a secret")),
            Some(least) if secret.len() < least => {
                return Err(format!(
                    "is shorter than the {least} bytes that {algorithm:?} needs; make one with `openssl rand -hex {}`",
                    least / 2
                ));
            }
            Some(_) => {}
        }
    }
    Ok(DecodingKey::from_secret(secret.as_bytes()))
}

fn public_key(path: &str, algorithms: &[Algorithm]) -> Result<DecodingKey, String> {
    let pem = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
    for algorithm in algorithms {
        if secret_bytes_min(*algorithm).is_some() {
            return Err(format!("{algorithm:?} needs `secret` or `secret_file`, not a public key"));
        }
    }
    let first = algorithms.first().ok_or("no algorithm says which kind of key it is")?;
    match first {
        Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_pem(&pem),
        Algorithm::EdDSA => DecodingKey::from_ed_pem(&pem),
        Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => DecodingKey::from_rsa_pem(&pem),
        // The library may learn more of them than this program knows keys for.
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 | _ => {
            return Err(format!("{path} cannot be read as a key for {first:?}"));
        }
    }
    .map_err(|error| format!("{path} holds no public key for {first:?} in PEM form: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    const SECRET: &str = "a secret of at least 32 bytes, as HS256 needs it";

    fn verifier() -> Verifier {
        let jwt = JwtFile {
            algorithms: vec!["HS256".into()],
            secret: Some(SECRET.into()),
            issuer: Some("me".into()),
            ..JwtFile::default()
        };
        Verifier::new(&jwt).unwrap()
    }

    fn claim(claims: Value, secret: &str, name: &str) -> Option<String> {
        let key = EncodingKey::from_secret(secret.as_bytes());
        let token = encode(&Header::default(), &claims, &key).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
        verifier().claim(&headers, name)
    }

    #[test]
    fn only_a_verified_token_has_claims() {
        let far = 4_000_000_000_u64;
        let good = json!({"sub": "alice", "org": 7, "exp": far, "iss": "me"});
        assert_eq!(claim(good.clone(), SECRET, "sub").as_deref(), Some("s:alice"));
        assert_eq!(claim(good.clone(), SECRET, "org").as_deref(), Some("n:7"));
        assert_eq!(claim(good.clone(), SECRET, "none"), None);
        assert_eq!(claim(good, "other", "sub"), None, "signature");
        assert_eq!(
            claim(json!({"sub": "a", "exp": 1, "iss": "me"}), SECRET, "sub"),
            None,
            "expired"
        );
        assert_eq!(
            claim(json!({"sub": "a", "exp": far, "iss": "x"}), SECRET, "sub"),
            None,
            "issuer"
        );
        assert_eq!(verifier().claim(&HeaderMap::new(), "sub"), None);
    }

    #[test]
    fn a_public_key_is_never_a_shared_secret() {
        let told = |algorithms: &[&str], secret: Option<&str>| {
            let algorithms = algorithms.iter().map(|name| (*name).to_owned()).collect();
            let secret = secret.map(ToOwned::to_owned);
            let jwt = JwtFile { algorithms, secret, ..JwtFile::default() };
            let wrong = Verifier::new(&jwt).err().unwrap();
            wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert!(told(&["RS256"], Some(SECRET)).contains("public_key_file"));
        assert!(told(&[], Some(SECRET)).contains("`jwt.algorithms`: is not set"));
        assert!(told(&["none"], Some(SECRET)).contains("\"none\" is no algorithm"));
        assert!(told(&["HS256"], None).contains("`secret_file`"));
        let both = told(&["none", "HS512"], Some(SECRET));
        assert!(both.contains("\"none\"") && both.contains("64 bytes"), "{both}");
    }

    #[test]
    fn a_short_secret_is_refused() {
        for (algorithm, least) in [("HS256", 32), ("HS384", 48), ("HS512", 64)] {
            let verifier = |length: usize| {
                let secret = Some("s".repeat(length));
                let algorithms = vec![algorithm.to_owned()];
                Verifier::new(&JwtFile { algorithms, secret, ..JwtFile::default() })
            };
            assert!(verifier(least).is_ok(), "{algorithm}");
            let told = verifier(least - 1).err().unwrap()[0].to_string();
            assert!(told.contains("jwt.secret") && told.contains("openssl"), "{told}");
        }
    }
}
