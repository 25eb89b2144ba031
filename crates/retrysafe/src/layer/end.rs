//! How did the handler end, and what is the caller told?

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName};
use http::{Response, response};
use http_body::Body as HttpBody;
use retrysafe_core::engine::{Lease, Settled};
use retrysafe_core::key::KeyDigest;
use retrysafe_core::policy::{End, Said};
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{Answer, Record, State};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::store::Store;

use super::answer::ASK_AGAIN;
use super::attempt::{Attempt, Failed};
use super::body::{Body, Read, read};
use super::memory::Hold;
use super::running::Run;
use super::service::Case;
use super::settle::settle;

/// By which an upstream says its outcome itself.
const OUTCOME: HeaderName = HeaderName::from_static("retrysafe-outcome");

/// How a handler ended.
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
pub(super) enum Ended<R: HttpBody, E> {
    /// With an answer, of which this much was read.
    Answered(response::Parts, Read<R>),
    /// With a word about what it could not answer.
    Failed(Failed),
    /// With an error of its own type.
    Error(E),
    /// With a panic.
    Panicked,
}

/// What the caller is told once the end is durable.
enum Told<R: HttpBody, E> {
    Response(response::Parts, Body<R>),
    Refusal(Refusal),
    Error(E),
}

/// Reads a handler's answer, as far as it may be kept.
pub(super) async fn listen<R, E>(response: Response<R>, bytes_max: usize, hold: Hold) -> Ended<R, E>
where
    R: HttpBody<Data = Bytes>,
{
    let (mut parts, body) = response.into_parts();
    if let Some(failed) = parts.extensions.remove::<Failed>() {
        return Ended::Failed(failed);
    }
    let read = match is_endless(&parts) {
        true => Read::Over(Body::passed(body)),
        false => read(body, bytes_max, None, hold).await,
    };
    Ended::Answered(parts, read)
}

/// Answers that are streams by their nature, or leave HTTP altogether.
fn is_endless(parts: &response::Parts) -> bool {
    parts.status.is_informational()
        || parts.headers.get(header::CONTENT_TYPE).is_some_and(|media_type| {
            let media_type = media_type.as_bytes();
            media_type
                .get(..b"text/event-stream".len())
                .is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
        })
}

/// Settles what a handler's end means, and then answers.
pub(super) async fn conclude<S, R, E>(
    case: &Arc<Case<S>>,
    key: KeyDigest,
    attempt: &Attempt,
    lease: Lease,
    ended: Ended<R, E>,
    run: Run,
) -> Result<Response<Body<R>>, E>
where
    S: Store,
    R: HttpBody<Data = Bytes>,
{
    let (end, told) = weigh(case, key, attempt, ended);
    let settled = settle(case, key, lease, case.route.policy.judge(end), Some(run)).await;
    match (told, settled) {
        (Told::Error(error), _) => Err(error),
        (Told::Response(..) | Told::Refusal(_), None) => {
            Ok(case.refuse(&Refusal::NotDurable { retry_after: ASK_AGAIN }))
        }
        (Told::Response(..) | Told::Refusal(_), Some(Settled::Lost { current, .. })) => {
            Ok(overruled(case, current))
        }
        (Told::Refusal(refusal), Some(Settled::Done(_))) => Ok(case.refuse(&refusal)),
        (Told::Response(mut parts, body), Some(Settled::Done(record))) => {
            if let State::Completed { expires_at, .. } = record.state {
                case.announce(&mut parts.headers, expires_at);
            }
            Ok(Response::from_parts(parts, body))
        }
    }
}

/// What an end is to the policy, and what the caller is told about it.
fn weigh<S, R, E>(
    case: &Case<S>,
    key: KeyDigest,
    attempt: &Attempt,
    ended: Ended<R, E>,
) -> (End, Told<R, E>)
where
    R: HttpBody<Data = Bytes>,
{
    let lost = |timed_out| Refusal::AnswerLost { timed_out, retry_after: ASK_AGAIN };
    let (mut parts, read) = match ended {
        Ended::Answered(parts, read) => (parts, read),
        Ended::Failed(Failed::NotSent) => {
            let unreachable = Refusal::UpstreamUnreachable { retry_after: ASK_AGAIN };
            return (End::NotSent, Told::Refusal(unreachable));
        }
        Ended::Failed(Failed::Lost { timed_out }) => {
            return (End::AnswerLost, Told::Refusal(lost(timed_out)));
        }
        // An error of the inner service proves nothing about what it did before.
        Ended::Error(error) => return (End::AnswerLost, Told::Error(error)),
        Ended::Panicked => {
            case.report.panicked(key);
            let panicked = Refusal::Panicked { retry_after: ASK_AGAIN };
            return (End::Panicked, Told::Refusal(panicked));
        }
    };
    let (status, by_upstream) = (parts.status, case.settings.by_upstream);
    let said = parts
        .extensions
        .remove::<Said>()
        .or_else(|| attempt.said())
        .or_else(|| said_by_header(case, &mut parts.headers));
    let location = parts.headers.get(header::LOCATION).cloned();
    let not_kept = End::TooLarge { status, location, by_upstream, said };
    match read {
        Read::Whole(body, None, hold) => {
            let set_cookie = case.route.policy.keep_set_cookie;
            let response = StoredResponse::keep(status, &parts.headers, body.clone(), set_cookie);
            let end = End::Answered { response, by_upstream, said };
            // Only what goes to the caller counts: a store in memory keeps the same bytes for longer.
            (end, Told::Response(parts, Body::whole(hold.keep(body), None)))
        }
        // Trailers are a part of the answer, and a replay would have to lose them.
        Read::Whole(body, trailers @ Some(_), hold) => {
            (not_kept, Told::Response(parts, Body::whole(hold.keep(body), trailers)))
        }
        // An execution is never refused memory, so the second does not happen; nor would it matter.
        Read::Over(body) | Read::NoRoom(body) => (not_kept, Told::Response(parts, body)),
        Read::Broken(_) => (End::AnswerLost, Told::Refusal(lost(false))),
        Read::Late(_) => (End::AnswerLost, Told::Refusal(lost(true))),
    }
}

/// What an upstream says in its answer's head, where it is believed; the caller does not see it.
fn said_by_header<S>(case: &Case<S>, headers: &mut HeaderMap) -> Option<Said> {
    if !case.settings.trust_outcome_header {
        return None;
    }
    let said = headers.remove(OUTCOME)?;
    Said::parse(said.to_str().ok()?)
}

/// What a caller is told whose execution was decided over its head. The decision holds, whatever
/// this execution came to.
fn overruled<S, R: HttpBody>(case: &Case<S>, current: Option<Record>) -> Response<Body<R>> {
    let unknown = |head| case.refuse(&Refusal::OutcomeUnknown { retry_after: ASK_AGAIN, head });
    let Some(record) = current else { return unknown(None) };
    match record.state {
        State::Completed { answer: Answer::Kept(stored), expires_at, .. } => {
            case.replay(record.id, stored, expires_at)
        }
        State::Completed { answer: Answer::NotKept { status, location }, .. } => {
            case.refuse(&Refusal::ResponseNotStored {
                original_status: status,
                original_location: location,
            })
        }
        State::Unknown { head, .. } => unknown(head),
        State::InProgress { .. } | State::FailedRetryable { .. } => unknown(None),
    }
}
