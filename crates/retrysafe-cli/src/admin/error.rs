//! What is an operator told when something cannot be done?

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use retrysafe::outbox::OutboxError;
use retrysafe_core::StoreError;
use retrysafe_core::record::Fence;
use serde_json::json;

use crate::config::Role;

/// Why an operator's request is refused.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The token is missing or wrong.
    Unauthorized,
    /// The token is somebody's, but its role is too small.
    RoleNeeded { name: Arc<str>, role: Role, needed: Role },
    /// There is no such record or page.
    NotFound,
    /// The record was decided before, or the verb is not for its state, which is this.
    Conflict(&'static str),
    /// The record has gone on to another attempt, of this fence, since it was looked at.
    AnotherAttempt(Fence),
    /// The evidence says too little about this record, or there is none, for this reason.
    NoEvidence(String),
    /// Nobody can be asked about unknown records: the configuration names nobody.
    NobodyToAsk,
    /// Whether lookups have given up was asked, and this process does not look the record up.
    LookupsUnseen,
    /// The decision was for records whose lookups have given up, or for the others, and this record is not one of them.
    LookupsDiffer { given_up: bool },
    /// As many lookups are under way as there may be.
    TooManyLookups,
    /// The request makes no sense, for this reason.
    Invalid(String),
    /// The body is too large, or broke off.
    BodyTooLarge,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The store failed.
    Store(StoreError),
    /// The store has no outbox.
    NoOutbox,
    /// The store has no inbox.
    NoInbox,
    /// An event cannot be replayed, for this reason.
    Event(&'static str),
    /// A decision about effects was refused, for this reason.
    Effect(OutboxError),
}

impl From<OutboxError> for Refused {
    fn from(error: OutboxError) -> Self {
        if let OutboxError::Store(error) = error {
            return Self::Store(error);
        }
        match error.code() {
            "absent" => Self::NotFound,
            "no_filter" => Self::Invalid(error.to_string()),
            _ => Self::Effect(error),
        }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Refused {
    /// Its status, its code, and what is to be done about it.
    pub(crate) fn told(&self) -> (StatusCode, &'static str, String) {
        match self {
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "Send the admin token as a bearer token.".to_owned(),
            ),
            Self::RoleNeeded { name, role, needed } => (
                StatusCode::FORBIDDEN,
                "role_needed",
                format!("This needs the role {}. The token of {name} has the role {}.", needed.name(), role.name()),
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
            Self::NoEvidence(why) => (
                StatusCode::CONFLICT,
                "evidence_insufficient",
                format!("Nothing was changed: {why}."),
            ),
            Self::NobodyToAsk => (
                StatusCode::NOT_IMPLEMENTED,
                "no_reconciler",
                "Nobody can be asked about this record: set `reconcile.url` to where the upstream says what became of a request."
                    .to_owned(),
            ),
            Self::LookupsUnseen => (
                StatusCode::NOT_IMPLEMENTED,
                "no_reconciler",
                "This process does not look the record up, so it cannot know whether lookups have given up. Ask the admin listener of a \
                 process whose file has `[reconcile]` or `[lookups.NAME]`, or leave out `dead_lettered` (--dead-lettered) and choose by \
                 age, route, path or scope."
                    .to_owned(),
            ),
            Self::LookupsDiffer { given_up: true } => (
                StatusCode::CONFLICT,
                "lookups_differ",
                "The lookups of this record have given up by now. Nothing was changed.".to_owned(),
            ),
            Self::LookupsDiffer { given_up: false } => (
                StatusCode::CONFLICT,
                "lookups_differ",
                "This record is still looked up: it is not dead-lettered. Nothing was changed.".to_owned(),
            ),
            Self::TooManyLookups => (
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_lookups",
                "As many lookups are under way as there may be. Ask again in a moment.".to_owned(),
            ),
            Self::Invalid(why) => (StatusCode::BAD_REQUEST, "invalid", why.clone()),
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
            Self::Effect(OutboxError::Database(error)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string())
            }
            Self::NoOutbox => (
                StatusCode::NOT_IMPLEMENTED,
                "no_outbox",
                "This store has no outbox. Effects live in PostgreSQL: set `store` to postgres://… or tiered:…"
                    .to_owned(),
            ),
            Self::NoInbox => (
                StatusCode::NOT_IMPLEMENTED,
                "no_inbox",
                "This store has no inbox. Webhooks are kept in PostgreSQL: set `store` to postgres://… or tiered:…"
                    .to_owned(),
            ),
            Self::Event(why) => (StatusCode::CONFLICT, "not_replayable", (*why).to_owned()),
            Self::Effect(error) => (
                StatusCode::CONFLICT,
                error.code(),
                format!("{error}. Nothing was changed. Look at the effect again."),
            ),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, code, detail) = self.told();
        let needed_role = match &self {
            Self::RoleNeeded { needed, .. } => Some(needed.name()),
            Self::Unauthorized
            | Self::NotFound
            | Self::Conflict(_)
            | Self::AnotherAttempt(_)
            | Self::NoEvidence(_)
            | Self::NobodyToAsk
            | Self::LookupsUnseen
            | Self::LookupsDiffer { .. }
            | Self::TooManyLookups
            | Self::Invalid(_)
            | Self::BodyTooLarge
            | Self::BodyTimeout
            | Self::Store(_)
            | Self::NoOutbox
            | Self::NoInbox
            | Self::Event(_)
            | Self::Effect(_) => None,
        };
        let mut document = json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "code": code,
            "detail": detail,
        });
        if let (Some(role), Some(members)) = (needed_role, document.as_object_mut()) {
            members.insert("needed_role".into(), role.into());
        }
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
