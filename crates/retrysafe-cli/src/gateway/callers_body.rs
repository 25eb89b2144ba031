//! What does a caller send, and is it whole?
//!
//! A stream of HTTP/2 may be reset "without error" in the middle of a body, and to the HTTP library that looks like the body's end. A part
//! of a request that is taken for the whole would be executed, and a retry with the whole one refused. So over HTTP/2 only the flag that ends
//! a stream makes a body whole.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use retrysafe::layer::{self, InnerBody};

/// The body of a request, as it comes.
pub(crate) struct CallersBody {
    body: Incoming,
    /// Whether only a flag says that it is whole.
    ends_by_flag: bool,
}

/// Why the body of a request broke off.
#[derive(Debug)]
pub(crate) enum BrokenUpload {
    /// Its connection broke, or its framing is malformed.
    Connection(hyper::Error),
    /// The caller has reset its stream before the body was whole.
    Reset,
}

impl CallersBody {
    /// The body of a request that came in this version of HTTP.
    pub(crate) fn new(body: Incoming, version: Version) -> Self {
        Self { body, ends_by_flag: version == Version::HTTP_2 }
    }
}

impl Body for CallersBody {
    type Data = Bytes;
    type Error = BrokenUpload;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenUpload>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(None) if self.ends_by_flag && !self.body.is_end_stream() => {
                Poll::Ready(Some(Err(BrokenUpload::Reset)))
            }
            frame @ (Poll::Ready(_) | Poll::Pending) => frame.map_err(BrokenUpload::Connection),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl InnerBody for CallersBody {
    type Inner = layer::Body<Self>;

    fn inner(body: layer::Body<Self>) -> layer::Body<Self> {
        body
    }
}

impl fmt::Display for BrokenUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => write!(f, "the caller's body broke off: {error}"),
            Self::Reset => f.write_str("the caller reset its body before it was whole"),
        }
    }
}

impl std::error::Error for BrokenUpload {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connection(error) => Some(error),
            Self::Reset => None,
        }
    }
}
