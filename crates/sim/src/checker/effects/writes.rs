//! What may the store write about an effect, for whom?

use super::{Checker, ClaimSeen, EffectSeen, I, MarkedSeen, Place, Sometimes};
use crate::history::{EffectRole, EffectWrote, EndSeen, EvidenceSeen};

impl Checker {
    pub(super) fn effect_wrote(&mut self, wrote: &EffectWrote) {
        let number = wrote.effect;
        let before = *self.outbox.effect(number);
        self.require(before.is_committed, I::O2, number);
        self.writer_may(wrote, &before);
        self.mark_may_change(wrote, &before);
        self.place_is_justified(wrote, &before);
        let EffectWrote { place, at, fence, mark, .. } = *wrote;
        *self.outbox.effect(number) = EffectSeen { place, at, fence, mark, ..before };
        if matches!(wrote.by, EffectRole::Follow | EffectRole::FollowLate) {
            let is_turn = self.is_its_turn(number);
            self.require(is_turn, I::O6, number);
        }
    }

    /// O7: who may write, from where, and with which fence.
    fn writer_may(&mut self, wrote: &EffectWrote, before: &EffectSeen) {
        let number = wrote.effect;
        let is_leased = before.place == Place::Leased;
        let is_undecided = is_leased || before.place == Place::Unknown;
        let may = match wrote.by {
            EffectRole::Claim { worker, epoch } => {
                self.claimed(wrote, worker, epoch);
                before.place == Place::Ready && before.at <= wrote.now
            }
            EffectRole::Mark { fence } => {
                self.marked(wrote, before, fence);
                is_leased && before.fence == fence
            }
            EffectRole::Renew { fence } => {
                self.reach(Sometimes::EffectRenewed);
                is_leased && before.fence == fence && wrote.now < before.at
            }
            EffectRole::HandBack { fence } => {
                self.reach(Sometimes::EffectHandedBack);
                is_undecided && before.fence == fence
            }
            EffectRole::Finish { fence, end } => {
                self.finished(wrote, before, end);
                is_undecided && before.fence == fence
            }
            EffectRole::Sweep => {
                self.swept(wrote, before);
                let is_over = is_leased && before.at <= wrote.now;
                let is_forgotten = before.mark.is_some_and(|mark| !mark.permits(wrote.now));
                is_over || before.place == Place::Ready && is_forgotten
            }
            EffectRole::Follow => {
                self.reach(Sometimes::EffectFollows);
                before.place == Place::Waiting
            }
            EffectRole::FollowLate => {
                self.reach(Sometimes::EffectFollowsLate);
                before.place == Place::Waiting
            }
            EffectRole::Cancel => {
                self.reach(Sometimes::EffectCancelled);
                self.require(before.mark.is_none() || before.place == Place::Dead, I::O4, number);
                !matches!(before.place, Place::Delivered | Place::Unknown | Place::Cancelled)
            }
            EffectRole::Requeue => {
                self.reach(Sometimes::EffectRequeued);
                before.place == Place::Dead
            }
            EffectRole::Decide { fence, found } => {
                self.reach(match found {
                    EvidenceSeen::Happened => Sometimes::EffectFoundDone,
                    EvidenceSeen::NoEffect => Sometimes::EffectFoundBurnt,
                    EvidenceSeen::Unwanted => Sometimes::EffectUnwanted,
                    EvidenceSeen::Absence => Sometimes::EffectFoundAbsent,
                });
                before.place == Place::Unknown && before.fence == fence
            }
        };
        let must_rise = match wrote.by {
            EffectRole::Cancel | EffectRole::Requeue | EffectRole::Decide { .. } => true,
            EffectRole::Claim { .. } => wrote.place == Place::Leased,
            EffectRole::Finish { .. } | EffectRole::HandBack { .. } | EffectRole::Sweep => {
                wrote.place == Place::Ready
            }
            EffectRole::Mark { .. }
            | EffectRole::Renew { .. }
            | EffectRole::Follow
            | EffectRole::FollowLate => false,
        };
        let rises = wrote.fence > before.fence || !must_rise && wrote.fence == before.fence;
        self.require(may && rises, I::O7, number);
    }

    fn claimed(&mut self, wrote: &EffectWrote, worker: u8, epoch: u16) {
        let EffectWrote { effect, fence, .. } = *wrote;
        if wrote.place != Place::Leased {
            return;
        }
        let is_remembered = wrote.mark.is_none_or(|mark| mark.permits(wrote.now));
        self.require(is_remembered, I::O8, effect);
        let claims = &self.outbox.claims;
        if claims.iter().any(|claim| claim.effect == effect && claim.worker != worker) {
            self.reach(Sometimes::EffectTakenOver);
        }
        let at = self.at;
        let claim = ClaimSeen { effect, fence, worker, epoch, at, marked: None, is_sent: false };
        self.outbox.claims.push(claim);
    }

    fn marked(&mut self, wrote: &EffectWrote, before: &EffectSeen, fence: u32) {
        let at = self.at;
        let left = |until: u64| until.saturating_sub(wrote.now);
        let marked = MarkedSeen {
            at,
            lease_left: left(before.at),
            resend_left: wrote.mark.and_then(|mark| mark.until).map(left),
        };
        if let Some(claim) = self.outbox.claim(wrote.effect, fence)
            && wrote.place == Place::Leased
        {
            // Asked twice, the worker goes by the answer that it has heard, which may be the first.
            claim.marked = claim.marked.or(Some(marked));
        }
    }

    fn finished(&mut self, wrote: &EffectWrote, before: &EffectSeen, end: EndSeen) {
        if before.place == Place::Unknown {
            self.reach(Sometimes::EffectLateWord);
        }
        match end {
            EndSeen::Rejected => self.reach(Sometimes::EffectRejected),
            EndSeen::NoEffect if wrote.mark.is_some() => self.reach(Sometimes::EffectForeignMark),
            EndSeen::Delivered | EndSeen::NoEffect | EndSeen::NoAnswer => {}
        }
    }

    /// O10: a lease ends without a word only if something has gone wrong with its worker.
    fn swept(&mut self, wrote: &EffectWrote, before: &EffectSeen) {
        let plan = self.rules.effects;
        if plan.is_some_and(|plan| u32::from(wrote.crashes) >= plan.crashes_max) {
            self.reach(Sometimes::EffectPoison);
        }
        if before.place != Place::Leased {
            return;
        }
        let Some(claim) = self.outbox.claim(wrote.effect, before.fence).copied() else { return };
        let has_leapt = self.outbox.jumped_at.is_some_and(|at| at >= claim.at);
        let worker = self.outbox.workers.get(usize::from(claim.worker)).copied();
        let is_troubled = worker.unwrap_or_default().troubled_at.is_some_and(|at| at >= claim.at)
            || worker.is_some_and(|worker| worker.is_paused);
        let is_gone = !self.is_alive(claim.worker, claim.epoch);
        self.require(has_leapt || is_troubled || is_gone, I::O10, wrote.effect);
    }

    /// O9: how a sent mark comes and goes.
    fn mark_may_change(&mut self, wrote: &EffectWrote, before: &EffectSeen) {
        let may = match (before.mark, wrote.mark) {
            (before, after) if before == after => true,
            (None, Some(mark)) => wrote.by == EffectRole::Mark { fence: mark.set_by },
            (Some(mark), None) => match wrote.by {
                EffectRole::Finish { fence, end: EndSeen::NoEffect }
                | EffectRole::HandBack { fence } => fence == mark.set_by,
                EffectRole::Decide { found, .. } => {
                    matches!(found, EvidenceSeen::NoEffect | EvidenceSeen::Absence)
                }
                EffectRole::Claim { .. }
                | EffectRole::Mark { .. }
                | EffectRole::Renew { .. }
                | EffectRole::Finish { .. }
                | EffectRole::Sweep
                | EffectRole::Follow
                | EffectRole::FollowLate
                | EffectRole::Cancel
                | EffectRole::Requeue => false,
            },
            // Sent again, it may be remembered for less time than was said at first, and never for more.
            (Some(mark), Some(after)) => {
                let is_shorter = after.until.is_some() && after.until < mark.until;
                is_shorter
                    && after.set_by == mark.set_by
                    && matches!(wrote.by, EffectRole::Mark { .. })
            }
            (None, None) => false,
        };
        self.require(may, I::O9, wrote.effect);
    }

    fn place_is_justified(&mut self, wrote: &EffectWrote, before: &EffectSeen) {
        let number = wrote.effect;
        let has_happened = before.happened > 0;
        let plan = self.rules.effects;
        let has_failed = plan.is_some_and(|plan| u32::from(wrote.failures) >= plan.failures_max);
        let has_crashed = plan.is_some_and(|plan| u32::from(wrote.crashes) >= plan.crashes_max);
        match wrote.place {
            Place::Waiting | Place::Leased => {}
            Place::Ready => {
                let may_be_sent = wrote.mark.is_none_or(|mark| mark.permits(wrote.now));
                self.require(may_be_sent, I::O8, number);
            }
            Place::Delivered => self.require(has_happened, I::O3, number),
            Place::Cancelled => self.require(!has_happened, I::O4, number),
            Place::Dead => {
                let by_receiver =
                    matches!(wrote.by, EffectRole::Finish { end: EndSeen::Rejected, .. });
                // Whoever has died over it was about to send it, so crashes leave a mark.
                let is_given_up = wrote.mark.is_none() && has_failed;
                self.require(!has_happened && (by_receiver || is_given_up), I::O4, number);
                if is_given_up {
                    self.reach(Sometimes::EffectDead);
                }
            }
            Place::Unknown => {
                let is_over = wrote.mark.is_some_and(|mark| !mark.permits(wrote.now));
                let is_given_up = wrote.mark.is_some() && (has_failed || has_crashed);
                self.require(is_over || is_given_up, I::O5, number);
                self.reach(match wrote.mark.and_then(|mark| mark.until) {
                    None => Sometimes::EffectUnkeyedUnknown,
                    Some(_) if is_over => Sometimes::EffectForgotten,
                    Some(_) => Sometimes::EffectFailedUnknown,
                });
            }
        }
    }

    pub(super) fn effect_write_refused(&mut self, by: EffectRole) {
        match by {
            EffectRole::Finish { .. } => self.reach(Sometimes::EffectLateWordLost),
            EffectRole::Cancel => self.reach(Sometimes::EffectCancelRefused),
            EffectRole::Claim { .. }
            | EffectRole::Mark { .. }
            | EffectRole::Renew { .. }
            | EffectRole::HandBack { .. }
            | EffectRole::Sweep
            | EffectRole::Follow
            | EffectRole::FollowLate
            | EffectRole::Requeue
            | EffectRole::Decide { .. } => {}
        }
    }
}
