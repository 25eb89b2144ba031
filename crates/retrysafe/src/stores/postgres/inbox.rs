//! How are webhooks kept?

use retrysafe_core::store::{StoreError, StoreErrorKind};
use tokio_postgres::types::Type;

use super::PostgresStore;

impl PostgresStore {
    /// Asks and changes the inbox, in JSON: see `0005_inbox.sql`. Where it succeeds, what was changed is as durable as a settle.
    pub(crate) async fn ask_inbox(
        &self,
        verb: &str,
        asked: &str,
        payload: Option<&[u8]>,
    ) -> Result<Option<String>, StoreError> {
        let sql = "SELECT retrysafe.inbox_v1($1, $2::jsonb, $3)::text";
        let (answer, is_warned) = self
            .with_wire_of(&self.inner.inbox, async |wire| {
                let warned = wire.warned();
                let parameters = [
                    (&verb as _, Type::TEXT),
                    (&asked as _, Type::TEXT),
                    (&payload as _, Type::BYTEA),
                ];
                let answer = wire.client.query_typed_one(sql, &parameters).await?.try_get(0)?;
                Ok((answer, wire.warned() != warned))
            })
            .await?;
        if is_warned {
            return Err(StoreError::maybe_applied(StoreErrorKind::Unavailable)
                .because("the wait for the standby was cancelled"));
        }
        Ok(answer)
    }
}
