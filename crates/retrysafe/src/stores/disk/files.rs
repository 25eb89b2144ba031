//! Which file calls does the store make?
//!
//! These and no others. Everything that can go wrong with a disk goes wrong behind one of them, so a
//! test layer that fails, cuts or tears each of them rehearses every crash there is.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;

/// The folder of a store.
pub(crate) trait StoreFolder: Send + Sync + fmt::Debug {
    /// The names of all files in it.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens a file to read and write.
    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>>;

    /// Creates an empty file, in place of one that has this name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn StoreFile>>;

    /// Gives a file another name, in place of one that has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all names durable. The contents are their files' own business.
    fn flush(&self) -> io::Result<()>;

    /// Makes the folder's own name durable, and those of the folders above it.
    fn flush_parents(&self) -> io::Result<()>;

    /// Keeps everybody but its owner out of the folder and its files.
    fn close_to_others(&self) -> io::Result<()>;

    /// An error if the folder was taken away or replaced since it was opened.
    fn check_present(&self) -> io::Result<()>;
}

/// A file of the store.
pub(crate) trait StoreFile: Send + Sync + fmt::Debug {
    /// Its length in bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Fills the whole buffer from an offset.
    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes at an offset.
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything written durable, with whatever it takes to read it back.
    fn flush(&self) -> io::Result<()>;

    /// Whether it has been removed since it was opened.
    fn is_removed(&self) -> io::Result<bool>;
}

impl StoreFile for fs::File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn flush(&self) -> io::Result<()> {
        // fdatasync: on a segment that was written before, no metadata changes, and nothing but
        // the data goes to the device.
        self.sync_data()
    }

    fn is_removed(&self) -> io::Result<bool> {
        Ok(self.metadata()?.nlink() == 0)
    }
}

/// Whether a disk has refused for want of room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
