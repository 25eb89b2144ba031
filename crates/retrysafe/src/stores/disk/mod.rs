//! How are records kept on the disk of one machine?
//!
//! The embedded, durable store: a log made for this job. Every record dies at its TTL, every write
//! is flushed before it is acknowledged, and every crash has been rehearsed. One thread writes; it
//! gathers whatever is asked meanwhile into one write and one flush. Reads and replays go past it.
//!
//! ```
//! use retrysafe::core::Engine;
//! use retrysafe::stores::disk::{DiskOptions, DiskStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! let store = DiskOptions::new().segment_bytes(1 << 20).open(path)?;
//! let engine = Engine::new(store.clone());
//! store.close();
//! # let _ = engine;
//! # Ok(())
//! # }
//! ```
//!
//! * One process owns the store. Whatever was in progress when it is opened becomes `unknown`.
//! * The folder is its owner's alone (mode 0700). If it is taken away or replaced while the store is
//!   open, everything is refused.
//! * The index is in memory, some 55 bytes for each record.
//! * Disk space is given back to the store, never to the file system.
//! * A full disk refuses new requests; replays go on, and running requests can be settled.
//! * After a failed write or flush everything is refused until the store is opened again.
//!
//! `docs/disk-format.md` describes the files. Read `append` and `tail` first, then `open`.

mod append;
mod aside;
mod batch;
mod clean;
mod create;
mod doctor;
mod error;
mod files;
mod folder;
mod format;
mod index;
mod open;
mod ops;
mod pending;
mod read;
mod read_cache;
mod recover;
#[cfg(test)]
mod rehearsal;
mod salvage;
mod segments;
mod snapshot;
mod snapshot_taker;
mod spares;
mod survey;
mod tail;
mod writer;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Census, ChangeHint, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError,
    StoreErrorKind, Swapped, Voucher,
};
use retrysafe_core::time::Time;
use tokio::sync::{Semaphore, mpsc, oneshot};

pub use self::doctor::{DoctorReport, SegmentReport, StoreFault, doctor};
pub use self::error::OpenError;
use self::folder::LockedFolder;
use self::ops::WriterOp;
use self::pending::Reply;
use self::read::LogReader;
pub use self::salvage::{HeldKey, SalvageError, SalvageReport, UnreadablePart, salvage};
use super::clock::Clock;

/// How long a segment is unless told otherwise. Ten million records of a kilobyte are 240 of these,
/// and each is an open file.
pub const SEGMENT_BYTES: u32 = 64 << 20;

/// The largest body of an answer that a store with segments of [`SEGMENT_BYTES`] can keep. A record
/// lies in one segment, and a mebibyte is left for everything else of it: headers, path, timeline.
pub const ANSWER_BYTES_MAX: usize = (SEGMENT_BYTES as usize) - (1 << 20);

/// The shortest segment that makes sense: a header, a few batches.
const SEGMENT_BYTES_MIN: u32 = 8 * format::PAGE as u32;

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// It survives a crash of the machine: flushed to the device.
    #[default]
    Full,
    /// It survives a crash of the process: handed to the operating system. After a crash of the
    /// machine the store may have lost acknowledged records or refuse to open.
    Process,
}

/// Whether a store may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CreatePolicy {
    /// A folder that is empty or does not exist becomes a store.
    #[default]
    IfAbsent,
    /// It is refused: it may be the folder on which a volume should have been mounted.
    Never,
}

/// How a store is opened.
///
/// ```no_run
/// use retrysafe::stores::disk::{CreatePolicy, DiskOptions};
///
/// let store = DiskOptions::new().create(CreatePolicy::Never).open("/var/lib/payments")?;
/// # let _ = store;
/// # Ok::<(), retrysafe::stores::disk::OpenError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DiskOptions {
    settings: StoreSettings,
}

/// What the log needs to know.
#[derive(Clone, Debug)]
struct StoreSettings {
    durability: Durability,
    segment_bytes: u32,
    clock: Clock,
    create: CreatePolicy,
    /// Whether a wall clock counts that is weeks ahead of the store's mark.
    accept_clock: bool,
    /// Whether segments are filled and snapshots taken by the writer itself, in an order that a
    /// test can repeat.
    inline: bool,
}

/// Keeps records on the disk of one machine. Clones are the same store.
///
/// ```no_run
/// use retrysafe::layer::IdempotencyLayer;
/// use retrysafe::stores::disk::DiskStore;
///
/// let layer = IdempotencyLayer::new(DiskStore::open("/var/lib/payments")?);
/// # let _ = layer;
/// # Ok::<(), retrysafe::stores::disk::OpenError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DiskStore {
    reader: Arc<LogReader>,
    writer: Arc<WriterHandle>,
    /// How many more pages may be read at once.
    page_permits: Arc<Semaphore>,
}

/// The way to the writer's thread, which ends when this is dropped.
#[derive(Debug)]
struct WriterHandle {
    queue: mpsc::Sender<WriterOp>,
    is_closing: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Locked until the writer has ended.
    folder: Arc<LockedFolder>,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl DiskOptions {
    /// Full durability, segments of [`SEGMENT_BYTES`], the system's clock.
    pub fn new() -> Self {
        let settings = StoreSettings {
            durability: Durability::Full,
            segment_bytes: SEGMENT_BYTES,
            clock: Clock::system(),
            create: CreatePolicy::IfAbsent,
            accept_clock: false,
            inline: false,
        };
        Self { settings }
    }

    /// What an acknowledgement promises.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.settings.durability = durability;
        self
    }

    /// How long a segment is, if the store is created. A store keeps its length for life. No record
    /// can be longer, and on a full disk this much is kept for settling.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u32) -> Self {
        let page = format::PAGE as u32;
        self.settings.segment_bytes = bytes.max(SEGMENT_BYTES_MIN) / page * page;
        self
    }

    /// Whether a store may be created.
    #[must_use]
    pub fn create(mut self, create: CreatePolicy) -> Self {
        self.settings.create = create;
        self
    }

    /// Goes by a wall clock that is more than 30 days ahead of the store's mark, instead of refusing
    /// to open. Whatever has expired by that clock is expired.
    #[must_use]
    pub fn accept_clock(mut self) -> Self {
        self.settings.accept_clock = true;
        self
    }

    /// The clock to go by, which is set forward to the store's mark.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Opens the store in a folder, or creates it there if the folder is empty or does not exist.
    ///
    /// Blocks until the store is read and verified. Every record that was in progress is unknown
    /// when this returns.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. Nothing was changed if the store is damaged.
    pub fn open(self, path: impl AsRef<Path>) -> Result<DiskStore, OpenError> {
        let path = path.as_ref();
        let folder = Arc::new(LockedFolder::own(path, self.settings.create)?);
        let log = open::open(Arc::clone(&folder) as _, self.settings)?;
        folder.sign();
        let reader = Arc::clone(&log.reader);
        let is_closing = Arc::new(AtomicBool::new(false));
        let (queue, thread) = writer::start(log, Arc::clone(&is_closing))
            .map_err(OpenError::io("start a thread for", path))?;
        let writer = WriterHandle { queue, is_closing, thread: Mutex::new(Some(thread)), folder };
        Ok(DiskStore { reader, writer: Arc::new(writer), page_permits: aside::page_permits() })
    }
}

impl DiskStore {
    /// Opens the store in a folder with the default [`DiskOptions`].
    ///
    /// # Errors
    ///
    /// See [`DiskOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        DiskOptions::new().open(path)
    }

    /// How many records the store holds, expired ones that were not reaped among them.
    pub fn records(&self) -> usize {
        self.reader.index.len()
    }

    /// How many records were in progress when the store was opened. Their owners are gone; they are
    /// unknown now.
    pub fn abandoned(&self) -> usize {
        self.reader.abandoned.load(Ordering::Relaxed)
    }

    /// Finishes what is queued, takes a snapshot for the next opening and gives the folder free.
    /// Whatever is asked afterwards is refused. Dropping the last clone does the same.
    pub fn close(&self) {
        self.writer.end();
        // Before another owner may come: what this one has read may be old then.
        let _ = self.reader.failure.set("the store was closed".into());
        self.writer.folder.unlock();
    }

    async fn ask<T>(
        &self,
        op: impl FnOnce(Reply<T>) -> WriterOp,
    ) -> Result<Stamped<T>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.writer.queue.send(op(reply)).await.map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::maybe_applied(StoreErrorKind::Unavailable)
                .because("the store's writer has ended"))
        })
    }
}

fn closed() -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable).because("the store is closed")
}

impl WriterHandle {
    fn end(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A full queue needs no word from us: the writer is awake and looks at the flag.
            self.is_closing.store(true, Ordering::SeqCst);
            let _ = self.queue.try_send(WriterOp::Close);
            // A writer that panicked has dropped its log; its callers were told.
            let _ = thread.join();
        }
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.end();
        self.folder.unlock();
    }
}

impl Store for DiskStore {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        self.reader.check()?;
        // A replay is answered here, beside the writer. What the index shows is durable.
        if let Some(record) = self.reader.find_answer(&first.id)? {
            let now = self.reader.clock.now();
            if !record.is_expired(now) {
                self.reader.check_folder()?;
                return Ok(Stamped { now, value: Inserted::Exists(record) });
            }
        }
        self.ask(|reply| WriterOp::Insert(Box::new(first), reply)).await
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        self.reader.check_folder()?;
        let value = self.reader.find(&id)?;
        Ok(Stamped { now: self.reader.clock.now(), value })
    }

    async fn load_unless(&self, id: Id, version: u64) -> Result<Stamped<LoadedUnless>, StoreError> {
        // Versions are never used twice, so an entry of this version is this record's.
        if self.reader.index.get(index::prefix_of(&id), version).is_some() {
            self.reader.check_folder()?;
            let now = self.reader.clock.now();
            return Ok(Stamped { now, value: LoadedUnless::AsKnown });
        }
        let loaded = self.load(id).await?;
        Ok(loaded.map(|record| match record {
            Some(record) if record.version == version => LoadedUnless::AsKnown,
            changed => LoadedUnless::Changed(changed),
        }))
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        Some(self.reader.watchers.hint(id))
    }

    fn voucher(&self) -> Option<&dyn Voucher> {
        Some(self)
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        self.reader.check()?;
        self.ask(|reply| WriterOp::Swap(Box::new((from, write)), reply)).await
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.aside(move |reader| reader.scan(&query)).await
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.reader.check()?;
        self.ask(|reply| WriterOp::Reap(limit, reply)).await
    }

    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        self.reader.check()?;
        self.ask(WriterOp::Probe).await
    }

    async fn latest(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.aside(move |reader| reader.latest(&query)).await
    }

    async fn census(&self) -> Result<Stamped<Census>, StoreError> {
        Ok(Stamped { now: self.reader.clock.now(), value: self.reader.census()? })
    }
}

impl Voucher for DiskStore {
    fn vouch(&self, id: Id, version: u64) -> Option<Time> {
        // Versions are never used twice, so an entry of this version is this record's, and the index shows what is durable.
        self.reader.index.get(index::prefix_of(&id), version)?;
        self.reader.check_folder_lately().ok()?;
        Some(self.reader.clock.now())
    }

    fn at_hand(&self, id: Id) -> Option<Record> {
        self.reader.check_folder().ok()?;
        self.reader.find_answer(&id).ok().flatten()
    }
}
