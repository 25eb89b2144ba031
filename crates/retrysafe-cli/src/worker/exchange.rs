//! What becomes of one request over one connection?

use std::error::Error;
use std::future::{Future, pending};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::response::Parts;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::connect::BoundedStream;
use crate::config::destinations::Reference;

/// How much of an answer's body is read: enough for what a receiver calls an effect.
const BODY_BYTES_MAX: usize = 64 << 10;

/// A receiver's answer.
pub(super) struct ReceivedAnswer {
    pub head: Parts,
    /// None if it did not come whole, in time, or is too large. The head is an answer without it.
    body: Option<Bytes>,
}

/// Why there is no answer.
pub(super) struct Unanswered {
    /// Whether not a byte of the request was sent.
    pub is_unsent: bool,
    pub why: String,
}

/// Sends a request, and reads the answer. Dropped, it closes the connection: nothing is sent after its end. `body_time` says
/// when the head has come how long the body may take.
///
/// # Errors
///
/// If no head came.
pub(super) async fn exchange(
    stream: BoundedStream,
    request: Request<Full<Bytes>>,
    body_time: impl FnOnce() -> Duration,
) -> Result<ReceivedAnswer, Unanswered> {
    let unsent = |error| Unanswered { is_unsent: true, why: told(&error) };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(unsent)?;
    let asked = async move {
        let answer = sender.try_send_request(request).await.map_err(|mut error| {
            // It comes back if and only if its connection never began to write it.
            let is_unsent = error.take_message().is_some();
            Unanswered { is_unsent, why: told(error.error()) }
        })?;
        let (head, body) = answer.into_parts();
        let body = read_body(Limited::new(body, BODY_BYTES_MAX), body_time()).await;
        Ok(ReceivedAnswer { head, body })
    };
    let driven = async {
        // What goes wrong here is told to whoever waits for the answer.
        let _ = connection.await;
        pending().await
    };
    tokio::select! {
        biased;
        answered = asked => answered,
        never = driven => never,
    }
}

fn read_body<B>(body: B, time_max: Duration) -> impl Future<Output = Option<Bytes>>
where
    B: http_body::Body,
{
    let read = tokio::time::timeout(time_max, body.collect());
    async { read.await.ok()?.ok().map(|body| body.to_bytes()) }
}

/// An error and what it rests on.
fn told(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl ReceivedAnswer {
    /// What the receiver calls the effect.
    pub(super) fn reference(&self, place: &Reference) -> Option<String> {
        match place {
            Reference::Header(name) => Some(self.head.headers.get(name)?.to_str().ok()?.to_owned()),
            Reference::Pointer(pointer) => {
                let document: Value = serde_json::from_slice(self.body.as_ref()?).ok()?;
                match document.pointer(pointer)? {
                    Value::String(text) => Some(text.clone()),
                    Value::Number(number) => Some(number.to_string()),
                    Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
                }
            }
        }
    }

    /// How long the receiver wants to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.head.headers, SystemTime::now())
    }
}

/// Reads `Retry-After`: seconds, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(SystemTime::from(at).duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_may_ask_to_be_left_alone_in_seconds_or_until_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_000);
        for (text, seconds) in [
            ("120", Some(120)),
            ("0", Some(0)),
            ("Wed, 21 Oct 2015 07:28:00 GMT", Some(480)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            let headers: HeaderMap = [(RETRY_AFTER, text.parse().unwrap())].into_iter().collect();
            assert_eq!(retry_after(&headers, now), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
