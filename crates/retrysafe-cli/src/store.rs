//! How safe are records where they are kept?

use std::borrow::Cow;

use retrysafe::stores::any::{AnyStore, StoreUrl};
use retrysafe::stores::disk::Durability;

/// How safe they are there, for people. A Redis says itself what it promises.
pub(crate) fn durability(url: &StoreUrl, store: &AnyStore) -> Cow<'static, str> {
    if let AnyStore::Redis(redis) = store {
        return redis.durability().into();
    }
    match url {
        StoreUrl::Memory => "no: a restart forgets everything, and retries across it run again",
        StoreUrl::Disk { durability: Durability::Process, .. } => {
            "only across a crash of the process, not of the machine"
        }
        StoreUrl::Disk { durability: Durability::Full, .. } => {
            "yes: every answer is flushed before it leaves"
        }
        StoreUrl::Tiered(_) => {
            "yes: every answer is committed to PostgreSQL before it leaves; Redis serves copies"
        }
        StoreUrl::Postgres(_) => "yes: every answer is committed before it leaves",
        StoreUrl::Redis(_) => "as this Redis is configured",
    }
    .into()
}
