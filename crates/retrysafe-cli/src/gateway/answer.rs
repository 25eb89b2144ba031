//! How does an answer of the gateway's own look?

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use retrysafe_core::Policy;
use retrysafe_core::problem::Refusal;

use super::body::Reply;

/// When to ask again after a failure that may be over soon.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A refusal, in the route's dialect. It is among the extensions as well, for the log.
pub(crate) fn refused(refusal: &Refusal, policy: &Policy) -> Response<Reply> {
    let problem = refusal.problem(policy);
    let mut response = Response::new(Reply::Own(Some(problem.body.into())));
    *response.status_mut() = problem.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(problem.content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = problem.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if let Some(challenge) = problem.challenge {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    if problem.status == StatusCode::METHOD_NOT_ALLOWED {
        let allowed = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE";
        headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
    }
    response.extensions_mut().insert(refusal.clone());
    response
}

/// A JSON document.
pub(crate) fn json(document: &serde_json::Value) -> Response<Reply> {
    let mut response = Response::new(Reply::Own(Some(Bytes::from(document.to_string()))));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
