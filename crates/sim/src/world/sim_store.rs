//! How does the simulated store keep records?
//!
//! The contract of a store in a few dozen lines: one map, one sequence, one clock, and the core's
//! own [`First::record`] and [`Write::onto`] inside the atomic step. It writes every applied change
//! into the history: of what the records are, this is the ground truth. It never errs by itself;
//! what goes wrong on the way is the [`wire`](super::wire)'s business.
//!
//! The profile that fails over runs the rules of the Redis store ([`redis_rules`]):
//! versions by the clock with a floor, and no new grant for a while after the server has changed.

use retrysafe_core::flow::FlowProgress;
use retrysafe_core::machine::{self, Decision, OwnerGone};
use retrysafe_core::record::{Becomes, First, Record, Standing, State, Write};
use retrysafe_core::store::{Cursor, Inserted, Page, Query, Stamped, Swapped};
use retrysafe_core::time::Time;

use super::redis_rules::{self, Asked, Bucket, Grants};
use super::tables::{self, Tables};
use super::wire::{Commit, Parts, Request, Response};
use crate::fault::Fault;
use crate::history::{
    Act, By, Entry, FlowSeen, MarkSeen, NONE, OUTSIDE, Role, STORE_EPOCH_MS, What, Wrote,
};
use crate::options::{NAMES, Options, Profile, SCOPES};

/// The store's state.
pub struct SimStore {
    profile: Profile,
    fault: Option<Fault>,
    records: Vec<Option<Record>>,
    sequence: u64,
    offset: i64,
    offset_max: i64,
    high: u64,
    /// Which server this is, where one may take another's place.
    server: u64,
    /// What lies beside the records of such a server.
    bucket: Bucket,
    hold_ms: u64,
    /// What each write replaced, while a fail-over may forget it.
    undo: Vec<Undo>,
    /// How far each flow was before the last write; kept for one planted fault.
    former: Vec<Option<Box<FlowProgress>>>,
}

/// A write that a replica may have missed.
struct Undo {
    at: u64,
    key: u8,
    record: Option<Record>,
    bucket: Bucket,
}

/// How many rows a phase writes: all of them, or none.
pub const ROWS_OF_PHASE: u8 = 2;

/// What a bucket knows that an operator has initialised.
const NEW_BUCKET: Bucket = Bucket { identity: 1, held_until_ms: 0, version: 0 };

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
            server: 0,
            bucket: NEW_BUCKET,
            hold_ms: 0,
            undo: Vec::new(),
            former: Vec::new(),
        };
        store.reset(options);
        store
    }

    pub fn reset(&mut self, options: &Options) {
        (self.profile, self.fault) = (options.profile, options.fault);
        self.records.clear();
        self.records.resize(usize::from(SCOPES * NAMES), None);
        (self.sequence, self.offset, self.offset_max, self.high) = (0, 0, 0, 0);
        (self.server, self.bucket) = (NEW_BUCKET.identity, NEW_BUCKET);
        let holds = options.fault != Some(Fault::NoQuarantine);
        self.hold_ms = if holds { options.hold_ms() } else { 0 };
        self.undo.clear();
        self.former.clear();
        self.former.resize(usize::from(SCOPES * NAMES), None);
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
        seen: u64,
        at: u64,
        tables: &Tables,
        log: &mut Vec<Entry>,
    ) -> Stamped<Response> {
        let now = self.clock(at);
        if self.profile == Profile::FailOver && self.is_held(request, seen, now) {
            return Stamped { now, value: Response::Held };
        }
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
            Request::Guard { key, version, write, force } => {
                Response::Swapped(self.guard(*key, *version, write, *force, now))
            }
            Request::Commit(commit) => Response::Swapped(self.commit(commit, by, at, now, log)),
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

    /// Whether nothing new is granted, and this request wants that. Every request comes on a connection
    /// that was made to this server, and its first words asked the bucket.
    fn is_held(&mut self, request: &Request, seen: u64, now: Time) -> bool {
        let asked = Asked {
            now_ms: now.as_ms(),
            now_ticks: ticks(now),
            identity: self.server,
            seen,
            hold_ms: self.hold_ms,
            hold_ticks: self.hold_ms,
        };
        let grants = redis_rules::may_grant(&mut self.bucket, &asked);
        let is_held = matches!(grants, Grants::HeldUntil { .. });
        is_held
            && match request {
                Request::Insert(first) => {
                    // What is there is answered, whoever the server is.
                    let is_it = |record: &&Record| record.id == first.id && !record.is_expired(now);
                    !self.records.iter().flatten().any(|record| is_it(&record))
                }
                Request::Swap { key, version, write, .. } => {
                    matches!(write.becomes, Becomes::Begun { .. })
                        && self.record(*key).is_some_and(|record| record.version == *version)
                }
                Request::Load(_)
                | Request::Scan(_)
                | Request::Reap { .. }
                | Request::Guard { .. }
                | Request::Commit(_)
                | Request::Put(_)
                | Request::Delete(_) => false,
            }
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
        while let Some(Undo { at: wrote_at, key, record: before, bucket }) = self.undo.pop() {
            if wrote_at < since {
                break;
            }
            forgot = true;
            self.bucket = bucket;
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
        self.server += 1;
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
        let version = self.next_version(None, now);
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
        let version = self.next_version(Some(current_version), now);
        let Some(current) = self.record(key) else { return Swapped::Lost(None) };
        let record = self.written(write, current, now, version);
        log_flow(key, &record, at, log);
        log.push(wrote(key, by, Act::of(write), &record, at, now));
        self.replace(key, at, Some(record.clone()));
        Swapped::Done(record)
    }

    /// What a write makes of a record, by the core's own word; or by a planted fault's.
    fn written(&self, write: &Write, current: &Record, now: Time, version: u64) -> Record {
        let mut record = write.onto(current, now, version);
        match (self.fault, &write.becomes) {
            (Some(Fault::FailureForgetsPhases), Becomes::FailedRetryable) => record.flow = None,
            // Writes the whole record back, as it was a step ago.
            (Some(Fault::AdvanceGoesBack), Becomes::Renewed { .. }) => {
                let former = self.former.get(usize::from(self.key_of(current))).cloned().flatten();
                record.flow = former.or(record.flow);
            }
            (_, _) => {}
        }
        record
    }

    fn key_of(&self, record: &Record) -> u8 {
        let is_it = |slot: &Option<Record>| slot.as_ref().is_some_and(|it| it.id == record.id);
        self.records.iter().position(is_it).unwrap_or_default() as u8
    }

    /// The guarded write of a transaction, which nobody else sees yet. Nothing is locked: of two
    /// transactions that guard one record the second to commit is refused, as a conflict.
    fn guard(&mut self, key: u8, version: u64, write: &Write, force: bool, now: Time) -> Swapped {
        let reserved = self.next_version(None, now);
        match self.record(key) {
            Some(current) if current.version == version || force => {
                Swapped::Done(write.onto(current, now, reserved))
            }
            other => Swapped::Lost(other.cloned()),
        }
    }

    /// The rows of a phase and its recovery point, in one step.
    fn commit(
        &mut self,
        commit: &Commit,
        by: By,
        at: u64,
        now: Time,
        log: &mut Vec<Entry>,
    ) -> Swapped {
        let Commit { key, version, reserved, ref write, phase, force, parts } = *commit;
        let Some(current) = self.record(key) else { return Swapped::Lost(None) };
        if current.version != version && !force {
            return Swapped::Lost(Some(current.clone()));
        }
        if parts != Parts::RecordOnly {
            log.push(Entry { at, what: What::Rows { key, phase, rows: ROWS_OF_PHASE } });
        }
        if parts == Parts::RowsOnly {
            return Swapped::Done(current.clone());
        }
        // What forces its way in has not reserved its version in time.
        let reserved = if current.version < reserved { reserved } else { current.version + 1 };
        let record = self.written(write, current, now, reserved);
        log_flow(key, &record, at, log);
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
        let takes_flows = self.fault == Some(Fault::ReaperTakesFlows);
        let mut reaped = 0;
        for key in 0..self.records.len() as u8 {
            let Some(record) = self.record(key) else { continue };
            let due = record.is_expired(now)
                || takes_running
                    && record.standing() == Standing::InProgress
                    && record.created_at.plus(record.ttl) <= now
                || takes_flows
                    && record.holds_work()
                    && record.lease_until().is_none_or(|until| until <= now)
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
            if self.fault == Some(Fault::AdvanceGoesBack)
                && let Some(former) = self.former.get_mut(usize::from(key))
                && let Some(before) = &before
            {
                former.clone_from(&before.flow);
            }
            if self.profile == Profile::FailOver {
                let version = slot.as_ref().map_or(0, |record| record.version);
                self.undo.push(Undo { at, key, record: before, bucket: self.bucket });
                self.bucket.version = self.bucket.version.max(version);
            }
        }
    }

    fn next_version(&mut self, current: Option<u64>, now: Time) -> u64 {
        self.sequence += 1;
        match (self.fault, self.profile) {
            // A counter per record starts anew with each generation.
            (Some(Fault::VersionReused), _) => current.unwrap_or(0) + 1,
            (_, Profile::FailOver) => {
                redis_rules::next_version(ticks(now), self.bucket.version, current)
            }
            (_, Profile::Durable | Profile::Cached | Profile::SingleOwner) => self.sequence,
        }
    }
}

/// The clock as versions count it here: in milliseconds since the history began, so that many writes
/// fall on one tick and a history's versions fit its log.
fn ticks(now: Time) -> u64 {
    now.as_ms().saturating_sub(STORE_EPOCH_MS)
}

/// How far a flow has come, as the checker is told.
fn log_flow(key: u8, record: &Record, at: u64, log: &mut Vec<Entry>) {
    let Some(flow) = record.flow.as_deref() else { return };
    let mark = flow.mark().map(|mark| MarkSeen {
        set_by: mark.set_by.0 as u32,
        digest: mark.digest.as_bytes().first().copied().unwrap_or_default(),
        until: mark.resume_until.map(Time::as_ms),
    });
    let output = flow.outputs().last().map_or(NONE, |output| tables::exec_of(output));
    let (phase, version) = (flow.outputs().len() as u8, flow.flow().version as u8);
    log.push(Entry { at, what: What::Flow(FlowSeen { key, version, phase, output, mark }) });
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
