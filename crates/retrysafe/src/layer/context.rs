//! What is known of one request, what is it judged by, and where is it reported?

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderMap;
use http::request::Parts;
use retrysafe_core::engine::Ask;
use retrysafe_core::event::Met;
use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::key::{Key, KeyDigest};
use retrysafe_core::policy::Policy;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{About, Standing};
use retrysafe_core::scope::{Caller, Id, Scope};
use retrysafe_core::store::{Stamped, Store};
use retrysafe_core::trace::TracedSpan;
use tokio::time::Instant;

use super::deadline::after;
use super::gate::ExecutionGate;
use super::memory::{ConnectionShare, ExecutionSlot, HeldBody, Hold, MemoryBudget};
use super::report::Report;
use super::run_to_completion::MustEnd;
use super::settings::{RoutePolicy, Settings};
use super::shared::LayerShared;
use super::watch::{RequestWatch, WatchedStep};

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

/// The key of a request, and what stands for it.
#[derive(Clone, Debug)]
pub(super) struct AskedKey {
    pub text: Key,
    pub digest: KeyDigest,
}

impl From<Key> for AskedKey {
    fn from(text: Key) -> Self {
        let digest = text.digest();
        Self { text, digest }
    }
}

/// Whose request it is, and what it means.
pub(super) struct NamedRequest {
    pub id: Id,
    pub key: KeyDigest,
    pub caller: Caller,
    pub print: Fingerprint,
    pub about: About,
    /// The id by which logs know the request, and its span, if it is traced.
    pub request_id: Option<Box<str>>,
}

impl NamedRequest {
    /// What the engine is asked about this request, by an owner of this number.
    pub(super) fn ask<'a, P>(&'a self, policy: &Policy, prints: &'a P, owner: u64) -> Ask<'a, P> {
        Ask {
            scope: &self.caller.scope,
            mark: self.caller.mark,
            key: self.key,
            prints,
            about: &self.about,
            ttl: policy.ttl,
            lease: policy.lease,
            owner,
            request_id: self.request_id.as_deref(),
        }
    }
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
    /// Who follows the request, if it is traced.
    pub watch: Option<Arc<dyn RequestWatch>>,
    /// Who knows whether the request may be executed, if anybody does.
    pub gate: Option<Arc<dyn ExecutionGate>>,
    /// Whether somebody may answer the next one with the same bytes.
    pub is_repeatable: bool,
    pub must_end: MustEnd,
    /// The zero of this request's own clock.
    pub arrived_at: Instant,
}

impl<S> RequestContext<S> {
    pub(super) fn policy(&self) -> &Policy {
        &self.route.policy
    }

    /// What the request is told if it would be executed; none where it may be.
    pub(super) fn closed_gate(&self) -> Option<Refusal> {
        self.gate.as_ref()?.closed()
    }

    /// This request's own clock.
    pub(super) fn now(&self) -> Duration {
        self.arrived_at.elapsed()
    }

    /// The moment at which this request's own clock shows this.
    pub(super) fn moment(&self, reading: Duration) -> Instant {
        after(self.arrived_at, reading)
    }

    /// Reports what a request met.
    pub(super) fn met(&self, met: Met, request: &NamedRequest) {
        self.met_by(met, request.key, &request.caller.scope);
    }

    /// Reports what a request with this key of this caller met.
    pub(super) fn met_by(&self, met: Met, key: KeyDigest, scope: &Scope) {
        self.report.met(met, key);
        if let Some(tally) = &self.settings.tally {
            tally.met(met, scope);
        }
    }

    /// Tells whoever follows the request in which span the execution was that it repeats.
    pub(super) fn tell_what_is_replayed(&self, span: Option<TracedSpan>) {
        if let (Some(watch), Some(span)) = (&self.watch, span) {
            watch.replays(span);
        }
    }

    /// Tells whoever follows the request that a step has ended, which began when its clock showed this.
    pub(super) fn stepped(&self, step: WatchedStep, started: Duration) {
        if let Some(watch) = &self.watch {
            watch.stepped(step, self.now().saturating_sub(started));
        }
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
