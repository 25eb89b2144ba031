//! May a keyed request be begun, and what if somebody else has begun it?
//!
//! A request is read whole and everything is refused that may not be begun; nothing is written before the end of that.
//! Then it is one request, one answer: the record's, a refusal, or the answer of the [execution](super::execute)
//! that it may begin. A duplicate may wait for the running one and then begin once more. Where nothing may be
//! [executed](super::gate), the record is looked at instead, and nothing is begun.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderValue;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use retrysafe_core::event::Met;
use retrysafe_core::execution::{AfterBegin, Beginning, NoStore, Told};
use retrysafe_core::policy::OnStoreError;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::About;
use retrysafe_core::scope::{Caller, Id};
use retrysafe_core::store::Store;
use retrysafe_core::trace::begin_text;
use retrysafe_core::wire::UNPROTECTED;
use tokio::time::Instant;
use tower_service::Service;

use super::body::{Body, Read, read};
use super::boot_clock::BootMoment;
use super::context::{AdmittedRequest, Arrived, AskedKey, NamedRequest, RequestContext};
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
use super::watch::WatchedStep;

/// Answers a keyed request, one way or another.
pub(super) async fn answer_keyed<Svc, S, B, R>(
    context: Arc<RequestContext<S>>,
    arrived: Box<Arrived<Svc>>,
    body: B,
    named: (AskedKey, Caller),
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
    let request = match admit(&context, arrived, body, named).await {
        Ok(Admission::Begins(request)) => request,
        Ok(Admission::Answered(response)) => return answer.give(Ok(response)),
        Err(refusal) => return answer.give(Ok(context.refuse(&refusal))),
    };
    // In a box of its own, so that a request that is answered at once does not carry it.
    Box::pin(begin_until_answered::<_, _, B, _>(context, request, answer)).await;
}

/// What becomes of a request that was read whole.
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
enum Admission<Svc, R: HttpBody> {
    /// It may be begun.
    Begins(AdmittedRequest<Svc>),
    /// Its answer was at hand.
    Answered(Response<Body<R>>),
}

/// Begins a request until it is answered, one way or another.
async fn begin_until_answered<Svc, S, B, R>(
    context: Arc<RequestContext<S>>,
    mut request: AdmittedRequest<Svc>,
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
    let wait_max = context.policy().wait_max;
    let wait = preferred_wait(&request.arrived.parts).unwrap_or(wait_max).min(wait_max);
    let mut waiting = Waiting::new(context.now(), wait);
    // A shutdown waits for those who wait, too: a duplicate that was woken begins once more.
    let _under_way = context.shared.drain.execution();
    loop {
        if let Some(refusal) = context.closed_gate() {
            // In a box of its own, as what is rare: every execution would carry the room for it.
            let AdmittedRequest { arrived, body, named, .. } = &request;
            let looking = look(&context, &arrived.parts, &body.data, named, &refusal);
            match Box::pin(looking).await {
                Looked::Told(response) => return answer.give(Ok(response)),
                Looked::Busy(left) => {
                    if !waiting.wait(&context, request.named.id, &mut request.body).await {
                        return answer.give(Ok(still_running(&context, &request.named, left)));
                    }
                    continue;
                }
            }
        }
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
        context.stepped(WatchedStep::Begin(met_by(&begun)), asked_at);
        let left = match begun {
            AfterBegin::Busy(left) => left,
            AfterBegin::Owned(owned) => {
                context.met(owned.met(), &request.named);
                let execution = execute::<_, _, B, _>(
                    context, request, slot, owned, asked_at, begun_at, answer,
                );
                return Box::pin(execution).await;
            }
            AfterBegin::Tell(met, told) => {
                context.met(met, &request.named);
                if let Told::Replay(given, _) = &told {
                    let parts = &request.arrived.parts;
                    context.keep_at_hand(&request.named, parts, &request.body.data, given);
                }
                return answer.give(Ok(context.tell(request.named.id, told)));
            }
            AfterBegin::NoStore(NoStore { may_run_unprotected, must_withdraw }) => {
                let running = &context.shared.running;
                let run = may_run_unprotected.then(|| running.start_unprotected(request.named.id));
                if let Some(run) = run.flatten() {
                    context.met(Met::Unprotected, &request.named);
                    let drain = &context.shared.drain;
                    let ran = drain
                        .unless_given_up(Box::pin(run_unprotected::<_, B, _>(request, run)))
                        .await;
                    let lost = Refusal::UpstreamFailed { timed_out: true };
                    return answer.give(ran.unwrap_or_else(|| Ok(context.refuse(&lost))));
                }
                context.met(Met::StoreError, &request.named);
                if must_withdraw {
                    withdraw(&context, request.named.id, request.named.key, owner);
                }
                return answer.give(Ok(context.refuse(&context.store_unavailable())));
            }
        };
        context.must_end.set(false);
        if !waiting.wait(&context, request.named.id, &mut request.body).await {
            return answer.give(Ok(still_running(&context, &request.named, left)));
        }
    }
}

/// What a duplicate is told that has not waited, or in vain.
fn still_running<S: Store, R: HttpBody>(
    context: &RequestContext<S>,
    named: &NamedRequest,
    left: Duration,
) -> Response<Body<R>> {
    context.met(Met::InProgress, named);
    let retry_after = context.pace(named.id, left);
    context.refuse(&Refusal::InProgress { retry_after })
}

/// What comes of a request that may not be executed now.
enum Looked<R: HttpBody> {
    /// This is its answer.
    Told(Response<Body<R>>),
    /// Somebody else is executing it, on a lease that ends in this long.
    Busy(Duration),
}

/// Asks the record in the place of a begin, and writes nothing. What would be executed is refused.
async fn look<S: Store, R: HttpBody>(
    context: &RequestContext<S>,
    parts: &Parts,
    body: &[u8],
    named: &NamedRequest,
    refusal: &Refusal,
) -> Looked<R> {
    let policy = context.policy();
    let asked_at = context.now();
    let beginning = Beginning::new(asked_at, context.settings.settle_max);
    let settings = &context.settings;
    let meaning = Meaning { settings, policy, parts, body, current: named.print };
    let ask = named.ask(policy, &meaning, 0);
    let found = context.shared.engine.look_before_begin(named.id, &ask, &settings.flows).await;
    let found = match found {
        Ok(None) => return Looked::Told(context.refuse(refusal)),
        Ok(Some(begun)) => beginning.begun(policy, Ok(begun)),
        Err(error) => beginning.begun(policy, Err(&error)),
    };
    context.stepped(WatchedStep::Begin(met_by(&found)), asked_at);
    match found {
        AfterBegin::Busy(left) => Looked::Busy(left),
        AfterBegin::Tell(met, told) => {
            context.met(met, named);
            if let Told::Replay(given, _) = &told {
                context.keep_at_hand(named, parts, body, given);
            }
            Looked::Told(context.tell(named.id, told))
        }
        // It would be executed. (A look grants no lease.)
        AfterBegin::NoStore(NoStore { may_run_unprotected: true, .. }) | AfterBegin::Owned(_) => {
            Looked::Told(context.refuse(refusal))
        }
        AfterBegin::NoStore(NoStore { may_run_unprotected: false, .. }) => {
            context.met(Met::StoreError, named);
            Looked::Told(context.refuse(&context.store_unavailable()))
        }
    }
}

/// What a request met at one begin.
fn met_by(begun: &AfterBegin) -> Met {
    match begun {
        AfterBegin::Busy(_) => Met::InProgress,
        AfterBegin::Owned(owned) => owned.met(),
        AfterBegin::Tell(met, _) => *met,
        AfterBegin::NoStore(_) => Met::StoreError,
    }
}

/// Reads a request whole, and refuses what may not be begun.
async fn admit<Svc, S, B, R>(
    context: &RequestContext<S>,
    arrived: Box<Arrived<Svc>>,
    body: B,
    (AskedKey { text, digest: key }, caller): (AskedKey, Caller),
) -> Result<Admission<Svc, R>, Refusal>
where
    S: Store,
    B: HttpBody<Data = Bytes>,
    R: HttpBody,
{
    let policy = context.policy();
    let parts = &arrived.parts;
    let id = Id::of(&caller.scope, &key);
    let counters = context.settings.limiter.as_ref().and_then(Limiter::counters);
    if let Some(counters) = &counters {
        counters.admit(&caller, id)?;
    }
    let time_max = after(Instant::now(), policy.request_time_max);
    let hold = context.hold();
    let version = Some(parts.version);
    let bytes_max = policy.request_bytes_max;
    let (body, trailers) = match read(body, version, bytes_max, Some(time_max), hold).await {
        Read::Whole(body, trailers, hold) => (HeldBody::new(body, hold), trailers),
        Read::Over(_) => return Err(Refusal::BodyTooLarge),
        Read::NoRoom(_) => return Err(MemoryBudget::refusal()),
        Read::Late(_) => return Err(Refusal::BodyTimeout),
        Read::Broken(_) => return Err(Refusal::BodyBroken),
    };
    if let Some(response) = context.replay_at_hand(id, key, &caller, parts, &body.data) {
        return Ok(Admission::Answered(response));
    }
    let request_id = request::request_id(parts, &text);
    let request_id = match context.watch.as_ref().and_then(|watch| watch.span()) {
        Some(span) => Some(begin_text(request_id.as_deref(), span)),
        None => request_id,
    };
    let print = Meaning::new(&context.settings, policy, parts, &body.data).current;
    // What may not be executed leaves no record, so it does not count as a new key either.
    let may_execute = context.closed_gate().is_none();
    if let Some(counters) = counters.filter(|counters| may_execute && counters.counts_new_keys()) {
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
    Ok(Admission::Begins(AdmittedRequest { arrived, body, trailers, named }))
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
    let ask = named.ask(policy, &meaning, owner);
    match context.shared.engine.begin_named(named.id, &ask, &settings.flows).await {
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
