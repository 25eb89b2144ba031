//! How is a connection to the upstream made, and may its next request be sent?
//!
//! An upstream speaks when it is asked. Bytes that wait on a connection before a request was sent over it
//! would be taken for that request's answer, and they may be meant for somebody else. The runtime learns
//! of new bytes now and then only, so a connection that is used again is asked itself. Once asked, an
//! upstream comes to its answer: it may send word in between (1xx), but the client reads such heads for as
//! long as there are any, and meanwhile nobody else on its thread has a turn. So there is a bound to it.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, recv};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::Upstream;
use crate::dial;

/// Makes connections to the upstream.
#[derive(Clone)]
pub(crate) struct Connector {
    way: Way,
    generation: u64,
}

/// A connection to an upstream that is no socket.
pub trait UpstreamIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> UpstreamIo for T {}

/// A connection to an upstream that is being made.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn UpstreamIo>>> + Send>>;

/// Makes connections to an upstream.
pub(super) type Dial = dyn Fn() -> Connecting + Send + Sync;

/// By which way the upstream is reached.
#[derive(Clone)]
enum Way {
    Network {
        host: Arc<str>,
        port: u16,
        tls: Option<(TlsConnector, ServerName<'static>)>,
        /// Whether HTTP/2 is spoken; over TLS, whether it is offered.
        http2: bool,
    },
    /// A socket in the file system.
    Socket(Arc<Path>),
    /// Whatever the program that the gateway runs in has made.
    InProcess(Arc<Dial>),
}

/// How much an upstream may send before the head of its answer is read. More than any head, and what is
/// read ahead of its body.
const BYTES_BEFORE_ANSWER_MAX: usize = 512 << 10;

/// A connection to the upstream.
pub(crate) struct Stream {
    carrier: Carrier,
    exchange: Exchange,
    is_http2: bool,
}

enum Carrier {
    Plain(TcpStream),
    Socket(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    InProcess(Box<dyn UpstreamIo>),
}

/// Where a connection is between request and answer, as far as whoever sends over it says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchange(Arc<ExchangeState>);

#[derive(Debug, Default)]
struct ExchangeState {
    /// Whether the socket is to be looked at before the request is sent.
    looks_first: AtomicBool,
    /// Whether a request is sent whose answer has not begun.
    is_asked: AtomicBool,
    bytes_since: AtomicUsize,
}

impl Exchange {
    /// A request is about to be sent. Over a connection that was used before, whatever waits there by now
    /// belongs to no answer: then, or if the upstream has hung up, the connection ends, and the request
    /// comes back unsent.
    pub(crate) fn asked(&self, is_reused: bool) {
        self.0.bytes_since.store(0, Ordering::Relaxed);
        self.0.is_asked.store(true, Ordering::Relaxed);
        self.0.looks_first.store(is_reused, Ordering::Relaxed);
    }

    /// The head of the answer was read.
    pub(crate) fn answered(&self) {
        self.0.is_asked.store(false, Ordering::Relaxed);
    }

    /// Whether the socket is to be looked at now.
    fn takes_look(&self) -> bool {
        self.0.looks_first.load(Ordering::Relaxed)
            && self.0.looks_first.swap(false, Ordering::Relaxed)
    }

    /// Counts bytes that were read.
    ///
    /// # Errors
    ///
    /// If there are too many of them before an answer.
    fn count(&self, bytes: usize) -> io::Result<()> {
        let is_too_much = self.0.is_asked.load(Ordering::Relaxed)
            && self.0.bytes_since.fetch_add(bytes, Ordering::Relaxed) > BYTES_BEFORE_ANSWER_MAX;
        if is_too_much {
            Err(io::Error::other("the upstream does not come to its answer"))
        } else {
            Ok(())
        }
    }
}

impl Connector {
    /// The connector to a server. Each gets a generation of its own.
    ///
    /// # Errors
    ///
    /// If the authorities to trust cannot be read.
    pub(crate) fn new(upstream: &Upstream, authorities: Option<&Path>) -> io::Result<Self> {
        let Upstream { tls, http2, authority, port, socket } = upstream;
        if let Some(socket) = socket {
            return Ok(Self::by(Way::Socket(socket.as_path().into())));
        }
        let host = authority.host().trim_matches(['[', ']']);
        let tls = if *tls {
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            let client = if *http2 {
                dial::client_config_with_http2(authorities)?
            } else {
                dial::client_config(authorities)?
            };
            Some((TlsConnector::from(client), name))
        } else {
            None
        };
        Ok(Self::by(Way::Network { host: host.into(), port: *port, tls, http2: *http2 }))
    }

    /// The connector to whatever is made by this.
    pub(crate) fn over(dial: Arc<Dial>) -> Self {
        Self::by(Way::InProcess(dial))
    }

    fn by(way: Way) -> Self {
        static GENERATION: AtomicU64 = AtomicU64::new(0);
        Self { way, generation: GENERATION.fetch_add(1, Ordering::Relaxed) }
    }

    /// Which of all connectors this is.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether it speaks TLS.
    pub(crate) fn is_tls(&self) -> bool {
        match &self.way {
            Way::Network { tls, .. } => tls.is_some(),
            Way::Socket(_) | Way::InProcess(_) => false,
        }
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// Whatever stood in the way. Nothing has been sent then.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        let mut is_http2 = false;
        let carrier = match &self.way {
            Way::Network { host, port, tls, http2 } => {
                let stream = TcpStream::connect((&**host, *port)).await?;
                stream.set_nodelay(true)?;
                match tls {
                    None => {
                        is_http2 = *http2;
                        Carrier::Plain(stream)
                    }
                    Some((connector, name)) => {
                        let stream = connector.connect(name.clone(), stream).await?;
                        is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                        Carrier::Tls(Box::new(stream))
                    }
                }
            }
            Way::Socket(path) => Carrier::Socket(UnixStream::connect(path).await?),
            Way::InProcess(dial) => Carrier::InProcess(dial().await?),
        };
        Ok(Stream { carrier, exchange: Exchange::default(), is_http2 })
    }
}

/// Why a connection cannot be used again: the upstream has sent bytes that nobody asked for.
#[derive(Debug)]
pub(crate) struct SpokeUnasked;

impl fmt::Display for SpokeUnasked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the upstream sent bytes that belong to no answer")
    }
}

impl std::error::Error for SpokeUnasked {}

impl Stream {
    /// Whether HTTP/2 is spoken over it.
    pub(crate) fn is_http2(&self) -> bool {
        self.is_http2
    }

    /// By which this connection is told what is sent over it.
    pub(crate) fn exchange(&self) -> Exchange {
        self.exchange.clone()
    }
}

impl Carrier {
    /// Whether the upstream is still there and silent.
    fn is_silent(&self) -> io::Result<()> {
        let (socket, is_plain) = match self {
            Self::Plain(stream) => (stream.as_fd(), true),
            Self::Socket(stream) => (stream.as_fd(), true),
            Self::Tls(stream) => (stream.get_ref().0.as_fd(), false),
            // Nothing stands between it and us: had it spoken, we would have read it just now.
            Self::InProcess(_) => return Ok(()),
        };
        let mut byte = [0];
        match recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
            Ok((_, 0)) => Err(io::ErrorKind::ConnectionAborted.into()),
            // Encrypted, it may be no more than a goodbye.
            Ok(_) if !is_plain => Err(io::ErrorKind::ConnectionAborted.into()),
            Ok(_) => Err(io::Error::other(SpokeUnasked)),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = match &mut this.carrier {
            Carrier::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Carrier::Socket(stream) => Pin::new(stream).poll_read(context, buffer),
            Carrier::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Carrier::InProcess(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        match read {
            Poll::Ready(Ok(())) => {
                Poll::Ready(this.exchange.count(buffer.filled().len().saturating_sub(before)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if this.exchange.takes_look() {
                    this.carrier.is_silent()?;
                }
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().carrier {
            Carrier::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Carrier::Socket(stream) => Pin::new(stream).poll_write(context, bytes),
            Carrier::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Carrier::InProcess(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().carrier {
            Carrier::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Carrier::Socket(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Carrier::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Carrier::InProcess(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.carrier {
            Carrier::Plain(stream) => stream.is_write_vectored(),
            Carrier::Socket(stream) => stream.is_write_vectored(),
            Carrier::Tls(stream) => stream.is_write_vectored(),
            Carrier::InProcess(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().carrier {
            Carrier::Plain(stream) => Pin::new(stream).poll_flush(context),
            Carrier::Socket(stream) => Pin::new(stream).poll_flush(context),
            Carrier::Tls(stream) => Pin::new(stream).poll_flush(context),
            Carrier::InProcess(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().carrier {
            Carrier::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Carrier::Socket(stream) => Pin::new(stream).poll_shutdown(context),
            Carrier::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Carrier::InProcess(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use std::io::{Read as _, Write as _};

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    /// One request over a new connection, then what the upstream does by itself, then a second request:
    /// what becomes of that one.
    async fn second_request(unasked: impl FnOnce(&mut std::net::TcpStream)) -> Result<(), bool> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = crate::config::server(&url).unwrap();
        let stream = Connector::new(&server, None).unwrap().connect().await.unwrap();
        let mut upstream = listener.accept().unwrap().0;
        let exchange = stream.exchange();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = || Request::get("/").header("host", "a").body(Empty::<Bytes>::new()).unwrap();
        let answer = sender.try_send_request(request());
        upstream.write_all(ANSWER).unwrap();
        let body = answer.await.map_err(|_| ()).unwrap().into_body();
        assert_eq!(body.collect().await.unwrap().to_bytes(), "ok");
        sender.ready().await.unwrap();
        let mut head = [0; 1_024];
        assert!(upstream.read(&mut head).unwrap() > 0);
        // From here to the second request the runtime has no chance to look for bytes.
        unasked(&mut upstream);
        exchange.asked(true);
        let answer = sender.try_send_request(request());
        let is_answered = tokio::time::timeout(std::time::Duration::from_secs(5), async {
            let answer = answer.await.map_err(|mut error| error.take_message().is_some())?;
            answer.into_body().collect().await.unwrap();
            Ok(())
        });
        is_answered.await.unwrap_or(Err(false))
    }

    // An upstream sent two answers to one request, and the next caller got the second one.
    #[tokio::test]
    async fn bytes_that_nobody_asked_for_are_no_answer_to_the_next_request() {
        let spoke = second_request(|upstream| upstream.write_all(ANSWER).unwrap()).await;
        assert_eq!(spoke, Err(true), "the request comes back unsent");
    }

    #[tokio::test]
    async fn a_request_is_not_sent_to_an_upstream_that_has_hung_up() {
        let left = second_request(|upstream| {
            upstream.shutdown(std::net::Shutdown::Both).unwrap();
        });
        assert_eq!(left.await, Err(true), "the request comes back unsent");
    }

    #[tokio::test]
    async fn a_silent_connection_is_used_again() {
        let answered = second_request(|upstream| {
            let mut upstream = upstream.try_clone().unwrap();
            std::thread::spawn(move || {
                let mut head = [0; 1_024];
                assert!(upstream.read(&mut head).unwrap() > 0);
                upstream.write_all(ANSWER).unwrap();
            });
        });
        assert_eq!(answered.await, Ok(()));
    }
}
