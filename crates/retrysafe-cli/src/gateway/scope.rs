//! Who is asking?
//!
//! A replay skips the upstream's own checks, so the scope must be something that a stranger cannot
//! forge. Scopes are shown to operators: whatever is a credential stands in them as a digest.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{self, HeaderMap, HeaderName};
use retrysafe_core::credential::{self, API_KEYS, Claimed, names_somebody};
use retrysafe_core::problem::{Refusal, UnsafeScope};
use retrysafe_core::response::named_by_connection;
use retrysafe_core::{Caller, Scope};

use super::jwt::Verifier;
use super::route::Route;
use crate::config::ScopePart;

/// Who is asking.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub caller: Caller,
    /// Whether anything in the request tells this caller from others.
    pub is_known: bool,
}

/// Who is asking, by the rules of a route.
///
/// # Errors
///
/// The refusal, where nothing says who is asking and something should.
pub(crate) fn of(
    route: &Route,
    headers: &HeaderMap,
    verifier: Option<&Verifier>,
) -> Result<Asker, Refusal> {
    not_of_this_hop(route, headers)?;
    let mut parts: Vec<(&str, Vec<u8>)> = Vec::with_capacity(2);
    let mut mark = None;
    // Any header but a credential is set by a proxy that always does, so all who lack it would share
    // one scope and be answered with each other's answers. A credential is the caller's own to show
    // or not; but whoever shows another one than the scope looks at is somebody, and not known.
    let (mut has_credential, mut has_header, mut lacks_header) = (false, false, false);
    for part in &route.rules.scope {
        match part {
            ScopePart::Credential => {
                match credential::shown(headers, claimed).map_err(Refusal::ScopeUnsafe)? {
                    Some(shown) => {
                        has_credential = true;
                        mark = shown.mark;
                        let shown = shown.parts.into_iter();
                        parts.extend(shown.map(|(name, digest)| (name, digest.into_bytes())));
                    }
                    None => parts.push(("anonymous", Vec::new())),
                }
            }
            ScopePart::Header(name) => match only(headers, name)? {
                Some(value) if is_credential(name) => {
                    has_credential = true;
                    parts.push((name.as_str(), Scope::digest_of(value).into_bytes()));
                }
                Some(value) => {
                    has_header = true;
                    parts.push((name.as_str(), value.into()));
                }
                None => {
                    lacks_header |= !is_credential(name) || shows_credential(headers);
                    parts.push(("without", name.as_str().into()));
                }
            },
            ScopePart::Claim(claim) => {
                let lacks = || Refusal::ScopeUnsafe(UnsafeScope::Claim(claim.as_str().into()));
                let verifier = verifier.ok_or_else(lacks)?;
                let value = verifier.claim(headers, claim).ok_or_else(lacks)?;
                has_credential = true;
                parts.push((claim, value.into_bytes()));
            }
            ScopePart::Route => parts.push(("route", route.label.as_bytes().into())),
            ScopePart::Const(text) => parts.push(("const", text.as_bytes().into())),
        }
    }
    if lacks_header && !has_credential {
        return Err(Refusal::ScopeUnsafe(UnsafeScope::Nobody));
    }
    let scope = Scope::of(parts.iter().map(|(name, value)| (*name, value.as_slice())));
    Ok(Asker { caller: Caller { scope, mark }, is_known: has_credential || has_header })
}

/// `Connection` may name headers that end here. A caller who names the key or a header of the scope
/// would be one caller to us and another to the upstream.
fn not_of_this_hop(route: &Route, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut lines = headers.get_all(header::CONNECTION).iter();
    let ordinary = lines.all(|line| {
        line.as_bytes().eq_ignore_ascii_case(b"close")
            || line.as_bytes().eq_ignore_ascii_case(b"keep-alive")
    });
    if ordinary {
        return Ok(());
    }
    let named = named_by_connection(headers);
    let of_scope = |part: &ScopePart| match part {
        ScopePart::Credential => {
            named.iter().any(|name| *name == header::AUTHORIZATION || API_KEYS.contains(name))
        }
        ScopePart::Header(name) => named.contains(name),
        ScopePart::Claim(_) => named.contains(&header::AUTHORIZATION),
        ScopePart::Route | ScopePart::Const(_) => false,
    };
    if named.contains(&route.rules.policy.key_header) || route.rules.scope.iter().any(of_scope) {
        return Err(Refusal::Malformed("Connection names a header that says who is asking"));
    }
    Ok(())
}

/// The value of a header that stands in a request once. Of two, nobody knows which one the upstream
/// takes; an empty one names nobody.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let value =
        values.next().map(|value| value.as_bytes()).filter(|value| match is_credential(name) {
            true => names_somebody(value),
            false => !value.trim_ascii().is_empty(),
        });
    match values.next() {
        None => Ok(value),
        Some(_) => Err(Refusal::ScopeUnsafe(UnsafeScope::Header(name.clone()))),
    }
}

/// Other headers that hold a credential.
static CREDENTIALS: [HeaderName; 3] =
    [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION];

/// Whether a header holds a credential. Scopes are shown, so it stands in them as a digest.
fn is_credential(name: &HeaderName) -> bool {
    CREDENTIALS.contains(name) || API_KEYS.contains(name)
}

/// Whether a caller shows a credential of any kind.
fn shows_credential(headers: &HeaderMap) -> bool {
    let names = CREDENTIALS.iter().chain(&API_KEYS);
    let mut values = names.flat_map(|name| headers.get_all(name));
    values.any(|value| names_somebody(value.as_bytes()))
}

/// Whom a token names that nobody has verified. Without both claims it counts as opaque.
fn claimed(token: &[u8]) -> Option<Claimed> {
    #[derive(serde::Deserialize)]
    struct Claims {
        iss: String,
        sub: String,
    }
    let mut words = token.split(|byte| *byte == b'.');
    let (Some(_), Some(claims), Some(_), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return None;
    };
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    // A list of two texts would be read as the two claims.
    let claims = Some(claims).filter(|claims| claims.trim_ascii_start().starts_with(b"{"))?;
    let Claims { iss, sub } = serde_json::from_slice(&claims).ok()?;
    (!iss.is_empty() && !sub.is_empty()).then_some(Claimed { issuer: iss, subject: sub })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::{File, RouteSettings};
    use crate::gateway::route::Routes;
    use std::sync::Arc;

    fn route(scope: &[&str]) -> Arc<Route> {
        let defaults = RouteSettings {
            scope: Some(scope.iter().map(|part| (*part).into()).collect()),
            ..RouteSettings::default()
        };
        let file = File { upstream: Some("http://x".into()), defaults, ..File::default() };
        Routes::new(&crate::config::resolve(&file).unwrap()).defaults().clone()
    }

    fn asker(parts: &[&str], headers: &[(&'static str, &'static str)]) -> Result<Asker, Refusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        of(&route(parts), &map, None)
    }

    fn scope(parts: &[&str], headers: &[(&'static str, &'static str)]) -> Result<String, Refusal> {
        asker(parts, headers).map(|asker| asker.caller.scope.to_string())
    }

    #[test]
    fn a_credential_is_shown_as_its_digest_only() {
        for (parts, headers) in [
            (&["credential"][..], ("authorization", "Bearer sk_live_1")),
            (&["credential"], ("x-api-key", "sk_live_1")),
            (&["header:authorization"], ("authorization", "Bearer sk_live_1")),
            (&["header:cookie"], ("cookie", "sid=sk_live_1")),
            (&["header:x-api-key"], ("x-api-key", "sk_live_1")),
            (&["header:proxy-authorization"], ("proxy-authorization", "sk_live_1")),
        ] {
            let shown = scope(parts, &[headers]).unwrap();
            assert!(!shown.contains("sk_live_1") && shown.len() > 32, "{shown}");
        }
        assert_eq!(scope(&["header:x-tenant"], &[("x-tenant", "acme")]).unwrap(), "x-tenant=acme");
    }

    #[test]
    fn different_callers_have_different_scopes() {
        let both = |headers| scope(&["credential"], headers).unwrap();
        let a = both(&[("authorization", "Bearer a")]);
        let b = both(&[("x-api-key", "a")]);
        let c = both(&[("authorization", "Bearer a"), ("x-api-key", "a")]);
        assert!(a != b && b != c && a != c);
        assert_eq!(both(&[]), "anonymous");
        assert_eq!(
            scope(&["const:all of us", "route"], &[]).unwrap(),
            "const=all of us route=/{*rest}"
        );
    }

    #[test]
    fn a_cookie_alone_is_no_scope() {
        assert!(scope(&["credential"], &[("cookie", "sid=1")]).is_err());
        assert!(scope(&["credential"], &[("cookie", "sid=1"), ("x-api-key", "k")]).is_err());
        let bearer = ("authorization", "Bearer me");
        assert!(scope(&["credential"], &[("cookie", "sid=1"), bearer]).is_ok());
    }

    #[test]
    fn a_header_of_the_scope_is_there_once_or_a_credential_is() {
        for (parts, headers) in [
            (&["header:x-t"][..], &[][..]),
            (&["header:x-t"], &[("x-t", "")]),
            (&["header:x-t"], &[("x-t", "a"), ("x-t", "a")]),
            (&["header:x-t", "route"], &[("authorization", "a")]),
            (&["header:x-t", "header:x-u"], &[("x-t", "a")]),
            (&["header:x-t", "credential"], &[]),
            (&["header:x-t", "credential"], &[("x-t", "a"), ("x-t", "b"), ("x-api-key", "k")]),
        ] {
            assert!(scope(parts, headers).is_err(), "{parts:?} {headers:?}");
        }
        let both = |headers| scope(&["header:x-t", "credential"], headers).unwrap();
        let without = both(&[("x-api-key", "k")]);
        assert_ne!(without, both(&[("x-api-key", "k"), ("x-t", "a")]));
        assert_ne!(without, both(&[("x-api-key", "other")]));
        assert_eq!(both(&[("x-t", "a")]), "x-t=a anonymous");
        // A credential that is not shown is nobody's mistake, as where `credential` is the scope.
        assert_eq!(scope(&["header:authorization"], &[]).unwrap(), "without=authorization");
    }

    // Alice is known by her token, but the scope looks at keys: Bob, with a token of his own, must not
    // get her answer, nor may anybody with a cookie.
    #[test]
    fn whoever_shows_another_credential_is_not_anonymous() {
        for (parts, headers) in [
            (&["header:x-api-key"][..], &[("authorization", "Bearer bob")][..]),
            (&["header:x-api-key"], &[("cookie", "sid=carol")]),
            (&["header:authorization", "route"], &[("x-api-key", "k")]),
            (&["header:authorization"], &[("cookie", "sid=1"), ("authorization", "Bearer ")]),
            (&["credential"], &[("cookie", "sid=1"), ("authorization", "")]),
            (&["credential"], &[("cookie", "sid=1"), ("authorization", "bearer")]),
            (&["credential"], &[("cookie", "sid=1"), ("x-api-key", " ")]),
        ] {
            assert!(scope(parts, headers).is_err(), "{parts:?} {headers:?}");
        }
        let either = ["header:x-api-key", "header:authorization"];
        assert!(scope(&either, &[("authorization", "Bearer bob")]).is_ok());
        assert_eq!(scope(&["credential"], &[("authorization", "Bearer")]).unwrap(), "anonymous");
        assert_eq!(
            scope(&["header:x-tenant"], &[("x-tenant", "basic")]).unwrap(),
            "x-tenant=basic"
        );
    }

    #[test]
    fn callers_are_known_by_what_they_show() {
        let is_known = |parts: &[&str], headers| asker(parts, headers).unwrap().is_known;
        assert!(is_known(&["credential", "route"], &[("x-api-key", "k")]));
        assert!(is_known(&["header:x-t"], &[("x-t", "a")]));
        assert!(is_known(&["header:authorization"], &[("authorization", "a")]));
        assert!(!is_known(&["credential"], &[]));
        assert!(!is_known(&["credential", "route"], &[]));
        assert!(!is_known(&["header:authorization", "route"], &[]));
        assert!(!is_known(&["const:x", "route"], &[("authorization", "a")]));
    }

    #[test]
    fn a_header_of_the_scope_cannot_be_of_one_hop() {
        let refused = |parts: &[&str], line| {
            matches!(
                scope(parts, &[("connection", line), ("x-t", "a")]),
                Err(Refusal::Malformed(_))
            )
        };
        assert!(refused(&["header:x-t"], "close, X-T"));
        assert!(refused(&["credential"], "authorization"));
        assert!(refused(&["const:x"], "Idempotency-Key"));
        assert!(!refused(&["header:x-t"], "close, X-Other"));
    }

    #[test]
    fn a_token_names_its_issuer_and_subject_or_counts_as_opaque() {
        let read = |claims: &str| {
            let token = format!("eyJh.{}.sig", URL_SAFE_NO_PAD.encode(claims));
            claimed(token.as_bytes()).map(|claimed| (claimed.issuer, claimed.subject))
        };
        let both = Some(("i".to_owned(), "s".to_owned()));
        assert_eq!(read(r#"{"iss":"i","sub":"s","exp":1,"aud":["x"]}"#), both);
        for opaque in [
            r#"{"iss":"i"}"#,
            r#"{"sub":"s"}"#,
            r#"{"iss":"","sub":"s"}"#,
            r#"{"iss":"i","sub":7}"#,
            r#"["i","s"]"#,
            "not JSON",
        ] {
            assert_eq!(read(opaque), None, "{opaque}");
        }
        for opaque in ["", "abc", "a.b", "a.b.c", "a.b.c.d", "..", "a.b.c.d.e"] {
            assert_eq!(claimed(opaque.as_bytes()), None, "{opaque}");
        }
    }
}
