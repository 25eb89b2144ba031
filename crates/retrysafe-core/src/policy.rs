//! What has the operator decided?
//!
//! One [`Policy`] per route. Its defaults are safe for an API that was never asked about retries:
//! keys are optional, every answer that will not change is kept for a day, and no store means no
//! execution. [`Policy::judge`] says what an execution's end means; layer and gateway both ask it,
//! so they judge alike.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use crate::fingerprint::Rules;
use crate::key::{IDEMPOTENCY_KEY, KeySyntax};
use crate::record::{Answer, Doubt, Outcome};
use crate::response::StoredResponse;

/// What a route's operator has decided.
///
/// ```
/// use std::time::Duration;
/// use retrysafe_core::Policy;
///
/// let policy = Policy { ttl: Duration::from_secs(7 * 24 * 60 * 60), ..Policy::default().strict() };
/// assert!(policy.covers(&http::Method::POST) && !policy.covers(&http::Method::GET));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Which methods are covered. Safe methods never are.
    pub methods: Vec<Method>,
    /// Whether a key is demanded.
    pub key: KeyRule,
    /// The header that holds the key.
    pub key_header: HeaderName,
    /// Which spellings of the key are accepted.
    pub key_syntax: KeySyntax,
    /// The fewest characters a key may have.
    pub key_chars_min: usize,
    /// How long a settled record is kept.
    pub ttl: Duration,
    /// How long an owner may be silent before it is believed to be gone.
    pub lease: Duration,
    /// How long one execution may renew its lease in all.
    pub lease_max: Duration,
    /// How long a duplicate may wait for the running one.
    pub wait_max: Duration,
    /// What a duplicate is told while the first is running.
    pub in_flight: InFlight,
    /// How refusals look.
    pub dialect: Dialect,
    /// The largest request body that is read.
    pub request_bytes_max: usize,
    /// How long reading the request body may take.
    pub request_time_max: Duration,
    /// The largest response body that is kept.
    pub response_bytes_max: usize,
    /// How long an answer may take after its head before it is passed on as it comes, and not kept.
    pub answer_hold_max: Duration,
    /// What a 5xx of the handler's own means.
    pub on_server_error: OnServerError,
    /// Statuses that may change on the next try, so they are not kept.
    pub retryable_statuses: Vec<StatusCode>,
    /// What happens when the store is out of reach.
    pub on_store_error: OnStoreError,
    /// Whether "the downstream does not know it" proves that it was not executed.
    pub absence: Absence,
    /// Whether the rules are enforced or only observed.
    pub mode: Mode,
    /// How a request's meaning is taken.
    pub fingerprint: Rules,
    /// Rule sets of former days, so that records made under them still match.
    pub former_fingerprints: Vec<Rules>,
    /// Whether `Set-Cookie` is kept and replayed.
    pub keep_set_cookie: bool,
    /// The header that marks a replay.
    pub replay_marker: HeaderName,
    /// Whether keyed answers say when their record expires.
    pub announce_expiry: bool,
    /// Requests first sent longer ago than this are refused; they must say when that was.
    pub first_sent_age_max: Option<Duration>,
}

/// Whether a key is demanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KeyRule {
    /// A covered request without a key is refused.
    Required,
    /// A request without a key is passed on unprotected.
    #[default]
    Optional,
    /// Keys are passed on and not looked at.
    Off,
}

/// What a duplicate is told while the first is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum InFlight {
    /// 409, as the draft says.
    #[default]
    Conflict,
    /// 202, for callers that take every 4xx for final.
    Accepted,
}

/// How refusals look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dialect {
    /// The draft's statuses.
    #[default]
    Ietf,
    /// Stripe's statuses and body.
    Stripe,
    /// The draft's, but 409 for a reused key.
    Conflict,
}

/// What a 5xx of the handler's own means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnServerError {
    /// Nothing was done: the next try executes.
    #[default]
    Release,
    /// It is the answer for good.
    Store,
    /// Something may have been done: nobody executes until somebody knows.
    Unknown,
}

/// What happens when the store is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnStoreError {
    /// 503: no store, no execution.
    #[default]
    Closed,
    /// Execute unprotected, if the store surely did not take the begin.
    Open,
}

/// Whether "the downstream does not know it" proves that it was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Absence {
    /// It proves nothing.
    #[default]
    Inconclusive,
    /// After a settle time, it does.
    Proof,
}

/// Whether the rules are enforced or only observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// They are enforced.
    #[default]
    Enforce,
    /// Nothing is blocked or replayed; what would have happened is counted.
    Observe,
}

/// How an execution ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// There is a whole answer.
    Answered {
        /// It, already stripped to what may be kept.
        response: StoredResponse,
        /// Whether another server gave it, so that its 502 or 504 speaks of yet another one.
        by_upstream: bool,
        /// What the handler says itself.
        said: Option<Said>,
    },
    /// There is an answer, too large or endless, of which only this is kept.
    TooLarge {
        /// Its status.
        status: StatusCode,
        /// Its `Location`.
        location: Option<HeaderValue>,
        /// Whether another server gave it.
        by_upstream: bool,
        /// What the handler says itself.
        said: Option<Said>,
    },
    /// Nothing was sent to the handler or the upstream.
    NotSent,
    /// It was sent, and no whole answer came back.
    AnswerLost,
    /// The handler panicked, or its task was lost.
    Panicked,
}

/// What a handler or an upstream says itself about its outcome.
///
/// ```
/// use retrysafe_core::policy::Said;
///
/// // In the extensions of a response, or with `Attempt::say`.
/// let mut response = http::Response::new("try again tomorrow");
/// response.extensions_mut().insert(Said::Retryable);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Executed; keep the answer.
    Completed,
    /// Not executed, or free to run again.
    Retryable,
    /// It may have been executed.
    Unknown,
}

impl Policy {
    /// The policy of a route where a second effect costs money: a key is required, a 5xx proves
    /// nothing, and no store means no execution.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.key = KeyRule::Required;
        self.on_server_error = OnServerError::Unknown;
        self.on_store_error = OnStoreError::Closed;
        self
    }

    /// Whether this policy covers a method. Safe methods are never covered, whatever is listed.
    pub fn covers(&self, method: &Method) -> bool {
        self.key != KeyRule::Off && !method.is_safe() && self.methods.contains(method)
    }

    /// What an execution's end means for its record.
    pub fn judge(&self, end: End) -> Outcome {
        let (status, said, by_upstream, answer) = match end {
            End::NotSent => return Outcome::Retryable(None),
            End::AnswerLost => return Outcome::Unknown(Doubt::AnswerLost),
            End::Panicked => return Outcome::Unknown(Doubt::Panicked),
            End::Answered { response, by_upstream, said } => {
                (response.status, said, by_upstream, Answer::Kept(response))
            }
            End::TooLarge { status, location, by_upstream, said } => {
                (status, said, by_upstream, Answer::NotKept { status: Some(status), location })
            }
        };
        match said {
            Some(Said::Completed) => return Outcome::Completed(answer),
            Some(Said::Retryable) => return Outcome::Retryable(Some(status)),
            Some(Said::Unknown) => return Outcome::Unknown(Doubt::Said),
            None => {}
        }
        let gateways_doubt =
            matches!(status, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT);
        if by_upstream && gateways_doubt {
            return Outcome::Unknown(Doubt::ServerError);
        }
        if status.is_server_error() {
            return match self.on_server_error {
                OnServerError::Release => Outcome::Retryable(Some(status)),
                OnServerError::Store => Outcome::Completed(answer),
                OnServerError::Unknown => Outcome::Unknown(Doubt::ServerError),
            };
        }
        if self.retryable_statuses.contains(&status) {
            return Outcome::Retryable(Some(status));
        }
        Outcome::Completed(answer)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            methods: vec![Method::POST, Method::PATCH],
            key: KeyRule::default(),
            key_header: IDEMPOTENCY_KEY,
            key_syntax: KeySyntax::default(),
            key_chars_min: 1,
            ttl: Duration::from_secs(24 * 60 * 60),
            lease: Duration::from_secs(60),
            lease_max: Duration::from_secs(10 * 60),
            wait_max: Duration::ZERO,
            in_flight: InFlight::default(),
            dialect: Dialect::default(),
            request_bytes_max: 1 << 20,
            request_time_max: Duration::from_secs(30),
            response_bytes_max: 1 << 20,
            answer_hold_max: Duration::from_secs(10),
            on_server_error: OnServerError::default(),
            retryable_statuses: RETRYABLE_STATUSES.to_vec(),
            on_store_error: OnStoreError::default(),
            absence: Absence::default(),
            mode: Mode::default(),
            fingerprint: Rules::default(),
            former_fingerprints: Vec::new(),
            keep_set_cookie: false,
            replay_marker: REPLAY_MARKER,
            announce_expiry: true,
            first_sent_age_max: None,
        }
    }
}

/// The header that marks a replay, as Stripe spells it.
pub const REPLAY_MARKER: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Answers that depend on the moment: who is logged in, what exists, how busy the server is.
pub const RETRYABLE_STATUSES: [StatusCode; 8] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::NOT_FOUND,
    StatusCode::PROXY_AUTHENTICATION_REQUIRED,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::MISDIRECTED_REQUEST,
    StatusCode::TOO_EARLY,
    StatusCode::TOO_MANY_REQUESTS,
];

impl Said {
    /// Reads what an upstream says in `Retrysafe-Outcome`. Anything else says nothing.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "completed" => Some(Self::Completed),
            "retryable" => Some(Self::Retryable),
            "unknown" => Some(Self::Unknown),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn answered(status: u16, by_upstream: bool, said: Option<Said>) -> End {
        let status = StatusCode::from_u16(status).unwrap();
        let response = StoredResponse { status, headers: vec![], body: Bytes::from_static(b"x") };
        End::Answered { response, by_upstream, said }
    }

    fn judged(policy: &Policy, end: End) -> &'static str {
        match policy.judge(end) {
            Outcome::Completed(Answer::Kept(_)) => "completed",
            Outcome::Completed(Answer::NotKept { .. }) => "not kept",
            Outcome::Retryable(_) => "retryable",
            Outcome::Unknown(_) => "unknown",
        }
    }

    #[test]
    fn every_row_of_the_outcome_table() {
        let policy = Policy::default();
        for status in [200, 201, 204, 303, 400, 402, 409, 410, 422] {
            assert_eq!(judged(&policy, answered(status, true, None)), "completed", "{status}");
        }
        for status in [401, 403, 404, 407, 408, 421, 425, 429, 500, 501, 503] {
            assert_eq!(judged(&policy, answered(status, true, None)), "retryable", "{status}");
        }
        for status in [502, 504] {
            assert_eq!(judged(&policy, answered(status, true, None)), "unknown", "{status}");
            // A handler of our own process that answers 502 speaks for itself.
            assert_eq!(judged(&policy, answered(status, false, None)), "retryable", "{status}");
        }
        assert_eq!(judged(&policy, End::NotSent), "retryable");
        assert_eq!(judged(&policy, End::AnswerLost), "unknown");
        assert_eq!(judged(&policy, End::Panicked), "unknown");
    }

    #[test]
    fn the_handlers_own_word_wins() {
        let policy = Policy::default();
        assert_eq!(judged(&policy, answered(500, true, Some(Said::Completed))), "completed");
        assert_eq!(judged(&policy, answered(200, true, Some(Said::Retryable))), "retryable");
        assert_eq!(judged(&policy, answered(502, true, Some(Said::Retryable))), "retryable");
        assert_eq!(judged(&policy, answered(200, true, Some(Said::Unknown))), "unknown");
        assert_eq!(Said::parse(" completed "), Some(Said::Completed));
        assert_eq!(Said::parse("maybe"), None);
    }

    #[test]
    fn server_errors_follow_the_policy() {
        for (rule, want) in [
            (OnServerError::Release, "retryable"),
            (OnServerError::Store, "completed"),
            (OnServerError::Unknown, "unknown"),
        ] {
            let policy = Policy { on_server_error: rule, ..Policy::default() };
            assert_eq!(judged(&policy, answered(500, true, None)), want);
        }
        assert_eq!(judged(&Policy::default().strict(), answered(500, true, None)), "unknown");
    }

    #[test]
    fn an_oversized_answer_is_judged_by_its_status() {
        let policy = Policy::default();
        let large =
            |status| End::TooLarge { status, location: None, by_upstream: true, said: None };
        assert_eq!(judged(&policy, large(StatusCode::CREATED)), "not kept");
        assert_eq!(judged(&policy, large(StatusCode::INTERNAL_SERVER_ERROR)), "retryable");
        assert_eq!(judged(&policy, large(StatusCode::BAD_GATEWAY)), "unknown");
    }

    #[test]
    fn safe_methods_are_never_covered() {
        let policy = Policy { methods: vec![Method::GET, Method::POST], ..Policy::default() };
        assert!(policy.covers(&Method::POST));
        assert!(!policy.covers(&Method::GET));
        assert!(!policy.covers(&Method::PUT));
        let off = Policy { key: KeyRule::Off, ..Policy::default() };
        assert!(!off.covers(&Method::POST));
    }
}
