//! How does a delivery reach its receiver, and nobody else?
//!
//! The host's addresses are looked up here, and the connection goes to an address that was looked at: nobody is asked a second time.
//! Each delivery has a connection of its own, so that nothing is ever sent again behind our back, and no proxy of the environment is
//! asked. What a receiver may send is bounded as a whole, heads and body together.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use ipnet::IpNet;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::networks::why_refused;
use crate::config::destinations::Destination;
use crate::config::effect_file::ReceiverTlsFile;
use crate::dial::{self, Stream};

/// How many bytes a receiver may send before, in and after its answer.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// How many addresses of a host are tried.
const ADDRESSES_MAX: usize = 4;

/// Why there is no connection. Nothing of the delivery has been sent.
#[derive(Debug)]
pub(super) enum NotConnected {
    /// The operator's rules forbid it.
    Forbidden(String),
    /// Something else stood in the way; it may pass.
    Failed(String),
}

/// A connection to a receiver.
pub(super) struct BoundedStream {
    carrier: Box<dyn Stream>,
    /// How many bytes may still come.
    bytes_left: usize,
}

/// TLS towards the receivers of one kind, by files that are read at the first need and on request.
#[derive(Debug)]
pub(super) struct TlsClient {
    files: ReceiverTlsFile,
    read: ArcSwapOption<ClientConfig>,
}

impl TlsClient {
    pub(super) fn new(files: ReceiverTlsFile) -> Self {
        Self { files, read: ArcSwapOption::empty() }
    }

    fn config(&self) -> io::Result<Arc<ClientConfig>> {
        if let Some(config) = self.read.load_full() {
            return Ok(config);
        }
        self.read_again()
    }

    /// Reads the files. If that fails, those count that were read before.
    ///
    /// # Errors
    ///
    /// Why they cannot be used.
    pub(super) fn read_again(&self) -> io::Result<Arc<ClientConfig>> {
        let ReceiverTlsFile { certificate, key, authorities } = &self.files;
        let authorities = authorities.as_deref().map(Path::new);
        let config = match (certificate, key) {
            (Some(certificate), Some(key)) => dial::client_config_with_certificate(
                authorities,
                certificate.as_ref(),
                key.as_ref(),
            ),
            (_, _) => dial::client_config(authorities),
        }?;
        self.read.store(Some(Arc::clone(&config)));
        Ok(config)
    }
}

/// Connects, within a time.
///
/// # Errors
///
/// Why not.
pub(super) async fn connect(
    destination: &Destination,
    allowed: &[IpNet],
    tls: &TlsClient,
    time_max: Duration,
) -> Result<BoundedStream, NotConnected> {
    let connecting = async {
        let stream = reach(destination, allowed, time_max / 2).await?;
        give_up_after(&stream, time_max * 2);
        let carrier = secure(destination, stream, tls).await;
        let carrier = carrier.map_err(|error| failed(destination, &error))?;
        Ok(BoundedStream { carrier, bytes_left: ANSWER_BYTES_MAX })
    };
    let late = |_| Err(failed(destination, &io::ErrorKind::TimedOut.into()));
    tokio::time::timeout(time_max, connecting).await.unwrap_or_else(late)
}

fn failed(destination: &Destination, error: &io::Error) -> NotConnected {
    NotConnected::Failed(format!("no connection to {destination}: {error}"))
}

/// Connects to the first of the host's addresses that may be connected to and answers.
async fn reach(
    destination: &Destination,
    allowed: &[IpNet],
    time_max: Duration,
) -> Result<TcpStream, NotConnected> {
    let found = tokio::net::lookup_host((destination.host.as_str(), destination.port)).await;
    let found: Vec<SocketAddr> = found.map_err(|error| failed(destination, &error))?.collect();
    let refused =
        found.iter().find_map(|address| Some((address, why_refused(address.ip(), allowed)?)));
    let permitted = found.iter().filter(|address| why_refused(address.ip(), allowed).is_none());
    let mut last = None;
    for address in permitted.take(ADDRESSES_MAX) {
        match tokio::time::timeout(time_max, TcpStream::connect(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = Some(io::ErrorKind::TimedOut.into()),
        }
    }
    match (last, refused) {
        (Some(error), _) => Err(failed(destination, &error)),
        (None, Some((address, why))) => Err(NotConnected::Forbidden(format!(
            "{destination} is at {}, which is {why}; if it is meant, list its network in `allow_networks`",
            address.ip()
        ))),
        (None, None) => Err(failed(destination, &io::Error::other("the host has no address"))),
    }
}

/// Lets the system give up what nobody has acknowledged for so long. What is closed at the end of its time is else sent again and again
/// by the system, for minutes, and may arrive when nobody expects it any more.
#[cfg(target_os = "linux")]
fn give_up_after(stream: &TcpStream, time_max: Duration) {
    let millis = u32::try_from(time_max.as_millis()).unwrap_or(u32::MAX).max(1);
    // Without it the margin is there for late packets.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, millis);
}

#[cfg(not(target_os = "linux"))]
fn give_up_after(_: &TcpStream, _: Duration) {}

async fn secure(
    destination: &Destination,
    stream: TcpStream,
    tls: &TlsClient,
) -> io::Result<Box<dyn Stream>> {
    stream.set_nodelay(true)?;
    if !destination.is_secure {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(destination.host.clone()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(tls.config()?).connect(name, stream).await?))
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
            return Poll::Ready(Err(io::Error::other("the receiver sends too much")));
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
