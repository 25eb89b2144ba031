//! Which words of ours travel in a message?
//!
//! Headers that we read or write, how long callers wait before they ask again, and how a refusal becomes a response: once for
//! the layer, the gateway, the client and the handler of transactions.

use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};

pub use crate::key::IDEMPOTENCY_KEY;
pub use crate::policy::REPLAY_MARKER;

use crate::problem::Problem;

/// When the record behind an answer will be forgotten.
pub const IDEMPOTENCY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

/// By which an upstream says what became of a request, and a gateway that nobody knows.
pub const OUTCOME: HeaderName = HeaderName::from_static("retrysafe-outcome");

/// Marks an answer that was given without protection, and says why.
pub const UNPROTECTED: HeaderName = HeaderName::from_static("retrysafe-unprotected");

/// The fence of an execution, for upstreams that can refuse a late owner.
pub const FENCE: HeaderName = HeaderName::from_static("retrysafe-fence");

/// The how-manieth attempt of a request an execution is.
pub const ATTEMPT: HeaderName = HeaderName::from_static("retrysafe-attempt");

/// The name of an execution's record, by which the upstream can be asked about it later.
pub const RECORD_ID: HeaderName = HeaderName::from_static("retrysafe-id");

/// When a caller first sent a request (the OASIS name).
pub const FIRST_SENT: HeaderName = HeaderName::from_static("repeatability-first-sent");

/// Headers by which a request asks to be taken for another method.
pub static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

/// The methods that a request asks to be taken for, as they are spelt.
pub fn method_overrides(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    // One look at the names that are there, instead of a search for each: hardly any request has one of these.
    let has_any = headers.keys().any(|name| METHOD_OVERRIDES.contains(name));
    let names: &[HeaderName] = if has_any { &METHOD_OVERRIDES } else { &[] };
    names.iter().flat_map(|name| headers.get_all(name)).map(HeaderValue::as_bytes)
}

/// When to ask again after a failure that may be over soon.
pub const ASK_AGAIN_SOON: Duration = Duration::from_secs(1);

/// When to ask again about an outcome that nobody knows. Somebody has to find out: a reconciler's
/// first lookup, a webhook. Sooner would be noise.
pub const ASK_AGAIN_ABOUT_UNKNOWN: Duration = Duration::from_secs(10);

/// What a resource of ours takes that refuses a method: whatever a rule might cover, and the safe ones.
const ALLOWED: &str = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE";

impl Problem {
    /// The refusal as a response, whose body is made of the document. No cache may keep it.
    pub fn into_response<B>(self, body: impl FnOnce(Vec<u8>) -> B) -> Response<B> {
        let Self {
            status,
            code: _,
            content_type,
            retry_after,
            challenge,
            headers: own,
            body: document,
        } = self;
        let mut response = Response::new(body(document));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(challenge) = challenge {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static(ALLOWED));
        }
        headers.extend(own);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::problem::{Refusal, TokenFault};

    fn response(refusal: &Refusal) -> Response<Vec<u8>> {
        refusal.problem(&Policy::default()).into_response(|document| document)
    }

    #[test]
    fn a_refusal_says_when_to_ask_again_and_what_it_wants() {
        let busy = response(&Refusal::StoreUnavailable { retry_after: ASK_AGAIN_SOON });
        assert_eq!(busy.status(), 503);
        assert_eq!(busy.headers()["retry-after"], "1");
        assert_eq!(busy.headers()["content-type"], "application/problem+json");
        assert_eq!(busy.headers()["cache-control"], "no-store");
        assert!(!busy.body().is_empty());
        let nobody = response(&Refusal::CredentialInvalid(TokenFault::Missing));
        assert_eq!(nobody.headers()["www-authenticate"], "Bearer");
        assert!(response(&Refusal::MethodRefused).headers().contains_key("allow"));
        assert!(!response(&Refusal::KeyMissing).headers().contains_key("retry-after"));
    }

    #[test]
    fn overrides_are_read_from_every_header() {
        let mut headers = HeaderMap::new();
        for name in &METHOD_OVERRIDES {
            headers.append(name, HeaderValue::from_static("post"));
        }
        assert_eq!(method_overrides(&headers).collect::<Vec<_>>(), [b"post"; 3]);
    }
}
