//! Who stages, cancels, requeues and decides?

use std::time::Duration;

use crate::chance::Chance;
use crate::effect_plan::EffectPlan;
use crate::history::EvidenceSeen;
use crate::shipped::options::Kind;
use crate::shipped::stage::Stage;

/// Stages an effect at this time, in a transaction that is open for a while and may be rolled back.
pub(super) fn stage_at(stage: &Stage, plan: EffectPlan, chance: &mut Chance, at: u64) {
    let kind = chance.below(plan.kinds.into()) as u8;
    let lane =
        (plan.lanes > 0 && chance.percent(60)).then(|| chance.below(plan.lanes.into()) as u8);
    let delay_ms = if chance.percent(10) { chance.scaled(1, 2 * plan.lease_ms) } else { 0 };
    let open_ms = chance.scaled(1, 1_000);
    let is_committed = !chance.percent(8);
    let stage = stage.clone();
    tokio::spawn(async move {
        stage.sleep(at).await;
        let effect = loop {
            let staged = stage.with(|state| {
                let now = state.records.clock(state.now_ms());
                state.outbox.table.stage(kind, lane, now.plus(Duration::from_millis(delay_ms)))
            });
            match staged {
                Some(effect) => break effect,
                // Another transaction holds the lane.
                None => stage.sleep(10).await,
            }
        };
        stage.sleep(open_ms).await;
        stage.with(|state| {
            state.outbox.table.end_stage(effect, is_committed);
            state.take_events();
            if is_committed {
                state.outbox.hint.notify_waiters();
            }
        });
    });
}

/// A person requeues what is dead, and decides what is unknown, by evidence.
pub(super) async fn operate_again_and_again(stage: Stage, plan: EffectPlan) {
    let mut chance = stage.chance(&[95]);
    let mut first_seen: Vec<(u8, u32, u64)> = Vec::new();
    loop {
        let is_healed = stage.with(|state| state.healed);
        let pause_ms = if is_healed {
            plan.lease_ms
        } else {
            chance.scaled(plan.lease_ms / 2, 2 * plan.lease_ms)
        };
        stage.sleep(pause_ms).await;
        requeue(&stage, &mut chance);
        if !plan.operator {
            continue;
        }
        let unknown: Vec<_> = stage.with(|state| state.outbox.table.unknown().collect());
        for (effect, fence) in unknown {
            let now = stage.now_ms();
            let seen = first_seen.iter().find(|(of, at, _)| (*of, *at) == (effect, fence));
            let since = seen.map(|(_, _, since)| *since);
            if since.is_none() {
                first_seen.push((effect, fence, now));
            }
            // Measured on the person's own clock; the store's may have leapt.
            let has_settled = since.is_some_and(|since| now >= since + plan.settle_ms());
            let found = find(&stage, &plan, &mut chance, (effect, fence), has_settled);
            let Some(found) = found else { continue };
            stage.sleep(chance.scaled(1, plan.lease_ms / 2)).await;
            stage.with(|state| {
                let now = state.records.clock(state.now_ms());
                state.outbox.table.decide((effect, fence), found, plan.settle_ms(), now);
                state.take_events();
            });
        }
    }
}

fn requeue(stage: &Stage, chance: &mut Chance) {
    let dead: Vec<u8> = stage.with(|state| state.outbox.table.dead().collect());
    for effect in dead {
        if stage.strikes(chance, Kind::OtherRequest, 40) {
            stage.with(|state| {
                let now = state.records.clock(state.now_ms());
                state.outbox.table.requeue(effect, now);
                state.take_events();
            });
        }
    }
}

/// What the receiver says about an effect.
fn find(
    stage: &Stage,
    plan: &EffectPlan,
    chance: &mut Chance,
    (effect, fence): (u8, u32),
    has_settled: bool,
) -> Option<EvidenceSeen> {
    let burns = plan.burns && chance.percent(50);
    let is_wanted = chance.percent(70);
    stage.with(|state| {
        let receivers = &mut state.outbox.receivers;
        if receivers.has_done(effect) {
            Some(EvidenceSeen::Happened)
        } else if burns && !receivers.has_begun(effect) {
            receivers.burn(effect, fence);
            Some(if is_wanted { EvidenceSeen::NoEffect } else { EvidenceSeen::Unwanted })
        } else {
            has_settled.then_some(EvidenceSeen::Absence)
        }
    })
}
