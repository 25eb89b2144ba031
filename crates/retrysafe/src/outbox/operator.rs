//! What does an operator decide about effects?
//!
//! What is decided is written down in the same transaction: who, when and why. The rules are those of
//! [`retrysafe_core::effect`]; an operator cannot do what they forbid.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sqlx::PgPool;

use super::shown::ShownEffect;
use super::shown::{
    BulkEnd, EffectDetails, EffectFilter, EffectPage, EffectStanding, OutboxHealth, OutboxStats,
};
use super::stage::{EffectSearch, Outbox, OutboxError, refused};
use crate::stores::postgres::PostgresStore;
use retrysafe_core::record::Record;
use retrysafe_core::time::Time;

/// How many effects a page has at the most.
pub const PAGE_MAX: usize = 500;

/// How much of a payload is shown: enough to tell one from another, and no more than a terminal takes.
const HEAD_BYTES: usize = 1_024;

/// How many dead effects one statement changes: their rows are locked until all of them are.
const BULK_MAX: usize = 500;

/// Somebody who looks after effects, and decides about them.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), retrysafe::outbox::OutboxError> {
/// use retrysafe::outbox::{EffectFilter, EffectStanding, Outbox};
///
/// let operator = Outbox::new(pool).operator("alice");
/// let dead = EffectFilter { standing: Some(EffectStanding::Dead), ..EffectFilter::default() };
/// for effect in operator.list(&dead, None, 100).await?.effects {
///     operator.retry(effect.id, "the receiver is back").await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Operator {
    link: Link,
    who: Box<str>,
}

/// Which connection is used: the application's pool, or that of a store.
#[derive(Clone, Debug)]
enum Link {
    Pool(PgPool),
    Store(PostgresStore),
}

/// What a decision about dead effects answers.
#[derive(Debug, Deserialize)]
struct BulkStep {
    matched: u64,
    changed: u64,
    after_id: i64,
    wait_us: i64,
}

impl Outbox {
    /// An operator of this name: who lists effects, and decides about them. What is decided is written down.
    pub fn operator(&self, who: &str) -> Operator {
        Operator { link: Link::Pool(self.pool.clone()), who: who.into() }
    }
}

impl Operator {
    /// An operator of this name, over the connections of a store.
    pub fn of_store(store: PostgresStore, who: &str) -> Self {
        Self { link: Link::Store(store), who: who.into() }
    }

    /// Lists effects, the newest first, at most [`PAGE_MAX`]. `before` is where the last page said that it goes on.
    ///
    /// # Errors
    ///
    /// The database's own.
    pub async fn list(
        &self,
        filter: &EffectFilter,
        before: Option<i64>,
        most: usize,
    ) -> Result<EffectPage, OutboxError> {
        #[derive(Deserialize)]
        struct Listed {
            effects: Vec<ShownEffect>,
            now: u64,
        }
        let is_wanted = |standing: &EffectStanding| match filter.standing {
            Some(wanted) => *standing == wanted,
            None => !standing.is_over(),
        };
        let states = EffectStanding::ALL.into_iter().filter(is_wanted).map(EffectStanding::code);
        let mut asked = filter.asked();
        let most = most.clamp(1, PAGE_MAX);
        put(&mut asked, "states", states.collect::<Vec<_>>().into());
        put(&mut asked, "lane", filter.lane.as_deref().into());
        put(&mut asked, "before_id", before.into());
        put(&mut asked, "most", most.into());
        let Listed { effects, now } = self.ask("list", &asked).await?;
        let is_full = effects.len() == most;
        let next = effects.last().map(|effect| effect.id).filter(|_| is_full);
        Ok(EffectPage { effects, next, now: Time::from_ms(now) })
    }

    /// The effects that a request has staged in its transactions, the newest first, at most [`PAGE_MAX`]: also those that are over.
    ///
    /// # Errors
    ///
    /// The database's own.
    pub async fn staged_by(
        &self,
        record: &Record,
        most: usize,
    ) -> Result<Vec<ShownEffect>, OutboxError> {
        #[derive(Deserialize)]
        struct Listed {
            effects: Vec<ShownEffect>,
        }
        // A former request with the same key has staged its own.
        let since = record.created_at.as_ms();
        let most = most.clamp(1, PAGE_MAX);
        let asked = json!({"record": record.id.to_string(), "since": since, "most": most});
        self.ask::<Listed>("of_record", &asked).await.map(|listed| listed.effects)
    }

    /// Everything about one effect.
    ///
    /// # Errors
    ///
    /// [`OutboxError::Absent`], or the database's own.
    pub async fn show(&self, id: i64) -> Result<EffectDetails, OutboxError> {
        self.ask("show", &json!({"id": id, "head_bytes": HEAD_BYTES})).await
    }

    /// How the kinds stand.
    ///
    /// # Errors
    ///
    /// The database's own.
    pub async fn stats(&self) -> Result<OutboxStats, OutboxError> {
        self.ask("stats", &json!({})).await
    }

    /// Whether the tables stay small.
    ///
    /// # Errors
    ///
    /// The database's own.
    pub async fn health(&self) -> Result<OutboxHealth, OutboxError> {
        self.ask("health", &json!({})).await
    }

    /// Gives a dead effect another chance.
    ///
    /// # Errors
    ///
    /// [`OutboxError::PastMemory`] where that could have a second effect; or another reason.
    pub async fn retry(&self, id: i64, reason: &str) -> Result<(), OutboxError> {
        self.decide("retry", json!({"id": id}), reason).await
    }

    /// Takes an effect back that was not sent yet, or puts a dead one away, so that its lane goes on.
    ///
    /// # Errors
    ///
    /// Why it cannot be.
    pub async fn cancel(&self, id: i64, reason: &str) -> Result<(), OutboxError> {
        self.decide("cancel", json!({"id": id}), reason).await
    }

    /// Decides an effect that is unknown, by evidence about the delivery with this fence.
    ///
    /// # Errors
    ///
    /// Why it decides nothing.
    pub async fn resolve(
        &self,
        id: i64,
        fence: i64,
        found: EffectSearch,
        reason: &str,
    ) -> Result<(), OutboxError> {
        let (evidence, settle_ms, reference) = found.encoded();
        let asked = json!({
            "id": id, "fence": fence, "evidence": evidence, "settle_ms": settle_ms, "reference": reference,
        });
        self.decide("resolve", asked, reason).await
    }

    /// Lets nobody claim effects of this kind for now, and says whether it was not so before. What is under way is
    /// finished.
    ///
    /// # Errors
    ///
    /// The database's own.
    pub async fn pause(&self, kind: &str, reason: &str) -> Result<bool, OutboxError> {
        self.change("pause", kind, reason).await
    }

    /// Lets workers claim effects of this kind again, and says whether it was paused.
    ///
    /// # Errors
    ///
    /// The database's own.
    pub async fn resume(&self, kind: &str, reason: &str) -> Result<bool, OutboxError> {
        self.change("resume", kind, reason).await
    }

    /// Gives dead effects another chance: those that the filter finds, so many in a second. What could have a second
    /// effect, because its receiver may have forgotten the key by then, stays dead. A dry run only counts.
    ///
    /// # Errors
    ///
    /// [`OutboxError::NoFilter`] if kind, error and age are all left open; or the database's own.
    pub async fn requeue_dead(
        &self,
        filter: &EffectFilter,
        per_second: u32,
        is_dry_run: bool,
        reason: &str,
    ) -> Result<BulkEnd, OutboxError> {
        let gap = Duration::from_secs(1) / per_second.max(1);
        self.decide_dead("requeue", filter, gap, is_dry_run, reason).await
    }

    /// Puts dead effects away: those that the filter finds are cancelled, and their lanes go on. A dry run only counts.
    ///
    /// # Errors
    ///
    /// [`OutboxError::NoFilter`] if kind, error and age are all left open; or the database's own.
    pub async fn purge_dead(
        &self,
        filter: &EffectFilter,
        is_dry_run: bool,
        reason: &str,
    ) -> Result<BulkEnd, OutboxError> {
        self.decide_dead("purge", filter, Duration::ZERO, is_dry_run, reason).await
    }

    async fn decide_dead(
        &self,
        verb: &str,
        filter: &EffectFilter,
        gap: Duration,
        is_dry_run: bool,
        reason: &str,
    ) -> Result<BulkEnd, OutboxError> {
        if filter.kind.is_none() && filter.error.is_none() && filter.older_than.is_none() {
            return Err(OutboxError::NoFilter);
        }
        let mut asked = self.signed(filter.asked(), reason);
        put(&mut asked, "dry_run", is_dry_run.into());
        put(&mut asked, "gap_us", i64::try_from(gap.as_micros()).unwrap_or(i64::MAX).into());
        put(&mut asked, "most", BULK_MAX.into());
        let mut all = BulkEnd::default();
        loop {
            let step: BulkStep = self.ask(verb, &asked).await?;
            all.matched += step.matched;
            all.changed += step.changed;
            if step.matched < BULK_MAX as u64 {
                return Ok(all);
            }
            put(&mut asked, "after_id", step.after_id.into());
            put(&mut asked, "wait_us", step.wait_us.into());
        }
    }

    async fn decide(&self, verb: &str, asked: Value, reason: &str) -> Result<(), OutboxError> {
        let _: Value = self.ask(verb, &self.signed(asked, reason)).await?;
        Ok(())
    }

    async fn change(&self, verb: &str, kind: &str, reason: &str) -> Result<bool, OutboxError> {
        #[derive(Deserialize)]
        struct Answer {
            changed: bool,
        }
        let asked = self.signed(json!({ "kind": kind }), reason);
        Ok(self.ask::<Answer>(verb, &asked).await?.changed)
    }

    /// With who decides, and why.
    fn signed(&self, mut asked: Value, reason: &str) -> Value {
        put(&mut asked, "who", (*self.who).into());
        put(&mut asked, "reason", reason.into());
        asked
    }

    async fn ask<T: DeserializeOwned>(&self, verb: &str, asked: &Value) -> Result<T, OutboxError> {
        let asked = asked.to_string();
        let answer = match &self.link {
            Link::Store(store) => store.operate(verb, &asked).await.map_err(OutboxError::Store)?,
            Link::Pool(pool) => {
                let operate =
                    sqlx::query_scalar("SELECT retrysafe.operate_v1($1, $2::jsonb)::text");
                operate.bind(verb).bind(&asked).fetch_one(pool).await?
            }
        };
        let unreadable = |error| OutboxError::Database(sqlx::Error::Decode(Box::new(error)));
        let answer: Value = serde_json::from_str::<Value>(&answer).map_err(unreadable)?;
        refused(answer.get("refused").and_then(Value::as_str))?;
        serde_json::from_value(answer).map_err(unreadable)
    }
}

impl EffectFilter {
    /// What lists and decisions about dead effects share.
    fn asked(&self) -> Value {
        let older_ms =
            self.older_than.map(|age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
        json!({"kind": self.kind, "error": self.error, "older_ms": older_ms})
    }
}

fn put(asked: &mut Value, name: &str, value: Value) {
    if let Some(members) = asked.as_object_mut() {
        members.insert(name.into(), value);
    }
}
