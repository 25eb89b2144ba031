//! How does a record join a transaction of `sqlx`?
//!
//! A [`sqlx::Transaction`] is one. A [`PgConnection`](sqlx::PgConnection) may be in one, by `BEGIN` or
//! because it was borrowed from a transaction; one that is in none is refused.

use retrysafe_core::store::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Executor as _, Postgres, Transaction};

use super::columns::Column;
use super::tx::{ApplicationTransaction, sealed::Joined};

impl ApplicationTransaction for Transaction<'_, Postgres> {}
impl ApplicationTransaction for PgConnection {}

impl Joined for Transaction<'_, Postgres> {
    type Row = PgRow;

    async fn check(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn ask(
        &mut self,
        sql: &'static str,
        columns: &[Column],
    ) -> Result<Vec<PgRow>, StoreError> {
        Joined::ask(&mut **self, sql, columns).await
    }
}

impl Joined for PgConnection {
    type Row = PgRow;

    async fn check(&mut self) -> Result<(), StoreError> {
        // The server takes a savepoint inside a transaction and nowhere else.
        let asked = self.execute("SAVEPOINT retrysafe; RELEASE SAVEPOINT retrysafe").await;
        asked.map(drop).map_err(refused)
    }

    async fn ask(
        &mut self,
        sql: &'static str,
        columns: &[Column],
    ) -> Result<Vec<PgRow>, StoreError> {
        bind(sql, columns).fetch_all(self).await.map_err(refused)
    }
}

fn bind(sql: &'static str, columns: &[Column]) -> Query<'static, Postgres, PgArguments> {
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

/// Nothing in a transaction that is not committed is applied, whatever the failure was.
fn refused(error: sqlx::Error) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable).because(error)
}
