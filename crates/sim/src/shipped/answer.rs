//! How does an answer of the upstream look?
//!
//! Its bytes say whose execution it is of and whether it is whole. Of its headers some are kept in a replay, and
//! some are of one moment, one connection or one session.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::{Body as HttpBody, Frame};
use retrysafe_core::policy::Said;
use tokio::time::Sleep;

use super::plan::{Plan, Says};
use crate::history::{NONE, SaidSo, TRUNCATED};

/// The longest answer that the route keeps.
pub const RESPONSE_BYTES_MAX: usize = 64;

/// An error of the handler's own.
#[derive(Debug)]
pub struct HandlerError;

/// The body of an answer: pieces, with pauses between them, and perhaps no end.
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    whole: bool,
    pause_ms: u64,
    pausing: Option<Pin<Box<Sleep>>>,
}

pub fn said(said: SaidSo) -> Option<Said> {
    match said {
        SaidSo::Nothing => None,
        SaidSo::Completed => Some(Said::Completed),
        SaidSo::Retryable => Some(Said::Retryable),
        SaidSo::Unknown => Some(Said::Unknown),
    }
}

/// What stands in the header by which an upstream says its outcome.
pub fn outcome_word(said: Said) -> &'static str {
    match said {
        Said::Completed => "completed",
        Said::Retryable => "retryable",
        Said::Unknown => "unknown",
    }
}

/// The headers with which an execution answers: some are kept, some are of one moment.
pub fn headers(exec: u16) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.append(HeaderName::from_static(name), value);
        }
    };
    add("content-type", "text/plain".to_owned());
    add("location", format!("/payments/{exec}"));
    add("x-step", format!("one {exec}"));
    add("x-step", format!("two {exec}"));
    add("date", "Thu, 01 Jan 1970 00:00:00 GMT".to_owned());
    add("set-cookie", format!("session={exec}"));
    add("x-request-id", format!("upstream-{exec}"));
    add("connection", "x-hop".to_owned());
    add("x-hop", "of one connection".to_owned());
    headers
}

pub fn answer(exec: u16, plan: Plan) -> Response<Pieces> {
    let whole = body(exec, plan.long, plan.whole);
    let half = whole.len() / 2;
    let pieces = match plan.piece_ms {
        0 => VecDeque::from([whole]),
        _ => VecDeque::from([whole.slice(..half), whole.slice(half..)]),
    };
    let body = Pieces { pieces, whole: plan.whole, pause_ms: plan.piece_ms, pausing: None };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(plan.status).unwrap_or_default();
    *response.headers_mut() = headers(exec);
    match (plan.says, said(plan.said)) {
        (Says::Extension, Some(said)) => {
            response.extensions_mut().insert(said);
        }
        (Says::Header, Some(said)) => {
            let word = HeaderValue::from_static(outcome_word(said));
            response.headers_mut().insert("retrysafe-outcome", word);
        }
        (Says::Attempt, _) | (_, None) => {}
    }
    response
}

/// The bytes with which an execution answers: its number, perhaps much more, and an end mark, by
/// whose absence a truncated body is told.
pub fn body(exec: u16, long: bool, whole: bool) -> Bytes {
    let filler = if long { "x".repeat(2 * RESPONSE_BYTES_MAX) } else { String::new() };
    let end = if whole { "." } else { "" };
    Bytes::from(format!("execution {exec} {filler}{end}"))
}

/// Whose body it is.
pub fn exec_of(body: &[u8]) -> u16 {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let number = text.strip_prefix("execution ").and_then(|rest| rest.split_once(' '));
    match number.and_then(|(number, rest)| Some((number.parse::<u16>().ok()?, rest))) {
        Some((exec, rest)) if rest.ends_with('.') => exec,
        Some((exec, _)) => exec | TRUNCATED,
        None => NONE,
    }
}

impl Pieces {
    /// Nothing.
    pub fn none() -> Self {
        Self { pieces: VecDeque::new(), whole: true, pause_ms: 0, pausing: None }
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = HandlerError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HandlerError>>> {
        if let Some(pausing) = &mut self.pausing {
            if pausing.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.pausing = None;
        }
        match self.pieces.pop_front() {
            Some(piece) => {
                if self.pause_ms > 0 {
                    let pause = Duration::from_millis(self.pause_ms);
                    self.pausing = Some(Box::pin(tokio::time::sleep(pause)));
                }
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            None if self.whole => Poll::Ready(None),
            None => Poll::Ready(Some(Err(HandlerError))),
        }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an error of the handler's own")
    }
}

impl std::error::Error for HandlerError {}
