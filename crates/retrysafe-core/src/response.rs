//! What of a response is kept, and what is stripped?
//!
//! A replay has the same status, the same body bytes and the same stored headers. Headers are a
//! list of pairs, because a name may occur more than once. Not stored is what belongs to one
//! connection, one moment or one trace, and what a second delivery would make wrong.

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// A response as it will be replayed.
///
/// ```
/// use bytes::Bytes;
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use retrysafe_core::response::StoredResponse;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("location", HeaderValue::from_static("/p/1"));
/// headers.insert("set-cookie", HeaderValue::from_static("sid=1"));
/// let kept = StoredResponse::keep(StatusCode::CREATED, &headers, Bytes::new(), false);
/// assert_eq!(kept.headers.len(), 1, "a session is not for the next caller");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    /// The status of the first answer.
    pub status: StatusCode,
    /// The headers that are kept; those of equal name in their order.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body, byte for byte.
    pub body: Bytes,
}

/// What is never stored, beside the families of [`FAMILIES`] and whatever `Connection` names.
const STRIPPED: &[&str] = &[
    // Of one connection (RFC 9110 §7.6.1).
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-authentication-info",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "alt-svc",
    // Of one moment: a replay is a message of its own, and its length follows from the body.
    "date",
    "age",
    "content-length",
    "retry-after",
    "server-timing",
    // Of one trace: the replay has its own.
    "traceparent",
    "tracestate",
    "x-request-id",
    "request-id",
    "x-correlation-id",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    // Ours: each answer gets its own.
    "idempotent-replayed",
    "idempotency-expires",
];

/// Families of names, by how they begin.
const FAMILIES: &[&str] = &["ratelimit", "x-ratelimit-", "retrysafe-", "x-b3-"];

impl StoredResponse {
    /// Keeps what a replay may show. `Set-Cookie` is kept only where the route asks for it: a
    /// replayed cookie would revive a session that has ended.
    pub fn keep(status: StatusCode, headers: &HeaderMap, body: Bytes, set_cookie: bool) -> Self {
        let of_connection = named_by_connection(headers);
        let kept = headers
            .iter()
            .filter(|(name, _)| set_cookie || *name != header::SET_COOKIE)
            .filter(|(name, _)| !is_stripped(name) && !of_connection.contains(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        Self { status, headers: kept, body }
    }
}

/// Whether a header is never stored, whatever the response says about its connection.
pub fn is_stripped(name: &HeaderName) -> bool {
    STRIPPED.contains(&name.as_str())
        || FAMILIES.iter().any(|family| name.as_str().starts_with(family))
}

/// The headers that `Connection` declares to be of one hop.
pub fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &[u8])]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap())
            })
            .fold(HeaderMap::new(), |mut map, (name, value)| {
                map.append(name, value);
                map
            })
    }

    fn kept(pairs: &[(&'static str, &[u8])], set_cookie: bool) -> Vec<(String, Vec<u8>)> {
        StoredResponse::keep(StatusCode::CREATED, &headers(pairs), Bytes::new(), set_cookie)
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn repeated_empty_and_high_bytes_survive() {
        let pairs: &[(&str, &[u8])] =
            &[("x-many", b"1"), ("x-many", b"2"), ("x-empty", b""), ("x-high", b"\x80\xff")];
        let got = kept(pairs, false);
        assert_eq!(got.len(), 4);
        assert_eq!(got[0].1, b"1");
        assert_eq!(got[1].1, b"2");
        assert_eq!(got[3].1, b"\x80\xff");
    }

    #[test]
    fn what_belongs_to_one_connection_moment_or_trace_is_stripped() {
        let pairs: &[(&str, &[u8])] = &[
            ("connection", b"X-Secret, close"),
            ("x-secret", b"1"),
            ("keep-alive", b"timeout=5"),
            ("date", b"Mon, 01 Jan 2001 00:00:00 GMT"),
            ("age", b"3"),
            ("content-length", b"2"),
            ("set-cookie", b"s=1"),
            ("ratelimit-policy", b"x"),
            ("x-ratelimit-remaining", b"1"),
            ("x-request-id", b"r"),
            ("retrysafe-outcome", b"completed"),
            ("location", b"/a/1"),
        ];
        assert_eq!(kept(pairs, false), [("location".to_owned(), b"/a/1".to_vec())]);
        assert!(kept(pairs, true).iter().any(|(name, _)| name == "set-cookie"));
    }
}
