//! Which requests may be begun?
//!
//! A request is read whole and everything is refused that may not be begun. Nothing is written before
//! the end of this.

use bytes::Bytes;
use http::header::HeaderMap;
use http::request::Parts;
use http_body::Body as HttpBody;
use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::key::{Key, KeyDigest};
use retrysafe_core::policy::OnStoreError;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::About;
use retrysafe_core::scope::{Caller, Id};
use retrysafe_core::store::Store;
use tokio::time::Instant;

use super::body::{Read, read};
use super::context::RequestContext;
use super::deadline::after;
use super::limits::Limiter;
use super::meaning::Meaning;
use super::memory::{HeldBody, MemoryBudget};
use super::request;

/// A request as it came in, and the service that was made ready for it. It is large and handed from
/// one future to the next, so it is kept in a box.
pub(super) struct Arrived<Svc> {
    pub inner: Svc,
    pub parts: Parts,
}

/// A request that was read whole and may be begun.
pub(super) struct AdmittedRequest<Svc> {
    pub arrived: Box<Arrived<Svc>>,
    pub body: HeldBody,
    pub trailers: Option<HeaderMap>,
    pub named: NamedRequest,
}

/// Whose request it is, and what it means.
pub(super) struct NamedRequest {
    pub id: Id,
    pub key: KeyDigest,
    pub caller: Caller,
    pub print: Fingerprint,
    pub about: About,
    /// The id by which logs know the request.
    pub request_id: Option<Box<str>>,
}

/// Reads a request whole, and refuses what may not be begun.
pub(super) async fn admit<Svc, S, B>(
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
