//! How is the server asked? One function per question; the rules stand in the migration.
//!
//! Whatever is asked about deliveries is answered with the server's identity. A worker may be led back to a former primary, by a name
//! or an address that points there again. That server claims nothing for a worker that has seen its successor, and what it is told
//! counts as not heard: the successor is told it later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgPool, Postgres, Row as _};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::claim_floor::{ClaimFloors, ClaimStart};
use super::listen::listen;
use super::store::{
    ClaimedEffect, EffectCount, EffectStore, EffectStoreError, Held, MarkWord, MarkedEffect,
    SweptEffects, ToMark, Told,
};
use crate::stores::postgres::Identity;

fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

fn length(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn names(held: impl Iterator<Item = Held>) -> (Vec<i64>, Vec<i64>) {
    held.map(|held| (held.id, held.fence)).unzip()
}

/// The classes of SQLSTATEs that are about what was sent: the same would be refused again. A server that goes down refuses too, and
/// takes the same a moment later.
const REFUSALS: [&str; 2] = ["22", "23"];

/// A question whose answer begins with the server's identity: which columns are asked for, of which function, and of which rows of its
/// answer if not of all.
macro_rules! with_identity {
    ($columns:literal, $function:literal) => {
        with_identity!($columns, $function, "true")
    };
    ($columns:literal, $function:literal, $rows:literal) => {
        concat!(
            "SELECT h.system, h.timeline, ",
            $columns,
            " FROM retrysafe.this_server_v1() AS h LEFT JOIN LATERAL retrysafe.",
            $function,
            " AS answered ON ",
            $rows
        )
    };
}

/// The effects of a PostgreSQL database, over a pool of the application's.
#[derive(Clone, Debug)]
pub struct PooledEffects {
    pool: PgPool,
    /// Which server this worker has talked to so far, over all its connections.
    seen: Arc<Identity>,
    floors: Arc<Mutex<ClaimFloors>>,
}

impl PooledEffects {
    /// The effects of this database.
    pub fn new(pool: PgPool) -> Self {
        Self { pool, seen: Arc::default(), floors: Arc::default() }
    }

    fn floors(&self) -> MutexGuard<'_, ClaimFloors> {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims effects from this due time on.
    async fn claim_from(
        &self,
        start: ClaimStart,
        kind: &str,
        most: usize,
        lease: Duration,
    ) -> Result<Vec<PgRow>, EffectStoreError> {
        let (system, timeline) = self.seen.seen();
        // A former primary claims nothing: it is asked for none.
        let claim = sqlx::query(with_identity!(
            "id, fence, downstream_key, destination, content_type, payload, failures, was_sent, is_suspect,
                lane IS NOT NULL AS has_lane, due_first",
            "claim_effects_v1($1, CASE WHEN h.system = coalesce($4, h.system) AND h.timeline >= $5 THEN $2 ELSE 0 END, $3, $6)"
        ))
        .bind(kind)
        .bind(number(most))
        .bind(millis(lease))
        .bind(system)
        .bind(i32::try_from(timeline).unwrap_or(i32::MAX))
        .bind(start.due_from_ms);
        self.ask(claim).await
    }

    /// Asks, and looks whether it was the server that answered. Each row begins with its identity; a row without more says that there
    /// is nothing else to say.
    async fn ask(
        &self,
        question: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, EffectStoreError> {
        let mut rows = question.fetch_all(&self.pool).await?;
        let Some(first) = rows.first() else {
            return Err(EffectStoreError::NoAnswer("the server does not say which it is".into()));
        };
        let system: &str = first.try_get("system")?;
        let timeline: i32 = first.try_get("timeline")?;
        let admitted = self.seen.admit(system, u32::try_from(timeline).unwrap_or(0));
        admitted.map_err(|error| EffectStoreError::NoAnswer(Box::new(error)))?;
        rows.retain(|row| row.try_get::<Option<i64>, _>("id").is_ok_and(|id| id.is_some()));
        Ok(rows)
    }
}

fn claimed_effect(row: &PgRow) -> Result<ClaimedEffect, EffectStoreError> {
    let text = |name: &str| row.try_get::<Option<String>, _>(name);
    Ok(ClaimedEffect {
        held: Held { id: row.try_get("id")?, fence: row.try_get("fence")? },
        key: row.try_get::<String, _>("downstream_key")?.into(),
        destination: text("destination")?.map(Into::into),
        content_type: text("content_type")?.map(Into::into),
        payload: Bytes::from(row.try_get::<Vec<u8>, _>("payload")?),
        failures: u32::try_from(row.try_get::<i32, _>("failures")?).unwrap_or(0),
        was_sent: row.try_get("was_sent")?,
        is_suspect: row.try_get("is_suspect")?,
    })
}

/// What the server refuses it has not applied. Of everything else nobody knows.
impl From<sqlx::Error> for EffectStoreError {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|told| told.code());
        if code.is_some_and(|code| REFUSALS.iter().any(|class| code.starts_with(class))) {
            Self::Refused(Box::new(error))
        } else {
            Self::NoAnswer(Box::new(error))
        }
    }
}

impl EffectStore for PooledEffects {
    async fn claim(
        &self,
        kind: &str,
        most: usize,
        lease: Duration,
    ) -> Result<Vec<ClaimedEffect>, EffectStoreError> {
        loop {
            let start = self.floors().start(kind, Instant::now());
            let rows = self.claim_from(start, kind, most, lease).await?;
            let mut floors = self.floors();
            let Some(first) = rows.first() else {
                if floors.found_nothing(kind, start) {
                    // This one looks at everything, so there is no third.
                    continue;
                }
                return Ok(Vec::new());
            };
            floors.found(kind, start, first.try_get("due_first")?, Instant::now());
            for row in &rows {
                if row.try_get("has_lane")? {
                    floors.claimed_in_lane(row.try_get("id")?);
                }
            }
            return rows.iter().map(claimed_effect).collect();
        }
    }

    async fn mark(
        &self,
        to_mark: &[ToMark],
        resend_for: Option<Duration>,
    ) -> Result<Vec<MarkedEffect>, EffectStoreError> {
        let (ids, fences) = names(to_mark.iter().map(|to_mark| to_mark.held));
        let receivers: Vec<Option<i64>> = to_mark.iter().map(|to_mark| to_mark.receiver).collect();
        let mark = sqlx::query(with_identity!(
            "id, is_sendable, lease_left_ms, resend_left_ms",
            "mark_effects_v1($1, $2, $3, $4)"
        ))
        .bind(ids)
        .bind(fences)
        .bind(receivers)
        .bind(resend_for.map(millis));
        let marked = |row: &PgRow| {
            Ok(MarkedEffect {
                id: row.try_get("id")?,
                word: match row.try_get("is_sendable")? {
                    Some(true) => MarkWord::Sendable,
                    Some(false) => MarkWord::Unknown,
                    None => MarkWord::HeldByAnother,
                },
                lease_left: length(row.try_get("lease_left_ms")?),
                resend_left: row.try_get::<Option<i64>, _>("resend_left_ms")?.map(length),
            })
        };
        self.ask(mark).await?.iter().map(marked).collect()
    }

    async fn finish(&self, told: &[Told], failures_max: u32) -> Result<Vec<i64>, EffectStoreError> {
        let (ids, fences) = names(told.iter().map(|told| told.held));
        let ends: Vec<i16> = told.iter().map(|told| told.end as i16).collect();
        let pauses: Vec<i64> = told.iter().map(|told| millis(told.retry_after)).collect();
        let references: Vec<Option<&str>> =
            told.iter().map(|told| told.reference.as_deref()).collect();
        let errors: Vec<Option<&str>> = told.iter().map(|told| told.error.as_deref()).collect();
        // Of what was heard nothing more is to be said.
        let finish = sqlx::query(with_identity!(
            "id",
            "finish_effects_v1($1, $2, $3, $4, $5, $6, $7)",
            "answered.state IS NULL"
        ))
        .bind(ids)
        .bind(fences)
        .bind(ends)
        .bind(pauses)
        .bind(references)
        .bind(errors)
        .bind(i32::try_from(failures_max).unwrap_or(i32::MAX));
        let held_by_others: Vec<i64> = {
            let rows = self.ask(finish).await?;
            rows.iter()
                .map(|row| Ok(row.try_get("id")?))
                .collect::<Result<_, EffectStoreError>>()?
        };
        let heard = told.iter().map(|told| told.held.id).filter(|id| !held_by_others.contains(id));
        self.floors().ended(heard);
        Ok(held_by_others)
    }

    async fn hand_back(&self, held: &[Held]) -> Result<Vec<i64>, EffectStoreError> {
        let (ids, fences) = names(held.iter().copied());
        let back = sqlx::query(with_identity!("id", "hand_back_effects_v1($1, $2)"));
        let rows = self.ask(back.bind(ids).bind(fences)).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<(), EffectStoreError> {
        let (ids, fences) = names(held.iter().copied());
        let renew = sqlx::query(with_identity!("id", "renew_effects_v1($1, $2, $3)"));
        self.ask(renew.bind(ids).bind(fences).bind(millis(lease))).await.map(drop)
    }

    async fn sweep(&self, crashes_max: u32, most: usize) -> Result<SweptEffects, EffectStoreError> {
        let sweep = sqlx::query("SELECT * FROM retrysafe.sweep_effects_v1($1, $2)");
        let row = sweep
            .bind(i32::try_from(crashes_max).unwrap_or(i32::MAX))
            .bind(number(most))
            .fetch_one(&self.pool)
            .await?;
        Ok(SweptEffects { ready: row.try_get("ready")?, unknown: row.try_get("unknown")? })
    }

    async fn sweep_lanes(
        &self,
        after: Option<&str>,
        most: usize,
    ) -> Result<Option<String>, EffectStoreError> {
        let sweep = sqlx::query_scalar("SELECT retrysafe.sweep_lanes_v1($1, $2)");
        Ok(sweep.bind(after).bind(number(most)).fetch_one(&self.pool).await?)
    }

    async fn turn_days(&self, keep_days: i32) -> Result<(), EffectStoreError> {
        sqlx::query("SELECT retrysafe.make_effect_days()").execute(&self.pool).await?;
        let drop = sqlx::query("SELECT retrysafe.drop_effect_day($1)");
        drop.bind(keep_days).execute(&self.pool).await?;
        Ok(())
    }

    async fn count(&self) -> Result<Vec<EffectCount>, EffectStoreError> {
        let count = sqlx::query(
            "WITH counted AS MATERIALIZED (SELECT * FROM retrysafe.count_effects_v1())
             SELECT c.*, EXISTS (SELECT FROM retrysafe.effect_pause p WHERE p.kind = c.kind) AS is_paused FROM counted c
             -- A kind that is paused is counted also where nothing of it is left.
             UNION ALL SELECT p.kind, 1::smallint, 0, t.now_ms, t.now_ms, true
             FROM retrysafe.effect_pause p, (SELECT retrysafe.now_ms() AS now_ms) t
             WHERE NOT EXISTS (SELECT FROM counted c WHERE c.kind = p.kind)",
        );
        let rows = count.fetch_all(&self.pool).await?;
        let counted = |row: &PgRow| {
            let oldest_at: i64 = row.try_get("oldest_at")?;
            let now: i64 = row.try_get("now_ms")?;
            Ok(EffectCount {
                kind: row.try_get("kind")?,
                state: row.try_get("state")?,
                effects: row.try_get("effects")?,
                oldest: length(now.saturating_sub(oldest_at)),
                is_paused: row.try_get("is_paused")?,
            })
        };
        rows.iter().map(counted).collect()
    }

    async fn listen(&self, wake: &Notify) -> Result<(), EffectStoreError> {
        Ok(listen(&self.pool, wake).await?)
    }
}
