//! How does a tower service retry?

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower_layer::Layer;
use tower_service::Service;

use super::answer::Answer;
use super::call::Ready;
use super::error::{BoxError, Error};
use super::journal::Pending;
use super::settings::Retries;
use super::transport::Tower;

/// Puts a [`Client`] around a service.
#[derive(Clone, Debug, Default)]
pub struct RetryLayer {
    retries: Retries,
}

impl RetryLayer {
    /// A layer that retries like this.
    pub fn new(retries: Retries) -> Self {
        Self { retries }
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = Client<S>;

    fn layer(&self, service: S) -> Client<S> {
        Client::new(service, self.retries.clone())
    }
}

/// A service whose calls are named, retried and, with a journal, survive their process.
///
/// It does not follow redirects: one is an answer. A layer inside it that follows them would carry
/// the key to another origin.
#[derive(Clone, Debug)]
pub struct Client<S> {
    service: S,
    retries: Retries,
}

impl<S> Client<S> {
    /// A client over a service that sends requests, such as hyper-util's client.
    pub fn new(service: S, retries: Retries) -> Self {
        Self { service, retries }
    }
}

impl<S, B> Client<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    /// Makes one call: as many attempts as it takes, all with the same key.
    ///
    /// # Errors
    ///
    /// See [`Error`]. An answer that no retry will change, such as 422, is an answer.
    pub async fn send<R>(&self, request: Request<R>) -> Result<Response<Answer<B>>, Error>
    where
        R: Body<Error: Into<BoxError>>,
    {
        let ready = Ready::begin(request, &self.retries).await?;
        ready.run(Tower(self.service.clone()), &self.retries).await
    }

    /// Finishes a call that another process has begun, with the same key. `supplied` replaces
    /// headers, and brings those that were not journalled.
    ///
    /// # Errors
    ///
    /// See [`Error`]. Whatever the error, the call stays in the journal until its receipt is
    /// acknowledged.
    pub async fn resume(
        &self,
        pending: Pending,
        supplied: HeaderMap,
    ) -> Result<Response<Answer<B>>, Error> {
        let ready = Ready::resume(pending, supplied, &self.retries)?;
        ready.run(Tower(self.service.clone()), &self.retries).await
    }
}

impl<S, R, B> Service<Request<R>> for Client<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    R: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Answer<B>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    /// Always ready: every attempt waits for the inner service by itself.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let client = self.clone();
        Box::pin(async move { client.send(request).await })
    }
}
