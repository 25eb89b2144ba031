//! What happens to a request? (the layer's way, from top to bottom)
//!
//! Judge it by its head and pass on what is not ours. What is ours is [admitted](super::admit), then
//! [begun](super::begin), and then [executed](super::execute), replayed, waited for or refused. Until
//! the begin a request leaves no trace, so it may be dropped at any point.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use retrysafe_core::policy::Mode;
use retrysafe_core::store::Store;
use tokio::time::Instant;
use tower_service::Service;

use super::admit::Arrived;
use super::begin::answer_keyed;
use super::body::Body;
use super::context::RequestContext;
use super::observe::{UNKEYED, answer_observed};
use super::request::{Asked, judge};
use super::response_future::ResponseFuture;
use super::run_to_completion::{MustEnd, RunToCompletion};
use super::settings::{RoutePolicy, Settings};
use super::shared::LayerShared;

/// A service whose keyed requests take effect once.
pub struct Idempotency<Svc, S> {
    inner: Svc,
    settings: Arc<Settings>,
    shared: Arc<LayerShared<S>>,
}

impl<Svc, S> Idempotency<Svc, S> {
    pub(super) fn new(inner: Svc, settings: Arc<Settings>, shared: Arc<LayerShared<S>>) -> Self {
        Self { inner, settings, shared }
    }
}

impl<Svc, S, B, R> Service<Request<B>> for Idempotency<Svc, S>
where
    S: Store,
    Svc: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    Svc::Future: Send + 'static,
    Svc::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Response<Body<R>>;
    type Error = Svc::Error;
    type Future = ResponseFuture<Svc::Future, R, Svc::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was made ready serves this request; its clone will be asked for the next.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let (parts, body) = request.into_parts();
        let route = (self.settings.policy)(&parts);
        let asked = judge(&self.settings, &route.policy, &parts);
        let is_observed = route.policy.mode == Mode::Observe;
        let key = match asked {
            Asked::Keyed(key) => key,
            Asked::NotOurs | Asked::Unkeyed => {
                if is_observed && matches!(asked, Asked::Unkeyed) {
                    self.shared.reports.of(label(&route, &parts)).observed(UNKEYED);
                }
                let request = Request::from_parts(parts, Body::passed(body));
                return ResponseFuture::passed(inner.call(request));
            }
        };
        let must_end = MustEnd::default();
        let context = Arc::new(RequestContext {
            settings: Arc::clone(&self.settings),
            shared: Arc::clone(&self.shared),
            report: self.shared.reports.of(label(&route, &parts)),
            route,
            must_end: must_end.clone(),
            arrived_at: Instant::now(),
        });
        let arrived = Box::new(Arrived { inner, parts });
        ResponseFuture::guarded(if is_observed {
            RunToCompletion::new(must_end, |answer| {
                answer_observed(context, arrived, body, key, answer)
            })
        } else {
            RunToCompletion::new(must_end, |answer| {
                answer_keyed(context, arrived, body, key, answer)
            })
        })
    }
}

/// What a route is called: its policy's label, or in axum the path that matched.
fn label<'a>(route: &'a RoutePolicy, parts: &'a Parts) -> &'a str {
    #[cfg(feature = "axum")]
    if &*route.label == super::settings::ANY_ROUTE
        && let Some(path) = parts.extensions.get::<axum::extract::MatchedPath>()
    {
        return path.as_str();
    }
    let _ = parts;
    &route.label
}

impl<Svc: Clone, S> Clone for Idempotency<Svc, S> {
    fn clone(&self) -> Self {
        let settings = Arc::clone(&self.settings);
        let shared = Arc::clone(&self.shared);
        Self { inner: self.inner.clone(), settings, shared }
    }
}

impl<Svc: fmt::Debug, S> fmt::Debug for Idempotency<Svc, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}
