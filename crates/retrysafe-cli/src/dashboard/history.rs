//! How did the numbers change lately?
//!
//! The dashboard looks at the metrics every few seconds, whether or not somebody reads it, and at most once in a second however many pages are
//! open: one reader looks, and all who ask meanwhile share what it finds. It keeps the looks of a minute, for rates, and the store's sizes of a day, for its growth. A restart forgets both.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Dashboard;
use super::error::Trouble;
use super::meters::{Buckets, Meters, Numbers};

/// How often the numbers are looked at while nobody asks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How old a look may be that is shown, when somebody asks for it.
const LOOK_AGE_MAX: Duration = Duration::from_secs(1);

/// Over how long rates are taken.
const RATES_OVER: Duration = Duration::from_secs(60);

/// How often the store's size is kept, and for how long.
const SIZE_EVERY: Duration = Duration::from_secs(600);
const SIZES_OVER: Duration = Duration::from_secs(24 * 60 * 60);

/// What the metrics said at one time.
struct Look {
    /// When the metrics were asked for: they are not older than that.
    at: Instant,
    numbers: Numbers,
    executions: Buckets,
    operations: Buckets,
}

/// The looks of the last minute, and the store's sizes of the last day.
#[derive(Default)]
pub(super) struct History {
    looks: VecDeque<Arc<Look>>,
    sizes: VecDeque<StoreSize>,
}

#[derive(Clone, Copy)]
struct StoreSize {
    at: Instant,
    records: f64,
    bytes: f64,
    reaped: f64,
}

/// How much the store has grown over a time.
#[derive(Debug, PartialEq)]
pub(super) struct Growth {
    pub over: Duration,
    pub records: f64,
    pub bytes: f64,
    pub reaped: f64,
}

/// What the metrics say now, and how it changed over the last minute.
#[derive(Clone, Serialize)]
pub(super) struct RecentNumbers {
    #[serde(flatten)]
    pub now: Numbers,
    /// Over how many seconds rates were taken; 0 if there was no earlier look.
    pub over_seconds: f64,
    /// Per second, by the name of the number.
    pub rates: BTreeMap<&'static str, f64>,
    /// Within how many seconds so many of the executions, or of the store's operations, ended: at the most.
    pub execution_half: Option<f64>,
    pub execution_most: Option<f64>,
    pub operation_half: Option<f64>,
    pub operation_most: Option<f64>,
}

impl History {
    fn add(&mut self, look: Arc<Look>) {
        let at = look.at;
        let Numbers { records, store_bytes, reaped, .. } = look.numbers;
        let size = StoreSize {
            at,
            records: records.unwrap_or_default(),
            bytes: store_bytes.unwrap_or_default(),
            reaped,
        };
        if self.sizes.back().is_none_or(|last| at - last.at >= SIZE_EVERY) {
            self.sizes.push_back(size);
        }
        while self.sizes.front().is_some_and(|first| at - first.at > SIZES_OVER) {
            self.sizes.pop_front();
        }
        self.looks.push_back(look);
        // The first one is as old as rates need it, or all are younger.
        while self.looks.get(1).is_some_and(|second| at - second.at >= RATES_OVER) {
            self.looks.pop_front();
        }
    }

    /// The last look, if it is young enough for whoever asked at this time. One that began later is, too: its reader has waited for it.
    fn fresh(&self, asked_at: Instant) -> Option<RecentNumbers> {
        let is_fresh =
            |last: &&Arc<Look>| asked_at.saturating_duration_since(last.at) < LOOK_AGE_MAX;
        let last = self.looks.back().filter(is_fresh)?;
        Some(self.recent(last))
    }

    fn recent(&self, last: &Look) -> RecentNumbers {
        let first = self.looks.front().filter(|first| first.at < last.at);
        let over_seconds = first.map_or(0.0, |first| (last.at - first.at).as_secs_f64());
        let rates = first.map(|first| {
            let before = first.numbers.counts();
            let changes = last.numbers.counts().into_iter().zip(before);
            changes
                .map(|((name, now), (_, before))| (name, (now - before).max(0.0) / over_seconds))
                .collect()
        });
        let executed = |share| last.executions.within(first.map(|it| &it.executions), share);
        let operated = |share| last.operations.within(first.map(|it| &it.operations), share);
        RecentNumbers {
            now: last.numbers.clone(),
            over_seconds,
            rates: rates.unwrap_or_default(),
            execution_half: executed(0.5),
            execution_most: executed(0.99),
            operation_half: operated(0.5),
            operation_most: operated(0.99),
        }
    }

    /// How the store has grown over an hour and over a day, or since the process began.
    pub(super) fn growth(&self) -> Vec<Growth> {
        let Some(last) = self.looks.back() else { return Vec::new() };
        let mut shown: Vec<Growth> = Vec::new();
        for span in [Duration::from_secs(3_600), SIZES_OVER] {
            let oldest = self.sizes.iter().find(|size| last.at - size.at <= span);
            let Some(before) = oldest else { continue };
            let growth = Growth {
                over: last.at - before.at,
                records: last.numbers.records.unwrap_or_default() - before.records,
                bytes: last.numbers.store_bytes.unwrap_or_default() - before.bytes,
                reaped: last.numbers.reaped - before.reaped,
            };
            if !shown.contains(&growth) {
                shown.push(growth);
            }
        }
        shown
    }
}

impl Dashboard {
    /// What the metrics say, not older than a second when it is asked for. Of many readers at once one looks.
    pub(super) async fn numbers(&self) -> Result<RecentNumbers, Trouble> {
        let asked_at = Instant::now();
        if let Some(fresh) = self.kept().fresh(asked_at) {
            return Ok(fresh);
        }
        // A reader that goes away while it looks gives its turn to the next one.
        let _turn = self.looking.lock().await;
        if let Some(shared) = self.kept().fresh(asked_at) {
            return Ok(shared);
        }
        let at = Instant::now();
        let meters = Meters::read(&self.api.metrics().await?);
        let look = Arc::new(Look {
            at,
            numbers: meters.numbers(),
            executions: meters.executions(),
            operations: meters.operations(),
        });
        let mut history = self.kept();
        history.add(Arc::clone(&look));
        Ok(history.recent(&look))
    }

    fn kept(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn growth(&self) -> Vec<Growth> {
        self.kept().growth()
    }
}

/// Looks at the numbers for as long as there is a dashboard.
pub(super) async fn watch(dashboard: Weak<Dashboard>) {
    while let Some(dashboard) = dashboard.upgrade() {
        // Whoever reads the next page hears of a failure.
        let _ = dashboard.numbers().await;
        drop(dashboard);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::routing::get;
    use tokio::sync::Semaphore;

    use super::super::api::AdminApi;
    use super::super::session::Sessions;
    use super::*;

    /// A dashboard over metrics that count how often they are read, and are answered when the gate is open.
    fn dashboard(reads: &Arc<AtomicUsize>, gate: &Arc<Semaphore>) -> Arc<Dashboard> {
        let reads = Arc::clone(reads);
        let gate = Arc::clone(gate);
        let metrics = get(async move || {
            reads.fetch_add(1, Ordering::Relaxed);
            let _passed = gate.acquire().await;
            "retrysafe_unknown 3\n"
        });
        Arc::new(Dashboard {
            api: AdminApi::new(Router::new().route("/metrics", metrics)),
            sessions: Sessions::default(),
            history: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        })
    }

    /// Each open page asked for the same numbers at the same time, and each made the whole text of the metrics and read it.
    #[tokio::test]
    async fn of_many_readers_at_once_one_looks_and_all_share_what_it_finds() {
        let reads = Arc::<AtomicUsize>::default();
        let gate = Arc::new(Semaphore::new(0));
        let dashboard = dashboard(&reads, &gate);
        // On one thread tasks run in their order: each reader asks before the gate is opened.
        let readers: Vec<_> = (0..20)
            .map(|_| {
                let dashboard = Arc::clone(&dashboard);
                tokio::spawn(async move { dashboard.numbers().await })
            })
            .collect();
        // The first one goes away while it looks: somebody else does it.
        tokio::task::yield_now().await;
        readers[0].abort();
        tokio::task::yield_now().await;
        gate.add_permits(1);
        for (number, reader) in readers.into_iter().enumerate() {
            match reader.await {
                Ok(numbers) => assert_eq!(numbers.unwrap().now.unknown, 3.0),
                Err(error) => assert!(number == 0 && error.is_cancelled()),
            }
        }
        assert_eq!(reads.load(Ordering::Relaxed), 2, "the one that went away, and one for all");
    }

    fn look(at: Instant, requests: f64, records: f64) -> Arc<Look> {
        let numbers = Numbers {
            requests,
            records: Some(records),
            store_bytes: Some(records * 10.0),
            ..Numbers::default()
        };
        Arc::new(Look {
            at,
            numbers,
            executions: Buckets::default(),
            operations: Buckets::default(),
        })
    }

    #[test]
    fn rates_are_those_of_the_last_minute() {
        let start = Instant::now();
        let mut history = History::default();
        for second in 0..200 {
            let at = start + Duration::from_secs(second);
            history.add(look(at, second as f64 * 7.0, 0.0));
        }
        let last = history.looks.back().unwrap().clone();
        let recent = history.recent(&last);
        assert_eq!((recent.over_seconds, recent.rates["requests"]), (60.0, 7.0));
        assert_eq!(history.looks.len(), 61, "older looks are not kept");
        assert!(history.fresh(last.at + LOOK_AGE_MAX).is_none(), "too old for a new reader");
        assert!(
            history.fresh(last.at - LOOK_AGE_MAX).is_some(),
            "whoever has waited for it takes it"
        );
    }

    #[test]
    fn growth_is_told_over_an_hour_and_a_day_and_only_that_is_kept() {
        let start = Instant::now();
        let mut history = History::default();
        history.add(look(start, 0.0, 5.0));
        let since_start = history.growth();
        assert_eq!(since_start.len(), 1, "an hour and a day are the same at the start");
        for minutes in 0..3_000 {
            let at = start + Duration::from_secs(minutes * 60);
            history.add(look(at, 0.0, minutes as f64));
        }
        let grown: Vec<f64> = history.growth().iter().map(|growth| growth.records).collect();
        assert!(
            (50.0..=60.0).contains(&grown[0]) && (1_400.0..=1_440.0).contains(&grown[1]),
            "{grown:?}"
        );
        assert!(history.sizes.len() <= 146, "{}", history.sizes.len());
    }
}
