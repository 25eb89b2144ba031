//! How safe are records where they are kept?

use std::borrow::Cow;

use retrysafe::stores::any::{AnyStore, StoreUrl};
use retrysafe::stores::disk::Durability;

/// The kind of a store, in a word.
pub(crate) fn kind(url: &StoreUrl) -> &'static str {
    match url {
        StoreUrl::Memory => "memory",
        StoreUrl::Disk { .. } => "disk",
        StoreUrl::Postgres(_) => "postgres",
        StoreUrl::Redis(_) => "redis",
        StoreUrl::Tiered(_) => "tiered",
    }
}

/// How safe they are there, for people. A server says itself what it promises.
pub(crate) fn durability(url: &StoreUrl, store: &AnyStore) -> Cow<'static, str> {
    match store {
        AnyStore::Memory(_) => {
            "no: a restart forgets everything, and retries across it run again".into()
        }
        AnyStore::Disk(_) => match url {
            StoreUrl::Disk { durability: Durability::Process, .. } => {
                "only across a crash of the process, not of the machine".into()
            }
            StoreUrl::Disk { durability: Durability::Full, .. }
            | StoreUrl::Memory
            | StoreUrl::Postgres(_)
            | StoreUrl::Redis(_)
            | StoreUrl::Tiered(_) => "yes: every answer is flushed before it leaves".into(),
        },
        AnyStore::Postgres(postgres) => format!("yes: {}", postgres.durability()).into(),
        AnyStore::Tiered(tiered) => format!("yes: {}", tiered.durability()).into(),
        AnyStore::Redis(redis) => redis.durability().into(),
    }
}
