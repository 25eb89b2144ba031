//! Is the answer whole, and what does it say?
//!
//! An answer that breaks off is no answer, so a bounded part is read before it is handed over; what
//! was read is played back to the caller, and the rest follows from the connection.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;

/// How much of a refusal is searched for its `code`. Problem documents are a few hundred bytes.
pub(super) const PROBLEM_BYTES_MAX: usize = 16 * 1024;

/// The body of an answer: what was read already, then the rest.
pub struct Answer<B> {
    read: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    rest: Option<Pin<Box<B>>>,
}

impl<B: Body> Answer<B> {
    /// Nothing read yet.
    pub(super) fn unread(body: B) -> Self {
        Self { read: VecDeque::new(), trailers: None, rest: Some(Box::pin(body)) }
    }

    /// Reads the body to its end, or until more than `bytes_max` have been read.
    pub(super) async fn read(body: B, bytes_max: usize) -> Result<Self, B::Error> {
        let mut answer = Self::unread(body);
        let mut bytes = 0_usize;
        while bytes <= bytes_max {
            let Some(rest) = &mut answer.rest else { break };
            match rest.frame().await.transpose()? {
                None => answer.rest = None,
                Some(frame) => match frame.into_data() {
                    Ok(mut data) => {
                        bytes = bytes.saturating_add(data.remaining());
                        answer.read.push_back(data.copy_to_bytes(data.remaining()));
                    }
                    Err(frame) => answer.trailers = frame.into_trailers().ok(),
                },
            }
        }
        Ok(answer)
    }

    /// Whether the body was read to its end.
    fn is_whole(&self) -> bool {
        self.rest.is_none()
    }

    /// What was read, in one piece.
    pub(super) fn what_was_read(&self) -> Bytes {
        match (self.read.len(), self.read.front()) {
            (1, Some(only)) => only.clone(),
            _ => {
                let mut all = BytesMut::new();
                self.read.iter().for_each(|part| all.extend_from_slice(part));
                all.freeze()
            }
        }
    }
}

/// Stripe's word for a key that belongs to another request. It is a type, and comes without a code.
const IDEMPOTENCY_ERROR: &str = "idempotency_error";

/// The `code` of a problem document or of Stripe's error object.
pub(super) fn problem_code<B: Body>(answer: &Response<Answer<B>>) -> Option<String> {
    let media_type = answer.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    let media_type = media_type.split(';').next()?.trim().to_ascii_lowercase();
    if !media_type.ends_with("json") || !answer.body().is_whole() {
        return None;
    }
    let body = answer.body().what_was_read();
    if body.len() > PROBLEM_BYTES_MAX {
        return None;
    }
    let document: serde_json::Value = serde_json::from_slice(&body).ok()?;
    let text = |pointer| document.pointer(pointer).and_then(serde_json::Value::as_str);
    let code = text("/code").or_else(|| text("/error/code"));
    let code = code.or_else(|| text("/error/type").filter(|kind| *kind == IDEMPOTENCY_ERROR));
    code.map(str::to_owned)
}

impl<B: Body> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(part) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        if let Some(rest) = &mut self.rest {
            return rest
                .as_mut()
                .poll_frame(cx)
                .map_ok(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining())));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.iter().map(|part| part.len() as u64).sum::<u64>();
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), |rest| rest.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint.set_lower(rest.lower().saturating_add(read));
        hint
    }
}

impl<B> fmt::Debug for Answer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("read_parts", &self.read.len())
            .field("is_whole", &self.rest.is_none())
            .finish()
    }
}
