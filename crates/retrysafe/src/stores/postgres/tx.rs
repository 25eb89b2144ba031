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
//! A commit that fails without an answer may have happened: look at the record before anything else.
//! A commit that the application makes is the application's: if its wait for a synchronous standby is
//! cancelled, `sqlx` does not show the warning.

use std::time::Duration;

use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::store::{
    Inserted, Stamped, StoreError, StoreErrorKind, Swapped, Transactional,
};
use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use super::carry::Rows;
use super::columns::{self, Column};
use super::job::{Ask, Reply};
use super::settings::Expiry;
use super::{PostgresStore, broken, row};

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
        let first = row::storable(first);
        self.prepare(first.ttl).await;
        // Held until the transaction ends, so that duplicates which arrive meanwhile are turned away
        // instead of waiting in the middle of everybody else's batch.
        let held = sqlx::query_scalar::<_, bool>(include_str!("sql/hold.sql"))
            .bind(first.id.as_bytes().to_vec())
            .fetch_one(&mut **tx)
            .await
            .map_err(refused)?;
        if !held {
            return Err(busy());
        }
        let keep = self.inner.shared.settings.expiry == Expiry::Keep;
        let sql = include_str!("sql/insert_in.sql");
        let asked = columns::inserts(std::iter::once(&first), keep);
        match repeat(tx, sql, asked, &Ask::Insert(Box::new(first))).await? {
            Reply::Inserted(answer) => Ok(answer),
            Reply::Swapped(_) | Reply::Loaded(_) => Err(broken()),
        }
    }

    async fn swap_in(
        &self,
        tx: &mut Self::Transaction,
        from: Record,
        write: Write,
    ) -> Result<Stamped<Swapped>, StoreError> {
        self.prepare(write.ttl.unwrap_or(from.ttl)).await;
        let asked = columns::swaps(std::iter::once((&from, &write)));
        let ask = Ask::Swap(Box::new((from, write)));
        match repeat(tx, include_str!("sql/swap_in.sql"), asked, &ask).await? {
            Reply::Swapped(answer) => Ok(answer),
            Reply::Inserted(_) | Reply::Loaded(_) => Err(broken()),
        }
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

/// Asks until the record is not held by somebody else's batch any more.
async fn repeat(
    tx: &mut sqlx::Transaction<'_, Postgres>,
    sql: &'static str,
    columns: Vec<Column>,
    ask: &Ask,
) -> Result<Reply, StoreError> {
    for attempt in 0..TRIES_MAX {
        let rows: Vec<PgRow> = bind(sql, &columns).fetch_all(&mut **tx).await.map_err(refused)?;
        let rows = Rows::read(rows.iter()).ok_or_else(broken)?;
        if let Some(answer) = rows.answer(ask) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(4 << attempt)).await;
    }
    Err(busy())
}

fn bind(sql: &'static str, columns: &[Column]) -> Query<'static, Postgres, PgArguments> {
    // No statement is prepared by name: the application's pool may stand behind a pooler.
    let query = sqlx::query(sql).persistent(false);
    columns.iter().fold(query, |query, column| match column {
        Column::Bytes(values) => query.bind(values.clone()),
        Column::MaybeBytes(values) => query.bind(values.clone()),
        Column::Texts(values) => query.bind(values.clone()),
        Column::MaybeTexts(values) => query.bind(values.clone()),
        Column::Numbers(values) => query.bind(values.clone()),
        Column::MaybeNumbers(values) => query.bind(values.clone()),
        Column::Shorts(values) => query.bind(values.clone()),
        Column::MaybeShorts(values) => query.bind(values.clone()),
        Column::Flags(values) => query.bind(values.clone()),
        Column::OneFlag(value) => query.bind(*value),
    })
}

fn busy() -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable)
        .because("another transaction holds the record")
}

/// Nothing in a transaction that is not committed is applied, whatever the failure was.
fn refused(error: sqlx::Error) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable).because(error)
}
