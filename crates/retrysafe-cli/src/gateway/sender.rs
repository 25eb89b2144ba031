//! Is a connection free for a request, whichever HTTP it speaks?

use std::error::Error;

use hyper::client::conn::{http1, http2};

use super::upload::Watched;

/// The sending end of a connection.
pub(super) enum Sender {
    Http1(http1::SendRequest<Watched>),
    Http2(http2::SendRequest<Watched>),
}

impl Sender {
    pub(super) fn is_http1(&self) -> bool {
        match self {
            Self::Http1(_) => true,
            Self::Http2(_) => false,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_ready(),
            Self::Http2(sender) => sender.is_ready(),
        }
    }

    /// Waits until another request may be sent.
    pub(super) async fn ready(&mut self) -> hyper::Result<()> {
        match self {
            Self::Http1(sender) => sender.ready().await,
            Self::Http2(sender) => sender.ready().await,
        }
    }
}

/// Whether the upstream has refused a stream before it did anything with it. RFC 9113 §8.7 says so of this one code. Of a GOAWAY it
/// says so, too, of streams above a number; but that number is not told to us, so a stream that ends by one is a lost answer.
pub(super) fn is_refused_stream(error: &hyper::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let is_refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return is_refused && error.is_reset() && error.is_remote();
        }
        cause = error.source();
    }
    false
}
