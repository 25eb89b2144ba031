//! What happens between a lease and the answer?
//!
//! The handler runs while its lease is renewed; its answer is read, settled, and only then given to
//! the caller. The [order](retrysafe_core::execution) is the core's; here it is carried out. A crash
//! between two of these lines leaves a record in progress, which becomes unknown when its lease ends.
//! It never leaves an answer that is not durable.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, response};
use http_body::Body as HttpBody;
use retrysafe_core::engine::Lease;
use retrysafe_core::execution::{ASK_AGAIN, Failure, Owned, Settling, Told};
use retrysafe_core::key::KeyDigest;
use retrysafe_core::policy::{End, Said};
use retrysafe_core::problem::Refusal;
use retrysafe_core::response::StoredResponse;
use retrysafe_core::store::Store;
use tokio::time::Instant;
use tower_service::Service;

use super::attempt::Attempt;
use super::attend::{Attendance, catch_panic};
use super::body::Body;
use super::boot_clock::BootMoment;
use super::context::{AdmittedRequest, Arrived, NamedRequest, RequestContext};
use super::deadline::after;
use super::inner_body::InnerBody;
use super::memory::{ExecutionSlot, Hold};
use super::read_answer::{AnswerRead, read_answer};
use super::response_future::Answered;
use super::run_to_completion::AnswerSlot;
use super::running::{NotStarted, RenewalOrder, Run};
use super::settle::{settle_again, settle_once};
use super::stream::pass_on;

/// What the caller gets once the end of its execution is in the record.
pub(super) enum HeldAnswer<R: HttpBody, E> {
    /// The handler's answer.
    Response(response::Parts, Body<R>),
    /// The inner service's own error, whatever the record says.
    Error(E),
    /// Nothing: what the caller is told depends on the record alone.
    Nothing,
}

/// Executes a request that this process owns.
pub(super) async fn execute<Svc, S, B, R>(
    context: Arc<RequestContext<S>>,
    request: AdmittedRequest<Svc>,
    slot: Option<ExecutionSlot>,
    owned: Owned,
    asked_at: Duration,
    begun_at: BootMoment,
    answer: AnswerSlot<Answered<R, Svc::Error>>,
) where
    S: Store,
    Svc: Service<Request<B::Inner>, Response = Response<R>>,
    B: InnerBody,
    R: HttpBody<Data = Bytes> + 'static,
    R::Error: Send,
{
    let AdmittedRequest { arrived, body, trailers, named } = request;
    let NamedRequest { id, key, .. } = named;
    let Arrived { mut inner, mut parts } = *arrived;
    let policy = context.policy();
    let asked_at = context.moment(asked_at);
    let lease = owned.lease();
    let deadline = after(asked_at, policy.lease_max);
    let attempt = Attempt::new(id, key, lease.fence(), lease.attempt(), deadline);
    let run = match context.start_run(lease, &attempt, asked_at).await {
        Ok(run) => run,
        Err(why) => {
            let refusal = match why {
                // From when the store was away. So nothing is sent.
                NotStarted::RunsUnprotected => Refusal::InProgress { retry_after: ASK_AGAIN },
                NotStarted::GivenUp => context.store_unavailable(),
            };
            let unsent = owned.not_sent(policy, context.now(), refusal);
            let finishing = finish(&context, key, unsent, HeldAnswer::Nothing, None, answer);
            return Box::pin(finishing).await;
        }
    };
    let has_slept_too_long = begun_at.elapsed() >= owned.lease().length();
    let ready = if has_slept_too_long {
        Err(Box::new(owned.not_sent(policy, context.now(), context.store_unavailable())))
    } else {
        owned.send(policy, context.now(), context.store_unavailable())
    };
    let mut sent = match ready {
        Ok(sent) => sent,
        Err(unsent) => {
            let finishing = finish(&context, key, *unsent, HeldAnswer::Nothing, Some(run), answer);
            return Box::pin(finishing).await;
        }
    };
    let started = Instant::now();
    parts.extensions.insert(attempt.clone());
    let body = B::inner(Body::whole(body.begun(), trailers));
    let request = Request::from_parts(parts, body);
    let mut attendance = Attendance::new(&context, &attempt, &answer);
    let handler = catch_panic(async move { inner.call(request).await });
    let read = match attendance.attend(handler).await {
        None => AnswerRead::Failed(Failure::Lost { timed_out: true }),
        Some(Err(_)) => AnswerRead::Failed(Failure::Panicked),
        Some(Ok(Err(error))) => AnswerRead::Error(error),
        Some(Ok(Ok(mut response))) => {
            let has_flow = sent.lease().flow().is_some() || attempt.runs_flow();
            let is_doubted = response.extensions().get::<Said>() == Some(&Said::Unknown);
            if has_flow && !attempt.is_flow_over() && !is_doubted {
                // Only the flow says that it is over. A handler that has not gone on with it, has not waited for its end,
                // or answers in its own words, says nothing about it.
                response.extensions_mut().insert(Said::Retryable);
            }
            let hold = Hold::of_execution(context.settings.memory.as_ref());
            read_answer(&context, &attempt, response, hold, &mut attendance).await
        }
    };
    // It counts as one of the late ones until it is settled.
    let _late = attendance.into_late_answer();
    context.report.executed(started.elapsed());
    if let Some(ttl) = attempt.ttl() {
        sent.lease_mut().set_ttl(ttl);
    }
    let now = context.now();
    let (settling, held) = match read {
        AnswerRead::Whole { parts, body, said, hold } => {
            let set_cookie = policy.keep_set_cookie;
            let kept = StoredResponse::keep(parts.status, &parts.headers, body.clone(), set_cookie);
            let by_upstream = context.settings.by_upstream;
            let end = End::Answered { response: kept, by_upstream, said };
            // Only what goes to the caller counts: a store in memory keeps the same bytes for longer.
            let body = Body::whole(hold.keep(body), None);
            (sent.answered(policy, now, end), HeldAnswer::Response(parts, body))
        }
        AnswerRead::Unkept { parts, body, end } => {
            (sent.answered(policy, now, end), HeldAnswer::Response(parts, body))
        }
        AnswerRead::Stream { parts, body, head, end } => {
            // A stream holds no memory of the budget.
            drop(slot);
            let keeping = sent.passes_on(policy, now, head);
            // In a box, as whatever is rare here: an execution is as large as the largest thing that it waits for.
            let passing = pass_on(&context, &attempt, keeping, end, parts, body, run, answer);
            return Box::pin(passing).await;
        }
        AnswerRead::Failed(failure) => {
            if failure == Failure::Panicked {
                context.report.panicked(key);
            }
            (sent.failed(policy, now, failure), HeldAnswer::Nothing)
        }
        // An error of the inner service proves nothing about what it did before.
        AnswerRead::Error(error) => {
            let lost = Failure::Lost { timed_out: false };
            (sent.failed(policy, now, lost), HeldAnswer::Error(error))
        }
    };
    let finishing = finish(&context, key, settling, held, Some(run), answer);
    Box::pin(finishing).await;
}

impl<S: Store> RequestContext<S> {
    /// Notes an execution, so that duplicates find it and its lease is renewed.
    async fn start_run(
        &self,
        lease: &Lease,
        attempt: &Attempt,
        asked_at: Instant,
    ) -> Result<Run, NotStarted> {
        let policy = self.policy();
        let order = RenewalOrder {
            renewal: lease.renewal(),
            lease: policy.lease,
            lease_max: policy.lease_max,
            key: attempt.key(),
            report: Arc::clone(&self.report),
        };
        let due = order.due_after(asked_at);
        let (run, is_earlier) = self.shared.running.start(attempt, due, order)?;
        self.shared.renewer.ensure_running(&self.shared.engine, &self.shared.running);
        if is_earlier {
            self.shared.renewer.wake();
            // It may stand behind this task on the same thread, and the handler may block that.
            tokio::task::yield_now().await;
        }
        Ok(run)
    }
}

/// Settles the end of an execution, and then answers. Where the store is away, the caller is told so
/// after a while, and the settle is tried on: the execution counts as running until then, because a
/// route that fails open must not repeat what this process is still settling.
pub(super) async fn finish<S: Store, R: HttpBody, E>(
    context: &Arc<RequestContext<S>>,
    key: KeyDigest,
    (lease, settling): (Lease, Settling),
    held: HeldAnswer<R, E>,
    run: Option<Run>,
    answer: AnswerSlot<Answered<R, E>>,
) {
    let id = lease.id();
    let told = match settle_once(context, key, lease, &settling).await {
        Ok(settled) => Some(settling.settled(settled)),
        Err(lease) => {
            let tell_at = context.moment(settling.tell_at());
            let mut again = Box::pin(settle_again(context, key, lease, settling));
            match tokio::time::timeout_at(tell_at, again.as_mut()).await {
                Ok(told) => told,
                Err(_) => {
                    context.report.not_durable(key);
                    let refusal = Settling::not_durable();
                    answer.give(held.unless_error(|| context.refuse(&refusal)));
                    again.await;
                    return;
                }
            }
        }
    };
    drop(run);
    answer.give(match (held, told) {
        (HeldAnswer::Response(parts, body), Some(Told::Answer(durable))) => {
            Ok(context.answer(parts, body, &durable))
        }
        (held, Some(told)) => held.unless_error(|| context.tell(id, told)),
        (held, None) => held.unless_error(|| context.refuse(&Settling::not_durable())),
    });
}

impl<R: HttpBody, E> HeldAnswer<R, E> {
    fn unless_error(self, response: impl FnOnce() -> Response<Body<R>>) -> Answered<R, E> {
        match self {
            Self::Error(error) => Err(error),
            Self::Response(..) | Self::Nothing => Ok(response()),
        }
    }
}
