//! What does a caller show, and will a retry show the same?
//!
//! A scope must be something that a stranger cannot forge and that a retry still has. Of the
//! credentials that callers send some are like that, and some are not:
//!
//! | the caller shows | what it is worth |
//! | --- | --- |
//! | `Authorization` Basic, Bearer, Token, ApiKey; an API key in [one of its headers](API_KEYS) | the scope is a digest of all that are there |
//! | a Bearer token that names its issuer and subject, and that nobody has verified | the scope is a digest of the two, and the token's own digest is the [mark](CredentialMark) |
//! | an `Authorization` that is made anew for each request | nothing: each retry would be another caller |
//! | an `Authorization` of a scheme that is not known | nothing: nobody knows whether it is made anew |
//! | cookies without `Authorization` | nothing: they change between retries, and an API key beside them may be an application's |
//! | `Bearer null`, `Bearer undefined`, a scheme alone | it shows nothing |

use http::header::{self, HeaderMap, HeaderName};

use crate::problem::UnsafeScope;
use crate::scope::{CredentialMark, Scope};

/// Headers in which callers send a credential that stays the same.
pub static API_KEYS: [HeaderName; 5] = [
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-auth-token"),
    HeaderName::from_static("x-access-token"),
    HeaderName::from_static("x-session-token"),
];

/// Schemes of `Authorization` whose credential stays the same.
const LASTING_SCHEMES: [&str; 4] = ["basic", "bearer", "token", "apikey"];

/// Schemes of `Authorization` whose credential is made anew for each request: they sign it, or count
/// requests. Those of AWS have a version in their name.
const FLEETING_SCHEMES: [&str; 9] = [
    "digest",
    "hawk",
    "oauth",
    "aws",
    "signature",
    "http-signature",
    "negotiate",
    "ntlm",
    "mutual",
];

/// What programs send when they have no credential: the names of nothing in their languages.
const NOTHING: [&str; 4] = ["null", "undefined", "none", "nil"];

/// What a caller shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The parts of a scope that name the caller. What is secret stands there as a digest.
    pub parts: Vec<(&'static str, String)>,
    /// Which token it was, where the scope is only what the token claims.
    pub mark: Option<CredentialMark>,
}

/// Whom a token names, by its own claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Its claim `iss`.
    pub issuer: String,
    /// Its claim `sub`.
    pub subject: String,
}

/// What a caller shows, or none if it shows nothing. `claimed` reads a Bearer token that nobody has
/// verified.
///
/// # Errors
///
/// Why what it shows cannot be a scope.
pub fn shown(
    headers: &HeaderMap,
    claimed: impl Fn(&[u8]) -> Option<Claimed>,
) -> Result<Option<Shown>, UnsafeScope> {
    let authorization = only(headers, &header::AUTHORIZATION)?;
    if let Some(authorization) = authorization {
        lasts(authorization)?;
    }
    let mut secret = Vec::new();
    // One look at the names that are there, instead of a search for each that might be.
    if headers.keys().any(|name| API_KEYS.contains(name)) {
        for name in &API_KEYS {
            if let Some(value) = only(headers, name)? {
                put(&mut secret, name, value);
            }
        }
    }
    let Some(authorization) = authorization else {
        if headers.get_all(header::COOKIE).iter().any(|cookie| !cookie.is_empty()) {
            return Err(UnsafeScope::Cookies);
        }
        let shown = || Shown { parts: vec![("credential", Scope::digest_of(&secret))], mark: None };
        return Ok((!secret.is_empty()).then(shown));
    };
    let token = bearer(authorization);
    let Some((token, claimed)) = token.and_then(|token| Some((token, claimed(token)?))) else {
        put(&mut secret, &header::AUTHORIZATION, &in_one_spelling(authorization));
        let parts = vec![("credential", Scope::digest_of(&secret))];
        return Ok(Some(Shown { parts, mark: None }));
    };
    let mut parts = vec![("jwt", digest_of_both(&claimed))];
    if !secret.is_empty() {
        parts.push(("credential", Scope::digest_of(&secret)));
    }
    Ok(Some(Shown { parts, mark: Some(CredentialMark::of(token)) }))
}

/// Whether a credential header names anybody. An empty one does not, nor does a scheme alone or with
/// the name of nothing behind it: all who send it would be one caller.
pub fn names_somebody(credential: &[u8]) -> bool {
    let credential = credential.trim_ascii();
    let (scheme, rest) = split(credential);
    let is_scheme = |word: &[u8]| {
        let is = |scheme: &&str| word.eq_ignore_ascii_case(scheme.as_bytes());
        LASTING_SCHEMES.iter().chain(&FLEETING_SCHEMES).any(is)
    };
    let name = if is_scheme(scheme) { rest } else { credential };
    !name.is_empty() && !NOTHING.iter().any(|nothing| name.eq_ignore_ascii_case(nothing.as_bytes()))
}

/// The token of a Bearer `Authorization`.
pub fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = split(authorization.trim_ascii());
    scheme.eq_ignore_ascii_case(b"bearer").then_some(token).filter(|token| !token.is_empty())
}

/// An `Authorization` whose scheme is in lower case, one space before the rest: schemes have no case
/// (RFC 9110 §11.1), and a retry through another client may spell its own differently.
fn in_one_spelling(authorization: &[u8]) -> Vec<u8> {
    let (scheme, rest) = split(authorization.trim_ascii());
    [&scheme.to_ascii_lowercase(), rest].join(&b' ')
}

/// The value of a credential header, if it names somebody.
///
/// # Errors
///
/// If it is there twice: nobody knows which one the server takes.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, UnsafeScope> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map(|value| value.as_bytes());
    match values.next() {
        Some(_) => Err(UnsafeScope::Header(name.clone())),
        None => Ok(value.filter(|value| names_somebody(value))),
    }
}

/// Whether an `Authorization` is the same on a retry.
fn lasts(authorization: &[u8]) -> Result<(), UnsafeScope> {
    let (scheme, _) = split(authorization.trim_ascii());
    let scheme = scheme.to_ascii_lowercase();
    let is_one_of = |schemes: &[&str]| schemes.iter().any(|known| known.as_bytes() == scheme);
    if is_one_of(&LASTING_SCHEMES) {
        Ok(())
    } else if is_one_of(&FLEETING_SCHEMES) || scheme.starts_with(b"aws4-") {
        Err(UnsafeScope::MadeAnew)
    } else {
        Err(UnsafeScope::UnknownScheme)
    }
}

/// The first word, and what follows it.
fn split(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == b' ' || *byte == b'\t') {
        None => (text, b""),
        Some(at) => {
            let (word, rest) = text.split_at(at);
            (word, rest.trim_ascii())
        }
    }
}

/// With name and length, so that no two lists of credentials make the same bytes.
fn put(secret: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    secret.extend_from_slice(format!("{}:{}:", name.as_str(), value.len()).as_bytes());
    secret.extend_from_slice(value);
}

fn digest_of_both(claimed: &Claimed) -> String {
    let Claimed { issuer, subject } = claimed;
    Scope::digest_of(format!("{}:{issuer},{}:{subject}", issuer.len(), subject.len()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    /// A token is `ISSUER/SUBJECT/ANYTHING` here.
    fn read(token: &[u8]) -> Option<Claimed> {
        let mut words = std::str::from_utf8(token).ok()?.splitn(3, '/').map(str::to_owned);
        let (issuer, subject) = (words.next()?, words.next()?);
        words.next().map(|_| Claimed { issuer, subject })
    }

    fn of(headers: &[(&'static str, &'static str)]) -> Result<Option<Shown>, UnsafeScope> {
        shown(&map(headers), read)
    }

    #[test]
    fn a_credential_that_lasts_is_shown_as_a_digest() {
        let mut seen = Vec::new();
        for (name, value) in [
            ("authorization", "Basic dXNlcjpwYXNz"),
            ("authorization", "Bearer opaque"),
            ("authorization", "Bearer Opaque"),
            ("authorization", "Token opaque"),
            ("authorization", "ApiKey opaque"),
            ("x-api-key", "opaque"),
            ("api-key", "opaque"),
            ("x-auth-token", "opaque"),
            ("x-access-token", "opaque"),
            ("x-session-token", "opaque"),
        ] {
            let shown = of(&[(name, value)]).unwrap().unwrap();
            assert_eq!(shown.mark, None);
            let debug = format!("{shown:?}").to_lowercase();
            assert!(!shown.parts.is_empty() && !debug.contains("opaque"));
            assert!(!seen.contains(&shown.parts), "{name}: {value}");
            seen.push(shown.parts);
        }
        let both = of(&[("authorization", "Bearer opaque"), ("x-api-key", "opaque")]).unwrap();
        assert!(!seen.contains(&both.unwrap().parts), "all that are there count");
    }

    #[test]
    fn a_scheme_is_the_same_however_it_is_spelt() {
        let bearer = of(&[("authorization", "Bearer opaque")]);
        for spelt in ["bearer opaque", "BEARER opaque", "Bearer  opaque", "Bearer\topaque"] {
            assert_eq!(of(&[("authorization", spelt)]), bearer, "{spelt:?}");
        }
        for other in ["Bearer Opaque", "Bearer opaque 2", "Token opaque"] {
            assert_ne!(of(&[("authorization", other)]), bearer, "{other:?}");
        }
    }

    #[test]
    fn what_a_retry_does_not_have_is_no_scope() {
        for scheme in [
            "Digest",
            "Hawk",
            "OAuth",
            "AWS4-HMAC-SHA256",
            "aws4-ecdsa-p256-sha256",
            "AWS",
            "Signature",
            "HTTP-Signature",
            "Negotiate",
            "NTLM",
        ] {
            let mut headers = map(&[("x-api-key", "k"), ("cookie", "sid=1")]);
            headers.insert("authorization", format!("{scheme} id=\"x\"").parse().unwrap());
            assert_eq!(shown(&headers, read), Err(UnsafeScope::MadeAnew), "{scheme}");
        }
        for value in ["DPoP token", "GNAP token", "sk_live_1", "a.b.c"] {
            assert_eq!(of(&[("authorization", value)]), Err(UnsafeScope::UnknownScheme), "{value}");
        }
    }

    #[test]
    fn cookies_need_an_authorization_beside_them() {
        for headers in [
            &[("cookie", "sid=1")][..],
            &[("cookie", "sid=1"), ("x-api-key", "app")],
            &[("cookie", "sid=1"), ("authorization", "Bearer null")],
            &[("cookie", "sid=1"), ("authorization", "")],
        ] {
            assert_eq!(of(headers), Err(UnsafeScope::Cookies), "{headers:?}");
        }
        assert!(of(&[("cookie", "sid=1"), ("authorization", "Bearer me")]).unwrap().is_some());
    }

    #[test]
    fn the_names_of_nothing_name_nobody() {
        for nobody in [
            "",
            " ",
            "Bearer",
            "bearer ",
            "Basic",
            "Bearer null",
            "Bearer undefined",
            "Bearer  NULL",
            "Token None",
            "undefined",
            "ApiKey nil",
            "Negotiate",
        ] {
            assert!(!names_somebody(nobody.as_bytes()), "{nobody:?}");
            assert_eq!(shown(&HeaderMap::new(), read), Ok(None));
            let mut headers = HeaderMap::new();
            headers.insert("authorization", nobody.parse().unwrap());
            headers.insert("x-api-key", nobody.parse().unwrap());
            assert_eq!(shown(&headers, read), Ok(None), "{nobody:?}");
        }
        for somebody in ["Bearer nullable", "null null", "Basic bnVsbA==", "k"] {
            assert!(names_somebody(somebody.as_bytes()), "{somebody:?}");
        }
    }

    #[test]
    fn a_credential_that_is_there_twice_is_no_scope() {
        for name in [&header::AUTHORIZATION].into_iter().chain(&API_KEYS) {
            let mut headers = HeaderMap::new();
            headers.append(name, "Bearer a".parse().unwrap());
            headers.append(name, "Bearer a".parse().unwrap());
            assert_eq!(shown(&headers, read), Err(UnsafeScope::Header(name.clone())));
        }
    }

    #[test]
    fn a_token_that_names_its_subject_has_a_mark_beside_it() {
        let with = |token: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
            shown(&headers, read).unwrap().unwrap()
        };
        let (one, two) = (with("id.test/alice/1"), with("id.test/alice/2"));
        assert_eq!(one.parts, two.parts, "the same caller");
        assert!(one.mark.is_some() && one.mark != two.mark, "another token");
        for other in ["id.test/bob/1", "other.test/alice/1", "id.test/a/lice", "i/d.test/alice/1"] {
            assert_ne!(with(other).parts, one.parts, "{other}");
        }
        assert_eq!(with("opaque").mark, None);
        let keyed = of(&[("authorization", "Bearer id.test/alice/1"), ("x-api-key", "app")]);
        let keyed = keyed.unwrap().unwrap();
        assert!(keyed.parts != one.parts && keyed.mark == one.mark);
    }
}
