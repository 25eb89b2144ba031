//! How long may a store take over one step of upkeep?
//!
//! Without a limit, one call that never comes back would end the sweeper in silence. A call that
//! takes too long is given up, counted and logged; the task goes on with its next step or round.

use std::future::Future;
use std::time::Duration;

use retrysafe_core::event;
use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Census, ChangeHint, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError,
    StoreErrorKind, Swapped,
};
use retrysafe_core::units::show_duration;

/// A store with a time limit on every call, which reports what fails.
pub(super) struct TimeLimited<S> {
    pub(super) store: S,
    pub(super) limit: Duration,
}

impl<S: Store> TimeLimited<S> {
    /// A write that was given up may have been applied; [`StoreError`] says which it is.
    async fn call<T>(
        &self,
        operation: &'static str,
        given_up: fn(StoreErrorKind) -> StoreError,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let result = tokio::time::timeout(self.limit, call).await.unwrap_or_else(|_| {
            let limit = show_duration(self.limit);
            Err(given_up(StoreErrorKind::Unavailable).because(format!("no answer within {limit}")))
        });
        result.inspect_err(|error| {
            let kind = error.kind().name();
            metrics::counter!(event::STORE_ERRORS.name, "operation" => operation, "kind" => kind)
                .increment(1);
            tracing::warn!(target: "retrysafe", operation, kind, %error, "store_error");
        })
    }
}

impl<S: Store> Store for TimeLimited<S> {
    fn insert(&self, first: First) -> impl Future<Output = Result<Stamped<Inserted>, StoreError>> {
        self.call("insert", StoreError::maybe_applied, self.store.insert(first))
    }

    fn load(&self, id: Id) -> impl Future<Output = Result<Stamped<Option<Record>>, StoreError>> {
        self.call("load", StoreError::not_applied, self.store.load(id))
    }

    fn swap(
        &self,
        from: Record,
        write: Write,
    ) -> impl Future<Output = Result<Stamped<Swapped>, StoreError>> {
        self.call("swap", StoreError::maybe_applied, self.store.swap(from, write))
    }

    fn load_unless(
        &self,
        id: Id,
        version: u64,
    ) -> impl Future<Output = Result<Stamped<LoadedUnless>, StoreError>> {
        self.call("load", StoreError::not_applied, self.store.load_unless(id, version))
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        self.store.change_hint(id)
    }

    fn scan(&self, query: Query) -> impl Future<Output = Result<Stamped<Page>, StoreError>> {
        self.call("scan", StoreError::not_applied, self.store.scan(query))
    }

    fn reap(&self, limit: usize) -> impl Future<Output = Result<Stamped<usize>, StoreError>> {
        self.call("reap", StoreError::maybe_applied, self.store.reap(limit))
    }

    fn probe(&self) -> impl Future<Output = Result<Stamped<()>, StoreError>> {
        self.call("probe", StoreError::maybe_applied, self.store.probe())
    }

    fn latest(&self, query: Query) -> impl Future<Output = Result<Stamped<Page>, StoreError>> {
        self.call("latest", StoreError::not_applied, self.store.latest(query))
    }

    fn census(&self) -> impl Future<Output = Result<Stamped<Census>, StoreError>> {
        self.call("census", StoreError::not_applied, self.store.census())
    }
}
