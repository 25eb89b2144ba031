//! How do a provider's webhooks reach us?
//!
//! On a path per provider, which the upstream never sees. Everything else is the library's.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use retrysafe::webhooks::{Inbox, WebhookService, Webhooks};
use retrysafe_core::store::Store;

use super::body::Reply;
use super::live::Live;
use crate::admin::SharedWebhooks;
use crate::config::Config;

/// What receives the webhooks that are configured.
pub(super) fn receiver<S: Store>(
    config: &Config,
    store: &Arc<S>,
    inbox: Option<Inbox>,
) -> Webhooks<Arc<S>> {
    let providers = config.webhooks.iter().map(|endpoint| endpoint.provider.clone());
    Webhooks::new(Arc::clone(store), inbox, providers.collect())
}

/// What receives webhooks on this path, if anything does.
pub(super) fn at<S: Store>(
    live: &Live,
    webhooks: &SharedWebhooks<S>,
    path: &str,
) -> Option<WebhookService<Arc<S>>> {
    let endpoint = live.config.webhooks.iter().find(|endpoint| endpoint.path == path)?;
    webhooks.load().service(&endpoint.provider.name)
}

/// Receives an event.
pub(super) async fn answer<S: Store>(
    service: &WebhookService<Arc<S>>,
    request: Request<Incoming>,
) -> Response<Reply> {
    let (mut parts, body) = service.handle(request).await.into_parts();
    let body: Bytes = match body.collect().await {
        Ok(whole) => whole.to_bytes(),
        Err(never) => match never {},
    };
    if matches!(parts.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
        // The rest of the body is not read.
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Response::from_parts(parts, Reply::Own(Some(body)))
}
