//! May a keyed request be begun, and what if somebody else has begun it?
//!
//! A request is read whole and everything is refused that may not be begun; nothing is written before the end of that.
//! Then it is one request, one answer: the record's, a refusal, or the answer of the [execution](super::execute)
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
use retrysafe_core::policy::OnStoreError;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::About;
use retrysafe_core::scope::{Caller, Id};
use retrysafe_core::store::Store;
use retrysafe_core::wire::UNPROTECTED;
use tokio::time::Instant;
use tower_service::Service;

use super::body::{Body, Read, read};
use super::boot_clock::BootMoment;
use super::context::{AdmittedRequest, Arrived, NamedRequest, RequestContext};
use super::deadline::after;
use super::execute::execute;
use super::inner_body::InnerBody;
use super::limits::Limiter;
use super::meaning::Meaning;
use super::memory::{HeldBody, MemoryBudget};
use super::request::{self, preferred_wait};
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

/// Reads a request whole, and refuses what may not be begun.
async fn admit<Svc, S, B>(
    context: &RequestContext<S>,
    arrived: Box<Arrived<Svc>>,
    body: B,
    (key, caller): (Key, Caller),
) -> Result<AdmittedRequest<Svc>, Refusal>
where
    S: Store,
    B: HttpBody<Data = Bytes>,
{
    let policy = context.policy();
    let parts = &arrived.parts;
    let request_id = request::request_id(parts, &key);
    let key = key.digest();
    let id = Id::of(&caller.scope, &key);
    let counters = context.settings.limiter.as_ref().and_then(Limiter::counters);
    if let Some(counters) = &counters {
        counters.admit(&caller, id)?;
    }
    let time_max = after(Instant::now(), policy.request_time_max);
    let hold = context.hold();
    let (body, trailers) = match read(body, policy.request_bytes_max, Some(time_max), hold).await {
        Read::Whole(body, trailers, hold) => (HeldBody::new(body, hold), trailers),
        Read::Over(_) => return Err(Refusal::BodyTooLarge),
        Read::NoRoom(_) => return Err(MemoryBudget::refusal()),
        Read::Late(_) => return Err(Refusal::BodyTimeout),
        Read::Broken(_) => return Err(Refusal::BodyBroken),
    };
    let print = Meaning::new(&context.settings, policy, parts, &body.data).current;
    if let Some(counters) = counters.filter(|counters| counters.counts_new_keys()) {
        match context.shared.engine.look(id).await {
            Ok(found) if found.value.is_some() => {}
            Ok(_) => counters.admit_new(&caller, policy.ttl)?,
            // The begin decides what a store that is away means on this route.
            Err(_) if policy.on_store_error == OnStoreError::Open => {}
            Err(_) => return Err(context.store_unavailable()),
        }
    }
    let about = About {
        method: parts.method.as_str().into(),
        route: context.report.label().into(),
        path: request::path(parts).into(),
    };
    let named = NamedRequest { id, key, caller, print, about, request_id };
    Ok(AdmittedRequest { arrived, body, trailers, named })
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
    match context.shared.engine.begin_flow(&ask, &settings.flows).await {
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
