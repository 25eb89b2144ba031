//! What did the former process of this gateway leave running?
//!
//! A store that several processes share cannot know whether an owner is alive, so what it left
//! running becomes unknown only when its lease ends. The next process of the same gateway knows
//! more: the owners of one process are numbered from a random number on, which stands in a file
//! that the process keeps locked for as long as it lives. Whoever gets the lock knows that the owners
//! of the number in the file are gone.
//!
//! Nothing rests on this but how early an operator sees it: an owner that lives after all can still
//! settle what is unknown.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use retrysafe_core::Engine;
use retrysafe_core::StoreError;
use retrysafe_core::store::Store;

use crate::config::token::make_folder;

/// How many owners one process has at the most: more requests than a process lives to begin.
const OWNERS_MAX: u64 = 1 << 40;

/// The file of one gateway, which no other process holds while this one lives.
pub(crate) struct OwnerFile {
    file: File,
    former: Option<u64>,
}

impl OwnerFile {
    /// Takes the file of the gateway that listens here; none if another process holds it.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub(crate) fn take(state_folder: &Path, listen: SocketAddr) -> io::Result<Option<Self>> {
        make_folder(state_folder)?;
        let mut options = OpenOptions::new();
        // Not truncated: the former number stands in it.
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(state_folder.join(format!("owners-{listen}")))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok(Some(Self { file, former: text.trim().parse().ok() }))
    }

    /// Makes unknown what the former process left running, and says how much it was.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(crate) async fn settle<S: Store>(&self, engine: &Engine<S>) -> Result<usize, StoreError> {
        let Some(former) = self.former else { return Ok(0) };
        engine.doubt_owners(|owner| owner.wrapping_sub(former) < OWNERS_MAX).await
    }

    /// Notes from which number on the owners of this process are numbered. Durable when it returns,
    /// before the first of them begins.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub(crate) fn note(&mut self, first_owner: u64) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        writeln!(self.file, "{first_owner}")?;
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_process_learns_the_number_once_the_former_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let here = "127.0.0.1:1".parse().unwrap();
        let there = "127.0.0.1:2".parse().unwrap();
        let take = |listen| OwnerFile::take(folder.path(), listen).unwrap();
        let mut first = take(here).unwrap();
        assert_eq!(first.former, None);
        first.note(u64::MAX - 1).unwrap();
        first.note(7).unwrap();
        assert!(take(here).is_none(), "the former one lives");
        assert!(take(there).unwrap().former.is_none(), "another gateway");
        drop(first);
        assert_eq!(take(here).unwrap().former, Some(7));
    }
}
