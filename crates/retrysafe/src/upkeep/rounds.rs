//! Which unknown records are asked about now?

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use retrysafe_core::engine::Engine;
use retrysafe_core::event;
use retrysafe_core::policy::Absence;
use retrysafe_core::record::{Fence, Record};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Store, StoreError};
use retrysafe_core::time::Time;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::question::{Asked, Learned, Question, Turn, absence, provider};
use super::reconciler::Reconciler;
use crate::lookup_throttle::LookupThrottle;
use crate::schedule::{LookupTurn, Schedule};

/// How many lookups out of turn are under way at once: people ask one after the other, and a script that does not must not
/// hold up the schedule.
const OUT_OF_TURN_AT_ONCE: usize = 4;

/// What one round of reconciliation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reconciled {
    /// Records that were asked about.
    pub asked: usize,
    /// Records that were decided.
    pub resolved: usize,
    /// Unknown records whose schedule is used up.
    pub dead_lettered: usize,
    /// Records that could not be read or written.
    pub failed: usize,
}

/// What became of a lookup out of turn.
#[derive(Clone, Debug)]
pub enum AskedNow {
    /// It was asked about.
    Asked(LookupNow),
    /// It is not unknown: this is the record.
    NotUnknown(Box<Record>),
    /// No reconciler can be asked about it.
    NobodyToAsk,
    /// There is no such record.
    Absent,
    /// Too many are asked about at this moment.
    Busy,
}

/// What a lookup out of turn has found.
#[derive(Clone, Debug)]
pub struct LookupNow {
    /// What was learned, in words.
    pub found: Box<str>,
    /// The beginning of what was answered.
    pub excerpt: Option<Box<str>>,
    /// The record, if it was decided by that.
    pub resolved: Option<Box<Record>>,
}

/// Asks one reconciler about the unknown records of one store, round after round.
pub struct Reconciliation<S, R> {
    engine: Arc<Engine<S>>,
    reconciler: Arc<R>,
    schedule: Schedule,
    /// Since when this process has seen them unknown.
    sighted: Mutex<HashMap<(Id, Fence), Instant>>,
    out_of_turn: Semaphore,
    throttle: Arc<LookupThrottle<Turn>>,
    /// How many records the gauge of dead letters has from here. Several reconciliations share the gauge.
    dead_lettered: AtomicUsize,
}

impl<S: Store, R: Reconciler> Reconciliation<S, R> {
    /// Nothing is asked before the first [round](Self::round).
    pub fn new(engine: Arc<Engine<S>>, reconciler: R, schedule: Schedule) -> Self {
        let reconciler = Arc::new(reconciler);
        let sighted = Mutex::default();
        let out_of_turn = Semaphore::new(OUT_OF_TURN_AT_ONCE);
        let throttle = Arc::default();
        let dead_lettered = AtomicUsize::new(0);
        Self { engine, reconciler, schedule, sighted, out_of_turn, throttle, dead_lettered }
    }

    /// Asks once about every unknown record that is due.
    ///
    /// # Errors
    ///
    /// The store's, if it cannot even be read.
    pub async fn round(&self) -> Result<Reconciled, StoreError> {
        let mut done = Reconciled::default();
        let mut query = self.schedule.query();
        let mut under_way = JoinSet::new();
        let mut present = HashMap::new();
        let mut next_at = Instant::now();
        loop {
            let page = self.engine.store().scan(query.clone()).await?;
            done.failed += page.value.damaged.len();
            for record in page.value.records {
                let first = self.first_sight(&record);
                present.insert((record.id, record.fence), first);
                match self.turn(&record, page.now, first) {
                    LookupTurn::Later | LookupTurn::Decided => {}
                    LookupTurn::DeadLettered => done.dead_lettered += 1,
                    LookupTurn::Due if self.is_closed_about(&record) => {}
                    LookupTurn::Due => {
                        done.asked += 1;
                        metrics::counter!(event::RECONCILE_SCHEDULED.name).increment(1);
                        while under_way.len() >= self.schedule.at_once.max(1) {
                            done.note(under_way.join_next().await);
                        }
                        tokio::time::sleep_until(next_at).await;
                        next_at = Instant::now() + self.schedule.gap();
                        under_way.spawn(self.question(record, first, true).ask());
                    }
                }
            }
            match page.value.next {
                Some(cursor) => query.after = Some(cursor),
                None => break,
            }
        }
        while !under_way.is_empty() {
            done.note(under_way.join_next().await);
        }
        // Only after a whole scan: what it did not show is not unknown any more.
        self.throttle.keep_turns(|(id, fence, _)| present.contains_key(&(*id, *fence)));
        *self.sighted.lock().unwrap_or_else(PoisonError::into_inner) = present;
        self.report_dead_letters(done.dead_lettered);
        Ok(done)
    }

    /// Asks about one record at once, whatever the schedule says, and uses up nothing of it: a person wants to know.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn ask_now(&self, id: Id) -> Result<AskedNow, StoreError> {
        let Ok(_permit) = self.out_of_turn.try_acquire() else { return Ok(AskedNow::Busy) };
        let loaded = self.engine.look(id).await?;
        let Some(record) = loaded.value else { return Ok(AskedNow::Absent) };
        if record.unknown_since().is_none() {
            return Ok(AskedNow::NotUnknown(Box::new(record)));
        }
        if !self.concerns(&record) {
            return Ok(AskedNow::NobodyToAsk);
        }
        metrics::counter!(event::RECONCILE_OUT_OF_TURN.name).increment(1);
        let first = self.first_sight(&record);
        let Learned { asked, found, excerpt } = self.question(record, first, false).ask().await;
        let resolved = match asked {
            Asked::Resolved(record) => Some(record),
            Asked::StillUnknown => None,
            Asked::Failed(error) => return Err(error),
        };
        Ok(AskedNow::Asked(LookupNow { found, excerpt, resolved }))
    }

    /// The schedule's turn. Where an absence is proof, the last lookup waits until it can be: a
    /// process that was down for long would else ask for nothing, and leave it to a person.
    fn turn(&self, record: &Record, now: Time, first_sight: Instant) -> LookupTurn {
        if !self.concerns(record) {
            return LookupTurn::Later;
        }
        let turn = self.schedule.turn(record, now);
        let is_unripe = || {
            self.schedule.is_last_lookup(record)
                && absence(&*self.reconciler, record) == Absence::Proof
                && first_sight.elapsed() < self.schedule.settle_time
        };
        match turn {
            LookupTurn::Due if is_unripe() => LookupTurn::Later,
            LookupTurn::Due
            | LookupTurn::Later
            | LookupTurn::DeadLettered
            | LookupTurn::Decided => turn,
        }
    }

    /// Whether whoever is asked about a record wants to be left alone.
    fn is_closed_about(&self, record: &Record) -> bool {
        self.throttle.is_closed(&provider(&*self.reconciler, record))
    }

    /// Whether the reconciler can be asked about a record. A bug about one record must not end the round for all of them.
    fn concerns(&self, record: &Record) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.reconciler.concerns(record))).unwrap_or_else(|_| {
            metrics::counter!(event::UPKEEP_PANICS.name, "task" => "concerns").increment(1);
            tracing::error!(target: "retrysafe", key = %record.key, "reconcile_concerns_panicked");
            false
        })
    }

    fn first_sight(&self, record: &Record) -> Instant {
        let mut sighted = self.sighted.lock().unwrap_or_else(PoisonError::into_inner);
        *sighted.entry((record.id, record.fence)).or_insert_with(Instant::now)
    }

    fn question(&self, record: Record, first_sight: Instant, is_scheduled: bool) -> Question<S, R> {
        Question {
            engine: Arc::clone(&self.engine),
            reconciler: Arc::clone(&self.reconciler),
            record,
            lookup_max: self.schedule.lookup_max,
            settle_time: self.schedule.settle_time,
            first_sight,
            is_scheduled,
            throttle: Arc::clone(&self.throttle),
        }
    }
}

impl<S, R> Reconciliation<S, R> {
    fn report_dead_letters(&self, number: usize) {
        let before = self.dead_lettered.swap(number, Ordering::AcqRel);
        let gauge = metrics::gauge!(event::DEAD_LETTERED.name);
        gauge.increment(number as f64);
        gauge.decrement(before as f64);
    }
}

impl<S, R> Drop for Reconciliation<S, R> {
    fn drop(&mut self) {
        self.report_dead_letters(0);
    }
}

impl<S, R> fmt::Debug for Reconciliation<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciliation").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

/// The unknown records whose schedule is used up, at most `limit`: a person must decide.
///
/// # Errors
///
/// The store's.
pub async fn dead_letters<S: Store>(
    store: &S,
    schedule: &Schedule,
    limit: usize,
) -> Result<Vec<Record>, StoreError> {
    let mut found = Vec::new();
    let mut query = schedule.query();
    loop {
        let page = store.scan(query.clone()).await?;
        let dead = |record: &Record| schedule.turn(record, page.now) == LookupTurn::DeadLettered;
        found.extend(page.value.records.into_iter().filter(dead));
        match page.value.next {
            Some(cursor) if found.len() < limit => query.after = Some(cursor),
            Some(_) | None => break,
        }
    }
    found.truncate(limit);
    Ok(found)
}

impl Reconciled {
    fn note(&mut self, learned: Option<Result<Learned, tokio::task::JoinError>>) {
        match learned.map(|learned| learned.map(|learned| learned.asked)) {
            Some(Ok(Asked::Resolved(_))) => self.resolved += 1,
            Some(Ok(Asked::StillUnknown)) | None => {}
            Some(Ok(Asked::Failed(_)) | Err(_)) => self.failed += 1,
        }
    }
}
