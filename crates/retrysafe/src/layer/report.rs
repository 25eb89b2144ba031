//! What is reported, and where?
//!
//! Counters through the `metrics` facade and events through `tracing`, under the names of
//! [`event`]. A [`Report`] gathers what one route reports; its handles are taken at the route's
//! first request, so install a recorder before the server is opened. No key, body or credential
//! ever gets here: a record is named by the short digest of its key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, Histogram};
use retrysafe_core::engine::Settled;
use retrysafe_core::event::{self, Met};
use retrysafe_core::key::KeyDigest;
use retrysafe_core::record::{Outcome, Standing};

/// How many routes are told apart. Labels come from configuration, so this is never reached by
/// anybody's requests; a caller of ours that labels by path must not fill the memory either.
const ROUTES_MAX: usize = 1_024;

/// The label of all routes past that bound.
const OTHER: &str = "other";

/// How much one execution changes a route's usual latency: an eighth.
const WEIGHT: u64 = 8;

/// What one route reports, and what is usual there.
#[derive(Debug)]
pub(super) struct Report {
    label: Arc<str>,
    begin: [Counter; Met::ALL.len()],
    settled: [Counter; Standing::ALL.len()],
    contradictions: Counter,
    execute: Histogram,
    usual_us: AtomicU64,
}

/// The reports of all routes.
#[derive(Debug, Default)]
pub(super) struct Reports(RwLock<HashMap<Arc<str>, Arc<Report>>>);

impl Reports {
    pub(super) fn of(&self, label: &str) -> Arc<Report> {
        if let Some(report) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(label) {
            return Arc::clone(report);
        }
        let mut reports = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let label = if reports.len() < ROUTES_MAX { label.into() } else { OTHER.into() };
        let report = reports.entry(label).or_insert_with_key(|label| Arc::new(Report::new(label)));
        Arc::clone(report)
    }
}

impl Report {
    fn new(label: &Arc<str>) -> Self {
        let route = || Arc::clone(label);
        Self {
            label: route(),
            begin: Met::ALL.map(|met| {
                metrics::counter!(event::BEGIN.name, "route" => route(), "answer" => met.name())
            }),
            settled: Standing::ALL.map(|standing| {
                let standing = standing.name();
                metrics::counter!(event::SETTLED.name, "route" => route(), "standing" => standing)
            }),
            contradictions: metrics::counter!(event::CONTRADICTIONS.name, "route" => route()),
            execute: metrics::histogram!(event::EXECUTE_SECONDS.name, "route" => route()),
            usual_us: AtomicU64::new(0),
        }
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// A keyed request met this.
    pub(super) fn met(&self, met: Met, key: KeyDigest) {
        if let Some(counter) = self.begin.get(met as usize) {
            counter.increment(1);
        }
        tracing::debug!(target: "retrysafe", route = &*self.label, key = %key, answer = met.name(), "begin");
    }

    /// A refusal is sent.
    pub(super) fn refused(&self, code: &'static str) {
        let route = Arc::clone(&self.label);
        metrics::counter!(event::REFUSALS.name, "route" => route, "code" => code).increment(1);
        tracing::debug!(target: "retrysafe", route = &*self.label, code, "refused");
    }

    /// A handler took this long.
    pub(super) fn executed(&self, took: Duration) {
        self.execute.record(took);
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let usual = self.usual_us.load(Ordering::Relaxed);
        // Two ends at once may lose one of them; an average does not mind.
        let next = if usual == 0 { took } else { usual - usual / WEIGHT + took / WEIGHT };
        self.usual_us.store(next.max(1), Ordering::Relaxed);
    }

    /// How long an execution usually takes here; zero before the first has ended.
    pub(super) fn usual(&self) -> Duration {
        Duration::from_micros(self.usual_us.load(Ordering::Relaxed))
    }

    /// An execution was settled, or came too late for it.
    pub(super) fn settled(&self, key: KeyDigest, outcome: &Outcome, settled: &Settled) {
        let standing = outcome.standing();
        if let Some(counter) = self.settled.get(standing as usize) {
            counter.increment(1);
        }
        let route = &*self.label;
        let standing = standing.name();
        match settled {
            Settled::Done(_) => {
                tracing::debug!(target: "retrysafe", route, key = %key, standing, "settled");
            }
            Settled::Lost { contradiction, .. } => {
                let label = Arc::clone(&self.label);
                metrics::counter!(event::LATE.name, "route" => label).increment(1);
                if *contradiction {
                    self.contradictions.increment(1);
                }
                tracing::warn!(target: "retrysafe", route, key = %key, standing, contradiction, "late_settle");
            }
        }
    }

    /// A settle could not be made durable in time; it is tried on.
    pub(super) fn not_durable(&self, key: KeyDigest) {
        tracing::error!(target: "retrysafe", route = &*self.label, key = %key, "not_durable");
    }

    /// A lease was lost while its handler was running.
    pub(super) fn lease_lost(&self, key: KeyDigest) {
        tracing::warn!(target: "retrysafe", route = &*self.label, key = %key, "lease_lost");
    }

    /// A handler panicked.
    pub(super) fn panicked(&self, key: KeyDigest) {
        tracing::error!(target: "retrysafe", route = &*self.label, key = %key, "panicked");
    }

    /// An ambiguous begin was taken back, or could not be.
    pub(super) fn withdrawn(&self, key: KeyDigest, done: bool) {
        tracing::info!(target: "retrysafe", route = &*self.label, key = %key, done, "withdrawn");
    }

    /// An observed request would have been treated otherwise.
    pub(super) fn observed(&self, finding: &'static str) {
        let route = Arc::clone(&self.label);
        metrics::counter!(event::OBSERVED.name, "route" => route, "finding" => finding)
            .increment(1);
        tracing::info!(target: "retrysafe", route = &*self.label, finding, "observed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_the_order_of_their_counters() {
        for (at, met) in Met::ALL.into_iter().enumerate() {
            assert_eq!(met as usize, at);
        }
        for (at, standing) in Standing::ALL.into_iter().enumerate() {
            assert_eq!(standing as usize, at);
        }
    }

    #[test]
    fn the_usual_latency_follows_what_happens() {
        let report = Report::new(&"r".into());
        assert_eq!(report.usual(), Duration::ZERO);
        report.executed(Duration::from_secs(8));
        assert_eq!(report.usual(), Duration::from_secs(8));
        report.executed(Duration::ZERO);
        assert_eq!(report.usual(), Duration::from_secs(7));
        for _ in 0..200 {
            report.executed(Duration::from_millis(100));
        }
        assert!(report.usual() < Duration::from_millis(110));
    }

    #[test]
    fn labels_are_bounded() {
        let reports = Reports::default();
        for at in 0..ROUTES_MAX * 2 {
            reports.of(&at.to_string());
        }
        assert!(reports.0.read().unwrap().len() <= ROUTES_MAX + 1);
        assert_eq!(reports.of("another").label(), OTHER);
    }
}
