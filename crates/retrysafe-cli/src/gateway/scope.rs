//! Who is asking?
//!
//! A replay skips the upstream's own checks, so the scope must be something that a stranger cannot
//! forge. Scopes are shown to operators: whatever is a credential stands in them as a digest. What a
//! caller's credentials are worth where nothing is configured is core's [`credential`]; here a
//! route's `scope` is read, part by part.
//!
//! Most connections serve one caller, request after request. Its credential is the same bytes each time,
//! so its digest need not be computed anew ([`LastCaller`]). Only what is decided by `Authorization` alone is remembered:
//! on a route whose scope is the credential, for a request that shows no other one.

use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use retrysafe_core::credential::{self, API_KEYS, Claimed, names_somebody};
use retrysafe_core::problem::{Refusal, TokenFault, UnsafeScope};
use retrysafe_core::response::named_by_connection;
use retrysafe_core::scope::CredentialMark;
use retrysafe_core::{Caller, Scope};

use super::jwt::Verifier;
use super::route::Route;
use crate::config::{Anonymous, ScopePart};

/// Who is asking.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub caller: Caller,
    /// Whether anything in the request tells this caller from others.
    pub is_known: bool,
}

/// What is known of a caller so far, while the parts of a scope are read.
#[derive(Default)]
struct Reading<'a> {
    parts: Vec<(&'a str, Vec<u8>)>,
    mark: Option<CredentialMark>,
    /// Whether a part is a credential of this caller.
    has_credential: bool,
    /// Whether a part is a header that a proxy has set.
    has_header: bool,
    /// The first part that should name somebody and does not. A credential in another part makes up
    /// for it.
    lacks: Option<Lack>,
}

/// A part of a scope that names nobody.
enum Lack {
    /// It is a credential, which callers show or do not show.
    Credential(Refusal),
    /// It is a header that a proxy always sets: all who lack it would share one scope.
    Header(Refusal),
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
    let mut reading = Reading::default();
    for part in &route.rules.scope {
        match part {
            ScopePart::Credential => reading.credential(headers)?,
            ScopePart::Header(name) => reading.header(headers, name)?,
            ScopePart::Cookie(name) => {
                let unsafe_cookie = || UnsafeScope::Cookie(name.as_str().into());
                let value = cookie(headers, name).ok_or_else(unsafe_cookie);
                let value = value.map_err(Refusal::ScopeUnsafe)?;
                reading.know_by_credential(name, Scope::digest_of(value));
            }
            ScopePart::Claim(claim) => reading.claim(headers, claim, verifier)?,
            ScopePart::Route => reading.parts.push(("route", route.label.as_bytes().into())),
            ScopePart::Const(text) => reading.parts.push(("const", text.as_bytes().into())),
        }
    }
    if let Some(lack) = reading.lacks.take()
        && !reading.has_credential
    {
        let is_shared = route.rules.anonymous == Anonymous::Shared && !shows_credential(headers);
        match lack {
            Lack::Credential(_) if is_shared => {}
            Lack::Credential(refusal) | Lack::Header(refusal) => return Err(refusal),
        }
    }
    let parts = reading.parts.iter().map(|(name, value)| (*name, value.as_slice()));
    let caller = Caller { scope: Scope::of(parts), mark: reading.mark };
    Ok(Asker { caller, is_known: reading.has_credential || reading.has_header })
}

impl<'a> Reading<'a> {
    fn know_by_credential(&mut self, name: &'a str, value: String) {
        self.has_credential = true;
        self.parts.push((name, value.into_bytes()));
    }

    fn lack(&mut self, lack: Lack) {
        self.lacks.get_or_insert(lack);
    }

    /// Whatever credentials the caller shows.
    fn credential(&mut self, headers: &HeaderMap) -> Result<(), Refusal> {
        match credential::shown(headers, claimed).map_err(Refusal::ScopeUnsafe)? {
            Some(shown) => {
                self.mark = shown.mark;
                for (name, digest) in shown.parts {
                    self.know_by_credential(name, digest);
                }
            }
            None => {
                self.lack(Lack::Credential(Refusal::ScopeUnsafe(UnsafeScope::Nobody)));
                self.parts.push(("anonymous", Vec::new()));
            }
        }
        Ok(())
    }

    /// One header, which must be there once and not be empty.
    fn header(&mut self, headers: &HeaderMap, name: &'a HeaderName) -> Result<(), Refusal> {
        let refusal = || Refusal::ScopeUnsafe(UnsafeScope::Header(name.clone()));
        let mut values = headers.get_all(name).iter().map(|value| value.as_bytes());
        let (first, None) = (values.next(), values.next()) else { return Err(refusal()) };
        match first {
            Some(value) if is_credential(name) && names_somebody(value) => {
                self.know_by_credential(name.as_str(), Scope::digest_of(value));
            }
            Some(value) if !is_credential(name) && !value.trim_ascii().is_empty() => {
                self.has_header = true;
                self.parts.push((name.as_str(), value.into()));
            }
            Some(_) if !is_credential(name) => return Err(refusal()),
            Some(_) | None => {
                self.lack(if is_credential(name) {
                    Lack::Credential(refusal())
                } else {
                    Lack::Header(refusal())
                });
                self.parts.push(("without", name.as_str().into()));
            }
        }
        Ok(())
    }

    /// A claim of a token that verifies. A token that does not is the caller's to refresh.
    fn claim(
        &mut self,
        headers: &HeaderMap,
        claim: &'a str,
        verifier: Option<&Verifier>,
    ) -> Result<(), Refusal> {
        let mut lines = headers.get_all(header::AUTHORIZATION).iter();
        let (line, None) = (lines.next(), lines.next()) else {
            return Err(Refusal::ScopeUnsafe(UnsafeScope::Header(header::AUTHORIZATION)));
        };
        let token = line.map(|line| line.as_bytes()).filter(|line| names_somebody(line));
        let Some(token) = token.and_then(credential::bearer) else {
            self.lack(Lack::Credential(Refusal::CredentialInvalid(TokenFault::Missing)));
            self.parts.push(("anonymous", Vec::new()));
            return Ok(());
        };
        // The check of the configuration demands [jwt] where a claim is a part of a scope.
        let verifier = verifier.ok_or(Refusal::CredentialInvalid(TokenFault::Wrong))?;
        let value = verifier.claim(token, claim)?;
        let missing = || Refusal::ScopeUnsafe(UnsafeScope::Claim(claim.into()));
        self.know_by_credential(claim, value.ok_or_else(missing)?);
        Ok(())
    }
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
        ScopePart::Credential => named.iter().any(is_credential),
        ScopePart::Header(name) => named.contains(name),
        ScopePart::Cookie(_) => named.contains(&header::COOKIE),
        ScopePart::Claim(_) => named.contains(&header::AUTHORIZATION),
        ScopePart::Route | ScopePart::Const(_) => false,
    };
    if named.contains(&route.rules.policy.key_header) || route.rules.scope.iter().any(of_scope) {
        return Err(Refusal::Malformed("Connection names a header that says who is asking"));
    }
    Ok(())
}

/// Other headers that hold a credential.
static CREDENTIALS: [HeaderName; 3] =
    [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION];

/// Whether a header holds a credential. Scopes are shown, so it stands in them as a digest.
fn is_credential(name: &HeaderName) -> bool {
    CREDENTIALS.contains(name) || API_KEYS.contains(name)
}

/// Whether a caller shows a credential of any kind: it is somebody, though perhaps not known.
fn shows_credential(headers: &HeaderMap) -> bool {
    let names = CREDENTIALS.iter().chain(&API_KEYS);
    let mut values = names.flat_map(|name| headers.get_all(name));
    values.any(|value| names_somebody(value.as_bytes()))
}

/// The value of a cookie that is there once and not empty. Of two, nobody knows which one the
/// upstream takes.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let lines = headers.get_all(header::COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    let mut values = pairs.filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let named = pair.get(..at)?;
        let value = pair.get(at + 1..)?;
        (named.trim_ascii() == name.as_bytes()).then_some(value.trim_ascii())
    });
    let (value, None) = (values.next()?, values.next()) else { return None };
    Some(value).filter(|value| !value.is_empty())
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

/// The last caller of one connection.
#[derive(Debug, Default)]
pub(crate) struct LastCaller(Mutex<Option<KnownCaller>>);

#[derive(Debug)]
struct KnownCaller {
    route: Arc<Route>,
    authorization: HeaderValue,
    caller: Caller,
}

impl LastCaller {
    /// Who is asking, by the rules of a route.
    ///
    /// # Errors
    ///
    /// See [`of`].
    pub(crate) fn of(
        &self,
        route: &Arc<Route>,
        headers: &HeaderMap,
        verifier: Option<&Verifier>,
    ) -> Result<Caller, Refusal> {
        let shown = only_authorization(route, headers);
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(shown), Some(last)) = (shown, &*last)
            && Arc::ptr_eq(&last.route, route)
            && last.authorization == shown
        {
            return Ok(last.caller.clone());
        }
        let caller = of(route, headers, verifier)?.caller;
        if let Some(shown) = shown {
            let route = Arc::clone(route);
            let authorization = shown.clone();
            *last = Some(KnownCaller { route, authorization, caller: caller.clone() });
        }
        Ok(caller)
    }
}

/// The only `Authorization`, where nothing else decides who is asking. A header that `Connection` names
/// may be one that counts, so such a request is looked at in full.
fn only_authorization<'a>(route: &Route, headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
    let by_credential = matches!(route.rules.scope.as_slice(), [ScopePart::Credential]);
    let decides = |name: &header::HeaderName| {
        *name == header::COOKIE || *name == header::CONNECTION || API_KEYS.contains(name)
    };
    if !by_credential || headers.keys().any(decides) {
        return None;
    }
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let (line, None) = (lines.next(), lines.next()) else { return None };
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::{File, RouteSettings};
    use crate::gateway::route::Routes;

    fn route(scope: &[&str], anonymous: Anonymous) -> Arc<Route> {
        let defaults = RouteSettings {
            scope: Some(scope.iter().map(|part| (*part).into()).collect()),
            anonymous: Some(anonymous),
            ..RouteSettings::default()
        };
        let file = File { upstream: Some("http://x".into()), defaults, ..File::default() };
        Routes::new(&crate::config::resolve(&file).unwrap()).defaults().clone()
    }

    type Headers = [(&'static str, &'static str)];

    fn map(headers: &Headers) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    fn asker(parts: &[&str], headers: &Headers, anonymous: Anonymous) -> Result<Asker, Refusal> {
        of(&route(parts, anonymous), &map(headers), None)
    }

    /// Where callers without a credential are one.
    fn shared(parts: &[&str], headers: &Headers) -> Result<String, Refusal> {
        let asker = asker(parts, headers, Anonymous::Shared);
        asker.map(|asker| asker.caller.scope.to_string())
    }

    fn scope(parts: &[&str], headers: &Headers) -> Result<String, Refusal> {
        let asker = asker(parts, headers, Anonymous::Refused);
        asker.map(|asker| asker.caller.scope.to_string())
    }

    fn unsafe_scope(parts: &[&str], headers: &Headers) -> UnsafeScope {
        match scope(parts, headers) {
            Err(Refusal::ScopeUnsafe(why)) => why,
            other => panic!("{parts:?} {headers:?}: {other:?}"),
        }
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
        assert_eq!(
            scope(&["const:all of us", "route"], &[]).unwrap(),
            "const=all of us route=/{*rest}"
        );
    }

    #[test]
    fn nobody_is_refused_unless_all_who_show_nothing_are_one() {
        for headers in [&[][..], &[("authorization", "Bearer null")], &[("x-shop-token", "alice")]]
        {
            assert_eq!(unsafe_scope(&["credential"], headers), UnsafeScope::Nobody);
            assert_eq!(unsafe_scope(&["credential", "route"], headers), UnsafeScope::Nobody);
            assert_eq!(shared(&["credential"], headers).unwrap(), "anonymous");
        }
        let by_header = UnsafeScope::Header(header::AUTHORIZATION);
        assert_eq!(unsafe_scope(&["header:authorization"], &[]), by_header);
        assert_eq!(shared(&["header:authorization"], &[]).unwrap(), "without=authorization");
        let fault = Refusal::CredentialInvalid(TokenFault::Missing);
        let reading = |headers: &Headers| {
            let mut reading = Reading::default();
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, value.parse().unwrap());
            }
            reading.claim(&map, "sub", None).map(|()| reading.lacks)
        };
        for nobody in [&[][..], &[("authorization", "Basic eDp5")]] {
            let lacks = reading(nobody).unwrap();
            assert!(matches!(lacks, Some(Lack::Credential(refusal)) if refusal == fault));
        }
        // A header that a proxy always sets is not the caller's to leave out.
        let tenant = UnsafeScope::Header(HeaderName::from_static("x-t"));
        assert_eq!(shared(&["header:x-t"], &[]), Err(Refusal::ScopeUnsafe(tenant)));
    }

    #[test]
    fn one_cookie_can_be_the_scope() {
        let by_sid = |headers: &Headers| scope(&["cookie:sid"], headers);
        let alice = by_sid(&[("cookie", "sid=alice")]).unwrap();
        assert!(!alice.contains("alice"), "it is a secret: {alice}");
        for same in ["theme=dark; sid=alice", "sid=alice;xsid=bob", "SID=bob; sid = alice ; a"] {
            assert_eq!(by_sid(&[("cookie", same)]).unwrap(), alice, "{same}");
        }
        // HTTP/2 may send each cookie in a line of its own.
        assert_eq!(by_sid(&[("cookie", "theme=dark"), ("cookie", "sid=alice")]).unwrap(), alice);
        assert_ne!(by_sid(&[("cookie", "sid=bob")]).unwrap(), alice);
        for unsafe_one in
            ["", "sid", "sid=", "xsid=alice", "SID=alice", "sid=alice; sid=bob", "sid=a; sid=a"]
        {
            let why = unsafe_scope(&["cookie:sid"], &[("cookie", unsafe_one)]);
            assert_eq!(why, UnsafeScope::Cookie("sid".into()), "{unsafe_one:?}");
        }
        assert!(shared(&["cookie:sid"], &[]).is_err(), "a session is not left out either");
        let twice = [("cookie", "sid=alice"), ("cookie", "sid=alice")];
        assert!(by_sid(&twice).is_err());
    }

    #[test]
    fn a_cookie_alone_is_no_scope() {
        assert_eq!(unsafe_scope(&["credential"], &[("cookie", "sid=1")]), UnsafeScope::Cookies);
        let beside_key = [("cookie", "sid=1"), ("x-api-key", "k")];
        assert_eq!(unsafe_scope(&["credential"], &beside_key), UnsafeScope::Cookies);
        assert!(shared(&["credential"], &[("cookie", "sid=1")]).is_err(), "it shows something");
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
            (&["header:x-t", "credential"], &[("x-t", "a")]),
            (&["header:x-t", "credential"], &[("x-t", " "), ("x-api-key", "k")]),
            (&["header:x-t", "credential"], &[("x-t", "a"), ("x-t", "b"), ("x-api-key", "k")]),
        ] {
            assert!(scope(parts, headers).is_err(), "{parts:?} {headers:?}");
        }
        let both = |headers| scope(&["header:x-t", "credential"], headers).unwrap();
        let without = both(&[("x-api-key", "k")]);
        assert_ne!(without, both(&[("x-api-key", "k"), ("x-t", "a")]));
        assert_ne!(without, both(&[("x-api-key", "other")]));
        let both = shared(&["header:x-t", "credential"], &[("x-t", "a")]).unwrap();
        assert_eq!(both, "x-t=a anonymous");
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
            assert!(shared(parts, headers).is_err(), "{parts:?} {headers:?}");
        }
        let either = ["header:x-api-key", "header:authorization"];
        assert!(scope(&either, &[("authorization", "Bearer bob")]).is_ok());
        assert_eq!(
            scope(&["header:x-tenant"], &[("x-tenant", "basic")]).unwrap(),
            "x-tenant=basic"
        );
    }

    #[test]
    fn callers_are_known_by_what_they_show() {
        let is_known = |parts: &[&str], headers: &Headers| {
            asker(parts, headers, Anonymous::Shared).unwrap().is_known
        };
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
        assert!(refused(&["credential"], "x-auth-token"));
        assert!(refused(&["cookie:sid"], "Cookie"));
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

    #[test]
    fn what_is_remembered_is_what_would_be_found() {
        let last = LastCaller::default();
        let (route, other) = (
            route(&["credential"], Anonymous::Refused),
            route(&["header:x-tenant"], Anonymous::Refused),
        );
        let alice = ("authorization", "Bearer alice");
        for headers in [
            &[alice][..],
            &[alice],
            &[("authorization", "Bearer bob")],
            &[alice, ("x-api-key", "k")],
            &[alice],
            &[alice, ("cookie", "sid=1")],
            &[alice, ("connection", "x-api-key"), ("x-api-key", "k")],
            &[alice, alice],
            &[("cookie", "sid=1")],
            &[],
            &[alice, ("x-tenant", "acme")],
        ] {
            let headers = map(headers);
            for route in [&route, &other, &route] {
                let found = of(route, &headers, None).map(|asker| asker.caller);
                assert_eq!(last.of(route, &headers, None), found, "{headers:?}");
            }
        }
    }
}
