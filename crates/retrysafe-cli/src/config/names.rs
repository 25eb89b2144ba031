//! Which headers may an operator name, and for what?
//!
//! A header that frames a message, routes it, or is set by the gateway itself has its meaning already.
//! As a marker of replays it would break answers; as a scope or a part of the fingerprint it would
//! make every retry another caller or another request.

use http::HeaderName;
use retrysafe_core::key::IDEMPOTENCY_KEY;
use retrysafe_core::policy::REPLAY_MARKER;
use retrysafe_core::response::is_stripped;

/// Headers that mean something to whoever reads an answer, or a request.
const MEANINGFUL: &[&str] = &[
    "accept",
    "accept-ranges",
    "allow",
    "authorization",
    "cache-control",
    "cookie",
    "etag",
    "expect",
    "expires",
    "forwarded",
    "host",
    "idempotency-key",
    "last-modified",
    "link",
    "location",
    "origin",
    "pragma",
    "prefer",
    "preference-applied",
    "range",
    "referer",
    "refresh",
    "repeatability-first-sent",
    "server",
    "set-cookie",
    "strict-transport-security",
    "user-agent",
    "vary",
    "warning",
    "www-authenticate",
    "x-api-key",
    "x-real-ip",
];

/// Families of them, by how they begin.
const MEANINGFUL_FAMILIES: &[&str] = &[
    "accept-",
    "access-control-",
    "content-",
    "if-",
    "proxy-",
    "sec-",
    "x-forwarded-",
    "x-http-method",
];

/// Reads the name of a header that requests are judged by.
///
/// # Errors
///
/// What is wrong with the name. Many servers read whatever is neither a letter nor a digit as a hyphen, so a caller could
/// spell such a name in several ways.
pub(super) fn read(name: &str) -> Result<HeaderName, String> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let parsed = HeaderName::from_bytes(name.as_bytes()).ok().filter(|_| is_plain);
    parsed.ok_or_else(|| format!("{name:?} is not a header name of letters, digits and hyphens"))
}

/// Why a header cannot hold the key.
pub(super) fn unfit_as_key(name: &HeaderName) -> Option<String> {
    (has_meaning(name) && name != IDEMPOTENCY_KEY).then(|| {
        format!(
            "{name} has a meaning of its own, or is set by the gateway; use a name that nobody else uses, \
             such as X-Idempotency-Key"
        )
    })
}

/// Why a header cannot mark replays.
pub(super) fn unfit_as_marker(name: &HeaderName, key_header: &HeaderName) -> Option<String> {
    let is_taken = has_meaning(name) || name == key_header;
    (is_taken && name != REPLAY_MARKER).then(|| {
        format!(
            "{name} has a meaning of its own, or is set by the gateway; use a name that nobody else uses, \
             such as {REPLAY_MARKER}"
        )
    })
}

/// Why a header cannot say who is asking.
pub(super) fn unfit_as_scope(name: &HeaderName, key_header: &HeaderName) -> Option<String> {
    if name == key_header {
        return Some(format!(
            "{name} is the key: it says which request this is, not who is asking; use credential, or \
             a header that names the caller"
        ));
    }
    is_of_one_message(name).then(|| {
        format!(
            "{name} is another one for every attempt, so a retry would be another caller and run \
             again; use a header that names the caller"
        )
    })
}

/// Why a header cannot belong to the meaning of a request.
pub(super) fn unfit_as_meaning(name: &HeaderName) -> Option<String> {
    is_of_one_message(name).then(|| {
        format!(
            "{name} is another one for every attempt, so a retry would be taken for another request; \
             leave it out"
        )
    })
}

fn has_meaning(name: &HeaderName) -> bool {
    is_stripped(name)
        || MEANINGFUL.contains(&name.as_str())
        || MEANINGFUL_FAMILIES.iter().any(|family| name.as_str().starts_with(family))
}

/// Whether a header belongs to one connection, one moment or one trace. A proxy's credential does
/// too, and yet says who is asking.
fn is_of_one_message(name: &HeaderName) -> bool {
    is_stripped(name) && name != http::header::PROXY_AUTHORIZATION
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HeaderName = HeaderName::from_static("idempotency-key");

    #[test]
    fn a_name_with_another_meaning_holds_no_key() {
        let unfit = |name: &str| read(name).map_or_else(Some, |name| unfit_as_key(&name));
        for good in ["Idempotency-Key", "X-Idempotency-Key", "PayPal-Request-Id", "Request-Token"] {
            assert_eq!(unfit(good), None, "{good}");
        }
        for bad in [
            "Content-Length",
            "host",
            "Authorization",
            "Cookie",
            "Origin",
            "X-Request-Id",
            "X-Forwarded-For",
            "Retrysafe-Id",
            "Idempotent-Replayed",
            "Access-Control-Allow-Origin",
            "Proxy-Authorization",
            "",
            "a b",
            "X_Key",
            "x.key",
        ] {
            assert!(unfit(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn a_marker_has_no_other_meaning() {
        for name in [
            "content-length",
            "transfer-encoding",
            "connection",
            "content-type",
            "host",
            "location",
            "set-cookie",
            "date",
            "retry-after",
            "access-control-allow-origin",
            "x-request-id",
            "idempotency-key",
            "idempotency-expires",
            "retrysafe-outcome",
            "retrysafe-anything",
            "x-forwarded-for",
        ] {
            let told = unfit_as_marker(&HeaderName::from_static(name), &KEY);
            assert!(told.is_some_and(|told| told.starts_with(name)), "{name}");
        }
        for name in ["idempotent-replayed", "x-replayed", "original-request"] {
            assert_eq!(unfit_as_marker(&HeaderName::from_static(name), &KEY), None, "{name}");
        }
        let own = HeaderName::from_static("x-request-key");
        assert!(unfit_as_marker(&own, &own).is_some(), "the header of the key");
    }

    #[test]
    fn a_scope_names_somebody_who_is_still_there_at_the_retry() {
        let own = HeaderName::from_static("x-request-key");
        assert!(unfit_as_scope(&KEY, &KEY).is_some_and(|told| told.contains("is the key")));
        assert!(unfit_as_scope(&own, &own).is_some_and(|told| told.contains("is the key")));
        for name in ["x-request-id", "traceparent", "date", "content-length", "retrysafe-fence"] {
            let name = HeaderName::from_static(name);
            assert!(unfit_as_scope(&name, &KEY).is_some(), "{name}");
            assert!(unfit_as_meaning(&name).is_some(), "{name}");
        }
        for name in ["x-tenant", "authorization", "host", "proxy-authorization", "api-version"] {
            let name = HeaderName::from_static(name);
            assert_eq!(unfit_as_scope(&name, &KEY), None, "{name}");
            assert_eq!(unfit_as_meaning(&name), None, "{name}");
        }
    }
}
