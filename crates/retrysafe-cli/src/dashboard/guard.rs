//! What may a browser do with a page, and what may another site make it do?
//!
//! A page loads nothing but our own style and script, is shown in no frame, and is kept by no cache. A request that changes
//! something must come from one of our own pages: browsers say where a request comes from, and each form carries a value
//! that only this session's pages have ([`Session`](super::session::Session)).

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::Method;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::error::Trouble;

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Adds what every page needs, and refuses what another site has sent.
pub(super) async fn harden(request: Request, next: Next) -> Response {
    let is_change = request.method() != Method::GET && request.method() != Method::HEAD;
    let mut response = if is_change && !is_own(request.headers()) {
        Trouble::Foreign.into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    let mut put = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    put(header::CONTENT_SECURITY_POLICY, POLICY);
    put(header::X_FRAME_OPTIONS, "DENY");
    put(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    // Not "no-referrer": a browser would then call the origin of our own forms "null".
    put(header::REFERRER_POLICY, "same-origin");
    put(header::CACHE_CONTROL, "no-store");
    response
}

/// Whether a browser says that one of our own pages has sent this. A program that is no browser says nothing; it has no cookie that
/// another site could use.
fn is_own(headers: &HeaderMap) -> bool {
    let said = |name: &HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    let site_is_own =
        said(&FETCH_SITE).is_none_or(|site| site == b"same-origin" || site == b"none");
    let origin_is_own = said(&header::ORIGIN).is_none_or(|origin| {
        let host = said(&header::HOST).unwrap_or_default();
        let scheme_end = origin.windows(3).position(|part| part == b"://");
        let shown = scheme_end.and_then(|end| origin.get(end + 3..));
        !host.is_empty() && shown.is_some_and(|shown| shown.eq_ignore_ascii_case(host))
    });
    site_is_own && origin_is_own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn what_another_site_sends_is_not_our_own() {
        let own = |pairs: &[_]| is_own(&headers(pairs));
        assert!(own(&[("host", "localhost:9090"), ("origin", "http://localhost:9090")]));
        assert!(own(&[
            ("host", "a:1"),
            ("origin", "http://a:1"),
            ("sec-fetch-site", "same-origin")
        ]));
        assert!(own(&[("host", "localhost:9090")]));
        assert!(!own(&[("host", "localhost:9090"), ("origin", "http://localhost:9091")]));
        assert!(!own(&[("host", "localhost:9090"), ("origin", "https://evil.example")]));
        assert!(!own(&[("host", "localhost:9090"), ("origin", "null")]));
        assert!(!own(&[("origin", "http://localhost:9090")]));
        assert!(!own(&[("host", "a"), ("sec-fetch-site", "cross-site")]));
        assert!(!own(&[("host", "a"), ("sec-fetch-site", "same-site")]));
    }
}
