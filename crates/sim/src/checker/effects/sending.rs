//! What may be sent to a receiver, and how often may it happen?

use super::{Checker, ClaimSeen, I, MarkedSeen, Place, Sometimes};

impl Checker {
    pub(super) fn effect_sent(&mut self, effect: u8, fence: u32, (worker, epoch): (u8, u16)) {
        let at = self.at;
        let deadline_ms = self.rules.effects.map_or(0, |plan| plan.deadline_ms);
        let seen = *self.outbox.effect(effect);
        self.require(seen.is_committed, I::O2, effect);
        let is_turn = self.is_its_turn(effect);
        self.require(is_turn, I::O6, effect);
        let is_alive = self.is_alive(worker, epoch);
        let Some(claim) = self.outbox.claim(effect, fence) else {
            self.violate(I::O8, Some(effect));
            return;
        };
        let ClaimSeen { worker: owner, epoch: life, marked, is_sent, .. } = *claim;
        claim.is_sent = true;
        let is_owner = (owner, life) == (worker, epoch) && is_alive;
        let is_in_time = marked.is_some_and(|MarkedSeen { at: since, lease_left, resend_left }| {
            let passed = at - since;
            passed + deadline_ms < lease_left && resend_left.is_none_or(|left| passed < left)
        });
        self.require(is_owner && !is_sent && is_in_time, I::O8, effect);
        if seen.mark.is_some_and(|mark| mark.set_by != fence) {
            self.reach(Sometimes::EffectResent);
        }
    }

    pub(super) fn effect_happened(&mut self, packet: u16, effect: u8) {
        let seen = self.outbox.effect(effect);
        seen.happened = seen.happened.saturating_add(1);
        let seen = *seen;
        self.require(seen.happened == 1, I::O1, effect);
        let is_hidden = matches!(seen.place, Place::Dead | Place::Cancelled);
        self.require(!is_hidden, I::O4, effect);
        let is_turn = self.is_its_turn(effect);
        self.require(is_turn, I::O6, effect);
        if self.outbox.given_up.contains(&packet) {
            self.reach(Sometimes::EffectLate);
        }
    }
}
