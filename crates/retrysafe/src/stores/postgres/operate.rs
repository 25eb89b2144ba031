//! How does an operator ask about the outbox?

use retrysafe_core::store::StoreError;
use tokio_postgres::types::Type;

use super::PostgresStore;

impl PostgresStore {
    /// Asks and decides about effects, in JSON: see `0004_operators.sql`.
    pub(crate) async fn operate(&self, verb: &str, asked: &str) -> Result<String, StoreError> {
        let sql = "SELECT retrysafe.operate_v1($1, $2::jsonb)::text";
        self.with_wire(async |wire| {
            let parameters = [(&verb as _, Type::TEXT), (&asked as _, Type::TEXT)];
            wire.client.query_typed_one(sql, &parameters).await?.try_get(0)
        })
        .await
    }
}
