//! Which claims of a token are proven?
//!
//! Only a token that verifies under `[jwt]` counts: algorithm, signature, expiry, and issuer and
//! audience where they are configured. Anything else proves nothing about its caller.

use std::path::Path;

use http::header::{self, HeaderMap};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::Value;

use crate::config::{JwtFile, read_secret};

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
    pub(crate) fn new(jwt: &JwtFile) -> Result<Self, String> {
        let algorithms = jwt
            .algorithms
            .iter()
            .map(|name| {
                name.parse::<Algorithm>().map_err(|_| format!("jwt: no algorithm {name:?}"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let first = *algorithms.first().ok_or("jwt: `algorithms` is empty")?;
        let secret = match (&jwt.secret, &jwt.secret_file) {
            (Some(secret), None) => Some(secret.clone()),
            (None, Some(path)) => Some(read_secret(Path::new(path))?),
            (None, None) => None,
            (Some(_), Some(_)) => return Err("jwt: `secret` and `secret_file` are both set".into()),
        };
        let key = match (secret, &jwt.public_key_file) {
            (Some(secret), None) => DecodingKey::from_secret(secret.as_bytes()),
            (None, Some(path)) => public_key(first, path)?,
            (Some(_), Some(_)) | (None, None) => {
                return Err("jwt: set either `secret` or `public_key_file`".into());
            }
        };
        let is_shared = |algorithm: &Algorithm| {
            matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
        };
        // A public key taken for a shared secret would let anybody sign.
        if algorithms.iter().any(|algorithm| is_shared(algorithm) != jwt.public_key_file.is_none())
        {
            return Err("jwt: HS algorithms need a secret, the others a public key".into());
        }
        let mut validation = Validation::new(first);
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

fn public_key(algorithm: Algorithm, path: &str) -> Result<DecodingKey, String> {
    let pem = std::fs::read(path).map_err(|error| format!("jwt: {path}: {error}"))?;
    match algorithm {
        Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_pem(&pem),
        Algorithm::EdDSA => DecodingKey::from_ed_pem(&pem),
        Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => DecodingKey::from_rsa_pem(&pem),
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
            return Err("jwt: HS algorithms need a secret, the others a public key".into());
        }
        // The library may learn more of them than this program knows keys for.
        other => return Err(format!("jwt: no public keys for {other:?}")),
    }
    .map_err(|error| format!("jwt: {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    fn verifier() -> Verifier {
        let jwt = JwtFile {
            algorithms: vec!["HS256".into()],
            secret: Some("k".into()),
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
        assert_eq!(claim(good.clone(), "k", "sub").as_deref(), Some("s:alice"));
        assert_eq!(claim(good.clone(), "k", "org").as_deref(), Some("n:7"));
        assert_eq!(claim(good.clone(), "k", "none"), None);
        assert_eq!(claim(good, "other", "sub"), None, "signature");
        assert_eq!(claim(json!({"sub": "a", "exp": 1, "iss": "me"}), "k", "sub"), None, "expired");
        assert_eq!(claim(json!({"sub": "a", "exp": far, "iss": "x"}), "k", "sub"), None, "issuer");
        assert_eq!(verifier().claim(&HeaderMap::new(), "sub"), None);
    }

    #[test]
    fn a_public_key_is_never_a_shared_secret() {
        for jwt in [
            JwtFile {
                algorithms: vec!["RS256".into()],
                secret: Some("k".into()),
                ..Default::default()
            },
            JwtFile { algorithms: vec![], secret: Some("k".into()), ..Default::default() },
            JwtFile {
                algorithms: vec!["none".into()],
                secret: Some("k".into()),
                ..Default::default()
            },
            JwtFile { algorithms: vec!["HS256".into()], ..Default::default() },
        ] {
            assert!(Verifier::new(&jwt).is_err());
        }
    }
}
