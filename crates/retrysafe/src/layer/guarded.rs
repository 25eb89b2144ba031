//! How long may a store take, and when is it not asked at all?
//!
//! A [`Guarded`] store is a store with a time limit on every call and a breaker in front. A write
//! that ran out of time may have been applied; one that the breaker refused surely was not.

use std::future::Future;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use metrics::Histogram;
use retrysafe_core::event;
use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    ChangeHint, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError, StoreErrorKind,
    Swapped, Voucher,
};
use retrysafe_core::time::Time;
use tokio::time::Instant;

/// How long one call of the store may take, unless set otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);

/// After this many failures in a row the store counts as dead.
const FAILURES_MAX: u32 = 5;

/// How often a dead store is tried again. One request pays for each try.
const PROBE_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
enum Operation {
    Insert,
    Load,
    Swap,
    Scan,
    Reap,
}

/// A store with a time limit and a breaker.
#[derive(Debug)]
pub(super) struct Guarded<S> {
    store: S,
    timeout_ms: AtomicU64,
    breaker: Breaker,
    seconds: OnceLock<[Histogram; 5]>,
}

/// Failures in a row, and when a dead store may be tried again. There is no state "half open" that
/// a dropped probe could leave behind: a probe only puts off the next one.
#[derive(Debug, Default)]
struct Breaker {
    failures: AtomicU32,
    next_probe: Mutex<Option<Instant>>,
}

impl<S: Store> Guarded<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            timeout_ms: AtomicU64::new(TIMEOUT.as_millis() as u64),
            breaker: Breaker::default(),
            seconds: OnceLock::new(),
        }
    }

    /// How long one call may take from now on.
    pub(super) fn set_timeout(&self, timeout: Duration) {
        let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.timeout_ms.store(ms, Ordering::Relaxed);
    }

    /// When it is worth to ask again.
    pub(super) fn retry_after(&self) -> Duration {
        self.breaker.retry_after()
    }

    async fn call<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if !self.breaker.lets_through() {
            return Err(StoreError::not_applied(StoreErrorKind::Unavailable));
        }
        let started = Instant::now();
        let limit = Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed));
        let result = match tokio::time::timeout(limit, call).await {
            Ok(result) => result,
            Err(_) if operation.writes() => {
                Err(StoreError::maybe_applied(StoreErrorKind::Unavailable).because("too slow"))
            }
            Err(_) => Err(StoreError::not_applied(StoreErrorKind::Unavailable).because("too slow")),
        };
        self.seconds(operation).record(started.elapsed());
        match &result {
            Err(error) => {
                self.breaker.failed(error.kind());
                let operation = operation.name();
                let kind = error.kind().name();
                metrics::counter!(event::STORE_ERRORS.name, "operation" => operation, "kind" => kind)
                    .increment(1);
                tracing::warn!(target: "retrysafe", operation, kind, %error, "store_error");
            }
            Ok(_) => self.breaker.succeeded(),
        }
        result
    }

    fn seconds(&self, operation: Operation) -> &Histogram {
        let [insert, load, swap, scan, reap] = self.seconds.get_or_init(|| {
            Operation::ALL.map(|operation| {
                metrics::histogram!(event::STORE_SECONDS.name, "operation" => operation.name())
            })
        });
        match operation {
            Operation::Insert => insert,
            Operation::Load => load,
            Operation::Swap => swap,
            Operation::Scan => scan,
            Operation::Reap => reap,
        }
    }
}

// Each call of the store is boxed: it holds whole records, and every future around it would grow by
// as much.
impl<S: Store> Store for Guarded<S> {
    fn insert(&self, first: First) -> impl Future<Output = Result<Stamped<Inserted>, StoreError>> {
        self.call(Operation::Insert, Box::pin(self.store.insert(first)))
    }

    fn load(&self, id: Id) -> impl Future<Output = Result<Stamped<Option<Record>>, StoreError>> {
        self.call(Operation::Load, Box::pin(self.store.load(id)))
    }

    fn swap(
        &self,
        from: Record,
        write: Write,
    ) -> impl Future<Output = Result<Stamped<Swapped>, StoreError>> {
        self.call(Operation::Swap, Box::pin(self.store.swap(from, write)))
    }

    fn load_unless(
        &self,
        id: Id,
        version: u64,
    ) -> impl Future<Output = Result<Stamped<LoadedUnless>, StoreError>> {
        self.call(Operation::Load, Box::pin(self.store.load_unless(id, version)))
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        self.store.change_hint(id)
    }

    /// Not where the store counts as dead: then it is for a call to find out whether it is back.
    fn voucher(&self) -> Option<&dyn Voucher> {
        let may_vouch = !self.breaker.is_open() && self.store.voucher().is_some();
        may_vouch.then_some(self)
    }

    fn scan(&self, query: Query) -> impl Future<Output = Result<Stamped<Page>, StoreError>> {
        self.call(Operation::Scan, Box::pin(self.store.scan(query)))
    }

    fn reap(&self, limit: usize) -> impl Future<Output = Result<Stamped<usize>, StoreError>> {
        self.call(Operation::Reap, Box::pin(self.store.reap(limit)))
    }

    /// Past the breaker: no request asks this, and the answer must be the store's own.
    fn probe(&self) -> impl Future<Output = Result<Stamped<()>, StoreError>> {
        self.store.probe()
    }
}

/// Counts like every other call: a store that vouches is there.
impl<S: Store> Voucher for Guarded<S> {
    fn vouch(&self, id: Id, version: u64) -> Option<Time> {
        let now = self.store.voucher()?.vouch(id, version)?;
        self.breaker.succeeded();
        Some(now)
    }

    fn at_hand(&self, id: Id) -> Option<Record> {
        self.store.voucher()?.at_hand(id)
    }
}

impl Breaker {
    fn is_open(&self) -> bool {
        self.failures.load(Ordering::Acquire) >= FAILURES_MAX
    }

    fn lets_through(&self) -> bool {
        if !self.is_open() {
            return true;
        }
        let now = Instant::now();
        let mut next_probe = self.next_probe.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = next_probe.is_none_or(|at| at <= now);
        if is_time {
            *next_probe = Some(now + PROBE_EVERY);
        }
        is_time
    }

    fn succeeded(&self) {
        if self.failures.load(Ordering::Acquire) > 0
            && self.failures.swap(0, Ordering::AcqRel) >= FAILURES_MAX
        {
            metrics::gauge!(event::BREAKER_OPEN.name).set(0.0);
            tracing::info!(target: "retrysafe", "breaker_closed");
        }
    }

    /// Only a store that is out of reach counts. A store that is full or grants nothing new still reads
    /// and settles, and a damaged record says nothing about the others.
    fn failed(&self, kind: StoreErrorKind) {
        match kind {
            StoreErrorKind::Unavailable => {}
            StoreErrorKind::Full
            | StoreErrorKind::Held
            | StoreErrorKind::Damaged
            | StoreErrorKind::Broken => return,
        }
        let failures = self.failures.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        if failures == FAILURES_MAX {
            *self.next_probe.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Instant::now() + PROBE_EVERY);
            metrics::gauge!(event::BREAKER_OPEN.name).set(1.0);
            tracing::warn!(target: "retrysafe", "breaker_opened");
        }
    }

    fn retry_after(&self) -> Duration {
        if !self.is_open() {
            return PROBE_EVERY;
        }
        let next_probe = self.next_probe.lock().unwrap_or_else(PoisonError::into_inner);
        next_probe.map(|at| at.saturating_duration_since(Instant::now())).unwrap_or(PROBE_EVERY)
    }
}

impl Operation {
    const ALL: [Self; 5] = [Self::Insert, Self::Load, Self::Swap, Self::Scan, Self::Reap];

    const fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Load => "load",
            Self::Swap => "swap",
            Self::Scan => "scan",
            Self::Reap => "reap",
        }
    }

    const fn writes(self) -> bool {
        match self {
            Self::Insert | Self::Swap | Self::Reap => true,
            Self::Load | Self::Scan => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_dead_store_is_tried_once_a_second() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            assert!(breaker.lets_through());
            breaker.failed(StoreErrorKind::Unavailable);
        }
        assert!(!breaker.lets_through());
        assert_eq!(breaker.retry_after(), PROBE_EVERY);
        tokio::time::advance(PROBE_EVERY).await;
        assert!(breaker.lets_through());
        assert!(!breaker.lets_through(), "one probe, whatever becomes of it");
        breaker.succeeded();
        assert!(breaker.lets_through());
    }

    #[test]
    fn only_a_store_out_of_reach_counts() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES_MAX * 2 {
            breaker.failed(StoreErrorKind::Damaged);
            breaker.failed(StoreErrorKind::Full);
            breaker.failed(StoreErrorKind::Held);
        }
        assert!(breaker.lets_through());
        for _ in 0..FAILURES_MAX * 2 {
            breaker.failed(StoreErrorKind::Unavailable);
            breaker.succeeded();
        }
        assert!(breaker.lets_through(), "only failures in a row count");
    }
}
