//! What did the handler answer, and can it be kept?

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{Response, response};
use http_body::Body as HttpBody;
use retrysafe_core::execution::{Failure, is_stream};
use retrysafe_core::policy::{End, Said};
use retrysafe_core::record::AnswerHead;
use retrysafe_core::wire::OUTCOME;
use tokio::time::Instant;

use super::attempt::{Attempt, Failed};
use super::attend::{Attendance, catch_panic};
use super::body::{Body, Read, read};
use super::context::RequestContext;
use super::deadline::after;
use super::memory::Hold;

/// What a handler answered.
pub(super) enum AnswerRead<R: HttpBody, E> {
    /// A whole answer, which can be kept.
    Whole { parts: response::Parts, body: Bytes, said: Option<Said>, hold: Hold },
    /// An answer that is passed on and not kept: one with trailers, which a replay would have to lose, or the answer of
    /// a flow that has ended.
    Unkept { parts: response::Parts, body: Body<R>, end: End },
    /// An answer too large or too slow to be kept, of which some was read.
    Stream { parts: response::Parts, body: Body<R>, head: AnswerHead, end: End },
    /// No answer that could be passed on.
    Failed(Failure),
    /// An error of the inner service's own type.
    Error(E),
}

/// Reads a handler's answer, as far and for as long as it may be held.
pub(super) async fn read_answer<S, R, E>(
    context: &RequestContext<S>,
    attempt: &Attempt,
    response: Response<R>,
    hold: Hold,
    attendance: &mut Attendance<'_, S, R, E>,
) -> AnswerRead<R, E>
where
    R: HttpBody<Data = Bytes>,
{
    let (mut parts, body) = response.into_parts();
    if let Some(failed) = parts.extensions.remove::<Failed>() {
        return AnswerRead::Failed(match failed {
            Failed::NotSent => Failure::NotSent,
            Failed::Unhealthy => Failure::Unhealthy,
            Failed::Lost { timed_out } => Failure::Lost { timed_out },
        });
    }
    let policy = context.policy();
    // The head of an empty answer is its end as well.
    let is_whole = body.is_end_stream() && !parts.status.is_informational();
    let read = if is_stream(parts.status, &parts.headers) && !is_whole {
        Read::Over(Body::passed(body))
    } else {
        // Once nobody waits for it, an answer may take as long as its execution, and the rest of one that comes later still
        // as long as any: its head is seldom all of it.
        let held_until = after(Instant::now(), policy.answer_hold_max);
        let deadline = if attendance.is_awaited() {
            held_until.min(attempt.deadline())
        } else {
            held_until.max(attempt.deadline())
        };
        let reading =
            catch_panic(read(body, None, policy.response_bytes_max, Some(deadline), hold));
        match attendance.attend(reading).await {
            None => return AnswerRead::Failed(Failure::Lost { timed_out: true }),
            Some(Err(_)) => return AnswerRead::Failed(Failure::Panicked),
            Some(Ok(read)) => read,
        }
    };
    let word = attempt.take_said();
    let said = parts
        .extensions
        .remove::<Said>()
        .or(word)
        .or_else(|| said_by_header(context, &mut parts.headers));
    let status = parts.status;
    let location = parts.headers.get(header::LOCATION).cloned();
    let by_upstream = context.settings.by_upstream;
    let head = AnswerHead { status, location: location.clone() };
    let end = End::TooLarge { status, location, by_upstream, said };
    match read {
        Read::Whole(body, None, hold) => AnswerRead::Whole { parts, body, said, hold },
        Read::Whole(body, trailers @ Some(_), hold) => {
            AnswerRead::Unkept { parts, body: Body::whole(hold.keep(body), trailers), end }
        }
        // The record has what it will have of it, and no head of a stream can be kept in it.
        Read::Over(body) | Read::NoRoom(body) | Read::Late(body) if attempt.is_flow_over() => {
            AnswerRead::Unkept { parts, body, end }
        }
        Read::Over(body) | Read::NoRoom(body) | Read::Late(body) => {
            AnswerRead::Stream { parts, body, head, end }
        }
        Read::Broken(_) => AnswerRead::Failed(Failure::Lost { timed_out: false }),
    }
}

/// What an upstream says in its answer's head, where it is believed; the caller does not see it.
fn said_by_header<S>(context: &RequestContext<S>, headers: &mut HeaderMap) -> Option<Said> {
    if !context.settings.trust_outcome_header {
        return None;
    }
    let said = headers.remove(OUTCOME)?;
    Said::parse(said.to_str().ok()?)
}
