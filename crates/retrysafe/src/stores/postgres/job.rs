//! What is one operation on its way to the server?
//!
//! A [`Job`] carries the question, where the answer goes, and how far it has come. The last matters
//! when the caller's patience ends: a job that was never sent surely changed nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, LoadedUnless, Stamped, StoreError, Swapped};
use tokio::sync::oneshot;

use super::columns;

/// What is asked. Boxed, because a queue of them moves.
#[derive(Debug)]
pub(super) enum Ask {
    Insert(Box<First>),
    Swap(Box<(Record, Write)>),
    /// The record, unless it is still of this version.
    Load(Id, Option<u64>),
}

/// Which statement carries it. A batch is of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum JobKind {
    Load,
    /// A begin, a settle or a new attempt: nearly all writes.
    #[default]
    Write,
    /// Any other write.
    Change,
}

/// What is answered.
#[derive(Debug)]
pub(super) enum Reply {
    Inserted(Stamped<Inserted>),
    Swapped(Stamped<Swapped>),
    Loaded(Stamped<LoadedUnless>),
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) ask: Ask,
    pub(super) kind: JobKind,
    /// About how many bytes it sends.
    pub(super) bytes: usize,
    pub(super) ticket: Arc<Ticket>,
    reply: oneshot::Sender<Result<Reply, StoreError>>,
    /// It failed in company; from now on it goes by itself, so that it can only fail itself.
    pub(super) alone: bool,
    /// It was sent and nobody knows what became of it: read back before anything else.
    pub(super) doubtful: bool,
    /// How often it was refused for a passing reason.
    pub(super) refusals: u32,
    born: Instant,
}

/// Whether a job was sent. Shared with the caller, who may give up; whoever is first decides.
#[derive(Debug, Default)]
pub(super) struct Ticket(AtomicU8);

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Ask {
    pub(super) fn id(&self) -> Id {
        match self {
            Self::Insert(first) => first.id,
            Self::Swap(swap) => swap.0.id,
            Self::Load(id, _) => *id,
        }
    }

    fn kind(&self) -> JobKind {
        match self {
            Self::Insert(_) => JobKind::Write,
            Self::Swap(swap) if columns::is_common(&swap.0, &swap.1) => JobKind::Write,
            Self::Swap(_) => JobKind::Change,
            Self::Load(..) => JobKind::Load,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Insert(_) => 512,
            Self::Swap(swap) => columns::size(&swap.0, &swap.1),
            Self::Load(..) => 40,
        }
    }
}

impl Ticket {
    /// Marks the job as sent, unless its caller has given up.
    pub(super) fn send(&self) -> bool {
        match self.0.compare_exchange(QUEUED, SENT, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(was) => was == SENT,
        }
    }

    /// The server refused it: it is as if it had never been sent.
    pub(super) fn unsend(&self) {
        self.0.store(QUEUED, Ordering::Release);
    }

    /// Gives up. True if the job was never sent and never will be.
    pub(super) fn give_up(&self) -> bool {
        match self.0.compare_exchange(QUEUED, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(was) => was == GIVEN_UP,
        }
    }
}

impl Job {
    pub(super) fn new(
        ask: Ask,
        ticket: Arc<Ticket>,
        reply: oneshot::Sender<Result<Reply, StoreError>>,
    ) -> Self {
        Self {
            kind: ask.kind(),
            bytes: ask.bytes(),
            ask,
            ticket,
            reply,
            alone: false,
            doubtful: false,
            refusals: 0,
            born: Instant::now(),
        }
    }

    pub(super) fn id(&self) -> Id {
        self.ask.id()
    }

    /// What was asked, for whoever answers it next.
    pub(super) fn take_ask(&mut self) -> Ask {
        let id = self.id();
        std::mem::replace(&mut self.ask, Ask::Load(id, None))
    }

    /// How long its caller has been waiting.
    pub(super) fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// Whether the caller has given up. Nothing is sent for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn answer(self, answer: Result<Reply, StoreError>) {
        // A caller that has gone does not need to know.
        let _ = self.reply.send(answer);
    }
}
