//! How do all stores share one compiled suite?
//!
//! A case sees its bench and its store as trait objects, so that the suite is compiled once, with
//! this crate. A store's tests compile only the few lines that lead from its bench to these.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::{Bench, Damage, Owners, Reopen};
use crate::record::{First, Record, Write};
use crate::scope::Id;
use crate::store::{
    Census, ChangeHint, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError, Swapped,
    Voucher,
};

/// An answer that comes later.
pub(super) type Soon<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An answer of a store that comes later.
type Answer<'a, T> = Soon<'a, Result<Stamped<T>, StoreError>>;

/// A bench of any kind.
pub(super) type Stand = Box<dyn AnyBench>;

/// A bench that can damage records.
pub(super) type DamageStand = Box<dyn AnyDamage>;

/// A bench that can reopen its store.
pub(super) type ReopenStand = Box<dyn AnyReopen>;

/// See [`Bench`].
pub(super) trait AnyBench: Send + Sync {
    fn store(&self) -> AnyStore;
    fn advance(&self, by: Duration) -> Soon<'_, ()>;
}

/// See [`Damage`].
pub(super) trait AnyDamage: AnyBench {
    fn flip(&self, id: Id, at: usize) -> Soon<'_, ()>;
    fn make_newer(&self, id: Id) -> Soon<'_, ()>;
}

/// See [`Reopen`].
pub(super) trait AnyReopen: AnyBench {
    fn reopen(&mut self) -> Soon<'_, Owners>;
}

/// A store of any kind.
#[derive(Clone)]
pub(super) struct AnyStore(Arc<dyn Boxed>);

/// See [`Store`].
trait Boxed: Send + Sync {
    fn insert(&self, first: First) -> Answer<'_, Inserted>;
    fn load(&self, id: Id) -> Answer<'_, Option<Record>>;
    fn load_unless(&self, id: Id, version: u64) -> Answer<'_, LoadedUnless>;
    fn change_hint(&self, id: Id) -> Option<ChangeHint>;
    fn swap(&self, from: Record, write: Write) -> Answer<'_, Swapped>;
    fn scan(&self, query: Query) -> Answer<'_, Page>;
    fn reap(&self, limit: usize) -> Answer<'_, usize>;
    fn probe(&self) -> Answer<'_, ()>;
    fn latest(&self, query: Query) -> Answer<'_, Page>;
    fn census(&self) -> Answer<'_, Census>;
    fn voucher(&self) -> Option<&dyn Voucher>;
}

impl<B: Bench> AnyBench for B {
    fn store(&self) -> AnyStore {
        AnyStore(Bench::store(self))
    }

    fn advance(&self, by: Duration) -> Soon<'_, ()> {
        Box::pin(Bench::advance(self, by))
    }
}

impl<B: Damage> AnyDamage for B {
    fn flip(&self, id: Id, at: usize) -> Soon<'_, ()> {
        Box::pin(Damage::flip(self, id, at))
    }

    fn make_newer(&self, id: Id) -> Soon<'_, ()> {
        Box::pin(Damage::make_newer(self, id))
    }
}

impl<B: Reopen> AnyReopen for B {
    fn reopen(&mut self) -> Soon<'_, Owners> {
        Box::pin(Reopen::reopen(self))
    }
}

impl<S: Store> Boxed for S {
    fn insert(&self, first: First) -> Answer<'_, Inserted> {
        Box::pin(Store::insert(self, first))
    }

    fn load(&self, id: Id) -> Answer<'_, Option<Record>> {
        Box::pin(Store::load(self, id))
    }

    fn load_unless(&self, id: Id, version: u64) -> Answer<'_, LoadedUnless> {
        Box::pin(Store::load_unless(self, id, version))
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        Store::change_hint(self, id)
    }

    fn swap(&self, from: Record, write: Write) -> Answer<'_, Swapped> {
        Box::pin(Store::swap(self, from, write))
    }

    fn scan(&self, query: Query) -> Answer<'_, Page> {
        Box::pin(Store::scan(self, query))
    }

    fn reap(&self, limit: usize) -> Answer<'_, usize> {
        Box::pin(Store::reap(self, limit))
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(Store::probe(self))
    }

    fn latest(&self, query: Query) -> Answer<'_, Page> {
        Box::pin(Store::latest(self, query))
    }

    fn census(&self) -> Answer<'_, Census> {
        Box::pin(Store::census(self))
    }

    fn voucher(&self) -> Option<&dyn Voucher> {
        Store::voucher(self)
    }
}

impl Store for AnyStore {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        self.0.insert(first).await
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        self.0.load(id).await
    }

    async fn load_unless(&self, id: Id, version: u64) -> Result<Stamped<LoadedUnless>, StoreError> {
        self.0.load_unless(id, version).await
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        self.0.change_hint(id)
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        self.0.swap(from, write).await
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.0.scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.0.reap(limit).await
    }

    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        self.0.probe().await
    }

    async fn latest(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.0.latest(query).await
    }

    async fn census(&self) -> Result<Stamped<Census>, StoreError> {
        self.0.census().await
    }

    fn voucher(&self) -> Option<&dyn Voucher> {
        self.0.voucher()
    }
}
