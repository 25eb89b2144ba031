//! Which claims of a token are proven?
//!
//! Only a token that verifies under `[jwt]` counts: its algorithm fits its key, its signature, expiry
//! (`exp`) and beginning (`nbf`) hold, so do issuer and audience where they are configured, and it
//! has no critical header that is not understood here. Anything else proves nothing about its caller.

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation};
use retrysafe_core::problem::{Refusal, TokenFault};
use retrysafe_core::wire::ASK_AGAIN_SOON;
use serde_json::Value;

use super::jwks::{Found, KeySource};
use crate::config::{Complaint, JwtFile};

/// How far clocks may differ unless it is set.
const LEEWAY: Duration = Duration::from_secs(60);

/// Verifies tokens.
pub(crate) struct Verifier {
    keys: Arc<KeySource>,
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
        let keys = KeySource::new(jwt, &algorithms).map_err(|what| wrong.push(what)).ok();
        let (Some(keys), true) = (keys, wrong.is_empty()) else { return Err(wrong) };
        let mut validation = Validation::new(Algorithm::default());
        validation.required_spec_claims = ["exp".to_owned()].into();
        validation.validate_nbf = true;
        validation.leeway = jwt.leeway.map_or(LEEWAY, |length| length.0).as_secs();
        match &jwt.issuer {
            Some(issuer) => validation.set_issuer(&[issuer]),
            None => validation.iss = None,
        }
        match &jwt.audience {
            Some(audience) => validation.set_audience(&[audience]),
            None => validation.validate_aud = false,
        }
        Ok(Self { keys, validation })
    }

    /// A claim of a token that verifies, if it has the claim as a text or a number.
    ///
    /// # Errors
    ///
    /// What is wrong with the token, or that nobody can say yet.
    pub(crate) fn claim(&self, token: &[u8], claim: &str) -> Result<Option<String>, Refusal> {
        let claims = self.claims(token)?;
        Ok(match claims.get(claim) {
            Some(Value::String(text)) if !text.is_empty() => Some(format!("s:{text}")),
            Some(Value::Number(number)) => Some(format!("n:{number}")),
            Some(
                Value::String(_)
                | Value::Null
                | Value::Bool(_)
                | Value::Array(_)
                | Value::Object(_),
            )
            | None => None,
        })
    }

    fn claims(&self, token: &[u8]) -> Result<Value, Refusal> {
        let wrong = || Refusal::CredentialInvalid(TokenFault::Wrong);
        let head = jsonwebtoken::decode_header(token).map_err(|_| wrong())?;
        // A header that the issuer calls critical must be understood, and none is (RFC 7515 §4.1.11).
        if head.crit.is_some() {
            return Err(wrong());
        }
        let keys = match self.keys.find(head.kid.as_deref(), head.alg) {
            Found::Keys(keys) => keys,
            Found::Nothing => return Err(wrong()),
            Found::NotYet => {
                return Err(Refusal::KeysUnavailable { retry_after: ASK_AGAIN_SOON });
            }
        };
        let mut fault = TokenFault::Wrong;
        for key in keys {
            let mut validation = self.validation.clone();
            validation.algorithms = vec![head.alg];
            match jsonwebtoken::decode::<Value>(token, &key, &validation) {
                Ok(token) => return Ok(token.claims),
                Err(error) if *error.kind() == ErrorKind::ExpiredSignature => {
                    fault = TokenFault::Expired;
                }
                Err(error) if *error.kind() == ErrorKind::ImmatureSignature => {
                    fault = TokenFault::Early;
                }
                Err(_) => {}
            }
        }
        Err(Refusal::CredentialInvalid(fault))
    }
}

/// The accepted algorithms. The keys of a set name their own.
fn algorithms(jwt: &JwtFile, wrong: &mut Vec<Complaint>) -> Vec<Algorithm> {
    const SETTING: &str = "jwt.algorithms";
    let has_set = jwt.jwks_file.is_some() || jwt.jwks_url.is_some();
    if jwt.algorithms.is_empty() && !has_set {
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

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    const SECRET: &str = "a secret of at least 32 bytes, as HS256 needs it";

    /// In the year 2096.
    const LATER: u64 = 4_000_000_000;

    fn settings() -> JwtFile {
        JwtFile {
            algorithms: vec!["HS256".into()],
            secret: Some(SECRET.into()),
            issuer: Some("me".into()),
            ..JwtFile::default()
        }
    }

    fn verified(jwt: &JwtFile, head: &Header, claims: &Value) -> Result<Option<String>, Refusal> {
        let token = encode(head, claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap();
        Verifier::new(jwt).unwrap().claim(token.as_bytes(), "sub")
    }

    fn fault(claims: &Value) -> Option<TokenFault> {
        match verified(&settings(), &Header::default(), claims) {
            Ok(_) => None,
            Err(Refusal::CredentialInvalid(fault)) => Some(fault),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn now() -> u64 {
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
    }

    #[test]
    fn only_a_verified_token_has_claims() {
        let good = json!({"sub": "alice", "exp": LATER, "iss": "me"});
        let head = Header::default();
        assert_eq!(verified(&settings(), &head, &good), Ok(Some("s:alice".into())));
        let number = json!({"sub": 7, "exp": LATER, "iss": "me"});
        assert_eq!(verified(&settings(), &head, &number), Ok(Some("n:7".into())));
        let nobody = json!({"exp": LATER, "iss": "me"});
        assert_eq!(verified(&settings(), &head, &nobody), Ok(None));
        let other = JwtFile { secret: Some(SECRET.replace("a ", "A ")), ..settings() };
        assert!(verified(&other, &head, &good).is_err(), "signature");
        for (claims, why) in [
            (json!({"sub": "a", "exp": 1, "iss": "me"}), TokenFault::Expired),
            (json!({"sub": "a", "exp": LATER, "nbf": LATER - 1, "iss": "me"}), TokenFault::Early),
            (json!({"sub": "a", "exp": LATER, "iss": "x"}), TokenFault::Wrong),
            (json!({"sub": "a", "iss": "me"}), TokenFault::Wrong),
        ] {
            assert_eq!(fault(&claims), Some(why), "{claims}");
        }
    }

    #[test]
    fn clocks_may_differ_by_the_leeway() {
        let at = |exp: u64, nbf: u64| json!({"sub": "a", "exp": exp, "nbf": nbf, "iss": "me"});
        assert_eq!(fault(&at(now() - 30, 1)), None, "a minute, unless it is set");
        assert_eq!(fault(&at(LATER, now() + 30)), None);
        assert_eq!(fault(&at(now() - 120, 1)), Some(TokenFault::Expired));
        let none = Some(crate::config::Length(Duration::ZERO));
        let strict = JwtFile { leeway: none, ..settings() };
        let head = Header::default();
        assert!(verified(&strict, &head, &at(now() - 30, 1)).is_err());
        assert!(verified(&strict, &head, &at(LATER, now() + 30)).is_err());
    }

    #[test]
    fn a_critical_header_that_is_not_understood_is_refused() {
        let good = json!({"sub": "alice", "exp": LATER, "iss": "me"});
        for crit in [vec!["exp".to_owned()], vec!["b64".to_owned()], vec![]] {
            let head = Header { crit: Some(crit), ..Header::default() };
            let refusal = Refusal::CredentialInvalid(TokenFault::Wrong);
            assert_eq!(verified(&settings(), &head, &good), Err(refusal));
        }
    }
}
