//! What do `store migrate`, `doctor` and `reap` do?
//!
//! They open the store themselves. The disk store has one owner at a time: stop the gateway first.

use std::collections::BTreeMap;

use indicatif::ProgressBar;
use retrysafe_core::Engine;
use retrysafe_core::store::Store;
use serde_json::json;

use crate::args::{StoreArgs, StoreCommand};
use crate::config::{self, Flags};
use crate::gateway::serve::Failure;
use crate::output;
use crate::store::{self, Kind};

/// How many records are deleted at a time, so that progress can be shown.
const REAP_STEP: usize = 10_000;

/// Does it.
///
/// # Errors
///
/// If the store cannot be opened, or is damaged.
pub(crate) async fn run(
    command: StoreCommand,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    match command {
        StoreCommand::Migrate(StoreArgs { configured, json }) => {
            let url = url(configured.flags(), variables)?;
            // Opening a store makes it if it is not there, and refuses one of another version.
            drop(store::open(&url)?);
            say(json, "migrated", &json!({"store": store::shown(&url)}));
            Ok(())
        }
        StoreCommand::Doctor(StoreArgs { configured, json }) => {
            doctor(&url(configured.flags(), variables)?, json)
        }
        StoreCommand::Reap(StoreArgs { configured, json }) => {
            let url = url(configured.flags(), variables)?;
            let reaped = reap(store::open(&url)?).await?;
            say(json, &format!("reaped {reaped} records"), &json!({"reaped": reaped}));
            Ok(())
        }
    }
}

/// The store's URL. An upstream is not needed for it.
fn url(mut flags: Flags, variables: &BTreeMap<String, String>) -> Result<String, Failure> {
    flags.upstream.get_or_insert_with(|| "http://127.0.0.1".into());
    Ok(config::load(&flags, variables)?.0.store)
}

async fn reap(store: impl Store) -> Result<usize, Failure> {
    let engine = Engine::new(store);
    let bar = ProgressBar::new_spinner();
    let mut reaped = 0;
    loop {
        let more = engine.reap(REAP_STEP).await?;
        reaped += more;
        bar.set_message(format!("{reaped} records"));
        if more < REAP_STEP {
            bar.finish_and_clear();
            return Ok(reaped);
        }
    }
}

fn doctor(url: &str, as_json: bool) -> Result<(), Failure> {
    let path = match store::kind(url)? {
        Kind::Disk(path) => path,
        Kind::Memory => return Err("a memory store has nothing to look at".into()),
    };
    let report = retrysafe::stores::disk::doctor(path)?;
    let faults: Vec<_> = report.faults().collect();
    if as_json {
        output::json(&json!({
            "sound": report.is_sound(),
            "records": report.records,
            "segments": report.segments.len(),
            "faults": faults.iter()
                .map(|fault| json!({"file": fault.file, "offset": fault.offset, "what": fault.what}))
                .collect::<Vec<_>>(),
        }));
    } else {
        output::say(&format!("{} records in {} segments", report.records, report.segments.len()));
        for fault in &faults {
            output::say(&format!("{} at {}: {}", fault.file, fault.offset, fault.what));
        }
    }
    match report.is_sound() {
        true => Ok(()),
        false => Err("the store is damaged; see docs/operating.md".into()),
    }
}

fn say(as_json: bool, text: &str, document: &serde_json::Value) {
    if as_json { output::json(document) } else { output::say(text) }
}
