//! What goes wrong on the way to the store?
//!
//! [`SimStore`] is what the product holds: the [records](super::records) across a wire that belongs to nobody. A
//! write that was sent arrives, also if its sender has given up or died.

use std::future::pending;

use retrysafe_core::Id;
use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::store::{
    Inserted, Page, Query, Stamped, Store, StoreError, StoreErrorKind, Swapped, Voucher,
};
use retrysafe_core::time::Time;
use tokio::sync::oneshot;

use super::apply::apply;
use super::options::Kind;
use super::records::{Reply, Request};
use super::stage::{Life, Stage};
use super::witness::{Asker, note_asked, note_heard};

/// The name of the chance that decides whether a history's store vouches for its records.
const VOUCHES: u64 = 11;

/// The store, for somebody.
#[derive(Clone)]
pub struct SimStore {
    stage: Stage,
    asker: Asker,
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
        let store = self.clone();
        let request = request.clone();
        let &Fate { out_ms, back_ms, again_after_ms, .. } = fate;
        let copies = if again_after_ms.is_some() { 2 } else { 1 };
        if request.writes() {
            self.stage.with(|state| state.writes_on_the_way += copies);
        }
        tokio::spawn(async move {
            store.stage.sleep(out_ms).await;
            let stamped = store.arrive(&request);
            if let Some(ms) = again_after_ms {
                let store = store.clone();
                let request = request.clone();
                tokio::spawn(async move {
                    store.stage.sleep(ms).await;
                    store.arrive(&request);
                });
            }
            store.stage.sleep(back_ms).await;
            // Whoever asked may be gone.
            let _ = reply.send(stamped);
        });
        answer
    }

    /// One copy of a request has reached the store.
    fn arrive(&self, request: &Request) -> Stamped<Reply> {
        self.stage.with(|state| {
            if request.writes() {
                state.writes_on_the_way -= 1;
            }
            apply(state, request, &self.asker)
        })
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
                StoreErrorKind::Held,
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
            fate.returns = if is_silent {
                Returns::Nothing
            } else {
                Returns::Error(StoreErrorKind::Unavailable, is_ambiguous)
            };
        }
        if life.is_cut_off(&self.stage) {
            fate.arrives = false;
            fate.returns = if is_silent {
                Returns::Nothing
            } else {
                Returns::Error(StoreErrorKind::Unavailable, false)
            };
        }
        fate
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

    /// In one history of two the store vouches for its records, as one in the same process does.
    fn voucher(&self) -> Option<&dyn Voucher> {
        let vouches = self.stage.chance(&[VOUCHES]).between(0, 1) == 1;
        (vouches && self.life().is_some()).then_some(self)
    }
}

impl Voucher for SimStore {
    fn vouch(&self, id: Id, version: u64) -> Option<Time> {
        let stamped = self.stage.with(|state| apply(state, &Request::Load(id), &self.asker));
        let is_current = loaded(stamped.value).is_some_and(|record| record.version == version);
        is_current.then_some(stamped.now)
    }

    fn at_hand(&self, id: Id) -> Option<Record> {
        loaded(self.stage.with(|state| apply(state, &Request::Load(id), &self.asker)).value)
    }
}

fn loaded(reply: Reply) -> Option<Record> {
    match reply {
        Reply::Loaded(record) => record,
        Reply::Inserted(_) | Reply::Swapped(_) | Reply::Scanned(_) | Reply::Reaped(_) => None,
    }
}

fn broken() -> StoreError {
    StoreError::not_applied(StoreErrorKind::Broken).because("the simulation is wrong")
}
