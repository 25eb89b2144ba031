//! What is an operator told when something cannot be done?

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use retrysafe_core::StoreError;
use retrysafe_core::record::Fence;
use serde_json::json;

/// Why an operator's request is refused.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The token is missing or wrong.
    Unauthorized,
    /// There is no such record or page.
    NotFound,
    /// The record was decided before, or the verb is not for its state, which is this.
    Conflict(&'static str),
    /// The record has gone on to another attempt, of this fence, since it was looked at.
    AnotherAttempt(Fence),
    /// The request makes no sense, for this reason.
    Invalid(String),
    /// The body is too large, or broke off.
    BodyTooLarge,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The store failed.
    Store(StoreError),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, code, detail) = match self {
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "Send the admin token as a bearer token.".to_owned(),
            ),
            Self::NotFound => {
                (StatusCode::NOT_FOUND, "not_found", "There is nothing here.".to_owned())
            }
            Self::Conflict(state) => (
                StatusCode::CONFLICT,
                "already_decided",
                format!("The record is {state}; this is not for that state. Nothing was changed."),
            ),
            Self::AnotherAttempt(Fence(now)) => (
                StatusCode::CONFLICT,
                "another_attempt",
                format!(
                    "The record is about another attempt by now, of fence {now}. Look at it again. \
                     Nothing was changed."
                ),
            ),
            Self::Invalid(why) => (StatusCode::BAD_REQUEST, "invalid", why),
            Self::BodyTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "request_too_large",
                "The body is larger than 2 MiB, or broke off.".to_owned(),
            ),
            Self::BodyTimeout => (
                StatusCode::REQUEST_TIMEOUT,
                "request_timeout",
                "The body did not arrive in time.".to_owned(),
            ),
            Self::Store(error) => {
                (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string())
            }
        };
        let document = json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "code": code,
            "detail": detail,
        });
        let mut response = (status, Json(document)).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
