//! How is a file read that the configuration names?

use std::io;
use std::path::Path;

/// What to say about a file that cannot be read.
pub(crate) fn unreadable(path: impl AsRef<Path>, error: &io::Error) -> String {
    let plain = [
        (io::ErrorKind::NotFound, "no such file"),
        (io::ErrorKind::PermissionDenied, "permission denied"),
        (io::ErrorKind::IsADirectory, "it is a folder"),
    ];
    let found = plain.iter().find(|(kind, _)| *kind == error.kind());
    let why = found.map_or_else(|| error.to_string(), |(_, why)| (*why).to_owned());
    format!("cannot read {}: {why}", path.as_ref().display())
}

/// A secret from a file, without the line end that editors add.
///
/// # Errors
///
/// Why it cannot be read.
pub(crate) fn read_secret(path: impl AsRef<Path>) -> Result<String, String> {
    let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
