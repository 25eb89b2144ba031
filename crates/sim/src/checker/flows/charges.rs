//! What may be sent to a provider, and how often may it take effect?
//!
//! Charges are counted by what they are for: one call of one generation of a record, whoever sends it and
//! however often. What an operator has released counts anew.

use crate::checker::{Checker, Live, Sometimes};
use crate::history::Found;
use crate::invariant::Invariant as I;

/// A packet to the provider.
#[derive(Clone, Copy)]
pub struct ChargeSeen {
    key: u8,
    generation: u16,
    phase: u8,
    fence: u32,
    digest: u8,
    sent_at: u64,
    is_made: bool,
    is_declined: bool,
    /// Proof says that it was not made and cannot be any more.
    is_disproved: bool,
    /// An operator has said so, rightly or not.
    is_released: bool,
}

impl Checker {
    pub(in crate::checker) fn charge_sent(
        &mut self,
        charge: u16,
        key: u8,
        phase: u8,
        fence: u32,
        digest: u8,
        by: (u8, u16),
    ) {
        let Some(grant) = self.grant(Some(key), fence).and_then(|at| self.grants.get_mut(at))
        else {
            return self.violate(I::F4, Some(key));
        };
        grant.sent = true;
        let grant = *grant;
        let mine = grant.acknowledged && (grant.gateway, grant.epoch) == by;
        self.require(mine && self.is_alive(by.0, by.1), I::F4, key);
        // A clock that was turned back makes a lease longer, as its owner reads it.
        self.require(self.at < grant.lease_ends_at + self.clock_turned_ms, I::F4, key);
        let is_its = self.live(key).is_some_and(|live| live.fence == fence);
        let mark = self.flow_of(key).filter(|flow| flow.phase == phase).and_then(|it| it.mark);
        if is_its {
            self.require(mark.is_some(), I::F4, key);
            self.require(mark.is_none_or(|mark| mark.digest == digest), I::F5, key);
        }
        let seen = ChargeSeen {
            key,
            generation: grant.generation,
            phase,
            fence,
            digest,
            sent_at: self.at,
            is_made: false,
            is_declined: false,
            is_disproved: false,
            is_released: false,
        };
        self.may_be_sent_again(seen);
        if usize::from(charge) == self.charges.len() {
            self.charges.push(seen);
        }
    }

    /// The same call again: with the same bytes, and while its provider surely remembers the first.
    fn may_be_sent_again(&mut self, again: ChargeSeen) {
        let first = self
            .charges
            .iter()
            .find(|it| it.is_for(again.generation, again.phase) && it.counts() && !it.is_disproved)
            .copied();
        let (Some(first), Some(plan)) = (first, self.rules.flow) else { return };
        self.reach(Sometimes::FlowChargeRepeated);
        self.require(first.digest == again.digest, I::F5, again.key);
        let is_remembered = plan
            .window_ms
            .is_some_and(|window| again.sent_at + plan.way_max_ms < first.sent_at + window);
        self.require(is_remembered, I::F6, again.key);
    }

    /// The effect: one for each call of a generation.
    pub(in crate::checker) fn charge_made(&mut self, charge: u16) {
        let Some(made) = self.charges.get_mut(usize::from(charge)) else {
            return self.violate(I::F1, None);
        };
        made.is_made = true;
        let made = *made;
        self.require(!made.is_disproved, I::S12, made.key);
        let count = self
            .charges
            .iter()
            .filter(|it| it.is_for(made.generation, made.phase) && it.is_made && it.counts())
            .count();
        self.require(count <= 1, I::F1, made.key);
        let is_late = self.live(made.key).is_some_and(|live| live.fence != made.fence);
        if is_late {
            self.reach(Sometimes::FlowLateCharge);
        }
    }

    pub(in crate::checker) fn charge_declined(&mut self, charge: u16) {
        if let Some(declined) = self.charges.get_mut(usize::from(charge)) {
            declined.is_declined = true;
        }
    }

    /// An owner says that nothing has left; nothing of its own has.
    pub(in crate::checker) fn charge_not_sent(&mut self, key: u8, phase: u8, fence: u32) {
        let Some(live) = self.live(key).filter(|live| live.fence == fence) else { return };
        self.require(!self.has_sent(live, phase, fence), I::F3, key);
        let mark = self.flow_of(key).and_then(|flow| flow.mark);
        if mark.is_some_and(|mark| mark.set_by != fence) {
            self.reach(Sometimes::FlowNotSentByAnother);
        }
    }

    /// Whether an owner has sent a charge in this phase.
    pub(super) fn has_sent(&self, live: Live, phase: u8, fence: u32) -> bool {
        self.charges.iter().any(|it| it.is_for(live.generation, phase) && it.fence == fence)
    }

    /// The output of a call is that of a charge which was made for it.
    pub(super) fn is_result_of_its_call(&mut self, live: Live, phase: u8, output: u16, key: u8) {
        let charge = self.charges.get(usize::from(output));
        let is_made = charge.is_some_and(|it| it.is_for(live.generation, phase) && it.is_made);
        self.require(is_made, I::F8, key);
    }

    /// Whether an answer is the provider's own about this call: that it has declined.
    pub(super) fn is_decline(&self, live: Live, phase: u8, body: u16) -> bool {
        let charge = self.charges.get(usize::from(body));
        charge.is_some_and(|it| it.is_for(live.generation, phase) && it.is_declined)
    }

    /// A verdict says that the call was not executed and cannot be any more.
    pub(super) fn proven_unmade(&mut self, live: Live, phase: u8, evidence: Found) {
        let is_guess = evidence == Found::OperatorSaysNot;
        let mut contradicts = false;
        for it in self.charges.iter_mut().filter(|it| it.is_for(live.generation, phase)) {
            if is_guess {
                it.is_released = true;
            } else if it.counts() {
                contradicts |= it.is_made;
                it.is_disproved = true;
            }
        }
        if contradicts && let Some(generation) = self.generation(live.generation) {
            let key = generation.key;
            self.violate(I::S13, Some(key));
        }
    }
}

impl ChargeSeen {
    fn is_for(&self, generation: u16, phase: u8) -> bool {
        (self.generation, self.phase) == (generation, phase)
    }

    fn counts(&self) -> bool {
        !self.is_released
    }
}
