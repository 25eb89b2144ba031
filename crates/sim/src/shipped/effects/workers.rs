//! Which worker processes run?
//!
//! Each is the shipped worker with one receiver per kind. A crash drops it where it stands, as the end of a process does;
//! what it had sent is on its way all the same.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use retrysafe::outbox::{Receiver, Worker, Working};

use super::delivery::{deliver, pause};
use super::effect_store::{SimEffectStore, kind_name};
use crate::effect_plan::EffectPlan;
use crate::history::What;
use crate::shipped::stage::{Life, Stage};

/// The longest pause before a failed effect is tried again.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// The workers of a history, by their numbers; none where one is down.
#[derive(Clone)]
pub(super) struct Workers {
    stage: Stage,
    plan: EffectPlan,
    slots: Arc<Mutex<Vec<Slot>>>,
}

#[derive(Default)]
struct Slot {
    epoch: u16,
    process: Option<(Life, Working)>,
    /// Whether a process was told to stop and has not ended.
    is_stopping: bool,
}

impl Workers {
    pub(super) fn new(stage: &Stage, plan: EffectPlan) -> Self {
        let workers = Self { stage: stage.clone(), plan, slots: Arc::default() };
        for worker in 0..plan.workers {
            workers.with(|slots| slots.push(Slot::default()));
            workers.boot(worker);
        }
        workers
    }

    fn with<R>(&self, act: impl FnOnce(&mut Vec<Slot>) -> R) -> R {
        act(&mut self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn life(&self, worker: u8) -> Option<Life> {
        self.with(|slots| {
            let slot = slots.get(usize::from(worker))?;
            slot.process.as_ref().map(|(life, _)| life.clone())
        })
    }

    /// Takes a process out of its place.
    fn take(&self, worker: u8) -> Option<(Life, Working)> {
        self.with(|slots| slots.get_mut(usize::from(worker))?.process.take())
    }

    /// Starts a process, unless one runs.
    fn boot(&self, worker: u8) {
        let epoch = self.with(|slots| {
            let slot = slots.get_mut(usize::from(worker))?;
            if slot.process.is_some() || slot.is_stopping {
                return None;
            }
            slot.epoch += 1;
            Some(slot.epoch)
        });
        let Some(epoch) = epoch else { return };
        self.stage.record(What::Booted { gateway: worker, epoch });
        let life = Life::new(worker, epoch);
        let store = SimEffectStore::new(&self.stage, self.plan, &life);
        let seed = self.stage.chance(&[91, worker.into(), epoch.into()]).next();
        let mut shipped = Worker::simulated(store, seed);
        for kind in 0..self.plan.kinds {
            let stage = self.stage.clone();
            let plan = self.plan;
            let of_life = life.clone();
            shipped = shipped.deliver(&kind_name(kind), receiver(&plan, kind), move |delivery| {
                deliver(stage.clone(), plan, of_life.clone(), kind, delivery)
            });
        }
        let working = shipped.start();
        self.with(|slots| {
            if let Some(slot) = slots.get_mut(usize::from(worker)) {
                slot.process = Some((life, working));
            }
        });
    }

    fn die(&self, worker: u8) {
        if let Some((life, working)) = self.take(worker) {
            self.stage.record(What::Crashed { gateway: worker });
            life.die();
            drop(working);
        }
    }

    pub(super) async fn crash(&self, worker: u8, down_ms: u64) {
        self.die(worker);
        self.stage.sleep(down_ms).await;
        self.boot(worker);
    }

    fn set_stopping(&self, worker: u8, is_stopping: bool) {
        self.with(|slots| {
            if let Some(slot) = slots.get_mut(usize::from(worker)) {
                slot.is_stopping = is_stopping;
            }
        });
    }

    pub(super) async fn pause(&self, worker: u8, ms: u64) {
        if let Some(life) = self.life(worker) {
            pause(self.stage.clone(), life, ms).await;
        }
    }

    pub(super) fn cut_off(&self, worker: u8, ms: u64) {
        if let Some(life) = self.life(worker) {
            self.stage.record(What::CutOff { gateway: worker });
            life.cut_off_until(self.stage.now_ms() + ms);
        }
    }

    /// Tells a process to stop, waits as its owner would, and starts another one.
    pub(super) async fn stop(&self, worker: u8, patience_ms: u64) {
        let Some((life, working)) = self.take(worker) else { return };
        self.stage.record(What::Drains { gateway: worker });
        self.set_stopping(worker, true);
        working.stop(Duration::from_millis(patience_ms)).await;
        self.stage.record(What::Crashed { gateway: worker });
        life.die();
        self.set_stopping(worker, false);
        self.boot(worker);
    }

    /// Everything is repaired.
    pub(super) fn heal(&self) {
        for worker in 0..self.plan.workers {
            if let Some(life) = self.life(worker) {
                life.resume();
            }
            self.boot(worker);
        }
    }

    /// At last every process is told to stop.
    pub(super) async fn stop_all(&self) {
        for worker in 0..self.plan.workers {
            if let Some((_, working)) = self.take(worker) {
                working.stop(Duration::from_millis(self.plan.lease_ms)).await;
            }
        }
    }
}

fn receiver(plan: &EffectPlan, kind: u8) -> Receiver {
    let receiver = match plan.window_ms(kind) {
        Some(window_ms) => Receiver::remembers_keys_for(Duration::from_millis(window_ms)),
        None => Receiver::takes_no_key(),
    };
    receiver
        .margin(Duration::from_millis(plan.margin_ms()))
        .deadline(Duration::from_millis(plan.deadline_ms))
        .at_once(plan.at_once)
        .failures_max(plan.failures_max)
        .backoff(Duration::from_secs(1), BACKOFF_MAX)
}
