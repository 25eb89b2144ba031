//! How does an answer of the gateway's own look?

use bytes::Bytes;
use http::Response;
use http::header::{self, HeaderValue};
use retrysafe_core::Policy;
use retrysafe_core::problem::{Problem, Refusal};

use super::body::Reply;

/// A refusal, in the route's dialect. It is among the extensions as well, for the log.
pub(crate) fn refused(refusal: &Refusal, policy: &Policy) -> Response<Reply> {
    sent(refusal, refusal.problem(policy))
}

/// The same for a request that has no key.
pub(crate) fn refused_without_key(refusal: &Refusal, policy: &Policy) -> Response<Reply> {
    sent(refusal, refusal.problem_without_key(policy))
}

fn sent(refusal: &Refusal, problem: Problem) -> Response<Reply> {
    let mut response = problem.into_response(|document| Reply::Own(Some(document.into())));
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
