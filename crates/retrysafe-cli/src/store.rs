//! Where are the gateway's records kept?

use std::path::PathBuf;

use retrysafe::stores::any::{AnyError, AnyStore};

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
    let kind = match url.split_once(':') {
        Some(("memory", "")) => Some(Kind::Memory),
        Some(("disk", rest)) => {
            let path = rest.split('?').next().unwrap_or_default();
            let path = path.strip_prefix("//").unwrap_or(path);
            (!path.is_empty()).then(|| Kind::Disk(path.into()))
        }
        Some(_) | None => None,
    };
    kind.ok_or_else(|| format!("{:?} is not `memory:` or `disk:PATH`", shown(url)))
}

/// Opens the store of a URL.
///
/// # Errors
///
/// If it cannot be opened.
pub(crate) fn open(url: &str) -> Result<AnyStore, AnyError> {
    AnyStore::open(url)
}

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
        Some("disk") if url.ends_with("?durability=process") => {
            "only across a crash of the process, not of the machine"
        }
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
        assert_eq!(kind("disk:///var/x?durability=process"), Ok(Kind::Disk("/var/x".into())));
        for wrong in ["", "disk:", "memory:x", "floppy:a", "postgres://u:secret@h/d"] {
            assert!(!kind(wrong).unwrap_err().contains("secret"), "{wrong}");
        }
        assert_eq!(shown("postgres://u:secret@h/d"), "postgres://…@h/d");
    }
}
