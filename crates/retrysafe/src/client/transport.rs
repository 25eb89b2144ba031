//! What carries an attempt?

use std::future::{Future, poll_fn};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower_service::Service;

use super::error::BoxError;
use super::loss::Loss;
use super::settings::Retries;

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
