//! What has a provider told, and was it heeded?

use retrysafe_core::record::Standing;

use super::{Checker, Sometimes};
use crate::invariant::Invariant as I;

impl Checker {
    /// A lookup was answered. What it shows may be behind what was done.
    pub(super) fn looked(&mut self, key: u8, fence: u32, found: bool) {
        let about = (key, fence);
        if found {
            return self.shown.push(about);
        }
        let is_done = self.execs.iter().any(|it| (it.key, it.fence) == about && it.effect);
        if is_done {
            self.reach(Sometimes::LookupLags);
        }
        if self.shown.contains(&about) {
            self.reach(Sometimes::LookupsContradict);
        }
    }

    /// A report of the provider was acknowledged.
    pub(super) fn notice_kept(&mut self, key: u8, fence: u32, again: bool) {
        if again {
            self.reach(Sometimes::NoticeTwice);
        }
        let live = self.live(key);
        let is_early =
            live.is_some_and(|live| live.fence == fence && live.standing == Standing::InProgress);
        let is_late = live.is_none_or(|live| live.fence > fence)
            || live.is_some_and(|live| live.standing == Standing::Completed);
        if is_early {
            self.reach(Sometimes::NoticeEarly);
        } else if is_late {
            self.reach(Sometimes::NoticeAfter);
        }
        self.kept_notices.push((key, fence));
    }

    /// A verdict goes by an effect: perhaps it was reported.
    pub(super) fn decided_by_effect(&mut self, key: u8, fence: u32) {
        if self.kept_notices.contains(&(key, fence)) {
            self.reach(Sometimes::NoticeDecides);
        }
    }

    /// R1: when all is over, nothing is unknown that an acknowledged report is about.
    pub(super) fn notices_were_heeded(&mut self) {
        for at in 0..self.kept_notices.len() {
            let Some((key, fence)) = self.kept_notices.get(at).copied() else { continue };
            let is_unknown = self
                .live(key)
                .is_some_and(|live| live.fence == fence && live.standing == Standing::Unknown);
            self.require(!is_unknown, I::R1, key);
        }
    }
}
