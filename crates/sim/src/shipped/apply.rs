//! How does the simulated store keep its contract?
//!
//! The core's own [`First::record`] and [`Write::onto`] inside one atomic step. It never errs by itself, and
//! writes every applied change into the history.

use retrysafe_core::record::{Answer, First, Record, State as RecordState, Write};
use retrysafe_core::store::{Cursor, Inserted, Page, Query, Stamped, Swapped};
use retrysafe_core::time::Time;

use super::answer::exec_of;
use super::records::{Reply, Request};
use super::stage::State;
use super::witness::{Asker, conn_of, role_of};
use crate::history::{Act, By, NONE, Role, What, Wrote};

/// Carries a request out.
pub fn apply(state: &mut State, request: &Request, asker: &Asker) -> Stamped<Reply> {
    let now = state.records.clock(state.now_ms());
    let value = match request {
        Request::Insert(first) => Reply::Inserted(insert(state, first, asker, now)),
        Request::Load(id) => {
            let kept = state.key_of(id).and_then(|key| state.records.get(key));
            Reply::Loaded(kept.map(|(record, _)| record.clone()))
        }
        Request::Swap(swap) => Reply::Swapped(swap_in(state, &swap.0, &swap.1, asker, now)),
        Request::Scan(query) => Reply::Scanned(scan(state, query, now)),
        Request::Reap(limit) => Reply::Reaped(reap(state, *limit, now)),
    };
    Stamped { now, value }
}

fn insert(state: &mut State, first: &First, asker: &Asker, now: Time) -> Inserted {
    let Some(key) = state.key_of(&first.id) else {
        return Inserted::Exists(first.record(now, 0));
    };
    if let Some((record, _)) = state.records.get(key).filter(|(record, _)| !record.is_expired(now))
    {
        return Inserted::Exists(record.clone());
    }
    let version = state.records.next();
    let record = first.record(now, version);
    let conn = conn_of(first.request_id.as_deref()).unwrap_or(NONE);
    let print = state.conn(conn).map_or(u8::MAX, |conn| conn.print);
    let by = asker.by(Role::Begin { conn });
    state.record(wrote(key, by, Act::Inserted, &record, print, now));
    state.records.set(key, Some((record.clone(), print)));
    Inserted::New(record)
}

fn swap_in(state: &mut State, from: &Record, write: &Write, asker: &Asker, now: Time) -> Swapped {
    let key = state.key_of(&from.id);
    let Some((key, (current, print))) =
        key.and_then(|key| Some((key, state.records.get(key)?.clone())))
    else {
        return Swapped::Lost(None);
    };
    if current.version != from.version {
        return Swapped::Lost(Some(current));
    }
    let version = state.records.next();
    let record = write.onto(&current, now, version);
    let role = role_of(state, key, from, write, asker);
    let print = if let Role::Begin { conn } = role {
        state.conn(conn).map_or(print, |conn| conn.print)
    } else {
        print
    };
    let act = Act::of(write);
    if let (Act::Settled, Role::Owner { fence }) = (act, role) {
        state.settled(fence, record.standing());
    }
    state.record(wrote(key, asker.by(role), act, &record, print, now));
    state.records.set(key, Some((record.clone(), print)));
    Swapped::Done(record)
}

fn scan(state: &State, query: &Query, now: Time) -> Page {
    let from = query.after.as_ref().and_then(|cursor| cursor.0.first().copied()).unwrap_or(0);
    let mut page = Page::default();
    for (key, record) in state.records.iter().filter(|(key, _)| *key >= from) {
        if !query.filter.matches(record, now) {
            continue;
        }
        if page.records.len() == query.page_len() {
            page.next = Some(Cursor(vec![key]));
            break;
        }
        page.records.push(record.clone());
    }
    page
}

fn reap(state: &mut State, limit: usize, now: Time) -> usize {
    let expired = state.records.iter().filter(|(_, record)| record.is_expired(now));
    let keys: Vec<_> = expired.map(|(key, _)| key).take(limit).collect();
    for key in &keys {
        state.records.set(*key, None);
        state.record(What::Reaped { key: *key, now: now.as_ms() });
    }
    keys.len()
}

fn wrote(key: u8, by: By, act: Act, record: &Record, print: u8, now: Time) -> What {
    let (status, body) = match &record.state {
        RecordState::Completed { answer: Answer::Kept(response), .. } => {
            (response.status.as_u16(), exec_of(&response.body))
        }
        RecordState::Completed { answer: Answer::NotKept { status, .. }, .. } => {
            (status.map_or(0, |status| status.as_u16()), NONE)
        }
        RecordState::InProgress { .. }
        | RecordState::FailedRetryable { .. }
        | RecordState::Unknown { .. } => (0, NONE),
    };
    let until = record.lease_until().or(record.expires_at()).or(record.unknown_since());
    What::Wrote(Wrote {
        key,
        by,
        act,
        standing: record.standing(),
        print,
        version: record.version as u32,
        fence: record.fence.0 as u32,
        status,
        body,
        now: now.as_ms(),
        until: until.map_or(0, Time::as_ms),
    })
}
