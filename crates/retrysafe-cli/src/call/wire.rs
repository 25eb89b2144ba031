//! How is one attempt sent?
//!
//! On a connection of its own over HTTP/1.1, so that nothing is resent behind the client's back, and
//! with a limit for connecting alone: an attempt that never connected has surely sent nothing.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use retrysafe::client::{BoxError, Loss};
use tower_service::Service;

use crate::dial::Dialler;

/// How long connecting may take. A server that is there accepts within a second or two.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Sends requests.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    dialler: Dialler,
    connect_max: Duration,
}

impl Wire {
    pub(super) fn new(attempt_timeout: Duration) -> Self {
        // Within the attempt's own limit, which cannot tell connecting from waiting.
        Self { dialler: Dialler::default(), connect_max: CONNECT_MAX.min(attempt_timeout / 2) }
    }

    async fn connect(&self, url: &Uri) -> io::Result<Box<dyn crate::dial::Stream>> {
        match tokio::time::timeout(self.connect_max, self.dialler.dial(url)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "connecting took too long")),
        }
    }
}

impl Service<Request<Full<Bytes>>> for Wire {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Full<Bytes>>) -> Self::Future {
        let wire = self.clone();
        Box::pin(async move {
            let url = request.uri().clone();
            let stream = wire.connect(&url).await.map_err(NotConnected)?;
            let path = url.path_and_query().map_or("/", |path| path.as_str());
            *request.uri_mut() = path.parse()?;
            if let Some(authority) = url.authority()
                && !request.headers().contains_key(HOST)
            {
                request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str())?);
            }
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            // It ends with its only exchange, or with the program; what goes wrong on it is told to
            // whoever waits for the answer.
            tokio::spawn(connection);
            Ok(sender.send_request(request).await?)
        })
    }
}

/// There was no connection.
#[derive(Debug)]
struct NotConnected(io::Error);

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no connection: {}", self.0)
    }
}

impl Error for NotConnected {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

/// What an error of the wire proves about the request.
pub(super) fn loss(error: &(dyn Error + 'static)) -> Loss {
    if error.is::<NotConnected>() {
        Loss::NotSent
    } else if error.is::<http::uri::InvalidUri>() || error.is::<http::header::InvalidHeaderValue>()
    {
        Loss::Unsendable
    } else {
        Loss::Lost
    }
}
