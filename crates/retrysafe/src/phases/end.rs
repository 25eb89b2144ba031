//! How may a run of a flow end, and what is an HTTP caller told?

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use retrysafe_core::Policy;
use retrysafe_core::flow::FlowVersion;
use retrysafe_core::policy::Said;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::Answer;
use retrysafe_core::response::StoredResponse;
use retrysafe_core::store::StoreError;
use retrysafe_core::wire::{ASK_AGAIN_ABOUT_UNKNOWN, ASK_AGAIN_SOON};

use super::PhaseError;

/// How a run of a flow ended.
#[derive(Debug)]
pub enum FlowEnd {
    /// The flow is over, by this run or by a former one. This is its answer, which is in the record.
    Answered(StoredResponse),
    /// The flow is over, by this run. Its answer is too large to be kept: nobody else gets it.
    AnsweredOnce(StoredResponse),
    /// The flow is over, and its answer was not kept.
    AnswerNotKept {
        /// The status, if it is known.
        status: Option<StatusCode>,
        /// The `Location`, if it had one.
        location: Option<HeaderValue>,
    },
    /// A phase failed, and nothing of it is left. The phases before it stand; the next run goes on there.
    PhaseFailed {
        /// The phase.
        phase: &'static str,
        /// Its error.
        error: PhaseError,
    },
    /// A call was not sent. The next run goes on there.
    NotSent {
        /// The phase.
        phase: &'static str,
        /// Why.
        error: PhaseError,
    },
    /// A call was sent, and nobody knows how it ended. Its provider remembers the key: the next run sends the
    /// same call once more.
    CallToRepeat {
        /// The phase.
        phase: &'static str,
        /// Why nobody knows.
        error: PhaseError,
    },
    /// Somebody else is running it, or was a moment ago. Ask again in this long.
    InProgress(Duration),
    /// A call may have been made, or not; or a phase has ended its transaction by itself, and may have done its work, or not.
    /// Nobody runs the flow before evidence has decided.
    Unknown,
    /// The flow was begun by a version that is not registered here. Nothing has changed.
    Held(FlowVersion),
    /// The key belongs to another request.
    Mismatch,
    /// The record was begun with another credential.
    CredentialChanged,
}

/// The answer of a flow, for its record and for whoever has run it.
pub(super) struct FlowAnswer {
    pub(super) kept: Answer,
    pub(super) given: FlowEnd,
}

impl FlowAnswer {
    /// What is kept of this answer under this policy, and what is given.
    pub(super) fn new(response: Response<Bytes>, policy: &Policy) -> Self {
        let (parts, body) = response.into_parts();
        let fits = body.len() <= policy.response_bytes_max;
        let location = parts.headers.get(header::LOCATION).cloned();
        let set_cookie = policy.keep_set_cookie;
        let stored = StoredResponse::keep(parts.status, &parts.headers, body, set_cookie);
        if fits {
            return Self { kept: Answer::Kept(stored.clone()), given: FlowEnd::Answered(stored) };
        }
        let kept = Answer::NotKept { status: Some(parts.status), location };
        Self { kept, given: FlowEnd::AnsweredOnce(stored) }
    }
}

impl FlowEnd {
    /// Whether its answer is in the record, or the fact that there was one.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Answered(_) | Self::AnsweredOnce(_) | Self::AnswerNotKept { .. } => true,
            Self::PhaseFailed { .. }
            | Self::NotSent { .. }
            | Self::CallToRepeat { .. }
            | Self::InProgress(_)
            | Self::Unknown
            | Self::Held(_)
            | Self::Mismatch
            | Self::CredentialChanged => false,
        }
    }
}

impl From<Answer> for FlowEnd {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Kept(response) => Self::Answered(response),
            Answer::NotKept { status, location } => Self::AnswerNotKept { status, location },
        }
    }
}

/// What the caller of a handler is told, under this policy. What it means for the record is among the
/// response's extensions, for the layer around the handler.
pub(super) fn tell(ended: Result<FlowEnd, StoreError>, policy: &Policy) -> Response<Full<Bytes>> {
    let (refusal, said) = match ended {
        Ok(FlowEnd::Answered(stored) | FlowEnd::AnsweredOnce(stored)) => return answer(stored),
        Ok(FlowEnd::AnswerNotKept { status, location }) => {
            let refusal =
                Refusal::ResponseNotStored { original_status: status, original_location: location };
            (refusal, Said::Completed)
        }
        Ok(FlowEnd::PhaseFailed { .. }) => {
            let why = "a phase failed, and nothing of it is left; a retry goes on where it failed";
            (Refusal::HandlerFailed(why), Said::Retryable)
        }
        Ok(FlowEnd::NotSent { .. }) => {
            (Refusal::UpstreamUnreachable { retry_after: ASK_AGAIN_SOON }, Said::Retryable)
        }
        // Under a first-sent mark "unknown" ends the lease and no more, so that a retry can go on.
        Ok(FlowEnd::CallToRepeat { .. }) => {
            (Refusal::InProgress { retry_after: ASK_AGAIN_SOON }, Said::Unknown)
        }
        Ok(FlowEnd::Unknown) => {
            let retry_after = ASK_AGAIN_ABOUT_UNKNOWN;
            (Refusal::AnswerLost { timed_out: false, retry_after }, Said::Unknown)
        }
        // The layer has this record's fence no longer, and tells the caller what holds instead.
        Ok(FlowEnd::InProgress(retry_after)) => {
            (Refusal::InProgress { retry_after }, Said::Retryable)
        }
        Ok(FlowEnd::Held(_)) => {
            (Refusal::InProgress { retry_after: ASK_AGAIN_ABOUT_UNKNOWN }, Said::Retryable)
        }
        Ok(FlowEnd::Mismatch) => (Refusal::KeyReused, Said::Retryable),
        Ok(FlowEnd::CredentialChanged) => (Refusal::CredentialChanged, Said::Retryable),
        Err(_) => (Refusal::StoreUnavailable { retry_after: ASK_AGAIN_SOON }, Said::Retryable),
    };
    let mut response = refusal.problem(policy).into_response(|document| Full::new(document.into()));
    response.extensions_mut().insert(said);
    response
}

fn answer(stored: StoredResponse) -> Response<Full<Bytes>> {
    let StoredResponse { status, headers, body } = stored;
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    for (name, value) in headers {
        response.headers_mut().append(name, value);
    }
    // The flow has decided that this is the answer, whatever its status would mean elsewhere.
    response.extensions_mut().insert(Said::Completed);
    response
}
