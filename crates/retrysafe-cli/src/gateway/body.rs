//! What carries the bytes of an answer back to its caller?
//!
//! An upstream's answer holds on to its connection until it was read whole; then the connection goes
//! back to the pool. An answer that is dropped half-read takes its connection with it.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use retrysafe::layer;

use super::pool::Held;
use super::silence::Silence;

/// An upstream's answer on its way back.
pub(crate) struct Answer(Option<OpenAnswer>);

/// An answer that is not yet read whole.
struct OpenAnswer {
    body: Incoming,
    held: Held,
    silence: Silence,
    /// Whether only a flag says that it is whole. A stream of HTTP/2 may be reset "without error" in the middle of an answer, which looks
    /// like an end.
    ends_by_flag: bool,
}

/// What a caller gets.
pub(crate) enum Reply {
    /// An upstream's answer, as it comes.
    Streamed(Answer),
    /// An answer that has been through the layer.
    Guarded(layer::Body<Answer>),
    /// An answer of our own.
    Own(Option<Bytes>),
}

/// Why an answer broke off.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection did.
    Connection(hyper::Error),
    /// The upstream has reset its stream before the answer was whole.
    Reset,
    /// It took too long.
    TimedOut,
    /// The gateway stops, and has given it up.
    GivenUp,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => write!(f, "the answer broke off: {error}"),
            Self::Reset => f.write_str("the upstream reset the answer before it was whole"),
            Self::TimedOut => f.write_str("the answer paused for longer than `upstream_timeout`"),
            Self::GivenUp => f.write_str("the gateway stops before the answer has ended"),
        }
    }
}

impl std::error::Error for Broken {}

impl From<Infallible> for Broken {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Answer {
    /// An answer over a connection.
    pub(crate) fn new(body: Incoming, version: Version, held: Held, silence: Silence) -> Self {
        if body.is_end_stream() {
            held.give_back();
            return Self::empty();
        }
        let ends_by_flag = version == Version::HTTP_2;
        Self(Some(OpenAnswer { body, held, silence, ends_by_flag }))
    }

    /// An answer without a body.
    pub(crate) fn empty() -> Self {
        Self(None)
    }

    fn ended(&mut self) {
        if let Some(open) = self.0.take() {
            open.held.give_back();
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Some(open) = &mut self.0 else { return Poll::Ready(None) };
        match Pin::new(&mut open.body).poll_frame(context) {
            Poll::Ready(None) if open.ends_by_flag && !open.body.is_end_stream() => {
                self.0 = None;
                Poll::Ready(Some(Err(Broken::Reset)))
            }
            Poll::Ready(None) => {
                self.ended();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                self.0 = None;
                Poll::Ready(Some(Err(Broken::Connection(error))))
            }
            Poll::Ready(Some(Ok(frame))) => {
                open.silence.broken();
                if open.body.is_end_stream() {
                    self.ended();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Pending => {
                ready!(open.silence.poll_too_long(context));
                self.0 = None;
                Poll::Ready(Some(Err(Broken::TimedOut)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|open| open.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), |open| open.body.size_hint())
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Streamed(body) => Pin::new(body).poll_frame(context),
            Self::Guarded(body) => match Pin::new(&mut *body).poll_frame(context) {
                Poll::Pending if body.is_cut_off() => Poll::Ready(Some(Err(Broken::GivenUp))),
                polled @ (Poll::Ready(_) | Poll::Pending) => polled,
            },
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Streamed(body) => body.is_end_stream(),
            Self::Guarded(body) => body.is_end_stream(),
            Self::Own(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Streamed(body) => body.size_hint(),
            Self::Guarded(body) => body.size_hint(),
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}
