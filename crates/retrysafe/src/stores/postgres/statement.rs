//! How are our statements sent?
//!
//! Each is one call of a function of the schema, which the server has planned before. Where nothing
//! pools, the call itself is prepared by name too. Behind a pooler the next transaction may meet
//! another backend, which knows no such name, or knows it as somebody else's statement: there the
//! call is sent unnamed, every time.

use std::time::Duration;

use retrysafe_core::scope::Id;
use tokio::sync::OnceCell;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row, Statement as Prepared};

use super::column::Column;
use super::columns::Changes;
use super::connect::Wire;
use super::settings::Expiry;

impl Wire {
    /// Writes a batch of begins, settles and new attempts.
    pub(super) async fn write(
        &self,
        lock_within: Duration,
        columns: &[Column],
    ) -> Result<Vec<Row>, Error> {
        let lock_ms = lock_ms(lock_within);
        let parameters = self.parameters(&lock_ms, columns);
        self.call(&self.named.write, include_str!("sql/write.sql"), &parameters).await
    }

    /// Writes a batch of all other writes.
    pub(super) async fn change(
        &self,
        lock_within: Duration,
        columns: &[Column],
    ) -> Result<Vec<Row>, Error> {
        let lock_ms = lock_ms(lock_within);
        let parameters = self.parameters(&lock_ms, columns);
        self.client.query_typed(include_str!("sql/change.sql"), &parameters).await
    }

    /// How a transaction commits, how long it waits, and what it writes.
    fn parameters<'a>(
        &'a self,
        lock_ms: &'a i32,
        columns: &'a [Column],
    ) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
        let settings: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.sync, Type::TEXT), (lock_ms, Type::INT4)];
        settings.into_iter().chain(columns.iter().map(Column::parameter)).collect()
    }

    /// Calls a function that nearly every request needs.
    async fn call(
        &self,
        named: &OnceCell<Prepared>,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        if !self.is_direct {
            return self.client.query_typed(sql, parameters).await;
        }
        let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
        let prepared = named.get_or_try_init(|| self.client.prepare_typed(sql, &types)).await?;
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        self.client.query(prepared, &values).await
    }

    /// Reads records, each unless it is still of the version that is known.
    pub(super) async fn load(
        &self,
        lock_within: Duration,
        ids: &[(Id, Option<u64>)],
    ) -> Result<Vec<Row>, Error> {
        let lock_ms = lock_ms(lock_within);
        let known: Vec<Option<i64>> =
            ids.iter().map(|(_, known)| known.map(u64::cast_signed)).collect();
        let ids: Vec<&[u8]> = ids.iter().map(|(id, _)| &id.as_bytes()[..]).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.sync, Type::TEXT),
            (&lock_ms, Type::INT4),
            (&ids, Type::BYTEA_ARRAY),
            (&known, Type::INT8_ARRAY),
        ];
        self.call(&self.named.load, include_str!("sql/load.sql"), &parameters).await
    }

    /// Reaps these records, as far as they are over.
    pub(super) async fn reap_these(&self, ids: &[Id], expiry: Expiry) -> Result<(), Error> {
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
        self.reap(Some(ids), None, expiry).await.map(drop)
    }

    /// Reaps these records, or the first ones of all.
    pub(super) async fn reap(
        &self,
        ids: Option<Vec<&[u8]>>,
        most: Option<i32>,
        expiry: Expiry,
    ) -> Result<Vec<Row>, Error> {
        let keep = expiry == Expiry::Keep;
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&ids, Type::BYTEA_ARRAY), (&most, Type::INT4), (&keep, Type::BOOL)];
        let (begun, rows, committed) = tokio::join!(
            biased;
            self.client.batch_execute(&self.begin),
            self.client.query_typed(include_str!("sql/reap.sql"), &parameters),
            self.client.batch_execute("COMMIT"),
        );
        begun.and(rows).and_then(|rows| committed.map(|()| rows))
    }

    /// Writes the unchanging parts of records anew.
    pub(super) async fn mend(&self, changes: Changes) -> Result<(), Error> {
        let columns = changes.unchanging();
        let parameters: Vec<_> = columns.iter().map(Column::parameter).collect();
        self.client.query_typed(include_str!("sql/mend.sql"), &parameters).await.map(drop)
    }
}

fn lock_ms(lock_within: Duration) -> i32 {
    i32::try_from(lock_within.as_millis()).unwrap_or(i32::MAX)
}
