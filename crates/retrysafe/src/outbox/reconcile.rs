//! What became of an effect that nobody knows about?
//!
//! The same questions as for [records](crate::upkeep), on the same kind of [`Schedule`]: whoever could know is asked with the effect's
//! own key. What is found decides the effect once. "Not found" proves nothing by itself; see [`EffectReconciler::absence`]. When
//! the schedule is used up, the effect stays unknown, and a person must decide. How often was asked stands in the effect's row, so any
//! number of processes may ask.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use retrysafe_core::event;
use retrysafe_core::policy::Absence;
use retrysafe_core::record::lookup_note;
use retrysafe_core::time::Time;
use retrysafe_core::units;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row as _};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::delivery::Delivered;
use super::effect_lookup::{EffectLookup, EffectLookupAnswer, EffectReconciler, UnknownEffect};
use super::receiver::Receiver;
use super::stage::{EffectSearch, Outbox, OutboxError};
use crate::lookup_throttle::LookupThrottle;
use crate::schedule::{LookupTurn, Schedule};

/// How many effects one page holds.
const PAGE: usize = 256;

/// How many lookups out of turn are under way at once.
const OUT_OF_TURN_AT_ONCE: usize = 4;

/// How long one statement may take.
const STATEMENT_MAX: Duration = Duration::from_secs(15);

/// Under which name the decisions are written down.
const WHO: &str = "reconciler";

/// A reconciler of effects asks one provider: that of its kind.
const ONE_PROVIDER: &str = "";

/// What one round of lookups did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EffectsReconciled {
    /// Effects that were asked about.
    pub asked: usize,
    /// Effects that were decided.
    pub resolved: usize,
    /// Unknown effects whose schedule is used up.
    pub dead_lettered: usize,
    /// Effects about which the database said nothing.
    pub failed: usize,
}

/// What became of a lookup of an effect out of turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectAskedNow {
    /// It was asked about.
    Asked {
        /// What was learned, in words.
        found: Box<str>,
        /// The beginning of what was answered.
        excerpt: Option<Box<str>>,
        /// Whether it was decided by that.
        is_resolved: bool,
    },
    /// There is no such effect of this kind that is unknown.
    NotUnknown,
    /// Too many are asked about at this moment.
    Busy,
}

/// Asks one reconciler about the unknown effects of one kind, round after round.
pub struct EffectReconciliation<R> {
    shared: Arc<Shared<R>>,
    /// Since when this process has seen them unknown.
    sighted: Mutex<HashMap<(i64, i64), Instant>>,
    out_of_turn: Semaphore,
}

struct Shared<R> {
    pool: PgPool,
    kind: Box<str>,
    /// Whom the reconciler asks.
    receiver: Receiver,
    reconciler: R,
    schedule: Schedule,
    /// Turns by effect, fence and number of the lookup.
    throttle: LookupThrottle<(i64, i64, u32)>,
}

/// What became of one question.
enum Asked {
    Resolved,
    StillUnknown,
    Failed(OutboxError),
}

struct Learned {
    asked: Asked,
    found: Box<str>,
    excerpt: Option<Box<str>>,
}

impl<R: EffectReconciler> EffectReconciliation<R> {
    /// Nothing is asked before the first [round](Self::round). `receiver` is who is sent the effects of this kind, as the
    /// [worker](super::Worker) knows it: that it does not know an effect says nothing about one that may have been sent to another.
    pub fn new(
        outbox: &Outbox,
        kind: &str,
        receiver: Receiver,
        reconciler: R,
        schedule: Schedule,
    ) -> Self {
        let (pool, kind) = (outbox.pool.clone(), kind.into());
        let throttle = LookupThrottle::default();
        let shared = Arc::new(Shared { pool, kind, receiver, reconciler, schedule, throttle });
        let out_of_turn = Semaphore::new(OUT_OF_TURN_AT_ONCE);
        Self { shared, sighted: Mutex::default(), out_of_turn }
    }

    /// Plays rounds without end. Dropped, it ends, and the lookups with it.
    pub async fn run(&self) {
        let mut ticks =
            tokio::time::interval(self.shared.schedule.look_every.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.round().await {
                let kind = &*self.shared.kind;
                tracing::warn!(target: "retrysafe", kind, %error, "effects_not_reconciled");
            }
        }
    }

    /// Asks once about every unknown effect that is due.
    ///
    /// # Errors
    ///
    /// The database's own, if it cannot even be read.
    pub async fn round(&self) -> Result<EffectsReconciled, OutboxError> {
        let schedule = &self.shared.schedule;
        let mut done = EffectsReconciled::default();
        let mut under_way = JoinSet::new();
        let mut present = HashMap::new();
        let mut next_at = Instant::now();
        let mut after = 0;
        loop {
            let (page, now) = self.shared.unknown(after).await?;
            let is_last = page.len() < PAGE;
            for effect in page {
                after = effect.id;
                let first = self.first_sight(&effect);
                present.insert((effect.id, effect.fence), first);
                match self.turn(&effect, now, first) {
                    LookupTurn::Later | LookupTurn::Decided => {}
                    LookupTurn::DeadLettered => done.dead_lettered += 1,
                    LookupTurn::Due if self.shared.throttle.is_closed(ONE_PROVIDER) => {}
                    LookupTurn::Due => {
                        done.asked += 1;
                        while under_way.len() >= schedule.at_once.max(1) {
                            done.note(under_way.join_next().await);
                        }
                        tokio::time::sleep_until(next_at).await;
                        next_at = Instant::now() + schedule.gap();
                        under_way.spawn(Arc::clone(&self.shared).ask(effect, first, true));
                    }
                }
            }
            if is_last {
                break;
            }
        }
        while !under_way.is_empty() {
            done.note(under_way.join_next().await);
        }
        // Only after a whole look: what was not there is not unknown any more.
        self.shared.throttle.keep_turns(|(id, fence, _)| present.contains_key(&(*id, *fence)));
        *self.sighted.lock().unwrap_or_else(PoisonError::into_inner) = present;
        let kind = self.shared.kind.to_string();
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        metrics::gauge!(event::EFFECTS_DEAD_LETTERED.name, "kind" => kind)
            .set(done.dead_lettered as f64);
        Ok(done)
    }

    /// Asks about one effect at once, whatever the schedule says, and uses up nothing of it.
    ///
    /// # Errors
    ///
    /// The database's own.
    pub async fn ask_now(&self, id: i64) -> Result<EffectAskedNow, OutboxError> {
        let Ok(_permit) = self.out_of_turn.try_acquire() else { return Ok(EffectAskedNow::Busy) };
        let (page, _) = self.shared.unknown(id.saturating_sub(1)).await?;
        let Some(effect) = page.into_iter().find(|effect| effect.id == id) else {
            return Ok(EffectAskedNow::NotUnknown);
        };
        let first = self.first_sight(&effect);
        let Learned { asked, found, excerpt } =
            Arc::clone(&self.shared).ask(effect, first, false).await;
        match asked {
            Asked::Failed(error) => Err(error),
            Asked::Resolved => Ok(EffectAskedNow::Asked { found, excerpt, is_resolved: true }),
            Asked::StillUnknown => Ok(EffectAskedNow::Asked { found, excerpt, is_resolved: false }),
        }
    }

    fn first_sight(&self, effect: &UnknownEffect) -> Instant {
        let mut sighted = self.sighted.lock().unwrap_or_else(PoisonError::into_inner);
        *sighted.entry((effect.id, effect.fence)).or_insert_with(Instant::now)
    }

    /// The schedule's turn. Where an absence is proof, the last lookup waits until it can be.
    fn turn(&self, effect: &UnknownEffect, now: Time, first_sight: Instant) -> LookupTurn {
        let schedule = &self.shared.schedule;
        let turn = schedule.turn_of(effect.lookups, effect.since, effect.looked_up_at, now);
        let is_last = effect.lookups as usize + 1 >= schedule.pauses.lookups();
        let is_unripe = || {
            is_last
                && self.shared.absence(effect) == Absence::Proof
                && first_sight.elapsed() < schedule.settle_time
        };
        match turn {
            LookupTurn::Due if is_unripe() => LookupTurn::Later,
            LookupTurn::Due
            | LookupTurn::Later
            | LookupTurn::DeadLettered
            | LookupTurn::Decided => turn,
        }
    }
}

impl<R: EffectReconciler> Shared<R> {
    async fn unknown(&self, after: i64) -> Result<(Vec<UnknownEffect>, Time), OutboxError> {
        let asked = sqlx::query("SELECT * FROM retrysafe.unknown_effects_v1($1, $2, $3)")
            .bind(&*self.kind)
            .bind(after)
            .bind(i32::try_from(PAGE).unwrap_or(i32::MAX));
        let rows = within_time(asked.fetch_all(&self.pool)).await?;
        let now = rows.first().map_or(Ok(Time::from_ms(0)), |row| time(row, "now_ms"))?;
        let effects = rows.iter().map(|row| self.read(row)).collect::<Result<_, _>>()?;
        Ok((effects, now))
    }

    fn read(&self, row: &PgRow) -> Result<UnknownEffect, sqlx::Error> {
        let text = |name: &str| -> Result<Option<Box<str>>, sqlx::Error> {
            Ok(row.try_get::<Option<String>, _>(name)?.map(Into::into))
        };
        let looked_up_at = row.try_get::<Option<i64>, _>("looked_up_at")?;
        Ok(UnknownEffect {
            id: row.try_get("id")?,
            fence: row.try_get("fence")?,
            kind: self.kind.clone(),
            key: row.try_get::<String, _>("downstream_key")?.into(),
            destination: text("destination")?,
            name: text("name")?,
            staged_at: time(row, "staged_at")?,
            since: time(row, "since")?,
            lookups: u32::try_from(row.try_get::<i32, _>("lookups")?).unwrap_or(0),
            looked_up_at: looked_up_at.map(|ms| Time::from_ms(u64::try_from(ms).unwrap_or(0))),
            sent_to: row.try_get("receiver")?,
        })
    }

    async fn ask(
        self: Arc<Self>,
        effect: UnknownEffect,
        first_sight: Instant,
        is_scheduled: bool,
    ) -> Learned {
        // What is absent from the answer was absent when it was asked for, not later.
        let waited = first_sight.elapsed();
        let absence = self.absence(&effect);
        let EffectLookupAnswer { found, excerpt } = Arc::clone(&self).look_up(effect.clone()).await;
        self.count(&found);
        let settle_time = self.schedule.settle_time;
        let is_ripe = absence == Absence::Proof && waited >= settle_time;
        let (search, reason) = match found {
            EffectLookup::Delivered(reference) => {
                let delivered = reference.map_or_else(Delivered::default, Delivered::known_as);
                (EffectSearch::Found(delivered), "found as delivered")
            }
            EffectLookup::Declined => (EffectSearch::Unwanted, "declined by its receiver"),
            EffectLookup::NoEffect => (EffectSearch::NoEffect, "proven not to be done"),
            EffectLookup::NotFound if self.asks_another(&effect) => {
                let found =
                    "not found, by another receiver than the one that it may have been sent to";
                return self.learned_nothing(&effect, found.into(), excerpt, is_scheduled).await;
            }
            EffectLookup::NotFound if is_ripe => {
                (EffectSearch::NotFound { settle_time }, "not found after the settle time")
            }
            EffectLookup::NotFound => {
                return self
                    .learned_nothing(&effect, "not found".into(), excerpt, is_scheduled)
                    .await;
            }
            EffectLookup::Pending => {
                return self
                    .learned_nothing(&effect, "pending".into(), excerpt, is_scheduled)
                    .await;
            }
            EffectLookup::AskedTooOften(pause) => {
                let found = "asked too often".into();
                let turn = (effect.id, effect.fence, effect.lookups);
                let is_used_up = self.throttle.refuse(ONE_PROVIDER, turn, pause);
                if is_used_up || !is_scheduled {
                    return self.learned_nothing(&effect, found, excerpt, is_scheduled).await;
                }
                let kind = &*self.kind;
                tracing::warn!(target: "retrysafe", kind, effect = effect.id, "effect_lookup_refused");
                return Learned { asked: Asked::StillUnknown, found, excerpt };
            }
            EffectLookup::Inconclusive(why) => {
                return self.learned_nothing(&effect, why, excerpt, is_scheduled).await;
            }
        };
        let note = lookup_note(reason, excerpt.as_deref());
        let operator = Outbox::new(self.pool.clone()).operator(WHO);
        let resolve = operator.resolve(effect.id, effect.fence, search, &note);
        let asked = match within_time(resolve).await {
            Ok(()) => {
                let kind = &*self.kind;
                tracing::info!(target: "retrysafe", kind, effect = effect.id, found = reason, "effect_reconciled");
                Asked::Resolved
            }
            // Its packet may be on its way, by the database's clock.
            Err(OutboxError::TooEarly) => {
                return self
                    .learned_nothing(&effect, "not found".into(), excerpt, is_scheduled)
                    .await;
            }
            // Somebody else was faster, or its worker has told how its delivery ended.
            Err(OutboxError::WrongState | OutboxError::Absent) => Asked::StillUnknown,
            Err(error) => Asked::Failed(error),
        };
        Learned { asked, found: reason.into(), excerpt }
    }

    /// Says what was learned, in the log and in the effect's row. What was answered stays out of the log.
    async fn learned_nothing(
        &self,
        effect: &UnknownEffect,
        found: Box<str>,
        excerpt: Option<Box<str>>,
        is_scheduled: bool,
    ) -> Learned {
        let kind = &*self.kind;
        tracing::warn!(target: "retrysafe", kind, effect = effect.id, found = &*found, "effect_lookup");
        let after = is_scheduled.then(|| i32::try_from(effect.lookups).unwrap_or(i32::MAX));
        let note = sqlx::query_scalar::<_, bool>("SELECT retrysafe.note_lookup_v1($1, $2, $3, $4)")
            .bind(effect.id)
            .bind(effect.fence)
            .bind(after)
            .bind(lookup_note(&found, excerpt.as_deref()).into_string());
        let asked = match within_time(note.fetch_one(&self.pool)).await {
            Ok(_) => Asked::StillUnknown,
            Err(error) => Asked::Failed(error),
        };
        Learned { asked, found, excerpt }
    }

    async fn look_up(self: Arc<Self>, effect: UnknownEffect) -> EffectLookupAnswer {
        let lookup_max = self.schedule.lookup_max;
        // In a task of its own, so that a panic ends the lookup and nothing else.
        let mut lookup = JoinSet::new();
        lookup.spawn(async move { self.reconciler.look_up(&effect).await });
        match tokio::time::timeout(lookup_max, lookup.join_next()).await {
            Ok(Some(Ok(answer))) => answer,
            Ok(Some(Err(_)) | None) => {
                EffectLookup::Inconclusive("the lookup panicked".into()).into()
            }
            Err(_) => {
                let length = units::show_duration(lookup_max);
                EffectLookup::Inconclusive(format!("no answer within {length}").into()).into()
            }
        }
    }

    /// Whether somebody else is asked than who may have been sent the effect.
    fn asks_another(&self, effect: &UnknownEffect) -> bool {
        let asked = self.receiver.identity_for(effect.destination.as_deref());
        effect.sent_to.is_some() && effect.sent_to != asked
    }

    fn absence(&self, effect: &UnknownEffect) -> Absence {
        catch_unwind(AssertUnwindSafe(|| self.reconciler.absence(effect)))
            .unwrap_or(Absence::Inconclusive)
    }

    fn count(&self, found: &EffectLookup) {
        let found = match found {
            EffectLookup::Delivered(_) => "delivered",
            EffectLookup::Declined => "declined",
            EffectLookup::NoEffect => "no_effect",
            EffectLookup::NotFound => "not_found",
            EffectLookup::Pending => "pending",
            EffectLookup::AskedTooOften(_) => "asked_too_often",
            EffectLookup::Inconclusive(_) => "inconclusive",
        };
        let kind = self.kind.to_string();
        metrics::counter!(event::EFFECT_LOOKUPS.name, "kind" => kind, "found" => found)
            .increment(1);
    }
}

fn time(row: &PgRow, name: &str) -> Result<Time, sqlx::Error> {
    Ok(Time::from_ms(u64::try_from(row.try_get::<i64, _>(name)?).unwrap_or(0)))
}

async fn within_time<T, E: Into<OutboxError>>(
    question: impl Future<Output = Result<T, E>>,
) -> Result<T, OutboxError> {
    match tokio::time::timeout(STATEMENT_MAX, question).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(OutboxError::Database(sqlx::Error::PoolTimedOut)),
    }
}

impl EffectsReconciled {
    fn note(&mut self, learned: Option<Result<Learned, tokio::task::JoinError>>) {
        match learned.map(|learned| learned.map(|learned| learned.asked)) {
            Some(Ok(Asked::Resolved)) => self.resolved += 1,
            Some(Ok(Asked::StillUnknown)) | None => {}
            Some(Ok(Asked::Failed(_)) | Err(_)) => self.failed += 1,
        }
    }
}

impl<R> fmt::Debug for EffectReconciliation<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EffectReconciliation")
            .field("kind", &self.shared.kind)
            .finish_non_exhaustive()
    }
}
