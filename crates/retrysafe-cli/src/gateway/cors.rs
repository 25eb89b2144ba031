//! May a page in a browser read this answer?
//!
//! A browser hides an answer from a page of another origin unless `Access-Control-Allow-Origin` permits that origin. One party
//! decides what is permitted:
//!
//! * The upstream, unless the route says otherwise. Its answers and its preflights pass as they are. What it permits to an
//!   origin is remembered by route, host and origin, so that our own refusals permit the same, and nothing more. A request with
//!   a key makes a browser ask in advance (a preflight), so the upstream's word is there before the request that we refuse.
//! * The operator, where the route's `cors` lists origins. Then we answer preflights, and every answer permits exactly these
//!   origins, whatever the upstream says.
//!
//! A stored answer permits the origin of its first request. Replayed to a page of another origin, it says what is known of that
//! one instead.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use retrysafe_core::key::show_header_name;

use super::body::Reply;
use super::live::Live;
use super::request_log::Outcome;
use super::route::Route;
use crate::config::Cors;

/// How many origins are remembered, over all routes and hosts. Whoever comes past that bound takes the place of another one,
/// whose next answer from the upstream brings it back.
const REMEMBERED_MAX: usize = 1_024;

/// The longest origin and host that are remembered: longer than any name in the DNS, with scheme and port.
const NAME_BYTES_MAX: usize = 300;

/// For how many seconds a browser need not ask again. Ten minutes: short enough that a change of `cors` is soon seen.
const PREFLIGHT_SECONDS: u32 = 600;

/// A page in a browser that is asking.
pub(crate) struct Page {
    origin: HeaderValue,
    host: Box<str>,
    /// The rule of the request, or of the one that it asks for in advance.
    route: Arc<Route>,
    is_preflight: bool,
}

/// What an origin may do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Permission {
    /// Whether every origin may read it.
    any_origin: bool,
    /// Whether it may be read that was asked for with a credential of the browser's own, such as a cookie.
    credentials: bool,
}

/// Route, host and origin.
type Place = (Arc<str>, Box<str>, Box<[u8]>);

/// What the upstream permits, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Permissions(RwLock<HashMap<Place, Permission>>);

impl Page {
    /// The page behind a request, if there is one.
    pub(crate) fn of(live: &Live, parts: &Parts) -> Option<Box<Self>> {
        let origin = parts.headers.get(header::ORIGIN)?.clone();
        let asked = parts.headers.get(header::ACCESS_CONTROL_REQUEST_METHOD);
        let asked = asked.and_then(|method| Method::from_bytes(method.as_bytes()).ok());
        let asked = asked.filter(|_| parts.method == Method::OPTIONS);
        let is_preflight = asked.is_some();
        let method = asked.unwrap_or_else(|| parts.method.clone());
        let found = live.routes.find(parts.uri.path(), &method);
        let route = Arc::clone(found.unwrap_or(live.routes.defaults()));
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = parts.uri.authority().map(|authority| authority.as_str()).or(host);
        let host = host.unwrap_or_default().to_ascii_lowercase().into();
        Some(Box::new(Self { origin, host, route, is_preflight }))
    }

    /// The answer to a preflight, where the route's operator decides what is permitted.
    pub(crate) fn preflight_answer(&self, headers: &HeaderMap) -> Option<Response<Reply>> {
        let cors = self.route.rules.cors.as_ref().filter(|_| self.is_preflight)?;
        let mut response = Response::new(Reply::Own(None));
        *response.status_mut() = StatusCode::NO_CONTENT;
        if permitted_by(cors, &self.origin).is_some() {
            let answer = response.headers_mut();
            for (asked, allowed) in [
                (header::ACCESS_CONTROL_REQUEST_METHOD, header::ACCESS_CONTROL_ALLOW_METHODS),
                (header::ACCESS_CONTROL_REQUEST_HEADERS, header::ACCESS_CONTROL_ALLOW_HEADERS),
            ] {
                for value in headers.get_all(asked) {
                    answer.append(&allowed, value.clone());
                }
            }
            answer.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_SECONDS.into());
        }
        Some(response)
    }

    fn place(&self) -> Option<Place> {
        let is_short = self.origin.len() <= NAME_BYTES_MAX && self.host.len() <= NAME_BYTES_MAX;
        let place =
            || (Arc::clone(&self.route.label), self.host.clone(), self.origin.as_bytes().into());
        is_short.then(place)
    }
}

impl Permissions {
    /// Makes an answer readable for its page, as far as that is permitted.
    pub(crate) fn apply(&self, page: &Page, outcome: Outcome, response: &mut Response<Reply>) {
        let status = response.status();
        let headers = response.headers_mut();
        let is_ours = match outcome {
            Outcome::Passed | Outcome::Executed | Outcome::Unprotected | Outcome::Observed => false,
            Outcome::Replayed => permitted_in(headers, &page.origin).is_none(),
            Outcome::Answered
            | Outcome::InProgress
            | Outcome::Mismatch
            | Outcome::Unknown
            | Outcome::NotStored
            | Outcome::Refused(_) => true,
        };
        match &page.route.rules.cors {
            Some(cors) => say(headers, &page.origin, permitted_by(cors, &page.origin)),
            None if is_ours => say(headers, &page.origin, self.known(page)),
            None if outcome == Outcome::Replayed => {}
            None => self.learn(page, status, permitted_in(headers, &page.origin)),
        }
        // An answer that only passed is the upstream's own; all others hold headers of ours.
        if outcome != Outcome::Passed && permitted_in(headers, &page.origin).is_some() {
            let marker = &page.route.rules.policy.replay_marker;
            expose(headers, marker);
        }
    }

    fn known(&self, page: &Page) -> Option<Permission> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&page.place()?).copied()
    }

    /// Remembers the upstream's latest word. A failure without a word says nothing: many applications leave it out there.
    fn learn(&self, page: &Page, status: StatusCode, said: Option<Permission>) {
        if said == self.known(page) || (said.is_none() && !status.is_success()) {
            return;
        }
        let Some(place) = page.place() else { return };
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match said {
            None => {
                known.remove(&place);
            }
            Some(permission) => {
                if known.len() >= REMEMBERED_MAX
                    && !known.contains_key(&place)
                    && let Some(other) = known.keys().next().cloned()
                {
                    known.remove(&other);
                }
                known.insert(place, permission);
            }
        }
    }
}

/// What an answer permits to an origin. Two permissions are none: browsers take neither.
fn permitted_in(headers: &HeaderMap, origin: &HeaderValue) -> Option<Permission> {
    let mut origins = headers.get_all(header::ACCESS_CONTROL_ALLOW_ORIGIN).iter();
    let (permitted, None) = (origins.next()?, origins.next()) else { return None };
    let any_origin = permitted == "*";
    let credentials = headers.get(header::ACCESS_CONTROL_ALLOW_CREDENTIALS);
    let credentials = !any_origin && credentials.is_some_and(|value| value == "true");
    (any_origin || permitted == origin).then_some(Permission { any_origin, credentials })
}

/// What the operator permits to an origin.
fn permitted_by(cors: &Cors, origin: &HeaderValue) -> Option<Permission> {
    match cors {
        Cors::AnyOrigin => Some(Permission { any_origin: true, credentials: false }),
        Cors::Origins { origins, credentials } => origins
            .contains(origin)
            .then_some(Permission { any_origin: false, credentials: *credentials }),
    }
}

/// Puts a permission, or none, in the place of whatever an answer says.
fn say(headers: &mut HeaderMap, origin: &HeaderValue, permission: Option<Permission>) {
    headers.remove(header::ACCESS_CONTROL_ALLOW_CREDENTIALS);
    let any_origin = permission.is_some_and(|permission| permission.any_origin);
    match permission {
        None => headers.remove(header::ACCESS_CONTROL_ALLOW_ORIGIN),
        Some(_) if any_origin => {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"))
        }
        Some(_) => headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
    };
    if permission.is_some_and(|permission| permission.credentials) {
        let yes = HeaderValue::from_static("true");
        headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
    }
    if !any_origin {
        vary_by_origin(headers);
    }
}

/// Says to caches what an answer that no page has asked for depends on: to a page it would be another one.
pub(crate) fn say_to_caches(route: &Route, headers: &mut HeaderMap) {
    match &route.rules.cors {
        Some(Cors::Origins { .. }) => vary_by_origin(headers),
        Some(Cors::AnyOrigin) | None => {}
    }
}

/// Says to caches that the answer to another origin may be another one.
fn vary_by_origin(headers: &mut HeaderMap) {
    let mut names = headers
        .get_all(header::VARY)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let is_said = names
        .any(|name| name.trim_ascii().eq_ignore_ascii_case(b"origin") || name.trim_ascii() == b"*");
    if !is_said {
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
    }
}

/// Lets a page see the headers that we add, beside those that the upstream lets it see.
fn expose(headers: &mut HeaderMap, replay_marker: &HeaderName) {
    let marker = show_header_name(replay_marker);
    let ours = format!("{marker}, Idempotency-Expires, Retry-After, X-Request-Id");
    if let Ok(ours) = HeaderValue::from_str(&ours) {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, ours);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::File;
    use crate::gateway::route::Routes;

    fn page(origin: &str) -> Page {
        let file = File { upstream: Some("http://x".into()), ..File::default() };
        let routes = Routes::new(&crate::config::resolve(&file).unwrap());
        Page {
            origin: origin.parse().unwrap(),
            host: "api.test".into(),
            route: Arc::clone(routes.defaults()),
            is_preflight: false,
        }
    }

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn an_answer_permits_what_it_says_to_whom_it_says_it() {
        let origin = HeaderValue::from_static("https://a.test");
        let permitted = |pairs: &[(&'static str, &str)]| permitted_in(&map(pairs), &origin);
        let allow = "access-control-allow-origin";
        let credentials = ("access-control-allow-credentials", "true");
        assert_eq!(permitted(&[]), None);
        assert_eq!(permitted(&[(allow, "https://b.test")]), None);
        assert_eq!(permitted(&[(allow, "*"), (allow, "https://a.test")]), None);
        let any = Permission { any_origin: true, credentials: false };
        assert_eq!(permitted(&[(allow, "*"), credentials]), Some(any));
        let this = Permission { any_origin: false, credentials: true };
        assert_eq!(permitted(&[(allow, "https://a.test"), credentials]), Some(this));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_latest_word() {
        let permissions = Permissions::default();
        let said = Some(Permission { any_origin: false, credentials: true });
        let one = page("https://a.test");
        permissions.learn(&one, StatusCode::OK, said);
        assert_eq!(permissions.known(&one), said);
        assert_eq!(permissions.known(&page("https://b.test")), None);
        permissions.learn(&one, StatusCode::INTERNAL_SERVER_ERROR, None);
        assert_eq!(permissions.known(&one), said, "a failure says nothing");
        permissions.learn(&one, StatusCode::OK, None);
        assert_eq!(permissions.known(&one), None);
        let route = Arc::clone(&one.route);
        for number in 0..REMEMBERED_MAX + 10 {
            let origin = HeaderValue::from_str(&format!("https://{number}.test")).unwrap();
            let host = "api.test".into();
            let page = Page { origin, host, route: Arc::clone(&route), is_preflight: false };
            permissions.learn(&page, StatusCode::OK, said);
            assert_eq!(permissions.known(&page), said, "{number}");
        }
        assert_eq!(permissions.0.read().unwrap().len(), REMEMBERED_MAX);
        let long = page(&format!("https://{}.test", "a".repeat(NAME_BYTES_MAX)));
        permissions.learn(&long, StatusCode::OK, said);
        assert_eq!(permissions.known(&long), None);
    }

    #[test]
    fn vary_names_the_origin_once() {
        for (line, wanted) in [("Accept, origin", 1), ("*", 1), ("Accept", 2)] {
            let mut headers = map(&[("vary", line)]);
            vary_by_origin(&mut headers);
            assert_eq!(headers.get_all("vary").iter().count(), wanted, "{line}");
        }
    }
}
