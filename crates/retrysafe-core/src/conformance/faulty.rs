//! How does a store behave on a bad day?
//!
//! [`Faulty`] stands before any store and lets operations fail as networks, disks and processes do:
//! before they are applied, after they were applied, or so that nobody can tell. It does so one by
//! one, where a case [arms](Faulty::arm) it, or at random from a [seed](Faulty::seeded).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Chance;
use crate::record::{First, Record, Write};
use crate::scope::Id;
use crate::store::{
    ChangeHint, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError, StoreErrorKind,
    Swapped,
};

/// The most turns that a delayed operation leaves to others, before and after it is applied.
const TURNS_MAX: usize = 8;

/// The five operations of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`Store::insert`].
    Insert,
    /// [`Store::load`].
    Load,
    /// [`Store::swap`].
    Swap,
    /// [`Store::scan`].
    Scan,
    /// [`Store::reap`].
    Reap,
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It is not applied, and the error says so.
    Refused,
    /// It is applied, and the acknowledgement is lost: the error cannot tell.
    AnswerLost,
    /// It is not applied, and the error cannot tell.
    RequestLost,
    /// The error cannot tell, and the write is applied some time after it: when the store is told
    /// to [land](Faulty::land) it, or at random.
    RequestLate,
    /// It is applied, and no answer ever comes. Whoever waits must go away.
    Silent,
    /// It is applied and answered, but others have some turns before and after.
    Delayed,
}

/// A store before which operations fail.
#[derive(Debug)]
pub struct Faulty<S> {
    store: S,
    plan: Mutex<Plan>,
    silenced: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct Plan {
    armed: VecDeque<(Op, Fault)>,
    chance: Option<Odds>,
    late: Vec<Late>,
    met: BTreeMap<Fault, usize>,
}

#[derive(Debug)]
struct Odds {
    chance: Chance,
    per_mille: usize,
    faults: Box<[Fault]>,
}

/// A write that is still on its way.
#[derive(Debug)]
enum Late {
    Insert(Box<First>),
    Swap(Box<(Record, Write)>),
    Reap(usize),
}

impl<S: Store> Faulty<S> {
    /// A store that works until it is armed.
    pub fn new(store: S) -> Self {
        Self { store, plan: Mutex::default(), silenced: tokio::sync::Notify::new() }
    }

    /// A store of which `per_mille` operations in a thousand meet one of these faults, as the seed
    /// has it.
    pub fn seeded(store: S, seed: u64, per_mille: usize, faults: &[Fault]) -> Self {
        let faulty = Self::new(store);
        let odds = Odds { chance: Chance::new(seed), per_mille, faults: faults.into() };
        faulty.plan().chance = Some(odds);
        faulty
    }

    /// Lets the next operation of this kind fail like this. What is armed first strikes first.
    pub fn arm(&self, op: Op, fault: Fault) {
        self.plan().armed.push_back((op, fault));
    }

    /// Ends all random faults. What was armed or is late stays so.
    pub fn heal(&self) {
        self.plan().chance = None;
    }

    /// Applies the writes that are still on their way.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn land(&self) -> Result<(), StoreError> {
        let late = std::mem::take(&mut self.plan().late);
        for write in late {
            match write {
                Late::Insert(first) => self.store.insert(*first).await.map(drop)?,
                Late::Swap(swap) => self.store.swap(swap.0, swap.1).await.map(drop)?,
                Late::Reap(limit) => self.store.reap(limit).await.map(drop)?,
            }
        }
        Ok(())
    }

    /// Waits until an operation has met [`Fault::Silent`] and was applied.
    pub async fn silenced(&self) {
        self.silenced.notified().await;
    }

    /// How often this fault was met.
    pub fn met(&self, fault: Fault) -> usize {
        self.plan().met.get(&fault).copied().unwrap_or_default()
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to this operation, and how many turns it leaves to others before and after it
    /// is applied. The two are drawn apart: if all who are delayed waited first, whoever is not
    /// would always win a race before it has begun.
    fn meet(&self, op: Op) -> (Option<Fault>, usize, usize) {
        let mut plan = self.plan();
        let armed = plan.armed.iter().position(|(armed, _)| *armed == op);
        let fault = match armed {
            Some(at) => plan.armed.remove(at).map(|(_, fault)| fault),
            None => plan.chance.as_mut().and_then(Odds::draw),
        };
        if let Some(fault) = fault {
            *plan.met.entry(fault).or_default() += 1;
        }
        let mut turns = || plan.chance.as_mut().map_or(1, |odds| odds.chance.below(TURNS_MAX));
        (fault, turns(), turns())
    }

    /// Whether the late writes of a seeded store land now.
    fn lands_now(&self) -> bool {
        let mut plan = self.plan();
        !plan.late.is_empty() && plan.chance.as_mut().is_some_and(|odds| odds.chance.happens(250))
    }

    /// Carries an operation out, or not. `late` is what is left to do of a write that is late; none
    /// for reads, of which an error is always an error without consequences.
    async fn pass<T>(
        &self,
        op: Op,
        late: Option<Late>,
        apply: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if self.lands_now() {
            self.land().await?;
        }
        let lost = match late {
            Some(_) => StoreError::maybe_applied(StoreErrorKind::Unavailable),
            None => StoreError::not_applied(StoreErrorKind::Unavailable),
        };
        let (fault, before, after) = self.meet(op);
        match fault {
            None => apply.await,
            Some(Fault::Refused) => Err(StoreError::not_applied(StoreErrorKind::Unavailable)),
            Some(Fault::RequestLost) => Err(lost),
            Some(Fault::RequestLate) => {
                self.plan().late.extend(late);
                Err(lost)
            }
            Some(Fault::AnswerLost) => {
                apply.await?;
                Err(lost)
            }
            Some(Fault::Silent) => {
                apply.await?;
                self.silenced.notify_one();
                std::future::pending().await
            }
            Some(Fault::Delayed) => {
                step_aside(before).await;
                let answer = apply.await;
                step_aside(after).await;
                answer
            }
        }
    }
}

async fn step_aside(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

impl Odds {
    fn draw(&mut self) -> Option<Fault> {
        self.chance.happens(self.per_mille).then(|| *self.chance.pick(&self.faults))
    }
}

impl<S: Store> Store for Faulty<S> {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        let late = Some(Late::Insert(Box::new(first.clone())));
        self.pass(Op::Insert, late, self.store.insert(first)).await
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        self.pass(Op::Load, None, self.store.load(id)).await
    }

    async fn load_unless(&self, id: Id, version: u64) -> Result<Stamped<LoadedUnless>, StoreError> {
        self.pass(Op::Load, None, self.store.load_unless(id, version)).await
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        self.store.change_hint(id)
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        let late = Some(Late::Swap(Box::new((from.clone(), write.clone()))));
        self.pass(Op::Swap, late, self.store.swap(from, write)).await
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.pass(Op::Scan, None, self.store.scan(query)).await
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.pass(Op::Reap, Some(Late::Reap(limit)), self.store.reap(limit)).await
    }

    /// No request hangs on it, so no fault is meant for it.
    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        self.store.probe().await
    }
}
