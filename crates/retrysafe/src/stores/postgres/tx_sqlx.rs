//! How does a record join a transaction of `sqlx`?
//!
//! A [`sqlx::Transaction`] is one. A [`PgConnection`](sqlx::PgConnection) may be in one, by `BEGIN` or
//! because it was borrowed from a transaction; one that is in none is refused.

use retrysafe_core::store::{StoreError, StoreErrorKind};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgConnection, PgRow, PgTypeInfo};
use sqlx::query::Query;
use sqlx::{Encode, Executor as _, Postgres, Transaction, Type};

use super::column::{Column, ElementKind};
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

fn bind<'c>(sql: &'static str, columns: &'c [Column]) -> Query<'c, Postgres, PgArguments> {
    let query = sqlx::query(sql).persistent(false);
    columns.iter().fold(query, |query, column| query.bind(column))
}

impl Type<Postgres> for Column {
    /// Each column says for itself of what it is.
    fn type_info() -> PgTypeInfo {
        type_of(ElementKind::Bytes)
    }
}

impl Encode<'_, Postgres> for Column {
    fn encode_by_ref(&self, out: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        self.put(&mut **out);
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(type_of(self.kind()))
    }
}

fn type_of(kind: ElementKind) -> PgTypeInfo {
    PgTypeInfo::with_oid(Oid(kind.array_type().oid()))
}

/// Nothing in a transaction that is not committed is applied, whatever the failure was.
fn refused(error: sqlx::Error) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable).because(error)
}
