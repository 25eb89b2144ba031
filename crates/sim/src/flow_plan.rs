//! Which flow does a history run, and whom does the flow call?
//!
//! A share of the histories executes its requests as flows of two to four phases. Transactions write rows
//! in the commit of their recovery point; calls, which are *charges* here, go to a provider that remembers
//! our key for a while, takes no key, or forgets it too soon to be of use. How long a call may be repeated
//! is said by the core's own [`KeyMemory`].

use std::fmt;
use std::time::Duration;

use retrysafe_core::machine::flows::KeyMemory;

use crate::chance::Chance;

/// One phase of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// A transaction.
    Tx,
    /// A call to the provider.
    Charge,
}

/// The lists of phases that are drawn. The last phase is a transaction, whose commit holds the answer.
const SHAPES: [&[PhaseKind]; 6] = {
    use PhaseKind::{Charge, Tx};
    [
        &[Tx, Charge, Tx],
        &[Charge, Tx],
        &[Tx, Charge, Tx, Tx],
        &[Tx, Charge, Charge, Tx],
        &[Charge, Charge, Tx],
        &[Charge, Tx, Charge, Tx],
    ]
};

/// The flow of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPlan {
    /// Its phases.
    pub shape: &'static [PhaseKind],
    /// How long the provider remembers a key from its first use on. None if it takes none.
    pub window_ms: Option<u64>,
    /// How long one charge may take.
    pub deadline_ms: u64,
    /// How long a packet may be on its way. A pause between the check and the packet counts as a part
    /// of it: that is the residue which the margin is for.
    pub way_max_ms: u64,
    /// How long the provider may work before its effect.
    pub work_max_ms: u64,
    /// By how much the store's clock may be turned back, all in all.
    pub skew_ms: u64,
    /// Whether a phase may make up other bytes when it is run again.
    pub varies: bool,
    /// Whether the provider declines some charges.
    pub declines: bool,
    /// Which versions of the flow the processes know.
    pub versions: Versions,
    /// How long a flow is left to its caller before the completer goes on with it.
    pub patience_ms: u64,
    lease_max_ms: u64,
}

/// Which versions of the flow the processes know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// All know one version.
    One,
    /// The first process is older than the others, up to the healing.
    FirstIsOld,
    /// The same, and after the healing all are old: what the newer one has begun is held.
    RolledBack,
}

/// The version that all know.
pub const OLD_VERSION: u32 = 1;

/// The version that only newer processes know.
pub const NEW_VERSION: u32 = 2;

impl FlowPlan {
    /// A flow by chance, for leases of this length.
    pub fn draw(chance: &mut Chance, lease_ms: u64, lease_max_ms: u64) -> Self {
        let (first, others) = (SHAPES.first().copied().unwrap_or_default(), SHAPES.get(1..));
        let shape = chance.pick(first, others.unwrap_or_default());
        let deadline_ms = chance.between(lease_ms / 10, lease_ms / 3);
        let (way_max_ms, work_max_ms, skew_ms) = (lease_ms, lease_ms, lease_ms);
        let margin = lease_max_ms + deadline_ms + way_max_ms + skew_ms;
        let window_ms = match chance.below(10) {
            0..6 => Some(margin + chance.scaled(lease_ms / 2, 8 * lease_ms)),
            6 => Some(chance.between(lease_ms / 2, margin)),
            _ => None,
        };
        Self {
            shape,
            window_ms,
            deadline_ms,
            way_max_ms,
            work_max_ms,
            skew_ms,
            varies: chance.percent(30),
            declines: chance.percent(25),
            versions: chance
                .pick(Versions::One, &[Versions::One, Versions::FirstIsOld, Versions::RolledBack]),
            patience_ms: chance.scaled(10, 2 * lease_ms),
            lease_max_ms,
        }
    }

    /// A transaction, a charge and a last transaction, for histories that are written by hand.
    #[cfg(test)]
    pub fn of_tests(window_ms: Option<u64>, lease_ms: u64) -> Self {
        Self {
            shape: &[PhaseKind::Tx, PhaseKind::Charge, PhaseKind::Tx],
            window_ms,
            deadline_ms: lease_ms / 3,
            way_max_ms: lease_ms,
            work_max_ms: lease_ms,
            skew_ms: lease_ms,
            varies: false,
            declines: false,
            versions: Versions::One,
            patience_ms: 0,
            lease_max_ms: lease_ms,
        }
    }

    /// For how long after its first-sent mark a charge may be sent again, by the rules that ship.
    pub fn repeatable_for(&self) -> Option<Duration> {
        let memory = KeyMemory {
            window: Duration::from_millis(self.window_ms?),
            lease_max: Duration::from_millis(self.lease_max_ms),
            deadline: Duration::from_millis(self.deadline_ms),
            longest_way: Duration::from_millis(self.way_max_ms),
            skew: Duration::from_millis(self.skew_ms),
        };
        memory.repeatable_for()
    }

    /// What a phase is.
    pub fn phase(&self, phase: u16) -> Option<PhaseKind> {
        self.shape.get(usize::from(phase)).copied()
    }

    /// Whether a phase is the last one.
    pub fn is_last(&self, phase: u16) -> bool {
        usize::from(phase) + 1 == self.shape.len()
    }
}

impl Versions {
    /// The versions that a process knows, the newest first.
    pub fn known_to(self, gateway: u8, is_healed: bool) -> &'static [u32] {
        let is_old = match self {
            Self::One => true,
            Self::FirstIsOld => gateway == 0 && !is_healed,
            Self::RolledBack => gateway == 0 || is_healed,
        };
        if is_old { &[OLD_VERSION] } else { &[NEW_VERSION, OLD_VERSION] }
    }
}

impl fmt::Display for FlowPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "flow={:?} window={:?}ms repeatable_for={:?} deadline={}ms varies={} declines={} \
             versions={:?} patience={}ms",
            self.shape,
            self.window_ms,
            self.repeatable_for(),
            self.deadline_ms,
            self.varies,
            self.declines,
            self.versions,
            self.patience_ms,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_reach_every_kind_of_provider_and_every_shape() {
        let mut chance = Chance::of(1, 1);
        let plans: Vec<_> = (0..500).map(|_| FlowPlan::draw(&mut chance, 1_000, 2_000)).collect();
        let has = |is_so: fn(&FlowPlan) -> bool| plans.iter().any(is_so);
        assert!(has(|plan| plan.window_ms.is_none()), "takes no key");
        assert!(has(|plan| plan.repeatable_for().is_some()), "remembers");
        assert!(
            has(|plan| plan.window_ms.is_some() && plan.repeatable_for().is_none()),
            "forgets too soon"
        );
        for shape in SHAPES {
            assert!(plans.iter().any(|plan| plan.shape == shape), "{shape:?}");
        }
    }

    #[test]
    fn a_process_that_was_rolled_back_knows_the_old_version_alone() {
        assert_eq!(Versions::RolledBack.known_to(1, false), [NEW_VERSION, OLD_VERSION]);
        assert_eq!(Versions::RolledBack.known_to(1, true), [OLD_VERSION]);
        assert_eq!(Versions::FirstIsOld.known_to(0, false), [OLD_VERSION]);
        assert_eq!(Versions::FirstIsOld.known_to(0, true), [NEW_VERSION, OLD_VERSION]);
    }
}
