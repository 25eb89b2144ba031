//! Is the backend that we talk to ours alone?
//!
//! A server tells every new connection the number of its backend process. A pooler answers in the
//! server's place, with a number of its own, and every transaction may meet another backend. So the
//! number that a connection was told at its beginning is compared with the number that the backend
//! says of itself. The driver keeps the first one to itself; here it is read as it comes by.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

/// How many bytes a server may say before the number of its backend. It is far less than this.
const GREETING_BYTES_MAX: usize = 16 << 10;

/// The number of the backend process as the connection was told at its beginning; 0 if it was not.
#[derive(Clone, Debug, Default)]
pub(super) struct ToldBackend(Arc<AtomicI32>);

/// A connector that notes the number of the backend, and otherwise leaves all to another one.
#[derive(Clone)]
pub(super) struct Noting<T> {
    pub(super) inner: T,
    pub(super) told: ToldBackend,
}

/// A connector for connections in plain text: what it connects is the socket itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plain;

/// A stream whose greeting is read along.
pub(super) struct Noted<S> {
    stream: S,
    /// What has come so far, until the number is there.
    greeting: Option<Vec<u8>>,
    told: ToldBackend,
}

impl ToldBackend {
    /// Whether the backend that says this number of itself is the one that we were told.
    pub(super) fn is(&self, pid: i32) -> bool {
        pid != 0 && self.0.load(Ordering::Acquire) == pid
    }
}

/// What a greeting says of the backend.
#[derive(Debug, PartialEq, Eq)]
enum Greeting {
    /// Its number.
    Told(i32),
    /// Nothing yet.
    Unfinished,
    /// Nothing, and nothing will come.
    Silent,
}

/// Reads messages, each of a type, a length and its content, up to the one with the number.
fn read_greeting(mut bytes: &[u8]) -> Greeting {
    while let Some((kind, rest)) = bytes.split_first() {
        let Some((length, body)) = rest.split_first_chunk::<4>() else { break };
        let Some(length) = (u32::from_be_bytes(*length) as usize).checked_sub(4) else {
            return Greeting::Silent;
        };
        match (kind, body.first_chunk::<4>()) {
            (b'K', Some(pid)) => return Greeting::Told(i32::from_be_bytes(*pid)),
            // Ready for the first query, or refused.
            (b'Z' | b'E', _) => return Greeting::Silent,
            _ => {}
        }
        let Some(next) = body.get(length..) else { break };
        bytes = next;
    }
    Greeting::Unfinished
}

impl<T: MakeTlsConnect<Socket>> MakeTlsConnect<Socket> for Noting<T>
where
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send + 'static,
    T::Stream: Unpin,
{
    type Stream = Noted<T::Stream>;
    type TlsConnect = Noting<T::TlsConnect>;
    type Error = T::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, Self::Error> {
        Ok(Noting { inner: self.inner.make_tls_connect(host)?, told: self.told.clone() })
    }
}

impl<T: TlsConnect<Socket>> TlsConnect<Socket> for Noting<T>
where
    T::Future: Send + 'static,
    T::Stream: Unpin,
{
    type Stream = Noted<T::Stream>;
    type Error = T::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, T::Error>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let connect = self.inner.connect(socket);
        Box::pin(async move {
            Ok(Noted { stream: connect.await?, greeting: Some(Vec::new()), told: self.told })
        })
    }
}

impl MakeTlsConnect<Socket> for Plain {
    type Stream = PlainStream;
    type TlsConnect = Self;
    type Error = io::Error;

    fn make_tls_connect(&mut self, _: &str) -> io::Result<Self> {
        Ok(*self)
    }
}

impl TlsConnect<Socket> for Plain {
    type Stream = PlainStream;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<PlainStream>>;

    fn connect(self, socket: Socket) -> Self::Future {
        std::future::ready(Ok(PlainStream(socket)))
    }
}

/// A socket where the driver expects an encrypted stream.
pub(super) struct PlainStream(Socket);

impl TlsStream for PlainStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: TlsStream + Unpin> TlsStream for Noted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.stream.channel_binding()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(mut greeting) = self.greeting.take() {
            greeting.extend_from_slice(buffer.filled().get(before..).unwrap_or_default());
            match read_greeting(&greeting) {
                Greeting::Told(pid) => self.told.0.store(pid, Ordering::Release),
                Greeting::Unfinished if greeting.len() <= GREETING_BYTES_MAX => {
                    self.greeting = Some(greeting);
                }
                Greeting::Unfinished | Greeting::Silent => {}
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AsyncRead for PlainStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for PlainStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    #[test]
    fn the_number_is_found_however_the_greeting_is_cut() {
        let number = message(b'K', &[0, 0, 1, 2, 9, 9, 9, 9]);
        let all = [message(b'R', &[0; 4]), message(b'S', b"a\0b\0"), number, message(b'Z', b"I")]
            .concat();
        for length in 0..all.len() {
            let wanted =
                if length < 9 + 9 + 9 { Greeting::Unfinished } else { Greeting::Told(258) };
            assert_eq!(read_greeting(&all[..length]), wanted, "{length}");
        }
        let refused = [message(b'R', &[0; 4]), message(b'E', b"no")].concat();
        assert_eq!(read_greeting(&refused), Greeting::Silent);
        assert_eq!(read_greeting(&message(b'Z', b"I")), Greeting::Silent);
        assert_eq!(read_greeting(&[b'R', 0, 0, 0, 1]), Greeting::Silent, "no message is so short");
    }
}
