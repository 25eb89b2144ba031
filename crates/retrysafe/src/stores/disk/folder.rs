//! Whose is the folder of a store, and is it still there?
//!
//! One process at a time owns a store, because what a former owner left in progress is `unknown` for
//! the next one: two owners would doubt each other's work. The folder itself is locked, so there is
//! no file that somebody could delete to let a second owner in. The lock is the operating system's,
//! so it ends with its process, however that ends.
//!
//! A folder that is removed, renamed or replaced while the store is open is no longer the store:
//! what is written to it is lost at the next start. Every call that names a file looks first whether
//! the path still leads to the folder that is locked.

use std::fs::{self, DirBuilder, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CreatePolicy;
use super::error::OpenError;
use super::files::{StoreFile, StoreFolder};

/// The file that holds the owner's process id, for messages only.
pub(crate) const OWNER: &str = "owner";

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// What a mode says of everybody but the owner.
const OTHERS: u32 = 0o077;
/// A folder with this bit is everybody's, such as `/tmp`.
const STICKY: u32 = 0o1000;

/// A real folder, locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct LockedFolder {
    path: PathBuf,
    /// The folder itself, which is locked.
    locked: fs::File,
    identity: FolderIdentity,
    access: FolderAccess,
}

/// What tells a folder from every other, wherever it is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FolderIdentity {
    device: u64,
    inode: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FolderAccess {
    Write,
    /// Nothing is changed, and others may read at the same time.
    Read,
}

impl FolderIdentity {
    fn of(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl LockedFolder {
    /// Takes a folder as its owner, and makes it if it may be made.
    pub(crate) fn own(path: &Path, create: CreatePolicy) -> Result<Self, OpenError> {
        match create {
            CreatePolicy::IfAbsent => DirBuilder::new()
                .recursive(true)
                .mode(FOLDER_MODE)
                .create(path)
                .map_err(OpenError::io("create", path))?,
            CreatePolicy::Never if !path.exists() => {
                return Err(OpenError::Absent);
            }
            CreatePolicy::Never => {}
        }
        let folder = Self::locked(path, FolderAccess::Write)?;
        let mode = folder.locked.metadata().map_err(OpenError::io("read", path))?.mode();
        if mode & STICKY != 0 {
            return Err(OpenError::SharedFolder);
        }
        Ok(folder)
    }

    /// Takes a folder to read it. Nothing is written to it, and no owner may come meanwhile.
    pub(crate) fn look_at(path: &Path) -> Result<Self, OpenError> {
        Self::locked(path, FolderAccess::Read)
    }

    fn locked(path: &Path, access: FolderAccess) -> Result<Self, OpenError> {
        let locked = fs::File::open(path).map_err(OpenError::io("open", path))?;
        let metadata = locked.metadata().map_err(OpenError::io("read", path))?;
        if !metadata.is_dir() {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(OpenError::io("open", path)(error));
        }
        let lock = match access {
            FolderAccess::Write => locked.try_lock(),
            FolderAccess::Read => locked.try_lock_shared(),
        };
        match lock {
            Ok(()) => {}
            // Whoever shares a lock has not written down who it is: the file names a former owner.
            Err(TryLockError::WouldBlock) if locked.try_lock_shared().is_ok() => {
                return Err(OpenError::BeingRead);
            }
            Err(TryLockError::WouldBlock) => {
                let owner = fs::read_to_string(path.join(OWNER)).unwrap_or_default();
                return Err(OpenError::Busy { pid: owner.trim().parse().ok() });
            }
            Err(TryLockError::Error(error)) => return Err(OpenError::io("lock", path)(error)),
        }
        // The process may go to another folder later; the store does not.
        let path_from_root = std::path::absolute(path).map_err(OpenError::io("find", path))?;
        let identity = FolderIdentity::of(&metadata);
        let folder = Self { path: path_from_root, locked, identity, access };
        // It may have been replaced before it was locked.
        folder.check_present().map_err(OpenError::io("lock", path))?;
        Ok(folder)
    }

    /// Lets another owner in.
    pub(crate) fn unlock(&self) {
        // A lock that cannot be given back ends with the process.
        let _ = self.locked.unlock();
    }

    /// Writes down who the owner is. The folder must be known to be a store's before.
    pub(crate) fn sign(&self) {
        let text = format!("{}\n", std::process::id());
        let signed = self.create(OWNER).and_then(|file| file.write(text.as_bytes(), 0));
        if let Err(error) = signed {
            // It is for messages only. A full disk, for one, is no reason not to open a store.
            tracing::warn!(%error, "the disk store could not write down its owner's process id");
        }
    }

    /// The path of a file in the folder that is locked.
    fn file(&self, name: &str) -> io::Result<PathBuf> {
        self.check_present()?;
        Ok(self.path.join(name))
    }
}

impl StoreFolder for LockedFolder {
    fn names(&self) -> io::Result<Vec<String>> {
        self.check_present()?;
        fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        let is_writable = self.access == FolderAccess::Write;
        let file = OpenOptions::new().read(true).write(is_writable).open(self.file(name)?)?;
        Ok(Arc::new(file))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE);
        Ok(Arc::new(options.open(self.file(name)?)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.file(from)?, self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.file(name)?)
    }

    fn flush(&self) -> io::Result<()> {
        self.locked.sync_all()
    }

    fn flush_parents(&self) -> io::Result<()> {
        for parent in fs::canonicalize(&self.path)?.ancestors().skip(1) {
            match fs::File::open(parent).and_then(|folder| folder.sync_all()) {
                Ok(()) => {}
                // Those that we may not read are not those that were just made. Some file systems,
                // such as those of kernels, have nothing to flush.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::PermissionDenied
                            | io::ErrorKind::InvalidInput
                            | io::ErrorKind::Unsupported
                            | io::ErrorKind::ReadOnlyFilesystem
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn close_to_others(&self) -> io::Result<()> {
        self.check_present()?;
        close(&self.path, self.locked.metadata()?.mode(), FOLDER_MODE)?;
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_file() {
                close(&entry.path(), metadata.mode(), FILE_MODE)?;
            }
        }
        Ok(())
    }

    fn check_present(&self) -> io::Result<()> {
        let gone = || {
            let why = "the folder was taken away or replaced while the store was open";
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        };
        match fs::metadata(&self.path) {
            Ok(found) if FolderIdentity::of(&found) == self.identity => Ok(()),
            Ok(_) => gone(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => gone(),
            Err(error) => Err(error),
        }
    }
}

/// Takes from everybody but the owner what a mode permits them.
fn close(path: &Path, mode: u32, wanted: u32) -> io::Result<()> {
    if mode & OTHERS == 0 {
        return Ok(());
    }
    let path_shown = path.display();
    match fs::set_permissions(path, Permissions::from_mode(wanted)) {
        Ok(()) => {
            tracing::warn!(
                "{path_shown} was open to others (mode {:o}) and is the owner's alone now ({wanted:o})",
                mode & 0o7777
            );
            Ok(())
        }
        // A volume that belongs to another user, as orchestrators mount them. What lies in it is
        // ours and closed.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::warn!(
                "{path_shown} is open to others (mode {:o}) and belongs to another user: make its \
                 mode {wanted:o}",
                mode & 0o7777
            );
            Ok(())
        }
        Err(error) => Err(error),
    }
}
