//! Who is asking?
//!
//! A replay skips the upstream's own checks, so the scope must be something that a stranger cannot
//! forge. Scopes are shown to operators: whatever is a credential stands in them as a digest.

use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{self, HeaderMap, HeaderName};
use retrysafe_core::Scope;
use retrysafe_core::problem::Refusal;
use retrysafe_core::response::named_by_connection;
use retrysafe_core::scope::names_somebody;

use super::front::{IDEMPOTENCY_KEY, X_API_KEY};
use super::jwt::Verifier;
use super::route::Route;
use crate::config::ScopePart;

/// Who is asking.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub scope: Scope,
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
    // Any header but a credential is set by a proxy that always does, so all who lack it would share
    // one scope and be answered with each other's answers. A credential is the caller's own to show
    // or not; but whoever shows another one than the scope looks at is somebody, and not known.
    let (mut has_credential, mut has_header, mut lacks_header) = (false, false, false);
    for part in &route.rules.scope {
        match part {
            ScopePart::Credential => {
                let digest = credential(route, headers)?;
                has_credential |= digest.is_some();
                parts.push(match digest {
                    Some(digest) => ("credential", digest),
                    None => ("anonymous", Vec::new()),
                });
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
                let verifier = verifier.ok_or(Refusal::ScopeUnsafe)?;
                let value = verifier.claim(headers, claim).ok_or(Refusal::ScopeUnsafe)?;
                has_credential = true;
                parts.push((claim, value.into_bytes()));
            }
            ScopePart::Route => parts.push(("route", route.label.as_bytes().into())),
            ScopePart::Const(text) => parts.push(("const", text.as_bytes().into())),
        }
    }
    if lacks_header && !has_credential {
        return Err(Refusal::ScopeUnsafe);
    }
    let scope = Scope::of(parts.iter().map(|(name, value)| (*name, value.as_slice())));
    Ok(Asker { scope, is_known: has_credential || has_header })
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
            named.contains(&header::AUTHORIZATION) || named.contains(&X_API_KEY)
        }
        ScopePart::Header(name) => named.contains(name),
        ScopePart::Claim(_) => named.contains(&header::AUTHORIZATION),
        ScopePart::Route | ScopePart::Const(_) => false,
    };
    if named.contains(&IDEMPOTENCY_KEY) || route.rules.scope.iter().any(of_scope) {
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
        Some(_) => Err(Refusal::ScopeUnsafe),
    }
}

static CREDENTIALS: [HeaderName; 4] =
    [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION, X_API_KEY];

/// Whether a header holds a credential. Scopes are shown, so it stands in them as a digest.
fn is_credential(name: &HeaderName) -> bool {
    CREDENTIALS.contains(name)
}

/// Whether a caller shows a credential of any kind.
fn shows_credential(headers: &HeaderMap) -> bool {
    let mut values = CREDENTIALS.iter().flat_map(|name| headers.get_all(name));
    values.any(|value| names_somebody(value.as_bytes()))
}

/// The digest of a caller's credentials, if it has any.
fn credential(route: &Route, headers: &HeaderMap) -> Result<Option<Vec<u8>>, Refusal> {
    let mut secret = Vec::new();
    for name in [&header::AUTHORIZATION, &X_API_KEY] {
        let values = headers.get_all(name).iter();
        for value in values.filter(|value| names_somebody(value.as_bytes())) {
            // With lengths, so that no two credentials make the same bytes.
            secret.extend_from_slice(format!("{}:{}:", name.as_str(), value.len()).as_bytes());
            secret.extend_from_slice(value.as_bytes());
        }
    }
    if secret.is_empty() {
        return match headers.contains_key(header::COOKIE) {
            true => Err(Refusal::ScopeUnsafe),
            false => Ok(None),
        };
    }
    warn_of_tokens(route, headers);
    Ok(Some(Scope::digest_of(&secret).into_bytes()))
}

/// A refreshed token is another credential, hence another scope: a retry after the refresh would run
/// again. Said once per route.
fn warn_of_tokens(route: &Route, headers: &HeaderMap) {
    if route.warned.load(Ordering::Relaxed) {
        return;
    }
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if token.is_some_and(expires) && !route.warned.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            route = &*route.label,
            "callers send tokens that expire; a retry with a refreshed token is taken for another \
             caller and runs again: set scope = [\"jwt:sub\"] and [jwt]"
        );
    }
}

/// Whether a credential is a JWT with an `exp` claim.
fn expires(credential: &str) -> bool {
    let claims = credential
        .split_once(' ')
        .map(|(_, token)| token.split('.'))
        .filter(|words| words.clone().count() == 3)
        .and_then(|mut words| words.nth(1))
        .and_then(|words| URL_SAFE_NO_PAD.decode(words).ok());
    claims
        .and_then(|claims| serde_json::from_slice::<serde_json::Value>(&claims).ok())
        .is_some_and(|claims| claims.get("exp").is_some())
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
        asker(parts, headers).map(|asker| asker.scope.to_string())
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
        let a = both(&[("authorization", "a")]);
        let b = both(&[("x-api-key", "a")]);
        let c = both(&[("authorization", "a"), ("x-api-key", "a")]);
        assert!(a != b && b != c && a != c);
        assert_eq!(both(&[]), "anonymous");
        assert_eq!(
            scope(&["const:all of us", "route"], &[]).unwrap(),
            "const=all of us route=/{*rest}"
        );
    }

    #[test]
    fn a_cookie_alone_is_no_scope() {
        assert_eq!(scope(&["credential"], &[("cookie", "sid=1")]), Err(Refusal::ScopeUnsafe));
        assert!(scope(&["credential"], &[("cookie", "sid=1"), ("x-api-key", "k")]).is_ok());
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
            assert_eq!(scope(parts, headers), Err(Refusal::ScopeUnsafe), "{parts:?} {headers:?}");
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
            assert_eq!(scope(parts, headers), Err(Refusal::ScopeUnsafe), "{parts:?} {headers:?}");
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
    fn tokens_that_expire_are_recognised() {
        let token = |claims: &str| format!("Bearer eyJh.{}.sig", URL_SAFE_NO_PAD.encode(claims));
        assert!(expires(&token(r#"{"sub":"a","exp":1}"#)));
        assert!(!expires(&token(r#"{"sub":"a"}"#)));
        assert!(!expires("Bearer abc") && !expires("Basic a.b.c") && !expires(""));
    }
}
