//! What do the scripts do, and what must be there afterwards?

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::key::Key;
use retrysafe_core::record::{
    About, Answer, Becomes, Doubt, First, Happened, Record, Standing, State, Write,
};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{Inserted, Stamped, StoreError, Swapped};
use retrysafe_core::time::Time;
use tokio::sync::oneshot;

use super::super::error::OpenError;
use super::super::open::open as open_store;
use super::super::ops::{LogWriter, WriterOp};
use super::super::{CreatePolicy, Durability, StoreSettings};
use super::folder::TestFolder;
use crate::stores::clock::{Clock, Hand};

pub(super) const START: Time = Time::from_ms(1_000_000_000);
/// A header, six batches of a page, and the page that is kept.
pub(super) const SEGMENT: u32 = 32 << 10;

/// One step of a script.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Things asked at once, each about another key.
    Ask(Vec<Ask>),
    /// Time goes by.
    Wait(Duration),
    /// Closed in good order and opened again.
    Reopen,
    /// The process is killed between two things that are asked, and the store opened again.
    Kill,
    /// The process is killed so many calls after things were asked, and the store opened again by
    /// another, over what the page cache holds.
    KillIn(Vec<Ask>, usize),
    /// A flush fails, leaves its pages clean, and the store is opened again.
    LoseFlush(Vec<Ask>),
}

/// Something that is asked of the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Insert {
        key: u32,
        ttl: u64,
    },
    Complete {
        key: u32,
        body: usize,
    },
    Release {
        key: u32,
    },
    Doubt {
        key: u32,
    },
    Expire {
        key: u32,
    },
    /// A change that leaves the record as long as it was.
    Touch {
        key: u32,
    },
    Reap {
        limit: usize,
    },
}

/// A generator of small numbers: the same seed gives the same script.
#[derive(Clone, Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

/// What was acknowledged, by id.
pub(super) type Model = BTreeMap<Id, Record>;

/// What is known after a step.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// How many calls the folder had seen.
    pub(super) calls: usize,
    /// Everything acknowledged.
    pub(super) model: Arc<Model>,
    /// The last time that was written down.
    pub(super) marked: Time,
    /// The script's clock.
    pub(super) now: Time,
}

/// A script that is running over a folder.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) folder: TestFolder,
    pub(super) log: Option<LogWriter>,
    clock: Clock,
    hand: Hand,
    pub(super) model: Model,
    /// Ids whose last change failed in a way that leaves open whether it was applied.
    pub(super) maybe: BTreeSet<Id>,
    pub(super) known: Vec<Known>,
    marked: Time,
    settings: StoreSettings,
    /// How often the process was killed inside a commit.
    pub(super) killed: usize,
    /// How often a flush left its pages clean.
    pub(super) flushes_lost: usize,
}

pub(super) fn settings(clock: Clock) -> StoreSettings {
    StoreSettings {
        durability: Durability::Full,
        segment_bytes: SEGMENT,
        clock,
        create: CreatePolicy::IfAbsent,
        // The scripts' clocks start anew wherever it suits them.
        accept_clock: true,
        inline: true,
    }
}

pub(super) fn first(key: u32, ttl: u64) -> First {
    let scope = Scope::of([("tenant", &b"t"[..])]);
    let digest = Key::new(&format!("key-{key}")).unwrap().digest();
    First {
        id: Id::of(&scope, &digest),
        scope,
        key: digest,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([7; 8]), [9; 32]),
        mark: None,
        about: About { method: "POST".into(), route: "/pay".into(), path: "/pay".into() },
        ttl: Duration::from_secs(ttl),
        lease: Duration::from_secs(30),
        owner: u64::from(key),
        request_id: None,
        flow: None,
    }
}

fn write(becomes: Becomes) -> Write {
    Write { becomes, new_fence: false, what: Some(Happened::LookedUp("x".into())), ttl: None }
}

impl Ask {
    /// The operation, or none if the record is not in a state for it.
    fn op(self, model: &Model) -> Option<Asked> {
        let swap = |key: u32, from: &[Standing], becomes: Becomes| {
            let record = model.get(&first(key, 0).id)?;
            from.contains(&record.standing()).then(|| {
                let (reply, answer) = oneshot::channel();
                let op = WriterOp::Swap(Box::new((record.clone(), write(becomes))), reply);
                (op, Waits::Swapped(record.id, answer))
            })
        };
        let open = [Standing::InProgress, Standing::Unknown];
        match self {
            Self::Insert { key, ttl } => {
                let (reply, answer) = oneshot::channel();
                let first = first(key, ttl);
                let id = first.id;
                Some((WriterOp::Insert(Box::new(first), reply), Waits::Inserted(id, answer)))
            }
            Self::Complete { key, body } => {
                let body = Bytes::from(vec![key as u8; body]);
                let response =
                    StoredResponse { status: StatusCode::CREATED, headers: Vec::new(), body };
                swap(key, &open, Becomes::Completed(Answer::Kept(response)))
            }
            Self::Release { key } => swap(key, &open, Becomes::FailedRetryable),
            Self::Doubt { key } => {
                swap(key, &[Standing::InProgress], Becomes::Unknown(Doubt::AnswerLost))
            }
            Self::Expire { key } => {
                swap(key, &[Standing::Completed, Standing::FailedRetryable], Becomes::Expired)
            }
            Self::Touch { key } => swap(key, &Standing::ALL, Becomes::Same),
            Self::Reap { limit } => {
                let (reply, answer) = oneshot::channel();
                Some((WriterOp::Reap(limit, reply), Waits::Reaped(answer)))
            }
        }
    }
}

type Asked = (WriterOp, Waits);
type Told<T> = oneshot::Receiver<Result<Stamped<T>, StoreError>>;

enum Waits {
    Inserted(Id, Told<Inserted>),
    Swapped(Id, Told<Swapped>),
    Reaped(Told<usize>),
}

impl Run {
    /// Opens a store in a folder; an error is the folder's doing.
    pub(super) fn start(folder: TestFolder) -> Result<Self, OpenError> {
        Self::start_with(folder, true)
    }

    /// The same, with segments filled and snapshots taken by threads beside the writer.
    pub(super) fn start_with_threads(folder: TestFolder) -> Result<Self, OpenError> {
        Self::start_with(folder, false)
    }

    fn start_with(folder: TestFolder, inline: bool) -> Result<Self, OpenError> {
        let (clock, hand) = Clock::manual(START);
        let settings = StoreSettings { inline, ..settings(clock.clone()) };
        let mut run = Self {
            folder,
            settings,
            killed: 0,
            flushes_lost: 0,
            log: None,
            clock,
            hand,
            model: Model::new(),
            maybe: BTreeSet::new(),
            known: Vec::new(),
            marked: START,
        };
        run.know();
        run.open_after_all()?;
        Ok(run)
    }

    pub(super) fn run(&mut self, steps: &[Step]) -> Result<(), OpenError> {
        for step in steps {
            match step {
                Step::Ask(asks) => self.ask(asks),
                Step::Wait(by) => self.hand.advance(*by),
                Step::Reopen => {
                    self.log.as_mut().unwrap().close();
                    self.open_after_all()?;
                }
                Step::Kill => self.open_after_all()?,
                Step::KillIn(asks, calls) => {
                    self.folder.die_after(*calls);
                    self.ask(asks);
                    self.await_threads();
                    self.killed += usize::from(self.folder.revive());
                    self.open_after_all()?;
                }
                Step::LoseFlush(asks) => {
                    self.folder.lose_next_flush();
                    self.ask(asks);
                    self.flushes_lost += usize::from(self.has_failed());
                    self.await_threads();
                    self.folder.revive();
                    self.open_after_all()?;
                }
            }
            self.know();
        }
        Ok(())
    }

    fn know(&mut self) {
        self.known.push(Known {
            calls: self.folder.calls_len(),
            model: Arc::new(self.model.clone()),
            marked: self.marked,
            now: self.clock.now(),
        });
    }

    /// Opens the store, if need be after the fault has passed: a call fails once at the most, and a
    /// full disk is given room.
    pub(super) fn open_after_all(&mut self) -> Result<(), OpenError> {
        if self.open().is_ok() {
            return Ok(());
        }
        self.folder.make_room();
        self.open()
    }

    /// Opens the store and compares it with what was acknowledged.
    pub(super) fn open(&mut self) -> Result<(), OpenError> {
        self.await_threads();
        self.log = None;
        let log = open_store(Arc::new(self.folder.clone()), self.settings.clone())?;
        for (id, record) in &mut self.model {
            let found = log.reader.find(id).unwrap();
            if !self.maybe.contains(id) {
                check(Some(record), Some(record), found.as_ref(), self.clock.now());
            }
            if let Some(found) = found {
                assert!(found.version >= record.version, "{found:?} is older than {record:?}");
                *record = found;
            }
        }
        for id in std::mem::take(&mut self.maybe) {
            self.model.extend(log.reader.find(&id).unwrap().map(|found| (id, found)));
        }
        self.marked = self.clock.now();
        self.log = Some(log);
        self.know();
        Ok(())
    }

    /// Threads of a process end with it. Here they would go on.
    fn await_threads(&mut self) {
        if let Some(log) = &mut self.log {
            log.await_threads();
        }
    }

    /// Whether the store refuses everything.
    fn has_failed(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.reader.check().is_err())
    }

    fn ask(&mut self, asks: &[Ask]) {
        let (ops, waits): (Vec<WriterOp>, Vec<Waits>) =
            asks.iter().filter_map(|ask| ask.op(&self.model)).unzip();
        let log = self.log.as_mut().unwrap();
        log.commit(ops);
        while log.is_busy() {
            log.commit([]);
        }
        for wait in waits {
            match wait {
                Waits::Inserted(id, mut told) => match told.try_recv().expect("an answer") {
                    Ok(Stamped { value: Inserted::New(record), .. }) => self.acknowledged(record),
                    Ok(Stamped { value: Inserted::Exists(record), .. }) => {
                        assert!(is_same(&self.model[&id], &record), "{record:?}");
                    }
                    Err(error) => self.refused(id, &error),
                },
                Waits::Swapped(id, mut told) => match told.try_recv().expect("an answer") {
                    Ok(Stamped { value: Swapped::Done(record), .. }) => self.acknowledged(record),
                    // What was reaped cannot be changed any more.
                    Ok(Stamped { value: Swapped::Lost(None), now }) => {
                        assert!(self.model[&id].is_expired(now));
                    }
                    Ok(Stamped { value: Swapped::Lost(Some(record)), .. }) => {
                        panic!("a swap of the current version lost to {record:?}")
                    }
                    Err(error) => self.refused(id, &error),
                },
                Waits::Reaped(mut told) => {
                    if let Ok(Stamped { value: 1.., now }) = told.try_recv().expect("an answer") {
                        self.marked = now;
                    }
                }
            }
        }
    }

    fn acknowledged(&mut self, record: Record) {
        self.marked = self.clock.now();
        self.model.insert(record.id, record);
    }

    fn refused(&mut self, id: Id, error: &StoreError) {
        if error.may_have_applied() {
            self.maybe.insert(id);
        }
    }
}

/// Whether two readings are of the same record, or the second is what an opening made of the first.
pub(super) fn is_same(was: &Record, found: &Record) -> bool {
    was == found
        || was.standing() == Standing::InProgress
            && found.version > was.version
            && are_orphaned_alike(found, was)
}

/// Whether one is what an opening made of the other's attempt, or both are.
fn are_orphaned_alike(found: &Record, other: &Record) -> bool {
    let is_orphaned =
        |record: &Record| matches!(record.state, State::Unknown { doubt: Doubt::OwnerGone, .. });
    is_orphaned(found)
        && (is_orphaned(other) || other.standing() == Standing::InProgress)
        && (found.fence, found.created_at, found.attempts)
            == (other.fence, other.created_at, other.attempts)
}

/// Checks one record after a crash: it is as acknowledged, or as a write that was under way would
/// have left it. It may be gone if it had expired, and may not be there if nobody asked for it.
pub(super) fn check(
    was: Option<&Record>,
    would_be: Option<&Record>,
    found: Option<&Record>,
    now: Time,
) {
    let fits = match found {
        // A write that was under way may have been met by another opening than the script's.
        Some(found) if was != would_be => {
            was.is_some_and(|was| is_same(was, found))
                || would_be.is_some_and(|one| one == found || are_orphaned_alike(found, one))
        }
        Some(found) => was.is_some_and(|was| is_same(was, found)),
        None => was.is_none_or(|was| was.is_expired(now)),
    };
    assert!(fits, "acknowledged {was:?}\nunder way {would_be:?}\nfound {found:?}\nat {now:?}");
}
