//! How does the tiered store reach the Redis of its copies?
//!
//! As any store reaches its servers, but nobody asks what this Redis is: it may evict, forget, or be
//! another one tomorrow.

use redis::{Cmd, Value};
use retrysafe_core::scope::Id;
use retrysafe_core::store::StoreError;

use super::names::bucket_of;
use super::nodes::Nodes;
use super::settings::{Purpose, RedisUrl};

/// The servers that keep copies.
pub(in crate::stores) struct CopyNodes(Nodes);

impl std::fmt::Debug for CopyNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CopyNodes")
    }
}

impl CopyNodes {
    pub(in crate::stores) fn new(url: &RedisUrl) -> Self {
        let mut settings = (*url.settings).clone();
        settings.purpose = Purpose::Copies;
        settings.wait = None;
        Self(Nodes::new(settings, None))
    }

    /// Sends a command about the copy of a record. It may be sent twice.
    pub(in crate::stores) async fn ask(
        &self,
        id: &Id,
        command: impl Fn(&str) -> Cmd + Sync,
    ) -> Result<Value, StoreError> {
        let bucket = bucket_of(id);
        let key = self.0.names.bucket(bucket).map(|keys| keys.copy(id)).unwrap_or_default();
        self.0.call(bucket, false, |_| command(&key)).await
    }

    /// Whether a server answers.
    pub(in crate::stores) async fn is_there(&self) -> bool {
        self.0.find().await.is_ok() && self.0.call(0, false, |_| redis::cmd("PING")).await.is_ok()
    }
}
