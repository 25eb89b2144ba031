//! How are our own completed records and delivered effects read as a ledger?
//!
//! Each is a document, as operators see it, and columns are pointers into it. A record's document also has the answer that callers
//! are given, as `/body`, if it is JSON. What has nothing at the key's pointer is no line of a ledger (a record of
//! another route, an answer without an id): it is passed over and counted.

use std::fmt;

use jiff::Timestamp;
use retrysafe::outbox::{EffectFilter, EffectStanding, Operator};
use retrysafe::stores::any::{AnyStore, StoreUrl, WallClock};
use retrysafe::stores::postgres::PostgresStore;
use retrysafe_core::record::{Answer, Record, Standing, State};
use retrysafe_core::store::{Filter, PAGE_MAX, Query, Store as _};
use retrysafe_core::time::Time;
use serde_json::value::RawValue;

use super::columns::Columns;
use super::entry::{Entry, Place};
use super::pointer::Pointers;
use super::window::Window;
use crate::admin::{effect_view, view};

/// How many effects are read at once.
const EFFECTS_PAGE: usize = 500;

/// Our own ledger: what, and in which store.
#[derive(Debug)]
pub(crate) enum OwnLedger {
    /// Completed records, of one route or of all.
    Records { url: StoreUrl, clock: WallClock, route: Option<String> },
    /// Delivered effects, of one kind or of all.
    Effects { url: StoreUrl, kind: Option<String> },
}

impl fmt::Display for OwnLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Records { .. } => f.write_str("records"),
            Self::Effects { .. } => f.write_str("effects"),
        }
    }
}

impl OwnLedger {
    pub(super) async fn open(self, columns: Columns, window: Window) -> Result<OwnReader, String> {
        let pages = match self {
            Self::Records { url, clock, route } => {
                let store = AnyStore::open_by_clock(&url, clock)
                    .await
                    .map_err(|e| format!("{url}: {e}"))?;
                let filter = Filter {
                    standing: Some(Standing::Completed),
                    route: route.map(String::into_boxed_str),
                    ..Filter::default()
                };
                OwnPages::Records(Box::new(store), Query { filter, after: None, limit: PAGE_MAX })
            }
            Self::Effects { url, kind } => {
                let postgres = match url {
                    StoreUrl::Postgres(url) => url,
                    StoreUrl::Tiered(url) => url.decide,
                    StoreUrl::Memory | StoreUrl::Disk { .. } | StoreUrl::Redis(_) => {
                        return Err(format!("{url} has no outbox: effects are kept in PostgreSQL"));
                    }
                };
                let postgres = postgres.without_migration();
                let store = PostgresStore::open(&postgres).await;
                let store = store.map_err(|error| format!("{postgres}: {error}"))?;
                let standing = Some(EffectStanding::Delivered);
                let filter = EffectFilter { standing, kind, ..EffectFilter::default() };
                OwnPages::Effects(Operator::of_store(store, "reconcile compare"), filter, None)
            }
        };
        let pointers = Pointers::new(columns.wanted())?;
        Ok(OwnReader { pages, is_at_end: false, pointers, columns, window, passed_over: 0 })
    }
}

/// Reads our own ledger page by page, in the order of the store.
#[derive(Debug)]
pub(super) struct OwnReader {
    pages: OwnPages,
    is_at_end: bool,
    pointers: Pointers,
    columns: Columns,
    window: Window,
    passed_over: u64,
}

#[derive(Debug)]
enum OwnPages {
    Records(Box<AnyStore>, Query),
    /// Where the last page ended.
    Effects(Operator, EffectFilter, Option<i64>),
}

impl OwnReader {
    /// How many had no key.
    pub(super) fn passed_over(&self) -> u64 {
        self.passed_over
    }

    pub(super) async fn next_page(&mut self) -> Result<Option<Vec<Entry>>, String> {
        if self.is_at_end {
            return Ok(None);
        }
        let documents = match &mut self.pages {
            OwnPages::Records(store, query) => {
                let page =
                    store.scan(query.clone()).await.map_err(|error| error.to_string())?.value;
                if let Some(damaged) = page.damaged.first() {
                    return Err(format!(
                        "a record cannot be read: {damaged:?}; `retrysafe store doctor` looks at the store"
                    ));
                }
                self.is_at_end = page.next.is_none();
                query.after = page.next;
                page.records
                    .iter()
                    .filter_map(|record| record_document(record, &self.window))
                    .collect()
            }
            OwnPages::Effects(operator, filter, before) => {
                let page = operator
                    .list(filter, *before, EFFECTS_PAGE)
                    .await
                    .map_err(|error| error.to_string())?;
                self.is_at_end = page.next.is_none();
                *before = page.next;
                let is_within = |at: Time| moment(at).is_some_and(|at| self.window.has_moment(at));
                let within = page.effects.iter().filter(|effect| is_within(effect.at));
                let document = |effect| effect_view::summary(effect).to_string();
                within
                    .map(|effect| (Place::Effect(effect.id.unsigned_abs()), document(effect)))
                    .collect::<Vec<_>>()
            }
        };
        let mut entries = Vec::with_capacity(documents.len());
        for (place, document) in documents {
            entries.extend(self.entry(place, &document).map_err(|why| format!("{place}: {why}"))?);
        }
        Ok(Some(entries))
    }

    fn entry(&mut self, place: Place, document: &str) -> Result<Option<Entry>, String> {
        let values = self.pointers.texts(document)?;
        if values.first().is_none_or(|key| key.as_deref().unwrap_or_default().is_empty()) {
            self.passed_over += 1;
            return Ok(None);
        }
        // The window has been applied: these have a time of their own.
        self.columns.entry(values.as_slice(), &Window::default(), place)
    }
}

/// A completed record within the window as a document.
fn record_document(record: &Record, window: &Window) -> Option<(Place, String)> {
    let State::Completed { answer, settled_at, .. } = &record.state else { return None };
    if !moment(*settled_at).is_some_and(|at| window.has_moment(at)) {
        return None;
    }
    let mut document = view::summary(record).to_string();
    if let Answer::Kept(response) = answer
        && let Ok(body) = serde_json::from_slice::<&RawValue>(&response.body)
        && document.pop() == Some('}')
    {
        document.push_str(",\"body\":");
        document.push_str(body.get());
        document.push('}');
    }
    let digits = record.id.to_string();
    let first = u64::from_str_radix(digits.get(..16)?, 16).ok()?;
    Some((Place::Record(first), document))
}

fn moment(at: Time) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(at.as_ms()).ok()?).ok()
}
