//! How does an application receive webhooks over HTTP?
//!
//! [`WebhookService`] is a tower service for one provider: mount it where the provider sends to, such as
//! `Router::new().route_service("/webhooks/stripe", service)` in axum.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use retrysafe_core::Policy;
use retrysafe_core::problem::Refusal;
use retrysafe_core::store::Store;

use super::receiver::{WebhookReceipt, Webhooks};

/// The largest body of an event. The largest of large providers have a quarter of it.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// How long the body of an event may take.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// When a sender is asked to send an event again.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Receives the events of one provider. It is made by [`Webhooks::service`], and clones share everything.
#[derive(Debug)]
pub struct WebhookService<S> {
    webhooks: Webhooks<S>,
    provider: Arc<str>,
}

impl<S> Clone for WebhookService<S> {
    fn clone(&self) -> Self {
        Self { webhooks: self.webhooks.clone(), provider: Arc::clone(&self.provider) }
    }
}

impl<S: Store> Webhooks<S> {
    /// A service that receives the events of this provider; none if there is no such provider.
    pub fn service(&self, provider: &str) -> Option<WebhookService<S>> {
        let known = self.provider(provider)?;
        Some(WebhookService { webhooks: self.clone(), provider: (&*known.name).into() })
    }
}

impl<S: Store> WebhookService<S> {
    /// Receives one event.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if request.method() != Method::POST {
            return refused(&Refusal::MethodRefused);
        }
        let Some(_place) = self.webhooks.body_place() else {
            return refused(&Refusal::Overloaded { retry_after: RETRY_AFTER });
        };
        let (parts, body) = request.into_parts();
        match read_body(body).await {
            Ok(body) => self.receive(&parts.headers, body).await,
            Err(refusal) => refused(&refusal),
        }
    }

    async fn receive(&self, headers: &HeaderMap, body: Bytes) -> Response<Full<Bytes>> {
        let now = SystemTime::now();
        match self.webhooks.receive(&self.provider, headers, body, now).await {
            WebhookReceipt::Taken(_) | WebhookReceipt::Doubled => {
                let mut response = Response::new(Full::from(r#"{"received":true}"#));
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(CONTENT_TYPE, json);
                response
            }
            WebhookReceipt::Refused(fault) => {
                refused(&Refusal::WebhookRefused(fault.to_string().into()))
            }
            WebhookReceipt::NotYet | WebhookReceipt::NotKept(_) => {
                refused(&Refusal::WebhookNotTaken { retry_after: RETRY_AFTER })
            }
        }
    }
}

/// The whole body, or why there is none.
async fn read_body<B>(body: B) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // What says itself that it is too large need not be read.
    if body.size_hint().lower() > EVENT_BYTES_MAX as u64 {
        return Err(Refusal::BodyTooLarge);
    }
    let whole = Limited::new(body, EVENT_BYTES_MAX);
    match tokio::time::timeout(BODY_WITHIN, Box::pin(whole).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::BodyTooLarge),
        Ok(Err(_)) => Err(Refusal::BodyBroken),
        Err(_) => Err(Refusal::BodyTimeout),
    }
}

fn refused(refusal: &Refusal) -> Response<Full<Bytes>> {
    let mut response = refusal.problem(&Policy::default()).into_response(Full::from);
    response.extensions_mut().insert(refusal.clone());
    response
}

impl<S, B> tower_service::Service<Request<B>> for WebhookService<S>
where
    S: Store,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http_body::Frame;

    use super::super::provider::WebhookProvider;
    use super::super::scheme::WebhookScheme;
    use super::*;
    use crate::stores::memory::MemoryStore;

    /// A body of which nothing ever comes.
    struct SilentBody;

    impl Body for SilentBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    fn service() -> WebhookService<Arc<MemoryStore>> {
        let secrets = Arc::new(|| Ok(Vec::new()));
        let provider = WebhookProvider::new("bank", WebhookScheme::Stripe, secrets);
        let store = Arc::new(MemoryStore::default());
        Webhooks::new(store, None, vec![provider]).service("bank").unwrap()
    }

    fn post<B>(body: B) -> Request<B> {
        Request::post("/hooks").body(body).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up_and_too_many_are_refused() {
        let service = service();
        let mut slow = tokio::task::JoinSet::new();
        let reading = || async { tokio::task::yield_now().await };
        while let Some(place) = service.webhooks.body_place() {
            drop(place);
            let service = service.clone();
            slow.spawn(async move { service.handle(post(SilentBody)).await.status() });
            reading().await;
        }
        assert_eq!(slow.len(), 64);
        let told = service.handle(post(Full::<Bytes>::default())).await;
        assert_eq!(told.status(), StatusCode::SERVICE_UNAVAILABLE);
        while let Some(told) = slow.join_next().await {
            assert_eq!(told.unwrap(), StatusCode::REQUEST_TIMEOUT);
        }
        let told = service.handle(post(Full::<Bytes>::default())).await;
        assert_eq!(told.status(), StatusCode::BAD_REQUEST, "there is room again, and no signature");
    }

    #[tokio::test]
    async fn a_large_body_and_another_method_are_refused() {
        let service = service();
        let large = Full::from(vec![0; EVENT_BYTES_MAX + 1]);
        assert_eq!(service.handle(post(large)).await.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let get = Request::get("/hooks").body(Full::<Bytes>::default()).unwrap();
        assert_eq!(service.handle(get).await.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert!(service.webhooks.service("nobody").is_none());
    }
}
