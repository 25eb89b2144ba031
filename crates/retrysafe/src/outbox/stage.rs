//! How is an effect staged, taken back, and decided?

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retrysafe_core::store::StoreError;
use sqlx::{PgConnection, PgPool, Row as _};

use super::delivery::Delivered;
use super::effect::Effect;

/// The channel by which workers hear that something was staged.
pub(super) const CHANNEL: &str = "retrysafe staged";

/// How long hints are gathered before one is sent: a NOTIFY with every commit would cost most of the server's
/// throughput.
const GATHER: Duration = Duration::from_millis(50);

/// The SQLSTATE of a name that was staged with other content.
const OTHER_CONTENT: &str = "RS020";

/// The effects of an application's database. Clones are the same outbox.
#[derive(Clone, Debug)]
pub struct Outbox {
    pub(super) pool: PgPool,
    is_waking: Arc<AtomicBool>,
}

/// An effect that is staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Its number.
    pub id: i64,
    /// The key that its receiver will see.
    pub key: String,
    /// False where an effect of this kind and name was staged before. Then nothing was staged.
    pub is_new: bool,
}

/// How an effect that is unknown turned out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EffectSearch {
    /// It was delivered.
    Found(Delivered),
    /// It had no effect and cannot have one any more: its receiver says so, or a person does. It is sent again.
    NoEffect,
    /// It had no effect and cannot have one any more, and nobody wants it done: it is cancelled.
    Unwanted,
    /// Its receiver does not know it. That counts only so long after it became unknown.
    NotFound {
        /// How long after.
        settle_time: Duration,
    },
}

/// Why nothing was staged or decided.
#[derive(Debug)]
#[non_exhaustive]
pub enum OutboxError {
    /// The name stands for another effect of this kind.
    OtherContent,
    /// There is no such effect.
    Absent,
    /// The effect is in another state, or somebody else has decided since.
    WrongState,
    /// It may have been sent, so it cannot be taken back.
    MayHaveBeenSent,
    /// Its receiver may have forgotten the key: sent again, it could have a second effect.
    PastMemory,
    /// That its receiver does not know it is no proof yet.
    TooEarly,
    /// A decision about many effects says which: by kind, error or age.
    NoFilter,
    /// The store's own.
    Store(StoreError),
    /// The database's own.
    Database(sqlx::Error),
}

impl Outbox {
    /// The outbox of this database. The schema must be there: `retrysafe store migrate`, or a
    /// [`PostgresStore`](crate::stores::postgres::PostgresStore) that was connected once.
    pub fn new(pool: PgPool) -> Self {
        Self { pool, is_waking: Arc::default() }
    }

    /// Stages an effect in this transaction. It exists when the transaction is committed.
    ///
    /// # Errors
    ///
    /// [`OutboxError::OtherContent`], or the database's own error. Roll the transaction back then.
    pub async fn stage(
        &self,
        transaction: &mut PgConnection,
        effect: Effect,
    ) -> Result<Staged, OutboxError> {
        let stage = sqlx::query("SELECT * FROM retrysafe.stage_v1($1, $2, $3, $4, $5, $6, $7, $8)")
            .bind(&*effect.kind)
            .bind(effect.destination)
            .bind(effect.content_type)
            .bind(&effect.payload[..])
            .bind(effect.key)
            .bind(effect.lane)
            .bind(effect.name)
            .bind(effect.not_before_ms);
        let row = stage.fetch_one(transaction).await?;
        Ok(Staged {
            id: row.try_get("id")?,
            key: row.try_get("downstream_key_used")?,
            is_new: row.try_get("is_new")?,
        })
    }

    /// Tells workers that something was staged, so that they do not wait for their next look. Call it after the commit.
    /// It returns at once; many calls become one hint. Workers find everything without it, a little later.
    pub fn wake(&self) {
        if self.is_waking.swap(true, Ordering::AcqRel) {
            return;
        }
        let Self { pool, is_waking } = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(GATHER).await;
            // What is staged from here on needs a hint of its own.
            is_waking.store(false, Ordering::Release);
            let notify = sqlx::query("SELECT pg_notify($1, '')").bind(CHANNEL).execute(&pool).await;
            if let Err(error) = notify {
                tracing::debug!(target: "retrysafe", %error, "workers_not_woken");
            }
        });
    }

    /// Takes an effect back that was not sent yet, or puts a dead one away, so that its lane goes on.
    ///
    /// # Errors
    ///
    /// Why it cannot be.
    pub async fn cancel(&self, id: i64) -> Result<(), OutboxError> {
        let cancel = sqlx::query_scalar("SELECT retrysafe.cancel_effect_v1($1)");
        let word: Option<String> = cancel.bind(id).fetch_one(&self.pool).await?;
        refused(word.as_deref())
    }

    /// Gives a dead effect another chance.
    ///
    /// # Errors
    ///
    /// [`OutboxError::PastMemory`] where that could have a second effect; or another reason.
    pub async fn requeue(&self, id: i64) -> Result<(), OutboxError> {
        let requeue = sqlx::query_scalar("SELECT retrysafe.requeue_effect_v1($1)");
        let word: Option<String> = requeue.bind(id).fetch_one(&self.pool).await?;
        refused(word.as_deref())
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
        let resolve =
            sqlx::query_scalar("SELECT retrysafe.resolve_effect_v1($1, $2, $3, $4, $5, $6)")
                .bind(id)
                .bind(fence)
                .bind(evidence)
                .bind(settle_ms)
                .bind(reference)
                .bind(reason);
        let word: Option<String> = resolve.fetch_one(&self.pool).await?;
        refused(word.as_deref())
    }
}

impl EffectSearch {
    /// The numbers of the migration: what was found, after how many milliseconds that counts, and the reference.
    pub(super) fn encoded(self) -> (i16, i64, Option<String>) {
        match self {
            Self::Found(Delivered { reference }) => (0, 0, reference),
            Self::NoEffect => (1, 0, None),
            Self::NotFound { settle_time } => {
                (2, i64::try_from(settle_time.as_millis()).unwrap_or(i64::MAX), None)
            }
            Self::Unwanted => (3, 0, None),
        }
    }
}

/// What the server has refused.
pub(super) fn refused(word: Option<&str>) -> Result<(), OutboxError> {
    match word {
        None => Ok(()),
        Some("absent") => Err(OutboxError::Absent),
        Some("may_have_been_sent") => Err(OutboxError::MayHaveBeenSent),
        Some("past_memory") => Err(OutboxError::PastMemory),
        Some("too_early") => Err(OutboxError::TooEarly),
        Some(_) => Err(OutboxError::WrongState),
    }
}

impl OutboxError {
    /// A word for programs. Where the server refuses, it is the server's word.
    pub fn code(&self) -> &'static str {
        match self {
            Self::OtherContent => "other_content",
            Self::Absent => "absent",
            Self::WrongState => "wrong_state",
            Self::MayHaveBeenSent => "may_have_been_sent",
            Self::PastMemory => "past_memory",
            Self::TooEarly => "too_early",
            Self::NoFilter => "no_filter",
            Self::Store(_) => "store",
            Self::Database(_) => "database",
        }
    }
}

impl From<sqlx::Error> for OutboxError {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code());
        if code.as_deref() == Some(OTHER_CONTENT) {
            return Self::OtherContent;
        }
        Self::Database(error)
    }
}

impl fmt::Display for OutboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherContent => "an effect of this kind and name was staged with other content",
            Self::Absent => "there is no such effect",
            Self::WrongState => "the effect is in another state, or somebody else has decided",
            Self::MayHaveBeenSent => "the effect may have been sent, so it cannot be taken back",
            Self::PastMemory => {
                "its receiver may have forgotten the key; sent again, it could have a second effect"
            }
            Self::TooEarly => "that its receiver does not know it is no proof yet; ask again later",
            Self::NoFilter => {
                "that would be every dead effect: say which, by kind, by error or by age"
            }
            Self::Store(error) => return error.fmt(f),
            Self::Database(error) => return write!(f, "the database has refused: {error}"),
        })
    }
}

impl std::error::Error for OutboxError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Database(error) => Some(error),
            Self::Store(error) => Some(error),
            Self::NoFilter
            | Self::OtherContent
            | Self::Absent
            | Self::WrongState
            | Self::MayHaveBeenSent
            | Self::PastMemory
            | Self::TooEarly => None,
        }
    }
}
