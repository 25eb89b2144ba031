//! What does the provider report by itself, and what becomes of that?
//!
//! A *notice* is one report about one effect. It is delivered to whichever gateway runs, early, late, twice, out of order or
//! never, and again until somebody acknowledges it. A receiver keeps it in the inbox first, which is a table of the store, and
//! acknowledges only what is kept; then it is matched to its record. What is early, because its attempt still runs, waits there, and
//! every round of reconciliation matches it again. A store with one owner has no inbox: what matches is applied and then
//! acknowledged, and everything else is not.

use retrysafe_core::engine::Ruled;
use retrysafe_core::machine::{Evidence, Verdict};
use retrysafe_core::record::{Fence, Judge, Standing};

use super::gate::Gate;
use super::{Event, Job, World};
use crate::fault::Fault;
use crate::history::{Found, Role, What};
use crate::options::{Kind, Profile};

/// One report of the provider.
pub struct Notice {
    exec: u16,
    acknowledged: bool,
    tries: u8,
}

/// A notice that is kept.
#[derive(Clone, Copy)]
pub struct KeptNotice {
    notice: u16,
    pub key: u8,
    pub fence: u32,
    exec: u16,
    /// Whether there is nothing left to do about it.
    pub is_over: bool,
}

/// What a notice came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Matched {
    /// Its attempt is decided, by it or before.
    Over,
    /// Its attempt may still become unknown.
    Waits,
}

impl World {
    /// An effect has happened. Perhaps the provider reports it, in its own time.
    pub fn report_effect(&mut self, exec: u16) {
        let Some(plan) = self.options.provider else { return };
        if !self.chance.percent(plan.reports_percent) {
            return;
        }
        let lease = self.options.lease_ms;
        let notice = self.notices.len() as u16;
        self.notices.push(Notice { exec, acknowledged: false, tries: 0 });
        let early = self.chance.scaled(1, 50);
        let soon = self.chance.scaled(50, 8 * lease);
        let late = self.chance.scaled(lease, 2 * 24 * 3_600_000);
        let ms = self.chance.pick(early, &[early, soon, late]);
        self.after(ms, Event::NoticeArrives(notice));
        if self.chance.percent(30) {
            let copy = ms + self.chance.scaled(1, 8 * lease);
            self.after(copy, Event::NoticeArrives(notice));
        }
    }

    pub fn notice_arrives(&mut self, number: u16) {
        let Some(plan) = self.options.provider else { return };
        let Some(notice) = self.notices.get_mut(usize::from(number)) else { return };
        let exec = notice.exec;
        if !notice.acknowledged {
            notice.tries = notice.tries.saturating_add(1);
            let tries = notice.tries;
            if tries < plan.tries_max {
                self.after(plan.resend_ms(tries), Event::NoticeArrives(number));
            }
            if self.healed_at.is_none() && self.chance.percent(plan.lost_percent) {
                self.faults += 1;
                self.record(What::NoticeLost { exec });
                return;
            }
        }
        if let Some(gateway) = self.any_gateway() {
            self.jobs.push(Job::Receive { gateway, notice: number });
        }
    }

    /// Whether a gateway's statement about the inbox fails.
    fn inbox_fails(&mut self, gateway: u8) -> bool {
        let is_cut_off = self
            .gateways
            .get(usize::from(gateway))
            .is_some_and(|process| process.cut_off_until > self.now);
        is_cut_off && self.healed_at.is_none() || self.strike(Kind::StoreLost, 10)
    }

    fn acknowledge(&mut self, notice: u16) {
        if let Some(notice) = self.notices.get_mut(usize::from(notice)) {
            notice.acknowledged = true;
        }
    }

    /// Keeps a notice, once.
    fn keep(&mut self, notice: u16, key: u8, fence: u32, exec: u16) {
        let again = self.inbox.iter().any(|kept| kept.notice == notice);
        if !again {
            self.inbox.push(KeptNotice { notice, key, fence, exec, is_over: false });
        }
        self.record(What::NoticeKept { key, fence, again });
    }

    fn is_over(&mut self, notice: u16) {
        if let Some(kept) = self.inbox.iter_mut().find(|kept| kept.notice == notice) {
            kept.is_over = true;
        }
    }
}

/// A gateway receives a notice.
pub async fn receive(gate: Gate, notice: u16) {
    let about = gate.sim.with(|world| {
        let exec = world.notices.get(usize::from(notice))?.exec;
        let (key, fence, _) = world.exec_about(exec)?;
        Some((exec, key, fence))
    });
    let Some((exec, key, fence)) = about else { return };
    if gate.options.profile == Profile::SingleOwner {
        if decide(&gate, key, fence, exec).await == Matched::Over {
            gate.sim.with(|world| {
                world.record(What::NoticeKept { key, fence, again: false });
                world.acknowledge(notice);
            });
        }
        return;
    }
    if gate.fault(Fault::AcknowledgedUnkept) {
        gate.sim.with(|world| {
            world.record(What::NoticeKept { key, fence, again: false });
            world.acknowledge(notice);
        });
    }
    let ms = gate.sim.with(|world| world.chance.between(1, 10));
    gate.sim.sleep(ms).await;
    if gate.sim.with(|world| world.inbox_fails(gate.number)) {
        return;
    }
    gate.sim.with(|world| {
        world.keep(notice, key, fence, exec);
        world.acknowledge(notice);
    });
    match_notice(&gate, KeptNotice { notice, key, fence, exec, is_over: false }).await;
}

/// Matches what waits in the inbox.
pub async fn match_inbox(gate: &Gate) {
    if gate.sim.with(|world| world.inbox.is_empty() || world.inbox_fails(gate.number)) {
        return;
    }
    let waiting: Vec<KeptNotice> =
        gate.sim.with(|world| world.inbox.iter().filter(|kept| !kept.is_over).copied().collect());
    for kept in waiting {
        match_notice(gate, kept).await;
    }
}

async fn match_notice(gate: &Gate, kept: KeptNotice) {
    let matched = decide(gate, kept.key, kept.fence, kept.exec).await;
    if matched == Matched::Over || gate.fault(Fault::EarlyWebhookDropped) {
        gate.sim.with(|world| world.is_over(kept.notice));
    }
}

/// Decides a record by the provider's own word.
async fn decide(gate: &Gate, key: u8, fence: u32, exec: u16) -> Matched {
    let Some(id) = gate.tables.id(key) else { return Matched::Over };
    let answer = gate.sim.with(|world| world.remembered(exec));
    let role = Role::Judge { fence, evidence: Found::Effect };
    let verdict = Verdict {
        fence: Fence(u64::from(fence)),
        evidence: Evidence::Executed(answer),
        judge: Judge::Webhook,
        reason: "".into(),
    };
    let Ok(ruled) = gate.sim.engine(gate.by(role)).resolve(id, &verdict).await else {
        // Perhaps it holds. The next round will see.
        return Matched::Waits;
    };
    let done = matches!(ruled, Ruled::Done(_));
    gate.sim.with(|world| world.record(What::Ruled { key, fence, done }));
    match ruled {
        Ruled::Done(_) | Ruled::Absent => Matched::Over,
        Ruled::Refused(record) => {
            let is_running =
                record.fence.0 == u64::from(fence) && record.standing() == Standing::InProgress;
            if is_running { Matched::Waits } else { Matched::Over }
        }
    }
}
