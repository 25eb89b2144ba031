//! What does a worker do?
//!
//! It claims what there is room for, marks it, checks each effect before its first byte, sends it, waits for an answer
//! until the deadline, and says how the delivery ended, again and again until the store has heard it. Beside that it
//! renews leases and sweeps. It may die or stand still between any two of these steps.

use std::time::Duration;

use retrysafe_core::effect::{BeforeFirstByte, EffectEnd, may_send};

use super::wire::{Answer, Question};
use super::{EffectWorld, Event};
use crate::chance::Chance;
use crate::effect_plan::EffectPlan;
use crate::effects::table::{ClaimedRow, MarkedRow, ToldRow};
use crate::fault::Fault;
use crate::history::{EffectEvent, What};
use crate::options::Kind;

/// How soon a worker says again what the store has not heard.
const AGAIN_MS: u64 = 500;

/// A worker process, in one of its lives.
#[derive(Default)]
pub(super) struct WorkerProcess {
    pub is_up: bool,
    pub epoch: u16,
    pub paused_until: u64,
    pub cut_off_until: u64,
    /// Whether it was told to stop.
    pub is_stopping: bool,
    holds: Vec<Hold>,
}

/// An effect that a worker holds.
#[derive(Clone, Copy)]
struct Hold {
    effect: u8,
    fence: u32,
    kind: u8,
    failures: u32,
    step: Step,
    /// Whether a question about it is under way.
    is_asking: bool,
}

#[derive(Clone, Copy)]
enum Step {
    Claimed,
    Marked {
        row: MarkedRow,
        asked_at: u64,
    },
    OnTheWire,
    Ended(EffectEnd),
    /// Nothing was sent.
    GivesBack,
}

/// How long a failed effect waits.
pub(super) fn retry_pause(chance: &mut Chance, plan: &EffectPlan) -> Duration {
    Duration::from_millis(chance.scaled(10, plan.lease_ms))
}

impl WorkerProcess {
    /// What is left of it when it dies.
    pub(super) fn dead(&self) -> Self {
        Self { epoch: self.epoch, ..Self::default() }
    }
}

impl EffectWorld {
    /// Whether a worker is alive in this life and does not stand still. If it does, the event comes when it goes on.
    pub(super) fn is_awake(&mut self, worker: u8, epoch: u16, event: Event) -> bool {
        let Some(process) = self.workers.get(usize::from(worker)) else { return false };
        if !process.is_up || process.epoch != epoch {
            return false;
        }
        let until = process.paused_until;
        if self.now < until {
            self.at(until, event);
            return false;
        }
        true
    }

    pub(super) fn is_cut_off(&self, worker: u8) -> bool {
        self.workers
            .get(usize::from(worker))
            .is_some_and(|process| self.now < process.cut_off_until)
    }

    pub(super) fn boots(&mut self, worker: u8) {
        let Some(process) = self.workers.get_mut(usize::from(worker)) else { return };
        if process.is_up {
            return;
        }
        let epoch = process.epoch + 1;
        *process = WorkerProcess { is_up: true, epoch, ..WorkerProcess::default() };
        self.record(What::Booted { gateway: worker, epoch });
        let first_ms = self.chance.between(1, 100);
        self.after(first_ms, Event::Looks { worker, epoch, is_hint: false });
        self.after(first_ms, Event::Sweeps { worker, epoch });
        self.after(self.plan.lease_ms / 3, Event::Renews { worker, epoch });
    }

    /// Claims what there is room for.
    pub(super) fn looks(&mut self, worker: u8, epoch: u16, is_hint: bool) {
        if !self.is_awake(worker, epoch, Event::Looks { worker, epoch, is_hint }) {
            return;
        }
        if !is_hint && !self.planted.is(Fault::EffectNotifyAsTruth) {
            let next_ms = self.chance.between(self.plan.lease_ms / 6, self.plan.lease_ms / 3);
            self.after(next_ms, Event::Looks { worker, epoch, is_hint });
        }
        let Some(process) = self.workers.get(usize::from(worker)) else { return };
        let most = self.plan.at_once.saturating_sub(process.holds.len());
        if most == 0 || process.is_stopping {
            return;
        }
        let first = self.chance.below(self.plan.kinds.into()) as u8;
        self.ask(worker, epoch, Question::Claim { kind: first, most });
        if self.plan.kinds > 1 && most > 1 {
            self.ask(worker, epoch, Question::Claim { kind: 1 - first, most: most - 1 });
        }
    }

    pub(super) fn sweeps(&mut self, worker: u8, epoch: u16) {
        if self.is_awake(worker, epoch, Event::Sweeps { worker, epoch }) {
            let next_ms = self.chance.between(self.plan.lease_ms / 4, self.plan.lease_ms / 2);
            self.after(next_ms, Event::Sweeps { worker, epoch });
            self.ask(worker, epoch, Question::Sweep);
        }
    }

    pub(super) fn renews(&mut self, worker: u8, epoch: u16) {
        if !self.is_awake(worker, epoch, Event::Renews { worker, epoch }) {
            return;
        }
        self.after(self.plan.lease_ms / 3, Event::Renews { worker, epoch });
        let held = self.held(worker, |step| matches!(step, Step::OnTheWire | Step::Ended(_)));
        if !held.is_empty() && !self.planted.is(Fault::EffectLeaseNotRenewed) {
            self.ask(worker, epoch, Question::Renew(held));
        }
    }

    fn held(&self, worker: u8, is_so: impl Fn(&Step) -> bool) -> Vec<(u8, u32)> {
        let holds = self.workers.get(usize::from(worker)).map(|process| process.holds.iter());
        let of = |hold: &Hold| (hold.effect, hold.fence);
        holds.into_iter().flatten().filter(|hold| is_so(&hold.step)).map(of).collect()
    }

    fn hold(&mut self, worker: u8, effect: u8, fence: u32) -> Option<&mut Hold> {
        let process = self.workers.get_mut(usize::from(worker))?;
        process.holds.iter_mut().find(|hold| hold.effect == effect && hold.fence == fence)
    }

    pub(super) fn ask_answered(&mut self, number: u16) {
        let Some(ask) = self.asks.get(usize::from(number)) else { return };
        let (worker, epoch, asked_at) = (ask.worker, ask.epoch, ask.asked_at);
        if !self.is_awake(worker, epoch, Event::AskAnswered(number)) {
            return;
        }
        let Some(ask) = self.asks.get_mut(usize::from(number)) else { return };
        ask.is_closed = true;
        let answer = std::mem::take(&mut ask.answer);
        let held = asked_about(&ask.question);
        match answer {
            Answer::Claimed(rows) => {
                let Question::Claim { kind, .. } = ask.question else { return };
                self.claimed(worker, epoch, kind, &rows);
            }
            Answer::Marked(rows) => self.marked(worker, epoch, &held, &rows, asked_at),
            Answer::Done => {
                let is_told = matches!(ask.question, Question::Finish(_) | Question::HandBack(_));
                if let Some(process) = self.workers.get_mut(usize::from(worker))
                    && is_told
                {
                    process.holds.retain(|hold| !held.contains(&(hold.effect, hold.fence)));
                }
            }
            Answer::Nothing => {}
        }
    }

    /// The store has not answered in time.
    pub(super) fn ask_fails(&mut self, number: u16) {
        let Some(ask) = self.asks.get(usize::from(number)) else { return };
        let (worker, epoch) = (ask.worker, ask.epoch);
        if !self.is_awake(worker, epoch, Event::AskFails(number)) {
            return;
        }
        let Some(ask) = self.asks.get_mut(usize::from(number)) else { return };
        ask.is_closed = true;
        let is_mark = matches!(ask.question, Question::Mark { .. });
        let held = asked_about(&ask.question);
        if matches!(ask.question, Question::Renew(_)) {
            return;
        }
        for (effect, fence) in held {
            if let Some(hold) = self.hold(worker, effect, fence) {
                hold.is_asking = false;
                // The mark may stand. Nothing was sent, and nothing will be.
                if is_mark {
                    hold.step = Step::GivesBack;
                }
            }
        }
        self.after(AGAIN_MS, Event::Tells { worker, epoch });
    }

    fn claimed(&mut self, worker: u8, epoch: u16, kind: u8, rows: &[ClaimedRow]) {
        let Some(process) = self.workers.get_mut(usize::from(worker)) else { return };
        let is_stopping = process.is_stopping;
        for row in rows {
            let ClaimedRow { id: effect, fence, failures, .. } = *row;
            let step = if is_stopping { Step::GivesBack } else { Step::Claimed };
            process.holds.push(Hold { effect, fence, kind, failures, step, is_asking: false });
        }
        if is_stopping {
            self.after(1, Event::Tells { worker, epoch });
        } else if self.planted.is(Fault::EffectMarkAfterSend) {
            for row in rows {
                self.sends(worker, epoch, row.id, row.fence);
            }
        } else if !rows.is_empty() {
            let held = rows.iter().map(|row| (row.id, row.fence)).collect();
            self.ask(worker, epoch, Question::Mark { kind, held });
        }
    }

    fn marked(
        &mut self,
        worker: u8,
        epoch: u16,
        held: &[(u8, u32)],
        rows: &[MarkedRow],
        asked_at: u64,
    ) {
        for &(effect, fence) in held {
            let row = rows.iter().find(|row| row.id == effect && row.is_sendable);
            let Some(row) = row.copied() else {
                // It is somebody else's, or unknown.
                if let Some(process) = self.workers.get_mut(usize::from(worker)) {
                    process.holds.retain(|hold| (hold.effect, hold.fence) != (effect, fence));
                }
                continue;
            };
            let is_late = self.strike(Kind::Pause, 15);
            let wait_ms = if is_late {
                self.chance.scaled(1, 2 * self.plan.lease_ms)
            } else {
                self.chance.below(3)
            };
            if let Some(hold) = self.hold(worker, effect, fence) {
                hold.step = Step::Marked { row, asked_at };
            }
            if is_late {
                self.note(EffectEvent::Troubled { worker });
            }
            self.after(wait_ms, Event::Checks { worker, epoch, effect, fence });
        }
    }

    /// The last look before the first byte.
    pub(super) fn checks(&mut self, worker: u8, epoch: u16, effect: u8, fence: u32) {
        if !self.is_awake(worker, epoch, Event::Checks { worker, epoch, effect, fence }) {
            return;
        }
        let Some(hold) = self.hold(worker, effect, fence) else { return };
        let Step::Marked { row, asked_at } = hold.step else { return };
        let may_be_cut_off = !self.planted.is(Fault::EffectLeaseNotRenewed);
        let deadline_ms = if may_be_cut_off { self.plan.deadline_ms } else { 0 };
        let before = BeforeFirstByte {
            lease_left: row.lease_left,
            resend_left: row.resend_left,
            elapsed: Duration::from_millis(self.now - asked_at),
            deadline: Duration::from_millis(deadline_ms),
        };
        if may_send(&before) || self.planted.is(Fault::EffectUncheckedSend) {
            self.sends(worker, epoch, effect, fence);
        } else {
            self.note(EffectEvent::TooLate { effect, fence });
            self.gives_back(worker, epoch, effect, fence);
        }
    }

    fn sends(&mut self, worker: u8, epoch: u16, effect: u8, fence: u32) {
        let is_refused = self.strike(Kind::UpstreamRefuses, 15);
        let retry_after = retry_pause(&mut self.chance, &self.plan);
        let Some(hold) = self.hold(worker, effect, fence) else { return };
        if is_refused {
            hold.step = Step::Ended(EffectEnd::NoEffect { retry_after });
            self.after(1, Event::Tells { worker, epoch });
            return;
        }
        let kind = hold.kind;
        self.send(worker, epoch, effect, fence, kind);
        if let Some(hold) = self.hold(worker, effect, fence) {
            hold.step = Step::OnTheWire;
        }
        if self.strike(Kind::Pause, 8) {
            let ms = self.plan.lease_ms + self.chance.scaled(1, self.plan.lease_ms);
            self.pauses(worker, ms);
        }
    }

    fn gives_back(&mut self, worker: u8, epoch: u16, effect: u8, fence: u32) {
        if let Some(hold) = self.hold(worker, effect, fence) {
            hold.step = Step::GivesBack;
            hold.is_asking = false;
        }
        self.after(1, Event::Tells { worker, epoch });
    }

    /// A delivery has ended for its worker.
    pub(super) fn delivery_ends(&mut self, number: u16, end: EffectEnd) {
        let Some(packet) = self.packets.get_mut(usize::from(number)) else { return };
        packet.is_closed = true;
        let (worker, epoch) = (packet.worker, packet.epoch);
        let (effect, fence) = (packet.seen.effect, packet.seen.fence);
        let Some(hold) = self.hold(worker, effect, fence) else { return };
        hold.step = Step::Ended(end);
        let kind = hold.kind;
        if self.planted.is(Fault::EffectMarkAfterSend) {
            self.ask(worker, epoch, Question::Mark { kind, held: vec![(effect, fence)] });
        }
        let wait_ms = self.chance.between(1, 50);
        self.after(wait_ms, Event::Tells { worker, epoch });
    }

    /// Says how deliveries ended, and gives back what was not sent.
    pub(super) fn tells(&mut self, worker: u8, epoch: u16) {
        if !self.is_awake(worker, epoch, Event::Tells { worker, epoch }) {
            return;
        }
        let Some(process) = self.workers.get_mut(usize::from(worker)) else { return };
        let mut told = Vec::new();
        let mut back = Vec::new();
        for hold in process.holds.iter_mut().filter(|hold| !hold.is_asking) {
            let Hold { effect: id, fence, failures, step, .. } = *hold;
            match step {
                Step::Ended(end) => told.push(ToldRow { id, fence, failures, end }),
                Step::GivesBack => back.push((id, fence)),
                Step::Claimed | Step::Marked { .. } | Step::OnTheWire => continue,
            }
            hold.is_asking = true;
        }
        if !told.is_empty() {
            self.ask(worker, epoch, Question::Finish(told));
        }
        if !back.is_empty() {
            self.ask(worker, epoch, Question::HandBack(back));
        }
    }

    /// It was told to stop: what it has not sent it gives back.
    pub(super) fn gives_all_back(&mut self, worker: u8, epoch: u16) {
        for (effect, fence) in self.held(worker, |step| matches!(step, Step::Marked { .. })) {
            self.gives_back(worker, epoch, effect, fence);
        }
    }

    /// Whether no worker holds anything.
    pub(super) fn nobody_holds(&self) -> bool {
        self.workers.iter().all(|process| process.holds.is_empty())
    }
}

fn asked_about(question: &Question) -> Vec<(u8, u32)> {
    match question {
        Question::Mark { held, .. } | Question::Renew(held) | Question::HandBack(held) => {
            held.clone()
        }
        Question::Finish(told) => told.iter().map(|told| (told.id, told.fence)).collect(),
        Question::Claim { .. } | Question::Sweep => Vec::new(),
    }
}
