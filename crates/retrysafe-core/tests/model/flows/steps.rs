//! What can happen next?
//!
//! Two processes begin, execute, pause, crash and come back. Acknowledgements are lost, commits land
//! late, packets travel on after their sender has given up. The sweeper, a reconciler and the reaper
//! go about their work beside them.

use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::machine::flows::SendDecision;
use retrysafe_core::record::{Answer, Doubt, Outcome, Standing};

use super::rules::Setting;
use super::world::{Floating, Found, PROCESSES, Process, Stage, Told, World, answer};

/// What kind of step it is: promises about what happens in the end do not count on every kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It happens by itself.
    Own,
    /// Something fails.
    Failure,
    /// A caller comes back.
    Caller,
}

pub(super) type Step = (World, &'static str, Kind);

/// Everything that can happen next.
pub(super) fn successors(setting: &Setting, world: &World, steps: &mut Vec<Step>) {
    steps.clear();
    let mut out = Steps { setting, world, steps };
    out.time();
    out.packets();
    out.upkeep();
    for process in 0..PROCESSES {
        out.late_commit(process);
        out.process(process);
    }
}

struct Steps<'a> {
    setting: &'a Setting,
    world: &'a World,
    steps: &'a mut Vec<Step>,
}

impl Steps<'_> {
    fn push(&mut self, next: World, name: &'static str, kind: Kind) {
        self.steps.push((next.normal(self.setting), name, kind));
    }

    fn time(&mut self) {
        let world = self.world;
        let must_arrive = world.orphans.iter().any(|orphan| orphan.0 == 1)
            || world.processes.iter().any(|process| process.packet.0 == 1);
        let must_send =
            world.processes.iter().any(|it| it.stage == Stage::Checked && it.deadline == 0);
        if must_arrive || (must_send && !self.setting.may_pause_after_check) {
            return;
        }
        let kind = if must_send { Kind::Failure } else { Kind::Own };
        let next = world.tick(None);
        if next != *world {
            self.push(next, "a tick", kind);
        }
        for process in 0..PROCESSES {
            let is_paused =
                !matches!(world.processes[process].stage, Stage::Idle | Stage::Ambiguous);
            if self.setting.clock_may_stand_still && is_paused && !must_send {
                let next = world.tick(Some(process));
                self.push(next, "a tick, and a clock stands still", Kind::Failure);
            }
        }
        if self.setting.store_clock_may_jump
            && world.record.standing == Some(Standing::InProgress)
            && world.record.lease > 0
        {
            let mut next = *world;
            (next.record.lease, next.record.until) = (0, 0);
            self.push(next, "the store's clock jumps", Kind::Failure);
        }
    }

    fn packets(&mut self) {
        for at in 0..self.world.orphans.len() {
            let (left, bytes) = self.world.orphans[at];
            let is_twin = at > 0 && self.world.orphans[at - 1] == (left, bytes);
            if left == 0 || is_twin {
                continue;
            }
            let mut next = *self.world;
            next.orphans[at] = (0, 0);
            next.sort_orphans();
            self.push(next, "an abandoned packet is lost", Kind::Failure);
            next.receive(self.setting, bytes);
            self.push(next, "an abandoned packet arrives", Kind::Own);
        }
    }

    fn upkeep(&mut self) {
        let (setting, world) = (self.setting, *self.world);
        let mut next = world;
        if setting.sweeper_looks_first() {
            if !world.sweeper_has_read && setting.is_due(&world) {
                next.sweeper_has_read = true;
                self.push(next, "the sweeper reads", Kind::Own);
            } else if world.sweeper_has_read {
                setting.sweep_blindly(&mut next);
                self.push(next, "the sweeper writes", Kind::Own);
            }
        } else if setting.sweep(&mut next) {
            self.push(next, "the sweeper doubts", Kind::Own);
        }
        if world.record.standing == Some(Standing::Unknown) && world.found.is_none() {
            let mut next = world;
            next.found_is_current = true;
            if world.provider.effects > 0 {
                next.found = Some(Found::Executed);
                self.push(next, "the reconciler finds it", Kind::Own);
            } else if setting.absence_counts(&world) {
                next.found = Some(Found::Absent);
                self.push(next, "the reconciler finds nothing", Kind::Own);
            }
        }
        if let Some(found) = world.found {
            let mut next = world;
            setting.rule(&mut next, found);
            self.push(next, "a verdict", Kind::Own);
        }
        let mut next = world;
        if setting.reap(&mut next) {
            self.push(next, "the reaper", Kind::Own);
        }
    }

    fn late_commit(&mut self, process: usize) {
        let before = self.world.processes[process];
        let Some(floating) = before.floating else { return };
        let mut next = *self.world;
        next.processes[process].floating = None;
        self.push(next, "a late commit is lost", Kind::Own);
        match floating {
            Floating::Begin => {
                if !self.setting.begin(&mut next, process, false) {
                    return;
                }
                if before.stage == Stage::Ambiguous && !before.is_current {
                    next.processes[process].is_current = true;
                } else {
                    // Its sender knows nothing of it any more.
                    next.record.owner = 9;
                }
            }
            Floating::StepFrom(from) => {
                self.setting.commit(&mut next, from, before.is_floating_current, false);
            }
            Floating::Result => {
                self.setting.commit_result(&mut next, before.is_floating_current);
            }
        }
        self.push(next, "a late commit lands", Kind::Own);
    }

    fn process(&mut self, at: usize) {
        let process = self.world.processes[at];
        if process.stage != Stage::Idle {
            let mut next = *self.world;
            if next.abandon_packet(at) {
                next.stop(at);
                self.push(next, "a crash", Kind::Failure);
            }
        }
        match process.stage {
            Stage::Idle => self.idle(at),
            Stage::Begun => {
                let mut next = *self.world;
                next.processes[at].stage = Stage::Running;
                if self.setting.lease_from_answer {
                    next.processes[at].lease = self.setting.lease;
                }
                self.push(next, "the begin is answered", Kind::Own);
                let mut next = *self.world;
                next.processes[at].stage = Stage::Ambiguous;
                self.push(next, "the begin's answer is lost", Kind::Failure);
            }
            Stage::Ambiguous => {
                let mut next = *self.world;
                self.setting.withdraw(&mut next, at);
                next.stop(at);
                self.push(next, "a withdrawal", Kind::Own);
            }
            Stage::Running if matches!(process.knows, Some(RecoveryPoint::Calling(_))) => {
                self.before_the_wire(at);
            }
            Stage::Running => self.running(at),
            Stage::ReadBack => {
                let mut next = *self.world;
                let is_own =
                    process.is_current && next.record.standing == Some(Standing::InProgress);
                if is_own {
                    next.follow(at);
                } else {
                    next.stop(at);
                }
                self.push(next, "a step is read back", Kind::Own);
            }
            Stage::Checked => self.checked(at),
            Stage::Waiting => self.waiting(at),
            Stage::Answered => self.answered(at),
            Stage::NotHeard => {
                let doubt = Outcome::Unknown(Doubt::AnswerLost);
                self.settle(at, &doubt, "no answer: unknown", Kind::Own);
                self.settle(at, &Outcome::Retryable(None), "no answer: a 5xx", Kind::Failure);
            }
            Stage::NotSent => {
                let mut next = *self.world;
                self.setting.call_not_sent(&mut next, at);
                next.stop(at);
                self.push(next, "nothing was sent", Kind::Own);
            }
            Stage::ReadBackResult => {
                let mut next = *self.world;
                let call = Some(RecoveryPoint::Calling(self.setting.call_phase));
                let standing = next.record.standing;
                if process.is_current && next.record.point == call && standing.is_some() {
                    next.processes[at].stage = Stage::Answered;
                } else if process.is_current && standing == Some(Standing::InProgress) {
                    next.follow(at);
                } else {
                    next.stop(at);
                }
                self.push(next, "a result is read back", Kind::Own);
            }
        }
    }

    fn settle(&mut self, at: usize, outcome: &Outcome, name: &'static str, kind: Kind) {
        let mut next = *self.world;
        self.setting.settle(&mut next, at, outcome);
        next.stop(at);
        self.push(next, name, kind);
    }

    fn idle(&mut self, at: usize) {
        for (is_completer, name, kind) in
            [(false, "a begin", Kind::Caller), (true, "the completer begins", Kind::Own)]
        {
            let mut next = *self.world;
            if self.setting.begin(&mut next, at, is_completer) {
                next.processes[at].is_current = true;
                next.processes[at].lease = self.setting.lease;
                next.follow(at);
                next.processes[at].stage = Stage::Begun;
                self.push(next, name, kind);
            }
        }
        let mut probe = *self.world;
        let has_room = self.world.processes[at].floating.is_none();
        if self.setting.has_late_commits && has_room && self.setting.begin(&mut probe, at, false) {
            let mut next = *self.world;
            next.processes[at].stage = Stage::Ambiguous;
            next.processes[at].floating = Some(Floating::Begin);
            self.push(next, "a begin is on its way", Kind::Failure);
        }
    }

    fn running(&mut self, at: usize) {
        let (setting, world) = (self.setting, *self.world);
        let process = world.processes[at];
        let is_first = setting.call_phase > 0 && process.knows == Some(RecoveryPoint::Before(0));
        if setting.commits_rows_apart() && is_first && !process.has_rows {
            let mut next = world;
            if process.is_current && world.record.standing == Some(Standing::InProgress) {
                next.rows[0] = (next.rows[0] + 1).min(2);
                next.processes[at].has_rows = true;
            } else {
                next.stop(at);
            }
            self.push(next, "rows are committed by themselves", Kind::Own);
            return;
        }
        let mut next = world;
        if setting.commit(&mut next, process.knows, process.is_current, process.has_rows) {
            let mut lost = next;
            lost.processes[at].stage = Stage::ReadBack;
            self.push(lost, "a step's acknowledgement is lost", Kind::Failure);
            if next.record.standing == Some(Standing::InProgress) {
                next.processes[at].has_rows = false;
                next.follow(at);
            } else {
                next.stop(at);
            }
            self.push(next, "a step is committed", Kind::Own);
        } else {
            next.stop(at);
            self.push(next, "a step is refused", Kind::Own);
        }
        if setting.has_late_commits && process.floating.is_none() {
            let mut next = world;
            let waiting = &mut next.processes[at];
            waiting.stage = Stage::ReadBack;
            waiting.floating = Some(Floating::StepFrom(process.knows));
            waiting.is_floating_current = process.is_current;
            self.push(next, "a step is on its way", Kind::Failure);
        }
        self.settle(at, &Outcome::Retryable(None), "a handler's 5xx", Kind::Failure);
        let given_up = Outcome::Unknown(Doubt::Panicked);
        self.settle(at, &given_up, "a handler is given up", Kind::Failure);
    }

    fn before_the_wire(&mut self, at: usize) {
        let process = self.world.processes[at];
        let may_differ = !(process.is_own_mark && process.is_current);
        for bytes in 0..=u8::from(may_differ) {
            let mut next = *self.world;
            let kind = if bytes == 0 { Kind::Own } else { Kind::Failure };
            match self.setting.check(self.world, at, bytes) {
                SendDecision::Send => {
                    next.processes[at].stage = Stage::Checked;
                    next.processes[at].bytes = bytes;
                    next.processes[at].deadline = self.setting.deadline;
                    self.push(next, "the check before the wire passes", kind);
                }
                SendDecision::TooLate => {
                    next.processes[at].stage = Stage::NotSent;
                    self.push(next, "the check before the wire refuses", kind);
                }
                SendDecision::OtherBytes => {
                    let doubt = Outcome::Unknown(Doubt::OtherBytes);
                    self.settle(at, &doubt, "other bytes are not sent", kind);
                }
                SendDecision::NotRepeatable => {
                    let doubt = Outcome::Unknown(Doubt::NotRepeatable);
                    self.settle(at, &doubt, "nobody may repeat it", kind);
                }
            }
        }
    }

    fn checked(&mut self, at: usize) {
        let process = self.world.processes[at];
        if process.packet.0 == 0 {
            let mut next = *self.world;
            next.processes[at].packet = (self.setting.longest_way + 1, process.bytes);
            next.processes[at].stage = Stage::Waiting;
            self.push(next, "a packet leaves", Kind::Own);
        }
        let mut next = *self.world;
        next.processes[at].stage = Stage::NotSent;
        self.push(next, "the connection is refused", Kind::Failure);
    }

    fn waiting(&mut self, at: usize) {
        let (_, bytes) = self.world.processes[at].packet;
        let mut next = *self.world;
        next.processes[at].packet = (0, 0);
        let mut lost = next;
        lost.processes[at].stage = Stage::NotHeard;
        self.push(lost, "a packet is lost", Kind::Failure);
        let is_refused = next.receive(self.setting, bytes);
        let mut unheard = next;
        unheard.processes[at].stage = Stage::NotHeard;
        self.push(unheard, "a packet arrives, and its answer is lost", Kind::Failure);
        next.processes[at].stage = Stage::Answered;
        next.processes[at].is_refused = is_refused;
        self.push(next, "a packet arrives and is answered", Kind::Own);
        let mut impatient = *self.world;
        if impatient.abandon_packet(at) {
            impatient.processes[at].stage = Stage::NotHeard;
            self.push(impatient, "the owner gives up, and its packet travels on", Kind::Failure);
        }
    }

    fn answered(&mut self, at: usize) {
        let process = self.world.processes[at];
        if process.is_refused {
            let refusal: Answer = answer(Told::Refusal);
            self.settle(at, &Outcome::Completed(refusal), "a refusal is the answer", Kind::Own);
            return;
        }
        let ambiguous =
            if self.setting.calls_again() { Stage::ReadBack } else { Stage::ReadBackResult };
        let mut next = *self.world;
        match self.setting.commit_result(&mut next, process.is_current) {
            None => {
                next.stop(at);
                self.push(next, "a result is refused", Kind::Own);
                return;
            }
            Some(goes_on) => {
                let mut lost = next;
                lost.processes[at].stage = ambiguous;
                self.push(lost, "a result's acknowledgement is lost", Kind::Failure);
                if goes_on {
                    next.follow(at);
                } else {
                    next.stop(at);
                }
                self.push(next, "a result is committed", Kind::Own);
            }
        }
        if self.setting.has_late_commits && process.floating.is_none() {
            let mut next = *self.world;
            let waiting: &mut Process = &mut next.processes[at];
            waiting.stage = ambiguous;
            waiting.floating = Some(Floating::Result);
            waiting.is_floating_current = process.is_current;
            self.push(next, "a result is on its way", Kind::Failure);
        }
    }
}

impl World {
    /// A process goes on from where the record is.
    fn follow(&mut self, at: usize) {
        let Self { record, processes, .. } = self;
        let process = &mut processes[at];
        process.stage = Stage::Running;
        process.knows = record.point;
        process.until = record.until;
        process.is_own_mark = record.is_own_mark;
    }
}
