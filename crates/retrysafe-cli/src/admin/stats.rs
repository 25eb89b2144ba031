//! How do the records stand, by route and by scope?

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use retrysafe::layer::Tallied;
use retrysafe_core::record::{Record, Standing};
use retrysafe_core::store::{self, PAGE_MAX, Stamped, Store};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::Refused;
use super::{Admin, Shared, scopes as tallied_scopes, view};

/// How many records are counted. A store with more is counted in part, and the answer says so: a
/// look at the statistics must not cost minutes of reading.
const RECORDS_MAX: usize = 200_000;

/// How many scopes are named unless asked otherwise, those with the most records first.
const TOP: usize = 10;

/// How many scopes may be named.
const TOP_MAX: usize = 1_000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    top: Option<usize>,
}

#[derive(Default)]
struct Tally {
    records: u64,
    attempts: u64,
    by_state: BTreeMap<&'static str, u64>,
}

pub(crate) async fn stats<S: Store>(
    State(admin): Shared<S>,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Value>, Refused> {
    let Query(asked) = query.map_err(|why| Refused::Invalid(why.body_text()))?;
    count(&admin, asked.top.unwrap_or(TOP).min(TOP_MAX)).await.map(Json)
}

async fn count<S: Store>(admin: &Admin<S>, top: usize) -> Result<Value, Refused> {
    let mut all = Tally::default();
    let mut counted = 0_usize;
    let mut damaged = 0_usize;
    let mut routes: BTreeMap<Box<str>, Tally> = BTreeMap::new();
    let mut scopes: BTreeMap<Vec<u8>, (String, Tally)> = BTreeMap::new();
    let mut oldest_unknown = None;
    let mut query = store::Query { limit: PAGE_MAX, ..store::Query::default() };
    let complete = loop {
        let Stamped { now, value: page } = admin.engine().store().scan(query.clone()).await?;
        damaged += page.damaged.len();
        counted += page.records.len();
        for record in page.records.iter().filter(|record| !record.is_expired(now)) {
            all.add(record);
            routes.entry(record.about.route.clone()).or_default().add(record);
            let scope = scopes.entry(record.scope.as_bytes().to_vec());
            scope.or_insert_with(|| (record.scope.to_string(), Tally::default())).1.add(record);
            if record.standing() == Standing::Unknown {
                oldest_unknown = oldest_unknown.max(Some(now.since(record.created_at)));
            }
        }
        match page.next {
            None => break true,
            Some(_) if counted >= RECORDS_MAX => break false,
            Some(cursor) => query.after = Some(cursor),
        }
    };
    let mut scopes: Vec<(Vec<u8>, (String, Tally))> = scopes.into_iter().collect();
    scopes.sort_by_key(|(_, (_, tally))| std::cmp::Reverse(tally.records));
    let shown = scopes.iter().take(top).map(|(bytes, (name, tally))| {
        tally.json(&[("scope", name.as_str().into()), ("scope_hex", view::hex(bytes).into())])
    });
    let routes = routes.iter().map(|(route, tally)| tally.json(&[("route", (**route).into())]));
    Ok(json!({
        "complete": complete,
        "damaged": damaged,
        "oldest_unknown_seconds": oldest_unknown.map(|age| age.as_secs_f64()),
        "all": all.json(&[]),
        "routes": routes.collect::<Vec<_>>(),
        "scopes": shown.collect::<Vec<_>>(),
        "scopes_total": scopes.len(),
        "duplicates": tallied_scopes::document(&admin.tally, Tallied::Duplicate, top),
        "misuses": tallied_scopes::document(&admin.tally, Tallied::Misuse, top),
    }))
}

impl Tally {
    fn add(&mut self, record: &Record) {
        self.records += 1;
        self.attempts += u64::from(record.attempts);
        *self.by_state.entry(record.standing().name()).or_default() += 1;
    }

    fn json(&self, named: &[(&str, Value)]) -> Value {
        let mut shown: Map<String, Value> =
            named.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        shown.insert("records".into(), self.records.into());
        shown.insert("attempts".into(), self.attempts.into());
        for standing in Standing::ALL {
            let count = self.by_state.get(standing.name()).copied().unwrap_or_default();
            shown.insert(standing.name().into(), count.into());
        }
        Value::Object(shown)
    }
}
