//! What does a request ask for, and what does it mean?

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::request::Parts;
use http::{HeaderName, Method, Uri, header};
use retrysafe_core::fingerprint::{self, Fingerprint, Rules, Spelling};
use retrysafe_core::key::Key;
use retrysafe_core::policy::{KeyRule, Policy};
use retrysafe_core::problem::Refusal;
use retrysafe_core::wire::{FIRST_SENT, method_overrides};
use retrysafe_core::{record, retry};

/// By which the logs of all who handle a request know it.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether the policy covers the request's own method or one that it asks for by a header. Case
/// does not count: some servers pass `post` on to handlers that take it for `POST`.
pub(super) fn covers(policy: &Policy, parts: &Parts) -> bool {
    let covers_name = |name: &[u8]| {
        Method::from_bytes(&name.trim_ascii().to_ascii_uppercase())
            .is_ok_and(|method| policy.covers(&method))
    };
    policy.covers(&parts.method)
        || (policy.key != KeyRule::Off
            && (parts.method.as_str().bytes().any(|b| b.is_ascii_lowercase())
                && covers_name(parts.method.as_str().as_bytes())
                || method_overrides(&parts.headers).any(covers_name)))
}

/// Refuses a request that was first sent too long ago, where the route asks. One from the future is
/// as young as can be: a caller's fast clock must not cost it its request.
pub(super) fn check_age(policy: &Policy, parts: &Parts) -> Result<(), Refusal> {
    let Some(age_max) = policy.first_sent_age_max else { return Ok(()) };
    let first_sent = parts
        .headers
        .get(&FIRST_SENT)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| retry::http_date(text.trim()))
        .ok_or(Refusal::RequestTooOld)?;
    let age = Duration::from_secs(unix_now().saturating_sub(first_sent));
    if age > age_max { Err(Refusal::RequestTooOld) } else { Ok(()) }
}

/// How long the caller wants to wait for a running request: `Prefer: wait=N` (RFC 7240). The first
/// mention counts.
pub(super) fn preferred_wait(parts: &Parts) -> Option<Duration> {
    parts
        .headers
        .get_all("prefer")
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|preference| preference.split(';').next()?.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("wait"))
        .and_then(|(_, seconds)| seconds.trim().trim_matches('"').parse().ok())
        .map(Duration::from_secs)
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A request's head and whole body, as the fingerprint's rules read them.
///
/// Method overrides count as a part of the method, and axum's nesting does not hide the path that
/// the caller asked for.
pub fn fingerprint_request<'a>(parts: &'a Parts, body: &'a [u8]) -> fingerprint::Request<'a> {
    let uri = original_uri(parts);
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    fingerprint::Request {
        method: parts.method.as_str(),
        authority: uri.authority().map(|authority| authority.as_str()).or(host).unwrap_or_default(),
        path_and_query: uri.path_and_query().map(|path| path.as_str()).unwrap_or_default(),
        headers: &parts.headers,
        body,
    }
}

/// The fingerprint that is taken unless the user takes another.
pub(super) fn print(parts: &Parts, body: &[u8], rules: &Rules) -> Fingerprint {
    spelt(parts, body, rules, |spelling| spelling.print())
}

/// Looks at all that this fingerprint is made of.
pub(super) fn spelt<T>(
    parts: &Parts,
    body: &[u8],
    rules: &Rules,
    look: impl FnOnce(Spelling<'_>) -> T,
) -> T {
    let method = asked_method(parts);
    let request = fingerprint::Request { method: &method, ..fingerprint_request(parts, body) };
    look(rules.spell(&request))
}

/// The request's method, and those that it asks for.
fn asked_method(parts: &Parts) -> Cow<'_, str> {
    let mut method = Cow::Borrowed(parts.method.as_str());
    for asked in method_overrides(&parts.headers) {
        // A space cannot occur in a method: nothing else spells this.
        method.to_mut().push(' ');
        method.to_mut().push_str(&String::from_utf8_lossy(asked.trim_ascii()));
    }
    method
}

#[cfg(feature = "axum")]
fn original_uri(parts: &Parts) -> &Uri {
    parts.extensions.get::<axum::extract::OriginalUri>().map_or(&parts.uri, |original| &original.0)
}

#[cfg(not(feature = "axum"))]
fn original_uri(parts: &Parts) -> &Uri {
    &parts.uri
}

/// The request's path, as an operator may see it.
pub(super) fn path(parts: &Parts) -> &str {
    original_uri(parts).path()
}

/// The id by which logs know a request. Not where it is the key itself, which is never kept.
pub(super) fn request_id(parts: &Parts, key: &Key) -> Option<Box<str>> {
    let text = parts.headers.get(REQUEST_ID)?.to_str().ok()?;
    record::request_id(text).filter(|_| text != key.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn parts(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri("/pay?x=1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_request_is_judged_by_the_method_it_asks_for_too() {
        let policy = Policy::default();
        for name in &retrysafe_core::wire::METHOD_OVERRIDES {
            assert!(covers(&policy, &parts("GET", &[(name.as_str(), "post")])), "{name}");
            assert!(covers(&policy, &parts("POST", &[(name.as_str(), "GET")])), "{name}");
        }
        assert!(covers(&policy, &parts("post", &[])));
        assert!(covers(&policy, &parts("PATCH", &[])));
        assert!(!covers(&policy, &parts("GET", &[])));
        assert!(!covers(&policy, &parts("GET", &[("x-http-method", "HEAD")])));
        assert!(!covers(&policy, &parts("DELETE", &[])));
        let off = Policy { key: KeyRule::Off, ..Policy::default() };
        assert!(!covers(&off, &parts("post", &[("x-http-method", "POST")])));
    }

    #[test]
    fn an_override_is_a_part_of_the_meaning() {
        let plain = print(&parts("POST", &[]), b"", &Rules::default());
        let other = print(&parts("POST", &[("x-http-method", "DELETE")]), b"", &Rules::default());
        assert_ne!(plain, other);
    }

    #[test]
    fn preferences_are_read() {
        let wait = |value: &str| preferred_wait(&parts("POST", &[("prefer", value)]));
        assert_eq!(wait("wait=7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("respond-async, Wait=\"3\";x"), Some(Duration::from_secs(3)));
        for none in ["wait", "wait=soon", "waiting=3", ""] {
            assert_eq!(wait(none), None, "{none}");
        }
    }

    #[test]
    fn age_is_checked_only_where_asked() {
        let with = |age_max| Policy { first_sent_age_max: age_max, ..Policy::default() };
        let hour = with(Some(Duration::from_secs(3_600)));
        let sent =
            |at: u64| parts("POST", &[("repeatability-first-sent", &retry::show_http_date(at))]);
        assert_eq!(check_age(&with(None), &parts("POST", &[])), Ok(()));
        assert_eq!(check_age(&hour, &parts("POST", &[])), Err(Refusal::RequestTooOld));
        assert_eq!(check_age(&hour, &sent(unix_now() - 60)), Ok(()));
        assert_eq!(check_age(&hour, &sent(unix_now() + 600)), Ok(()));
        assert_eq!(check_age(&hour, &sent(unix_now() - 7_200)), Err(Refusal::RequestTooOld));
        let garbage = parts("POST", &[("repeatability-first-sent", "yesterday")]);
        assert_eq!(check_age(&hour, &garbage), Err(Refusal::RequestTooOld));
    }
}
