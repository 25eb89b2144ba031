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
use super::attempt::Attempt;
use super::begin::answer_keyed;
use super::body::Body;
use super::context::RequestContext;
use super::facts::{Asked, RequestFacts, judge_key};
use super::inner_body::InnerBody;
use super::memory::ConnectionShare;
use super::observe::{UNKEYED, answer_observed};
use super::request::{check_age, covers};
use super::response_future::ResponseFuture;
use super::run_to_completion::{MustEnd, RunToCompletion};
use super::settings::{RoutePolicy, Settings};
use super::shared::LayerShared;

/// A service whose keyed requests take effect once. An
/// [`IdempotencyLayer`](super::IdempotencyLayer) makes it.
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use retrysafe::layer::{Idempotency, IdempotencyLayer};
/// use retrysafe::stores::memory::MemoryStore;
/// use tower::{Layer as _, ServiceExt as _};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let handler = tower::service_fn(async |_: Request<_>| {
///     Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("paid")))
/// });
/// let service: Idempotency<_, MemoryStore> = IdempotencyLayer::new(MemoryStore::default()).layer(handler);
/// let request = Request::post("/").header("idempotency-key", "k").body(Full::<Bytes>::default());
/// # let request = request.unwrap_or_default();
/// let Ok(response) = service.oneshot(request).await;
/// assert_eq!(response.status(), 200);
/// # }
/// ```
pub struct Idempotency<Svc, S> {
    inner: Svc,
    settings: Arc<Settings>,
    shared: Arc<LayerShared<S>>,
}

impl<Svc, S> Idempotency<Svc, S> {
    pub(super) fn new(inner: Svc, settings: Arc<Settings>, shared: Arc<LayerShared<S>>) -> Self {
        Self { inner, settings, shared }
    }

    /// What is known of a request by the layer's own settings. None where the request is not covered, or
    /// was guarded further out: the inner one of two layers would find the outer one's lease.
    fn facts(&self, parts: &Parts) -> Option<RequestFacts> {
        let route = (self.settings.policy)(parts);
        if !covers(&route.policy, parts) || parts.extensions.get::<Attempt>().is_some() {
            return None;
        }
        let key = judge_key(&route.policy, (self.settings.key)(parts, &route.policy));
        let mut facts = RequestFacts::new(route, key, || (self.settings.caller)(parts));
        facts.share = parts.extensions.get::<ConnectionShare>().cloned();
        Some(facts)
    }
}

impl<Svc, S: Store> Idempotency<Svc, S> {
    /// Guards a request that is covered, for a server that has found out by itself what the layer needs
    /// to know. The layer's own policy, caller and key are not asked for.
    ///
    /// The inner service must be [ready](Service::poll_ready).
    pub fn guard<B, R>(
        self,
        request: Request<B>,
        facts: RequestFacts,
    ) -> ResponseFuture<Svc::Future, R, Svc::Error>
    where
        Svc: Service<Request<B::Inner>, Response = Response<R>> + Send + 'static,
        Svc::Future: Send + 'static,
        Svc::Error: Send + 'static,
        B: InnerBody,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Send,
    {
        let Self { mut inner, settings, shared } = self;
        let (parts, body) = request.into_parts();
        let RequestFacts { route, asked, share } = facts;
        let is_observed = route.policy.mode == Mode::Observe;
        let named = match asked {
            Asked::Keyed(key, caller) => {
                check_age(&route.policy, &parts).map(|()| Some((key, caller)))
            }
            Asked::Unkeyed => Ok(None),
            Asked::Refused(refusal) => Err(refusal),
        };
        if !is_observed && matches!(named, Ok(None)) {
            return ResponseFuture::passed(inner.call(passed_on(parts, body)));
        }
        let must_end = MustEnd::default();
        let context = RequestContext {
            report: shared.reports.of(label(&route, &parts)),
            settings,
            shared,
            route,
            share,
            must_end: must_end.clone(),
            arrived_at: Instant::now(),
        };
        let named = match named {
            Ok(Some(named)) => named,
            Err(refusal) if !is_observed => {
                return ResponseFuture::ready(Ok(context.refuse(&refusal)));
            }
            Err(refusal) => {
                context.report.observed(refusal.code());
                return ResponseFuture::passed(inner.call(passed_on(parts, body)));
            }
            Ok(None) => {
                context.report.observed(UNKEYED);
                return ResponseFuture::passed(inner.call(passed_on(parts, body)));
            }
        };
        let context = Arc::new(context);
        let arrived = Box::new(Arrived { inner, parts });
        ResponseFuture::guarded(if is_observed {
            RunToCompletion::new(must_end, |answer| {
                answer_observed(context, arrived, body, named, answer)
            })
        } else {
            RunToCompletion::new(must_end, |answer| {
                answer_keyed(context, arrived, body, named, answer)
            })
        })
    }
}

impl<Svc, S, B, R> Service<Request<B>> for Idempotency<Svc, S>
where
    S: Store,
    Svc: Service<Request<B::Inner>, Response = Response<R>> + Clone + Send + 'static,
    Svc::Future: Send + 'static,
    Svc::Error: Send + 'static,
    B: InnerBody,
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
        let next = self.clone();
        let mut ready = std::mem::replace(self, next);
        let (parts, body) = request.into_parts();
        match ready.facts(&parts) {
            Some(facts) => ready.guard(Request::from_parts(parts, body), facts),
            None => ResponseFuture::passed(ready.inner.call(passed_on(parts, body))),
        }
    }
}

/// A request as it came.
fn passed_on<B: InnerBody>(parts: Parts, body: B) -> Request<B::Inner> {
    Request::from_parts(parts, B::inner(Body::passed(body)))
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
