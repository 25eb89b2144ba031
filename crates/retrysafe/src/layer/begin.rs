//! How is a keyed request begun, and what if somebody else has begun it?
//!
//! One request, one answer: the record's, a refusal, or the answer of the [execution](super::execute)
//! that it may begin. A duplicate may wait for the running one and then begin once more.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderValue;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use retrysafe_core::engine::Ask;
use retrysafe_core::event::Met;
use retrysafe_core::execution::{AfterBegin, Beginning, NoStore};
use retrysafe_core::key::Key;
use retrysafe_core::problem::Refusal;
use retrysafe_core::scope::Caller;
use retrysafe_core::store::Store;
use retrysafe_core::wire::UNPROTECTED;
use tower_service::Service;

use super::admit::{AdmittedRequest, Arrived, NamedRequest, admit};
use super::body::Body;
use super::boot_clock::BootMoment;
use super::context::RequestContext;
use super::execute::execute;
use super::inner_body::InnerBody;
use super::meaning::Meaning;
use super::request::preferred_wait;
use super::response_future::Answered;
use super::run_to_completion::AnswerSlot;
use super::running::Run;
use super::settle::withdraw;
use super::waiting::Waiting;

/// Answers a keyed request, one way or another.
pub(super) async fn answer_keyed<Svc, S, B, R>(
    context: Arc<RequestContext<S>>,
    arrived: Box<Arrived<Svc>>,
    body: B,
    named: (Key, Caller),
    answer: AnswerSlot<Answered<R, Svc::Error>>,
) where
    S: Store,
    Svc: Service<Request<B::Inner>, Response = Response<R>> + Send + 'static,
    Svc::Future: Send + 'static,
    Svc::Error: Send + 'static,
    B: InnerBody,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    let mut request = match admit(&context, arrived, body, named).await {
        Ok(request) => request,
        Err(refusal) => return answer.give(Ok(context.refuse(&refusal))),
    };
    let wait_max = context.policy().wait_max;
    let wait = preferred_wait(&request.arrived.parts).unwrap_or(wait_max).min(wait_max);
    let mut waiting = Waiting::new(context.now(), wait);
    // A shutdown waits for those who wait, too: a duplicate that was woken begins once more.
    let _under_way = context.shared.drain.execution();
    loop {
        let slot = match context.execution_slot(request.named.id).await {
            Ok(slot) => slot,
            Err(refusal) => return answer.give(Ok(context.refuse(&refusal))),
        };
        // From here on a client that leaves changes nothing.
        context.must_end.set(true);
        let asked_at = context.now();
        let begun_at = BootMoment::now();
        let owner = context.shared.next_owner();
        let parts = &request.arrived.parts;
        let begun = begin(&context, parts, &request.body.data, &request.named, owner);
        let Some(begun) = context.shared.drain.unless_given_up(begun).await else {
            // The begin may still land. Nobody will execute it.
            withdraw(&context, request.named.id, request.named.key, owner);
            return answer.give(Ok(context.refuse(&context.store_unavailable())));
        };
        let left = match begun {
            AfterBegin::Busy(left) => left,
            AfterBegin::Owned(owned) => {
                context.report.met(owned.met(), request.named.key);
                let execution = execute::<_, _, B, _>(
                    context, request, slot, owned, asked_at, begun_at, answer,
                );
                return Box::pin(execution).await;
            }
            AfterBegin::Tell(met, told) => {
                context.report.met(met, request.named.key);
                return answer.give(Ok(context.tell(request.named.id, told)));
            }
            AfterBegin::NoStore(NoStore { may_run_unprotected, must_withdraw }) => {
                let running = &context.shared.running;
                let run = may_run_unprotected.then(|| running.start_unprotected(request.named.id));
                if let Some(run) = run.flatten() {
                    context.report.met(Met::Unprotected, request.named.key);
                    let drain = &context.shared.drain;
                    let ran = drain
                        .unless_given_up(Box::pin(run_unprotected::<_, B, _>(request, run)))
                        .await;
                    let lost = Refusal::UpstreamFailed { timed_out: true };
                    return answer.give(ran.unwrap_or_else(|| Ok(context.refuse(&lost))));
                }
                context.report.met(Met::StoreError, request.named.key);
                if must_withdraw {
                    withdraw(&context, request.named.id, request.named.key, owner);
                }
                return answer.give(Ok(context.refuse(&context.store_unavailable())));
            }
        };
        context.must_end.set(false);
        if !waiting.wait(&context, request.named.id, &mut request.body).await {
            context.report.met(Met::InProgress, request.named.key);
            let retry_after = context.pace(request.named.id, left);
            return answer.give(Ok(context.refuse(&Refusal::InProgress { retry_after })));
        }
    }
}

/// Asks the store for the right to execute.
async fn begin<S: Store>(
    context: &RequestContext<S>,
    parts: &Parts,
    body: &[u8],
    named: &NamedRequest,
    owner: u64,
) -> AfterBegin {
    let policy = context.policy();
    let beginning = Beginning::new(context.now(), context.settings.settle_max);
    let settings = &context.settings;
    let meaning = Meaning { settings, policy, parts, body, current: named.print };
    let ask = Ask {
        scope: &named.caller.scope,
        mark: named.caller.mark,
        key: named.key,
        prints: &meaning,
        about: &named.about,
        ttl: policy.ttl,
        lease: policy.lease,
        owner,
        request_id: named.request_id.as_deref(),
    };
    match context.shared.engine.begin(&ask).await {
        Ok(begun) => beginning.begun(policy, Ok(begun)),
        Err(error) => beginning.begun(policy, Err(&error)),
    }
}

/// Executes a request that nothing protects, because its route would rather have it so. The process
/// knows of it until the answer's head is there.
async fn run_unprotected<Svc, B, R>(
    request: AdmittedRequest<Svc>,
    _run: Run,
) -> Answered<R, Svc::Error>
where
    Svc: Service<Request<B::Inner>, Response = Response<R>>,
    B: InnerBody,
    R: HttpBody<Data = Bytes>,
{
    let AdmittedRequest { arrived, body, trailers, .. } = request;
    let Arrived { mut inner, parts } = *arrived;
    let body = B::inner(Body::whole(body.begun(), trailers));
    let response = inner.call(Request::from_parts(parts, body)).await?;
    let mut response = response.map(Body::passed);
    response.headers_mut().insert(UNPROTECTED, HeaderValue::from_static("store"));
    Ok(response)
}
