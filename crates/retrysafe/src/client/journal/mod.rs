//! Which calls are unfinished, and who finishes them?
//!
//! One file per call. It is written under a temporary name, flushed, renamed, and its folder
//! flushed, before the first byte of the call is sent; it is removed when the caller acknowledges
//! the end of the call. So a crash leaves either nothing, or a temporary file of a call that was
//! never sent, or the whole call: key, request and time.
//!
//! Whoever works on a call holds its file locked. The operating system releases the lock when the
//! process ends, however it ends, so nothing has to be cleaned up before a call is resumed.
//!
//! # Secrets
//!
//! The file holds the request: URL, headers and body. It is readable by its owner only. Headers
//! that must not be on disk are named with [`Journal::without_headers`] and supplied again when the
//! call is resumed.

mod entry;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderName, Request};
use retrysafe_core::Key;

use super::age::FirstSent;
pub use entry::Damage;
use entry::Entry;

const WRITTEN: &str = "call";
const HALF_WRITTEN: &str = "tmp";

/// How many calls one listing takes at the most: each holds an open file and its request.
const CLAIMS_MAX: usize = 64;

/// The longest file that is read. Bodies are bounded well below it when they are written.
const ENTRY_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A folder of unfinished calls. Any number of processes may share it. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use retrysafe::client::{Journal, Retries};
///
/// let journal = Journal::open("/var/lib/shop/calls")?;
/// for pending in journal.pending().await?.calls {
///     println!("left by a crash: {:?}", pending.key());
/// }
/// let retries = Retries::default().journal(journal);
/// # let _ = retries;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Journal {
    folder: Arc<Path>,
    withheld: Arc<[HeaderName]>,
}

/// What a listing found.
#[derive(Debug, Default)]
pub struct Found {
    /// Unfinished calls. They are this process's until dropped, resumed or acknowledged.
    pub calls: Vec<Pending>,
    /// How many calls other owners are working on.
    pub taken: usize,
    /// Files that are not calls, or not whole. They are never executed.
    pub damaged: Vec<Damaged>,
    /// Whether there are more calls than one listing takes. List again when these are done.
    pub has_more: bool,
}

/// A file that is not a call, or not whole.
#[derive(Debug)]
pub struct Damaged {
    /// Where it is.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: Damage,
}

/// An unfinished call, taken from the journal.
#[derive(Debug)]
pub struct Pending {
    pub(crate) claim: Claim,
    pub(crate) entry: Entry,
}

impl Pending {
    /// Its key.
    pub fn key(&self) -> &Key {
        &self.entry.key
    }

    /// The request, without the headers that are not journalled.
    pub fn request(&self) -> &Request<Bytes> {
        &self.entry.request
    }

    /// The headers that have to be supplied again.
    pub fn withheld(&self) -> &[HeaderName] {
        &self.entry.withheld
    }

    /// When it was first sent, or about to be.
    pub fn written_at(&self) -> SystemTime {
        self.entry.first_sent.wall
    }

    /// Removes the call from the journal without sending it. It may have been sent before.
    ///
    /// # Errors
    ///
    /// The file could not be removed, or its folder not be flushed.
    pub async fn discard(self) -> io::Result<()> {
        self.claim.remove().await
    }
}

/// The right to work on a journalled call: its file, locked.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    /// Holds the lock; closing it releases the call.
    locked: File,
}

impl Claim {
    /// Removes the call. Doing it twice is fine.
    pub(crate) async fn remove(&self) -> io::Result<()> {
        let path = self.path.clone();
        blocking(move || {
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
            // A crash before this may bring the call back: it is resumed, and answered the same.
            flush_folder(path.parent().unwrap_or(Path::new(".")))
        })
        .await
    }
}

impl Journal {
    /// Opens a folder, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or is not a folder.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder: PathBuf = folder.into();
        if !folder.is_dir() {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(&folder)?;
            // The folder's own name has to survive a crash too.
            let folder = folder.canonicalize()?;
            flush_folder(folder.parent().unwrap_or(&folder))?;
        }
        let folder = folder.canonicalize()?;
        Ok(Self { folder: folder.into(), withheld: Arc::new([]) })
    }

    /// Keeps these headers out of the files, such as `Authorization`. A call that had one of them
    /// is resumed only when it is supplied again.
    #[must_use]
    pub fn without_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.withheld = names.into_iter().collect();
        self
    }

    /// Takes the unfinished calls that nobody is working on, oldest first among those found.
    ///
    /// # Errors
    ///
    /// The folder cannot be read. A file that cannot be read is reported, not an error.
    pub async fn pending(&self) -> io::Result<Found> {
        let folder = Arc::clone(&self.folder);
        blocking(move || list(&folder)).await
    }

    /// Makes a call durable. When this returns, the call may be sent.
    pub(crate) async fn write(
        &self,
        request: &Request<Bytes>,
        key: &Key,
        first_sent: &FirstSent,
    ) -> io::Result<Claim> {
        let bytes = entry::encode(request, key, &self.withheld, first_sent);
        let folder = Arc::clone(&self.folder);
        blocking(move || write(&folder, &bytes)).await
    }
}

fn write(folder: &Path, bytes: &[u8]) -> io::Result<Claim> {
    let mut name = [0_u8; 16];
    getrandom::fill(&mut name).map_err(io::Error::other)?;
    // Not the key: a key may hold personal data, and characters that file names do not.
    let name = format!("{:032x}", u128::from_be_bytes(name));
    let half_written = folder.join(&name).with_extension(HALF_WRITTEN);
    let path = folder.join(&name).with_extension(WRITTEN);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&half_written)?;
    // Locked before it has its final name: the lock goes with the file, so that nobody finds the
    // call unowned.
    file.lock()?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&half_written, &path)) {
        // Best effort: what stays is reported as half written.
        let _ = fs::remove_file(&half_written);
        return Err(error);
    }
    // A crash before this may lose the name; the call was not sent yet.
    if let Err(error) = flush_folder(folder) {
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    Ok(Claim { path, locked: file })
}

fn list(folder: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let is_written = match path.extension().and_then(|extension| extension.to_str()) {
            Some(WRITTEN) => true,
            Some(HALF_WRITTEN) => false,
            Some(_) | None => continue,
        };
        if found.calls.len() == CLAIMS_MAX {
            found.has_more = true;
            break;
        }
        match claim(&path) {
            Ok(Claimed::Gone) => {}
            Ok(Claimed::Taken) => found.taken += 1,
            Ok(Claimed::Ours(_)) if !is_written => {
                found.damaged.push(Damaged { path, why: Damage::HalfWritten });
            }
            Ok(Claimed::Ours(claim)) => match read(&claim) {
                Ok(entry) => found.calls.push(Pending { claim, entry }),
                Err(why) => found.damaged.push(Damaged { path, why }),
            },
            Err(error) => found.damaged.push(Damaged { path, why: Damage::Unreadable(error) }),
        }
    }
    found.calls.sort_by_key(Pending::written_at);
    Ok(found)
}

enum Claimed {
    Ours(Claim),
    Taken,
    Gone,
}

fn claim(path: &Path) -> io::Result<Claimed> {
    match File::open(path) {
        Ok(file) => claim_open(path, file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Claimed::Gone),
        Err(error) => Err(error),
    }
}

fn claim_open(path: &Path, file: File) -> io::Result<Claimed> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Claimed::Taken),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Its owner may have finished between our opening and locking it. Files are removed and renamed
    // under the lock and names are not used twice, so from here on this stays true.
    if !path.try_exists()? {
        return Ok(Claimed::Gone);
    }
    Ok(Claimed::Ours(Claim { path: path.to_owned(), locked: file }))
}

fn read(claim: &Claim) -> Result<Entry, Damage> {
    let mut bytes = Vec::new();
    let mut limited = (&claim.locked).take(ENTRY_BYTES_MAX);
    limited.read_to_end(&mut bytes).map_err(Damage::Unreadable)?;
    entry::decode(bytes)
}

#[cfg(unix)]
fn flush_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Elsewhere a folder cannot be flushed, and the file system orders renames by itself.
#[cfg(not(unix))]
fn flush_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Flushing takes milliseconds, which the runtime's threads do not have.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_finished_between_opening_and_locking_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let owner = write(folder.path(), b"a call").unwrap();
        let path = owner.path.clone();
        let opened = || File::open(&path).unwrap();
        assert!(matches!(claim_open(&path, opened()).unwrap(), Claimed::Taken));
        let late = opened();
        fs::remove_file(&path).unwrap();
        drop(owner);
        assert!(matches!(claim_open(&path, late).unwrap(), Claimed::Gone));
    }
}
