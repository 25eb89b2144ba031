//! How does an axum handler get its attempt?

use std::convert::Infallible;
use std::fmt;

use axum::body::Body;
use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use retrysafe_core::Policy;
use retrysafe_core::problem::Refusal;

use super::attempt::Attempt;

/// A handler asked for an [`Attempt`], and its request has none: the layer is missing, or the request
/// has no key. Its response is 500 with the code `handler_failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingAttempt;

const WHY: &str = "this handler takes an `Attempt`, and this request has none: put the idempotency layer \
                   around the handler, and require a key there or take `Option<Attempt>`";

impl fmt::Display for MissingAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WHY)
    }
}

impl std::error::Error for MissingAttempt {}

impl IntoResponse for MissingAttempt {
    fn into_response(self) -> Response {
        Refusal::HandlerFailed(WHY).problem(&Policy::default()).into_response(Body::from)
    }
}

/// Refused where there is no attempt. Take `Option<Attempt>` where a key is optional.
impl<S: Send + Sync> FromRequestParts<S> for Attempt {
    type Rejection = MissingAttempt;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingAttempt> {
        parts.extensions.get().cloned().ok_or(MissingAttempt)
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for Attempt {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}
