//! How does an effect reach its receiver?
//!
//! The handler of the shipped worker sends one packet, and waits for the answer. The packet outlives the process. A pause
//! between the worker's check and the packet is a part of the packet's way: that is the residue which the margin is for.

use bytes::Bytes;
use retrysafe::outbox::{Delivered, Delivery, DeliveryEnd, DeliveryError};
use tokio::sync::oneshot;

use crate::chance::Chance;
use crate::effect_plan::EffectPlan;
use crate::effects::receiver::{Arrival, Heard, PacketFate, Seen};
use crate::history::{EffectEvent, What};
use crate::shipped::options::Kind;
use crate::shipped::stage::{Life, Stage};
use crate::shipped::upstream::panic_quietly;

/// Delivers an effect, once.
pub(super) async fn deliver(
    stage: Stage,
    plan: EffectPlan,
    life: Life,
    kind: u8,
    delivery: Delivery,
) -> Result<DeliveryEnd, DeliveryError> {
    let effect = delivery.id() as u8;
    let fence = fence_of(delivery.payload());
    let mut chance = stage.chance(&[94, effect.into(), fence.into()]);
    if stage.strikes(&mut chance, Kind::UpstreamRefuses, 12) {
        return Ok(DeliveryEnd::no_effect("not connected"));
    }
    let fate = draw_fate(&stage, &plan, kind, &mut chance);
    let panics_before = stage.strikes(&mut chance, Kind::Panic, 6);
    let panics_after = stage.strikes(&mut chance, Kind::Panic, 6);
    let stands_still = stage.strikes(&mut chance, Kind::Pause, 12);
    let still_ms = plan.lease_ms + chance.scaled(1, plan.lease_ms);
    if panics_before {
        panic_quietly();
    }
    let packet = stage.with(|state| {
        let packet = state.outbox.packets;
        state.outbox.packets += 1;
        let (worker, epoch) = (life.gateway, life.epoch);
        state.note(EffectEvent::Sent { packet, effect, fence, worker, epoch });
        packet
    });
    let key = delivery.key().parse().unwrap_or(u32::MAX);
    let seen = Seen { effect, fence, key, window_ms: plan.window_ms(kind), fate };
    let answer = send(&stage, packet, seen);
    if stands_still {
        tokio::spawn(pause(stage.clone(), life.clone(), still_ms));
    }
    if panics_after {
        panic_quietly();
    }
    let mut patience = Patience { stage: stage.clone(), packet, effect, is_over: false };
    let heard = answer.await;
    patience.is_over = true;
    life.pass(&stage).await;
    match heard {
        Ok(Heard::Confirmed) => Ok(DeliveryEnd::Delivered(Delivered::known_as("simulated"))),
        Ok(Heard::Refused) => Ok(DeliveryEnd::rejected("refused")),
        Ok(Heard::TurnedAway) => Ok(DeliveryEnd::no_effect("turned away")),
        Ok(Heard::Error) => Ok(DeliveryEnd::unknown("an error")),
        Err(_) => Err("the connection broke".into()),
    }
}

/// Holds whatever enters or leaves a process for a while.
pub(super) async fn pause(stage: Stage, life: Life, ms: u64) {
    stage.record(What::Paused { gateway: life.gateway });
    life.pause_until(stage.now_ms() + ms);
    // Its parts notice within a moment that it goes on.
    stage.sleep(ms + 100).await;
    stage.record(What::Resumed { gateway: life.gateway });
}

fn fence_of(payload: &Bytes) -> u32 {
    payload.as_ref().try_into().map_or(0, u32::from_be_bytes)
}

/// Notes that nobody waits for an answer any more.
struct Patience {
    stage: Stage,
    packet: u16,
    effect: u8,
    is_over: bool,
}

impl Drop for Patience {
    fn drop(&mut self) {
        if !self.is_over {
            let Self { packet, effect, .. } = *self;
            self.stage.with(|state| state.note(EffectEvent::GivenUp { packet, effect }));
        }
    }
}

fn draw_fate(stage: &Stage, plan: &EffectPlan, kind: u8, chance: &mut Chance) -> PacketFate {
    let is_lost = stage.strikes(chance, Kind::UpstreamLost, 8);
    let is_late = stage.strikes(chance, Kind::UpstreamSlow, 15);
    let is_slow = stage.strikes(chance, Kind::UpstreamSlow, 15);
    let is_answer_lost = stage.strikes(chance, Kind::ClientLost, 15);
    let is_turned_away = stage.strikes(chance, Kind::UpstreamErrors, 15);
    let is_error = stage.strikes(chance, Kind::UpstreamErrors, 12);
    let fails_before = stage.strikes(chance, Kind::UpstreamErrors, 8);
    let is_doubled =
        stage.strikes(chance, Kind::RequestTwice, 15) && plan.resend_for(kind).is_some();
    let late_ms = chance.scaled(10, plan.way_max_ms);
    let slow_ms = chance.scaled(10, plan.work_max_ms);
    let copy_ms = chance.between(1, plan.way_max_ms);
    let way_ms = if is_late { late_ms } else { chance.between(1, 20) };
    PacketFate {
        way_ms: (!is_lost).then_some(way_ms),
        copy_ms: is_doubled.then_some(copy_ms),
        is_turned_away,
        work_ms: if is_slow { slow_ms } else { chance.between(1, 20) },
        back_ms: (!is_answer_lost).then(|| chance.between(1, 20)),
        is_error,
        fails_before,
    }
}

/// Sends a packet. It arrives whoever goes away. The answer to a copy reaches nobody.
fn send(stage: &Stage, packet: u16, seen: Seen) -> oneshot::Receiver<Heard> {
    let (reply, answer) = oneshot::channel();
    match seen.fate.way_ms {
        Some(way_ms) => {
            travel(stage, packet, seen, way_ms, Some(reply));
            if let Some(copy_ms) = seen.fate.copy_ms {
                travel(stage, packet, seen, copy_ms, None);
            }
        }
        None => stage.with(|state| state.outbox.unanswered.push(reply)),
    }
    answer
}

fn travel(
    stage: &Stage,
    packet: u16,
    seen: Seen,
    way_ms: u64,
    reply: Option<oneshot::Sender<Heard>>,
) {
    let stage = stage.clone();
    stage.with(|state| state.outbox.packets_on_the_way += 1);
    tokio::spawn(async move {
        stage.sleep(way_ms).await;
        let arrival = stage.with(|state| {
            let now = state.now_ms();
            state.outbox.receivers.arrives(&seen, now)
        });
        let heard = match arrival {
            Arrival::Works => {
                stage.sleep(seen.fate.work_ms).await;
                stage.with(|state| {
                    state.outbox.receivers.does(&seen);
                    state.note(EffectEvent::Happened { packet, effect: seen.effect });
                });
                if seen.fate.is_error { Heard::Error } else { Heard::Confirmed }
            }
            Arrival::Confirms => Heard::Confirmed,
            Arrival::InUse | Arrival::Fails | Arrival::Bounces => Heard::Error,
            Arrival::Refuses => Heard::Refused,
            Arrival::TurnsAway => Heard::TurnedAway,
        };
        stage.with(|state| state.outbox.packets_on_the_way -= 1);
        match (seen.fate.back_ms, reply) {
            (Some(back_ms), Some(reply)) => {
                stage.sleep(back_ms).await;
                // Its sender may be gone.
                let _ = reply.send(heard);
            }
            (None, Some(reply)) => stage.with(|state| state.outbox.unanswered.push(reply)),
            (_, None) => {}
        }
    });
}
