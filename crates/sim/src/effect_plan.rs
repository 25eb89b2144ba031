//! Which effects does a history deliver, and to whom?
//!
//! A share of the histories is about the outbox: transactions stage effects of one or two kinds, some of them into
//! lanes, and workers deliver them. The receiver of a kind remembers our key for a while, takes no key, or forgets it
//! too soon to be of use. For how long an effect may be sent again is said by the core's own [`KeyMemory`].

use std::fmt;
use std::time::Duration;

use retrysafe_core::machine::flows::KeyMemory;

use crate::chance::Chance;

/// How many kinds of effects there are at the most.
pub const KINDS: u8 = 2;

/// How many effects are staged at the most.
pub const EFFECTS: u8 = 10;

/// What a history of effects is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectPlan {
    pub workers: u8,
    pub effects: u8,
    pub kinds: u8,
    pub lanes: u8,
    /// How long the receiver of each kind remembers a key from its first use on. None if it takes none.
    pub windows_ms: [Option<u64>; KINDS as usize],
    pub lease_ms: u64,
    /// How long one delivery may take.
    pub deadline_ms: u64,
    /// How long a packet may be on its way. A pause between the check and the packet counts as a part of it: that is
    /// the residue which the margin is for.
    pub way_max_ms: u64,
    /// How long a receiver may work before its effect.
    pub work_max_ms: u64,
    /// By how much the store's clock may be turned back, all in all.
    pub skew_ms: u64,
    pub failures_max: u32,
    pub crashes_max: u32,
    /// How many effects a worker has under way at the most.
    pub at_once: usize,
    /// Whether a person decides what is unknown.
    pub operator: bool,
    /// Whether a receiver can say that what was sent so far will never be done.
    pub burns: bool,
}

impl EffectPlan {
    /// A plan by chance, for leases of this length.
    pub fn draw(chance: &mut Chance, lease_ms: u64) -> Self {
        let deadline_ms = chance.between(lease_ms / 10, lease_ms / 3);
        let crashes_max = chance.between(2, 4) as u32;
        Self::of(chance, lease_ms, deadline_ms, crashes_max)
    }

    /// A plan by chance, with the lengths that the worker which ships makes of a deadline.
    pub fn draw_shipped(chance: &mut Chance) -> Self {
        let deadline_ms = chance.scaled(1_000, 8_000);
        Self::of(chance, (3 * deadline_ms).max(15_000), deadline_ms, 5)
    }

    fn of(chance: &mut Chance, lease_ms: u64, deadline_ms: u64, crashes_max: u32) -> Self {
        let plan = Self {
            workers: chance.between(1, 3) as u8,
            effects: chance.between(2, u64::from(EFFECTS)) as u8,
            kinds: chance.between(1, u64::from(KINDS)) as u8,
            lanes: chance.below(3) as u8,
            windows_ms: [None; KINDS as usize],
            lease_ms,
            deadline_ms,
            way_max_ms: lease_ms,
            work_max_ms: lease_ms,
            skew_ms: lease_ms / 2,
            failures_max: chance.between(2, 6) as u32,
            crashes_max,
            at_once: chance.between(1, 6) as usize,
            operator: chance.percent(60),
            burns: chance.percent(50),
        };
        Self { windows_ms: [plan.draw_window(chance), plan.draw_window(chance)], ..plan }
    }

    fn draw_window(&self, chance: &mut Chance) -> Option<u64> {
        let least = self.lease_ms + self.deadline_ms + self.margin_ms();
        match chance.below(10) {
            0..6 => Some(least + chance.scaled(self.lease_ms / 4, 8 * self.lease_ms)),
            6 => Some(chance.between(self.lease_ms / 2, least)),
            _ => None,
        }
    }

    /// How long a packet may be on its way, together with the difference between the clocks.
    pub const fn margin_ms(&self) -> u64 {
        self.way_max_ms + self.skew_ms
    }

    pub fn window_ms(&self, kind: u8) -> Option<u64> {
        self.windows_ms.get(usize::from(kind)).copied().flatten()
    }

    /// For how long after its sent mark an effect may be sent again, by the rules that ship.
    pub fn resend_for(&self, kind: u8) -> Option<Duration> {
        let memory = KeyMemory {
            window: Duration::from_millis(self.window_ms(kind)?),
            lease_max: Duration::from_millis(self.lease_ms),
            deadline: Duration::from_millis(self.deadline_ms),
            longest_way: Duration::from_millis(self.margin_ms()),
            skew: Duration::ZERO,
        };
        memory.repeatable_for()
    }

    /// How long after an effect was first seen unknown nothing of it can still arrive: its worker believes in its lease,
    /// its packet is on its way, the receiver works, and a second for good measure.
    pub const fn settle_ms(&self) -> u64 {
        self.lease_ms + self.way_max_ms + self.work_max_ms + 1_000
    }

    /// How long after everything has healed each effect must have come to an end.
    pub const fn liveness_ms(&self) -> u64 {
        40 * self.lease_ms + self.settle_ms() + 300_000
    }
}

impl fmt::Display for EffectPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "effects={} workers={} kinds={} lanes={} windows={:?}ms resend_for={:?},{:?} lease={}ms deadline={}ms \
             failures_max={} crashes_max={} at_once={} operator={} burns={}",
            self.effects,
            self.workers,
            self.kinds,
            self.lanes,
            self.windows_ms,
            self.resend_for(0),
            self.resend_for(1),
            self.lease_ms,
            self.deadline_ms,
            self.failures_max,
            self.crashes_max,
            self.at_once,
            self.operator,
            self.burns,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_reach_every_kind_of_receiver() {
        let mut chance = Chance::of(1, 1);
        let plans: Vec<_> = (0..500).map(|_| EffectPlan::draw(&mut chance, 10_000)).collect();
        let has = |is_so: fn(&EffectPlan) -> bool| plans.iter().any(is_so);
        assert!(has(|plan| plan.window_ms(0).is_none()), "takes no key");
        assert!(has(|plan| plan.resend_for(0).is_some()), "remembers");
        assert!(
            has(|plan| plan.window_ms(1).is_some() && plan.resend_for(1).is_none()),
            "forgets too soon"
        );
    }
}
