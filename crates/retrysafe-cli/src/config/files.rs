//! Can the files be used that the configuration names?
//!
//! They are read and tried when the configuration is: a check that passes must start.

use std::io;
use std::path::Path;

use super::file::File;
use super::source::Complaint;
use crate::dial;
use crate::gateway::jwt::Verifier;
use crate::gateway::live;

/// What is wrong with the files, all of it.
pub(super) fn complaints(file: &File) -> Vec<Complaint> {
    let mut wrong = Vec::new();
    if let Some(tls) = &file.tls {
        wrong.extend(live::acceptor(tls).err().unwrap_or_default());
    }
    if let Some(path) = &file.upstream_tls.authorities
        && let Err(error) = dial::client_config(Some(path.as_ref()))
    {
        wrong.push(Complaint::new("upstream_tls.authorities", unreadable(path, &error)));
    }
    if let Some(jwt) = &file.jwt {
        wrong.extend(Verifier::new(jwt).err().unwrap_or_default());
    }
    wrong
}

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
