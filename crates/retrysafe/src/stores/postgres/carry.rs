//! How is a batch carried out, and what is told to whom?
//!
//! | what came back | what it means | what is done |
//! | --- | --- | --- |
//! | rows and a commit | durable | answered |
//! | an error of the server | rolled back, surely | each goes again by itself |
//! | no answer | nobody knows | read back, then decided |
//! | a commit with a warning | not on the standby, perhaps | `maybe applied`, and a barrier |
//! | no row for a key | a rival was faster | goes again |

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use retrysafe_core::record::Record;
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, Stamped, StoreError, StoreErrorKind, Swapped};
use retrysafe_core::time::Time;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::columns;
use super::connect::Fault;
use super::job::{Ask, Job, Reply};
use super::lane::{Batch, Lane};
use super::readback::{self, Verdict};
use super::row::{Cells, Row};
use super::settings::Expiry;

/// How often an operation that the server refuses for a passing reason goes again. Its caller's
/// deadline usually ends it earlier.
const REFUSALS_MAX: u32 = 8;

/// What became of one transaction.
enum Sent {
    /// It is durable, and these are its rows.
    Durable(Rows),
    /// It was rolled back.
    Refused(SqlState),
    /// Nobody knows.
    Lost,
    /// It is committed here, but perhaps nowhere else.
    Unreplicated,
    /// The server returned what our functions cannot return.
    Nonsense,
}

/// What was read of a record: when, its version, and the record or why it cannot be read.
type Found = (Time, u64, Result<Box<Record>, String>);

/// The rows of a batch by id.
#[derive(Default)]
pub(super) struct Rows {
    now: Time,
    done: HashMap<Id, (Time, u64)>,
    found: HashMap<Id, Found>,
}

impl Lane {
    pub(super) async fn carry(&mut self, mut batch: Batch) {
        if batch.jobs.iter().any(|job| matches!(job.ask, Ask::Load(_))) {
            return self.carry_loads(batch).await;
        }
        if batch.jobs.iter().any(|job| job.doubtful) && !self.read_back(&mut batch).await {
            return;
        }
        self.turn_away_the_late(&mut batch);
        batch.jobs.retain(|job| !job.is_abandoned() && job.ticket.send());
        if batch.jobs.is_empty() {
            return self.requeue(batch.followers.into_values().flatten());
        }
        self.free_followers(&mut batch);
        match self.send(&batch).await {
            Sent::Durable(rows) => self.tell(batch, &rows),
            Sent::Refused(code) => self.refused(batch, &code),
            Sent::Lost => {
                // If the server ended a wait for the standby, what is read back may be nowhere else.
                self.shared.barrier.raise();
                self.wire = None;
                for job in &mut batch.jobs {
                    job.doubtful = true;
                }
                self.requeue(batch.into_jobs());
            }
            Sent::Unreplicated => {
                self.shared.barrier.raise();
                let (jobs, followers) = (batch.jobs, batch.followers);
                for job in jobs {
                    job.answer(Err(StoreError::maybe_applied(StoreErrorKind::Unavailable)
                        .because("the wait for the synchronous standby was cancelled")));
                }
                self.requeue(followers.into_values().flatten());
            }
            Sent::Nonsense => {
                self.wire = None;
                for job in batch.into_jobs() {
                    job.answer(Err(StoreError::maybe_applied(StoreErrorKind::Broken)));
                }
            }
        }
    }

    /// What has waited too long is not sent any more: its caller could not wait for the answer.
    fn turn_away_the_late(&self, batch: &mut Batch) {
        let within = self.shared.settings.send_within();
        for job in batch.jobs.extract_if(.., |job| job.age() > within) {
            let late = StoreError::not_applied(StoreErrorKind::Unavailable);
            refuse(job, late.because("PostgreSQL was out of reach or busy for too long"));
        }
    }

    /// One transaction for the whole batch, in one round trip: its statements are sent one behind the
    /// other without waiting. If one fails the rest fail too, and the commit at the end is a rollback.
    async fn send(&self, batch: &Batch) -> Sent {
        let Some(wire) = &self.wire else { return Sent::Lost };
        let keep = self.shared.settings.expiry == Expiry::Keep;
        let firsts = || {
            batch.jobs.iter().filter_map(|job| match &job.ask {
                Ask::Insert(first) => Some(&**first),
                Ask::Swap(_) | Ask::Load(_) => None,
            })
        };
        let writes = || {
            batch.jobs.iter().filter_map(|job| match &job.ask {
                Ask::Swap(swap) => Some((&swap.0, &swap.1)),
                Ask::Insert(_) | Ask::Load(_) => None,
            })
        };
        let mut columns = columns::inserts(firsts(), keep);
        columns.extend(columns::swaps(writes()));
        let warned = wire.warned();
        let transaction = async {
            tokio::join!(
                biased;
                wire.client.batch_execute(&wire.begin),
                wire.query(include_str!("sql/write.sql"), &columns),
                wire.client.batch_execute("COMMIT"),
            )
        };
        // The server ends a slow statement itself; this is for one that does not answer at all.
        let patience = self.shared.settings.deadline + Duration::from_secs(1);
        let Ok((begun, written, committed)) = tokio::time::timeout(patience, transaction).await
        else {
            return Sent::Lost;
        };
        let written = match (begun, written, committed) {
            (Ok(()), Ok(written), Ok(())) => written,
            (begun, written, committed) => {
                return failed(begun.err(), written.err(), committed.err());
            }
        };
        if wire.warned() != warned {
            return Sent::Unreplicated;
        }
        match Rows::read(written.iter()) {
            Some(rows) => Sent::Durable(rows),
            None => Sent::Nonsense,
        }
    }

    fn tell(&mut self, batch: Batch, rows: &Rows) {
        let Batch { jobs, mut followers } = batch;
        for job in jobs {
            let (id, is_insert) = (job.id(), matches!(job.ask, Ask::Insert(_)));
            let answer = match job.doubtful {
                // What it meets may be its own first sending.
                true => rows.judged(&job.ask),
                false => rows.answer(&job.ask),
            };
            match answer {
                Some(answer) => {
                    for follower in followers.remove(&id).into_iter().flatten() {
                        match answer.as_ref().ok().and_then(followed).filter(|_| is_insert) {
                            Some(reply) => follower.answer(Ok(reply)),
                            None => self.waiting.push_back(follower),
                        }
                    }
                    job.answer(answer);
                }
                // Nothing was written for it: a rival held the record, or took it away between two
                // looks at it.
                None => {
                    let followers = followers.remove(&id).into_iter().flatten();
                    self.again(job);
                    self.requeue(followers);
                }
            }
        }
    }

    fn refused(&mut self, batch: Batch, code: &SqlState) {
        let alone = batch.jobs.len() == 1;
        for job in batch.into_jobs() {
            match alone && !Fault::is_passing(code) {
                true => refuse(job, Fault::refusal(code)),
                false => self.again_unless_last(job, || Fault::refusal(code)),
            }
        }
    }

    /// What surely was not applied goes again, by itself.
    fn again(&mut self, job: Job) {
        self.again_unless_last(job, || {
            StoreError::not_applied(StoreErrorKind::Unavailable)
                .because("another transaction holds the record")
        });
    }

    fn again_unless_last(&mut self, mut job: Job, last: impl FnOnce() -> StoreError) {
        if !job.doubtful {
            job.ticket.unsend();
        }
        if !job.alone {
            job.alone = true;
            return self.waiting.push_back(job);
        }
        job.refusals += 1;
        if job.refusals > REFUSALS_MAX {
            return refuse(job, last());
        }
        let (back, pause) = (self.back.clone(), Duration::from_millis(4 << job.refusals));
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            if let Some(back) = back.upgrade() {
                // A queue that is full or gone ends the job, and with it the caller's wait.
                let _ = back.try_send(job);
            }
        });
    }

    pub(super) fn requeue(&mut self, jobs: impl Iterator<Item = Job>) {
        for job in jobs.collect::<Vec<_>>().into_iter().rev() {
            self.waiting.push_front(job);
        }
    }

    /// Looks at what is there for jobs that may have been applied. What is decided is answered; what
    /// is still to be done stays in the batch. False if that could not be found out.
    async fn read_back(&mut self, batch: &mut Batch) -> bool {
        let doubtful = batch.jobs.iter().filter(|job| job.doubtful && !job.is_abandoned());
        let ids: Vec<Id> = doubtful.map(Job::id).collect();
        let rows = match self.load(&ids).await {
            Ok(rows) => rows,
            Err(fault) => {
                self.unread(std::mem::take(batch), fault);
                return false;
            }
        };
        for job in std::mem::take(&mut batch.jobs) {
            if !job.doubtful {
                batch.jobs.push(job);
                continue;
            }
            let found = rows.found.get(&job.id());
            let current = found.map(|(_, _, record)| record.as_deref().map_err(String::as_str));
            match readback::judge(&job.ask, current, rows.now) {
                Verdict::Decided(reply) => job.answer(Ok(reply)),
                Verdict::Damaged(what) => job.answer(Err(damaged(&what))),
                // Sending it again is safe, because only one of the two can win: an insert by its
                // key, a swap by its version. If the first is still on its way, it loses.
                Verdict::StillToDo => batch.jobs.push(job),
            }
        }
        true
    }

    /// Sends followers back whose first is not in the batch any more.
    fn free_followers(&mut self, batch: &mut Batch) {
        if batch.followers.is_empty() {
            return;
        }
        let led: HashSet<Id> = batch.jobs.iter().map(Job::id).collect();
        let free = batch.followers.extract_if(|id, _| !led.contains(id));
        let free: Vec<Job> = free.flat_map(|(_, jobs)| jobs).collect();
        self.requeue(free.into_iter());
    }

    async fn carry_loads(&mut self, batch: Batch) {
        let ids: Vec<Id> = batch.jobs.iter().map(Job::id).collect();
        let rows = match self.load(&ids).await {
            Ok(rows) => rows,
            Err(fault) => return self.unread(batch, fault),
        };
        for job in batch.into_jobs() {
            let answer = match rows.found.get(&job.id()) {
                None => Ok(Reply::Loaded(Stamped { now: rows.now, value: None })),
                Some((now, _, Ok(record))) => {
                    let value = Some(Record::clone(record));
                    Ok(Reply::Loaded(Stamped { now: *now, value }))
                }
                Some((_, _, Err(what))) => Err(damaged(what)),
            };
            job.answer(answer);
        }
    }

    /// A read changes nothing, so it may always go again; its caller's deadline ends it. One that the
    /// server refuses goes again after a pause, a few times.
    fn unread(&mut self, batch: Batch, fault: Fault) {
        match fault {
            Fault::Lost => {
                self.wire = None;
                self.requeue(batch.into_jobs());
            }
            Fault::Refused(code) => self.refused(batch, &code),
        }
    }

    async fn load(&self, ids: &[Id]) -> Result<Rows, Fault> {
        let wire = self.wire.as_ref().ok_or(Fault::Lost)?;
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
        let settings = &self.shared.settings;
        let lock_ms = i32::try_from(settings.lock_within().as_millis()).unwrap_or(i32::MAX);
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&ids, Type::BYTEA_ARRAY), (&lock_ms, Type::INT4)];
        let asked = wire.client.query_typed(include_str!("sql/load.sql"), &parameters);
        match tokio::time::timeout(settings.deadline, asked).await {
            Ok(Ok(rows)) => Rows::read(rows.iter()).ok_or(Fault::Lost),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a read failed");
                Err(Fault::of(&error))
            }
            Err(_) => Err(Fault::Lost),
        }
    }
}

impl Batch {
    pub(super) fn into_jobs(self) -> impl Iterator<Item = Job> {
        self.jobs.into_iter().chain(self.followers.into_values().flatten())
    }
}

impl Rows {
    pub(super) fn read<'a, C: Cells + 'a>(rows: impl Iterator<Item = &'a C>) -> Option<Self> {
        let mut read = Self::default();
        for row in rows {
            match Row::read(row)? {
                Row::Clock(now) => read.now = now,
                Row::Done { id, now, version } => {
                    read.done.insert(id, (now, version));
                }
                Row::Found { id, now, version, record } => {
                    let record = record.map_err(|error| error.to_string());
                    read.found.insert(id, (now, version, record));
                }
            }
        }
        Some(read)
    }

    /// What the rows say about a job that may have been applied before.
    fn judged(&self, ask: &Ask) -> Option<Result<Reply, StoreError>> {
        let (id, is_done) = (ask.id(), self.done.contains_key(&ask.id()));
        let Some((now, _, found)) = self.found.get(&id).filter(|_| !is_done) else {
            return self.answer(ask);
        };
        let current = found.as_deref().map_err(String::as_str);
        match readback::judge(ask, Some(current), *now) {
            Verdict::Decided(reply) => Some(Ok(reply)),
            Verdict::Damaged(what) => Some(Err(damaged(&what))),
            Verdict::StillToDo => None,
        }
    }

    /// What the rows say about one job; none if nothing was done and it is to be asked again.
    pub(super) fn answer(&self, ask: &Ask) -> Option<Result<Reply, StoreError>> {
        match ask {
            Ask::Insert(first) => {
                if let Some((now, version)) = self.done.get(&first.id) {
                    let value = Inserted::New(first.record(*now, *version));
                    return Some(Ok(Reply::Inserted(Stamped { now: *now, value })));
                }
                let (now, _, record) = self.found.get(&first.id)?;
                Some(match record {
                    Ok(record) => {
                        let value = Inserted::Exists(Record::clone(record));
                        Ok(Reply::Inserted(Stamped { now: *now, value }))
                    }
                    Err(what) => Err(damaged(what)),
                })
            }
            Ask::Swap(swap) => {
                let (from, write) = &**swap;
                if let Some((now, version)) = self.done.get(&from.id) {
                    let value = Swapped::Done(write.onto(from, *now, *version));
                    return Some(Ok(Reply::Swapped(Stamped { now: *now, value })));
                }
                let lost = |now, current| {
                    Some(Ok(Reply::Swapped(Stamped { now, value: Swapped::Lost(current) })))
                };
                match self.found.get(&from.id) {
                    None => lost(self.now, None),
                    Some((_, version, _)) if *version == from.version => None,
                    Some((now, _, Ok(record))) => lost(*now, Some(Record::clone(record))),
                    Some((_, _, Err(what))) => Some(Err(damaged(what))),
                }
            }
            Ask::Load(_) => None,
        }
    }
}

/// What an insert finds that comes right behind another one of the same key.
fn followed(reply: &Reply) -> Option<Reply> {
    match reply {
        Reply::Inserted(Stamped {
            now,
            value: Inserted::New(record) | Inserted::Exists(record),
        }) if !record.is_expired(*now) => {
            let value = Inserted::Exists(record.clone());
            Some(Reply::Inserted(Stamped { now: *now, value }))
        }
        Reply::Inserted(_) | Reply::Swapped(_) | Reply::Loaded(_) => None,
    }
}

/// What became of a transaction of which some statement failed. It is surely rolled back if its one
/// write was refused, or its commit; not if only its beginning was: the write then stood alone, and
/// was committed by itself.
fn failed(begun: Option<Error>, written: Option<Error>, committed: Option<Error>) -> Sent {
    let fault = match (&begun, &written, &committed) {
        (begun, Some(written), _) => match (Fault::of(written), begun) {
            // "In a failed transaction" only echoes an earlier refusal.
            (Fault::Refused(SqlState::IN_FAILED_SQL_TRANSACTION), Some(begun)) => Fault::of(begun),
            (fault, _) => fault,
        },
        (None, None, Some(committed)) => Fault::of(committed),
        (Some(_), None, _) | (None, None, None) => Fault::Lost,
    };
    match fault {
        Fault::Refused(code) => Sent::Refused(code),
        Fault::Lost => Sent::Lost,
    }
}

/// Tells a job that it was refused, unless an earlier sending of it may yet be applied.
fn refuse(job: Job, refusal: StoreError) {
    let doubtful = job.doubtful;
    job.answer(Err(match doubtful {
        true => StoreError::maybe_applied(refusal.kind()).because(refusal),
        false => refusal,
    }));
}

pub(super) fn damaged(what: &str) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Damaged).because(what.to_owned())
}
