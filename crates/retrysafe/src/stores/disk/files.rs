//! Which file calls does the store make?
//!
//! These ten and no others. Everything that can go wrong with a disk goes wrong behind one of them,
//! so a test layer that fails, cuts or tears each of them rehearses every crash there is.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder with the store's files.
pub(crate) trait Folder: Send + Sync + fmt::Debug {
    /// The names of all files in it.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens a file to read and write.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// Creates an empty file, in place of one that has this name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// Gives a file another name, in place of one that has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all names durable. The contents are their files' own business.
    fn flush(&self) -> io::Result<()>;
}

/// A file of the store.
pub(crate) trait File: Send + Sync + fmt::Debug {
    /// Its length in bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Fills the whole buffer from an offset.
    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes at an offset.
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything written durable, with whatever it takes to read it back.
    fn flush(&self) -> io::Result<()>;
}

/// A real folder.
#[derive(Debug)]
pub(crate) struct RealFolder {
    path: PathBuf,
}

impl RealFolder {
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl Folder for RealFolder {
    fn names(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        Ok(Arc::new(file))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        Ok(Arc::new(options.open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn flush(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }
}

impl File for fs::File {
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
}
