//! How is a batch carried out, and what is told to whom?
//!
//! | what came back | what it means | what is done |
//! | --- | --- | --- |
//! | a row for an id | written, and durable | answered |
//! | no row for an id | surely not written | read, and answered by what is there; see `rival` |
//! | "not the server of before" | nothing was written | noted on a new connection; see `observe` |
//! | an error of the server | rolled back, surely | each goes again by itself |
//! | no answer | nobody knows | read back, then decided |
//! | an answer with a warning | not on the standby, perhaps | `maybe applied`, and a barrier |

use std::collections::HashSet;
use std::time::Duration;

use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, LoadedUnless, Stamped, StoreError, StoreErrorKind, Swapped};
use retrysafe_core::time::Time;
use tokio_postgres::error::SqlState;

use super::column::Column;
use super::columns::{Begins, Changes};
use super::fault::Fault;
use super::job::{Ask, Job, JobKind, Reply};
use super::lane::{Batch, Lane};
use super::readback::{self, Verdict};
use super::row::{Found, Hold, Loaded, Written};

/// How often an operation that the server refuses for a passing reason goes again. Its caller's
/// deadline usually ends it earlier.
const REFUSALS_MAX: u32 = 8;

/// How long an operation that goes alone may wait for a lock. It has met one before and goes again
/// after a pause; meanwhile it must not hold up those behind it.
const LOCK_ALONE_WITHIN: Duration = Duration::from_millis(5);

/// What became of one statement that writes.
enum Sent {
    /// It is durable, and this is what it has written.
    Durable(Written),
    /// Nothing was written: this is not the server that was here before, and that must be noted first.
    Unobserved,
    /// It was rolled back.
    Refused(SqlState),
    /// Nobody knows.
    Lost,
    /// It is committed here, but perhaps nowhere else.
    Unreplicated,
    /// The server returned what our functions cannot return.
    Nonsense,
}

impl Lane {
    pub(super) async fn carry(&mut self, mut batch: Batch) {
        if batch.kind == JobKind::Load {
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
            Sent::Durable(written) => self.tell(batch, &written).await,
            Sent::Unobserved => {
                // The next connection notes it.
                self.wire = None;
                for job in batch.jobs.iter().filter(|job| !job.doubtful) {
                    job.ticket.unsend();
                }
                self.requeue(batch.into_jobs());
            }
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
                for job in batch.jobs {
                    job.answer(Err(StoreError::maybe_applied(StoreErrorKind::Unavailable)
                        .because("the wait for the synchronous standby was cancelled")));
                }
                self.requeue(batch.followers.into_values().flatten());
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

    /// One statement for the whole batch, and a transaction of its own: either all of it is written,
    /// but for what is not as it was read, or nothing.
    async fn send(&mut self, batch: &Batch) -> Sent {
        let Some(wire) = &self.wire else { return Sent::Lost };
        let settings = &self.shared.settings;
        let lock_within = match batch.jobs.as_slice() {
            [job] if job.alone => LOCK_ALONE_WITHIN,
            _ => settings.lock_within(),
        };
        let mut begins = Begins::none();
        let mut changes = Changes::none();
        let mut places = Column::of_places();
        for job in &batch.jobs {
            match &job.ask {
                Ask::Insert(first) => begins.push(first),
                Ask::Swap(swap) => {
                    changes.push(&swap.0, &swap.1);
                    places.push_place(self.places.take(&swap.0.id, swap.0.version));
                }
                Ask::Load(..) => {}
            }
        }
        let warned = wire.warned();
        let asked = async {
            match batch.kind {
                JobKind::Change => {
                    let rows = wire.change(lock_within, &changes.columns()).await?;
                    Ok(Written::read(rows.iter()))
                }
                JobKind::Write | JobKind::Load => {
                    let settles = changes.settles().into_iter().chain([places]);
                    let columns: Vec<Column> =
                        begins.columns().into_iter().chain(settles).collect();
                    let rows = wire.write(lock_within, &columns).await?;
                    Ok(rows.first().and_then(Written::read_arrays))
                }
            }
        };
        let written = match wire.within(settings.send_within(), asked).await {
            Some(Ok(written)) => written,
            Some(Err(error)) => {
                return match Fault::of(&error) {
                    Fault::Refused(code) => {
                        if Fault::is_of_statement(&code) {
                            self.wire = None;
                        }
                        Sent::Refused(code)
                    }
                    Fault::Lost => Sent::Lost,
                };
            }
            None => return Sent::Lost,
        };
        if wire.warned() != warned {
            return Sent::Unreplicated;
        }
        match written {
            Some(Written { hold: Some(Hold::Unobserved), .. }) => Sent::Unobserved,
            Some(written) => {
                for (id, version, place) in &written.places {
                    self.places.note(*id, *version, *place);
                }
                Sent::Durable(written)
            }
            None => Sent::Nonsense,
        }
    }

    async fn tell(&mut self, batch: Batch, written: &Written) {
        let Batch { jobs, mut followers, .. } = batch;
        let mut unwritten = Vec::new();
        for mut job in jobs {
            let Some((now, version)) = written.done.get(&job.id()) else {
                unwritten.push(job);
                continue;
            };
            let followers = followers.remove(&job.id()).unwrap_or_default();
            let reply = done(job.take_ask(), *now, *version);
            self.tell_followers(followers, Some(&reply));
            job.answer(Ok(reply));
        }
        if !unwritten.is_empty() {
            self.tell_unwritten(unwritten, followers, written.held_until()).await;
        }
    }

    /// Answers inserts that came right behind another one of the same id, by what that one was told;
    /// or sends them after it.
    pub(super) fn tell_followers(&mut self, followers: Vec<Job>, reply: Option<&Reply>) {
        for follower in followers {
            match reply.and_then(followed) {
                Some(reply) => follower.answer(Ok(reply)),
                None => self.waiting.push_back(follower),
            }
        }
    }

    fn refused(&mut self, batch: Batch, code: &SqlState) {
        let alone = batch.jobs.len() == 1;
        for job in batch.into_jobs() {
            if job.alone && *code == SqlState::LOCK_NOT_AVAILABLE {
                self.note_held(job.id());
            }
            if alone && !Fault::is_passing(code) {
                refuse(job, Fault::refusal(code));
            } else {
                self.again_unless_last(job, || Fault::refusal(code));
            }
        }
    }

    /// What surely was not applied goes again, by itself.
    pub(super) fn again(&mut self, job: Job) {
        self.again_unless_last(job, held_by_another);
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
        let ids: Vec<(Id, Option<u64>)> = doubtful.map(|job| (job.id(), None)).collect();
        let loaded = match self.load(&ids).await {
            Ok(loaded) => loaded,
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
            match readback::judge(&job.ask, loaded.found.get(&job.id()), loaded.now) {
                Verdict::Decided(reply) => job.answer(Ok(reply)),
                Verdict::Damaged(what) => job.answer(Err(damaged(what))),
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
        let asked = batch.jobs.iter().map(|job| match job.ask {
            Ask::Load(id, known) => (id, known),
            Ask::Insert(_) | Ask::Swap(_) => (job.id(), None),
        });
        let ids: Vec<(Id, Option<u64>)> = asked.collect();
        let mut loaded = match self.load(&ids).await {
            Ok(loaded) => loaded,
            Err(fault) => return self.unread(batch, fault),
        };
        let now = loaded.now;
        for job in batch.into_jobs() {
            // Each id is asked for once in a batch.
            let answer = match loaded.found.remove(&job.id()) {
                None => Ok(LoadedUnless::Changed(None)),
                Some(Found::AsKnown) => Ok(LoadedUnless::AsKnown),
                Some(Found::Record(record)) => Ok(LoadedUnless::Changed(Some(*record))),
                Some(Found::Damaged(_, what)) => Err(damaged(what)),
            };
            job.answer(answer.map(|value| Reply::Loaded(Stamped { now, value })));
        }
    }

    /// A read changes nothing, so it may always go again; its caller's deadline ends it. One that the
    /// server refuses goes again after a pause, a few times.
    pub(super) fn unread(&mut self, batch: Batch, fault: Fault) {
        match fault {
            Fault::Lost => {
                self.wire = None;
                self.requeue(batch.into_jobs());
            }
            Fault::Refused(code) => self.refused(batch, &code),
        }
    }

    /// Reads records, each unless it is still of the version that is known.
    pub(super) async fn load(&self, ids: &[(Id, Option<u64>)]) -> Result<Loaded, Fault> {
        let wire = self.wire.as_ref().ok_or(Fault::Lost)?;
        let settings = &self.shared.settings;
        match wire.within(settings.deadline, wire.load(settings.lock_within(), ids)).await {
            Some(Ok(rows)) => Loaded::read(rows.iter()).ok_or(Fault::Lost),
            Some(Err(error)) => {
                tracing::warn!(%error, "a read failed");
                Err(Fault::of(&error))
            }
            None => Err(Fault::Lost),
        }
    }
}

impl Batch {
    pub(super) fn into_jobs(self) -> impl Iterator<Item = Job> {
        self.jobs.into_iter().chain(self.followers.into_values().flatten())
    }
}

/// What is told to whom a write was asked by and done.
pub(super) fn done(ask: Ask, now: Time, version: u64) -> Reply {
    match ask {
        Ask::Insert(first) => {
            let value = Inserted::New(First::into_record(*first, now, version));
            Reply::Inserted(Stamped { now, value })
        }
        Ask::Swap(swap) => {
            let (from, write): (Record, Write) = *swap;
            Reply::Swapped(Stamped { now, value: Swapped::Done(write.over(from, now, version)) })
        }
        Ask::Load(..) => Reply::Loaded(Stamped { now, value: LoadedUnless::AsKnown }),
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

/// Tells a job that it was refused, unless an earlier sending of it may yet be applied.
pub(super) fn refuse(job: Job, refusal: StoreError) {
    let doubtful = job.doubtful;
    job.answer(Err(if doubtful {
        StoreError::maybe_applied(refusal.kind()).because(refusal)
    } else {
        refusal
    }));
}

pub(super) fn held_by_another() -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable)
        .because("another transaction holds the record")
}

pub(super) fn damaged(what: retrysafe_core::codec::DecodeError) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Damaged).because(what)
}
