//! What carries the bytes of a request to the upstream, and those of its answer back?
//!
//! An upstream's answer holds on to its connection until it was read whole; then the connection goes
//! back to the pool. An answer that is dropped half-read takes its connection with it.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use retrysafe::layer;
use tokio::time::Sleep;

use super::pool::Held;

/// A body on its way to the upstream.
pub(crate) enum Outgoing {
    /// Of a request that is not covered: as it comes.
    Streamed(Incoming),
    /// Of a request that has been through the layer.
    Guarded(layer::Body<Incoming>),
}

/// An upstream's answer on its way back.
pub(crate) struct Answer {
    body: Option<Incoming>,
    held: Option<Held>,
    deadline: Option<Pin<Box<Sleep>>>,
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
    /// It took too long.
    TimedOut,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => write!(f, "the answer broke off: {error}"),
            Self::TimedOut => f.write_str("the answer did not end in time"),
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
    /// An answer over a connection. With a deadline, it must have ended by then.
    pub(crate) fn new(body: Incoming, held: Held, deadline: Option<Pin<Box<Sleep>>>) -> Self {
        if body.is_end_stream() {
            held.give_back();
            return Self::empty();
        }
        Self { body: Some(body), held: Some(held), deadline }
    }

    /// An answer without a body.
    pub(crate) fn empty() -> Self {
        Self { body: None, held: None, deadline: None }
    }

    fn ended(&mut self) {
        self.body = None;
        self.deadline = None;
        if let Some(held) = self.held.take() {
            held.give_back();
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
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        match Pin::new(&mut *body).poll_frame(context) {
            Poll::Ready(None) => {
                this.ended();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                this.held = None;
                this.body = None;
                Poll::Ready(Some(Err(Broken::Connection(error))))
            }
            Poll::Ready(Some(Ok(frame))) => {
                if body.is_end_stream() {
                    this.ended();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Pending => {
                let Some(deadline) = &mut this.deadline else { return Poll::Pending };
                ready!(deadline.as_mut().poll(context));
                this.held = None;
                this.body = None;
                Poll::Ready(Some(Err(Broken::TimedOut)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Streamed(body) => Pin::new(body).poll_frame(context),
            Self::Guarded(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Streamed(body) => body.is_end_stream(),
            Self::Guarded(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Streamed(body) => body.size_hint(),
            Self::Guarded(body) => body.size_hint(),
        }
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
            Self::Guarded(body) => Pin::new(body).poll_frame(context),
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
