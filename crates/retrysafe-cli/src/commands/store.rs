//! What do `store init`, `migrate`, `doctor`, `reap` and `salvage` do?
//!
//! They open the store themselves. The disk store has one owner at a time: stop the gateway first.
//! PostgreSQL and Redis are shared, and they may run beside it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use retrysafe::outbox::{Operator, OutboxHealth};
use retrysafe::stores::any::{AnyStore, StoreUrl, WallClock};
use retrysafe::stores::disk::{DiskOptions, salvage};
use retrysafe::stores::postgres::{self, PostgresStore, PostgresUrl};
use retrysafe::stores::quarantine::Trust;
use retrysafe::stores::redis::RedisStore;
use retrysafe_core::Engine;
use retrysafe_core::store::{PAGE_MAX, Query, Store};
use retrysafe_core::units::show_duration;
use serde_json::json;

use super::bloat;
use crate::Failure;
use crate::args::{StoreArgs, StoreCommand};
use crate::config::{self, Flags};
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
        StoreCommand::Migrate { store: StoreArgs { configured, clock, json }, print, from } => {
            let url = url(configured.flags(), variables)?;
            let print = print.then_some(from);
            migrate(&url, clock.wall_clock(), print, json).await
        }
        StoreCommand::Doctor(StoreArgs { configured, json, .. }) => {
            match url(configured.flags(), variables)? {
                StoreUrl::Memory => Err("a memory store has nothing to look at".into()),
                StoreUrl::Disk { folder, .. } => examine_disk(&folder, json),
                StoreUrl::Postgres(url) => examine_postgres(url, json).await,
                StoreUrl::Tiered(url) => examine_postgres(url.decide, json).await,
                StoreUrl::Redis(url) => {
                    examine_server(RedisStore::open(&url).await?, None, json).await
                }
            }
        }
        StoreCommand::Init { configured, after_loss, json } => {
            let trust = if after_loss { Trust::AfterQuarantine } else { Trust::AtOnce };
            init(url(configured.flags(), variables)?, trust, json).await
        }
        StoreCommand::Salvage { from, to, clock, json } => {
            salvage_disk(&from, &to, clock.wall_clock(), json)
        }
        StoreCommand::Reap(StoreArgs { configured, clock, json }) => {
            let url = url(configured.flags(), variables)?;
            let store = AnyStore::open_by_clock(&url, clock.wall_clock()).await?;
            let reaped = reap(store).await?;
            say(json, &format!("reaped {reaped} records"), &json!({"reaped": reaped}));
            Ok(())
        }
    }
}

fn url(flags: Flags, variables: &BTreeMap<String, String>) -> Result<StoreUrl, Failure> {
    Ok(config::store_url(&flags, variables)?)
}

async fn migrate(
    url: &StoreUrl,
    clock: WallClock,
    print: Option<u32>,
    as_json: bool,
) -> Result<(), Failure> {
    match (url, print) {
        (StoreUrl::Postgres(_) | StoreUrl::Tiered(_), Some(from)) => {
            let Some(script) = postgres::script_from(from) else {
                let newest = postgres::SCHEMA_VERSION;
                return Err(
                    format!("the schema has no version {from}; the newest is {newest}").into()
                );
            };
            output::say(&script);
            return Ok(());
        }
        (StoreUrl::Memory | StoreUrl::Disk { .. } | StoreUrl::Redis(_), Some(_)) => {
            return Err("only a PostgreSQL store is made by SQL that could be printed".into());
        }
        (StoreUrl::Postgres(url), None) => {
            postgres::migrate(url).await?;
        }
        (StoreUrl::Tiered(url), None) => {
            postgres::migrate(&url.decide).await?;
        }
        // Opening a store makes it if it is not there, and refuses one of another version.
        (StoreUrl::Memory | StoreUrl::Disk { .. } | StoreUrl::Redis(_), None) => {
            drop(AnyStore::open_by_clock(url, clock).await?);
        }
    }
    say(as_json, "migrated", &json!({"store": url.to_string()}));
    Ok(())
}

/// Says how far a server may be trusted that may have lost records.
async fn init(url: StoreUrl, trust: Trust, as_json: bool) -> Result<(), Failure> {
    let quarantine = match &url {
        StoreUrl::Memory | StoreUrl::Disk { .. } => {
            return Err("only a Redis needs to be initialised, and only a server can be in \
                quarantine; `store migrate` makes the others"
                .into());
        }
        StoreUrl::Redis(url) => {
            RedisStore::init(url, trust).await?;
            url.quarantine()
        }
        StoreUrl::Postgres(url) => init_postgres(url, trust).await?,
        StoreUrl::Tiered(url) => init_postgres(&url.decide, trust).await?,
    };
    let quarantine = show_duration(quarantine);
    let told = match trust {
        Trust::AtOnce => "initialised: new requests are executed from now on".to_owned(),
        Trust::AfterQuarantine => {
            format!("initialised: new requests are executed again in {quarantine}")
        }
    };
    say(as_json, &told, &json!({"store": url.to_string(), "trusted": trust == Trust::AtOnce}));
    Ok(())
}

/// Gives the length of its quarantine.
async fn init_postgres(url: &PostgresUrl, trust: Trust) -> Result<Duration, Failure> {
    if trust == Trust::AfterQuarantine && url.quarantine().is_none() {
        return Err("the URL says failover=continue, so there is no quarantine to begin".into());
    }
    PostgresStore::init(url, trust).await?;
    Ok(url.quarantine().unwrap_or_default())
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
    if as_json {
        output::json(&json!({
            "sound": report.is_sound(),
            "refusal": report.refusal,
            "versions": report.versions(),
            "segments": report.segments.len(),
            "faults": report.faults.iter()
                .map(|fault| json!({"file": fault.file, "offset": fault.offset, "what": fault.what}))
                .collect::<Vec<_>>(),
            "more_faults": report.more_faults,
        }));
    } else {
        output::say(&report.to_string());
    }
    verdict(report.is_sound())
}

/// Saves a damaged store to a new one, and names every key that is not what it was.
fn salvage_disk(from: &Path, to: &Path, clock: WallClock, as_json: bool) -> Result<(), Failure> {
    let options = match clock {
        WallClock::Checked => DiskOptions::new(),
        WallClock::Accepted => DiskOptions::new().accept_clock(),
    };
    let saved = salvage(from, to, options)?;
    if as_json {
        output::json(&json!({
            "complete": saved.is_complete(),
            "copied": saved.copied,
            "held": saved.held.iter()
                .map(|held| json!({"id": held.id.to_string(), "why": held.why}))
                .collect::<Vec<_>>(),
            "unreadable": saved.unreadable.iter()
                .map(|part| json!({"file": part.file, "offset": part.offset, "bytes": part.bytes}))
                .collect::<Vec<_>>(),
        }));
    } else {
        let copied = saved.copied;
        let held = saved.held.len();
        output::say(&format!("{copied} records were copied, {held} keys are held as unknown"));
        for held in &saved.held {
            output::say(&format!("unknown: {} ({})", held.id, held.why));
        }
        for part in &saved.unreadable {
            output::say(&format!("unreadable: {part}"));
        }
    }
    if saved.is_complete() {
        return Ok(());
    }
    Err("the new store is not complete: there were records of which not even the names can be read. \
         A retry of such a key runs again; see docs/operating.md"
        .into())
}

/// Also looks whether the tables of the outbox stay small.
async fn examine_postgres(url: PostgresUrl, as_json: bool) -> Result<(), Failure> {
    let store = PostgresStore::open(&url.without_migration()).await?;
    let health = Operator::of_store(store.clone(), "doctor").health().await?;
    examine_server(store, Some(&health), as_json).await
}

/// Reads every record once. The server's own pages are the server's business.
async fn examine_server(
    store: impl Store,
    outbox: Option<&OutboxHealth>,
    as_json: bool,
) -> Result<(), Failure> {
    let mut records = 0;
    let mut damaged = Vec::new();
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
    let warnings = outbox.map(bloat::warnings).unwrap_or_default();
    if as_json {
        let is_sound = damaged.is_empty();
        let mut told = json!({"sound": is_sound, "records": records, "damaged": damaged});
        if let (Some(health), Some(members)) = (outbox, told.as_object_mut()) {
            members.insert("outbox".into(), bloat::tables(health));
            members.insert("warnings".into(), warnings.into());
        }
        output::json(&told);
    } else {
        output::say(&output::counted(records, "record", "records"));
        for id in &damaged {
            output::say(&format!("{id}: damaged"));
        }
        for table in outbox.into_iter().flat_map(|health| &health.tables) {
            let (rows, dead, bytes) = (table.rows, table.dead_rows, table.bytes);
            output::say(&format!("{}: {rows} rows, {dead} dead rows, {bytes} bytes", table.name));
        }
        for warning in warnings {
            output::complain(&warning);
        }
    }
    verdict(damaged.is_empty())
}

fn verdict(is_sound: bool) -> Result<(), Failure> {
    if is_sound { Ok(()) } else { Err("the store is damaged; see docs/operating.md".into()) }
}

fn say(as_json: bool, text: &str, document: &serde_json::Value) {
    if as_json { output::json(document) } else { output::say(text) }
}
