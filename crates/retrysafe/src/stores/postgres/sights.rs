//! How are many records read and counted?
//!
//! A page is one statement: the filter's conditions as parameters, of which those that are not set
//! are NULL. The server plans each statement with its values, so a condition that is not set costs
//! nothing and one on the state finds its index.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use retrysafe_core::scope::Id;
use retrysafe_core::store::{Census, Cursor, Filter, Page, Query, Stamped, StoreError};
use tokio_postgres::types::{ToSql, Type};

use super::fields::{field, ms, time};
use super::row::{Cells as _, Row};
use super::{PostgresStore, broken, standing_number};

/// How many records one page looks at, where it looks for what no index knows: some tenths of a
/// second. Whoever searches a large table does so in several pages.
const SEARCHED_MAX: i64 = 50_000;

/// How many bytes of answers one page may hold. A page ends early rather than fill the memory.
const PAGE_BYTES_MAX: i64 = 16 << 20;

/// A [`Filter`] as parameters.
struct Conditions {
    standing: Option<i16>,
    lease_over: bool,
    /// Leases that ended before are not looked for.
    leases_after: i64,
    scope: Option<Vec<u8>>,
    route: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    created_before: Option<i64>,
    id_low: Option<Vec<u8>>,
    id_high: Option<Vec<u8>>,
    is_mention: bool,
    mentioned_key: Option<Vec<u8>>,
    mentioned_low: Option<Vec<u8>>,
    mentioned_high: Option<Vec<u8>>,
    /// What stands on the timeline if a request had the mentioned id, or was executed in the mentioned trace.
    mentioned_begin: Option<Vec<u8>>,
}

impl Conditions {
    fn of(filter: &Filter) -> Self {
        let mention = filter.mention.as_ref();
        let digits = mention.and_then(|mention| mention.key_digits);
        let request_id = mention.and_then(|mention| mention.request_id.clone());
        Self {
            standing: filter.standing.map(standing_number),
            lease_over: filter.lease_over,
            leases_after: i64::MIN,
            scope: filter.scope.as_ref().map(|scope| field(scope.as_bytes())),
            route: filter.route.as_deref().map(|route| field(route.as_bytes())),
            path: filter.path.as_deref().map(|path| field(path.as_bytes())),
            key: filter.key.as_ref().map(|key| key.as_bytes().to_vec()),
            created_before: filter.created_before.map(ms),
            id_low: filter.id.map(|id| id.low().to_vec()),
            id_high: filter.id.map(|id| id.high().to_vec()),
            is_mention: mention.is_some(),
            mentioned_key: mention.and_then(|m| m.key).map(|key| key.as_bytes().to_vec()),
            mentioned_low: digits.map(|digits| digits.low().to_vec()),
            mentioned_high: digits.map(|digits| digits.high().to_vec()),
            mentioned_begin: request_id.map(|id| id.as_bytes().to_vec()),
        }
    }

    /// From the third parameter on, in the order of `scan.sql` and `latest.sql`.
    fn parameters(&self) -> [(&(dyn ToSql + Sync), Type); 15] {
        [
            (&self.standing, Type::INT2),
            (&self.lease_over, Type::BOOL),
            (&self.leases_after, Type::INT8),
            (&self.scope, Type::BYTEA),
            (&self.route, Type::BYTEA),
            (&self.path, Type::BYTEA),
            (&self.key, Type::BYTEA),
            (&self.created_before, Type::INT8),
            (&self.id_low, Type::BYTEA),
            (&self.id_high, Type::BYTEA),
            (&self.is_mention, Type::BOOL),
            (&self.mentioned_key, Type::BYTEA),
            (&self.mentioned_low, Type::BYTEA),
            (&self.mentioned_high, Type::BYTEA),
            (&self.mentioned_begin, Type::BYTEA),
        ]
    }
}

impl PostgresStore {
    pub(super) async fn scan_page(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        let after = query.after.as_ref().map(|cursor| cursor.0.clone()).unwrap_or_default();
        let mut conditions = Conditions::of(&query.filter);
        let end = match (&query.filter.mention, query.filter.id) {
            (Some(_), None) => self.end_of_search(&after).await?,
            // The ids that are looked for lie together, or every record that is looked at counts.
            (Some(_), Some(_)) | (None, _) => None,
        };
        conditions.id_high = conditions.id_high.or_else(|| end.clone());
        let floor = &self.inner.sweep_floor;
        if query.filter.lease_over {
            conditions.leases_after = floor.get();
        }
        let from = (&after as &(dyn ToSql + Sync), Type::BYTEA);
        let (mut answer, is_whole) =
            self.read_page(include_str!("sql/scan.sql"), from, &query, &conditions).await?;
        let is_sweep = query.filter == Filter { lease_over: true, ..Filter::default() };
        if is_sweep && is_whole && query.after.is_none() {
            let first = answer.first_lease.unwrap_or_else(|| ms(answer.page.now));
            // What is written in this very millisecond may end in it.
            floor.set(first.saturating_sub(1), ms(answer.page.now));
        }
        let last = answer.last_id.map(|id| id.as_bytes().to_vec());
        answer.page.value.next = if is_whole { end } else { last }.map(Cursor);
        Ok(answer.page)
    }

    /// The id up to which one page searches; none if it gets to the end.
    async fn end_of_search(&self, after: &Vec<u8>) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT id FROM retrysafe.record WHERE id > $1 ORDER BY id OFFSET $2 LIMIT 1";
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(after, Type::BYTEA), (&SEARCHED_MAX, Type::INT8)];
        let rows = self.with_wire(async |wire| wire.client.query_typed(sql, &parameters).await);
        Ok(rows.await?.first().and_then(|row| row.bytes(0).map(<[u8]>::to_vec)))
    }

    pub(super) async fn latest_page(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        let below = query.after.as_ref().map_or(Ok(u64::MAX), Cursor::version)?;
        let below = i64::try_from(below).unwrap_or(i64::MAX);
        let below = (&below as &(dyn ToSql + Sync), Type::INT8);
        let conditions = Conditions::of(&query.filter);
        let (mut answer, is_whole) =
            self.read_page(include_str!("sql/latest.sql"), below, &query, &conditions).await?;
        if !is_whole {
            answer.page.value.next = answer.last_version.map(Cursor::of_version);
        }
        Ok(answer.page)
    }

    /// Reads a page from a place on, and says whether it holds all that matches.
    async fn read_page(
        &self,
        sql: &str,
        from: (&(dyn ToSql + Sync), Type),
        query: &Query,
        conditions: &Conditions,
    ) -> Result<(Answer, bool), StoreError> {
        let limit = i64::try_from(query.page_len()).unwrap_or(i64::MAX);
        let ends = [(&limit as &(dyn ToSql + Sync), Type::INT8), (&PAGE_BYTES_MAX, Type::INT8)];
        let parameters: Vec<_> =
            [from].into_iter().chain(ends).chain(conditions.parameters()).collect();
        let rows =
            self.with_wire(async |wire| wire.client.query_typed(sql, &parameters).await).await?;
        let (mut page, mut now, mut matched) = (Page::default(), None, 0);
        let (mut last_id, mut last_version) = (None::<Id>, None::<u64>);
        let (mut returned, mut first_lease) = (0, None::<i64>);
        for row in &rows {
            match Row::read(row) {
                Some(Row::Clock(read)) => {
                    now = Some(read);
                    matched = row.number(2).unwrap_or(0);
                }
                Some(Row::Found { id, version, record }) => {
                    returned += 1;
                    last_id = last_id.max(Some(id));
                    first_lease = first_lease.into_iter().chain(row.number(5)).min();
                    last_version = Some(last_version.map_or(version, |last| last.min(version)));
                    match record {
                        Ok(record) => page.records.push(*record),
                        Err(_) => page.damaged.push(id),
                    }
                }
                Some(Row::AsKnown { .. }) | None => return Err(broken()),
            }
        }
        let now = now.ok_or_else(broken)?;
        // A request's id that stands inside another one is found by the server, and is not meant.
        page.records.retain(|record| query.filter.matches(record, now));
        let is_whole = matched < limit && matched <= returned;
        let page = Stamped { now, value: page };
        Ok((Answer { page, last_id, last_version, first_lease }, is_whole))
    }

    /// What the catalogue says of the size is an estimate of the server's own housekeeping.
    pub(super) async fn count(&self) -> Result<Stamped<Census>, StoreError> {
        let row = self
            .with_wire(async |wire| {
                wire.client.query_typed_one(include_str!("sql/census.sql"), &[]).await
            })
            .await?;
        let count = |at| row.number(at).and_then(|number| u64::try_from(number).ok());
        let census = Census {
            unknown: count(1).ok_or_else(broken)?,
            unknown_since: row.number(2).map(time),
            records: count(3),
            bytes: count(4),
        };
        Ok(Stamped { now: time(row.number(0).ok_or_else(broken)?), value: census })
    }
}

/// A page that was read, and the last record on it.
struct Answer {
    page: Stamped<Page>,
    last_id: Option<Id>,
    last_version: Option<u64>,
    /// The lease among them that ends or has ended first.
    first_lease: Option<i64>,
}

/// Up to when every lease that has ended was seen to, so that a sweep does not look at them again.
///
/// The index over the leases holds settled records too: a settle that touched it would cost more than
/// this. So a sweep begins where the last one found nothing. Once in a while it begins at the
/// beginning, for a transaction that has committed late.
#[derive(Default)]
pub(super) struct SweepFloor(Mutex<Option<(i64, Instant)>>);

/// How long a sweep may begin where the last one ended.
const FLOOR_FOR: Duration = Duration::from_secs(3_600);

impl SweepFloor {
    fn get(&self) -> i64 {
        let mut floor = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if floor.is_some_and(|(_, since)| since.elapsed() > FLOOR_FOR) {
            *floor = None;
        }
        floor.map_or(i64::MIN, |(until, _)| until)
    }

    fn set(&self, until: i64, now: i64) {
        let mut floor = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match *floor {
            // The clock was set back: leases may have begun and ended below the floor since.
            Some((before, _)) if before > now => None,
            Some((_, since)) => Some(since),
            None => Some(Instant::now()),
        };
        *floor = since.map(|since| (until, since));
    }
}
