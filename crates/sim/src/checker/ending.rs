//! What must hold when all is over?
//!
//! Effects are counted here, because some come late. And here is asked whether anything is stuck:
//! everything has healed, upkeep has run for long enough.

use retrysafe_core::record::Standing;

use super::{Checker, Live, Sometimes};
use crate::history::{CallEnd, STORE_EPOCH_MS};
use crate::invariant::Invariant as I;

/// Messages and rounds of upkeep take time of their own, on top of leases and intervals.
const SLACK_MS: u64 = 2_000;

impl Checker {
    pub(super) fn ended(&mut self) {
        self.count_effects();
        self.everything_was_settled();
        self.calls_were_answered();
        self.nothing_is_stuck();
        self.notices_were_heeded();
    }

    /// S1: of all effects of a generation at most one was not released.
    fn count_effects(&mut self) {
        for number in 0..self.generations.len() {
            let effects: u32 = self
                .grants
                .iter()
                .filter(|grant| usize::from(grant.generation) == number)
                .filter(|grant| !self.was_released(grant))
                .map(|grant| u32::from(grant.effects))
                .sum();
            if let Some(generation) = self.generations.get(number) {
                self.require(effects <= 1, I::S1, generation.key);
            }
        }
    }

    /// S19: whoever was granted an execution and lives has settled it, client or no client.
    fn everything_was_settled(&mut self) {
        for at in 0..self.grants.len() {
            let Some(grant) = self.grants.get(at).copied() else { continue };
            let owes = self.rules.flow.is_none()
                && grant.acknowledged
                && self.is_alive(grant.gateway, grant.epoch)
                && !self.has_given_up(&grant);
            self.require(!owes || grant.asked.is_some(), I::S19, grant.key);
        }
    }

    fn calls_were_answered(&mut self) {
        let healed_at = self.healed_at.unwrap_or(u64::MAX);
        for number in 0..self.calls.len() {
            let Some(call) = self.calls.get(number).copied() else { continue };
            // S38: a client that reports "it did not happen" is right.
            let happened = self.grants.iter().any(|grant| {
                let of_call = self
                    .conns
                    .get(usize::from(grant.conn))
                    .is_some_and(|conn| usize::from(conn.call) == number);
                of_call && grant.effects > 0
            });
            self.require(call.end != Some(CallEnd::GaveUp) || !happened, I::S38, call.key);
            // L2: after the healing, patience ends in an answer, unless a person must decide.
            let waits = self.live(call.key).is_some_and(|live| {
                self.is_dead_letter(live) || self.is_held_for_good(call.key, live)
            });
            let owed = call.began_at >= healed_at && !waits;
            let answered = call.answered || call.end == Some(CallEnd::Done);
            self.require(!owed || answered, I::L2, call.key);
        }
    }

    fn nothing_is_stuck(&mut self) {
        for key in 0..self.keys.len() as u8 {
            let Some(live) = self.live(key) else { continue };
            match live.standing {
                _ if self.is_held_for_good(key, live) => self.reach(Sometimes::FlowHeldForGood),
                // What holds work is the completer's, if nobody comes for it.
                Standing::FailedRetryable => self.require(!self.holds_work(key), I::L1, key),
                Standing::Completed => {}
                Standing::InProgress => self.violate(I::L1, Some(key)),
                Standing::Unknown => {
                    self.require(self.is_dead_letter(live), I::L3, key);
                }
            }
        }
    }

    /// Whether a person must decide, and nobody is there to do so.
    fn is_dead_letter(&self, live: Live) -> bool {
        !self.rules.operator
            && live.standing == Standing::Unknown
            && self.dead_letters.contains(&live.fence)
    }

    /// L1: after the healing a record leaves `in_progress` within its lease and two rounds.
    pub(super) fn left_in_progress(&mut self, key: u8, before: Live) {
        let Some(healed_at) = self.healed_at else { return };
        let stays = self.live(key).is_some_and(|live| live.standing == Standing::InProgress);
        // A flow is handed on in progress, and only its end is asked about.
        let of_flow = self.rules.flow.is_some();
        if before.standing != Standing::InProgress || stays || of_flow {
            return;
        }
        let over =
            before.until.saturating_sub(STORE_EPOCH_MS).saturating_add_signed(-self.clock_offset);
        let bound = over.max(healed_at) + 2 * self.rules.lease_ms + SLACK_MS;
        self.require(self.at <= bound, I::L1, key);
    }
}
