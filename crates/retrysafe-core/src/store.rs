//! What must a store promise?
//!
//! A narrow compare-and-set over whole records. A store carries records, it does not judge them;
//! the verbs people think in are written once, in [`engine`](crate::engine), over
//! [`machine`](crate::machine). What every store must keep:
//!
//! * **Atomic.** Of any number of concurrent [`insert`](Store::insert)s of one id exactly one is
//!   [`New`](Inserted::New); of concurrent [`swap`](Store::swap)s from one version exactly one is
//!   [`Done`](Swapped::Done).
//! * **Durable** as the store's kind promises, before the call returns.
//! * **Fresh numbers.** Versions come from one sequence that rises for ever, across restarts and
//!   reaping. A number that occurs twice would let a writer of an older generation win.
//! * **One clock**, the store's own, read inside the atomic step; it may stand still, but the
//!   retention of a record must not end early because of it.
//! * **Honest errors.** An error says whether the write may have been applied.
//! * **Never absent by damage.** A record that cannot be read is an error, not `None`.
//!
//! `conformance` (a feature of this crate) is this list as a test suite, one macro line per store.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::key::KeyDigest;
use crate::record::{First, Record, Standing, Write};
use crate::scope::{Id, Scope};
use crate::time::Time;

/// The most records one page of a scan may hold, whatever the caller asks for.
pub const PAGE_MAX: usize = 1_000;

/// Keeps records.
///
/// Futures may be dropped at any point. A write whose future was dropped may have been applied.
pub trait Store: Send + Sync + 'static {
    /// Inserts a record unless a live one exists, which is then returned.
    ///
    /// A record that [is expired](Record::is_expired) by the store's clock counts as none and is
    /// replaced. The record kept is [`First::record`] of the store's clock and next version.
    fn insert(
        &self,
        first: First,
    ) -> impl Future<Output = Result<Stamped<Inserted>, StoreError>> + Send;

    /// Reads a record, expired or not.
    fn load(
        &self,
        id: Id,
    ) -> impl Future<Output = Result<Stamped<Option<Record>>, StoreError>> + Send;

    /// Replaces `from` by [`Write::onto`] it, if `from.version` is still the current version.
    /// The losing swap returns the current record.
    fn swap(
        &self,
        from: Record,
        write: Write,
    ) -> impl Future<Output = Result<Stamped<Swapped>, StoreError>> + Send;

    /// Reads one page of the records that match. A record that exists and matches during the whole
    /// scan, page after page, is returned exactly once. The order is the store's own.
    fn scan(&self, query: Query) -> impl Future<Output = Result<Stamped<Page>, StoreError>> + Send;

    /// Deletes the records that are expired by the store's clock, at most `limit` of them, and says
    /// how many. Fewer than `limit` means that nothing was left but what others are deleting.
    /// Records in progress and unknown ones are never touched, at any age.
    fn reap(&self, limit: usize)
    -> impl Future<Output = Result<Stamped<usize>, StoreError>> + Send;

    /// Whether a new record could be made durable now. It is asked for readiness, about once a
    /// second, and leaves no record behind.
    ///
    /// A store that can be read while it cannot be written writes something here, as durably as it
    /// writes records. Where the two always go together, a read will do.
    fn probe(&self) -> impl Future<Output = Result<Stamped<()>, StoreError>> + Send {
        async { self.load(Id::from_bytes([0; 32])).await.map(|read| read.map(drop)) }
    }
}

/// A store that is shared: by requests, the sweeper and the reaper of one process.
// Not `async fn`: a future around a future would hold the arguments a second time.
impl<S: Store> Store for Arc<S> {
    fn insert(&self, first: First) -> impl Future<Output = Result<Stamped<Inserted>, StoreError>> {
        S::insert(self, first)
    }

    fn load(&self, id: Id) -> impl Future<Output = Result<Stamped<Option<Record>>, StoreError>> {
        S::load(self, id)
    }

    fn swap(
        &self,
        from: Record,
        write: Write,
    ) -> impl Future<Output = Result<Stamped<Swapped>, StoreError>> {
        S::swap(self, from, write)
    }

    fn scan(&self, query: Query) -> impl Future<Output = Result<Stamped<Page>, StoreError>> {
        S::scan(self, query)
    }

    fn reap(&self, limit: usize) -> impl Future<Output = Result<Stamped<usize>, StoreError>> {
        S::reap(self, limit)
    }

    fn probe(&self) -> impl Future<Output = Result<Stamped<()>, StoreError>> {
        S::probe(self)
    }
}

/// A store whose records can be written inside a transaction of the application, so that a record
/// and the application's own data are committed together or not at all.
///
/// `_in` marks what joins the caller's transaction. Nothing of it holds before that is committed.
pub trait Transactional: Store {
    /// The application's transaction.
    type Transaction: Send;

    /// As [`Store::insert`].
    fn insert_in(
        &self,
        tx: &mut Self::Transaction,
        first: First,
    ) -> impl Future<Output = Result<Stamped<Inserted>, StoreError>> + Send;

    /// As [`Store::swap`].
    fn swap_in(
        &self,
        tx: &mut Self::Transaction,
        from: Record,
        write: Write,
    ) -> impl Future<Output = Result<Stamped<Swapped>, StoreError>> + Send;

    /// Makes the transaction fail: whatever was done in it can only be rolled back from here on.
    fn refuse_in(&self, tx: &mut Self::Transaction, why: &str) -> impl Future<Output = ()> + Send;
}

/// An answer of a store, with its clock's reading at the moment of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped<T> {
    /// The store's clock.
    pub now: Time,
    /// The answer.
    pub value: T,
}

/// What became of an insert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// This record is new, and the inserter owns it.
    New(Record),
    /// This live record was there before.
    Exists(Record),
}

/// What became of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// This record is current now.
    Done(Record),
    /// The version had changed. This is the current record, if there still is one.
    Lost(Option<Record>),
}

/// Which records to read, and from where on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Query {
    /// Which records.
    pub filter: Filter,
    /// Where the last page ended.
    pub after: Option<Cursor>,
    /// How many at the most; [`PAGE_MAX`] is the bound.
    pub limit: usize,
}

/// Which records to read. Every condition that is set must hold.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Filter {
    /// Only in this state.
    pub standing: Option<Standing>,
    /// Only leases that are over by the store's clock.
    pub lease_over: bool,
    /// Only of this scope.
    pub scope: Option<Scope>,
    /// Only of this route.
    pub route: Option<Box<str>>,
    /// Only with this key, whatever the scope.
    pub key: Option<KeyDigest>,
    /// Only created before.
    pub created_before: Option<Time>,
}

/// Where a page ended. Only the store that made it can read it.
#[derive(Clone, PartialEq, Eq)]
pub struct Cursor(pub Vec<u8>);

/// One page of a scan.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Page {
    /// The records.
    pub records: Vec<Record>,
    /// Records that match as far as one can tell, but cannot be read.
    pub damaged: Vec<Id>,
    /// Where the next page begins; none after the last.
    pub next: Option<Cursor>,
}

/// A store's failure.
///
/// The question that matters is [`may_have_applied`](Self::may_have_applied): a write that surely
/// was not applied may be tried again or given up; one that may have been applied may not be
/// forgotten.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    applied: bool,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// Out of reach, closed, or too slow.
    Unavailable,
    /// No room for another record. Reading goes on.
    Full,
    /// The record is damaged, or of a version that this program does not know.
    Damaged,
    /// The store broke its contract. Nothing it says is to be relied on.
    Broken,
}

impl Filter {
    /// Whether a record matches, by the store's clock. For stores that cannot ask more cleverly.
    pub fn matches(&self, record: &Record, now: Time) -> bool {
        self.standing.is_none_or(|standing| record.standing() == standing)
            && (!self.lease_over || record.lease_until().is_some_and(|until| until <= now))
            && self.scope.as_ref().is_none_or(|scope| *scope == record.scope)
            && self.route.as_ref().is_none_or(|route| *route == record.about.route)
            && self.key.is_none_or(|key| key == record.key)
            && self.created_before.is_none_or(|before| record.created_at < before)
    }
}

impl Query {
    /// How many records the page may hold.
    pub fn page_len(&self) -> usize {
        self.limit.clamp(1, PAGE_MAX)
    }
}

impl<T> Stamped<T> {
    /// The same answer of another shape.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Stamped<U> {
        Stamped { now: self.now, value: change(self.value) }
    }
}

impl StoreError {
    /// A failure of this kind, before anything could have been written.
    pub fn not_applied(kind: StoreErrorKind) -> Self {
        Self { kind, applied: false, source: None }
    }

    /// A failure of this kind, after which the write may have been applied.
    pub fn maybe_applied(kind: StoreErrorKind) -> Self {
        Self { kind, applied: true, source: None }
    }

    /// The same failure with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the write may have been applied all the same.
    pub fn may_have_applied(&self) -> bool {
        self.applied
    }
}

impl StoreErrorKind {
    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Full => "full",
            Self::Damaged => "damaged",
            Self::Broken => "broken",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            StoreErrorKind::Unavailable => "the store is out of reach",
            StoreErrorKind::Full => "the store is full",
            StoreErrorKind::Damaged => "the record is damaged",
            StoreErrorKind::Broken => "the store broke its contract",
        })?;
        if self.applied {
            f.write_str("; the write may have been applied")?;
        }
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursor({})", crate::scope::hex(&self.0))
    }
}
