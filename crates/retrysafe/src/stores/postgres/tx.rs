//! How does a record join the application's transaction?
//!
//! Through [`Engine::begin_in`](retrysafe_core::Engine::begin_in) and
//! [`Engine::settle_in`](retrysafe_core::Engine::settle_in) with an `sqlx` transaction of the same
//! database: the payment and the answer that says so are committed together, or neither is.
//!
//! ```no_run
//! # use retrysafe::core::{Engine, engine::Lease, record::Outcome};
//! # use retrysafe::stores::postgres::PostgresStore;
//! # async fn example(pool: sqlx::PgPool, engine: Engine<PostgresStore>, lease: Lease, outcome: Outcome)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO payment (amount) VALUES (100)").execute(&mut *tx).await?;
//! engine.settle_in(&mut tx, &lease, &outcome).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Where the transaction has savepoints, [`Engine::guard_in`](retrysafe_core::Engine::guard_in) comes
//! first: with it, the transaction cannot be committed without the settle.
//!
//! A commit that fails without an answer may have happened: look at the record before anything else.
//! A commit that the application makes is the application's: if its wait for a synchronous standby is
//! cancelled, `sqlx` does not show the warning.

use std::time::Duration;

use retrysafe_core::record::{Fence, First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Inserted, Stamped, StoreError, StoreErrorKind, Swapped, Transactional,
};
use retrysafe_core::time::Time;
use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use super::carry::{damaged, held_by_another};
use super::columns::{Begins, Changes, Column};
use super::row::{Found, Loaded, written};
use super::settings::Expiry;
use super::{PostgresStore, broken};

/// How often a record that another transaction holds right now is asked for again: the pauses add up
/// to about a second. Nothing of ours holds one longer than a flush.
const TRIES_MAX: u32 = 8;

impl Transactional for PostgresStore {
    type Transaction = sqlx::Transaction<'static, Postgres>;

    async fn insert_in(
        &self,
        tx: &mut Self::Transaction,
        first: First,
    ) -> Result<Stamped<Inserted>, StoreError> {
        let sql = include_str!("sql/begin_in.sql");
        let id = first.id;
        for attempt in 0..TRIES_MAX {
            let mut begins = Begins::default();
            begins.push(&first);
            if let Some((now, version)) = write_in(tx, sql, &begins.columns(), id).await? {
                let value = Inserted::New(first.into_record(now, version));
                return Ok(Stamped { now, value });
            }
            let loaded = load_in(tx, id).await?;
            let now = loaded.now;
            match loaded.found.get(&id) {
                Some(Found::Damaged(_, what)) => return Err(damaged(*what)),
                Some(Found::Record(record)) if record.is_expired(now) => {
                    self.reap_in(tx, id).await?;
                }
                Some(Found::Record(record)) => {
                    let value = Inserted::Exists((**record).clone());
                    return Ok(Stamped { now, value });
                }
                Some(Found::AsKnown) | None => {}
            }
            tokio::time::sleep(Duration::from_millis(4 << attempt)).await;
        }
        Err(held_by_another())
    }

    async fn swap_in(
        &self,
        tx: &mut Self::Transaction,
        from: Record,
        write: Write,
    ) -> Result<Stamped<Swapped>, StoreError> {
        let mut changes = Changes::default();
        changes.push(&from, &write);
        let sql = include_str!("sql/change_in.sql");
        if let Some((now, version)) = write_in(tx, sql, &changes.columns(), from.id).await? {
            let value = Swapped::Done(write.over(from, now, version));
            return Ok(Stamped { now, value });
        }
        let loaded = load_in(tx, from.id).await?;
        let now = loaded.now;
        match loaded.found.get(&from.id) {
            Some(Found::Damaged(_, what)) => Err(damaged(*what)),
            Some(Found::Record(record)) => {
                Ok(Stamped { now, value: Swapped::Lost(Some((**record).clone())) })
            }
            Some(Found::AsKnown) => Err(broken()),
            None => Ok(Stamped { now, value: Swapped::Lost(None) }),
        }
    }

    async fn guard_in(
        &self,
        tx: &mut Self::Transaction,
        id: Id,
        fence: Fence,
    ) -> Result<(), StoreError> {
        let query = sqlx::query("SELECT retrysafe.guard_v1($1, $2)").persistent(false);
        let query = query.bind(id.as_bytes().to_vec()).bind(fence.0.cast_signed());
        query.execute(&mut **tx).await.map(drop).map_err(refused)
    }

    async fn refuse_in(&self, tx: &mut Self::Transaction, why: &str) {
        // The statement is there to fail: from here on the server accepts nothing but a rollback.
        let _ = sqlx::query("SELECT retrysafe.refuse_v1($1)")
            .persistent(false)
            .bind(why.to_owned())
            .execute(&mut **tx)
            .await;
    }
}

/// Writes one record, and says when and with which version; none if it was not as it was read.
async fn write_in(
    tx: &mut sqlx::Transaction<'_, Postgres>,
    sql: &'static str,
    columns: &[Column],
    id: Id,
) -> Result<Option<(Time, u64)>, StoreError> {
    let rows: Vec<PgRow> = bind(sql, columns).fetch_all(&mut **tx).await.map_err(refused)?;
    let written = written(rows.iter()).ok_or_else(broken)?;
    Ok(written.get(&id).copied())
}

/// Reads one record as this transaction sees it.
async fn load_in(tx: &mut sqlx::Transaction<'_, Postgres>, id: Id) -> Result<Loaded, StoreError> {
    let sql = "SELECT * FROM retrysafe.load_v1(NULL, NULL, ARRAY[$1], ARRAY[NULL::bigint])";
    let query = sqlx::query(sql).persistent(false).bind(id.as_bytes().to_vec());
    let rows: Vec<PgRow> = query.fetch_all(&mut **tx).await.map_err(refused)?;
    Loaded::read(rows.iter()).ok_or_else(broken)
}

fn bind(sql: &'static str, columns: &[Column]) -> Query<'static, Postgres, PgArguments> {
    // No statement is prepared by name: the application's pool may stand behind a pooler.
    let query = sqlx::query(sql).persistent(false);
    columns.iter().fold(query, |query, column| match column {
        Column::Bytes(values) => query.bind(values.clone()),
        Column::MaybeBytes(values) => query.bind(values.clone()),
        Column::MaybeTexts(values) => query.bind(values.clone()),
        Column::Numbers(values) => query.bind(values.clone()),
        Column::MaybeNumbers(values) => query.bind(values.clone()),
        Column::Shorts(values) => query.bind(values.clone()),
        Column::MaybeShorts(values) => query.bind(values.clone()),
    })
}

impl PostgresStore {
    /// Reaps a record that is over, for the begin that takes its place.
    async fn reap_in(
        &self,
        tx: &mut sqlx::Transaction<'_, Postgres>,
        id: Id,
    ) -> Result<(), StoreError> {
        let keep = self.inner.shared.settings.expiry == Expiry::Keep;
        let sql = "SELECT reaped FROM retrysafe.reap_v1(ARRAY[$1], NULL, $2)";
        let query = sqlx::query(sql).persistent(false).bind(id.as_bytes().to_vec()).bind(keep);
        query.execute(&mut **tx).await.map(drop).map_err(refused)
    }
}

/// Nothing in a transaction that is not committed is applied, whatever the failure was.
fn refused(error: sqlx::Error) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable).because(error)
}
