//! How are records kept in PostgreSQL?
//!
//! The reference store: many gateways, many processes of an application, one truth, and a record that
//! commits together with the application's own data.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use retrysafe::core::Engine;
//! use retrysafe::stores::postgres::PostgresStore;
//!
//! let store = PostgresStore::connect("postgres://app@db.internal/payments").await?;
//! let engine = Engine::new(store);
//! # let _ = engine;
//! # Ok(())
//! # }
//! ```
//!
//! * [`settings`](self#the-url) of the URL, and what a server must be like, are checked on every
//!   connection; see [`ConnectError`].
//! * Writes of one process share transactions, two at a time; see `lane`.
//! * A write whose answer was lost is read back; see `readback`.
//! * A record begins and settles inside the application's transaction; see [`tx`].
//! * A server that was promoted is noticed, and what it may have lost is not run again; see `observe`.
//!
//! # The URL
//!
//! `postgres://user:password@host/database?…` with the parameters of libpq that the driver knows,
//! several hosts and `target_session_attrs=read-write` among them, and these: `deadline=5s`,
//! `expiry=delete|keep`, `audit_days=90`, `quarantine=10m`, `failover=hold|continue`,
//! `migrate=auto|off`, `sslmode=disable|verify-full`, `sslrootcert=…`. A connection off this machine is encrypted and verified unless it is disabled.
//!
//! # What it needs
//!
//! PostgreSQL 13 or newer, `fsync` and `synchronous_commit` on, a primary. A pooler in transaction
//! mode may stand in between: no session state is used, and no statement is prepared by name.
//!
//! The driver here is `tokio-postgres`, while applications mostly hold `sqlx` transactions. Two things
//! decide it: it shows the server's warnings, without which a cancelled wait for the standby would
//! look like a success, and it sends a statement, its parameters and the commit without waiting in
//! between and without a named statement.

mod backend;
mod carry;
mod column;
mod columns;
mod connect;
mod fault;
mod fields;
mod hint;
mod identity;
#[cfg(feature = "webhooks")]
mod inbox;
mod job;
mod lane;
#[cfg(feature = "phases")]
mod last_statement;
mod migrate;
mod next;
mod observe;
#[cfg(feature = "outbox")]
mod operate;
#[cfg(feature = "sqlx")]
mod options_sqlx;
mod place;
mod readback;
#[cfg(any(feature = "phases", all(feature = "axum", feature = "sqlx")))]
mod remains;
mod rival;
mod row;
mod seal;
mod settings;
mod sights;
mod statement;
#[cfg(feature = "redis")]
mod tier;
mod tls;
pub mod tx;
#[cfg(feature = "sqlx")]
mod tx_sqlx;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use fault::ConnectError;
pub(crate) use identity::Identity;
#[cfg(feature = "phases")]
pub(crate) use last_statement::LastStatement;
pub use migrate::{SCHEMA_VERSION, migrate, script, script_from};
#[cfg(any(feature = "phases", all(feature = "axum", feature = "sqlx")))]
pub(crate) use remains::{TransactionRemains, remains_of};
pub use settings::{Expiry, PostgresUrl};
#[cfg(feature = "phases")]
pub(crate) use tx::ApplicationTransaction;

use connect::Wire;
use hint::Hint;
use job::{Ask, Job, Reply, Ticket};
use lane::{Barrier, Lane, Shared};
use retrysafe_core::record::{First, Record, Standing, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Census, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError, StoreErrorKind,
    Swapped,
};
use settings::Settings;
use sights::SweepFloor;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;

use super::quarantine::HeldUntil;
pub use super::quarantine::Trust;

/// How many connections carry writes. One flushes while the other fills; a third gained nothing.
const WRITERS: usize = 2;

/// How many operations wait for the first of them before the second is opened. Fewer fit into one
/// batch, and a small application keeps a connection free.
const SECOND_WRITER_FROM: usize = 8;

/// The largest body of an answer that this store keeps. The server itself would hold a gibibyte in one
/// value; but a settle has half of the deadline to be sent in, 2.5 seconds unless the URL says
/// otherwise, and a server that is busy with others takes a few megabytes in a second.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A store of records in PostgreSQL. Clones share their connections.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    writers: [mpsc::Sender<Job>; WRITERS],
    /// Whether the second of them is needed. Once it is, it stays.
    is_second_open: AtomicBool,
    reader: mpsc::Sender<Job>,
    /// For scans and reaping, which nobody waits for in a hurry.
    upkeep: Mutex<Option<Wire>>,
    /// For probes, which must not wait behind a scan.
    probe: Mutex<Option<Wire>>,
    /// For webhooks, whose senders wait.
    #[cfg(feature = "webhooks")]
    inbox: Mutex<Option<Wire>>,
    hint: Hint,
    sweep_floor: SweepFloor,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the URL: it holds a password.
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects, verifies the server, and brings the schema up to date unless the URL says
    /// `migrate=off`.
    ///
    /// # Errors
    ///
    /// If the URL makes no sense, the server is out of reach, or it cannot keep the promise.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::open(&url.parse()?).await
    }

    /// [Connects](Self::connect) to a URL that was read before.
    ///
    /// # Errors
    ///
    /// If the server is out of reach, or cannot keep the promise.
    pub async fn open(url: &PostgresUrl) -> Result<Self, ConnectError> {
        let settings = Settings::clone(&url.settings);
        let may_migrate = settings.migrate;
        let shared = Arc::new(Shared {
            settings,
            identity: Identity::default(),
            barrier: Barrier::default(),
            held_until: HeldUntil::default(),
        });
        let first = Wire::verified(&shared.settings, &shared.identity).await?;
        migrate::ensure(&first, may_migrate).await?;
        // A former process may have left behind what never reached the standby.
        shared.barrier.raise();
        // Verified once more: only now can its tables be looked at.
        drop(first);
        let start = |wire| Lane::start(Arc::clone(&shared), wire);
        let writers = [start(Some(shared.wire().await?)), start(None)];
        let reader = start(None);
        let inner = Inner {
            shared,
            writers,
            is_second_open: AtomicBool::new(false),
            reader,
            upkeep: Mutex::new(None),
            probe: Mutex::new(None),
            #[cfg(feature = "webhooks")]
            inbox: Mutex::new(None),
            hint: Hint::default(),
            sweep_floor: SweepFloor::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Somebody's commit may not have reached the standby: nothing is read or written before one has.
    #[cfg(feature = "sqlx")]
    #[cfg_attr(not(any(feature = "axum", feature = "phases")), allow(dead_code))]
    pub(crate) fn raise_barrier(&self) {
        self.inner.shared.barrier.raise();
    }

    async fn read(&self, id: Id, known: Option<u64>) -> Result<Stamped<LoadedUnless>, StoreError> {
        match self.ask(&self.inner.reader, Ask::Load(id, known)).await? {
            Reply::Loaded(answer) => Ok(answer),
            Reply::Inserted(_) | Reply::Swapped(_) => Err(broken()),
        }
    }

    fn writer(&self, id: &Id) -> &mpsc::Sender<Job> {
        let [one, two] = &self.inner.writers;
        let is_second_open = &self.inner.is_second_open;
        if !is_second_open.load(Ordering::Relaxed) {
            if one.max_capacity() - one.capacity() < SECOND_WRITER_FROM {
                return one;
            }
            is_second_open.store(true, Ordering::Relaxed);
        }
        // The last byte: the first ones sort the batches.
        if id.as_bytes().last().is_some_and(|byte| byte & 1 == 1) { two } else { one }
    }

    /// Sends a job and waits for its answer, up to the deadline.
    async fn ask(&self, lane: &mpsc::Sender<Job>, ask: Ask) -> Result<Reply, StoreError> {
        let deadline = Instant::now() + self.inner.shared.settings.deadline;
        let (ticket, (reply, answer)) = (Arc::new(Ticket::default()), oneshot::channel());
        let is_read = matches!(ask, Ask::Load(..));
        let job = Job::new(ask, Arc::clone(&ticket), reply);
        let late = || StoreError::not_applied(StoreErrorKind::Unavailable).because("too slow");
        match tokio::time::timeout_at(deadline, lane.send(job)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(StoreError::not_applied(StoreErrorKind::Unavailable)),
            Err(_) => return Err(late()),
        }
        match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            // The lane is gone, or time is up. What was never sent was not applied.
            Ok(Err(_)) | Err(_) if is_read || ticket.give_up() => Err(late()),
            Ok(Err(_)) | Err(_) => {
                Err(StoreError::maybe_applied(StoreErrorKind::Unavailable).because("too slow"))
            }
        }
    }
}

impl Store for PostgresStore {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        let id = first.id;
        if self.inner.hint.is_likely_settled(&id) {
            let Stamped { now, value } = self.load(id).await?;
            if let Some(record) = value.filter(|record| !record.is_expired(now)) {
                return Ok(Stamped { now, value: Inserted::Exists(record) });
            }
        }
        match self.ask(self.writer(&id), Ask::Insert(Box::new(first))).await? {
            Reply::Inserted(answer) => {
                if let Inserted::Exists(record) = &answer.value {
                    self.inner.hint.note(record);
                }
                Ok(answer)
            }
            Reply::Swapped(_) | Reply::Loaded(_) => Err(broken()),
        }
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        let Stamped { now, value } = self.read(id, None).await?;
        match value {
            LoadedUnless::Changed(value) => Ok(Stamped { now, value }),
            LoadedUnless::AsKnown => Err(broken()),
        }
    }

    async fn load_unless(&self, id: Id, version: u64) -> Result<Stamped<LoadedUnless>, StoreError> {
        self.read(id, Some(version)).await
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        let id = from.id;
        match self.ask(self.writer(&id), Ask::Swap(Box::new((from, write)))).await? {
            Reply::Swapped(answer) => {
                if let Swapped::Done(record) = &answer.value {
                    self.inner.hint.note(record);
                }
                Ok(answer)
            }
            Reply::Inserted(_) | Reply::Loaded(_) => Err(broken()),
        }
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.scan_page(query).await
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.reap_some(limit).await
    }

    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        self.probe_server().await
    }

    async fn latest(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.latest_page(query).await
    }

    async fn census(&self) -> Result<Stamped<Census>, StoreError> {
        self.count().await
    }
}

fn broken() -> StoreError {
    StoreError::maybe_applied(StoreErrorKind::Broken)
}

/// Standings by the number they are stored as.
fn standing_number(standing: Standing) -> i16 {
    match standing {
        Standing::InProgress => 0,
        Standing::Completed => 1,
        Standing::FailedRetryable => 2,
        Standing::Unknown => 3,
    }
}
