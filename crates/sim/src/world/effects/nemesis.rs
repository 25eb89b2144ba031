//! What happens when, who decides, and when is everything repaired?
//!
//! Effects are staged in bursts, and blows fall around them. A person cancels, requeues, and decides what is unknown, by
//! evidence. At last everything heals, and each effect must come to an end.

use std::time::Duration;

use super::{EffectWorld, Event};
use crate::fault::Fault;
use crate::history::{EvidenceSeen, What};
use crate::options::Kind;

/// A blow of the nemesis.
#[derive(Clone, Copy)]
pub(super) enum Blow {
    Crash { worker: u8, down_ms: u64 },
    Pause { worker: u8, ms: u64 },
    CutOff { worker: u8, ms: u64 },
    Stop { worker: u8, patience_ms: u64 },
    Jump { by: i64 },
    Cancel { effect: u8 },
}

/// What a person has found out about an effect that is unknown.
#[derive(Clone, Copy)]
pub(super) struct Finding {
    effect: u8,
    fence: u32,
    /// When the person first saw it unknown, by a clock that runs on.
    since: u64,
    found: Option<EvidenceSeen>,
}

impl EffectWorld {
    pub(super) fn set_up(&mut self) {
        let plan = self.plan;
        let lease = plan.lease_ms;
        self.receivers.draw_refused(&mut self.chance, plan.effects);
        for worker in 0..plan.workers {
            self.workers.push(Default::default());
            self.boots(worker);
        }
        let mut last = 0;
        for effect in 0..plan.effects {
            let at = self.chance.scaled(1, 4 * lease);
            last = last.max(at);
            let kind = self.chance.below(plan.kinds.into()) as u8;
            let lane = (plan.lanes > 0 && self.chance.percent(60))
                .then(|| self.chance.below(plan.lanes.into()) as u8);
            let delay_ms =
                if self.chance.percent(10) { self.chance.scaled(1, 2 * lease) } else { 0 };
            self.at(at, Event::Stages { lane, kind, delay_ms });
            self.plan_blows(at, effect);
        }
        self.at(lease, Event::Operates);
        let heal_ms = last + self.chance.scaled(lease / 2, 6 * lease);
        self.at(heal_ms, Event::Heals);
    }

    /// Blows around an effect that is staged at this time.
    fn plan_blows(&mut self, at: u64, effect: u8) {
        let lease = self.plan.lease_ms;
        let worker = self.chance.below(self.plan.workers.into()) as u8;
        let ms = self.chance.scaled(20, 3 * lease);
        let far = self.chance.pick(2 * lease, &[12 * lease]);
        let by = self.chance.scaled(1, far) as i64;
        let back = self.chance.scaled(1, lease / 2) as i64;
        let patience_ms = self.chance.scaled(10, lease);
        let blow = match self.chance.below(16) {
            0..3 => Some((Kind::Crash, Blow::Crash { worker, down_ms: ms })),
            3..5 => Some((Kind::Pause, Blow::Pause { worker, ms })),
            5 => Some((Kind::CutOff, Blow::CutOff { worker, ms })),
            6 => Some((Kind::TooLarge, Blow::Stop { worker, patience_ms })),
            7 => Some((Kind::StoreForward, Blow::Jump { by })),
            8 => Some((Kind::StoreBack, Blow::Jump { by: -back })),
            9 | 10 => Some((Kind::Expire, Blow::Cancel { effect })),
            _ => None,
        };
        let spread = self.chance.scaled(1, 2 * lease);
        if let Some((kind, blow)) = blow
            && self.options.kinds.has(kind)
        {
            let number = self.blows.len() as u16;
            self.blows.push(blow);
            self.at(at + spread, Event::Strikes(number));
        }
    }

    pub(super) fn stages(&mut self, lane: Option<u8>, kind: u8, delay_ms: u64) {
        let due = self.store_now().plus(Duration::from_millis(delay_ms));
        let Some(effect) = self.table.stage(kind, lane, due) else {
            // Another transaction holds the lane.
            let again_ms = self.chance.between(1, 20);
            self.after(again_ms, Event::Stages { lane, kind, delay_ms });
            return;
        };
        let open_ms = self.chance.scaled(1, 200);
        let is_committed = !self.chance.percent(8);
        self.after(open_ms, Event::Commits { effect, is_committed });
    }

    pub(super) fn commits(&mut self, effect: u8, is_committed: bool) {
        self.table.end_stage(effect, is_committed);
        if is_committed {
            for worker in 0..self.plan.workers {
                if self.chance.percent(70) {
                    let hint_ms = self.chance.between(1, 60);
                    self.after(hint_ms, Event::Wakes { worker });
                }
            }
        }
    }

    /// A hint reaches a worker, if there is one to hear it.
    pub(super) fn wakes(&mut self, worker: u8) {
        let Some(process) = self.workers.get(usize::from(worker)) else { return };
        if process.is_up {
            let epoch = process.epoch;
            self.after(0, Event::Looks { worker, epoch, is_hint: true });
        }
    }

    pub(super) fn strikes(&mut self, number: u16) {
        let Some(blow) = self.blows.get(usize::from(number)).copied() else { return };
        if self.healed_at.is_some() {
            return;
        }
        self.faults += 1;
        let now = self.store_now();
        match blow {
            Blow::Crash { worker, down_ms } => {
                self.crashes(worker);
                self.after(down_ms, Event::Boots(worker));
            }
            Blow::Pause { worker, ms } => self.pauses(worker, ms),
            Blow::CutOff { worker, ms } => {
                let until = self.now + ms;
                if let Some(process) = self.workers.get_mut(usize::from(worker)) {
                    process.cut_off_until = process.cut_off_until.max(until);
                    self.record(What::CutOff { gateway: worker });
                }
            }
            Blow::Stop { worker, patience_ms } => {
                let Some(process) = self.workers.get_mut(usize::from(worker)) else { return };
                if process.is_up && !process.is_stopping {
                    process.is_stopping = true;
                    let epoch = process.epoch;
                    self.record(What::Drains { gateway: worker });
                    self.gives_all_back(worker, epoch);
                    self.after(patience_ms, Event::Stops { worker, epoch });
                }
            }
            Blow::Jump { by } => self.jumps(by),
            Blow::Cancel { effect } => self.table.cancel(effect, now),
        }
    }

    /// The patience with a worker that was told to stop has ended.
    pub(super) fn stops(&mut self, worker: u8, epoch: u16) {
        let is_same = self
            .workers
            .get(usize::from(worker))
            .is_some_and(|process| process.is_up && process.epoch == epoch);
        if is_same {
            self.crashes(worker);
            let down_ms = self.chance.scaled(1, self.plan.lease_ms);
            self.after(down_ms, Event::Boots(worker));
        }
    }

    fn crashes(&mut self, worker: u8) {
        let Some(process) = self.workers.get_mut(usize::from(worker)) else { return };
        if process.is_up {
            *process = process.dead();
            self.record(What::Crashed { gateway: worker });
        }
    }

    /// A worker stands still.
    pub(super) fn pauses(&mut self, worker: u8, ms: u64) {
        let until = self.now + ms;
        if let Some(process) = self.workers.get_mut(usize::from(worker)) {
            process.paused_until = process.paused_until.max(until);
            self.record(What::Paused { gateway: worker });
            self.at(until, Event::Resumes(worker));
        }
    }

    pub(super) fn resumes(&mut self, worker: u8) {
        self.record(What::Resumed { gateway: worker });
    }

    fn jumps(&mut self, by: i64) {
        let back = by.min(0).unsigned_abs();
        if self.turned_back_ms + back <= self.plan.skew_ms {
            self.turned_back_ms += back;
            self.clock_offset += by;
            self.record(What::Jumped { by });
        }
    }

    pub(super) fn heals(&mut self) {
        self.healed_at = Some(self.now);
        self.record(What::Healed);
        for worker in 0..self.plan.workers {
            if let Some(process) = self.workers.get_mut(usize::from(worker)) {
                process.paused_until = 0;
                process.cut_off_until = 0;
                if process.is_stopping {
                    self.crashes(worker);
                }
            }
            self.boots(worker);
        }
        self.after(self.plan.lease_ms, Event::Watches);
    }

    pub(super) fn watches(&mut self) {
        let is_late = self.healed_at.is_some_and(|at| self.now > at + self.plan.liveness_ms());
        let is_quiet = self.table.rests(self.plan.operator)
            && self.nobody_holds()
            && self.packets.iter().all(|packet| packet.is_closed || self.is_gone(packet));
        if is_late || is_quiet && self.has_waited_for_packets() {
            self.is_over = true;
        } else {
            self.after(self.plan.lease_ms / 2, Event::Watches);
        }
    }

    /// Whether the sender of a packet is dead.
    fn is_gone(&self, packet: &super::Packet) -> bool {
        self.workers
            .get(usize::from(packet.worker))
            .is_none_or(|process| !process.is_up || process.epoch != packet.epoch)
    }

    /// Whether nothing can be on its way any more from before the healing.
    fn has_waited_for_packets(&self) -> bool {
        let longest = self.plan.way_max_ms + self.plan.work_max_ms + 4 * self.plan.lease_ms;
        self.healed_at.is_some_and(|at| self.now > at + longest)
    }

    /// A person looks at what is unknown, asks the receivers, and takes their time.
    pub(super) fn operates(&mut self) {
        let pause_ms = if self.healed_at.is_some() {
            self.plan.lease_ms
        } else {
            self.chance.scaled(self.plan.lease_ms / 2, 4 * self.plan.lease_ms)
        };
        self.after(pause_ms, Event::Operates);
        let dead: Vec<u8> = self.table.dead().collect();
        let now = self.store_now();
        for effect in dead {
            if self.strike(Kind::OtherRequest, 30) {
                self.table.requeue(effect, now);
            }
        }
        if !self.plan.operator {
            return;
        }
        let unknown: Vec<_> = self.table.unknown().collect();
        for (effect, fence) in unknown {
            let is_same = |it: &Finding| it.effect == effect && it.fence == fence;
            let seen = self.findings.iter().find(|it| is_same(it)).map(|it| it.since);
            let since = seen.unwrap_or(self.now);
            let found = self.found(effect, fence, since);
            let number = self.findings.len() as u16;
            self.findings.push(Finding { effect, fence, since, found });
            if found.is_some() {
                let take_ms = self.chance.scaled(1, self.plan.lease_ms / 2);
                self.after(take_ms, Event::Decides(number));
            }
        }
    }

    fn found(&mut self, effect: u8, fence: u32, since: u64) -> Option<EvidenceSeen> {
        let has_settled = self.now >= since + self.plan.settle_ms();
        let is_hasty = self.planted.is(Fault::EffectAbsenceAtOnce);
        if self.receivers.has_done(effect) {
            Some(EvidenceSeen::Happened)
        } else if self.plan.burns && self.chance.percent(50) && !self.receivers.has_begun(effect) {
            self.receivers.burn(effect, fence);
            let is_wanted = self.chance.percent(70);
            Some(if is_wanted { EvidenceSeen::NoEffect } else { EvidenceSeen::Unwanted })
        } else if has_settled || is_hasty {
            Some(EvidenceSeen::Absence)
        } else {
            None
        }
    }

    pub(super) fn decides(&mut self, number: u16) {
        let Some(finding) = self.findings.get(usize::from(number)).copied() else { return };
        let Some(found) = finding.found else { return };
        let now = self.store_now();
        // The person has measured the settle time on their own clock; the store's may have leapt.
        let is_hasty = self.planted.is(Fault::EffectAbsenceAtOnce);
        let settle_ms = if is_hasty { 0 } else { self.plan.settle_ms() };
        self.table.decide((finding.effect, finding.fence), found, settle_ms, now);
    }
}
