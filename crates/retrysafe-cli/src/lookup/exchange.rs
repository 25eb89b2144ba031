//! How is one question asked over one connection?
//!
//! What comes back is bounded as a whole, heads and body together: a provider that never comes to an end is given up.

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::RawAnswer;
use crate::dial::Stream;

/// The largest answer that is read: an answer to replay may stand in it.
const ANSWER_BYTES_MAX: usize = 2 << 20;

/// How many bytes may come over a connection, heads included. The client reads up to 400 KiB ahead of the body that it gives us, and an
/// answer that is too large should be told as such.
const BYTES_MAX: usize = ANSWER_BYTES_MAX + (1 << 20);

/// Sends a request, and reads the answer. Dropped, it closes the connection.
///
/// # Errors
///
/// Why there is no whole answer.
pub(super) async fn exchange(
    stream: Box<dyn Stream>,
    request: Request<Empty<Bytes>>,
) -> Result<RawAnswer, String> {
    let told = |error: hyper::Error| error.to_string();
    let stream = BoundedStream { carrier: stream, bytes_left: BYTES_MAX };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(told)?;
    let asked = async move {
        let answer = sender.send_request(request).await.map_err(told)?;
        let (head, mut body) = answer.into_parts();
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                format!("status {}, and the answer broke off: {error}", head.status.as_u16())
            })?;
            let Ok(piece) = frame.into_data() else { continue };
            if read.len().saturating_add(piece.len()) > ANSWER_BYTES_MAX {
                return Err(format!(
                    "status {}, and the answer is larger than {ANSWER_BYTES_MAX} bytes",
                    head.status.as_u16()
                ));
            }
            read.extend_from_slice(&piece);
        }
        Ok(RawAnswer { status: head.status, headers: head.headers, body: read.freeze() })
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

/// A connection over which so much may come, and no more.
struct BoundedStream {
    carrier: Box<dyn Stream>,
    bytes_left: usize,
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.carrier).poll_read(context, buffer))?;
        let read = buffer.filled().len().saturating_sub(before);
        let Some(left) = self.bytes_left.checked_sub(read) else {
            return Poll::Ready(Err(io::Error::other("whoever was asked sends too much")));
        };
        self.bytes_left = left;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.carrier).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_shutdown(context)
    }
}
