//! What does `retrysafe worker` need of the configuration?

use std::net::SocketAddr;
use std::time::Duration;

use retrysafe::stores::any::StoreUrl;
use retrysafe::stores::postgres::PostgresUrl;

use super::effects::{EffectRules, effects};
use super::source::Complaint;
use super::{ADMIN, DRAIN_MAX, File, HEAD_TIME_MAX, Log, STORE_WAIT_MAX, WRITE_TIME_MAX, address};

/// A complete, valid configuration of a worker.
#[derive(Debug)]
pub(crate) struct WorkerConfig {
    pub database: PostgresUrl,
    pub store_wait_max: Duration,
    pub effects: Vec<EffectRules>,
    /// Where health and metrics are asked for.
    pub admin: Option<SocketAddr>,
    pub head_time_max: Duration,
    pub write_time_max: Duration,
    pub drain_max: Duration,
    pub log: Log,
}

impl WorkerConfig {
    /// Reads it; none if something is wrong.
    pub(super) fn read(file: &File, wrong: &mut Vec<Complaint>) -> Option<Self> {
        let admin = file.admin.listen.as_deref().unwrap_or(ADMIN);
        let admin = Some(admin).filter(|admin| *admin != "off");
        let admin = admin.and_then(|admin| address(admin, "admin.listen", wrong));
        let database = database(file, wrong);
        let effects = effects(&file.effects, wrong);
        if file.effects.is_empty() {
            let what = "there is none: a worker needs a table [effects.KIND] for each kind that it delivers";
            wrong.push(Complaint::new("effects", what));
        }
        Some(Self {
            database: database?,
            store_wait_max: file.store_wait_max.map_or(STORE_WAIT_MAX, |length| length.0),
            effects,
            admin,
            head_time_max: file.head_time_max.map_or(HEAD_TIME_MAX, |length| length.0),
            write_time_max: file.write_time_max.map_or(WRITE_TIME_MAX, |length| length.0),
            drain_max: file.drain_max.map_or(DRAIN_MAX, |length| length.0),
            log: super::log(file),
        })
    }
}

/// The database in which effects are staged.
fn database(file: &File, wrong: &mut Vec<Complaint>) -> Option<PostgresUrl> {
    let database = match super::store(file, wrong)? {
        StoreUrl::Postgres(url) => url,
        StoreUrl::Tiered(url) => url.decide,
        StoreUrl::Memory | StoreUrl::Disk { .. } | StoreUrl::Redis(_) => {
            let what = "is no PostgreSQL: effects are staged in the application's own database; set store = \
                        \"postgres://USER:PASSWORD@HOST/DATABASE\"";
            wrong.push(Complaint::new("store", what));
            return None;
        }
    };
    if let Err(error) = database.sqlx_options() {
        wrong.push(Complaint::new("store", error.to_string()));
    }
    Some(database)
}
