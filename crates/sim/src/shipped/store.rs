//! How does the simulated store keep records, and what goes wrong on the way to it?
//!
//! [`Records`] is the contract of a store in a few dozen lines: one table, one sequence, one clock,
//! and the core's own [`First::record`] and [`Write::onto`] inside the atomic step. It never errs by
//! itself. [`SimStore`] is what the product holds: the same, across a wire that belongs to nobody. A
//! write that was sent arrives, also if its sender has given up or died.

use std::future::pending;

use retrysafe_core::Id;
use retrysafe_core::record::{
    Answer, Becomes, First, Happened, Record, Standing, State as RecordState, Write,
};
use retrysafe_core::store::{
    Cursor, Inserted, Page, Query, Stamped, Store, StoreError, StoreErrorKind, Swapped,
};
use retrysafe_core::time::Time;
use tokio::sync::oneshot;

use super::options::Kind;
use super::stage::{Life, Stage, State};
use super::upstream::exec_of;
use crate::history::{
    Act, By, Found, NONE, OUTSIDE, Role, STORE_EPOCH_MS, SettleHeard, What, Wrote,
};

/// The store's state.
#[derive(Default)]
pub struct Records {
    records: Vec<Option<(Record, u8)>>,
    sequence: u64,
    offset: i64,
    offset_max: i64,
}

/// The store, for somebody.
#[derive(Clone)]
pub struct SimStore {
    stage: Stage,
    asker: Asker,
}

/// Who asks.
#[derive(Clone)]
pub enum Asker {
    /// The layer of a process.
    Layer(Life),
    /// The upkeep of a process.
    Upkeep(Life),
    /// Somebody outside, whom nothing goes wrong for.
    Outside(Role),
}

/// What is asked.
#[derive(Clone)]
enum Request {
    Insert(First),
    Load(Id),
    Swap(Box<(Record, Write)>),
    Scan(Query),
    Reap(usize),
}

/// What is answered.
enum Reply {
    Inserted(Inserted),
    Loaded(Option<Record>),
    Swapped(Swapped),
    Scanned(Page),
    Reaped(usize),
}

/// What becomes of a request on its way.
struct Fate {
    out_ms: u64,
    back_ms: u64,
    arrives: bool,
    again_after_ms: Option<u64>,
    returns: Returns,
}

/// What its sender hears.
enum Returns {
    Answer,
    Error(StoreErrorKind, bool),
    Nothing,
}

impl Records {
    /// The store's clock.
    pub fn clock(&self, now_ms: u64) -> Time {
        Time::from_ms((STORE_EPOCH_MS + now_ms).saturating_add_signed(self.offset))
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

    /// What is there, for the harness.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Record)> {
        self.records
            .iter()
            .enumerate()
            .filter_map(|(key, kept)| kept.as_ref().map(|(record, _)| (key as u8, record)))
    }

    fn get(&self, key: u8) -> Option<&(Record, u8)> {
        self.records.get(usize::from(key)).and_then(Option::as_ref)
    }

    fn set(&mut self, key: u8, kept: Option<(Record, u8)>) {
        while self.records.len() <= usize::from(key) {
            self.records.push(None);
        }
        if let Some(slot) = self.records.get_mut(usize::from(key)) {
            *slot = kept;
        }
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

impl SimStore {
    pub fn new(stage: &Stage, asker: Asker) -> Self {
        Self { stage: stage.clone(), asker }
    }

    fn life(&self) -> Option<&Life> {
        match &self.asker {
            Asker::Layer(life) | Asker::Upkeep(life) => Some(life),
            Asker::Outside(_) => None,
        }
    }

    async fn ask(&self, request: Request) -> Result<Stamped<Reply>, StoreError> {
        let Some(life) = self.life() else {
            return Ok(self.stage.with(|state| apply(state, &request, &self.asker)));
        };
        life.pass(&self.stage).await;
        let fate = self.fate(life, &request);
        self.stage.with(|state| note_asked(state, &request, &self.asker));
        let answer = self.carry(&request, &fate);
        let result = match fate.returns {
            Returns::Answer => match answer.await {
                Ok(reply) => Ok(reply),
                // The carrier ends with the history only.
                Err(_) => pending().await,
            },
            Returns::Error(kind, true) => {
                self.stage.sleep(fate.out_ms + fate.back_ms).await;
                Err(StoreError::maybe_applied(kind))
            }
            Returns::Error(kind, false) => {
                self.stage.sleep(fate.out_ms).await;
                Err(StoreError::not_applied(kind))
            }
            Returns::Nothing => pending().await,
        };
        life.pass(&self.stage).await;
        self.stage.with(|state| note_heard(state, &request, &result, &self.asker));
        result
    }

    /// Sends a request on its way. It arrives whoever goes away.
    fn carry(&self, request: &Request, fate: &Fate) -> oneshot::Receiver<Stamped<Reply>> {
        let (reply, answer) = oneshot::channel();
        if !fate.arrives {
            return answer;
        }
        let (store, request) = (self.clone(), request.clone());
        let &Fate { out_ms, back_ms, again_after_ms, .. } = fate;
        tokio::spawn(async move {
            store.stage.sleep(out_ms).await;
            let stamped = store.stage.with(|state| apply(state, &request, &store.asker));
            if let Some(ms) = again_after_ms {
                let (store, request) = (store.clone(), request.clone());
                tokio::spawn(async move {
                    store.stage.sleep(ms).await;
                    store.stage.with(|state| apply(state, &request, &store.asker));
                });
            }
            store.stage.sleep(back_ms).await;
            // Whoever asked may be gone.
            let _ = reply.send(stamped);
        });
        answer
    }

    fn fate(&self, life: &Life, request: &Request) -> Fate {
        let (verb, key) = self.stage.with(|state| request.name(state));
        let role = match self.asker {
            Asker::Layer(_) => 0,
            Asker::Upkeep(_) => 1,
            Asker::Outside(_) => 2,
        };
        let name = [10, life.gateway.into(), life.epoch.into(), role, verb, key];
        let number = self.stage.with(|state| state.count(&name));
        let mut chance = self.stage.chance(&[name.as_slice(), &[number]].concat());
        let mut fate = Fate {
            out_ms: chance.between(0, 4),
            back_ms: chance.between(0, 4),
            arrives: true,
            again_after_ms: None,
            returns: Returns::Answer,
        };
        let long = 2 * self.stage.options().lease_ms;
        let mut strikes = |kind, percent| self.stage.strikes(&mut chance, kind, percent);
        let slow_out = strikes(Kind::StoreSlow, 5);
        let slow_back = strikes(Kind::StoreSlow, 5);
        let lost = strikes(Kind::StoreLost, 4);
        let ack_lost = strikes(Kind::StoreLost, 4);
        let errs = strikes(Kind::StoreErrors, 6);
        let twice = strikes(Kind::StoreTwice, 5);
        if slow_out {
            fate.out_ms = chance.scaled(20, long);
        }
        if slow_back {
            fate.back_ms = chance.scaled(20, long);
        }
        if twice {
            fate.again_after_ms = Some(chance.scaled(1, long));
        }
        let is_silent = chance.percent(50);
        let kind = chance.pick(
            StoreErrorKind::Unavailable,
            &[
                StoreErrorKind::Unavailable,
                StoreErrorKind::Full,
                StoreErrorKind::Damaged,
                StoreErrorKind::Broken,
            ],
        );
        if errs {
            let is_ambiguous = request.writes() && chance.percent(50);
            fate.returns = Returns::Error(kind, is_ambiguous);
            fate.arrives = is_ambiguous && chance.percent(50);
        }
        if lost || ack_lost {
            fate.arrives = ack_lost;
            let is_ambiguous = request.writes();
            fate.returns = match is_silent {
                true => Returns::Nothing,
                false => Returns::Error(StoreErrorKind::Unavailable, is_ambiguous),
            };
        }
        if life.is_cut_off(&self.stage) {
            fate.arrives = false;
            fate.returns = match is_silent {
                true => Returns::Nothing,
                false => Returns::Error(StoreErrorKind::Unavailable, false),
            };
        }
        fate
    }
}

impl Request {
    fn writes(&self) -> bool {
        match self {
            Self::Insert(_) | Self::Swap(_) | Self::Reap(_) => true,
            Self::Load(_) | Self::Scan(_) => false,
        }
    }

    /// Numbers that name a request: its verb and its key.
    fn name(&self, state: &State) -> (u64, u64) {
        let key = |id| state.key_of(id).map_or(99, u64::from);
        match self {
            Self::Insert(first) => (0, key(&first.id)),
            Self::Load(id) => (1, key(id)),
            Self::Swap(swap) => (2, key(&swap.0.id)),
            Self::Scan(_) => (3, 99),
            Self::Reap(_) => (4, 99),
        }
    }

    /// The attempt of a client for which it would begin.
    fn begins_for(&self) -> Option<u16> {
        match self {
            Self::Insert(first) => conn_of(first.request_id.as_deref()),
            Self::Swap(swap) => match &swap.1.what {
                Some(Happened::Began(request_id)) => conn_of(request_id.as_deref()),
                Some(_) | None => None,
            },
            Self::Load(_) | Self::Scan(_) | Self::Reap(_) => None,
        }
    }

    /// What an owner settles with it: the record that it read, the standing and the body.
    fn settles(&self, state: &State) -> Option<(u32, Standing, u16)> {
        let Self::Swap(swap) = self else { return None };
        let (from, write) = &**swap;
        let Some(Happened::Settled(standing, _)) = &write.what else { return None };
        let fence = from.fence.0 as u32;
        let is_owner = state.granted.contains(&fence);
        is_owner.then(|| (owner_of(state, fence, write), *standing, body_of(write)))
    }
}

/// Carries a request out.
fn apply(state: &mut State, request: &Request, asker: &Asker) -> Stamped<Reply> {
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
    let print = match role {
        Role::Begin { conn } => state.conn(conn).map_or(print, |conn| conn.print),
        _ => print,
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

/// In which role a write is asked for. The store is not told; what the write says and who was
/// granted what shows it.
fn role_of(state: &State, key: u8, from: &Record, write: &Write, asker: &Asker) -> Role {
    if let Asker::Outside(role) = asker {
        return *role;
    }
    let fence = from.fence.0 as u32;
    match &write.what {
        None => Role::Owner { fence },
        Some(Happened::Began(request_id)) => {
            Role::Begin { conn: conn_of(request_id.as_deref()).unwrap_or(NONE) }
        }
        Some(Happened::Settled(..)) => match state.granted.contains(&fence) {
            true => Role::Owner { fence: owner_of(state, fence, write) },
            false => Role::Withdraw,
        },
        Some(Happened::Doubted(_)) => match asker {
            Asker::Layer(_) => Role::Begin { conn: NONE },
            Asker::Upkeep(_) | Asker::Outside(_) => Role::Sweeper,
        },
        Some(Happened::LateResult(late, ..)) => Role::Owner { fence: late.0 as u32 },
        Some(Happened::LookedUp(_)) => Role::Reader,
        Some(Happened::Resolved(_, _, reason)) => {
            let evidence = match &**reason {
                "found as executed" => Found::Effect,
                "proven not to be executed" => Found::Burnt,
                _ => Found::Absence,
            };
            let mine = state.findings.iter().rev().filter(|finding| {
                asker.by(Role::Reader).gateway == finding.gateway
                    && finding.key == key
                    && finding.found == evidence
            });
            let about: Vec<_> = mine.map(|finding| finding.fence).collect();
            let fence = match about.contains(&fence) {
                true => fence,
                false => about.first().copied().unwrap_or(0),
            };
            Role::Judge { fence, evidence }
        }
        Some(Happened::Expired(_)) => Role::Expirer,
    }
}

/// Whose settle it is. An answer's bytes say whose execution it is of, whatever record it lands on.
fn owner_of(state: &State, fence: u32, write: &Write) -> u32 {
    let of_body = state.execs.get(usize::from(body_of(write))).and_then(|exec| exec.fence);
    of_body.unwrap_or(fence)
}

fn body_of(write: &Write) -> u16 {
    match &write.becomes {
        Becomes::Completed(Answer::Kept(response)) => exec_of(&response.body),
        _ => NONE,
    }
}

fn conn_of(request_id: Option<&str>) -> Option<u16> {
    request_id.and_then(|text| text.strip_prefix('c')).and_then(|text| text.parse().ok())
}

/// An owner asks for a settle, or hears that it is too late for one.
fn note_asked(state: &mut State, request: &Request, asker: &Asker) {
    let Asker::Layer(_) = asker else { return };
    if let Some((fence, standing, body)) = request.settles(state) {
        state.record(What::SettleAsked { fence, standing, body });
    }
    if let Request::Swap(swap) = request
        && let Some(Happened::LateResult(fence, standing, _)) = &swap.1.what
    {
        let contradiction = matches!(
            (standing, swap.0.standing()),
            (Standing::Completed, Standing::FailedRetryable)
                | (Standing::FailedRetryable, Standing::Completed)
        );
        let heard = SettleHeard::Lost { contradiction };
        state.record(What::SettleHeard { fence: fence.0 as u32, heard });
    }
}

/// The layer has its answer.
fn note_heard(
    state: &mut State,
    request: &Request,
    result: &Result<Stamped<Reply>, StoreError>,
    asker: &Asker,
) {
    let Asker::Layer(life) = asker else { return };
    if let Some(conn) = request.begins_for() {
        let granted = match result.as_ref().map(|stamped| &stamped.value) {
            Ok(Reply::Inserted(Inserted::New(record)) | Reply::Swapped(Swapped::Done(record))) => {
                Some(record.fence.0 as u32)
            }
            Ok(_) => None,
            Err(error) => {
                if let Some(conn) = state.conn(conn) {
                    conn.failed = true;
                }
                let ambiguous = error.may_have_applied();
                state.record(What::BeginFailed { conn, ambiguous });
                None
            }
        };
        if let Some(fence) = granted {
            state.granted.push(fence);
            let Life { gateway, epoch, .. } = *life;
            state.record(What::Begun { conn, gateway, epoch, fence });
        }
    }
    let Some((fence, standing, _)) = request.settles(state) else { return };
    let heard = match result.as_ref().map(|stamped| &stamped.value) {
        Ok(Reply::Swapped(Swapped::Lost(Some(current)))) => {
            let is_repeated = current.fence.0 as u32 == fence && current.standing() == standing;
            is_repeated.then_some(SettleHeard::Done)
        }
        Ok(Reply::Swapped(Swapped::Done(_))) => Some(SettleHeard::Done),
        Ok(_) => None,
        Err(error) => Some(SettleHeard::Failed { ambiguous: error.may_have_applied() }),
    };
    if let Some(heard) = heard {
        if heard == SettleHeard::Done {
            state.settled(fence, standing);
        }
        state.record(What::SettleHeard { fence, heard });
    }
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

impl Asker {
    fn by(&self, role: Role) -> By {
        match self {
            Self::Layer(life) | Self::Upkeep(life) => {
                By { gateway: life.gateway, epoch: life.epoch, role }
            }
            Self::Outside(_) => By { gateway: OUTSIDE, epoch: 0, role },
        }
    }
}

impl Store for SimStore {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        match self.ask(Request::Insert(first)).await? {
            Stamped { now, value: Reply::Inserted(value) } => Ok(Stamped { now, value }),
            _ => Err(broken()),
        }
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        match self.ask(Request::Load(id)).await? {
            Stamped { now, value: Reply::Loaded(value) } => Ok(Stamped { now, value }),
            _ => Err(broken()),
        }
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        match self.ask(Request::Swap(Box::new((from, write)))).await? {
            Stamped { now, value: Reply::Swapped(value) } => Ok(Stamped { now, value }),
            _ => Err(broken()),
        }
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        match self.ask(Request::Scan(query)).await? {
            Stamped { now, value: Reply::Scanned(value) } => Ok(Stamped { now, value }),
            _ => Err(broken()),
        }
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        match self.ask(Request::Reap(limit)).await? {
            Stamped { now, value: Reply::Reaped(value) } => Ok(Stamped { now, value }),
            _ => Err(broken()),
        }
    }
}

fn broken() -> StoreError {
    StoreError::not_applied(StoreErrorKind::Broken).because("the simulation is wrong")
}
