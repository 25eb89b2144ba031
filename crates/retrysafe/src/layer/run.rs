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
use retrysafe_core::engine::{Ask, Begun, Lease};
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
use super::renewal::RenewalOrder;
use super::request::Meaning;
use super::running::Run;
use super::service::Case;
use super::settle::{settle, withdraw};
use super::stubborn::Stubborn;

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
    /// The id by which logs know the request.
    pub request_id: Option<Box<str>>,
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
            request_id: job.request_id.as_deref(),
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
            Ok(Begun::Unknown(head)) => {
                report.met(Met::Unknown, job.key);
                case.refuse(&Refusal::OutcomeUnknown { retry_after: ASK_AGAIN, head })
            }
            Err(error) => {
                if let Some(run) = case.start_unprotected(job.id, &error) {
                    report.met(Met::Unprotected, job.key);
                    return Worked::Answered(Box::pin(run_unprotected(job, run)).await);
                }
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
    let Some(run) = case.start_run(key, &lease, asked_at).await else {
        // It still runs here from when the store was away, without protection. So nothing is sent.
        settle(&case, key, lease, policy.judge(End::NotSent), None).await;
        return Ok(case.refuse(&Refusal::InProgress { retry_after: ASK_AGAIN }));
    };
    let deadline = after(asked_at, policy.lease_max);
    let attempt = Attempt::new(id, key, lease.fence(), lease.attempt(), deadline);
    // The last look at the clock before the handler sees anything: past its lease the record may be
    // unknown already, and somebody may be deciding that this was never sent.
    let started = Instant::now();
    if started >= after(asked_at, lease.length()) {
        settle(&case, key, lease, policy.judge(End::NotSent), Some(run)).await;
        return Ok(case.refuse(&case.store_unavailable()));
    }
    parts.extensions.insert(attempt.clone());
    let request = Request::from_parts(parts, Body::whole(body.begun(), trailers));
    let bytes_max = policy.response_bytes_max;
    let hold = Hold::of_execution(case.settings.memory.as_ref());
    let ended = unpanicked(async move {
        match inner.call(request).await {
            Ok(response) => listen(response, bytes_max, hold).await,
            Err(error) => Ended::Error(error),
        }
    })
    .await;
    case.report.executed(started.elapsed());
    if let Some(ttl) = attempt.ttl() {
        lease.set_ttl(ttl);
    }
    conclude(&case, key, &attempt, lease, ended, run).await
}

impl<S: Store> Case<S> {
    /// Notes an execution, so that duplicates find it and its lease is renewed.
    async fn start_run(&self, key: KeyDigest, lease: &Lease, asked_at: Instant) -> Option<Run> {
        let policy = &self.route.policy;
        let order = RenewalOrder {
            renewal: lease.renewal(),
            lease: policy.lease,
            lease_max: policy.lease_max,
            key,
            report: Arc::clone(&self.report),
        };
        let due = order.due_after(asked_at);
        let (run, is_earlier) = self.room.running.start(lease.id(), lease.fence(), due, order)?;
        self.room.renewer.ensure_running(&self.room);
        if is_earlier {
            self.room.renewer.wake();
            // It may stand behind this task on the same thread, and the handler may block that.
            tokio::task::yield_now().await;
        }
        Some(run)
    }

    /// Failing open is for a store that is out of reach or full, and only where the begin surely
    /// was not applied. A damaged record is a record: behind it may be an execution. And what runs in
    /// this process is known to run, without any store.
    fn start_unprotected(&self, id: Id, error: &StoreError) -> Option<Run> {
        let out_of_reach = match error.kind() {
            StoreErrorKind::Unavailable | StoreErrorKind::Full => true,
            StoreErrorKind::Damaged | StoreErrorKind::Broken => false,
        };
        let is_open = self.route.policy.on_store_error == OnStoreError::Open;
        let may_run = out_of_reach && is_open && !error.may_have_applied();
        may_run.then(|| self.room.running.start_unprotected(id)).flatten()
    }

    pub(super) fn store_unavailable(&self) -> Refusal {
        Refusal::StoreUnavailable { retry_after: self.room.engine.store().retry_after() }
    }
}

/// Executes a job that nothing protects, because its route would rather have it so. The process knows
/// of it until the answer's head is there.
async fn run_unprotected<Svc, B, R>(
    job: Job<Svc>,
    _run: Run,
) -> Result<Response<Body<R>>, Svc::Error>
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
