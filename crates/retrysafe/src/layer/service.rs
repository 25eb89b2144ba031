//! What happens to a request? (the layer's way, from top to bottom)
//!
//! Judge it by its head and pass on what is not ours. What is ours is [begun](super::begin), and then [executed](super::execute), replayed, waited for or refused. Until
//! the begin a request leaves no trace, so it may be dropped at any point.
//!
//! As a service the layer finds out by its own settings what it must know of a request. A server that has to know it anyway, such
//! as a gateway that chooses its route, hands it over with [`Idempotency::guard`]: so a key is parsed once, and
//! nobody asks twice who is calling.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Body as HttpBody;
use retrysafe_core::key::{Key, KeyDigest, KeyError};
use retrysafe_core::policy::{KeyRule, Mode, Policy};
use retrysafe_core::problem::Refusal;
use retrysafe_core::scope::Caller;
use retrysafe_core::store::Store;
use tokio::time::Instant;
use tower_service::Service;

use super::attempt::Attempt;
use super::begin::answer_keyed;
use super::body::Body;
use super::context::{Arrived, AskedKey, RequestContext};
use super::gate::ExecutionGate;
use super::inner_body::InnerBody;
use super::memory::ConnectionShare;
use super::observe::{UNKEYED, answer_observed};
use super::request::{check_age, covers};
use super::response_future::ResponseFuture;
use super::run_to_completion::{MustEnd, RunToCompletion};
use super::settings::{RoutePolicy, Settings};
use super::shared::LayerShared;
use super::watch::RequestWatch;

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
        let RequestFacts { route, asked, share, watch, gate, is_repeatable, .. } = facts;
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
            watch,
            gate,
            is_repeatable,
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

/// What is known of a covered request: its route's policy, its key, and who is asking.
///
/// ```
/// use std::sync::Arc;
/// use http::HeaderMap;
/// use retrysafe::core::{Policy, Scope};
/// use retrysafe::layer::{RequestFacts, RoutePolicy};
///
/// let route = Arc::new(RoutePolicy::new("/payments", Policy::default()));
/// let mut headers = HeaderMap::new();
/// headers.insert("idempotency-key", "k-1".parse()?);
/// let key = RequestFacts::read_key(&route.policy, &headers);
/// let tenant = Scope::of([("tenant", &b"acme"[..])]);
/// let facts = RequestFacts::new(route, key, || Ok(tenant.into()));
/// # let _ = facts;
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestFacts {
    route: Arc<RoutePolicy>,
    asked: Asked,
    digest: Option<KeyDigest>,
    share: Option<ConnectionShare>,
    watch: Option<Arc<dyn RequestWatch>>,
    gate: Option<Arc<dyn ExecutionGate>>,
    is_repeatable: bool,
}

/// How a covered request can be told from others.
#[derive(Clone, Debug)]
enum Asked {
    /// By this key of this caller.
    Keyed(AskedKey, Caller),
    /// Not at all, which its route permits.
    Unkeyed,
    /// Not at all, for this reason.
    Refused(Refusal),
}

impl RequestFacts {
    /// What is known of a covered request. Who is asking is found out only if there is a key.
    pub fn new(
        route: Arc<RoutePolicy>,
        key: Result<Option<Key>, Refusal>,
        caller: impl FnOnce() -> Result<Caller, Refusal>,
    ) -> Self {
        let key = key.map(|key| key.map(AskedKey::from));
        let digest = key.as_ref().ok().and_then(Option::as_ref).map(|key| key.digest);
        let asked = match key {
            Ok(Some(key)) => match caller() {
                Ok(caller) => Asked::Keyed(key, caller),
                Err(refusal) => Asked::Refused(refusal),
            },
            Ok(None) => Asked::Unkeyed,
            Err(refusal) => Asked::Refused(refusal),
        };
        Self { route, asked, digest, share: None, watch: None, gate: None, is_repeatable: false }
    }

    /// What stands for the request's key in a log, if it has one.
    pub fn key(&self) -> Option<KeyDigest> {
        self.digest
    }

    /// Tells somebody of the steps of the request, if it has a key.
    #[must_use]
    pub fn watch(mut self, watch: Arc<dyn RequestWatch>) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Asks somebody whether the request may be executed, if it has a key. Where it may not, its record still answers it, and
    /// nothing is begun.
    #[must_use]
    pub fn gate(mut self, gate: Arc<dyn ExecutionGate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Asks for a [`RepeatableReplay`](super::RepeatableReplay) among the extensions of the answer, if the request has a key and its
    /// answer was at hand. It is for a server that remembers the bytes of the request.
    #[must_use]
    pub fn repeatable(mut self) -> Self {
        self.is_repeatable = true;
        self
    }

    /// Counts the request's body as its connection's.
    #[must_use]
    pub fn share(mut self, share: ConnectionShare) -> Self {
        self.share = Some(share);
        self
    }

    /// The key of a request, by the policy's header, syntax and rule. None where there is no key and
    /// none is needed.
    ///
    /// # Errors
    ///
    /// The refusal, if there is no key that can be used.
    pub fn read_key(policy: &Policy, headers: &HeaderMap) -> Result<Option<Key>, Refusal> {
        let lines = headers.get_all(&policy.key_header).iter().map(|line| line.as_bytes());
        judge_key(policy, Key::parse_lines(lines, policy.key_syntax))
    }
}

/// What a key that was looked for means on a route.
fn judge_key(policy: &Policy, found: Result<Key, KeyError>) -> Result<Option<Key>, Refusal> {
    match (found.and_then(|key| key.at_least(policy.key_chars_min)), policy.key) {
        (Ok(key), _) => Ok(Some(key)),
        (Err(KeyError::Missing), KeyRule::Required) => Err(Refusal::KeyMissing),
        (Err(KeyError::Missing), KeyRule::Optional | KeyRule::Off) => Ok(None),
        (Err(error), _) => Err(Refusal::KeyInvalid(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrysafe_core::Scope;
    use retrysafe_core::problem::UnsafeScope;

    fn facts(policy: Policy, key: Option<&'static str>, is_known: bool) -> Asked {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert("idempotency-key", key.parse().unwrap());
        }
        let found = RequestFacts::read_key(&policy, &headers);
        let nobody = Refusal::ScopeUnsafe(UnsafeScope::Nobody);
        let caller = || if is_known { Ok(Scope::anonymous().into()) } else { Err(nobody) };
        RequestFacts::new(Arc::new(RoutePolicy::new("r", policy)), found, caller).asked
    }

    #[test]
    fn a_key_counts_before_its_caller_and_its_rule_before_both() {
        let required = Policy { key: KeyRule::Required, ..Policy::default() };
        assert!(matches!(facts(Policy::default(), None, false), Asked::Unkeyed));
        let missing = facts(required.clone(), None, false);
        assert!(matches!(missing, Asked::Refused(Refusal::KeyMissing)));
        let invalid = facts(required.clone(), Some("a b"), false);
        assert!(matches!(invalid, Asked::Refused(Refusal::KeyInvalid(_))));
        let nobody = facts(required.clone(), Some("k"), false);
        assert!(matches!(nobody, Asked::Refused(Refusal::ScopeUnsafe(_))));
        assert!(matches!(facts(required, Some("k"), true), Asked::Keyed(..)));
        let long = Policy { key_chars_min: 9, ..Policy::default() };
        assert!(matches!(facts(long, Some("short"), true), Asked::Refused(Refusal::KeyInvalid(_))));
    }
}
