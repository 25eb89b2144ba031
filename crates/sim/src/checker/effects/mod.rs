//! What may become of an effect?
//!
//! The rules about the outbox: who may write what, what a sent mark permits, what may be sent when, and where an effect
//! may end. [`writes`] judges what the store has applied, [`sending`] what reaches a receiver; histories of requests never
//! come here.

mod sending;
mod writes;

use super::{Checker, Sometimes};
use crate::history::{EffectEvent, EffectMark, Place};
use crate::invariant::Invariant as I;
use crate::options::GATEWAYS;

/// What is known of all effects.
#[derive(Default)]
pub(super) struct OutboxSeen {
    effects: Vec<EffectSeen>,
    /// What is told of an effect that cannot be.
    nobody: EffectSeen,
    claims: Vec<ClaimSeen>,
    /// Packets that nobody waits for any more.
    given_up: Vec<u16>,
    workers: [WorkerSeen; GATEWAYS as usize],
    pub(super) jumped_at: Option<u64>,
}

/// One effect.
#[derive(Clone, Copy)]
struct EffectSeen {
    is_committed: bool,
    lane: Option<u8>,
    place: Place,
    /// Ready: from when on; leased: until when; by the store's clock.
    at: u64,
    fence: u32,
    mark: Option<EffectMark>,
    happened: u8,
}

/// One claim of a worker.
#[derive(Clone, Copy)]
struct ClaimSeen {
    effect: u8,
    fence: u32,
    worker: u8,
    epoch: u16,
    /// When, by the recorder's clock.
    at: u64,
    marked: Option<MarkedSeen>,
    is_sent: bool,
}

/// What a worker was told when it marked.
#[derive(Clone, Copy)]
struct MarkedSeen {
    at: u64,
    lease_left: u64,
    resend_left: Option<u64>,
}

#[derive(Clone, Copy, Default)]
struct WorkerSeen {
    is_paused: bool,
    /// When something last went wrong between it and the store, or it went on after a pause.
    troubled_at: Option<u64>,
}

impl EffectMark {
    fn permits(&self, now: u64) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

impl Default for EffectSeen {
    fn default() -> Self {
        Self {
            is_committed: false,
            lane: None,
            place: Place::Waiting,
            at: 0,
            fence: 0,
            mark: None,
            happened: 0,
        }
    }
}

impl OutboxSeen {
    pub(super) fn clear(&mut self) {
        self.effects.clear();
        self.claims.clear();
        self.given_up.clear();
        self.workers = Default::default();
        self.jumped_at = None;
    }

    pub(super) fn pauses(&mut self, worker: u8, is_paused: bool, at: u64) {
        if let Some(worker) = self.workers.get_mut(usize::from(worker)) {
            *worker = WorkerSeen { is_paused, troubled_at: Some(at) };
        }
    }

    fn effect(&mut self, effect: u8) -> &mut EffectSeen {
        let at = usize::from(effect);
        if self.effects.len() <= at {
            self.effects.resize(at + 1, EffectSeen::default());
        }
        self.effects.get_mut(at).unwrap_or(&mut self.nobody)
    }

    fn claim(&mut self, effect: u8, fence: u32) -> Option<&mut ClaimSeen> {
        self.claims.iter_mut().rfind(|claim| claim.effect == effect && claim.fence == fence)
    }
}

impl Checker {
    pub(super) fn effect_event(&mut self, event: &EffectEvent) {
        match *event {
            EffectEvent::Staged { effect, lane, is_waiting, .. } => {
                let place = if is_waiting { Place::Waiting } else { Place::Ready };
                *self.outbox.effect(effect) =
                    EffectSeen { is_committed: true, lane, place, ..EffectSeen::default() };
            }
            EffectEvent::RolledBack { effect } => {
                self.outbox.effect(effect);
                self.reach(Sometimes::EffectRolledBack);
            }
            EffectEvent::Wrote(wrote) => self.effect_wrote(&wrote),
            EffectEvent::Refused { by, .. } => self.effect_write_refused(by),
            EffectEvent::Troubled { worker } => {
                if let Some(worker) = self.outbox.workers.get_mut(usize::from(worker)) {
                    worker.troubled_at = Some(self.at);
                }
            }
            EffectEvent::TooLate { .. } => self.reach(Sometimes::EffectTooLate),
            EffectEvent::Sent { effect, fence, worker, epoch, .. } => {
                self.effect_sent(effect, fence, (worker, epoch));
            }
            EffectEvent::GivenUp { packet, .. } => self.outbox.given_up.push(packet),
            EffectEvent::Happened { packet, effect } => self.effect_happened(packet, effect),
        }
    }

    /// O6: whether all that come before it in its lane are over.
    fn is_its_turn(&self, effect: u8) -> bool {
        let all = &self.outbox.effects;
        let lane = all.get(usize::from(effect)).and_then(|effect| effect.lane);
        lane.is_none()
            || all.iter().take(usize::from(effect)).all(|other| {
                let is_over = matches!(other.place, Place::Delivered | Place::Cancelled);
                !other.is_committed || other.lane != lane || is_over
            })
    }

    pub(super) fn worker_crashed(&mut self, worker: u8) {
        let between = self.outbox.claims.iter().any(|claim| {
            let effect = self.outbox.effects.get(usize::from(claim.effect));
            let is_untold = effect.is_some_and(|effect| {
                let is_held = effect.place == Place::Leased && effect.fence == claim.fence;
                is_held && effect.happened > 0
            });
            claim.worker == worker && claim.is_sent && is_untold
        });
        if between {
            self.reach(Sometimes::EffectCrashAfter);
        }
    }

    /// O2: everything that was committed has come to an end, or a lane stops at one that a person must look at.
    pub(super) fn effects_ended(&mut self) {
        let has_operator = self.rules.effects.is_some_and(|plan| plan.operator);
        for number in 0..self.outbox.effects.len() as u8 {
            let effect = *self.outbox.effect(number);
            let ends = match effect.place {
                _ if !effect.is_committed => true,
                Place::Delivered | Place::Cancelled | Place::Dead => true,
                Place::Unknown => !has_operator,
                Place::Waiting => self.stops_behind(number, has_operator),
                Place::Ready | Place::Leased => false,
            };
            self.require(ends, I::O2, number);
        }
    }

    /// Whether an effect waits behind one that stops its lane.
    fn stops_behind(&self, effect: u8, has_operator: bool) -> bool {
        let all = &self.outbox.effects;
        let lane = all.get(usize::from(effect)).and_then(|effect| effect.lane);
        all.iter().take(usize::from(effect)).any(|other| {
            let stops = match other.place {
                Place::Dead => true,
                Place::Unknown => !has_operator,
                Place::Waiting
                | Place::Ready
                | Place::Leased
                | Place::Delivered
                | Place::Cancelled => false,
            };
            other.is_committed && other.lane == lane && stops
        })
    }
}
