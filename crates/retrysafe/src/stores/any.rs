//! Which store does a URL name?
//!
//! | URL | store |
//! | --- | --- |
//! | `memory:` | in memory, forgotten with the process |
//! | `disk:PATH` | in a folder, flushed before it is acknowledged |
//! | `disk:PATH?durability=process` | the same, surviving a crash of the process only |
//! | `disk:PATH?create=never` | the same, refusing a folder that holds no store |
//! | `postgres://USER:PASSWORD@HOST/DATABASE` | in PostgreSQL, shared with others |
//! | `redis://USER:PASSWORD@HOST/DB`, `rediss:`, `redis+unix:` | in Redis, shared with others |
//! | `tiered:postgres://…\|redis://…` | in PostgreSQL, with copies of answers in Redis |
//! | `redis-cluster://HOST,HOST`, `redis+sentinel://HOST,HOST/NAME` | in a Redis that fails over |
//!
//! A URL may hold a password. Nothing here shows one: a [`StoreUrl`] is displayed without it, and an
//! error never repeats what it could not read.

use std::fmt;
#[cfg(feature = "disk")]
use std::path::PathBuf;
use std::str::FromStr;

use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Census, ChangeHint, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError, Swapped,
    Voucher,
};

#[cfg(feature = "disk")]
use super::disk::{CreatePolicy, DiskOptions, DiskStore, Durability, OpenError};
use super::memory::MemoryStore;
#[cfg(feature = "postgres")]
use super::postgres::{ConnectError, PostgresStore, PostgresUrl};
#[cfg(feature = "redis")]
use super::redis::{ConnectError as RedisError, RedisStore, RedisUrl};
#[cfg(all(feature = "postgres", feature = "redis"))]
use super::tiered::{TieredStore, TieredUrl, TieredUrlError};

/// A URL that was understood. The store itself need not be there yet.
///
/// ```
/// use retrysafe::stores::any::StoreUrl;
///
/// let url: StoreUrl = "memory:".parse()?;
/// assert_eq!(url, StoreUrl::Memory);
/// # Ok::<(), retrysafe::stores::any::AnyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// See [`memory`](super::memory).
    Memory,
    /// See [`disk`](super::disk).
    #[cfg(feature = "disk")]
    Disk {
        /// Where.
        folder: PathBuf,
        /// What its records survive.
        durability: Durability,
        /// Whether it may be created.
        create: CreatePolicy,
    },
    /// See [`postgres`](super::postgres).
    #[cfg(feature = "postgres")]
    Postgres(PostgresUrl),
    /// See [`redis`](super::redis).
    #[cfg(feature = "redis")]
    Redis(RedisUrl),
    /// See [`tiered`](super::tiered).
    #[cfg(all(feature = "postgres", feature = "redis"))]
    Tiered(Box<TieredUrl>),
}

/// A store that was chosen by its URL.
///
/// ```
/// # async fn example() -> Result<(), retrysafe::stores::any::AnyError> {
/// use retrysafe::layer::IdempotencyLayer;
/// use retrysafe::stores::any::{AnyStore, StoreUrl};
///
/// let url: StoreUrl = "memory:".parse()?;
/// let layer = IdempotencyLayer::new(AnyStore::open(&url).await?);
/// # let _ = layer;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum AnyStore {
    /// See [`memory`](super::memory).
    Memory(MemoryStore),
    /// See [`disk`](super::disk).
    #[cfg(feature = "disk")]
    Disk(DiskStore),
    /// See [`postgres`](super::postgres).
    #[cfg(feature = "postgres")]
    Postgres(PostgresStore),
    /// See [`redis`](super::redis).
    #[cfg(feature = "redis")]
    Redis(RedisStore),
    /// See [`tiered`](super::tiered).
    #[cfg(all(feature = "postgres", feature = "redis"))]
    Tiered(TieredStore),
}

/// Whether a wall clock counts that is weeks ahead of the last time that a disk store has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WallClock {
    /// It does not: the store is not opened, for everything in it would be expired.
    #[default]
    Checked,
    /// An operator has looked at it and says that it is right.
    Accepted,
}

/// Why a URL opens no store.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyError {
    /// The URL names no store that this program has.
    Url,
    /// The disk store could not be opened.
    #[cfg(feature = "disk")]
    Disk(OpenError),
    /// The PostgreSQL store could not be opened, or its URL is wrong.
    #[cfg(feature = "postgres")]
    Postgres(ConnectError),
    /// The Redis store could not be opened, or its URL is wrong.
    #[cfg(feature = "redis")]
    Redis(RedisError),
    /// The URL of a tiered store is wrong.
    #[cfg(all(feature = "postgres", feature = "redis"))]
    Tiered(TieredUrlError),
}

impl FromStr for StoreUrl {
    type Err = AnyError;

    fn from_str(url: &str) -> Result<Self, AnyError> {
        let (scheme, rest) = url.split_once(':').ok_or(AnyError::Url)?;
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            #[cfg(feature = "disk")]
            "disk" => {
                let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
                let mut durability = Durability::Full;
                let mut create = CreatePolicy::IfAbsent;
                for option in query.split('&').filter(|option| !option.is_empty()) {
                    match option {
                        "durability=full" => durability = Durability::Full,
                        "durability=process" => durability = Durability::Process,
                        "create=never" => create = CreatePolicy::Never,
                        _ => return Err(AnyError::Url),
                    }
                }
                // `disk:///var/lib/x` is how others write `disk:/var/lib/x`.
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    Err(AnyError::Url)
                } else {
                    Ok(Self::Disk { folder: path.into(), durability, create })
                }
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                url.parse().map(Self::Postgres).map_err(AnyError::Postgres)
            }
            #[cfg(feature = "redis")]
            scheme if RedisUrl::SCHEMES.contains(&scheme) => {
                url.parse().map(Self::Redis).map_err(AnyError::Redis)
            }
            #[cfg(all(feature = "postgres", feature = "redis"))]
            "tiered" => {
                let url: TieredUrl = url.parse().map_err(AnyError::Tiered)?;
                Ok(Self::Tiered(Box::new(url)))
            }
            _ => Err(AnyError::Url),
        }
    }
}

impl StoreUrl {
    /// The largest body of an answer that such a store can keep.
    pub fn answer_bytes_max(&self) -> usize {
        match self {
            Self::Memory => usize::MAX,
            #[cfg(feature = "disk")]
            Self::Disk { .. } => super::disk::ANSWER_BYTES_MAX,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => super::postgres::ANSWER_BYTES_MAX,
            #[cfg(feature = "redis")]
            Self::Redis(_) => super::redis::ANSWER_BYTES_MAX,
            #[cfg(all(feature = "postgres", feature = "redis"))]
            Self::Tiered(_) => super::postgres::ANSWER_BYTES_MAX,
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            #[cfg(feature = "disk")]
            Self::Disk { folder, durability, create } => {
                let durability = match durability {
                    Durability::Full => None,
                    Durability::Process => Some("durability=process"),
                };
                let create = match create {
                    CreatePolicy::IfAbsent => None,
                    CreatePolicy::Never => Some("create=never"),
                };
                let options: Vec<&str> = durability.into_iter().chain(create).collect();
                let mark = if options.is_empty() { "" } else { "?" };
                write!(f, "disk:{}{mark}{}", folder.display(), options.join("&"))
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => url.fmt(f),
            #[cfg(feature = "redis")]
            Self::Redis(url) => url.fmt(f),
            #[cfg(all(feature = "postgres", feature = "redis"))]
            Self::Tiered(url) => url.fmt(f),
        }
    }
}

impl AnyStore {
    /// The database in which effects can be staged; none if this store has no outbox.
    #[cfg(feature = "outbox")]
    pub fn outbox(&self) -> Option<&PostgresStore> {
        match self {
            Self::Memory(_) => None,
            #[cfg(feature = "disk")]
            Self::Disk(_) => None,
            Self::Postgres(store) => Some(store),
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
            #[cfg(feature = "redis")]
            Self::Tiered(store) => Some(store.decides()),
        }
    }

    /// Opens the store that a URL names. The thread is blocked while a disk store is read.
    ///
    /// # Errors
    ///
    /// See [`AnyError`].
    pub async fn open(url: &StoreUrl) -> Result<Self, AnyError> {
        Self::open_by_clock(url, WallClock::Checked).await
    }

    /// The same, with a word about the wall clock.
    ///
    /// # Errors
    ///
    /// See [`AnyError`].
    #[cfg_attr(
        not(any(feature = "postgres", feature = "redis")),
        expect(clippy::unused_async, reason = "others wait")
    )]
    #[cfg_attr(not(feature = "disk"), expect(unused_variables, reason = "the disk store's"))]
    pub async fn open_by_clock(url: &StoreUrl, clock: WallClock) -> Result<Self, AnyError> {
        match url {
            StoreUrl::Memory => Ok(Self::Memory(MemoryStore::new())),
            #[cfg(feature = "disk")]
            StoreUrl::Disk { folder, durability, create } => {
                let options = DiskOptions::new().durability(*durability).create(*create);
                let options = match clock {
                    WallClock::Checked => options,
                    WallClock::Accepted => options.accept_clock(),
                };
                options.open(folder).map(Self::Disk).map_err(AnyError::Disk)
            }
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => {
                PostgresStore::open(url).await.map(Self::Postgres).map_err(AnyError::Postgres)
            }
            #[cfg(feature = "redis")]
            StoreUrl::Redis(url) => {
                RedisStore::open(url).await.map(Self::Redis).map_err(AnyError::Redis)
            }
            #[cfg(all(feature = "postgres", feature = "redis"))]
            StoreUrl::Tiered(url) => {
                TieredStore::open(url).await.map(Self::Tiered).map_err(AnyError::Postgres)
            }
        }
    }
}

impl AnyStore {
    /// How many records were in progress when the store was opened, where opening it proves that
    /// nobody can be executing them any more. They are unknown now.
    pub fn abandoned(&self) -> usize {
        match self {
            // What was in memory is gone, and a server has other owners.
            Self::Memory(_) => 0,
            #[cfg(feature = "disk")]
            Self::Disk(store) => store.abandoned(),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => 0,
            #[cfg(feature = "redis")]
            Self::Redis(_) => 0,
            #[cfg(all(feature = "postgres", feature = "redis"))]
            Self::Tiered(_) => 0,
        }
    }
}

impl AnyError {
    /// Whether the store may be there later as it is: it is out of reach, or not ready yet. Everything
    /// else is wrong for good.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Url => false,
            #[cfg(feature = "disk")]
            Self::Disk(_) => false,
            #[cfg(feature = "postgres")]
            Self::Postgres(error) => error.may_pass(),
            #[cfg(feature = "redis")]
            Self::Redis(error) => error.may_pass(),
            #[cfg(all(feature = "postgres", feature = "redis"))]
            Self::Tiered(_) => false,
        }
    }
}

impl fmt::Display for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url => f.write_str(
                "names no store: use memory:, disk:PATH, disk:PATH?durability=process, \
                 disk:PATH?create=never, postgres://USER:PASSWORD@HOST/DATABASE, \
                 redis://USER:PASSWORD@HOST/DB, redis-cluster://HOST,HOST, \
                 redis+sentinel://HOST,HOST/NAME or tiered:postgres://…|redis://…",
            ),
            #[cfg(feature = "disk")]
            Self::Disk(error) => error.fmt(f),
            #[cfg(feature = "postgres")]
            Self::Postgres(error) => error.fmt(f),
            #[cfg(feature = "redis")]
            Self::Redis(error) => error.fmt(f),
            #[cfg(all(feature = "postgres", feature = "redis"))]
            Self::Tiered(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AnyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Url => None,
            #[cfg(feature = "disk")]
            Self::Disk(error) => Some(error),
            #[cfg(feature = "postgres")]
            Self::Postgres(error) => Some(error),
            #[cfg(feature = "redis")]
            Self::Redis(error) => Some(error),
            #[cfg(all(feature = "postgres", feature = "redis"))]
            Self::Tiered(error) => Some(error),
        }
    }
}

/// The same call to whichever store it is, and its answer. Whoever waits for an answer is as large as the largest store's way
/// to it, so the ways over a network are in a box.
macro_rules! ask_whichever {
    ($any:ident, $store:ident => $call:expr) => {
        match $any {
            Self::Memory($store) => $call.await,
            #[cfg(feature = "disk")]
            Self::Disk($store) => $call.await,
            #[cfg(feature = "postgres")]
            Self::Postgres($store) => Box::pin($call).await,
            #[cfg(feature = "redis")]
            Self::Redis($store) => Box::pin($call).await,
            #[cfg(all(feature = "postgres", feature = "redis"))]
            Self::Tiered($store) => Box::pin($call).await,
        }
    };
}

/// The same call to whichever store it is.
macro_rules! whichever {
    ($any:ident, $store:ident => $call:expr) => {
        match $any {
            Self::Memory($store) => $call,
            #[cfg(feature = "disk")]
            Self::Disk($store) => $call,
            #[cfg(feature = "postgres")]
            Self::Postgres($store) => $call,
            #[cfg(feature = "redis")]
            Self::Redis($store) => $call,
            #[cfg(all(feature = "postgres", feature = "redis"))]
            Self::Tiered($store) => $call,
        }
    };
}

impl Store for AnyStore {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        ask_whichever!(self, store => store.insert(first))
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        ask_whichever!(self, store => store.load(id))
    }

    async fn load_unless(&self, id: Id, version: u64) -> Result<Stamped<LoadedUnless>, StoreError> {
        ask_whichever!(self, store => store.load_unless(id, version))
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        whichever!(self, store => store.change_hint(id))
    }

    fn voucher(&self) -> Option<&dyn Voucher> {
        whichever!(self, store => store.voucher())
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        ask_whichever!(self, store => store.swap(from, write))
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        ask_whichever!(self, store => store.scan(query))
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        ask_whichever!(self, store => store.reap(limit))
    }

    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        ask_whichever!(self, store => store.probe())
    }

    async fn latest(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        ask_whichever!(self, store => store.latest(query))
    }

    async fn census(&self) -> Result<Stamped<Census>, StoreError> {
        ask_whichever!(self, store => store.census())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_its_store() {
        assert_eq!("memory:".parse::<StoreUrl>().unwrap(), StoreUrl::Memory);
        for url in [
            "",
            "memory",
            "memory:x",
            "rabbit://h",
            "disk:",
            "disk:/x?durability=none",
            "disk:/x?create=always",
        ] {
            assert!(matches!(url.parse::<StoreUrl>(), Err(AnyError::Url)), "{url}");
        }
    }

    #[test]
    fn what_is_not_understood_is_not_repeated() {
        for url in [
            "redis:u:secret@h",
            "rabbit://u:secret@h",
            "secret",
            "postgres:u:secret@h/d",
            "disk:/x?secret",
        ] {
            let told = url.parse::<StoreUrl>().map(|_| ()).unwrap_err();
            assert!(!format!("{told} {told:?}").contains("secret"), "{told:?}");
        }
    }

    #[cfg(feature = "disk")]
    #[tokio::test]
    async fn a_disk_url_names_a_folder_and_its_durability() {
        let folder = tempfile::tempdir().unwrap();
        let open = async |url: &str| AnyStore::open(&url.parse().unwrap()).await;
        for query in ["", "?durability=full", "?durability=process"] {
            let url = format!("disk:{}{query}", folder.path().display());
            assert!(matches!(open(&url).await, Ok(AnyStore::Disk(_))), "{url}");
        }
        let url = format!("disk://{}", folder.path().display());
        let first = open(&url).await.unwrap();
        let busy = open(&url).await.unwrap_err().to_string();
        assert!(busy.contains("in use by process"), "{busy}");
        drop(first);
        for shown in [
            "disk:/x",
            "disk:/x?durability=process",
            "disk:/x?create=never",
            "disk:/x?durability=process&create=never",
        ] {
            assert_eq!(shown.parse::<StoreUrl>().unwrap().to_string(), shown);
        }
    }
}
