//! What is known of one request, what is it judged by, and where is it reported?

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderMap;
use http::request::Parts;
use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::policy::Policy;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{About, Standing};
use retrysafe_core::scope::{Caller, Id};
use retrysafe_core::store::{Stamped, Store};
use tokio::time::Instant;

use super::deadline::after;
use super::memory::{ConnectionShare, ExecutionSlot, HeldBody, Hold, MemoryBudget};
use super::report::Report;
use super::run_to_completion::MustEnd;
use super::settings::{RoutePolicy, Settings};
use super::shared::LayerShared;

/// The least that `Retry-After` says: less would invite a tight loop.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

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

/// What one request is judged by and reported to.
#[derive(Debug)]
pub(super) struct RequestContext<S> {
    pub settings: Arc<Settings>,
    pub shared: Arc<LayerShared<S>>,
    pub route: Arc<RoutePolicy>,
    pub report: Arc<Report>,
    /// What the request's connection holds, where that is counted.
    pub share: Option<ConnectionShare>,
    pub must_end: MustEnd,
    /// The zero of this request's own clock.
    pub arrived_at: Instant,
}

impl<S> RequestContext<S> {
    pub(super) fn policy(&self) -> &Policy {
        &self.route.policy
    }

    /// This request's own clock.
    pub(super) fn now(&self) -> Duration {
        self.arrived_at.elapsed()
    }

    /// The moment at which this request's own clock shows this.
    pub(super) fn moment(&self, reading: Duration) -> Instant {
        after(self.arrived_at, reading)
    }

    /// What counts the body of a request.
    pub(super) fn hold(&self) -> Hold {
        Hold::of_body(self.settings.memory.as_ref(), self.share.as_ref())
    }

    /// When a running request should have ended: what is usual on its route less what has passed,
    /// at most until its lease ends.
    pub(super) fn pace(&self, id: Id, left: Duration) -> Duration {
        let passed = self.shared.running.elapsed(id).unwrap_or_default();
        let usual = self.report.usual().saturating_sub(passed);
        usual.min(left).max(RETRY_AFTER_MIN)
    }
}

impl<S: Store> RequestContext<S> {
    /// The right to one execution; none where their number is not bounded, or where this request
    /// finds a record that answers it.
    pub(super) async fn execution_slot(&self, id: Id) -> Result<Option<ExecutionSlot>, Refusal> {
        let Some(memory) = &self.settings.memory else { return Ok(None) };
        if let Some(slot) = memory.execution_slot() {
            return Ok(Some(slot));
        }
        match self.shared.engine.look(id).await {
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

    pub(super) fn store_unavailable(&self) -> Refusal {
        Refusal::StoreUnavailable { retry_after: self.shared.engine.store().retry_after() }
    }
}
