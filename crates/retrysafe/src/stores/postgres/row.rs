//! How is a record read from its columns?
//!
//! Several drivers read the same rows: the store's own connections, and the application's
//! transactions. [`Cells`] is what they have in common. What a row says is believed only if its seal
//! fits.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::LOCATION;
use retrysafe_core::codec::DecodeError;
use retrysafe_core::record::{Answer, Fence, Record, State};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::scope::Id;
use retrysafe_core::time::Time;

use crate::id_map::IdMap;

use super::fields::{Detail, FORMAT, Request, STAMP_BYTES, headers, moments, time};
use super::place::Place;
use super::seal::{Content, Numbers};

/// The columns of a row by their position, as every statement of ours returns them.
pub trait Cells {
    fn short(&self, at: usize) -> Option<i16>;
    fn number(&self, at: usize) -> Option<i64>;
    fn bytes(&self, at: usize) -> Option<&[u8]>;
}

/// What one row of a read says.
#[derive(Debug)]
pub(super) enum Row {
    /// What time it is; no record.
    Clock(Time),
    /// This record is still of the version that was known.
    AsKnown { id: Id },
    /// This record is there, or something damaged in its place.
    Found { id: Id, version: u64, record: Result<Box<Record>, DecodeError> },
}

/// What was read: the clock, and what was found by id.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) now: Time,
    pub(super) found: IdMap<Found>,
}

/// What was found of one record.
#[derive(Debug)]
pub(super) enum Found {
    AsKnown,
    Record(Box<Record>),
    /// It cannot be read: its version, and why.
    Damaged(u64, DecodeError),
}

/// What was written, and what was not because something stands in the way of it.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Each id with the clock and its new version.
    pub(super) done: IdMap<(Time, u64)>,
    /// Where records lie now, as far as that was told, with their versions.
    pub(super) places: Vec<(Id, u64, Place)>,
    pub(super) hold: Option<Hold>,
}

/// What stands in the way of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// This is not the server that was seen before: nothing is written until that was noted.
    Unobserved,
    /// It may have lost what its predecessor has acknowledged: nothing new is granted until then.
    Until(Time),
}

impl Row {
    /// Reads a row. None means that the server returned something that our functions do not return.
    pub(super) fn read(cells: &impl Cells) -> Option<Self> {
        let Some(id) = cells.bytes(1) else { return Some(Self::Clock(time(cells.number(0)?))) };
        let id = Id::from_bytes(id.try_into().ok()?);
        let version = u64::try_from(cells.number(2)?).ok()?;
        let Some(request) = cells.bytes(3) else { return Some(Self::AsKnown { id }) };
        Some(Self::Found { id, version, record: record(cells, id, version, request).map(Box::new) })
    }
}

impl Loaded {
    /// Reads the rows of a load.
    pub(super) fn read<'a, C: Cells + 'a>(rows: impl Iterator<Item = &'a C>) -> Option<Self> {
        let mut loaded = Self::default();
        for row in rows {
            match Row::read(row)? {
                Row::Clock(now) => loaded.now = now,
                Row::AsKnown { id } => {
                    loaded.found.insert(id, Found::AsKnown);
                }
                Row::Found { id, record: Ok(record), .. } => {
                    loaded.found.insert(id, Found::Record(record));
                }
                Row::Found { id, version, record: Err(damage) } => {
                    loaded.found.insert(id, Found::Damaged(version, damage));
                }
            }
        }
        Some(loaded)
    }
}

/// What `hold_v1` says of a server that was not seen before.
const UNOBSERVED: i64 = -1;

impl Written {
    /// Until when nothing new is granted.
    pub(super) fn held_until(&self) -> Option<Time> {
        match self.hold {
            Some(Hold::Until(until)) => Some(until),
            Some(Hold::Unobserved) | None => None,
        }
    }

    /// Reads the rows of `change_v1`, `begin_in_v1` and `change_in_v1`.
    pub(super) fn read<'a, C: Cells + 'a>(rows: impl Iterator<Item = &'a C>) -> Option<Self> {
        let mut written = Self::default();
        for row in rows {
            let number = row.number(1)?;
            match row.bytes(0) {
                Some(id) => {
                    written.note(id, time(row.number(2)?), number)?;
                }
                None => written.hold = Some(Hold::read(number)),
            }
        }
        Some(written)
    }

    /// Reads the one row of `write_v1`.
    pub(super) fn read_arrays(row: &tokio_postgres::Row) -> Option<Self> {
        let now = time(row.number(0)?);
        let hold = row.try_get::<_, Option<i64>>(1).ok()?.map(Hold::read);
        let ids: Vec<&[u8]> = row.try_get::<_, Option<_>>(2).ok()?.unwrap_or_default();
        let versions: Vec<i64> = row.try_get::<_, Option<_>>(3).ok()?.unwrap_or_default();
        let places: Vec<Option<Place>> = row.try_get::<_, Option<_>>(4).ok()?.unwrap_or_default();
        if ids.len() != versions.len() || ids.len() != places.len() {
            return None;
        }
        let mut written = Self { hold, ..Self::default() };
        for ((id, version), place) in ids.into_iter().zip(versions).zip(places) {
            let (id, version) = written.note(id, now, version)?;
            written.places.extend(place.map(|place| (id, version, place)));
        }
        Some(written)
    }

    /// This record was written, and is of this version now.
    fn note(&mut self, id: &[u8], now: Time, version: i64) -> Option<(Id, u64)> {
        let id = Id::from_bytes(id.try_into().ok()?);
        let version = u64::try_from(version).ok()?;
        self.done.insert(id, (now, version));
        Some((id, version))
    }
}

impl Hold {
    /// What `hold_v1` says.
    fn read(number: i64) -> Self {
        if number == UNOBSERVED { Self::Unobserved } else { Self::Until(time(number)) }
    }
}

fn record(cells: &impl Cells, id: Id, version: u64, request: &[u8]) -> Result<Record, DecodeError> {
    match request.first() {
        Some(&FORMAT) => read(cells, id, version, request).ok_or(DecodeError::Malformed)?,
        Some(other) => Err(DecodeError::UnknownVersion(*other)),
        None => Err(DecodeError::Malformed),
    }
}

/// None if a column is missing or makes no sense.
fn read(
    cells: &impl Cells,
    id: Id,
    version: u64,
    request: &[u8],
) -> Option<Result<Record, DecodeError>> {
    let (state, status) = (cells.short(9)?, cells.short(10));
    let (detail, timeline) = (cells.bytes(12)?, cells.bytes(13)?);
    let (lines, body) = (cells.bytes(14), cells.bytes(15));
    let (open_timeline, last) = timeline.split_last_chunk::<STAMP_BYTES>()?;
    let (last_fence, last_at) = last.split_first_chunk::<8>()?;
    let content = Content {
        id: &id,
        state,
        status,
        request,
        detail,
        timeline: open_timeline,
        headers: lines,
        body,
    };
    let numbers = Numbers {
        version: cells.number(2)?,
        fence: cells.number(6)?,
        created_at: cells.number(4)?,
        since: cells.number(7)?,
        until: if state == 0 { cells.number(5) } else { cells.number(11) },
        last_fence: i64::from_be_bytes(*last_fence),
        last_at: i64::from_be_bytes(last_at.try_into().ok()?),
    };
    if numbers.seal(content.sum()) != cells.number(8)? {
        return Some(Err(DecodeError::Checksum));
    }
    let Request { key, fingerprint, scope, about } = Request::read(request)?;
    let detail = Detail::read(detail)?;
    let (since, until) = (time(numbers.since), numbers.until.map(time));
    let state = match state {
        0 => State::InProgress {
            owner: detail.owner?,
            begun_at: since,
            lease_until: until?,
            head: detail.head,
        },
        1 => State::Completed {
            answer: answer(status, lines, body)?,
            settled_at: since,
            expires_at: until?,
        },
        2 => State::FailedRetryable { settled_at: since, expires_at: until? },
        3 => {
            let (doubt, lookups) = detail.doubt?;
            State::Unknown { since, doubt, lookups, owner: detail.owner, head: detail.head }
        }
        _ => return None,
    };
    Some(Ok(Record {
        id,
        scope,
        key,
        fingerprint,
        mark: detail.mark,
        about,
        created_at: time(numbers.created_at),
        ttl: Duration::from_millis(time(detail.ttl_ms).as_ms()),
        version,
        fence: Fence(u64::try_from(numbers.fence).ok()?),
        attempts: detail.attempts,
        state,
        flow: detail.flow,
        timeline: moments(timeline)?,
    }))
}

fn answer(status: Option<i16>, lines: Option<&[u8]>, body: Option<&[u8]>) -> Option<Answer> {
    let status = match status {
        None => None,
        Some(status) => Some(StatusCode::from_u16(u16::try_from(status).ok()?).ok()?),
    };
    let headers = headers(lines.unwrap_or_default())?;
    Some(match body {
        Some(body) => Answer::Kept(StoredResponse {
            status: status?,
            headers,
            body: Bytes::copy_from_slice(body),
        }),
        None => {
            let location = headers.into_iter().find(|(name, _)| *name == LOCATION);
            Answer::NotKept { status, location: location.map(|(_, value)| value) }
        }
    })
}

impl Cells for tokio_postgres::Row {
    fn short(&self, at: usize) -> Option<i16> {
        self.try_get(at).ok().flatten()
    }
    fn number(&self, at: usize) -> Option<i64> {
        self.try_get(at).ok().flatten()
    }
    fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.try_get(at).ok().flatten()
    }
}

#[cfg(feature = "sqlx")]
impl Cells for sqlx::postgres::PgRow {
    fn short(&self, at: usize) -> Option<i16> {
        sqlx::Row::try_get(self, at).ok().flatten()
    }
    fn number(&self, at: usize) -> Option<i64> {
        sqlx::Row::try_get(self, at).ok().flatten()
    }
    fn bytes(&self, at: usize) -> Option<&[u8]> {
        sqlx::Row::try_get(self, at).ok().flatten()
    }
}
