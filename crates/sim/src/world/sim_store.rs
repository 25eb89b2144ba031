//! How does the simulated store keep records?
//!
//! The contract of a store in a few dozen lines: one map, one sequence, one clock, and the core's
//! own [`First::record`] and [`Write::onto`] inside the atomic step. It writes every applied change
//! into the history: of what the records are, this is the ground truth. It never errs by itself;
//! what goes wrong on the way is the [`wire`](super::wire)'s business.

use retrysafe_core::machine::{self, Decision, OwnerGone};
use retrysafe_core::record::{First, Record, Standing, State, Write};
use retrysafe_core::store::{Cursor, Inserted, Page, Query, Stamped, Swapped};
use retrysafe_core::time::Time;

use super::tables::{self, Tables};
use super::wire::{Request, Response};
use crate::history::{Act, By, Entry, NONE, OUTSIDE, Role, STORE_EPOCH_MS, What, Wrote};
use crate::museum::Fault;
use crate::options::{NAMES, Options, Profile, SCOPES};

/// How far the sequence leaps at a fail-over, so that it never repeats a number that was lost.
const FAIL_OVER_LEAP: u64 = 1_000;

/// The store's state.
pub struct SimStore {
    profile: Profile,
    fault: Option<Fault>,
    records: Vec<Option<Record>>,
    sequence: u64,
    offset: i64,
    offset_max: i64,
    high: u64,
    /// What each write replaced, while a fail-over may forget it.
    undo: Vec<(u64, u8, Option<Record>)>,
}

impl SimStore {
    pub fn new(options: &Options) -> Self {
        let mut store = Self {
            profile: options.profile,
            fault: None,
            records: Vec::new(),
            sequence: 0,
            offset: 0,
            offset_max: 0,
            high: 0,
            undo: Vec::new(),
        };
        store.reset(options);
        store
    }

    pub fn reset(&mut self, options: &Options) {
        (self.profile, self.fault) = (options.profile, options.fault);
        self.records.clear();
        self.records.resize(usize::from(SCOPES * NAMES), None);
        (self.sequence, self.offset, self.offset_max, self.high) = (0, 0, 0, 0);
        self.undo.clear();
    }

    /// The store's clock. The one that lives on a disk keeps a high-water mark and never goes back;
    /// a server's clock can be turned back.
    fn clock(&mut self, at: u64) -> Time {
        let reading = (STORE_EPOCH_MS + at).saturating_add_signed(self.offset);
        self.high = self.high.max(reading);
        Time::from_ms(match self.profile {
            Profile::SingleOwner => self.high,
            Profile::Durable | Profile::Cached | Profile::FailOver => reading,
        })
    }

    /// Sets the clock forward or back.
    pub fn jump(&mut self, by: i64) {
        self.offset = self.offset.saturating_add(by);
        self.offset_max = self.offset_max.max(self.offset);
    }

    /// Sets the clock right again: ahead, as far as it has ever been. Says by how much.
    pub fn steady(&mut self) -> i64 {
        let by = self.offset_max - self.offset;
        self.offset = self.offset_max;
        by
    }

    /// What a record is, for the harness.
    pub fn record(&self, key: u8) -> Option<&Record> {
        self.records.get(usize::from(key)).and_then(Option::as_ref)
    }

    /// How far the clock is from the recorder's, for the harness.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Carries a request out.
    pub fn apply(
        &mut self,
        request: &Request,
        by: By,
        at: u64,
        tables: &Tables,
        log: &mut Vec<Entry>,
    ) -> Stamped<Response> {
        let now = self.clock(at);
        let value = match request {
            Request::Insert(first) => match tables.key(&first.id) {
                Some(key) => Response::Inserted(self.insert(key, first, by, at, now, log)),
                None => Response::Deleted,
            },
            Request::Load(key) => Response::Loaded(self.record(*key).cloned()),
            Request::Swap { key, version, write, force } => {
                Response::Swapped(self.swap(*key, *version, write, *force, by, at, now, log))
            }
            Request::Scan(query) => Response::Scanned(self.scan(query, now)),
            Request::Reap { limit } => Response::Reaped(self.reap(*limit, at, now, log)),
            Request::Put(first) => match tables.key(&first.id) {
                Some(key) => {
                    Response::Inserted(Inserted::New(self.put(key, first, by, at, now, log)))
                }
                None => Response::Deleted,
            },
            Request::Delete(key) => {
                self.replace(*key, at, None);
                log.push(Entry { at, what: What::Deleted { key: *key } });
                Response::Deleted
            }
        };
        Stamped { now, value }
    }

    /// The store's process starts anew: nobody can still be executing what is in progress.
    pub fn reopen(&mut self, at: u64, log: &mut Vec<Entry>) {
        let now = self.clock(at);
        for key in 0..self.records.len() as u8 {
            let Some(record) = self.record(key) else { continue };
            if let Some(Decision::Write(write)) = machine::decide(Some(record), &OwnerGone, now) {
                let version = record.version;
                let by = By { gateway: OUTSIDE, epoch: 0, role: Role::Opening };
                self.swap(key, version, &write, false, by, at, now, log);
            }
        }
    }

    /// Forgets the writes since then, as an asynchronous replica does. Says whether there were any.
    pub fn fail_over(&mut self, since: u64, at: u64, log: &mut Vec<Entry>) -> bool {
        let now = self.clock(at);
        let mut forgot = false;
        while let Some((wrote_at, key, before)) = self.undo.pop() {
            if wrote_at < since {
                break;
            }
            forgot = true;
            let by = By { gateway: OUTSIDE, epoch: 0, role: Role::FailOver };
            match &before {
                Some(record) => log.push(wrote(key, by, Act::RolledBack, record, at, now)),
                None => log.push(Entry { at, what: What::Forgotten { key } }),
            }
            if let Some(slot) = self.records.get_mut(usize::from(key)) {
                *slot = before;
            }
        }
        self.undo.clear();
        self.sequence += FAIL_OVER_LEAP;
        forgot
    }

    fn insert(
        &mut self,
        key: u8,
        first: &First,
        by: By,
        at: u64,
        now: Time,
        log: &mut Vec<Entry>,
    ) -> Inserted {
        match self.record(key) {
            Some(record) if !record.is_expired(now) => Inserted::Exists(record.clone()),
            Some(_) | None => Inserted::New(self.put(key, first, by, at, now, log)),
        }
    }

    fn put(
        &mut self,
        key: u8,
        first: &First,
        by: By,
        at: u64,
        now: Time,
        log: &mut Vec<Entry>,
    ) -> Record {
        let version = self.next_version(None);
        let record = first.record(now, version);
        log.push(wrote(key, by, Act::Inserted, &record, at, now));
        self.replace(key, at, Some(record.clone()));
        record
    }

    #[expect(clippy::too_many_arguments, reason = "the clock and the log of one atomic step")]
    fn swap(
        &mut self,
        key: u8,
        version: u64,
        write: &Write,
        force: bool,
        by: By,
        at: u64,
        now: Time,
        log: &mut Vec<Entry>,
    ) -> Swapped {
        let Some(current) = self.record(key) else { return Swapped::Lost(None) };
        if current.version != version && !force {
            return Swapped::Lost(Some(current.clone()));
        }
        let current_version = current.version;
        let version = self.next_version(Some(current_version));
        let Some(current) = self.record(key) else { return Swapped::Lost(None) };
        let record = write.onto(current, now, version);
        log.push(wrote(key, by, Act::of(write), &record, at, now));
        self.replace(key, at, Some(record.clone()));
        Swapped::Done(record)
    }

    fn scan(&self, query: &Query, now: Time) -> Page {
        let from = query.after.as_ref().and_then(|cursor| cursor.0.first().copied()).unwrap_or(0);
        let mut page = Page::default();
        for (key, record) in self.records.iter().enumerate().skip(usize::from(from)) {
            let Some(record) = record.as_ref().filter(|record| query.filter.matches(record, now))
            else {
                continue;
            };
            if page.records.len() == query.page_len() {
                page.next = Some(Cursor(vec![key as u8]));
                break;
            }
            page.records.push(record.clone());
        }
        page
    }

    fn reap(&mut self, limit: usize, at: u64, now: Time, log: &mut Vec<Entry>) -> usize {
        let takes_running = self.fault == Some(Fault::ReaperTakesRunning);
        let mut reaped = 0;
        for key in 0..self.records.len() as u8 {
            let Some(record) = self.record(key) else { continue };
            let due = record.is_expired(now)
                || takes_running
                    && record.standing() == Standing::InProgress
                    && record.created_at.plus(record.ttl) <= now;
            if due && reaped < limit {
                self.replace(key, at, None);
                log.push(Entry { at, what: What::Reaped { key, now: now.as_ms() } });
                reaped += 1;
            }
        }
        reaped
    }

    fn replace(&mut self, key: u8, at: u64, record: Option<Record>) {
        if let Some(slot) = self.records.get_mut(usize::from(key)) {
            let before = std::mem::replace(slot, record);
            if self.profile == Profile::FailOver {
                self.undo.push((at, key, before));
            }
        }
    }

    fn next_version(&mut self, current: Option<u64>) -> u64 {
        self.sequence += 1;
        match (self.fault, current) {
            // A counter per record starts anew with each generation.
            (Some(Fault::VersionReused), current) => current.unwrap_or(0) + 1,
            (_, _) => self.sequence,
        }
    }
}

fn wrote(key: u8, by: By, act: Act, record: &Record, at: u64, now: Time) -> Entry {
    let (status, body) = tables::answer_of(&record.state).unwrap_or((0, NONE));
    let until = match record.state {
        State::InProgress { lease_until, .. } => lease_until,
        State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => {
            expires_at
        }
        State::Unknown { since, .. } => since,
    };
    let what = What::Wrote(Wrote {
        key,
        by,
        act,
        standing: record.standing(),
        print: tables::print_of(&record.fingerprint),
        version: record.version as u32,
        fence: record.fence.0 as u32,
        status,
        body,
        now: now.as_ms(),
        until: until.as_ms(),
    });
    Entry { at, what }
}
