//! What is unknown, oldest first, and what does the upstream say about it now?
//!
//! No store keeps its unknown records by age. So the first page is found by reading all of them, in the store's own steps, while only the
//! oldest that fit the page are held. The places of all others are remembered for a minute: the next page reads its own records alone,
//! so a list of many pages costs two readings, not one for each page. Whoever cannot wait for all of them says how many may be read
//! (`read_max`), and is told whether that was too few: then the list has the oldest of those, and not of all.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use retrysafe::upkeep::{AskedNow, LookupNow};
use retrysafe_core::StoreError;
use retrysafe_core::event;
use retrysafe_core::record::{Fence, Record, Standing, State as RecordState};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Cursor, Filter, PAGE_MAX, Query as StoreQuery, Stamped, Store};
use retrysafe_core::time::Time;
use retrysafe_core::units;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Refused;
use super::keys::{foreign_cursor, parse, read, read_cursor, scope, show_cursor};
use super::operators::Operator;
use super::story::{self, Neighbours};
use super::{Admin, Shared, view};

/// How many unknown records a page has unless asked otherwise.
const LIMIT: usize = 100;

/// How many places are remembered for the next pages: 40 bytes each.
const PLACES_MAX: usize = 250_000;

/// How long they are remembered. What is decided meanwhile is left out; what becomes unknown meanwhile comes last anyway.
const PLACES_LIVE: Duration = Duration::from_secs(60);

/// How many lists are remembered at once: operators are few.
const LISTS_MAX: usize = 4;

/// How long one request may read: less than its caller waits.
const READ_MAX: Duration = Duration::from_secs(45);

/// How many bytes of a cursor are the time.
const TIME_BYTES: usize = 8;

/// A lookup that is under way.
pub(crate) type Polling = Pin<Box<dyn Future<Output = Result<AskedNow, StoreError>> + Send>>;

/// Whoever looks unknown records up by a schedule, as operators see it.
pub(crate) trait LookupDesk: Send + Sync + 'static {
    /// Whether this process looks anything up.
    fn looks_up(&self) -> bool;

    /// How many lookups the schedule has for this record. None: this process does not look it up.
    fn planned(&self, unknown: &Record) -> Option<u32>;

    /// Asks about it now, within the bounds that hold for every lookup. It is noted on the timeline, and uses up nothing of the schedule.
    fn poll(&self, id: Id) -> Polling;
}

/// The places of the lists that were read lately.
#[derive(Debug, Default)]
pub(crate) struct RememberedLists(Mutex<VecDeque<Arc<RememberedList>>>);

/// The places that a list had when it was read, the oldest first.
#[derive(Debug)]
struct RememberedList {
    of: ListedBy,
    read_at: Instant,
    places: Vec<Place>,
    is_cut: bool,
}

/// What tells one list from another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedBy {
    texts: [Option<String>; 4],
    dead_lettered: Option<bool>,
    read_max: Option<usize>,
}

impl RememberedLists {
    /// The places after this one in a list, if so many are remembered that a page is full; and whether the list was cut.
    fn after(&self, of: &ListedBy, after: Place, limit: usize) -> Option<(Vec<Place>, bool)> {
        let lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it =
            |list: &&Arc<RememberedList>| list.of == *of && list.read_at.elapsed() < PLACES_LIVE;
        let list = lists.iter().find(is_it).map(Arc::clone)?;
        drop(lists);
        let start = list.places.partition_point(|place| *place <= after);
        let rest = list.places.get(start..)?;
        // The last page is read anew: something may have become unknown meanwhile.
        (rest.len() > limit).then(|| (rest.to_vec(), list.is_cut))
    }

    fn remember(&self, of: ListedBy, mut places: Vec<Place>, is_cut: bool) {
        // Of more than that, the oldest are not known: each page is read anew.
        if places.len() > PLACES_MAX {
            return;
        }
        places.sort_unstable();
        places.dedup();
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lists.retain(|list| list.of != of && list.read_at.elapsed() < PLACES_LIVE);
        if lists.len() >= LISTS_MAX {
            lists.pop_front();
        }
        lists.push_back(Arc::new(RememberedList { of, read_at: Instant::now(), places, is_cut }));
    }
}

/// Which unknown records to list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listing {
    route: Option<String>,
    path: Option<String>,
    scope: Option<String>,
    older_than: Option<String>,
    dead_lettered: Option<bool>,
    /// How many records may be read for a page; all that are unknown unless it is set.
    read_max: Option<usize>,
    limit: Option<usize>,
    cursor: Option<String>,
}

impl Listing {
    fn listed_by(&self) -> ListedBy {
        let Self { route, path, scope, older_than, dead_lettered, read_max, limit: _, cursor: _ } =
            self;
        let texts = [route, path, scope, older_than].map(Clone::clone);
        ListedBy { texts, dead_lettered: *dead_lettered, read_max: *read_max }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Poll {
    fence: Option<u64>,
}

/// Where an unknown record stands in the list.
type Place = (Time, Id);

pub(crate) async fn list<S: Store>(
    State(admin): Shared<S>,
    query: Result<Query<Listing>, QueryRejection>,
) -> Result<Json<Value>, Refused> {
    let Query(listing) = query.map_err(|why| Refused::Invalid(why.body_text()))?;
    if listing.dead_lettered.is_some() && !admin.desk.as_ref().is_some_and(|desk| desk.looks_up()) {
        return Err(Refused::LookupsUnseen);
    }
    let limit = listing.limit.unwrap_or(LIMIT).clamp(1, PAGE_MAX);
    let after = listing.cursor.as_deref().map(read_place).transpose()?;
    let of = listing.listed_by();
    let places = after.and_then(|after| admin.lists.after(&of, after, limit));
    let oldest = match places {
        Some((places, is_cut)) => {
            let found = remembered(&admin, places, limit).await?;
            Oldest { is_cut, ..found }
        }
        None => {
            let mut oldest = Oldest::new(after, limit);
            oldest.read(&admin, &listing).await?;
            admin.lists.remember(of, std::mem::take(&mut oldest.places), oldest.is_cut);
            oldest
        }
    };
    let cursor = oldest.next().map(|place| show_cursor(&place_cursor(place)));
    let shown = oldest.held.values().take(limit).map(|record| {
        let mut shown = view::summary(record);
        if let Some(members) = shown.as_object_mut() {
            story::put_reconciliation(members, record, admin.planned_lookups(record));
        }
        shown
    });
    let damaged = oldest.damaged.iter().map(ToString::to_string);
    Ok(Json(json!({
        "unknown": shown.collect::<Vec<_>>(),
        "damaged": damaged.collect::<Vec<_>>(),
        "cursor": cursor,
        "cut": oldest.is_cut,
    })))
}

/// A page of a list that was read before. What was decided meanwhile is not unknown any more, and left out.
async fn remembered<S: Store>(
    admin: &Admin<S>,
    places: Vec<Place>,
    limit: usize,
) -> Result<Oldest, Refused> {
    let mut oldest = Oldest::new(None, limit);
    for (since, id) in places {
        let record = admin.engine().look(id).await?.value;
        if let Some(record) = record.filter(|record| record.unknown_since() == Some(since)) {
            oldest.held.insert((since, id), record);
        }
        if oldest.held.len() > limit {
            break;
        }
    }
    Ok(oldest)
}

/// The oldest unknown records after a place, one more than a page has.
struct Oldest {
    after: Option<Place>,
    limit: usize,
    held: BTreeMap<Place, Record>,
    damaged: Vec<Id>,
    /// The places of all that were read, those before the page too; one more than are remembered says that there are too many.
    places: Vec<Place>,
    /// Whether there are more unknown records than might be read.
    is_cut: bool,
}

impl Oldest {
    fn new(after: Option<Place>, limit: usize) -> Self {
        let held = BTreeMap::new();
        Self { after, limit, held, damaged: Vec::new(), places: Vec::new(), is_cut: false }
    }

    async fn read<S: Store>(&mut self, admin: &Admin<S>, listing: &Listing) -> Result<(), Refused> {
        let older_than = match &listing.older_than {
            None => None,
            Some(text) => Some(
                units::parse_duration(text)
                    .map_err(|error| Refused::Invalid(format!("`older_than`: {error}")))?,
            ),
        };
        let filter = Filter {
            standing: Some(Standing::Unknown),
            scope: listing.scope.as_deref().map(scope).transpose()?,
            route: listing.route.as_deref().map(Into::into),
            path: listing.path.as_deref().map(Into::into),
            ..Filter::default()
        };
        let mut left = listing.read_max.unwrap_or(usize::MAX).max(1);
        let mut query = StoreQuery { filter, after: None, limit: PAGE_MAX };
        let started = Instant::now();
        loop {
            query.limit = left.min(PAGE_MAX);
            let Stamped { now, value } = admin.engine().store().scan(query.clone()).await?;
            left = left.saturating_sub(value.records.len() + value.damaged.len());
            for record in value.records {
                let RecordState::Unknown { since, lookups, .. } = record.state else { continue };
                let is_old = older_than.is_none_or(|age| now.since(since) >= age);
                let given_up = || story::have_given_up(lookups, admin.planned_lookups(&record));
                if is_old && listing.dead_lettered.is_none_or(|wanted| given_up() == Some(wanted)) {
                    self.hold(since, record);
                }
            }
            self.damaged.extend(
                value.damaged.into_iter().take(PAGE_MAX - self.damaged.len().min(PAGE_MAX)),
            );
            match value.next {
                Some(_) if left == 0 => {
                    self.is_cut = true;
                    return Ok(());
                }
                Some(cursor) if started.elapsed() < READ_MAX => query.after = Some(cursor),
                Some(_) => {
                    let why = "there are too many unknown records to be listed by age in one go; choose by `route`, `path` or `scope`";
                    return Err(Refused::Invalid(why.into()));
                }
                None => return Ok(()),
            }
        }
    }

    fn hold(&mut self, since: Time, record: Record) {
        let place = (since, record.id);
        if self.places.len() <= PLACES_MAX {
            self.places.push(place);
        }
        if self.after.is_some_and(|after| place <= after) {
            return;
        }
        self.held.insert(place, record);
        if self.held.len() > self.limit.saturating_add(1) {
            self.held.pop_last();
        }
    }

    /// The last place of the page, if another page follows.
    fn next(&self) -> Option<Place> {
        let is_more = self.held.len() > self.limit;
        self.held.keys().nth(self.limit.saturating_sub(1)).copied().filter(|_| is_more)
    }
}

fn place_cursor((since, id): Place) -> Cursor {
    Cursor([&since.as_ms().to_be_bytes()[..], id.as_bytes()].concat())
}

fn read_place(text: &str) -> Result<Place, Refused> {
    let Cursor(place) = read_cursor(text)?;
    let parts = place.split_at_checked(TIME_BYTES).and_then(|(since, id)| {
        let since = u64::from_be_bytes(since.try_into().ok()?);
        Some((Time::from_ms(since), Id::from_bytes(id.try_into().ok()?)))
    });
    parts.ok_or_else(foreign_cursor)
}

/// Asks about one record now. It is noted on the timeline, and uses up nothing of the schedule.
pub(crate) async fn poll<S: Store>(
    State(admin): Shared<S>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Poll { fence } = read(&body)?;
    let id = parse(&id)?;
    let desk = admin.desk.as_ref().ok_or(Refused::NobodyToAsk)?;
    let record = admin.engine().look(id).await?.value.ok_or(Refused::NotFound)?;
    if fence.is_some_and(|seen| Fence(seen) != record.fence) {
        return Err(Refused::AnotherAttempt(record.fence));
    }
    let asked = desk.poll(id).await;
    let result = match &asked {
        Ok(AskedNow::Asked(LookupNow { resolved: Some(_), .. })) => "decided",
        Ok(AskedNow::Asked(LookupNow { resolved: None, .. })) => "still_unknown",
        Ok(AskedNow::NotUnknown(_)) => "refused",
        Ok(AskedNow::Absent) => "absent",
        Ok(AskedNow::NobodyToAsk | AskedNow::Busy) | Err(_) => "failed",
    };
    let who = &*operator.name;
    tracing::info!(target: "audit", verb = "poll", %id, operator = who, result, "admin_action");
    metrics::counter!(event::ADMIN_ACTIONS.name, "verb" => "poll", "result" => result).increment(1);
    let LookupNow { found, excerpt, resolved } = match asked? {
        AskedNow::Asked(asked) => asked,
        AskedNow::NotUnknown(record) => return Err(Refused::Conflict(record.standing().name())),
        AskedNow::NobodyToAsk => return Err(Refused::NobodyToAsk),
        AskedNow::Absent => return Err(Refused::NotFound),
        AskedNow::Busy => return Err(Refused::TooManyLookups),
    };
    let record = match resolved {
        Some(record) => *record,
        None => admin.engine().look(id).await?.value.ok_or(Refused::NotFound)?,
    };
    let beside = Neighbours::read(&admin, &record).await;
    Ok(Json(json!({
        "found": view::printable(found.as_bytes()),
        "answer": excerpt.map(|text| view::printable(text.as_bytes())),
        "result": result,
        "record": story::story(&record, admin.planned_lookups(&record), &beside),
    })))
}
