//! What would have happened, had the rules been enforced?
//!
//! Observe mode blocks and replays nothing: every request is passed on, and what the rules would have
//! made of it is reported.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use retrysafe_core::problem::Refusal;
use retrysafe_core::scope::{Caller, Id};
use retrysafe_core::store::Store;
use tokio::time::Instant;
use tower_service::Service;

use super::body::{Body, Read, read};
use super::context::{Arrived, AskedKey, RequestContext};
use super::deadline::after;
use super::inner_body::InnerBody;
use super::meaning::Meaning;
use super::memory::MemoryBudget;
use super::response_future::Answered;
use super::run_to_completion::AnswerSlot;

/// A covered request had no key.
pub(super) const UNKEYED: &str = "unkeyed";

/// Passes a keyed request on, and reports what would have become of it.
pub(super) async fn answer_observed<Svc, S, B, R>(
    context: Arc<RequestContext<S>>,
    arrived: Box<Arrived<Svc>>,
    body: B,
    named: (AskedKey, Caller),
    answer: AnswerSlot<Answered<R, Svc::Error>>,
) where
    S: Store,
    Svc: Service<Request<B::Inner>, Response = Response<R>>,
    B: InnerBody,
    R: HttpBody<Data = Bytes>,
{
    let Arrived { mut inner, parts } = *arrived;
    let (key, caller) = named;
    let policy = context.policy();
    let time_max = after(Instant::now(), policy.request_time_max);
    let version = Some(parts.version);
    let bytes_max = policy.request_bytes_max;
    let (finding, body) = match read(body, version, bytes_max, Some(time_max), context.hold()).await
    {
        Read::Whole(body, trailers, hold) => {
            let id = Id::of(&caller.scope, &key.digest);
            let print = Meaning::new(&context.settings, policy, &parts, &body).current;
            let finding = context.shared.observed.see(id, print, caller.mark, policy.ttl);
            (finding, Body::whole(hold.keep(body), trailers))
        }
        Read::Over(body) => (Some(Refusal::BodyTooLarge.code()), body),
        Read::NoRoom(body) => (Some(MemoryBudget::refusal().code()), body),
        Read::Late(body) => (Some(Refusal::BodyTimeout.code()), body),
        Read::Broken(body) => (Some(Refusal::BodyBroken.code()), body),
    };
    if let Some(finding) = finding {
        context.report.observed(finding);
    }
    let response = inner.call(Request::from_parts(parts, B::inner(body))).await;
    answer.give(response.map(|response| response.map(Body::passed)));
}
