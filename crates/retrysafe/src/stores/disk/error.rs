//! Why can a store not be opened, and what is to be done?

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a store could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has it open.
    Busy {
        /// Its process id, as far as it could be read.
        pid: Option<u32>,
    },
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
            Self::NotAStore { found } => write!(
                f,
                "the folder holds `{found}` and is not a retrysafe store; name an empty folder"
            ),
            Self::Format { found } => write!(
                f,
                "the store is in format {found}, and this program knows format {}; use the \
                 program that wrote it, or a later one",
                super::format::VERSION
            ),
            Self::Damaged { file, offset, what } => write!(
                f,
                "the store is damaged: {file}, byte {offset}: {what}. Nothing was changed. Restore \
                 the folder from a copy, or see what is intact with `retrysafe store doctor`"
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
            | Self::NotAStore { .. }
            | Self::Format { .. }
            | Self::Damaged { .. } => None,
        }
    }
}
