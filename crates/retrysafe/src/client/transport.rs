//! Was it sent? (what carries an attempt, and what its errors prove)

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower_service::Service;

use super::error::BoxError;
use super::settings::Retries;

/// What an error proves about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing was sent: there was no connection.
    NotSent,
    /// Something may have been sent.
    Lost,
    /// Nothing was sent, and nothing ever will be: the request itself cannot be written.
    Unsendable,
}

/// What hyper-util's and reqwest's errors prove: a connection that could not be made sent nothing.
///
/// Everything else counts as sent. So does a timeout while connecting, unless the connector itself
/// reports it: set a connect timeout there to be told apart.
pub fn loss(error: &(dyn Error + 'static)) -> Loss {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>()
            && error.is_connect()
        {
            return Loss::NotSent;
        }
        #[cfg(feature = "reqwest")]
        if let Some(error) = error.downcast_ref::<reqwest::Error>()
            && error.is_builder()
        {
            return Loss::Unsendable;
        }
        if let Some(error) = error.downcast_ref::<io::Error>()
            && is_of_connecting(error.kind())
        {
            return Loss::NotSent;
        }
        next = error.source();
    }
    Loss::Lost
}

/// The errors that a connected stream does not have.
fn is_of_connecting(kind: io::ErrorKind) -> bool {
    kind == io::ErrorKind::ConnectionRefused || kind == io::ErrorKind::AddrNotAvailable
}

/// Carries one attempt. One implementation per kind of client; the loop is the same.
pub(super) trait Transport: Send {
    /// The body of its answers.
    type Body: Body<Data: Send, Error: Into<BoxError>> + Send + 'static;

    /// Sends a request.
    fn send(
        &mut self,
        request: Request<Bytes>,
        retries: &Retries,
    ) -> impl Future<Output = Result<Response<Self::Body>, (Loss, BoxError)>> + Send;
}

/// A tower service as a transport.
pub(super) struct Tower<S>(pub(super) S);

impl<S, B> Transport for Tower<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Send,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Body = B;

    async fn send(
        &mut self,
        request: Request<Bytes>,
        retries: &Retries,
    ) -> Result<Response<B>, (Loss, BoxError)> {
        // A service that is not ready has not been given the request.
        poll_fn(|cx| self.0.poll_ready(cx)).await.map_err(|error| (Loss::NotSent, error.into()))?;
        let answer = self.0.call(request.map(Full::new));
        answer.await.map_err(|error| {
            let error = error.into();
            (retries.loss(error.as_ref()), error)
        })
    }
}
