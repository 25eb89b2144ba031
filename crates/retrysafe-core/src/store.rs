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
//! * **Fresh numbers.** The versions of one id rise for ever, across restarts and reaping. A number
//!   that occurs twice would let a writer of an older generation win. One sequence for all records
//!   is a way to do it; a clock that never falls below the last version is another.
//! * **One clock**, the store's own, read inside the atomic step; it may stand still, but the
//!   retention of a record must not end early because of it.
//! * **Honest errors.** An error says whether the write may have been applied.
//! * **Never absent by damage.** A record that cannot be read is an error, not `None`.
//!
//! `conformance` (a feature of this crate) is this list as a test suite, one macro line per store.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::key::KeyDigest;
use crate::mention::{DigestPrefix, Mention};
use crate::record::{Fence, First, Record, Standing, Write};
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

    /// Reads a record unless it is still of this version, which needs no body to be said. For
    /// whoever knows a record and waits for it to change, or keeps a copy of it.
    ///
    /// Unless a store knows better, the record is read and compared.
    fn load_unless(
        &self,
        id: Id,
        version: u64,
    ) -> impl Future<Output = Result<Stamped<LoadedUnless>, StoreError>> + Send {
        async move {
            let loaded = self.load(id).await?;
            Ok(loaded.map(|record| match record {
                Some(record) if record.version == version => LoadedUnless::AsKnown,
                changed => LoadedUnless::Changed(changed),
            }))
        }
    }

    /// A hint that comes when a record was written after this was asked for. It spares a waiter the
    /// next look at its watch and no more: it may come without a change, and it may never come. So
    /// ask for it first, then load, and look again after a while in any case.
    ///
    /// None: this store gives no hints.
    fn change_hint(&self, _id: Id) -> Option<ChangeHint> {
        None
    }

    /// Says without waiting whether what somebody has read still holds, where the store is in this process.
    ///
    /// None: this store has to be asked. A store that wraps another one and refuses some of its calls must not pass the other's on:
    /// whoever is vouched for asks nothing more.
    fn voucher(&self) -> Option<&dyn Voucher> {
        None
    }

    /// Reads one page of the records that match. A record that exists and matches during the whole
    /// scan, page after page, is returned at least once; one that changes meanwhile may be returned
    /// again, as it is then. The order is the store's own.
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

    /// Reads one page of the records that match, those that were written last first. A record that
    /// is written during the scan, page after page, may be missed or returned once more.
    ///
    /// For operators. Unless a store knows better, the whole store is read for each page.
    fn latest(
        &self,
        query: Query,
    ) -> impl Future<Output = Result<Stamped<Page>, StoreError>> + Send {
        latest_by_scan(self, query)
    }

    /// Counts what an operator must know of. Cheap enough to be asked every few seconds.
    ///
    /// Unless a store knows better, every unknown record is read, and nothing else is counted.
    fn census(&self) -> impl Future<Output = Result<Stamped<Census>, StoreError>> + Send {
        census_by_scan(self)
    }
}

async fn latest_by_scan<S: Store + ?Sized>(
    store: &S,
    query: Query,
) -> Result<Stamped<Page>, StoreError> {
    let below = query.after.as_ref().map_or(Ok(u64::MAX), Cursor::version)?;
    let room = query.page_len();
    let mut page = Page::default();
    let mut each = Query { filter: query.filter, after: None, limit: PAGE_MAX };
    loop {
        let Stamped { now, value: read } = store.scan(each.clone()).await?;
        page.damaged.extend(read.damaged);
        page.damaged.sort_unstable();
        page.damaged.dedup();
        page.records.extend(read.records.into_iter().filter(|record| record.version < below));
        page.records.sort_unstable_by_key(|record| std::cmp::Reverse(record.version));
        // A scan may return a record more than once; the first one here is the latest.
        let mut met = BTreeSet::new();
        page.records.retain(|record| met.insert(record.id));
        // One more than fits shows that there are more.
        page.records.truncate(room + 1);
        match read.next {
            Some(cursor) => each.after = Some(cursor),
            None => {
                let is_cut = page.records.len() > room;
                page.records.truncate(room);
                let last = page.records.last().filter(|_| is_cut);
                page.next = last.map(|record| Cursor::of_version(record.version));
                return Ok(Stamped { now, value: page });
            }
        }
    }
}

async fn census_by_scan<S: Store + ?Sized>(store: &S) -> Result<Stamped<Census>, StoreError> {
    let standing = Some(Standing::Unknown);
    let filter = Filter { standing, ..Filter::default() };
    let mut query = Query { filter, after: None, limit: PAGE_MAX };
    let mut census = Census::default();
    // What is unknown is few; a scan may return a record more than once.
    let mut met = BTreeSet::new();
    loop {
        let Stamped { now, value: page } = store.scan(query.clone()).await?;
        for record in page.records.iter().filter(|record| met.insert(record.id)) {
            census.unknown += 1;
            census.unknown_since = match (census.unknown_since, record.unknown_since()) {
                (Some(oldest), Some(since)) => Some(oldest.min(since)),
                (oldest, since) => oldest.or(since),
            };
        }
        match page.next {
            Some(cursor) => query.after = Some(cursor),
            None => return Ok(Stamped { now, value: census }),
        }
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

    fn load_unless(
        &self,
        id: Id,
        version: u64,
    ) -> impl Future<Output = Result<Stamped<LoadedUnless>, StoreError>> {
        S::load_unless(self, id, version)
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        S::change_hint(self, id)
    }

    fn voucher(&self) -> Option<&dyn Voucher> {
        S::voucher(self)
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

    fn latest(&self, query: Query) -> impl Future<Output = Result<Stamped<Page>, StoreError>> {
        S::latest(self, query)
    }

    fn census(&self) -> impl Future<Output = Result<Stamped<Census>, StoreError>> {
        S::census(self)
    }
}

/// A store whose records can be written inside a transaction of the application, so that a record
/// and the application's own data are committed together or not at all.
///
/// `_in` marks what joins the caller's transaction. Nothing of it holds before that is committed.
/// `T` is that transaction: a store may know those of several drivers.
pub trait Transactional<T: Send>: Store {
    /// As [`Store::insert`].
    fn insert_in(
        &self,
        tx: &mut T,
        first: First,
    ) -> impl Future<Output = Result<Stamped<Inserted>, StoreError>> + Send;

    /// As [`Store::swap`].
    fn swap_in(
        &self,
        tx: &mut T,
        from: Record,
        write: Write,
    ) -> impl Future<Output = Result<Stamped<Swapped>, StoreError>> + Send;

    /// Binds the transaction to this attempt: from here on it can be committed only once the record
    /// was [swapped](Self::swap_in) in it, whatever is rolled back to a savepoint meanwhile.
    ///
    /// It fails if the fence was lost, and inside a savepoint, with which it would be undone.
    fn guard_in(
        &self,
        tx: &mut T,
        id: Id,
        fence: Fence,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Makes the transaction fail: whatever was done in it can only be rolled back from here on, or
    /// back to a savepoint.
    fn refuse_in(&self, tx: &mut T, why: &str) -> impl Future<Output = ()> + Send;
}

/// A store in this process, which knows its records without waiting for anything.
pub trait Voucher {
    /// The store's clock, if the current record of this id is of this version, durable, and may be answered from. None
    /// where that is not so, or cannot be said at once.
    ///
    /// What a version holds never changes. So whoever has read it before needs to read nothing now.
    fn vouch(&self, id: Id, version: u64) -> Option<Time>;

    /// The current record, as [`Store::load`] gives it. None where there is none, or where it cannot be said at once.
    fn at_hand(&self, id: Id) -> Option<Record>;
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

/// What [`Store::load_unless`] has found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
pub enum LoadedUnless {
    /// The record is still of the version that the asker knows.
    AsKnown,
    /// The record is of another version, or gone.
    Changed(Option<Record>),
}

/// Ends when a record was written. See [`Store::change_hint`].
pub struct ChangeHint(Pin<Box<dyn Future<Output = ()> + Send>>);

impl ChangeHint {
    /// A hint that comes when this future ends.
    pub fn new(change: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Box::pin(change))
    }
}

impl Future for ChangeHint {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for ChangeHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChangeHint")
    }
}

/// Which records to read, and from where on.
///
/// ```
/// use retrysafe_core::record::Standing;
/// use retrysafe_core::store::{Filter, Query};
///
/// let filter = Filter { standing: Some(Standing::Unknown), ..Filter::default() };
/// let query = Query { filter, after: None, limit: 100 };
/// # let _ = query;
/// ```
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
    /// Only of this path.
    pub path: Option<Box<str>>,
    /// Only with this key, whatever the scope.
    pub key: Option<KeyDigest>,
    /// Only created before.
    pub created_before: Option<Time>,
    /// Only whose id begins so.
    pub id: Option<DigestPrefix>,
    /// Only what a person means by this.
    pub mention: Option<Mention>,
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

/// What a store holds, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Census {
    /// How many records, expired ones that were not reaped yet among them. An estimate, where
    /// counting would mean reading all of them.
    pub records: Option<u64>,
    /// How many bytes they take up where they lie.
    pub bytes: Option<u64>,
    /// How many records are unknown.
    pub unknown: u64,
    /// Since when the oldest of those is unknown.
    pub unknown_since: Option<Time>,
}

/// A store's failure.
///
/// The question that matters is [`may_have_applied`](Self::may_have_applied): a write that surely
/// was not applied may be tried again or given up; one that may have been applied may not be
/// forgotten.
///
/// ```
/// use retrysafe_core::store::{StoreError, StoreErrorKind};
///
/// let error = StoreError::maybe_applied(StoreErrorKind::Unavailable).because("no answer within 5s");
/// assert!(error.may_have_applied());
/// ```
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
    /// It may have forgotten what it acknowledged, and lets nobody execute for a while. Reading and
    /// settling go on.
    Held,
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
            && self.path.as_ref().is_none_or(|path| *path == record.about.path)
            && self.created_before.is_none_or(|before| record.created_at < before)
            && self.id.is_none_or(|digits| digits.contains(record.id.as_bytes()))
            && self.mention.as_ref().is_none_or(|mention| mention.is_of(record))
    }
}

impl Query {
    /// How many records the page may hold.
    pub fn page_len(&self) -> usize {
        self.limit.clamp(1, PAGE_MAX)
    }
}

impl Cursor {
    /// Where a page of [`Store::latest`] ended: below this version.
    pub fn of_version(version: u64) -> Self {
        Self(version.to_be_bytes().to_vec())
    }

    /// The version below which the next page of [`Store::latest`] begins.
    ///
    /// # Errors
    ///
    /// If it is no such cursor.
    pub fn version(&self) -> Result<u64, StoreError> {
        self.0.as_slice().try_into().map(u64::from_be_bytes).map_err(|_| {
            StoreError::not_applied(StoreErrorKind::Broken).because("a foreign cursor")
        })
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
            Self::Held => "held",
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
            StoreErrorKind::Held => "the store may have forgotten something and grants nothing new",
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
        write!(f, "Cursor({})", crate::hex::hex(&self.0))
    }
}
