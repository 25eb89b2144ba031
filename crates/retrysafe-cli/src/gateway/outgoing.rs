//! What carries the bytes of a request to the upstream?

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use retrysafe::layer;

use super::callers_body::{BrokenUpload, CallersBody};

/// A body on its way to the upstream.
pub(crate) enum Outgoing {
    /// Of a request that is not covered: as it comes.
    Streamed(CallersBody),
    /// Of a request that has been through the layer.
    Guarded(layer::Body<CallersBody>),
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BrokenUpload;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenUpload>>> {
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
