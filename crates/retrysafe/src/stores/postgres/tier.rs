//! What does the database keep for a Redis that answers in its stead?
//!
//! One row: the secret by which copies of answers are known to be ours, and the answer epoch, which
//! ends every copy that was made before it. The statement that expires a record raises the epoch, in the
//! same transaction (`migrations/0001_records.sql`): there is nothing to be done here.

use retrysafe_core::store::StoreError;
use retrysafe_core::time::Time;

use super::fields::time;
use super::row::Cells as _;
use super::{PostgresStore, broken};

impl PostgresStore {
    /// The secret of copies, the answer epoch, and the database's clock.
    pub(in crate::stores) async fn answer_tier(&self) -> Result<([u8; 32], u64, Time), StoreError> {
        let sql = "SELECT secret, epoch, retrysafe.now_ms() FROM retrysafe.answer_tier";
        let row = self.with_wire(async |wire| wire.client.query_typed_one(sql, &[]).await).await?;
        let secret: Option<Vec<u8>> = row.try_get(0).ok();
        let secret = secret.and_then(|secret| secret.try_into().ok()).ok_or_else(broken)?;
        let (epoch, now) = (row.number(1).ok_or_else(broken)?, row.number(2).ok_or_else(broken)?);
        Ok((secret, epoch as u64, time(now)))
    }
}
