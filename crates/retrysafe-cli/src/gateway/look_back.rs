//! What does the store hold when the gateway starts?
//!
//! Whatever a crash left running is unknown now, and an operator must see it at once: it is counted
//! and told before the gateway is ready.

use std::path::Path;
use std::sync::Arc;

use retrysafe::stores::any::{AnyStore, StoreUrl};
use retrysafe::upkeep::take_census;
use retrysafe_core::Engine;
use retrysafe_core::store::Census;

use super::predecessor::OwnerFile;
use crate::Failure;
use crate::config::Config;

/// What was found, for as long as the gateway runs.
pub(crate) struct LookedBack {
    /// From which number on this process numbers its owners.
    pub first_owner: u64,
    /// How many requests the former process left running.
    pub left_running: usize,
    /// What the store held.
    pub census: Census,
    /// Says to the next process which owners were this one's.
    _owners: Option<OwnerFile>,
}

/// Looks at what former processes left behind, counts it and says it.
///
/// # Errors
///
/// The store's. A gateway that cannot count what is unknown is not ready.
pub(crate) async fn look_back(
    config: &Config,
    store: &Arc<AnyStore>,
) -> Result<LookedBack, Failure> {
    let first_owner = getrandom::u64().map_err(|error| error.to_string())?;
    let abandoned = store.abandoned();
    if abandoned > 0 {
        tracing::warn!(
            count = abandoned,
            "{} when this store was last closed, and nobody knows the outcome: see `retrysafe \
             unknown list`",
            were_running(abandoned)
        );
    }
    let mut owners = match &config.store {
        // One process owns these at a time.
        StoreUrl::Memory | StoreUrl::Disk { .. } => None,
        StoreUrl::Postgres(_) | StoreUrl::Redis(_) | StoreUrl::Tiered(_) => {
            take_owners(&config.state_folder, config)
        }
    };
    let mut left_running = abandoned;
    if let Some(owners) = &mut owners {
        let left = owners.settle(&Engine::new(Arc::clone(store))).await?;
        left_running += left;
        if left > 0 {
            tracing::warn!(
                count = left,
                "{} when this gateway last ended, and nobody knows the outcome: see `retrysafe \
                 unknown list`",
                were_running(left)
            );
        }
        owners.note(first_owner).map_err(|error| {
            format!("cannot write to the state folder {}: {error}", config.state_folder.display())
        })?;
    }
    let census = take_census(&**store).await?;
    tracing::info!(
        unknown = census.unknown,
        records = census.records,
        bytes = census.bytes,
        "the store holds"
    );
    Ok(LookedBack { first_owner, left_running, census, _owners: owners })
}

fn were_running(count: usize) -> String {
    match count {
        1 => "1 request was running".into(),
        count => format!("{count} requests were running"),
    }
}

/// Without the file the gateway works as well: what it leaves running is unknown when its lease ends.
fn take_owners(folder: &Path, config: &Config) -> Option<OwnerFile> {
    let otherwise = "what a crash leaves running will be unknown only when its lease ends";
    let folder_shown = folder.display();
    match OwnerFile::take(folder, config.listen) {
        Ok(Some(owners)) => Some(owners),
        Ok(None) => {
            tracing::warn!(
                "another process with the address {} uses the state folder {folder_shown}: {otherwise}",
                config.listen
            );
            None
        }
        Err(error) => {
            tracing::warn!("cannot use the state folder {folder_shown}: {error}; {otherwise}");
            None
        }
    }
}
