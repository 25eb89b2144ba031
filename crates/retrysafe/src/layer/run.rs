//! What happens between a begin and its answer?
//!
//! The life of one execution: begin, check the lease, let the handler run while the lease is
//! renewed, read its answer, settle, and only then answer. All of it is [stubborn]: once begun, it
//! ends, whoever goes away. A crash between two of these lines leaves a record in progress, which
//! becomes unknown when its lease ends; it never leaves an answer that is not durable.
//!
//! [stubborn]: super::stubborn

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{Request, Response, request};
use http_body::Body as HttpBody;
use retrysafe_core::engine::{Ask, Begun, Lease, Renewed};
use retrysafe_core::event::Met;
use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::policy::{End, OnStoreError};
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{About, Answer};
use retrysafe_core::scope::{Caller, Id};
use retrysafe_core::store::{Store, StoreError, StoreErrorKind};
use tokio::time::Instant;
use tower_service::Service;

use super::answer::{ASK_AGAIN, UNPROTECTED};
use super::attempt::Attempt;
use super::body::Body;
use super::deadline::after;
use super::end::{Ended, conclude, listen};
use super::memory::{ExecutionSlot, HeldBody, Hold};
use super::request::Meaning;
use super::service::Case;
use super::settle::{settle, withdraw};
use super::stubborn::Stubborn;

/// A lease is renewed this often before it ends, so that two renewals may fail.
const RENEWALS_PER_LEASE: u32 = 3;

/// A request as it came in, and the service that was made ready for it. It is large and handed from
/// one future to the next, so it is kept in a box.
pub(super) struct Arrived<Svc> {
    pub inner: Svc,
    pub parts: request::Parts,
}

/// A request that was read whole and may be begun.
pub(super) struct Job<Svc> {
    pub arrived: Box<Arrived<Svc>>,
    pub body: HeldBody,
    pub trailers: Option<HeaderMap>,
    pub id: Id,
    pub key: KeyDigest,
    pub caller: Caller,
    pub print: Fingerprint,
    pub about: About,
}

/// What became of a job.
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
pub(super) enum Worked<Svc, R: HttpBody, E> {
    /// Here is the answer.
    Answered(Result<Response<Body<R>>, E>),
    /// Somebody else is executing it, on a lease that ends in this long. The job comes back.
    Busy(Duration, Box<Job<Svc>>),
}

/// Begins a job, and executes it if it is the first.
pub(super) async fn work<Svc, S, B, R>(
    case: Arc<Case<S>>,
    job: Job<Svc>,
    slot: Option<ExecutionSlot>,
) -> Worked<Svc, R, Svc::Error>
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
    let (policy, report) = (&case.route.policy, &case.report);
    // The lease counts from before it was asked for: the store's answer may have taken a while.
    let asked_at = Instant::now();
    let owner = case.room.owner();
    let begun = {
        let (parts, body) = (&job.arrived.parts, &*job.body.data);
        let meaning = Meaning { settings: &case.settings, policy, parts, body, current: job.print };
        let ask = Ask {
            scope: &job.caller.scope,
            mark: job.caller.mark,
            key: job.key,
            prints: &meaning,
            about: &job.about,
            ttl: policy.ttl,
            lease: policy.lease,
            owner,
        };
        case.room.engine.begin(&ask).await
    };
    let answer =
        match begun {
            Ok(Begun::Execute(lease)) => {
                let again = if lease.attempt() > 1 { Met::FailedRetry } else { Met::Created };
                report.met(again, job.key);
                let run = Stubborn::new(execute(Arc::clone(&case), job, slot, lease, asked_at));
                return Worked::Answered(match tokio::time::timeout(policy.lease_max, run).await {
                    Ok(answer) => answer,
                    // The execution goes on by itself, and its late settle counts.
                    Err(_) => Ok(case
                        .refuse(&Refusal::AnswerLost { timed_out: true, retry_after: ASK_AGAIN })),
                });
            }
            Ok(Begun::InProgress(left)) => return Worked::Busy(left, Box::new(job)),
            Ok(Begun::Replay(Answer::Kept(stored), expires_at)) => {
                report.met(Met::Replay, job.key);
                case.replay(job.id, stored, expires_at)
            }
            Ok(Begun::Replay(Answer::NotKept { status, location }, _)) => {
                report.met(Met::NotReplayable, job.key);
                case.refuse(&Refusal::ResponseNotStored {
                    original_status: status,
                    original_location: location,
                })
            }
            Ok(Begun::Mismatch) => {
                report.met(Met::KeyMisuse, job.key);
                case.refuse(&Refusal::KeyReused)
            }
            Ok(Begun::CredentialChanged) => {
                report.met(Met::CredentialChanged, job.key);
                case.refuse(&Refusal::CredentialChanged)
            }
            Ok(Begun::Unknown) => {
                report.met(Met::Unknown, job.key);
                case.refuse(&Refusal::OutcomeUnknown { retry_after: ASK_AGAIN })
            }
            Err(error) if case.may_run_unprotected(job.id, &error) => {
                report.met(Met::Unprotected, job.key);
                return Worked::Answered(Box::pin(run_unprotected(job)).await);
            }
            Err(error) => {
                report.met(Met::StoreError, job.key);
                if error.may_have_applied() {
                    withdraw(&case, job.id, job.key, owner);
                }
                case.refuse(&case.store_unavailable())
            }
        };
    Worked::Answered(Ok(answer))
}

/// Executes a job that this process owns.
async fn execute<Svc, S, B, R>(
    case: Arc<Case<S>>,
    job: Job<Svc>,
    _slot: Option<ExecutionSlot>,
    mut lease: Lease,
    asked_at: Instant,
) -> Result<Response<Body<R>>, Svc::Error>
where
    S: Store,
    Svc: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes>,
    R: HttpBody<Data = Bytes>,
{
    let Job { arrived, body, trailers, id, key, .. } = job;
    let Arrived { mut inner, mut parts } = *arrived;
    let policy = &case.route.policy;
    let run = case.room.running.start(id, lease.fence());
    let deadline = after(asked_at, policy.lease_max);
    let attempt = Attempt::new(id, key, lease.fence(), lease.attempt(), deadline);
    // The last look at the clock before the handler sees anything: past its lease the record may be
    // unknown already, and somebody may be deciding that this was never sent.
    let started = Instant::now();
    if started >= after(asked_at, lease.length()) {
        settle(&case, key, lease, policy.judge(End::NotSent)).await;
        return Ok(case.refuse(&case.store_unavailable()));
    }
    parts.extensions.insert(attempt.clone());
    let request = Request::from_parts(parts, Body::whole(body.begun(), trailers));
    let bytes_max = policy.response_bytes_max;
    let hold = Hold::of_execution(case.settings.memory.as_ref());
    let ended = {
        let mut handler = pin!(unpanicked(async move {
            match inner.call(request).await {
                Ok(response) => listen(response, bytes_max, hold).await,
                Err(error) => Ended::Error(error),
            }
        }));
        tokio::select! {
            biased;
            ended = &mut handler => ended,
            // The lease is lost, the handler is not killed: its late settle still counts.
            () = keep(&case, key, &mut lease) => handler.await,
        }
    };
    case.report.executed(started.elapsed());
    if let Some(ttl) = attempt.ttl() {
        lease.set_ttl(ttl);
    }
    let answer = conclude(&case, key, &attempt, lease, ended).await;
    drop(run);
    answer
}

impl<S: Store> Case<S> {
    /// Failing open is for a store that is out of reach or full, and only where the begin surely
    /// was not applied. A damaged record is a record: behind it may be an execution. And what runs in
    /// this process is known to run, without any store.
    fn may_run_unprotected(&self, id: Id, error: &StoreError) -> bool {
        let out_of_reach = match error.kind() {
            StoreErrorKind::Unavailable | StoreErrorKind::Full => true,
            StoreErrorKind::Damaged | StoreErrorKind::Broken => false,
        };
        out_of_reach
            && !error.may_have_applied()
            && self.route.policy.on_store_error == OnStoreError::Open
            && self.room.running.elapsed(id).is_none()
    }

    pub(super) fn store_unavailable(&self) -> Refusal {
        Refusal::StoreUnavailable { retry_after: self.room.engine.store().retry_after() }
    }
}

/// Executes a job that nothing protects, because its route would rather have it so.
async fn run_unprotected<Svc, B, R>(job: Job<Svc>) -> Result<Response<Body<R>>, Svc::Error>
where
    Svc: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes>,
    R: HttpBody<Data = Bytes>,
{
    let Job { arrived, body, trailers, .. } = job;
    let Arrived { mut inner, parts } = *arrived;
    let body = Body::whole(body.begun(), trailers);
    let response = inner.call(Request::from_parts(parts, body)).await?;
    let mut response = response.map(Body::passed);
    response.headers_mut().insert(UNPROTECTED, HeaderValue::from_static("store"));
    Ok(response)
}

/// Runs a handler to its end, or to its panic. What it held is dropped within the same fence, so a
/// panic in a destructor is caught as well.
async fn unpanicked<R: HttpBody, E>(handler: impl Future<Output = Ended<R, E>>) -> Ended<R, E> {
    let mut handler = pin!(handler);
    std::future::poll_fn(|context| {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context)));
        polled.unwrap_or(Poll::Ready(Ended::Panicked))
    })
    .await
}

/// Renews a lease until it is lost.
async fn keep<S: Store>(case: &Case<S>, key: KeyDigest, lease: &mut Lease) {
    let policy = &case.route.policy;
    let pause = (policy.lease / RENEWALS_PER_LEASE).max(Duration::from_millis(1));
    loop {
        tokio::time::sleep(pause).await;
        // Boxed, because most executions end before their first renewal and need no room for it.
        let renewal = Box::pin(case.room.engine.renew(lease, policy.lease, policy.lease_max));
        match renewal.await {
            Ok(Renewed::For(_)) => {}
            Ok(Renewed::Lost) => return case.report.lease_lost(key),
            // The lease stands as it was, and there is time for another try before it ends.
            Err(_) => {}
        }
    }
}
