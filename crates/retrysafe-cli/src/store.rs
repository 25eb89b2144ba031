//! Where are the gateway's records kept?

use std::path::PathBuf;

/// Which store a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In memory, for trials.
    Memory,
    /// On the disk of this machine, in a folder.
    Disk(PathBuf),
}

/// Reads a store's URL.
///
/// # Errors
///
/// If it names no store that this program has.
pub(crate) fn kind(url: &str) -> Result<Kind, String> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Kind::Memory),
        Some(("disk", path)) if !path.is_empty() => Ok(Kind::Disk(path.into())),
        Some(_) | None => Err(format!("{:?} is not `memory:` or `disk:PATH`", shown(url))),
    }
}

/// Opens the store of a URL and goes on with it, whatever its type.
macro_rules! with {
    ($url:expr, |$store:ident| $go:expr) => {
        match $crate::store::kind($url)? {
            $crate::store::Kind::Memory => {
                let $store = retrysafe::stores::memory::MemoryStore::default();
                $go
            }
            $crate::store::Kind::Disk(path) => {
                let $store = retrysafe::stores::disk::DiskStore::open(path)?;
                $go
            }
        }
    };
}
pub(crate) use with;

/// A store's URL without its password.
pub(crate) fn shown(url: &str) -> String {
    match url.split_once("://").and_then(|(kind, rest)| Some((kind, rest.rsplit_once('@')?.1))) {
        Some((kind, place)) => format!("{kind}://…@{place}"),
        None => url.to_owned(),
    }
}

/// How safe records are there.
pub(crate) fn durability(url: &str) -> &'static str {
    match url.split(':').next() {
        Some("memory") => "no: a restart forgets everything, and retries across it run again",
        Some("disk") => "yes: every answer is flushed before it leaves",
        Some(_) | None => "as the store is configured",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_stores_and_hide_passwords() {
        assert_eq!(kind("memory:"), Ok(Kind::Memory));
        assert_eq!(kind("disk:./x:y"), Ok(Kind::Disk("./x:y".into())));
        for wrong in ["", "disk:", "memory:x", "floppy:a", "postgres://u:secret@h/d"] {
            assert!(!kind(wrong).unwrap_err().contains("secret"), "{wrong}");
        }
        assert_eq!(shown("postgres://u:secret@h/d"), "postgres://…@h/d");
    }
}
