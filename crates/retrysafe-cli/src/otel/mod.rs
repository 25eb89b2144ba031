//! Which requests are traced, and where do their spans go?
//!
//! A request has one span, and below it one for each begin, for the exchange with the upstream, and for each settle. Spans go
//! through a bounded queue to one task, which sends them in batches to a collector (OTLP over HTTP). Nothing that serves a request ever
//! waits for the collector: where the queue is full, spans are dropped and counted.
//!
//! Everything is set by the variables that OpenTelemetry has named (`OTEL_…`); without them there is no tracer, and a request
//! costs what it always did.

mod context;
mod exporter;
mod json;
mod protobuf;
mod request_span;
mod sampler;
mod span;
mod variables;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::request::Parts;
use retrysafe_core::trace::TracedSpan;

pub(crate) use request_span::{EndedRequest, OpenSpan, RequestSpan, UpstreamEnd};

use context::CallersContext;
use exporter::SpanQueue;
use request_span::AskedRequest;
use sampler::Sampler;
use variables::TraceSettings;

/// How long a stop waits for the last spans.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// Makes spans of requests. Clones are one tracer.
#[derive(Clone, Debug)]
pub(crate) struct Tracer(Arc<TracerShared>);

#[derive(Debug)]
struct TracerShared {
    sampler: Sampler,
    ids: SpanIds,
    queue: SpanQueue,
}

/// Starts to trace, if the variables say so. What is wrong with them is a warning: a gateway serves without traces, too.
///
/// The present thread must be one of a runtime.
pub(crate) fn start(variables: &BTreeMap<String, String>) -> Option<Tracer> {
    let mut warnings = Vec::new();
    let settings = TraceSettings::read(variables, &mut warnings);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let settings = settings?;
    if !cfg!(feature = "otel") {
        tracing::warn!(
            "OTEL_…: this program was built without its feature `otel`; there are no traces"
        );
        return None;
    }
    let collector = settings.endpoint.host().unwrap_or_default();
    tracing::info!(collector, "traces are sent to a collector");
    let sampler = settings.sampler;
    Some(Tracer(Arc::new(TracerShared {
        sampler,
        ids: SpanIds::new(),
        queue: SpanQueue::start(settings),
    })))
}

impl Tracer {
    /// The span of a request that has just come, in the trace of its caller if it has one.
    pub(crate) fn request(&self, parts: &Parts, is_tls: bool) -> OpenSpan {
        let context = CallersContext::read(&parts.headers);
        let parent = context.as_ref().map(|context| context.span);
        let trace_id = parent.map_or_else(|| self.0.ids.trace_id(), |parent| parent.trace_id);
        let is_parent_sampled = context.as_ref().map(|context| context.is_sampled);
        let is_sampled = self.0.sampler.takes(&trace_id, is_parent_sampled);
        let span = TracedSpan { trace_id, span_id: self.0.ids.span_id() };
        let asked = AskedRequest {
            method: parts.method.clone(),
            path: parts.uri.path().into(),
            is_tls,
            parent: parent.map(|parent| parent.span_id),
            state: context.and_then(|context| context.state),
        };
        OpenSpan::new(RequestSpan::new(self.clone(), span, asked, is_sampled))
    }

    /// Waits until what was traced so far is sent, or for a few seconds.
    pub(crate) async fn flush(&self) {
        // Past that the collector is away, and the spans are lost with the process.
        let _ = tokio::time::timeout(FLUSH_MAX, self.0.queue.flush()).await;
    }
}

/// Makes ids that do not repeat: a random beginning and a count, mixed so that every bit of an id is as good as random.
#[derive(Debug)]
struct SpanIds {
    seeds: [u64; 3],
    count: AtomicU64,
}

impl SpanIds {
    fn new() -> Self {
        let seeds = std::array::from_fn(|_| getrandom::u64().unwrap_or_default());
        Self { seeds, count: AtomicU64::new(0) }
    }

    fn trace_id(&self) -> [u8; 16] {
        let [high, low, _] = self.seeds;
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let id = u128::from(mixed(high, count)) << 64 | u128::from(mixed(low, count));
        id.max(1).to_be_bytes()
    }

    fn span_id(&self) -> [u8; 8] {
        let [_, _, seed] = self.seeds;
        mixed(seed, self.count.fetch_add(1, Ordering::Relaxed)).max(1).to_be_bytes()
    }
}

/// SplitMix64: each count gives another number.
fn mixed(seed: u64, count: u64) -> u64 {
    let mut word = seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_do_not_repeat_and_are_never_zero() {
        let ids = SpanIds::new();
        let spans: HashSet<_> = (0..10_000).map(|_| ids.span_id()).collect();
        let traces: HashSet<_> = (0..10_000).map(|_| ids.trace_id()).collect();
        assert_eq!((spans.len(), traces.len()), (10_000, 10_000));
        assert!(!spans.contains(&[0; 8]) && !traces.contains(&[0; 16]));
    }
}
