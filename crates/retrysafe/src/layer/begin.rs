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
use retrysafe_core::execution::{AfterBegin, Beginning, NoStore, Patience};
use retrysafe_core::key::Key;
use retrysafe_core::problem::Refusal;
use retrysafe_core::scope::Id;
use retrysafe_core::store::Store;
use retrysafe_core::wire::UNPROTECTED;
use tower_service::Service;

use super::admit::{AdmittedRequest, Arrived, NamedRequest, admit};
use super::body::Body;
use super::context::RequestContext;
use super::execute::execute;
use super::memory::HeldBody;
use super::request::{Meaning, preferred_wait};
use super::response_future::Answered;
use super::run_to_completion::AnswerSlot;
use super::running::{Place, Run, WaitSlot};
use super::settle::withdraw;

/// Answers a keyed request, one way or another.
pub(super) async fn answer_keyed<Svc, S, B, R>(
    context: Arc<RequestContext<S>>,
    arrived: Box<Arrived<Svc>>,
    body: B,
    key: Result<Key, Refusal>,
    answer: AnswerSlot<Answered<R, Svc::Error>>,
) where
    S: Store,
    Svc: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
    Svc::Future: Send + 'static,
    Svc::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    let mut request = match admit(&context, arrived, body, key).await {
        Ok(request) => request,
        Err(refusal) => return answer.give(Ok(context.refuse(&refusal))),
    };
    let wait_max = context.policy().wait_max;
    let wait = preferred_wait(&request.arrived.parts).unwrap_or(wait_max).min(wait_max);
    let mut patience = Patience::new(context.now(), wait);
    let mut place: Option<Place> = None;
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
        let owner = context.shared.next_owner();
        let parts = &request.arrived.parts;
        let left = match begin(&context, parts, &request.body.data, &request.named, owner).await {
            AfterBegin::Busy(left) => left,
            AfterBegin::Owned(owned) => {
                context.report.met(owned.met(), request.named.key);
                let execution = execute(context, request, slot, owned, asked_at, answer);
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
                    return answer.give(Box::pin(run_unprotected(request, run)).await);
                }
                context.report.met(Met::StoreError, request.named.key);
                if must_withdraw {
                    withdraw(&context, request.named.id, request.named.key, owner);
                }
                return answer.give(Ok(context.refuse(&context.store_unavailable())));
            }
        };
        context.must_end.set(false);
        if !context.waits(request.named.id, &mut request.body, &mut patience, &mut place).await {
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

impl<S: Store> RequestContext<S> {
    /// Waits for the request that somebody else executes. Says whether to begin once more.
    async fn waits(
        &self,
        id: Id,
        body: &mut HeldBody,
        patience: &mut Patience,
        place: &mut Option<Place>,
    ) -> bool {
        let Some(until) = patience.wait_until(self.now()) else { return false };
        // It may have begun here a moment before this process knew of it. Whoever waits here is woken,
        // and shares one body with the others.
        place.take_if(|_| self.shared.running.elapsed(id).is_some());
        if place.is_none() {
            match self.wait_slot(id, body) {
                WaitSlot::Here(waiter) => {
                    let has_ended = waiter.until(self.moment(until)).await;
                    if has_ended {
                        patience.woken();
                    }
                    return has_ended;
                }
                // The place is kept between two looks, so that nobody who came later gets it.
                WaitSlot::Elsewhere(free) => *place = Some(free),
                WaitSlot::Full => return false,
            }
        }
        tokio::time::sleep(patience.look_again(self.now())).await;
        true
    }

    /// A place to wait for a running request. All who wait share one copy of its body.
    fn wait_slot(&self, id: Id, body: &mut HeldBody) -> WaitSlot {
        let per_key_max = self.settings.waiters_per_key_max;
        let slot = self.shared.running.wait(id, per_key_max, self.settings.waiters_max, body);
        if let WaitSlot::Here(waiter) = &slot {
            body.give_up_for(waiter.body());
        }
        slot
    }
}

/// Executes a request that nothing protects, because its route would rather have it so. The process
/// knows of it until the answer's head is there.
async fn run_unprotected<Svc, B, R>(
    request: AdmittedRequest<Svc>,
    _run: Run,
) -> Answered<R, Svc::Error>
where
    Svc: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes>,
    R: HttpBody<Data = Bytes>,
{
    let AdmittedRequest { arrived, body, trailers, .. } = request;
    let Arrived { mut inner, parts } = *arrived;
    let body = Body::whole(body.begun(), trailers);
    let response = inner.call(Request::from_parts(parts, body)).await?;
    let mut response = response.map(Body::passed);
    response.headers_mut().insert(UNPROTECTED, HeaderValue::from_static("store"));
    Ok(response)
}
