//! What do we tell the caller? Every status code we mint stands here.
//!
//! A refusal is an `application/problem+json` document (RFC 9457) with a stable `type`, a `code` to
//! switch on, and a page under `docs/problems/`. The `stripe` dialect answers in Stripe's shape, so
//! that its official clients raise their own error classes.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::key::{KeyError, show_header_name};
use crate::policy::{Dialect, InFlight, Policy};
use crate::record::AnswerHead;

/// Where the pages live that explain the codes.
const PAGES: &str = "https://github.com/retrysafe/retrysafe/blob/main/docs/problems/";

/// Why a request is not answered by the handler.
///
/// ```
/// use retrysafe_core::problem::Refusal;
///
/// fn is_callers_fault(refusal: &Refusal) -> bool {
///     // There may be more kinds one day.
///     matches!(refusal, Refusal::KeyMissing | Refusal::KeyInvalid(_) | Refusal::KeyReused)
/// }
/// assert!(is_callers_fault(&Refusal::KeyMissing));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A key is required here.
    KeyMissing,
    /// The key cannot be used.
    KeyInvalid(KeyError),
    /// The key belongs to another request.
    KeyReused,
    /// The first request with this key is still running.
    InProgress {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The request may have been executed, and nobody knows.
    OutcomeUnknown {
        /// When to ask again.
        retry_after: Duration,
        /// The head of its answer, if one had come before the rest was lost.
        head: Option<AnswerHead>,
    },
    /// This very request is still running, and its caller has waited for long enough.
    AnswerLate {
        /// When to ask again.
        retry_after: Duration,
    },
    /// This very request was sent on, and no whole answer came back.
    AnswerLost {
        /// Whether time ran out, or the connection broke.
        timed_out: bool,
        /// When to ask again.
        retry_after: Duration,
    },
    /// This very request's handler panicked.
    Panicked {
        /// When to ask again.
        retry_after: Duration,
    },
    /// This very request was executed, but its answer could not be made durable.
    NotDurable {
        /// When to ask again.
        retry_after: Duration,
    },
    /// Executed before, but the answer was not kept.
    ResponseNotStored {
        /// The status of the first answer.
        original_status: Option<StatusCode>,
        /// The `Location` of the first answer.
        original_location: Option<HeaderValue>,
    },
    /// The store is out of reach, so nothing was executed.
    StoreUnavailable {
        /// When to ask again.
        retry_after: Duration,
    },
    /// There is no memory for another request, so nothing was executed.
    Overloaded {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The upstream is out of reach, and nothing was sent.
    UpstreamUnreachable {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The upstream does not answer when it is asked how it is, so nothing was sent.
    UpstreamUnhealthy {
        /// When to ask again.
        retry_after: Duration,
    },
    /// Too many new keys from this caller.
    KeyRateExceeded {
        /// When to ask again.
        retry_after: Duration,
    },
    /// Retrying, or guessing keys, too fast.
    RetryTooFast {
        /// When to ask again.
        retry_after: Duration,
    },
    /// Nothing in the request can say who is asking, for this reason.
    ScopeUnsafe(UnsafeScope),
    /// The key was first used with another credential of the same name, and may have been executed.
    CredentialChanged,
    /// The route demands a verified token, and the request has none that verifies.
    CredentialInvalid(TokenFault),
    /// The keys that would verify the token are out of reach, so nothing was executed.
    KeysUnavailable {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The request says that it was first sent too long ago, or does not say it.
    RequestTooOld,
    /// The request body is larger than the route takes.
    BodyTooLarge,
    /// The request body did not arrive in time.
    BodyTimeout,
    /// The request body broke off or was malformed.
    BodyBroken,
    /// Two servers could read this request differently, for this reason.
    Malformed(&'static str),
    /// The method is never passed on.
    MethodRefused,
    /// The request expects something that nobody promises.
    ExpectationFailed,
    /// The request body has a transfer coding that is not passed on.
    CodingUnsupported,
    /// An unprotected request was sent on, and no whole answer came back.
    UpstreamFailed {
        /// Whether time ran out, or the connection broke.
        timed_out: bool,
    },
    /// The caller has no such key, or may not ask.
    KeyNotFound,
    /// A webhook is not believed, for this reason.
    WebhookRefused(Box<str>),
    /// A webhook was not taken, and is to be sent again.
    WebhookNotTaken {
        /// When to send it again.
        retry_after: Duration,
    },
    /// The application's handler failed, and what it did is undone, or it was not begun, for this reason.
    HandlerFailed(&'static str),
}

/// Why nothing in a request can say who is asking. Each text names the setting that cures it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnsafeScope {
    /// The request shows no credential that is known.
    Nobody,
    /// Its `Authorization` is made anew for each request.
    MadeAnew,
    /// Its `Authorization` has a scheme of which nobody knows whether it stays the same.
    UnknownScheme,
    /// It has cookies and no `Authorization`.
    Cookies,
    /// A header that says who is asking is missing, empty, or there more than once.
    Header(HeaderName),
    /// The cookie that says who is asking is missing, empty, or there more than once.
    Cookie(Box<str>),
    /// The token verifies and does not have this claim.
    Claim(Box<str>),
    /// The application has found nobody.
    Application,
}

/// What is wrong with a token that a route demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenFault {
    /// There is none.
    Missing,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    Early,
    /// Its form, algorithm, key, signature, issuer or audience is not one that is accepted.
    Wrong,
}

/// A refusal as it is sent. Whoever writes refusals otherwise changes it.
///
/// ```
/// use retrysafe_core::Policy;
/// use retrysafe_core::problem::Refusal;
///
/// let mut problem = Refusal::KeyMissing.problem(&Policy::default());
/// assert_eq!((problem.status.as_u16(), problem.code), (400, "idempotency_key_missing"));
/// problem.headers.insert("x-support", "https://support.example".parse()?);
/// problem.headers.remove("link");
/// let response = problem.into_response(|document| document);
/// assert_eq!(response.headers()["x-support"], "https://support.example");
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    /// The code to switch on.
    pub code: &'static str,
    /// `application/problem+json`, or `application/json` in Stripe's dialect.
    pub content_type: &'static str,
    /// For `Retry-After`, in whole seconds.
    pub retry_after: Option<u64>,
    /// For `WWW-Authenticate`.
    pub challenge: Option<&'static str>,
    /// Further headers: a `Link` to the page that explains the code. They win over those above.
    pub headers: HeaderMap,
    /// The document.
    pub body: Vec<u8>,
}

/// The constant part of a refusal: status, code, title, detail.
struct Row(StatusCode, &'static str, &'static str, &'static str);

impl Refusal {
    /// The refusal in a policy's dialect, with the name that the policy gives to the key's header.
    pub fn problem(&self, policy: &Policy) -> Problem {
        self.in_words(policy, &self.detail(policy))
    }

    /// The same for a request that has no key: where the text asks for a retry, it does not speak of one.
    pub fn problem_without_key(&self, policy: &Policy) -> Problem {
        self.in_words(policy, &self.detail(policy).replace(" with the same key", ""))
    }

    fn detail(&self, policy: &Policy) -> String {
        let Row(_, _, _, detail) = self.row();
        let header = show_header_name(&policy.key_header);
        match self {
            Self::KeyMissing => format!(
                "This operation requires the header {header}, so that it can be retried safely."
            ),
            Self::KeyInvalid(error) => format!("{header}: {error}."),
            Self::Malformed(why) | Self::HandlerFailed(why) => format!("{why}."),
            Self::ScopeUnsafe(why) => why.to_string(),
            Self::WebhookRefused(why) => format!("{why}."),
            Self::CredentialInvalid(fault) => fault.to_string(),
            Self::KeyReused
            | Self::InProgress { .. }
            | Self::OutcomeUnknown { .. }
            | Self::AnswerLate { .. }
            | Self::AnswerLost { .. }
            | Self::Panicked { .. }
            | Self::NotDurable { .. }
            | Self::ResponseNotStored { .. }
            | Self::StoreUnavailable { .. }
            | Self::Overloaded { .. }
            | Self::UpstreamUnreachable { .. }
            | Self::UpstreamUnhealthy { .. }
            | Self::KeyRateExceeded { .. }
            | Self::RetryTooFast { .. }
            | Self::CredentialChanged
            | Self::KeysUnavailable { .. }
            | Self::RequestTooOld
            | Self::BodyTooLarge
            | Self::BodyTimeout
            | Self::BodyBroken
            | Self::MethodRefused
            | Self::ExpectationFailed
            | Self::CodingUnsupported
            | Self::UpstreamFailed { .. }
            | Self::WebhookNotTaken { .. }
            | Self::KeyNotFound => detail.to_owned(),
        }
    }

    fn in_words(&self, policy: &Policy, detail: &str) -> Problem {
        let Row(status, code, title, _) = self.row();
        let status = self.status_in(status, policy.dialect, policy.in_flight);
        let retry_after = self.retry_after();
        let (content_type, body) = match policy.dialect {
            Dialect::Ietf | Dialect::Conflict => (
                "application/problem+json",
                self.document(status, code, title, detail, retry_after),
            ),
            Dialect::Stripe => ("application/json", self.stripe(code, detail)),
        };
        let page = format!("<{}>; rel=\"describedby\"", self.page());
        let page = HeaderValue::try_from(page).ok().map(|page| (header::LINK, page));
        Problem {
            status,
            code,
            content_type,
            retry_after,
            challenge: self.challenge(),
            headers: HeaderMap::from_iter(page),
            body: body.into_bytes(),
        }
    }

    /// The code to switch on, the same in every dialect but Stripe's body.
    pub fn code(&self) -> &'static str {
        self.row().1
    }

    /// The page that explains the code, which is also the problem's `type`.
    pub fn page(&self) -> String {
        format!("{PAGES}{}.md", self.code())
    }

    fn row(&self) -> Row {
        use StatusCode as S;
        match self {
            Self::KeyMissing => {
                Row(S::BAD_REQUEST, "idempotency_key_missing", "The idempotency key is missing", "")
            }
            Self::KeyInvalid(_) => Row(
                S::BAD_REQUEST,
                "idempotency_key_invalid",
                "The idempotency key is not valid",
                "",
            ),
            Self::KeyReused => Row(
                S::UNPROCESSABLE_ENTITY,
                "idempotency_key_reused",
                "The idempotency key was used for another request",
                "This key was first used with other parameters. Use a new key for a new request.",
            ),
            Self::InProgress { .. } => Row(
                S::CONFLICT,
                "request_in_progress",
                "The request is still running",
                "A request with this key is still running. Retry later with the same key.",
            ),
            Self::OutcomeUnknown { .. } => Row(
                S::CONFLICT,
                "outcome_unknown",
                "The outcome is unknown",
                "This request may have taken effect, and it is not known yet. It will not run again until that is decided. Retry later with the same key.",
            ),
            Self::AnswerLate { .. } => Row(
                S::GATEWAY_TIMEOUT,
                "request_in_progress",
                "The request is still running",
                "The request was sent on, and it is still running. Its answer will be kept. Retry later with the same key.",
            ),
            Self::AnswerLost { timed_out: false, .. } => Row(
                S::BAD_GATEWAY,
                "outcome_unknown",
                "The answer was lost",
                "The request was sent on, and no whole answer came back. It may have taken effect. Retry later with the same key.",
            ),
            Self::AnswerLost { timed_out: true, .. } => Row(
                S::GATEWAY_TIMEOUT,
                "outcome_unknown",
                "The answer did not come in time",
                "The request was sent on, and no answer came in time. It may have taken effect. Retry later with the same key.",
            ),
            Self::Panicked { .. } => Row(
                S::INTERNAL_SERVER_ERROR,
                "outcome_unknown",
                "The handler failed",
                "The request was begun and its handler failed without an answer. It may have taken effect. Retry later with the same key.",
            ),
            Self::NotDurable { .. } => Row(
                S::SERVICE_UNAVAILABLE,
                "outcome_unknown",
                "The answer could not be kept",
                "The request was executed, but its answer could not be stored. Retry later with the same key.",
            ),
            Self::ResponseNotStored { .. } => Row(
                S::GONE,
                "response_not_stored",
                "The answer was not kept",
                "This request was executed before. Its answer was not kept, and it will not run again.",
            ),
            Self::StoreUnavailable { .. } => Row(
                S::SERVICE_UNAVAILABLE,
                "store_unavailable",
                "The idempotency store is out of reach",
                "Nothing was executed. Retry later with the same key.",
            ),
            Self::Overloaded { .. } => Row(
                S::SERVICE_UNAVAILABLE,
                "overloaded",
                "There is no memory for another request",
                "Nothing was executed by this request. Retry later with the same key.",
            ),
            Self::UpstreamUnreachable { .. } => Row(
                S::BAD_GATEWAY,
                "upstream_unreachable",
                "The upstream is out of reach",
                "Nothing was sent. Retry later with the same key.",
            ),
            Self::UpstreamUnhealthy { .. } => Row(
                S::SERVICE_UNAVAILABLE,
                "upstream_unhealthy",
                "The upstream is not well",
                "Nothing was sent. Retry later with the same key.",
            ),
            Self::KeyRateExceeded { .. } => Row(
                S::TOO_MANY_REQUESTS,
                "key_rate_exceeded",
                "Too many new keys",
                "This caller creates keys faster than the route allows.",
            ),
            Self::RetryTooFast { .. } => Row(
                S::TOO_MANY_REQUESTS,
                "retry_too_fast",
                "Retrying too fast",
                "Wait for the time given in Retry-After.",
            ),
            Self::ScopeUnsafe(_) => {
                Row(S::BAD_REQUEST, "scope_unsafe", "The caller cannot be told from others", "")
            }
            Self::CredentialChanged => Row(
                S::CONFLICT,
                "credential_changed",
                "Idempotency-Key was used with another token",
                "This key was first used with another token of the same issuer and subject, and that request may have been executed. Nobody has verified the tokens, so this one is neither run nor answered. For the operator: set [jwt] and scope = [\"jwt:sub\"], and a refreshed token is the same caller.",
            ),
            Self::CredentialInvalid(_) => {
                Row(S::UNAUTHORIZED, "credential_invalid", "The token does not verify", "")
            }
            Self::KeysUnavailable { .. } => Row(
                S::SERVICE_UNAVAILABLE,
                "keys_unavailable",
                "The keys that verify tokens are out of reach",
                "Nothing was executed. Retry later with the same key. For the operator: the gateway cannot read jwt.jwks_url.",
            ),
            Self::RequestTooOld => Row(
                S::PRECONDITION_FAILED,
                "request_too_old",
                "The request was first sent too long ago",
                "Repeatability-First-Sent is missing, malformed or older than this route accepts. Make a new request if it is still wanted.",
            ),
            Self::BodyTooLarge => Row(
                S::PAYLOAD_TOO_LARGE,
                "request_too_large",
                "The request body is too large",
                "Nothing was executed, and the key is still free.",
            ),
            Self::BodyTimeout => Row(
                S::REQUEST_TIMEOUT,
                "request_timeout",
                "The request body did not arrive in time",
                "No whole request was passed on. Its key, if it has one, is still free.",
            ),
            Self::BodyBroken => Row(
                S::BAD_REQUEST,
                "request_broken",
                "The request body is not whole",
                "No whole request was passed on. Its key, if it has one, is still free.",
            ),
            Self::Malformed(_) => {
                Row(S::BAD_REQUEST, "request_malformed", "The request is not well formed", "")
            }
            Self::MethodRefused => Row(
                S::METHOD_NOT_ALLOWED,
                "method_refused",
                "The method is not passed on",
                "CONNECT and TRACE end here. So do methods that are not well known, where a key is \
                 required.",
            ),
            Self::ExpectationFailed => Row(
                S::EXPECTATION_FAILED,
                "expectation_failed",
                "The expectation cannot be met",
                "Only 100-continue may be expected.",
            ),
            Self::CodingUnsupported => Row(
                S::NOT_IMPLEMENTED,
                "coding_unsupported",
                "The transfer coding is not known",
                "A request body may be chunked, and nothing else.",
            ),
            Self::UpstreamFailed { timed_out: false } => Row(
                S::BAD_GATEWAY,
                "upstream_failed",
                "The answer was lost",
                "The request was sent on, and no whole answer came back. It carried no key, so it may have taken effect and nobody will know.",
            ),
            Self::UpstreamFailed { timed_out: true } => Row(
                S::GATEWAY_TIMEOUT,
                "upstream_failed",
                "The answer did not come in time",
                "The request was sent on, and no answer came in time. It carried no key, so it may have taken effect and nobody will know.",
            ),
            Self::KeyNotFound => Row(
                S::NOT_FOUND,
                "key_not_found",
                "There is no such key",
                "The caller has no live record of this key here.",
            ),
            Self::WebhookRefused(_) => {
                Row(S::BAD_REQUEST, "webhook_refused", "The webhook is not believed", "")
            }
            Self::WebhookNotTaken { .. } => Row(
                S::SERVICE_UNAVAILABLE,
                "webhook_not_taken",
                "The webhook was not taken",
                "It could not be kept, or what it names is not there yet. Send it again later.",
            ),
            Self::HandlerFailed(_) => Row(
                S::INTERNAL_SERVER_ERROR,
                "handler_failed",
                "The handler failed, and nothing was done",
                "",
            ),
        }
    }

    fn status_in(&self, status: StatusCode, dialect: Dialect, in_flight: InFlight) -> StatusCode {
        match (self, dialect, in_flight) {
            (Self::KeyReused, Dialect::Stripe, _) => StatusCode::BAD_REQUEST,
            (Self::KeyReused, Dialect::Conflict, _) => StatusCode::CONFLICT,
            (Self::InProgress { .. }, _, InFlight::Accepted) => StatusCode::ACCEPTED,
            (_, Dialect::Ietf | Dialect::Stripe | Dialect::Conflict, _) => status,
        }
    }

    /// When to ask again, in whole seconds. At least one: `Retry-After: 0` would invite a tight loop.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::InProgress { retry_after }
            | Self::OutcomeUnknown { retry_after, .. }
            | Self::AnswerLate { retry_after }
            | Self::AnswerLost { retry_after, .. }
            | Self::Panicked { retry_after }
            | Self::NotDurable { retry_after }
            | Self::StoreUnavailable { retry_after }
            | Self::Overloaded { retry_after }
            | Self::UpstreamUnreachable { retry_after }
            | Self::UpstreamUnhealthy { retry_after }
            | Self::KeyRateExceeded { retry_after }
            | Self::RetryTooFast { retry_after }
            | Self::WebhookNotTaken { retry_after }
            | Self::KeysUnavailable { retry_after } => Some(
                retry_after
                    .as_secs()
                    .saturating_add(u64::from(retry_after.subsec_nanos() > 0))
                    .max(1),
            ),
            Self::KeyMissing
            | Self::KeyInvalid(_)
            | Self::KeyReused
            | Self::ResponseNotStored { .. }
            | Self::ScopeUnsafe(_)
            | Self::CredentialChanged
            | Self::CredentialInvalid(_)
            | Self::RequestTooOld
            | Self::BodyTooLarge
            | Self::BodyTimeout
            | Self::BodyBroken
            | Self::Malformed(_)
            | Self::MethodRefused
            | Self::ExpectationFailed
            | Self::CodingUnsupported
            | Self::UpstreamFailed { .. }
            | Self::KeyNotFound
            | Self::WebhookRefused(_)
            | Self::HandlerFailed(_) => None,
        }
    }

    /// What a caller is told to authenticate with (RFC 6750 §3).
    fn challenge(&self) -> Option<&'static str> {
        let Self::CredentialInvalid(fault) = self else { return None };
        Some(match fault {
            TokenFault::Missing => "Bearer",
            TokenFault::Expired => {
                "Bearer error=\"invalid_token\", error_description=\"The token has expired\""
            }
            TokenFault::Early => {
                "Bearer error=\"invalid_token\", error_description=\"The token is not valid yet\""
            }
            TokenFault::Wrong => {
                "Bearer error=\"invalid_token\", error_description=\"The token does not verify\""
            }
        })
    }

    fn document(
        &self,
        status: StatusCode,
        code: &str,
        title: &str,
        detail: &str,
        retry_after: Option<u64>,
    ) -> String {
        let mut json = format!("{{\"type\":\"{}\",\"title\":", self.page());
        put_json(&mut json, title);
        json.push_str(&format!(",\"status\":{},\"code\":\"{code}\",\"detail\":", status.as_u16()));
        put_json(&mut json, detail);
        if let Some(seconds) = retry_after {
            json.push_str(&format!(",\"retry_after\":{seconds}"));
        }
        if let Self::ResponseNotStored { original_status, original_location } = self {
            put_original(&mut json, *original_status, original_location.as_ref());
        }
        if let Self::OutcomeUnknown { head: Some(head), .. } = self {
            put_original(&mut json, Some(head.status), head.location.as_ref());
        }
        json.push('}');
        json
    }

    fn stripe(&self, code: &str, detail: &str) -> String {
        let (kind, code) = match self {
            Self::KeyReused => ("idempotency_error", "idempotency_error"),
            Self::InProgress { .. } => ("idempotency_error", "idempotency_key_in_use"),
            Self::CredentialChanged => ("idempotency_error", code),
            Self::CredentialInvalid(_) => ("authentication_error", code),
            Self::KeyMissing
            | Self::KeyInvalid(_)
            | Self::ScopeUnsafe(_)
            | Self::RequestTooOld
            | Self::BodyTooLarge
            | Self::BodyTimeout
            | Self::BodyBroken
            | Self::Malformed(_)
            | Self::MethodRefused
            | Self::ExpectationFailed
            | Self::CodingUnsupported
            | Self::WebhookRefused(_)
            | Self::KeyNotFound => ("invalid_request_error", code),
            Self::HandlerFailed(_)
            | Self::OutcomeUnknown { .. }
            | Self::AnswerLate { .. }
            | Self::AnswerLost { .. }
            | Self::Panicked { .. }
            | Self::NotDurable { .. }
            | Self::ResponseNotStored { .. }
            | Self::StoreUnavailable { .. }
            | Self::Overloaded { .. }
            | Self::UpstreamUnreachable { .. }
            | Self::UpstreamUnhealthy { .. }
            | Self::KeysUnavailable { .. }
            | Self::WebhookNotTaken { .. }
            | Self::UpstreamFailed { .. } => ("api_error", code),
            Self::KeyRateExceeded { .. } | Self::RetryTooFast { .. } => ("rate_limit_error", code),
        };
        let mut json =
            format!("{{\"error\":{{\"type\":\"{kind}\",\"code\":\"{code}\",\"message\":");
        put_json(&mut json, detail);
        json.push_str("}}");
        json
    }
}

impl fmt::Display for UnsafeScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str(
                "The request shows no credential that is known here, so its caller cannot be told from \
                 others. Send Authorization or X-Api-Key. For the operator: set \
                 scope = [\"header:NAME\"], where NAME is the header that names the caller; or \
                 anonymous = \"shared\", if all callers without a credential may share their keys \
                 and answers.",
            ),
            Self::MadeAnew => f.write_str(
                "This Authorization is made anew for each request, so a retry would be taken for \
                 another caller. For the operator: set scope = [\"header:NAME\"], where NAME is a \
                 header that names the caller, that a trusted proxy sets, and that a retry has too.",
            ),
            Self::UnknownScheme => f.write_str(
                "The scheme of this Authorization is not known here, so nobody can say whether a retry \
                 has the same. For the operator: set scope = [\"header:Authorization\"] if it \
                 stays the same; else scope = [\"header:NAME\"], where NAME is a header that \
                 names the caller.",
            ),
            Self::Cookies => f.write_str(
                "The request has cookies and no Authorization. Cookies hold more than who is asking, \
                 and change between retries; an API key beside them may be that of an application. \
                 For the operator: set scope = [\"cookie:NAME\"], where NAME is the cookie that \
                 holds the session.",
            ),
            Self::Header(name) => write!(
                f,
                "The header {name} says who is asking. It must be there once, and not be empty. For the \
                 operator: the route's scope looks at it.",
            ),
            Self::Cookie(name) => write!(
                f,
                "The cookie {name} says who is asking. It must be there once, and not be empty. For the \
                 operator: it is set as scope = [\"cookie:{name}\"].",
            ),
            Self::Claim(claim) => write!(
                f,
                "The token's claim {claim} says who is asking, and this token does not have it as a \
                 text or a number. For the operator: it is set as scope = [\"jwt:{claim}\"].",
            ),
            Self::Application => f.write_str(
                "The application cannot say who is asking. For its author: the layer's scope has found \
                 nobody in this request.",
            ),
        }
    }
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => {
                "This route demands a bearer token that verifies, and the request has none. Nothing was \
                 executed."
            }
            Self::Expired => {
                "The token has expired. Refresh it, and retry with the same key. Nothing was executed \
                 by this request. For the operator: jwt.leeway forgives clocks that differ."
            }
            Self::Early => {
                "The token is not valid yet. Nothing was executed by this request. For the operator: \
                 jwt.leeway forgives clocks that differ."
            }
            Self::Wrong => {
                "The token does not verify. Get another one, and retry with the same key. Nothing was \
                 executed by this request. For the operator: form, algorithm, key, signature, issuer \
                 and audience are judged by [jwt]."
            }
        })
    }
}

/// Writes what is left of the first answer.
fn put_original(json: &mut String, status: Option<StatusCode>, location: Option<&HeaderValue>) {
    json.push_str(",\"original_status\":");
    json.push_str(status.as_ref().map_or("null", StatusCode::as_str));
    json.push_str(",\"original_location\":");
    match location {
        Some(location) => put_json(json, &String::from_utf8_lossy(location.as_bytes())),
        None => json.push_str("null"),
    }
}

/// Writes a JSON string. Most texts have nothing to escape and are written in one piece.
pub fn put_json(json: &mut String, text: &str) {
    json.push('"');
    if !text.bytes().any(|byte| byte < b' ' || matches!(byte, b'"' | b'\\')) {
        json.push_str(text);
        json.push('"');
        return;
    }
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            control if control < ' ' => json.push_str(&format!("\\u{:04x}", control as u32)),
            other => json.push(other),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1_500);
    const X_TENANT: HeaderName = HeaderName::from_static("x-tenant");

    fn every_refusal() -> Vec<(Refusal, u16, &'static str)> {
        let after = SOON;
        vec![
            (Refusal::KeyMissing, 400, "idempotency_key_missing"),
            (Refusal::KeyInvalid(KeyError::TooLong), 400, "idempotency_key_invalid"),
            (Refusal::KeyReused, 422, "idempotency_key_reused"),
            (Refusal::InProgress { retry_after: after }, 409, "request_in_progress"),
            (Refusal::OutcomeUnknown { retry_after: after, head: None }, 409, "outcome_unknown"),
            (Refusal::AnswerLate { retry_after: after }, 504, "request_in_progress"),
            (Refusal::AnswerLost { timed_out: false, retry_after: after }, 502, "outcome_unknown"),
            (Refusal::AnswerLost { timed_out: true, retry_after: after }, 504, "outcome_unknown"),
            (Refusal::Panicked { retry_after: after }, 500, "outcome_unknown"),
            (Refusal::NotDurable { retry_after: after }, 503, "outcome_unknown"),
            (
                Refusal::ResponseNotStored {
                    original_status: Some(StatusCode::CREATED),
                    original_location: Some(HeaderValue::from_static("/p/\"1\"")),
                },
                410,
                "response_not_stored",
            ),
            (Refusal::StoreUnavailable { retry_after: after }, 503, "store_unavailable"),
            (Refusal::Overloaded { retry_after: after }, 503, "overloaded"),
            (Refusal::UpstreamUnreachable { retry_after: after }, 502, "upstream_unreachable"),
            (Refusal::UpstreamUnhealthy { retry_after: after }, 503, "upstream_unhealthy"),
            (Refusal::KeyRateExceeded { retry_after: after }, 429, "key_rate_exceeded"),
            (Refusal::RetryTooFast { retry_after: after }, 429, "retry_too_fast"),
            (Refusal::ScopeUnsafe(UnsafeScope::Nobody), 400, "scope_unsafe"),
            (Refusal::ScopeUnsafe(UnsafeScope::MadeAnew), 400, "scope_unsafe"),
            (Refusal::ScopeUnsafe(UnsafeScope::UnknownScheme), 400, "scope_unsafe"),
            (Refusal::ScopeUnsafe(UnsafeScope::Cookies), 400, "scope_unsafe"),
            (Refusal::ScopeUnsafe(UnsafeScope::Header(X_TENANT)), 400, "scope_unsafe"),
            (Refusal::ScopeUnsafe(UnsafeScope::Cookie("sid".into())), 400, "scope_unsafe"),
            (Refusal::ScopeUnsafe(UnsafeScope::Claim("sub".into())), 400, "scope_unsafe"),
            (Refusal::ScopeUnsafe(UnsafeScope::Application), 400, "scope_unsafe"),
            (Refusal::CredentialChanged, 409, "credential_changed"),
            (Refusal::CredentialInvalid(TokenFault::Missing), 401, "credential_invalid"),
            (Refusal::CredentialInvalid(TokenFault::Expired), 401, "credential_invalid"),
            (Refusal::CredentialInvalid(TokenFault::Early), 401, "credential_invalid"),
            (Refusal::CredentialInvalid(TokenFault::Wrong), 401, "credential_invalid"),
            (Refusal::KeysUnavailable { retry_after: after }, 503, "keys_unavailable"),
            (Refusal::RequestTooOld, 412, "request_too_old"),
            (Refusal::BodyTooLarge, 413, "request_too_large"),
            (Refusal::BodyTimeout, 408, "request_timeout"),
            (Refusal::BodyBroken, 400, "request_broken"),
            (Refusal::Malformed("the Host header is missing"), 400, "request_malformed"),
            (Refusal::HandlerFailed("the handler panicked"), 500, "handler_failed"),
            (Refusal::MethodRefused, 405, "method_refused"),
            (Refusal::ExpectationFailed, 417, "expectation_failed"),
            (Refusal::CodingUnsupported, 501, "coding_unsupported"),
            (Refusal::UpstreamFailed { timed_out: false }, 502, "upstream_failed"),
            (Refusal::UpstreamFailed { timed_out: true }, 504, "upstream_failed"),
            (Refusal::KeyNotFound, 404, "key_not_found"),
            (Refusal::WebhookRefused("no signature verifies".into()), 400, "webhook_refused"),
            (Refusal::WebhookNotTaken { retry_after: after }, 503, "webhook_not_taken"),
        ]
    }

    fn policy(dialect: Dialect, in_flight: InFlight) -> Policy {
        Policy { dialect, in_flight, ..Policy::default() }
    }

    fn json(problem: &Problem) -> serde_json::Value {
        serde_json::from_slice(&problem.body).unwrap()
    }

    #[test]
    fn every_row_in_the_drafts_dialect() {
        for (refusal, status, code) in every_refusal() {
            let problem = refusal.problem(&Policy::default());
            let doc = json(&problem);
            assert_eq!((problem.status.as_u16(), problem.code), (status, code));
            assert_eq!(doc["status"], status);
            assert_eq!(doc["code"], code);
            assert!(doc["type"].as_str().unwrap().ends_with(&format!("/{code}.md")));
            assert!(!doc["title"].as_str().unwrap().is_empty());
            assert!(!doc["detail"].as_str().unwrap().is_empty(), "{code}");
        }
    }

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/problems");
        let mut pages: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "README.md")
            .collect();
        let mut codes: Vec<String> =
            every_refusal().iter().map(|(refusal, ..)| format!("{}.md", refusal.code())).collect();
        codes.sort();
        codes.dedup();
        pages.sort();
        assert_eq!(pages, codes);
    }

    /// The list of all pages marks the codes whose answers say when to come back.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the pages are files")]
    fn every_page_says_its_statuses_and_the_list_whether_to_retry() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/problems");
        let list = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
        for (refusal, status, code) in every_refusal() {
            let row = list.lines().find(|line| line.starts_with(&format!("| [`{code}`]"))).unwrap();
            assert_eq!(row.contains("↻"), refusal.retry_after().is_some(), "{row}");
            let page = std::fs::read_to_string(format!("{folder}/{code}.md")).unwrap();
            let line = page.lines().find(|line| line.starts_with("Status: ")).unwrap();
            for told in [row, line] {
                assert!(told.contains(&status.to_string()), "{code}, {status}: {told}");
            }
        }
    }

    #[test]
    fn dialects_change_the_reused_key() {
        let statuses = [Dialect::Ietf, Dialect::Stripe, Dialect::Conflict]
            .map(|dialect| policy(dialect, InFlight::Conflict))
            .map(|policy| Refusal::KeyReused.problem(&policy).status.as_u16());
        assert_eq!(statuses, [422, 400, 409]);
    }

    #[test]
    fn stripe_answers_in_its_own_shape() {
        for (refusal, ..) in every_refusal() {
            let problem = refusal.problem(&policy(Dialect::Stripe, InFlight::Conflict));
            assert_eq!(problem.content_type, "application/json");
            assert!(json(&problem)["error"]["type"].is_string());
        }
        let reused =
            json(&Refusal::KeyReused.problem(&policy(Dialect::Stripe, InFlight::Conflict)));
        assert_eq!(reused["error"]["type"], "idempotency_error");
        let running = Refusal::InProgress { retry_after: SOON };
        let running = running.problem(&policy(Dialect::Stripe, InFlight::Conflict));
        assert_eq!(json(&running)["error"]["code"], "idempotency_key_in_use");
        assert_eq!(running.status.as_u16(), 409);
    }

    #[test]
    fn in_flight_may_be_accepted() {
        let running = Refusal::InProgress { retry_after: SOON };
        assert_eq!(
            running.problem(&policy(Dialect::Ietf, InFlight::Accepted)).status.as_u16(),
            202
        );
    }

    #[test]
    fn retry_after_rounds_up_and_is_never_zero() {
        let seconds = |ms| {
            Refusal::StoreUnavailable { retry_after: Duration::from_millis(ms) }
                .problem(&Policy::default())
                .retry_after
        };
        assert_eq!((seconds(0), seconds(1_000), seconds(1_001)), (Some(1), Some(1), Some(2)));
    }

    #[test]
    fn every_reason_for_an_unsafe_scope_has_a_text_of_its_own_that_names_a_cure() {
        let mut texts: Vec<String> = every_refusal()
            .into_iter()
            .filter_map(|(refusal, ..)| match refusal {
                Refusal::ScopeUnsafe(why) => Some(why.to_string()),
                _ => None,
            })
            .collect();
        assert!(texts.iter().all(|text| text.contains("scope")), "{texts:?}");
        let count = texts.len();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), count);
    }

    #[test]
    fn only_a_token_that_does_not_verify_is_challenged() {
        for (refusal, status, _) in every_refusal() {
            let challenge = refusal.problem(&Policy::default()).challenge;
            assert_eq!(challenge.is_some(), status == 401, "{refusal:?}");
            assert!(challenge.is_none_or(|challenge| challenge.starts_with("Bearer")));
        }
    }

    #[test]
    fn the_keys_header_is_called_by_its_name() {
        let policy =
            Policy { key_header: HeaderName::from_static("x-request-key"), ..Policy::default() };
        for refusal in [Refusal::KeyMissing, Refusal::KeyInvalid(KeyError::Repeated)] {
            let detail = json(&refusal.problem(&policy))["detail"].to_string();
            assert!(
                detail.contains("X-Request-Key") && !detail.contains("Idempotency"),
                "{detail}"
            );
        }
    }

    #[test]
    fn a_request_without_a_key_is_not_told_to_send_the_same_one_again() {
        let refusal = Refusal::UpstreamUnreachable { retry_after: SOON };
        let detail = |problem: Problem| json(&problem)["detail"].as_str().unwrap().to_owned();
        let policy = Policy::default();
        assert_eq!(
            detail(refusal.problem(&policy)),
            "Nothing was sent. Retry later with the same key."
        );
        assert_eq!(detail(refusal.problem_without_key(&policy)), "Nothing was sent. Retry later.");
        for (refusal, ..) in every_refusal() {
            let [with, without] = [refusal.problem(&policy), refusal.problem_without_key(&policy)];
            assert_eq!((with.status, with.retry_after), (without.status, without.retry_after));
            assert!(!detail(without).contains("same key"), "{refusal:?}");
        }
    }

    #[test]
    fn what_is_left_of_an_answer_is_told() {
        let (refusal, ..) = every_refusal().into_iter().find(|row| row.1 == 410).unwrap();
        let doc = json(&refusal.problem(&Policy::default()));
        assert_eq!(doc["original_status"], 201);
        assert_eq!(doc["original_location"], "/p/\"1\"");
        let head = AnswerHead { status: StatusCode::CREATED, location: None };
        let unknown = |head| Refusal::OutcomeUnknown { retry_after: SOON, head };
        let doc = json(&unknown(Some(head)).problem(&Policy::default()));
        assert_eq!((&doc["original_status"], &doc["retry_after"]), (&201.into(), &2.into()));
        assert!(doc["original_location"].is_null());
        let doc = json(&unknown(None).problem(&Policy::default()));
        assert!(doc.get("original_status").is_none(), "nothing is known of an answer");
    }
}
