//! Who owns the store?
//!
//! One process at a time, because what a former owner left in progress is `unknown` for the next
//! one: two owners would doubt each other's work. The lock is the operating system's, so it ends
//! with its process, however that ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::Path;

use super::error::OpenError;

/// The file that is locked. It holds the owner's process id.
pub(crate) const NAME: &str = "lock";

/// Locks the store in a folder for as long as the file is held.
pub(crate) fn take(folder: &Path) -> Result<File, OpenError> {
    let path = folder.join(NAME);
    let mut options = OpenOptions::new();
    // Not truncated before it is ours: the owner's process id stands in it.
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&path).map_err(OpenError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // An owner that has just locked it may not have written yet.
            let _ = file.read_to_string(&mut text);
            return Err(OpenError::Busy { pid: text.trim().parse().ok() });
        }
        Err(TryLockError::Error(error)) => return Err(OpenError::io("lock", path)(error)),
    }
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(OpenError::io("write to", path))?;
    Ok(file)
}

/// Locks the store in a folder to read it. Nothing is written.
pub(crate) fn look(folder: &Path) -> Result<File, OpenError> {
    let path = folder.join(NAME);
    let mut file = File::open(&path).map_err(OpenError::io("open", &path))?;
    match file.try_lock_shared() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            Err(OpenError::Busy { pid: text.trim().parse().ok() })
        }
        Err(TryLockError::Error(error)) => Err(OpenError::io("lock", path)(error)),
    }
}
