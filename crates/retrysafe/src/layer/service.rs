//! What happens to a request? (the layer's way, from top to bottom)
//!
//! Judge it by its head; pass on what is not ours; read it whole; begin; execute, replay, wait or
//! refuse. Until the begin a request leaves no trace, so it may be dropped at any point.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use retrysafe_core::Engine;
use retrysafe_core::event::Met;
use retrysafe_core::key::{Key, KeyDigest};
use retrysafe_core::policy::{Mode, OnStoreError};
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{About, Standing};
use retrysafe_core::scope::{Caller, Id};
use retrysafe_core::store::{Stamped, Store};
use tokio::time::Instant;
use tower_service::Service;

use super::body::{Body, Read, read};
use super::deadline::after;
use super::drain::Drain;
use super::guarded::Guarded;
use super::limits::Limiter;
use super::memory::{ConnectionShare, ExecutionSlot, HeldBody, Hold, MemoryBudget};
use super::observe::{Observed, UNKEYED};
use super::renewal::Renewer;
use super::report::{Report, Reports};
use super::request::{self, Asked, Meaning, judge};
use super::run::{Arrived, Job, Worked, work};
use super::running::{Place, Running, Seat};
use super::settings::{RoutePolicy, Settings};
use super::stubborn::{Begun, Stubborn};

/// The first pause before a request that runs in another process is looked at again.
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// The longest such pause.
const POLL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The least that `Retry-After` says: less would invite a tight loop.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// A service whose keyed requests take effect once.
pub struct Idempotency<Svc, S> {
    inner: Svc,
    settings: Arc<Settings>,
    room: Arc<Room<S>>,
}

/// What all services of one layer share.
#[derive(Debug)]
pub(super) struct Room<S> {
    pub engine: Engine<Guarded<S>>,
    pub running: Arc<Running>,
    pub renewer: Renewer,
    pub drain: Drain,
    pub reports: Reports,
    pub observed: Observed,
    owners: AtomicU64,
}

/// What one request is judged by and reported to.
#[derive(Debug)]
pub(super) struct Case<S> {
    pub settings: Arc<Settings>,
    pub room: Arc<Room<S>>,
    pub route: Arc<RoutePolicy>,
    pub report: Arc<Report>,
    pub begun: Begun,
}

impl<S: Store> Room<S> {
    pub(super) fn new(store: S) -> Self {
        // Owners are told apart by a random beginning and a count: two processes would have to begin
        // within each other's count to meet.
        let first = RandomState::new().hash_one(std::process::id());
        Self {
            engine: Engine::new(Guarded::new(store)),
            running: Arc::default(),
            renewer: Renewer::new(),
            drain: Drain::default(),
            reports: Reports::default(),
            observed: Observed::default(),
            owners: AtomicU64::new(first),
        }
    }
}

impl<S> Room<S> {
    pub(super) fn number_owners_from(&self, first: u64) {
        self.owners.store(first, Ordering::Relaxed);
    }

    /// A number of its own for one begin.
    pub(super) fn owner(&self) -> u64 {
        self.owners.fetch_add(1, Ordering::Relaxed)
    }
}

impl<Svc, S> Idempotency<Svc, S> {
    pub(super) fn new(inner: Svc, settings: Arc<Settings>, room: Arc<Room<S>>) -> Self {
        Self { inner, settings, room }
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
                    self.room.reports.of(label(&route, &parts)).observed(UNKEYED);
                }
                let request = Request::from_parts(parts, Body::passed(body));
                return ResponseFuture::passed(inner.call(request));
            }
        };
        let report = self.room.reports.of(label(&route, &parts));
        let (settings, room) = (Arc::clone(&self.settings), Arc::clone(&self.room));
        let begun = Begun::default();
        let case = Arc::new(Case { settings, room, route, report, begun: begun.clone() });
        match is_observed {
            false => {
                let arrived = Box::new(Arrived { inner, parts });
                ResponseFuture::guarded(begun, guard(case, arrived, body, key))
            }
            true => ResponseFuture::guarded(begun, observe(case, inner, parts, body, key)),
        }
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

/// Answers a keyed request, one way or another.
async fn guard<Svc, S, B, R>(
    case: Arc<Case<S>>,
    arrived: Box<Arrived<Svc>>,
    body: B,
    key: Result<Key, Refusal>,
) -> Result<Response<Body<R>>, Svc::Error>
where
    S: Store,
    Svc: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
    Svc::Future: Send + 'static,
    Svc::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    let mut job = match admit(&case, arrived, body, key).await {
        Ok(job) => job,
        Err(refusal) => return Ok(case.refuse(&refusal)),
    };
    let policy = &case.route.policy;
    let patience = request::preferred_wait(&job.arrived.parts).unwrap_or(policy.wait_max);
    let deadline = after(Instant::now(), patience.min(policy.wait_max));
    let mut pause = POLL_PAUSE;
    let mut was_woken = false;
    let mut place: Option<Place> = None;
    loop {
        let id = job.id;
        let key = job.key;
        let slot = match case.execution_slot(id).await {
            Ok(slot) => slot,
            Err(refusal) => return Ok(case.refuse(&refusal)),
        };
        // From here on a client that leaves changes nothing, and a shutdown waits.
        case.begun.set(true);
        let under_way = case.room.drain.execution();
        let left = match work(Arc::clone(&case), job, slot).await {
            Worked::Answered(answer) => return answer,
            Worked::Busy(left, back) => {
                job = *back;
                left
            }
        };
        case.begun.set(false);
        drop(under_way);
        let may_wait = !was_woken && Instant::now() < deadline;
        // It may have begun here a moment before this process knew of it. Whoever waits here is woken,
        // and shares one body with the others.
        place = place.filter(|_| case.room.running.elapsed(id).is_none());
        if may_wait && place.is_none() {
            match case.seat(id, &mut job.body) {
                Seat::Here(waiter) => {
                    // Whoever was woken begins once more. If another one was faster, this one does
                    // not queue for a third try: a handler that fails would run once per waiter.
                    was_woken = waiter.until(deadline).await;
                }
                // The place is kept between two looks, so that nobody who came later gets it.
                Seat::Elsewhere(free) => place = Some(free),
                Seat::Full => {}
            }
        }
        let looks_again = may_wait && place.is_some();
        if looks_again {
            tokio::time::sleep_until(deadline.min(Instant::now() + pause)).await;
            pause = (pause * 2).min(POLL_PAUSE_MAX);
        }
        let may_begin = may_wait && (was_woken || looks_again);
        if !may_begin {
            case.report.met(Met::InProgress, key);
            return Ok(case.refuse(&Refusal::InProgress { retry_after: case.pace(id, left) }));
        }
    }
}

impl<S: Store> Case<S> {
    /// The right to one execution; none where their number is not bounded, or where this request
    /// finds a record that answers it.
    async fn execution_slot(&self, id: Id) -> Result<Option<ExecutionSlot>, Refusal> {
        let Some(memory) = &self.settings.memory else { return Ok(None) };
        if let Some(slot) = memory.execution_slot() {
            return Ok(Some(slot));
        }
        match self.room.engine.look(id).await {
            // It may be gone, or free again, by the time of the begin; then there is one execution
            // more than there should be.
            Ok(Stamped { value: Some(record), .. })
                if record.standing() != Standing::FailedRetryable =>
            {
                Ok(None)
            }
            Ok(_) => Err(MemoryBudget::refusal()),
            Err(_) => Err(self.store_unavailable()),
        }
    }
}

impl<S> Case<S> {
    /// A place to wait for a running request. All who wait share one copy of its body.
    fn seat(&self, id: Id, body: &mut HeldBody) -> Seat {
        let (per_key, in_all) = (self.settings.waiters_per_key_max, self.settings.waiters_max);
        let seat = self.room.running.wait(id, per_key, in_all, body);
        if let Seat::Here(waiter) = &seat {
            body.give_up_for(waiter.body());
        }
        seat
    }

    /// What counts the body of a request.
    fn hold(&self, parts: &Parts) -> Hold {
        let share = parts.extensions.get::<ConnectionShare>();
        Hold::of_body(self.settings.memory.as_ref(), share)
    }

    /// When a running request should have ended: what is usual on its route less what has passed,
    /// at most until its lease ends.
    fn pace(&self, id: Id, left: Duration) -> Duration {
        let passed = self.room.running.elapsed(id).unwrap_or_default();
        let usual = self.report.usual().saturating_sub(passed);
        usual.min(left).max(RETRY_AFTER_MIN)
    }
}

/// Reads a request whole, and refuses what may not be begun. Nothing is written before its end.
async fn admit<Svc, S, B>(
    case: &Case<S>,
    arrived: Box<Arrived<Svc>>,
    body: B,
    key: Result<Key, Refusal>,
) -> Result<Job<Svc>, Refusal>
where
    S: Store,
    B: HttpBody<Data = Bytes>,
{
    let (policy, parts) = (&case.route.policy, &arrived.parts);
    let request_id = key.as_ref().ok().and_then(|key| request::request_id(parts, key));
    let (caller, key, id) = identify(case, parts, key)?;
    let counters = case.settings.limiter.as_ref().and_then(Limiter::counters);
    if let Some(counters) = &counters {
        counters.admit(&caller, id)?;
    }
    let time_max = after(Instant::now(), policy.request_time_max);
    let hold = case.hold(parts);
    let read = read(body, policy.request_bytes_max, Some(time_max), hold).await;
    let (body, trailers) = match read {
        Read::Whole(body, trailers, hold) => (HeldBody::new(body, hold), trailers),
        Read::Over(_) => return Err(Refusal::BodyTooLarge),
        Read::NoRoom(_) => return Err(MemoryBudget::refusal()),
        Read::Late(_) => return Err(Refusal::BodyTimeout),
        Read::Broken(_) => return Err(Refusal::BodyBroken),
    };
    let print = Meaning::new(&case.settings, policy, parts, &body.data).current;
    if let Some(counters) = counters.filter(|counters| counters.counts_new_keys()) {
        match case.room.engine.look(id).await {
            Ok(found) if found.value.is_some() => {}
            Ok(_) => counters.admit_new(&caller, policy.ttl)?,
            // The begin decides what a store that is away means on this route.
            Err(_) if policy.on_store_error == OnStoreError::Open => {}
            Err(_) => return Err(case.store_unavailable()),
        }
    }
    let about = About {
        method: parts.method.as_str().into(),
        route: case.report.label().into(),
        path: request::path(parts).into(),
    };
    Ok(Job { arrived, body, trailers, id, key, caller, print, about, request_id })
}

/// Whose key it is, and what the record is called.
fn identify<S>(
    case: &Case<S>,
    parts: &Parts,
    key: Result<Key, Refusal>,
) -> Result<(Caller, KeyDigest, Id), Refusal> {
    let key = key?.digest();
    request::check_age(&case.route.policy, parts)?;
    let caller = (case.settings.caller)(parts)?;
    let id = Id::of(&caller.scope, &key);
    Ok((caller, key, id))
}

/// Passes a keyed request on, and reports what would have become of it.
async fn observe<Svc, S, B, R>(
    case: Arc<Case<S>>,
    mut inner: Svc,
    parts: Parts,
    body: B,
    key: Result<Key, Refusal>,
) -> Result<Response<Body<R>>, Svc::Error>
where
    S: Store,
    Svc: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes>,
    R: HttpBody<Data = Bytes>,
{
    let policy = &case.route.policy;
    let (finding, body) = match identify(&case, &parts, key) {
        Err(refusal) => (Some(refusal.code()), Body::passed(body)),
        Ok((caller, _, id)) => {
            let time_max = after(Instant::now(), policy.request_time_max);
            let hold = case.hold(&parts);
            match read(body, policy.request_bytes_max, Some(time_max), hold).await {
                Read::Whole(body, trailers, hold) => {
                    let print = Meaning::new(&case.settings, policy, &parts, &body).current;
                    let finding = case.room.observed.see(id, print, caller.mark, policy.ttl);
                    (finding, Body::whole(hold.keep(body), trailers))
                }
                Read::Over(body) => (Some(Refusal::BodyTooLarge.code()), body),
                Read::NoRoom(body) => (Some(MemoryBudget::refusal().code()), body),
                Read::Late(body) => (Some(Refusal::BodyTimeout.code()), body),
                Read::Broken(body) => (Some(Refusal::BodyBroken.code()), body),
            }
        }
    };
    if let Some(finding) = finding {
        case.report.observed(finding);
    }
    let response = inner.call(Request::from_parts(parts, body)).await?;
    Ok(response.map(Body::passed))
}

pin_project_lite::pin_project! {
    /// The answer of [`Idempotency`], to come.
    pub struct ResponseFuture<F, R, E>
    where
        R: HttpBody,
        R: Send,
        R: 'static,
        R::Error: Send,
        E: Send,
        E: 'static,
    {
        #[pin]
        kind: Kind<F, R, E>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindNow]
    enum Kind<F, R, E>
    where
        R: HttpBody,
        R: Send,
        R: 'static,
        R::Error: Send,
        E: Send,
        E: 'static,
    {
        Passed { #[pin] future: F },
        Guarded { future: Stubborn<Result<Response<Body<R>>, E>> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E>
where
    R: HttpBody + Send + 'static,
    R::Error: Send,
    E: Send + 'static,
{
    fn passed(future: F) -> Self {
        Self { kind: Kind::Passed { future } }
    }

    fn guarded(
        begun: Begun,
        future: impl Future<Output = Result<Response<Body<R>>, E>> + Send + 'static,
    ) -> Self {
        Self { kind: Kind::Guarded { future: Stubborn::once_begun(begun, future) } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: HttpBody + Send + 'static,
    R::Error: Send,
    E: Send + 'static,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindNow::Guarded { future } => Pin::new(future).poll(context),
            KindNow::Passed { future } => {
                let response = ready!(future.poll(context));
                Poll::Ready(response.map(|response| response.map(Body::passed)))
            }
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E>
where
    R: HttpBody + Send + 'static,
    R::Error: Send,
    E: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<Svc: Clone, S> Clone for Idempotency<Svc, S> {
    fn clone(&self) -> Self {
        let (settings, room) = (Arc::clone(&self.settings), Arc::clone(&self.room));
        Self { inner: self.inner.clone(), settings, room }
    }
}

impl<Svc: fmt::Debug, S> fmt::Debug for Idempotency<Svc, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}
