//! Which headers travel on?
//!
//! Inwards: what belongs to one hop ends here, our own markers are taken from clients, and what
//! proxies say about the caller is believed only from listed networks. Outwards: the same for one
//! hop, and the request's id.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, Version};
use http_body::Body;
use ipnet::IpNet;
use retrysafe::layer::{Attempt, ConnectionShare};
use retrysafe_core::response::named_by_connection;
use retrysafe_core::wire::{
    ATTEMPT, FENCE, IDEMPOTENCY_EXPIRES, OUTCOME, RECORD_ID, REPLAY_MARKER,
};

use super::given_bytes::GivenBytes;
use super::guard::{GuardedHeaders, as_read};
use super::named_fields::{NamedFields, X_REQUEST_ID};
use super::scope::LastCaller;
use crate::dashboard::SESSION_COOKIE;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What else proxies say about a caller.
const CLAIMS: [HeaderName; 5] = [
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-port"),
    X_FORWARDED_PREFIX,
    HeaderName::from_static("x-forwarded-server"),
    HeaderName::from_static("x-real-ip"),
];

/// What belongs to one hop (RFC 9110 §7.6.1), beside whatever `Connection` names. A credential for a
/// proxy is for this one.
fn is_of_one_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
            | "keep-alive"
            | "proxy-connection"
            | "http2-settings"
            | "proxy-authorization"
    )
}

/// Headers by which a request asks to be taken for another path. Some frameworks heed them, so an
/// uncovered path could lead to a covered one.
fn names_another_path(name: &str) -> bool {
    matches!(
        name,
        "x-original-url"
            | "x-original-uri"
            | "x-rewrite-url"
            | "x-override-url"
            | "x-forwarded-uri"
            | "x-forwarded-path"
    )
}

/// The most characters of a request id that is taken over from a client.
const REQUEST_ID_CHARS_MAX: usize = 128;

/// Whoever is at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// How much memory the requests of the connection hold.
    pub share: ConnectionShare,
    /// Who was asking last on the connection.
    pub last_caller: LastCaller,
    /// The bytes of its request, where they are worth remembering.
    pub(super) given_bytes: GivenBytes,
    address: IpAddr,
    shown: HeaderValue,
    is_tls: bool,
}

impl Peer {
    /// The address that requests come from, as it is shown.
    pub(crate) fn shown(&self) -> &HeaderValue {
        &self.shown
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    pub(crate) fn new(address: IpAddr, is_tls: bool) -> Self {
        let address = address.to_canonical();
        // An address holds nothing that a header could not.
        let shown = HeaderValue::from_str(&address.to_string())
            .unwrap_or(HeaderValue::from_static("unknown"));
        let share = ConnectionShare::default();
        let last_caller = LastCaller::default();
        let given_bytes = GivenBytes::default();
        Self { share, last_caller, given_bytes, address, shown, is_tls }
    }

    fn is_trusted(&self, networks: &[IpNet]) -> bool {
        networks.iter().any(|network| network.contains(&self.address))
    }
}

/// Takes from a request, in one pass over its headers, what does not travel on: what belongs to one hop,
/// our own markers, which only we set (other spellings of them were refused at the door), and words
/// about another path. `Expect` was answered here, and trailers are not passed on: what we judge a
/// request by could hide in them.
pub(crate) fn strip_request(headers: &mut HeaderMap, guard: &GuardedHeaders, keep_upgrade: bool) {
    strip_hop_and(headers, keep_upgrade, |name| {
        let text = name.as_str();
        is_ours(text)
            || is_marker(text)
            || names_another_path(text)
            || matches!(text, "expect" | "trailer")
            || guard.is_marker(name)
    });
}

/// Takes from the answer to a protected request what only we may say about it. The upstream's word
/// about its outcome stays for the layer, which takes it.
pub(crate) fn strip_answer(headers: &mut HeaderMap, replay_marker: &HeaderName) {
    strip(headers, |name| {
        let read = as_read(name);
        (is_ours(&read) && name != OUTCOME) || is_marker(&read) || *replay_marker == *read
    });
}

/// Takes our own name from the answer to a request that we do not protect. Whether it is a replay,
/// the upstream may say by itself.
pub(crate) fn strip_passed_answer(headers: &mut HeaderMap) {
    strip(headers, |name| is_ours(&as_read(name)));
}

fn is_ours(name: &str) -> bool {
    name.starts_with("retrysafe-")
}

fn is_marker(name: &str) -> bool {
    REPLAY_MARKER == *name || IDEMPOTENCY_EXPIRES == *name
}

fn strip(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    if headers.keys().any(&unwanted) {
        let names: Vec<_> = headers.keys().filter(|name| unwanted(name)).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
}

/// Whether a caller wants to leave HTTP. What would carry HTTP again, past every rule, is no such
/// wish: it is answered as if it had not been uttered. Only HTTP/1.1 can be left.
pub(crate) fn wants_upgrade(parts: &Parts) -> bool {
    let carries_http = |protocol: Vec<u8>| {
        protocol.starts_with(b"h2") || protocol.starts_with(b"http") || protocol.starts_with(b"tls")
    };
    let mut lines = parts.headers.get_all(header::UPGRADE).iter().peekable();
    parts.version == Version::HTTP_11
        && lines.peek().is_some()
        && !lines.any(|line| protocols(line).any(carries_http))
}

/// Whether an upstream switches to a protocol that it was asked for.
pub(crate) fn agrees(asked: Option<&HeaderValue>, answer: &HeaderMap) -> bool {
    let Some(asked) = asked else { return false };
    let mut lines = answer.get_all(header::UPGRADE).iter();
    let is_asked_for = |protocol| protocols(asked).any(|asked| asked == protocol);
    answer.contains_key(header::UPGRADE) && lines.all(|line| protocols(line).all(is_asked_for))
}

fn protocols(line: &HeaderValue) -> impl Iterator<Item = Vec<u8>> {
    line.as_bytes().split(|b| *b == b',').map(|name| name.trim_ascii().to_ascii_lowercase())
}

/// Joins the cookies of a request in HTTP/2, which may be split over several fields, into the one
/// field that they must be in HTTP/1.1 (RFC 9113 §8.2.3).
pub(crate) fn join_cookies(parts: &mut Parts) {
    if parts.version != Version::HTTP_2 {
        return;
    }
    let lines = parts.headers.get_all(header::COOKIE).iter();
    let pieces: Vec<&[u8]> = lines.map(HeaderValue::as_bytes).collect();
    if pieces.len() < 2 {
        return;
    }
    // Pieces that may be in a header are a header when joined.
    if let Ok(joined) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
        parts.headers.insert(header::COOKIE, joined);
    }
}

/// Takes the dashboard's session from a request, and leaves its other cookies as they are, byte for byte. A browser sends a cookie to
/// every port of a host: whoever reads the dashboard under the host name of the API would show the session to the upstream, and would
/// be another caller for having it.
pub(crate) fn strip_session(headers: &mut HeaderMap) {
    let is_shown = |line: &HeaderValue| pairs(line).any(is_session);
    if !headers.get_all(header::COOKIE).iter().any(is_shown) {
        return;
    }
    let left: Vec<HeaderValue> =
        headers.get_all(header::COOKIE).iter().filter_map(without_session).collect();
    headers.remove(header::COOKIE);
    for line in left {
        headers.append(header::COOKIE, line);
    }
}

fn pairs(cookies: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    cookies.as_bytes().split(|byte| *byte == b';')
}

fn is_session(pair: &[u8]) -> bool {
    let name_end = pair.iter().position(|byte| *byte == b'=');
    let name = name_end.and_then(|end| pair.get(..end));
    name.is_some_and(|name| name.trim_ascii() == SESSION_COOKIE.as_bytes())
}

/// A line of cookies without the dashboard's own; nothing if it had no other.
fn without_session(line: &HeaderValue) -> Option<HeaderValue> {
    if !pairs(line).any(is_session) {
        return Some(line.clone());
    }
    let others: Vec<&[u8]> = pairs(line).filter(|pair| !is_session(pair)).collect();
    let joined = others.join(&b";"[..]);
    // Pieces of a header that are joined by its own separator are a header.
    HeaderValue::from_bytes(joined.trim_ascii()).ok().filter(|line| !line.is_empty())
}

/// Where a caller takes trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrailersTaken {
    /// After any answer.
    Always,
    /// After an answer whose length is not stated before it.
    Chunked,
    Never,
}

/// Where a caller takes trailers: in HTTP/1.1 it must have said so.
pub(crate) fn trailers_taken(parts: &Parts, named: NamedFields) -> TrailersTaken {
    let says_so = |line: &HeaderValue| {
        line.as_bytes()
            .split(|b| *b == b',')
            .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    };
    match parts.version {
        Version::HTTP_2 => TrailersTaken::Always,
        Version::HTTP_11 if named.te && parts.headers.get_all(header::TE).iter().any(says_so) => {
            TrailersTaken::Chunked
        }
        _ => TrailersTaken::Never,
    }
}

/// Lets an answer announce trailers only where they can follow.
pub(crate) fn announce_trailers<B: Body>(response: &mut Response<B>, taken: TrailersTaken) {
    let may_follow = match taken {
        TrailersTaken::Always => true,
        TrailersTaken::Chunked => response.body().size_hint().exact().is_none(),
        TrailersTaken::Never => false,
    };
    if !may_follow {
        response.headers_mut().remove(header::TRAILER);
    }
}

/// Takes what belongs to one hop. `Upgrade` survives where the caller wants another protocol and the
/// route is not covered.
pub(crate) fn strip_hop(headers: &mut HeaderMap, keep_upgrade: bool) {
    strip_hop_and(headers, keep_upgrade, |_| false);
}

fn strip_hop_and(
    headers: &mut HeaderMap,
    keep_upgrade: bool,
    is_unwanted: impl Fn(&HeaderName) -> bool,
) {
    let is_unwanted = |name: &HeaderName| is_of_one_hop(name.as_str()) || is_unwanted(name);
    // `Connection` and `Upgrade` belong to one hop themselves, so where nothing does, there is neither.
    if !headers.keys().any(is_unwanted) {
        return;
    }
    let upgrade = if keep_upgrade { headers.remove(header::UPGRADE) } else { None };
    if headers.contains_key(header::CONNECTION) {
        for name in named_by_connection(headers) {
            // Whom a request is for and where it ends is not a matter of one hop, whoever says so.
            if name != header::HOST && name != header::CONTENT_LENGTH {
                headers.remove(name);
            }
        }
    }
    strip(headers, is_unwanted);
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Says to the upstream who the caller is, and which host it has named.
pub(crate) fn forward(
    headers: &mut HeaderMap,
    peer: &Peer,
    networks: &[IpNet],
    host: Option<HeaderValue>,
) {
    let proto = HeaderValue::from_static(if peer.is_tls { "https" } else { "http" });
    if !peer.is_trusted(networks) {
        strip(headers, |name| CLAIMS.contains(name));
        headers.insert(X_FORWARDED_FOR, peer.shown.clone());
        headers.insert(X_FORWARDED_PROTO, proto);
        // Without a host nothing is said about it, not even by the caller.
        match host {
            Some(host) => headers.insert(X_FORWARDED_HOST, host),
            None => headers.remove(X_FORWARDED_HOST),
        };
        return;
    }
    let mut all: Vec<&[u8]> =
        headers.get_all(X_FORWARDED_FOR).iter().map(|v| v.as_bytes()).collect();
    all.push(peer.shown.as_bytes());
    if let Ok(all) = HeaderValue::from_bytes(&all.join(&b", "[..])) {
        headers.insert(X_FORWARDED_FOR, all);
    }
    headers.entry(X_FORWARDED_PROTO).or_insert(proto);
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

/// Says to the upstream which part of the path was taken off.
pub(crate) fn forward_prefix(headers: &mut HeaderMap, prefix: &str) {
    if let Ok(prefix) = HeaderValue::from_str(prefix) {
        headers.insert(X_FORWARDED_PREFIX, prefix);
    }
}

/// Says to the upstream which execution this is.
pub(crate) fn announce(headers: &mut HeaderMap, attempt: &Attempt) {
    headers.insert(FENCE, attempt.fence().0.into());
    headers.insert(ATTEMPT, attempt.number().into());
    if let Ok(id) = HeaderValue::from_str(&attempt.id().to_string()) {
        headers.insert(RECORD_ID, id);
    }
}

/// Makes ids of requests: a random beginning per process and a number.
#[derive(Debug)]
pub(crate) struct RequestIds {
    process: [u8; 16],
    next: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new(process: u64) -> Self {
        Self { process: hex_of(process), next: AtomicU64::new(0) }
    }

    /// The id of a request: the client's first one if it is sane, else a new one. The request has no other afterwards.
    pub(crate) fn of(&self, headers: &mut HeaderMap, named: NamedFields) -> HeaderValue {
        let given = if named.request_id { headers.get(X_REQUEST_ID) } else { None };
        if let Some(given) = given.filter(|given| is_sane(given.as_bytes())).cloned() {
            headers.insert(X_REQUEST_ID, given.clone());
            return given;
        }
        let made = self.made();
        headers.insert(X_REQUEST_ID, made.clone());
        made
    }

    /// A new id.
    pub(crate) fn made(&self) -> HeaderValue {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut id = [0; 32];
        let (process, of_request) = id.split_at_mut(16);
        process.copy_from_slice(&self.process);
        of_request.copy_from_slice(&hex_of(number));
        HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("none"))
    }
}

/// A number as 16 hexadecimal digits. Every request needs them, so they are not formatted.
fn hex_of(number: u64) -> [u8; 16] {
    std::array::from_fn(|at| {
        let digit = (number >> (60 - 4 * at)) as u8 & 0xf;
        if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }
    })
}

/// Whether an id may stand in logs and headers as it is: the log writes it without looking for what must be escaped.
fn is_sane(id: &[u8]) -> bool {
    (1..=REQUEST_ID_CHARS_MAX).contains(&id.len())
        && id.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.:/+=@".contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    fn forward_said(headers: &mut HeaderMap, peer: &Peer, networks: &[IpNet]) {
        let host = headers.get(header::HOST).cloned();
        forward(headers, peer, networks, host);
    }

    fn id_of(ids: &RequestIds, headers: &mut HeaderMap) -> HeaderValue {
        let named = NamedFields::of(headers);
        ids.of(headers, named)
    }

    #[test]
    fn what_strangers_claim_is_replaced_and_what_proxies_claim_is_kept() {
        let claims = [
            ("host", "api.test"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
        ];
        let peer = Peer::new("10.1.1.1".parse().unwrap(), false);
        let mut headers = map(&claims);
        forward_said(&mut headers, &peer, &[]);
        assert_eq!(headers["x-forwarded-for"], "10.1.1.1");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "api.test");
        assert!(!headers.contains_key("forwarded") && !headers.contains_key("x-real-ip"));
        let mut headers = map(&[("x-forwarded-host", "forged.test")]);
        forward_said(&mut headers, &peer, &[]);
        assert!(!headers.contains_key("x-forwarded-host"), "a caller may name no host at all");

        let mut headers = map(&claims);
        forward_said(&mut headers, &peer, &["10.0.0.0/8".parse().unwrap()]);
        assert_eq!(headers["x-forwarded-for"], "1.2.3.4, 10.1.1.1");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["forwarded"], "for=1.2.3.4");
    }

    #[test]
    fn hop_headers_and_forged_markers_end_here() {
        let mut headers = map(&[
            ("connection", "close, x-secret"),
            ("x-secret", "1"),
            ("keep-alive", "1"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("proxy-authorization", "Basic x"),
            ("retrysafe-fence", "99"),
            ("retrysafe-anything", "99"),
            ("idempotent-replayed", "true"),
            ("x-original-url", "/pay"),
            ("x-forwarded-path", "/pay"),
            ("expect", "100-continue"),
            ("trailer", "x-hidden"),
            ("x-kept", "1"),
        ]);
        strip_request(&mut headers, &GuardedHeaders::built_in(), false);
        assert_eq!(headers.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["x-kept"]);
        let mut headers = map(&[("connection", "Upgrade"), ("upgrade", "websocket")]);
        strip_hop(&mut headers, true);
        assert_eq!(
            (&headers["connection"], &headers["upgrade"]),
            (&HeaderValue::from_static("upgrade"), &HeaderValue::from_static("websocket"))
        );
    }

    #[test]
    fn the_dashboards_session_is_taken_and_other_cookies_stay_as_they_are() {
        let left = |lines: &[&'static str]| {
            let pairs: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
            let mut headers = map(&pairs);
            strip_session(&mut headers);
            let lines = headers.get_all("cookie").iter().map(|line| line.to_str().unwrap());
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(left(&["retrysafe-session=1"]), [""; 0]);
        assert_eq!(left(&["a=1; retrysafe-session=1; b=2"]), ["a=1; b=2"]);
        assert_eq!(left(&["retrysafe-session=1;  b = \"2\";c"]), ["b = \"2\";c"]);
        assert_eq!(left(&["a=1;retrysafe-session =x=y"]), ["a=1"]);
        assert_eq!(left(&["a=1", "retrysafe-session=1", "b=2"]), ["a=1", "b=2"]);
        for other in [
            " ;; a=retrysafe-session=1 ;",
            "Retrysafe-Session=1",
            "xretrysafe-session=1",
            "retrysafe-session2=1",
            "retrysafe-session",
        ] {
            assert_eq!(left(&[other]), [other]);
        }
    }

    #[test]
    fn another_protocol_may_not_carry_requests_past_the_rules() {
        let wants = |version, fields: &[_]| {
            let mut parts = http::Request::new(()).into_parts().0;
            (parts.version, parts.headers) = (version, map(fields));
            wants_upgrade(&parts)
        };
        let one = |line| wants(Version::HTTP_11, &[("upgrade", line)]);
        assert!(one("websocket") && one("echo/1, websocket"));
        for line in ["h2c", "websocket, H2C", "HTTP/2.0", "TLS/1.0, HTTP/1.1"] {
            assert!(!one(line), "{line}");
        }
        assert!(!wants(Version::HTTP_11, &[]));
        assert!(!wants(Version::HTTP_10, &[("upgrade", "websocket")]));
    }

    #[test]
    fn an_upstream_agrees_to_what_it_was_asked_for() {
        let agree = |asked: Option<&'static str>, given: &[_]| {
            agrees(asked.map(HeaderValue::from_static).as_ref(), &map(given))
        };
        let chat = ("upgrade", "chat/2");
        let websocket = ("upgrade", "WebSocket");
        assert!(agree(Some("websocket"), &[websocket]));
        assert!(agree(Some("chat/2, websocket"), &[websocket]));
        assert!(agree(Some("chat/2, websocket"), &[chat, websocket]));
        assert!(!agree(Some("websocket"), &[chat]));
        assert!(!agree(Some("websocket"), &[chat, websocket]));
        assert!(!agree(Some("websocket"), &[]));
        assert!(!agree(None, &[websocket]));
    }

    #[test]
    fn sane_request_ids_are_kept_and_others_made() {
        let ids = RequestIds::new(7);
        let mut headers = map(&[("x-request-id", "abc-1")]);
        assert_eq!(id_of(&ids, &mut headers), "abc-1");
        let mut headers = map(&[("x-request-id", "first"), ("x-request-id", "second")]);
        assert_eq!(id_of(&ids, &mut headers), "first");
        assert_eq!(headers.get_all("x-request-id").iter().count(), 1);
        for bad in ["", "a b", "<script>", "a\"b", "a\\b"] {
            let mut headers = map(&[("x-request-id", bad)]);
            let made = id_of(&ids, &mut headers);
            assert_eq!(made.len(), 32);
            assert!(made.to_str().unwrap().starts_with("0000000000000007"));
            assert_eq!(headers["x-request-id"], made);
        }
        let [one, other] = [(); 2].map(|()| id_of(&ids, &mut HeaderMap::new()));
        assert_ne!(one, other);
    }
}
