//! How does a record join the application's transaction?
//!
//! Through [`Engine::begin_in`](retrysafe_core::Engine::begin_in) and
//! [`Engine::settle_in`](retrysafe_core::Engine::settle_in) with a transaction of the same database:
//! the payment and the answer that says so are committed together, or neither is. The transaction is
//! one of `tokio-postgres`, or with the feature `sqlx` a transaction or a connection of `sqlx`.
//!
//! ```no_run
//! # use retrysafe::core::{Engine, engine::Lease, record::Outcome};
//! # use retrysafe::stores::postgres::PostgresStore;
//! # async fn example(mut client: tokio_postgres::Client, engine: Engine<PostgresStore>, lease: Lease, outcome: Outcome)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = client.transaction().await?;
//! tx.execute("INSERT INTO payment (amount) VALUES (100)", &[]).await?;
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
//! cancelled, neither driver shows the warning by itself.

use std::time::Duration;

use retrysafe_core::record::{Fence, First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Inserted, Stamped, StoreError, StoreErrorKind, Swapped, Transactional,
};
use tokio_postgres::types::{ToSql, Type};

use super::carry::{damaged, held_by_another};
use super::column::Column;
use super::columns::{Begins, Changes};
use super::rival::is_grant;
use super::row::{Cells, Found, Hold, Loaded, Written};
use super::settings::Expiry;
use super::{PostgresStore, broken};
use crate::stores::quarantine::{Server, held};

/// How often a record that another transaction holds right now is asked for again: the pauses add up
/// to about a second. Nothing of ours holds one longer than a flush.
const TRIES_MAX: u32 = 8;

/// A transaction of the application, whichever driver it is of. Nobody else implements this.
pub trait ApplicationTransaction: Send + sealed::Joined {}

pub(super) mod sealed {
    use super::{Cells, Column, StoreError};

    /// What is asked of a driver.
    pub trait Joined: Send {
        type Row: Cells + Send + Sync;

        /// Refuses a connection that is in no transaction: what it is told would be committed at once.
        fn check(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

        /// Runs a statement without preparing it by name: a pooler may stand in between.
        fn ask(
            &mut self,
            sql: &'static str,
            columns: &[Column],
        ) -> impl Future<Output = Result<Vec<Self::Row>, StoreError>> + Send;
    }
}

impl<T: ApplicationTransaction> Transactional<T> for PostgresStore {
    async fn insert_in(&self, tx: &mut T, first: First) -> Result<Stamped<Inserted>, StoreError> {
        tx.check().await?;
        let id = first.id;
        for attempt in 0..TRIES_MAX {
            let mut begins = Begins::none();
            begins.push(&first);
            let written = write_in(tx, include_str!("sql/begin_in.sql"), &begins.columns()).await?;
            if let Some((now, version)) = written.done.get(&id) {
                let value = Inserted::New(first.into_record(*now, *version));
                return Ok(Stamped { now: *now, value });
            }
            self.note(written.hold).await?;
            let loaded = load_in(tx, id).await?;
            let now = loaded.now;
            let held_until = written.held_until();
            match (loaded.found.get(&id), held_until) {
                (Some(Found::Damaged(_, what)), _) => return Err(damaged(*what)),
                (Some(Found::Record(record)), _) if !record.is_expired(now) => {
                    let value = Inserted::Exists((**record).clone());
                    return Ok(Stamped { now, value });
                }
                (Some(Found::Record(_) | Found::AsKnown) | None, Some(until)) => {
                    return Err(held(until, Server::Postgres));
                }
                (Some(Found::Record(_)), None) => self.reap_in(tx, id).await?,
                (Some(Found::AsKnown) | None, None) => {}
            }
            tokio::time::sleep(Duration::from_millis(4 << attempt)).await;
        }
        Err(held_by_another())
    }

    async fn swap_in(
        &self,
        tx: &mut T,
        from: Record,
        write: Write,
    ) -> Result<Stamped<Swapped>, StoreError> {
        tx.check().await?;
        for _ in 0..TRIES_MAX {
            let mut changes = Changes::none();
            changes.push(&from, &write);
            let sql = include_str!("sql/change_in.sql");
            let written = write_in(tx, sql, &changes.columns()).await?;
            if let Some((now, version)) = written.done.get(&from.id) {
                let value = Swapped::Done(write.over(from, *now, *version));
                return Ok(Stamped { now: *now, value });
            }
            if written.hold == Some(Hold::Unobserved) {
                self.note(written.hold).await?;
                continue;
            }
            let held_until = written.held_until().filter(|_| is_grant(&write));
            let loaded = load_in(tx, from.id).await?;
            let now = loaded.now;
            return match (loaded.found.get(&from.id), held_until) {
                (Some(Found::Damaged(_, what)), _) => Err(damaged(*what)),
                (Some(Found::Record(record)), Some(until)) if record.version == from.version => {
                    Err(held(until, Server::Postgres))
                }
                (Some(Found::Record(record)), _) => {
                    Ok(Stamped { now, value: Swapped::Lost(Some((**record).clone())) })
                }
                (Some(Found::AsKnown), _) => Err(broken()),
                (None, _) => Ok(Stamped { now, value: Swapped::Lost(None) }),
            };
        }
        Err(StoreError::not_applied(StoreErrorKind::Unavailable)
            .because("the server changes faster than it can be noted"))
    }

    async fn guard_in(&self, tx: &mut T, id: Id, fence: Fence) -> Result<(), StoreError> {
        tx.check().await?;
        let sql = "SELECT retrysafe.guard_v1(($1::bytea[])[1], ($2::bigint[])[1])";
        let mut fences = Column::of_numbers();
        fences.push_number(fence.0.cast_signed());
        tx.ask(sql, &[name(id), fences]).await.map(drop)
    }

    async fn refuse_in(&self, tx: &mut T, why: &str) {
        // The statement is there to fail: from here on the server accepts nothing but a rollback.
        let mut reasons = Column::of_texts();
        reasons.push(why.as_bytes());
        let _ = tx.ask("SELECT retrysafe.refuse_v1(($1::text[])[1])", &[reasons]).await;
    }
}

/// Writes one record, or nothing if it was not as it was read.
async fn write_in<T: ApplicationTransaction>(
    tx: &mut T,
    sql: &'static str,
    columns: &[Column],
) -> Result<Written, StoreError> {
    Written::read(tx.ask(sql, columns).await?.iter()).ok_or_else(broken)
}

/// Reads one record as this transaction sees it.
async fn load_in<T: ApplicationTransaction>(tx: &mut T, id: Id) -> Result<Loaded, StoreError> {
    let sql = "SELECT * FROM retrysafe.load_v1(NULL, NULL, $1::bytea[], ARRAY[NULL::bigint])";
    Loaded::read(tx.ask(sql, &[name(id)]).await?.iter()).ok_or_else(broken)
}

fn name(id: Id) -> Column {
    let mut names = Column::of_bytes();
    names.push(id.as_bytes());
    names
}

impl PostgresStore {
    /// Notes that the server is another one, over a connection of the store: what the application's
    /// transaction notes holds only with its commit.
    async fn note(&self, hold: Option<Hold>) -> Result<(), StoreError> {
        match hold {
            Some(Hold::Unobserved) => self.observe_anew().await,
            Some(Hold::Until(_)) | None => Ok(()),
        }
    }

    /// Reaps a record that is over, for the begin that takes its place.
    async fn reap_in<T: ApplicationTransaction>(
        &self,
        tx: &mut T,
        id: Id,
    ) -> Result<(), StoreError> {
        let sql = match self.inner.shared.settings.expiry {
            Expiry::Keep => "SELECT reaped FROM retrysafe.reap_v1($1::bytea[], NULL, true)",
            Expiry::Delete => "SELECT reaped FROM retrysafe.reap_v1($1::bytea[], NULL, false)",
        };
        tx.ask(sql, &[name(id)]).await.map(drop)
    }
}

/// Nothing in a transaction that is not committed is applied, whatever the failure was.
fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable).because(error)
}

impl ApplicationTransaction for tokio_postgres::Transaction<'_> {}

impl sealed::Joined for tokio_postgres::Transaction<'_> {
    type Row = tokio_postgres::Row;

    async fn check(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn ask(
        &mut self,
        sql: &'static str,
        columns: &[Column],
    ) -> Result<Vec<Self::Row>, StoreError> {
        let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
            columns.iter().map(Column::parameter).collect();
        // This driver says "db error", and what the server has said one level below.
        self.query_typed(sql, &parameters).await.map_err(|error| match error.as_db_error() {
            Some(told) => refused(told.clone()),
            None => refused(error),
        })
    }
}
