//! Why can a store not be opened, and what is to be done?

use std::fmt;
use std::io;
use std::path::PathBuf;

use retrysafe_core::time::Time;

use super::format::VERSION;
use super::segments::name_of;

/// Why a store could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    Busy {
        /// Its process id, as far as it could be read.
        pid: Option<u32>,
    },
    /// Another process is reading it: the doctor or a salvage.
    BeingRead,
    /// There is no store, and none may be created.
    Absent,
    /// The folder is everybody's, such as `/tmp`.
    SharedFolder,
    /// A salvage to this folder did not come to its end: keys may be missing.
    Unfinished,
    /// The folder holds files, and they are not a store's.
    NotAStore {
        /// One of the files.
        found: String,
    },
    /// The store was written in a format that this program does not know.
    Format {
        /// The version of that format.
        found: u32,
    },
    /// The wall clock is weeks ahead of the store's last mark. Everything would be expired by it.
    ClockAhead {
        /// The latest time that the store has seen.
        mark: Time,
        /// What the wall clock says.
        now: Time,
    },
    /// Something acknowledged is missing or damaged.
    Damaged {
        /// In which file.
        file: String,
        /// From which byte on.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The folder's file system refused a call.
    Io {
        /// What was being done.
        doing: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// The refusal.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn damaged(file: impl Into<String>, offset: u64, what: &'static str) -> Self {
        Self::Damaged { file: file.into(), offset, what }
    }

    /// The same error about a segment that was being read.
    pub(crate) fn in_file(self, slot: usize) -> Self {
        match self {
            Self::Damaged { offset, what, .. } => Self::damaged(name_of(slot), offset, what),
            Self::Io { doing, source, .. } => Self::io(doing, name_of(slot))(source),
            Self::Busy { .. }
            | Self::BeingRead
            | Self::Absent
            | Self::SharedFolder
            | Self::Unfinished
            | Self::NotAStore { .. }
            | Self::Format { .. }
            | Self::ClockAhead { .. } => self,
        }
    }

    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { pid: Some(pid) } => write!(
                f,
                "the store is in use by process {pid}; a disk store has one owner: stop that \
                 process, or give this one a folder of its own"
            ),
            Self::Busy { pid: None } => {
                f.write_str("the store is in use by another process; a disk store has one owner")
            }
            Self::BeingRead => f.write_str(
                "the store is being read by `retrysafe store doctor` or `retrysafe store salvage`; \
                 wait until that has ended",
            ),
            Self::Absent => f.write_str(
                "the folder holds no store, and `create=never` forbids to make one. If its volume \
                 is not mounted, mount it; to begin with an empty store, leave `create=never` out \
                 once",
            ),
            Self::SharedFolder => f.write_str(
                "the folder is everybody's (it has the sticky bit, like /tmp); name a folder of its \
                 own in it",
            ),
            Self::Unfinished => f.write_str(
                "a salvage to this folder did not come to its end, and not every key is in it. \
                 Remove the folder and salvage the damaged store again",
            ),
            Self::ClockAhead { mark, now } => write!(
                f,
                "the clock of this machine is {} days ahead of the last time that the store has \
                 seen, and would expire its records. Set the clock; or, if it is right and the \
                 store was out of use for so long, start once with --accept-clock",
                mark.until(*now).as_secs() / (24 * 3_600)
            ),
            Self::NotAStore { found } => write!(
                f,
                "the folder holds `{found}` and is not a retrysafe store; name an empty folder"
            ),
            Self::Format { found } if *found < VERSION => write!(
                f,
                "the store is in format {found}, and this program reads format {VERSION} only. \
                 Nothing was changed. Let the program that wrote it serve until its keys have \
                 expired, or give this one another, empty folder: it knows none of the keys there"
            ),
            Self::Format { found } => write!(
                f,
                "the store is in format {found}, and this program reads format {VERSION} only. \
                 Nothing was changed. Use the program that wrote it, or a later one"
            ),
            Self::Damaged { file, offset, what } => write!(
                f,
                "the store is damaged: {file}, byte {offset}: {what}. Nothing was changed. Restore \
                 the folder from a copy, see what is intact with `retrysafe store doctor`, or save it to a new \
                 store with `retrysafe store salvage`"
            ),
            Self::Io { doing, path, source } => {
                write!(f, "cannot {doing} {}: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Busy { .. }
            | Self::BeingRead
            | Self::Absent
            | Self::SharedFolder
            | Self::Unfinished
            | Self::NotAStore { .. }
            | Self::Format { .. }
            | Self::ClockAhead { .. }
            | Self::Damaged { .. } => None,
        }
    }
}
