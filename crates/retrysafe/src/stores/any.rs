//! Which store does a URL name?
//!
//! | URL | store |
//! | --- | --- |
//! | `memory:` | in memory, forgotten with the process |
//! | `disk:PATH` | in a folder, flushed before it is acknowledged |
//! | `disk:PATH?durability=process` | the same, surviving a crash of the process only |

use std::fmt;

use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, Page, Query, Stamped, Store, StoreError, Swapped};

#[cfg(feature = "disk")]
use super::disk::{DiskOptions, DiskStore, Durability, OpenError};
use super::memory::MemoryStore;

/// A store that was chosen by its URL.
#[derive(Debug)]
pub enum AnyStore {
    /// See [`memory`](super::memory).
    Memory(MemoryStore),
    /// See [`disk`](super::disk).
    #[cfg(feature = "disk")]
    Disk(DiskStore),
}

/// Why a URL opens no store.
#[derive(Debug)]
pub enum AnyError {
    /// The URL names no store that this program has.
    Url(String),
    /// The disk store could not be opened.
    #[cfg(feature = "disk")]
    Disk(OpenError),
}

impl AnyStore {
    /// Opens the store that a URL names. Blocks until it is open.
    ///
    /// # Errors
    ///
    /// See [`AnyError`].
    pub fn open(url: &str) -> Result<Self, AnyError> {
        let unknown = || AnyError::Url(url.to_owned());
        let (scheme, rest) = url.split_once(':').ok_or_else(unknown)?;
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory(MemoryStore::new())),
            #[cfg(feature = "disk")]
            "disk" => {
                let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
                let durability = match query {
                    "" | "durability=full" => Durability::Full,
                    "durability=process" => Durability::Process,
                    _ => return Err(unknown()),
                };
                // `disk:///var/lib/x` is how others write `disk:/var/lib/x`.
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    return Err(unknown());
                }
                let store = DiskOptions::new().durability(durability).open(path);
                Ok(Self::Disk(store.map_err(AnyError::Disk)?))
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => write!(
                f,
                "`{url}` names no store; use memory:, disk:PATH or disk:PATH?durability=process"
            ),
            #[cfg(feature = "disk")]
            Self::Disk(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AnyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Url(_) => None,
            #[cfg(feature = "disk")]
            Self::Disk(error) => Some(error),
        }
    }
}

impl Store for AnyStore {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        match self {
            Self::Memory(store) => store.insert(first).await,
            #[cfg(feature = "disk")]
            Self::Disk(store) => store.insert(first).await,
        }
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        match self {
            Self::Memory(store) => store.load(id).await,
            #[cfg(feature = "disk")]
            Self::Disk(store) => store.load(id).await,
        }
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        match self {
            Self::Memory(store) => store.swap(from, write).await,
            #[cfg(feature = "disk")]
            Self::Disk(store) => store.swap(from, write).await,
        }
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        match self {
            Self::Memory(store) => store.scan(query).await,
            #[cfg(feature = "disk")]
            Self::Disk(store) => store.scan(query).await,
        }
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        match self {
            Self::Memory(store) => store.reap(limit).await,
            #[cfg(feature = "disk")]
            Self::Disk(store) => store.reap(limit).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_its_store() {
        assert!(matches!(AnyStore::open("memory:"), Ok(AnyStore::Memory(_))));
        for url in ["", "memory", "memory:x", "redis://h", "disk:", "disk:/x?durability=none"] {
            assert!(matches!(AnyStore::open(url), Err(AnyError::Url(_))), "{url}");
        }
    }

    #[cfg(feature = "disk")]
    #[test]
    fn a_disk_url_names_a_folder_and_its_durability() {
        let folder = tempfile::tempdir().unwrap();
        for query in ["", "?durability=full", "?durability=process"] {
            let url = format!("disk:{}{query}", folder.path().display());
            assert!(matches!(AnyStore::open(&url), Ok(AnyStore::Disk(_))), "{url}");
        }
        let url = format!("disk://{}", folder.path().display());
        let first = AnyStore::open(&url).unwrap();
        let busy = AnyStore::open(&url).unwrap_err().to_string();
        assert!(busy.contains("in use by process"), "{busy}");
        drop(first);
    }
}
