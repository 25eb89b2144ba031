//! What do `store migrate`, `doctor` and `reap` do?
//!
//! They open the store themselves. The disk store has one owner at a time: stop the gateway first.
//! PostgreSQL is shared, and they may run beside it.

use std::collections::BTreeMap;
use std::path::Path;

use indicatif::ProgressBar;
use retrysafe::stores::any::{AnyStore, StoreUrl};
use retrysafe::stores::postgres::{self, PostgresStore, PostgresUrl};
use retrysafe_core::Engine;
use retrysafe_core::store::{PAGE_MAX, Query, Store};
use serde_json::json;

use crate::args::{StoreArgs, StoreCommand};
use crate::config::{self, Flags};
use crate::gateway::serve::Failure;
use crate::output;

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
        StoreCommand::Migrate { store: StoreArgs { configured, json }, print } => {
            migrate(&url(configured.flags(), variables)?, print, json).await
        }
        StoreCommand::Doctor(StoreArgs { configured, json }) => {
            match url(configured.flags(), variables)? {
                StoreUrl::Memory => Err("a memory store has nothing to look at".into()),
                StoreUrl::Disk { folder, .. } => examine_disk(&folder, json),
                StoreUrl::Postgres(url) => examine_postgres(url, json).await,
            }
        }
        StoreCommand::Reap(StoreArgs { configured, json }) => {
            let url = url(configured.flags(), variables)?;
            let reaped = reap(AnyStore::open(&url).await?).await?;
            say(json, &format!("reaped {reaped} records"), &json!({"reaped": reaped}));
            Ok(())
        }
    }
}

fn url(flags: Flags, variables: &BTreeMap<String, String>) -> Result<StoreUrl, Failure> {
    Ok(config::store_url(&flags, variables)?)
}

async fn migrate(url: &StoreUrl, print: bool, as_json: bool) -> Result<(), Failure> {
    match (url, print) {
        (StoreUrl::Postgres(_), true) => {
            output::say(&postgres::script());
            return Ok(());
        }
        (StoreUrl::Memory | StoreUrl::Disk { .. }, true) => {
            return Err("only a PostgreSQL store is made by SQL that could be printed".into());
        }
        (StoreUrl::Postgres(url), false) => {
            postgres::migrate(url).await?;
        }
        // Opening a store makes it if it is not there, and refuses one of another version.
        (StoreUrl::Memory | StoreUrl::Disk { .. }, false) => drop(AnyStore::open(url).await?),
    }
    say(as_json, "migrated", &json!({"store": url.to_string()}));
    Ok(())
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

fn examine_disk(folder: &Path, as_json: bool) -> Result<(), Failure> {
    let report = retrysafe::stores::disk::doctor(folder)?;
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
    verdict(report.is_sound())
}

/// Reads every record once. The server's own pages are the server's business.
async fn examine_postgres(url: PostgresUrl, as_json: bool) -> Result<(), Failure> {
    let store = PostgresStore::open(&url.without_migration()).await?;
    let (mut records, mut damaged) = (0, Vec::new());
    let mut query = Query { limit: PAGE_MAX, ..Query::default() };
    loop {
        let page = store.scan(query.clone()).await?.value;
        records += page.records.len() + page.damaged.len();
        damaged.extend(page.damaged.iter().map(ToString::to_string));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    if as_json {
        let is_sound = damaged.is_empty();
        output::json(&json!({"sound": is_sound, "records": records, "damaged": damaged}));
    } else {
        output::say(&format!("{records} records"));
        for id in &damaged {
            output::say(&format!("{id}: damaged"));
        }
    }
    verdict(damaged.is_empty())
}

fn verdict(is_sound: bool) -> Result<(), Failure> {
    match is_sound {
        true => Ok(()),
        false => Err("the store is damaged; see docs/operating.md".into()),
    }
}

fn say(as_json: bool, text: &str, document: &serde_json::Value) {
    if as_json { output::json(document) } else { output::say(text) }
}
