//! Does a plain connection begin with HTTP/2?
//!
//! The first bytes are read, not looked at: a look at the same byte would succeed for ever, and
//! whoever sends one byte alone would keep a thread busy. What was read is read again by whoever
//! serves the connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// What every connection in HTTP/2 begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose first bytes were read already.
pub(crate) struct Begun<T> {
    read: [u8; PREFACE.len()],
    /// How many bytes were read, and how many of them were read again.
    count: usize,
    again: usize,
    rest: T,
}

/// Reads as much of a connection as shows whether it begins with HTTP/2: at most the preface.
///
/// # Errors
///
/// If the connection breaks.
pub(crate) async fn read<T: AsyncRead + Unpin>(mut stream: T) -> io::Result<(bool, Begun<T>)> {
    let mut read = [0; PREFACE.len()];
    let mut count = 0;
    while let Some(free) = read.get_mut(count..).filter(|free| !free.is_empty()) {
        let more = stream.read(free).await?;
        count += more;
        if more == 0 || !read.get(..count).is_some_and(|begin| PREFACE.starts_with(begin)) {
            return Ok((false, Begun { read, count, again: 0, rest: stream }));
        }
    }
    Ok((true, Begun { read, count, again: 0, rest: stream }))
}

impl<T: AsyncRead + Unpin> AsyncRead for Begun<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buffer.remaining().min(self.count.saturating_sub(self.again));
        let end = self.again.saturating_add(length);
        match self.read.get(self.again..end) {
            Some(read) if !read.is_empty() => {
                buffer.put_slice(read);
                self.again = end;
                Poll::Ready(Ok(()))
            }
            Some(_) | None => Pin::new(&mut self.rest).poll_read(context, buffer),
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Begun<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.rest).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.rest).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.rest.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.rest).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.rest).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_read_is_read_again() {
        for (bytes, is_h2) in [
            (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nframes"[..], true),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true),
            (b"PRI * HTTP/1.1\r\n\r\n", false),
            (b"POST / HTTP/1.1\r\n\r\n", false),
            (b"PRI", false),
            (b"", false),
        ] {
            let (found, mut begun) = read(bytes).await.unwrap();
            assert_eq!(found, is_h2, "{bytes:?}");
            let mut seen = Vec::new();
            // One byte at a time, as the narrowest reader would.
            let mut byte = [0];
            while begun.read(&mut byte).await.unwrap() == 1 {
                seen.push(byte[0]);
            }
            assert_eq!(seen, bytes);
        }
    }
}
