//! How safe are records where they are kept?

use retrysafe::stores::any::StoreUrl;
use retrysafe::stores::disk::Durability;

/// How safe they are there, for people.
pub(crate) fn durability(url: &StoreUrl) -> &'static str {
    match url {
        StoreUrl::Memory => "no: a restart forgets everything, and retries across it run again",
        StoreUrl::Disk { durability: Durability::Process, .. } => {
            "only across a crash of the process, not of the machine"
        }
        StoreUrl::Disk { durability: Durability::Full, .. } => {
            "yes: every answer is flushed before it leaves"
        }
        StoreUrl::Postgres(_) => "yes: every answer is committed before it leaves",
    }
}
