//! How do many operations share one flush?
//!
//! A lane is one task with one connection. It takes whatever has queued up while the last batch was
//! under way, sends it as one transaction, and answers when that is durable. There is no timer: a
//! lone operation goes out as soon as whoever else is ready to run had a turn, and the longer a flush takes the more share the next.
//!
//! A key always takes the same lane, but for the moment at which the second one is opened, so two
//! operations on one key hardly ever meet on two connections of one process. A batch holds one operation per key, sorted by key, so that batches of several
//! processes take their locks in one order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use retrysafe_core::scope::Id;
use tokio::sync::mpsc;

use super::connect::{RECONNECT_MAX, Wire};
use super::identity::Identity;
use super::job::{Ask, Job, JobKind};
use super::place::Places;
use super::settings::Settings;
use crate::stores::quarantine::HeldUntil;
use crate::wait_a_turn::wait_a_turn;

/// The most operations in one batch. Larger ones gain little and make everybody in them wait longer.
const BATCH_MAX: usize = 256;

/// The most bytes of one batch, so that a few large answers do not hold up many small ones.
const BATCH_BYTES_MAX: usize = 2 << 20;

/// How many jobs may wait for one lane. More would wait longer than their callers do.
pub(super) const QUEUE_MAX: usize = 8_192;

/// What all lanes of one store share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) identity: Identity,
    pub(super) barrier: Barrier,
    pub(super) held_until: HeldUntil,
}

/// Whether something was committed that may not have reached the standby, because a wait for it was
/// cancelled or ended with its connection: nothing may be read or written before one was not.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    raised: AtomicU64,
    passed: AtomicU64,
}

impl Barrier {
    pub(super) fn raise(&self) {
        self.raised.fetch_add(1, Ordering::AcqRel);
    }

    /// How often it was raised, unless it was passed since.
    fn is_up(&self) -> Option<u64> {
        let raised = self.raised.load(Ordering::Acquire);
        (self.passed.load(Ordering::Acquire) < raised).then_some(raised)
    }

    /// A commit that began after it had been raised this often has arrived at the standby.
    fn pass(&self, raised: u64) {
        self.passed.fetch_max(raised, Ordering::AcqRel);
    }
}

pub(super) struct Lane {
    pub(super) shared: Arc<Shared>,
    queue: mpsc::Receiver<Job>,
    /// For jobs that come back after a pause. Weak, so that the lane ends with the store.
    pub(super) back: mpsc::WeakSender<Job>,
    pub(super) wire: Option<Wire>,
    /// Jobs taken from the queue that did not fit into a batch.
    pub(super) waiting: VecDeque<Job>,
    /// Ids that a transaction of the application was seen to hold, and when.
    pub(super) held: HashMap<Id, Instant>,
    pub(super) places: Places,
}

/// Jobs that go out together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) kind: JobKind,
    /// One per id, sorted.
    pub(super) jobs: Vec<Job>,
    /// Inserts of an id that is in the batch already: they find what the first of them leaves.
    pub(super) followers: HashMap<Id, Vec<Job>>,
}

impl Lane {
    /// Starts a lane, over a connection that is there already or over one that is opened when there is
    /// something to do.
    pub(super) fn start(shared: Arc<Shared>, wire: Option<Wire>) -> mpsc::Sender<Job> {
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let back = sender.downgrade();
        let waiting = VecDeque::new();
        let held = HashMap::new();
        let places = Places::default();
        let lane = Self { shared, queue, back, wire, waiting, held, places };
        tokio::spawn(lane.run());
        sender
    }

    async fn run(mut self) {
        while self.fill().await {
            let batch = self.take_batch();
            if !batch.jobs.is_empty() && self.connect().await {
                self.carry(batch).await;
            }
        }
    }

    /// Waits for something to do. False when the store is gone and everything is answered.
    ///
    /// Whoever is ready to run has a turn before the batch is closed: the callers of the last batch have just been answered, and most
    /// of them are about to ask for their next write. Without that turn every second batch is a small one, and a batch costs
    /// some hundred microseconds by itself.
    async fn fill(&mut self) -> bool {
        if self.waiting.is_empty() {
            match self.queue.recv().await {
                Some(job) => self.waiting.push_back(job),
                None => return false,
            }
        }
        if self.waiting.len() < BATCH_MAX {
            wait_a_turn().await;
        }
        while self.waiting.len() < BATCH_MAX {
            match self.queue.try_recv() {
                Ok(job) => self.waiting.push_back(job),
                Err(_) => break,
            }
        }
        true
    }

    fn take_batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        let (mut ids, mut inserts, mut bytes) = (HashSet::new(), HashSet::new(), 0);
        let mut left = VecDeque::new();
        for mut job in std::mem::take(&mut self.waiting) {
            if job.is_abandoned() {
                continue;
            }
            let id = job.id();
            let is_insert = matches!(job.ask, Ask::Insert(_));
            job.alone = job.alone || is_insert && self.is_held(&id);
            let goes_alone = batch.jobs.first().is_some_and(|first| first.alone);
            if batch.jobs.is_empty() {
                batch.kind = job.kind;
                bytes = job.bytes;
                ids.insert(id);
                if is_insert && !job.alone {
                    inserts.insert(id);
                }
                batch.jobs.push(job);
            } else if goes_alone || job.alone || batch.jobs.len() >= BATCH_MAX {
                ids.insert(id);
                inserts.remove(&id);
                left.push_back(job);
            } else if is_insert && inserts.contains(&id) {
                batch.followers.entry(id).or_default().push(job);
            } else if job.kind != batch.kind
                || !ids.insert(id)
                || bytes + job.bytes > BATCH_BYTES_MAX
            {
                // What comes later for this id must stay behind what stays here.
                ids.insert(id);
                inserts.remove(&id);
                left.push_back(job);
            } else {
                bytes += job.bytes;
                if is_insert {
                    inserts.insert(id);
                }
                batch.jobs.push(job);
            }
        }
        self.waiting = left;
        batch.jobs.sort_by_key(Job::id);
        batch
    }

    /// Sees to a verified connection. False if the batch's callers have all given up meanwhile, or
    /// the store is gone; their jobs were never sent.
    async fn connect(&mut self) -> bool {
        let mut pause = Duration::from_millis(5);
        loop {
            if self.wire.as_ref().is_none_or(|wire| wire.client.is_closed()) {
                self.wire = None;
                // Whatever ended the last one may have ended a wait for the standby.
                self.shared.barrier.raise();
                match self.shared.wire().await {
                    Ok(wire) => self.wire = Some(wire),
                    Err(error) => tracing::warn!(%error, "no connection to PostgreSQL"),
                }
            }
            if self.wire.is_some() && self.pass_barrier().await {
                return true;
            }
            if self.back.upgrade().is_none() {
                return false;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RECONNECT_MAX);
        }
    }

    /// After a cancelled wait for the standby, commits once and waits in full: what was committed
    /// before has then arrived too. Until then nothing is read, because it might not be there after
    /// a fail-over, and nothing is written.
    async fn pass_barrier(&mut self) -> bool {
        let Some(raised) = self.shared.barrier.is_up() else { return true };
        let Some(wire) = &self.wire else { return false };
        let warned = wire.warned();
        let barrier = format!("{} {}; COMMIT", wire.begin, include_str!("sql/barrier.sql").trim());
        let waited = tokio::time::timeout(
            self.shared.settings.deadline,
            wire.client.batch_execute(&barrier),
        );
        match waited.await {
            Ok(Ok(())) if wire.warned() == warned => {
                self.shared.barrier.pass(raised);
                true
            }
            Ok(Ok(()) | Err(_)) | Err(_) => {
                self.wire = None;
                false
            }
        }
    }
}
