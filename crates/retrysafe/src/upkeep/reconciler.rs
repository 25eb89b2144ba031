//! What became of a request that nobody knows about?
//!
//! A [`Reconciler`] asks whoever could know: the provider, a ledger, the application's own tables.
//! It is asked on a [`Schedule`], counted from the moment at which the record became unknown. What
//! it finds decides the record once, and raises its fence, so that the former owner loses. "Not
//! found" proves nothing by itself; see [`Proof::absence`]. When the schedule is used up, the record
//! stays unknown and is dead-lettered: a person must decide.
//!
//! Two clocks. When to ask goes by the store's clock: a leap of it costs a lookup. How long an
//! absence has lasted goes by this process's monotonic clock, from its own first sight of the
//! record: a leap there would turn "not yet" into "never", and execute twice.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use retrysafe_core::engine::{Engine, Ruled};
use retrysafe_core::event;
use retrysafe_core::machine::{Evidence, Proof, Verdict};
use retrysafe_core::policy::Absence;
use retrysafe_core::record::{Answer, Fence, Judge, Record, Standing, State};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Filter, Query, Store, StoreError};
use retrysafe_core::time::Time;
use retrysafe_core::units;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How many lookups are under way at once: one that hangs does not hold up the others, and a
/// provider that was down is not met by all of them.
const LOOKUPS_AT_ONCE: usize = 8;

/// How many records one page of the scan holds.
const PAGE: usize = 256;

/// Finds out what became of an unknown request.
///
/// ```
/// use retrysafe::core::record::{Answer, Record};
/// use retrysafe::upkeep::{Lookup, Reconciler};
///
/// struct AskProvider;
///
/// impl Reconciler for AskProvider {
///     async fn lookup(&self, unknown: &Record) -> Lookup {
///         // Ask by the key that the downstream call was made with.
///         match ask(&format!("{}-charge", unknown.id)).await {
///             Some(true) => Lookup::Executed(Answer::NotKept { status: None, location: None }),
///             Some(false) => Lookup::NotFound,
///             None => Lookup::Inconclusive("the provider does not answer".into()),
///         }
///     }
/// }
/// # async fn ask(_: &str) -> Option<bool> { None }
/// ```
pub trait Reconciler: Send + Sync + 'static {
    /// Asks whoever could know. A lookup that panics or takes too long is [`Lookup::Inconclusive`].
    fn lookup(&self, unknown: &Record) -> impl Future<Output = Lookup> + Send;

    /// Whether [`Lookup::NotFound`] proves, after the settle time, that this request was not
    /// executed. It does not, unless you say so; a panic does not say so either.
    fn absence(&self, unknown: &Record) -> Absence {
        let _ = unknown;
        Absence::default()
    }
}

/// What a lookup found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It was executed: the answer itself where it can be told, else the mere fact.
    Executed(Answer),
    /// It was not executed, and cannot be any more.
    NotExecuted(Proof),
    /// Nobody has heard of it. It may still be on its way.
    NotFound,
    /// It is under way.
    Pending,
    /// Nothing was learned, for this reason: a status, a failed connection.
    Inconclusive(Box<str>),
}

/// When to ask, and what counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// How long after a record became unknown it is asked about, rising. As many times as there are
    /// entries; afterwards it is dead-lettered.
    pub after: Vec<Duration>,
    /// How often records that are due are looked for.
    pub look_every: Duration,
    /// How long one lookup may take.
    pub lookup_max: Duration,
    /// Where [`Reconciler::absence`] says that "not found" is proof: how long a record must have
    /// been seen as unknown before it is. At least the lease, within which its owner may still
    /// send, plus the longest that a request can be on its way until the downstream shows it.
    pub settle_time: Duration,
    /// Only records of this route.
    pub route: Option<Box<str>>,
}

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

impl Default for Schedule {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        Self {
            after: vec![
                Duration::from_secs(10),
                minutes(1),
                minutes(5),
                minutes(30),
                minutes(2 * 60),
                minutes(12 * 60),
                minutes(24 * 60),
            ],
            look_every: Duration::from_secs(5),
            lookup_max: Duration::from_secs(30),
            settle_time: minutes(60),
            route: None,
        }
    }
}

/// Where an unknown record stands on its schedule.
enum Turn {
    Due,
    Later,
    DeadLettered,
    /// It is not unknown any more.
    Decided,
}

impl Schedule {
    fn turn(&self, record: &Record, now: Time) -> Turn {
        match &record.state {
            State::Unknown { since, lookups, .. } => match self.after.get(*lookups as usize) {
                None => Turn::DeadLettered,
                Some(after) if now.since(*since) >= *after => Turn::Due,
                Some(_) => Turn::Later,
            },
            State::InProgress { .. } | State::Completed { .. } | State::FailedRetryable { .. } => {
                Turn::Decided
            }
        }
    }

    fn is_last_lookup(&self, record: &Record) -> bool {
        match &record.state {
            State::Unknown { lookups, .. } => *lookups as usize + 1 >= self.after.len(),
            State::InProgress { .. } | State::Completed { .. } | State::FailedRetryable { .. } => {
                false
            }
        }
    }

    fn query(&self) -> Query {
        let standing = Some(Standing::Unknown);
        let route = self.route.clone();
        Query { filter: Filter { standing, route, ..Filter::default() }, after: None, limit: PAGE }
    }
}

/// Asks one reconciler about the unknown records of one store, round after round.
pub struct Reconciliation<S, R> {
    engine: Arc<Engine<S>>,
    reconciler: Arc<R>,
    schedule: Schedule,
    /// Since when this process has seen them unknown.
    sighted: Mutex<HashMap<(Id, Fence), Instant>>,
}

impl<S: Store, R: Reconciler> Reconciliation<S, R> {
    /// Nothing is asked before the first [round](Self::round).
    pub fn new(engine: Arc<Engine<S>>, reconciler: R, schedule: Schedule) -> Self {
        let reconciler = Arc::new(reconciler);
        let sighted = Mutex::default();
        Self { engine, reconciler, schedule, sighted }
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
        loop {
            let page = self.engine.store().scan(query.clone()).await?;
            done.failed += page.value.damaged.len();
            for record in page.value.records {
                let first = self.first_sight(&record);
                present.insert((record.id, record.fence), first);
                match self.turn(&record, page.now, first) {
                    Turn::Later | Turn::Decided => {}
                    Turn::DeadLettered => done.dead_lettered += 1,
                    Turn::Due => {
                        done.asked += 1;
                        metrics::counter!(event::RECONCILE_SCHEDULED.name).increment(1);
                        while under_way.len() >= LOOKUPS_AT_ONCE {
                            done.note(under_way.join_next().await);
                        }
                        under_way.spawn(self.question(record, first).ask());
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
        *self.sighted.lock().unwrap_or_else(PoisonError::into_inner) = present;
        metrics::gauge!(event::DEAD_LETTERED.name).set(done.dead_lettered as f64);
        Ok(done)
    }

    /// The schedule's turn. Where an absence is proof, the last lookup waits until it can be: a
    /// process that was down for long would else ask for nothing, and leave it to a person.
    fn turn(&self, record: &Record, now: Time, first_sight: Instant) -> Turn {
        let turn = self.schedule.turn(record, now);
        let is_unripe = || {
            self.schedule.is_last_lookup(record)
                && absence(&*self.reconciler, record) == Absence::Proof
                && first_sight.elapsed() < self.schedule.settle_time
        };
        match turn {
            Turn::Due if is_unripe() => Turn::Later,
            Turn::Due | Turn::Later | Turn::DeadLettered | Turn::Decided => turn,
        }
    }

    fn first_sight(&self, record: &Record) -> Instant {
        let mut sighted = self.sighted.lock().unwrap_or_else(PoisonError::into_inner);
        *sighted.entry((record.id, record.fence)).or_insert_with(Instant::now)
    }

    fn question(&self, record: Record, first_sight: Instant) -> Question<S, R> {
        Question {
            engine: Arc::clone(&self.engine),
            reconciler: Arc::clone(&self.reconciler),
            record,
            lookup_max: self.schedule.lookup_max,
            settle_time: self.schedule.settle_time,
            first_sight,
        }
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
        let dead = |record: &Record| matches!(schedule.turn(record, page.now), Turn::DeadLettered);
        found.extend(page.value.records.into_iter().filter(dead));
        match page.value.next {
            Some(cursor) if found.len() < limit => query.after = Some(cursor),
            Some(_) | None => break,
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// What became of one question.
enum Asked {
    Resolved,
    StillUnknown,
    Failed,
}

impl Reconciled {
    fn note(&mut self, asked: Option<Result<Asked, tokio::task::JoinError>>) {
        match asked {
            Some(Ok(Asked::Resolved)) => self.resolved += 1,
            Some(Ok(Asked::StillUnknown)) | None => {}
            Some(Ok(Asked::Failed) | Err(_)) => self.failed += 1,
        }
    }
}

/// One unknown record that is asked about.
struct Question<S, R> {
    engine: Arc<Engine<S>>,
    reconciler: Arc<R>,
    record: Record,
    lookup_max: Duration,
    settle_time: Duration,
    first_sight: Instant,
}

impl<S: Store, R: Reconciler> Question<S, R> {
    async fn ask(self) -> Asked {
        let id = self.record.id;
        let fence = self.record.fence;
        // What is absent from the answer was absent when it was asked for, not later.
        let waited = self.first_sight.elapsed();
        let absence = absence(&*self.reconciler, &self.record);
        let (evidence, reason) = match self.look_up().await {
            Lookup::Executed(answer) => (Evidence::Executed(answer), "found as executed"),
            Lookup::NotExecuted(proof) => {
                (Evidence::NotExecuted(proof), "proven not to be executed")
            }
            Lookup::NotFound => match Proof::absence(absence, waited, self.settle_time) {
                Some(proof) => (Evidence::NotExecuted(proof), "not found after the settle time"),
                None => return self.learned_nothing("not found").await,
            },
            Lookup::Pending => return self.learned_nothing("pending").await,
            Lookup::Inconclusive(why) => return self.learned_nothing(&why).await,
        };
        let standing = evidence.standing().name();
        let judge = Judge::Reconciler;
        let verdict = Verdict { fence, evidence, judge, reason: reason.into() };
        match self.engine.resolve(id, &verdict).await {
            Ok(Ruled::Done(record)) => {
                let judge = Judge::Reconciler.name();
                let counter = metrics::counter!(
                    event::RECONCILE_RESOLVED.name, "standing" => standing, "judge" => judge
                );
                counter.increment(1);
                tracing::info!(target: "retrysafe", key = %record.key, standing, "reconciled");
                Asked::Resolved
            }
            // Somebody else was faster, or the owner has told the truth meanwhile.
            Ok(Ruled::Refused(_) | Ruled::Absent) => Asked::StillUnknown,
            Err(_) => Asked::Failed,
        }
    }

    /// Says what was learned, in the log and on the record's timeline.
    async fn learned_nothing(&self, found: &str) -> Asked {
        metrics::counter!(event::RECONCILE_FAILED.name).increment(1);
        let record = &self.record;
        tracing::warn!(
            target: "retrysafe",
            route = &*record.about.route,
            key = %record.key,
            request_id = record.request_id(),
            id = %record.id,
            found,
            "reconcile_lookup"
        );
        match self.engine.looked_up(record, found).await {
            Ok(_) => Asked::StillUnknown,
            Err(_) => Asked::Failed,
        }
    }

    async fn look_up(&self) -> Lookup {
        let reconciler = Arc::clone(&self.reconciler);
        let record = self.record.clone();
        // In a task of its own, so that a panic ends the lookup and nothing else; in a set, so that
        // the lookup ends with whoever asks.
        let mut lookup = JoinSet::new();
        lookup.spawn(async move { reconciler.lookup(&record).await });
        match tokio::time::timeout(self.lookup_max, lookup.join_next()).await {
            Ok(Some(Ok(found))) => found,
            Ok(Some(Err(_)) | None) => Lookup::Inconclusive("the lookup panicked".into()),
            Err(_) => {
                let length = units::show_duration(self.lookup_max);
                Lookup::Inconclusive(format!("no answer within {length}").into())
            }
        }
    }
}

/// What a reconciler says about an absence. It is asked in the middle of a round, and a bug about
/// one record must not end the round for all of them.
fn absence<R: Reconciler>(reconciler: &R, record: &Record) -> Absence {
    catch_unwind(AssertUnwindSafe(|| reconciler.absence(record))).unwrap_or_else(|_| {
        metrics::counter!(event::UPKEEP_PANICS.name, "task" => "absence").increment(1);
        tracing::error!(target: "retrysafe", key = %record.key, "reconcile_absence_panicked");
        Absence::Inconclusive
    })
}
