//! Does the worker that ships deliver every effect once?
//!
//! In a share of the histories the processes are workers: [`retrysafe::outbox::Worker`] with its loop, its sweeper, its
//! breaker and its backoff, over a simulated [store](effect_store) that applies the core's rules. Receivers are the
//! same as in the fast simulator, and so are the promises.
//!
//! * [`effect_store`]: what a worker asks, and what goes wrong on the way. [`delivery`]: how an effect reaches its receiver.
//! * [`workers`]: the processes. [`decisions`]: who stages, cancels, requeues and decides.

mod decisions;
mod delivery;
mod effect_store;
mod workers;

use std::time::Duration;

use self::workers::Workers;
use super::options::Kind;
use super::stage::{Stage, State};
use crate::chance::Chance;
use crate::effect_plan::EffectPlan;
use crate::history::{EffectEvent, What};

impl State {
    fn note(&mut self, event: EffectEvent) {
        self.record(What::Outbox(event));
    }

    /// Writes down what the table has done.
    fn take_events(&mut self) {
        let events = std::mem::take(&mut self.outbox.table.events);
        for event in events {
            self.note(event);
        }
    }
}

/// A blow of the nemesis.
#[derive(Clone, Copy)]
enum Blow {
    Crash { worker: u8, down_ms: u64 },
    Pause { worker: u8, ms: u64 },
    CutOff { worker: u8, ms: u64 },
    Stop { worker: u8, patience_ms: u64 },
    Jump { by: i64 },
    Cancel { effect: u8 },
}

/// Plays a whole history of effects.
pub async fn play(stage: &Stage, plan: EffectPlan) {
    let mut chance = stage.chance(&[90]);
    stage.with(|state| state.outbox.receivers.draw_refused(&mut chance, plan.effects));
    let workers = &Workers::new(stage, plan);
    let mut last = 0;
    for effect in 0..plan.effects {
        let at = chance.scaled(1, 4 * plan.lease_ms);
        last = last.max(at);
        decisions::stage_at(stage, plan, &mut chance, at);
        if let Some(blow) = draw_blow(stage, plan, &mut chance, effect) {
            let at = at + chance.scaled(1, 2 * plan.lease_ms);
            let stage = stage.clone();
            let workers = workers.clone();
            tokio::spawn(async move {
                stage.sleep(at).await;
                strike(&stage, plan, &workers, blow).await;
            });
        }
    }
    tokio::spawn(decisions::operate_again_and_again(stage.clone(), plan));
    stage.sleep(last + chance.scaled(plan.lease_ms / 2, 4 * plan.lease_ms)).await;
    stage.with(|state| {
        state.record(What::Healed);
        state.healed = true;
    });
    workers.heal();
    rest(stage, plan).await;
    workers.stop_all().await;
    stage.record(What::Ended);
}

/// A blow around an effect, of a kind that is switched on.
fn draw_blow(stage: &Stage, plan: EffectPlan, chance: &mut Chance, effect: u8) -> Option<Blow> {
    let lease = plan.lease_ms;
    let worker = chance.below(plan.workers.into()) as u8;
    let ms = chance.scaled(20, 3 * lease);
    let far = chance.pick(2 * lease, &[12 * lease]);
    let by = chance.scaled(1, far) as i64;
    let back = chance.scaled(1, lease / 2) as i64;
    let patience_ms = chance.scaled(10, lease);
    let (kind, blow) = match chance.below(11) {
        0..2 => (Kind::Crash, Blow::Crash { worker, down_ms: ms }),
        2..5 => (Kind::Pause, Blow::Pause { worker, ms }),
        5 => (Kind::CutOff, Blow::CutOff { worker, ms }),
        6 => (Kind::Drain, Blow::Stop { worker, patience_ms }),
        7 => (Kind::StoreForward, Blow::Jump { by }),
        8 => (Kind::StoreBack, Blow::Jump { by: -back }),
        _ => (Kind::Expire, Blow::Cancel { effect }),
    };
    stage.options().kinds.has(kind).then_some(blow)
}

async fn strike(stage: &Stage, plan: EffectPlan, workers: &Workers, blow: Blow) {
    let is_over = stage.with(|state| {
        state.faults += u64::from(!state.healed);
        state.healed
    });
    if is_over {
        return;
    }
    match blow {
        Blow::Crash { worker, down_ms } => workers.crash(worker, down_ms).await,
        Blow::Pause { worker, ms } => workers.pause(worker, ms).await,
        Blow::CutOff { worker, ms } => workers.cut_off(worker, ms),
        Blow::Stop { worker, patience_ms } => workers.stop(worker, patience_ms).await,
        Blow::Jump { by } => stage.with(|state| {
            let back = by.min(0).unsigned_abs();
            if state.outbox.turned_back_ms + back <= plan.skew_ms {
                state.outbox.turned_back_ms += back;
                state.records.jump(by);
                state.record(What::Jumped { by });
            }
        }),
        Blow::Cancel { effect } => stage.with(|state| {
            let now = state.records.clock(state.now_ms());
            state.outbox.table.cancel(effect, now);
            state.take_events();
        }),
    }
}

/// Waits until nothing is under way, or until it should have been long ago.
async fn rest(stage: &Stage, plan: EffectPlan) {
    let quiet = async {
        loop {
            stage.sleep(plan.lease_ms).await;
            let rests = stage.with(|state| {
                state.outbox.table.rests(plan.operator)
                    && state.outbox.packets_on_the_way == 0
                    && state.writes_on_the_way == 0
            });
            if rests {
                return;
            }
        }
    };
    // What is not quiet by then the checker finds.
    let _ = tokio::time::timeout(Duration::from_millis(plan.liveness_ms()), quiet).await;
}
