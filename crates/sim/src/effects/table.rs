//! How does the simulated store keep effects?
//!
//! The core's own [`Effect`] decides what becomes of each; what the migration adds is here as well: transactions that
//! stage, lanes, and that a claim takes what is due. Every applied change is written down: of what the effects are, this
//! is the ground truth. It never errs by itself; what goes wrong on the way is somebody else's business.

use std::time::Duration;

use retrysafe_core::effect::{
    Claimed, DeliveryLimits, Effect, EffectEnd, EffectEvidence, EffectRefusal, EffectState,
    Finished, Marked,
};
use retrysafe_core::record::Fence;
use retrysafe_core::time::Time;

use super::mutant::Planted;
use crate::fault::Fault;
use crate::history::{
    EffectEvent, EffectMark, EffectRole, EffectWrote, EndSeen, EvidenceSeen, Place,
};

/// For how long a planted claim without a lock reads what it writes.
const UNLOCKED_MS: u64 = 100;

/// After how many leases that ended without a word after their mark an effect is claimed alone.
const SUSPECT_CRASHES: u32 = 2;

/// Everything that was staged, in the order of its numbers.
#[derive(Default)]
pub struct EffectTable {
    rows: Vec<Row>,
    /// What has happened since somebody took it.
    pub events: Vec<EffectEvent>,
    planted: Planted,
}

#[derive(Clone, Copy)]
struct Row {
    effect: Effect,
    kind: u8,
    lane: Option<u8>,
    /// From when on it is due, if it waits for another of its lane.
    due: Time,
    seen: Visible,
    claimed_at: Time,
}

/// Whether others see a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visible {
    /// Its transaction is open.
    NotYet,
    Yes,
    /// Its transaction was rolled back.
    Never,
}

/// What a claim hands out.
#[derive(Clone, Copy, Debug)]
pub struct ClaimedRow {
    pub id: u8,
    pub fence: u32,
    pub failures: u32,
    pub was_sent: bool,
    /// Whether it may be what has killed its workers.
    pub is_suspect: bool,
}

/// What a mark says.
#[derive(Clone, Copy, Debug)]
pub struct MarkedRow {
    pub id: u8,
    pub is_sendable: bool,
    pub lease_left: Duration,
    pub resend_left: Option<Duration>,
}

/// A worker's word on how a delivery ended.
#[derive(Clone, Copy, Debug)]
pub struct ToldRow {
    pub id: u8,
    pub fence: u32,
    /// How many failures the worker read when it claimed. Only a planted fault looks at it.
    pub failures: u32,
    pub end: EffectEnd,
}

impl EffectTable {
    pub fn reset(&mut self, planted: Planted) {
        self.rows.clear();
        self.events.clear();
        self.planted = planted;
    }

    /// Stages an effect in a transaction. None while another transaction holds its lane.
    pub fn stage(&mut self, kind: u8, lane: Option<u8>, due: Time) -> Option<u8> {
        let in_lane = |row: &&Row| lane.is_some() && row.lane == lane;
        if self.rows.iter().filter(in_lane).any(|row| row.seen == Visible::NotYet) {
            return None;
        }
        let is_first = self.planted.is(Fault::EffectLaneOvertaken)
            || !self.rows.iter().filter(in_lane).any(Row::is_open);
        let state = if is_first { EffectState::Ready(due) } else { EffectState::Waiting };
        self.rows.push(Row {
            effect: Effect::staged(state),
            kind,
            lane,
            due,
            seen: Visible::NotYet,
            claimed_at: Time::from_ms(0),
        });
        Some(self.rows.len() as u8 - 1)
    }

    /// Ends the transaction that staged an effect.
    pub fn end_stage(&mut self, id: u8, is_committed: bool) {
        let Some(row) = self.rows.get_mut(usize::from(id)) else { return };
        row.seen = if is_committed { Visible::Yes } else { Visible::Never };
        self.events.push(if is_committed {
            let is_waiting = row.effect.state == EffectState::Waiting;
            EffectEvent::Staged { effect: id, kind: row.kind, lane: row.lane, is_waiting }
        } else {
            EffectEvent::RolledBack { effect: id }
        });
    }

    pub fn claim(
        &mut self,
        (worker, epoch): (u8, u16),
        kind: u8,
        most: usize,
        lease: Duration,
        now: Time,
    ) -> Vec<ClaimedRow> {
        let mut due: Vec<(Time, u8)> = Vec::new();
        for (id, row) in self.visible().filter(|(_, row)| row.kind == kind) {
            match row.effect.state {
                EffectState::Ready(from) if from <= now => due.push((from, id)),
                EffectState::Leased(_) if self.reads_unlocked(row, now) => due.push((now, id)),
                EffectState::Waiting
                | EffectState::Ready(_)
                | EffectState::Leased(_)
                | EffectState::Delivered
                | EffectState::Unknown(_)
                | EffectState::Cancelled
                | EffectState::Dead => {}
            }
        }
        due.sort_unstable();
        due.truncate(most);
        self.leave_suspects_alone(&mut due);
        let mut claimed = Vec::new();
        for (_, id) in due {
            let Some(row) = self.row(id) else { continue };
            let role = EffectRole::Claim { worker, epoch };
            if self.reads_unlocked(&row, now) && matches!(row.effect.state, EffectState::Leased(_))
            {
                self.write(id, row.effect, role, now);
                claimed.push(ClaimedRow::of(id, &row.effect));
                continue;
            }
            match row.effect.claim(lease, now) {
                Claimed::Leased(effect) => {
                    self.write(id, effect, role, now);
                    if let Some(row) = self.rows.get_mut(usize::from(id)) {
                        row.claimed_at = now;
                    }
                    claimed.push(ClaimedRow::of(id, &effect));
                }
                Claimed::Unknown(effect) => self.write(id, effect, role, now),
                Claimed::NotReady => {}
            }
        }
        claimed
    }

    /// What may have killed its workers is claimed alone.
    fn leave_suspects_alone(&self, due: &mut Vec<(Time, u8)>) {
        let may_kill = |id: u8| self.row(id).is_some_and(|row| is_suspect(&row.effect));
        let Some(head) = due.first().map(|(_, id)| *id) else { return };
        due.retain(|(_, id)| *id == head || !(may_kill(*id) || may_kill(head)));
    }

    /// Whether a claim without a lock takes what another one is just taking.
    fn reads_unlocked(&self, row: &Row, now: Time) -> bool {
        self.planted.is(Fault::EffectClaimUnlocked)
            && row.effect.mark.is_none()
            && now < row.claimed_at.plus(Duration::from_millis(UNLOCKED_MS))
    }

    pub fn mark(
        &mut self,
        held: &[(u8, u32)],
        resend_for: Option<Duration>,
        now: Time,
    ) -> Vec<MarkedRow> {
        let mut marked = Vec::new();
        for &(id, fence) in held {
            let Some(row) = self.row(id) else { continue };
            let role = EffectRole::Mark { fence };
            let lease_left = match row.effect.state {
                EffectState::Leased(until) => now.until(until),
                EffectState::Waiting
                | EffectState::Ready(_)
                | EffectState::Delivered
                | EffectState::Unknown(_)
                | EffectState::Cancelled
                | EffectState::Dead => Duration::ZERO,
            };
            let decided = self.planted.mark(&row.effect, Fence(fence.into()), resend_for, now);
            let (effect, is_sendable) = match decided {
                Marked::Stands(effect) => (effect, true),
                Marked::Unknown(effect) => (effect, false),
                Marked::Lost => {
                    self.refuse(id, role);
                    continue;
                }
            };
            self.write(id, effect, role, now);
            let resend_left = effect.mark.and_then(|mark| mark.resend_until);
            let resend_left = resend_left.map(|until| now.until(until));
            marked.push(MarkedRow { id, is_sendable, lease_left, resend_left });
        }
        marked
    }

    pub fn renew(&mut self, held: &[(u8, u32)], lease: Duration, now: Time) {
        for &(id, fence) in held {
            let role = EffectRole::Renew { fence };
            let renewed =
                self.row(id).and_then(|row| row.effect.renew(Fence(fence.into()), lease, now));
            self.write_or_refuse(id, renewed, role, now);
        }
    }

    pub fn hand_back(&mut self, held: &[(u8, u32)], now: Time) {
        for &(id, fence) in held {
            let role = EffectRole::HandBack { fence };
            let back = self.row(id).and_then(|row| row.effect.hand_back(Fence(fence.into()), now));
            self.write_or_refuse(id, back, role, now);
        }
    }

    pub fn finish(&mut self, told: &[ToldRow], limits: &DeliveryLimits, now: Time) {
        for told in told {
            let ToldRow { id, fence, failures, end } = *told;
            let Some(row) = self.row(id) else { continue };
            let role = EffectRole::Finish { fence, end: seen_end(end) };
            let named = (Fence(fence.into()), failures);
            match self.planted.finish(&row.effect, named, end, limits, now) {
                Finished::Changed(effect) => self.write(id, effect, role, now),
                Finished::Repeated => {}
                Finished::Lost => self.refuse(id, role),
            }
            self.follow(row.lane, EffectRole::Follow, now);
        }
    }

    pub fn sweep(&mut self, limits: &DeliveryLimits, now: Time) {
        if self.planted.is(Fault::EffectNoSweeper) {
            return;
        }
        for id in 0..self.rows.len() as u8 {
            let swept = self.row(id).and_then(|row| row.effect.sweep(limits, now));
            if let Some(effect) = swept {
                self.write(id, effect, EffectRole::Sweep, now);
            }
        }
    }

    /// Frees the heads of all lanes.
    pub fn sweep_lanes(&mut self, now: Time) {
        for lane in 0..u8::MAX {
            if !self.rows.iter().any(|row| row.lane.is_some_and(|of| of >= lane)) {
                return;
            }
            self.follow(Some(lane), EffectRole::FollowLate, now);
        }
    }

    /// Makes the head of a lane ready, if it waits.
    fn follow(&mut self, lane: Option<u8>, role: EffectRole, now: Time) {
        let Some(lane) = lane else { return };
        let head = self.visible().find(|(_, row)| row.lane == Some(lane) && row.is_open());
        let Some((id, row)) = head.map(|(id, row)| (id, *row)) else { return };
        if row.effect.state == EffectState::Waiting {
            let state = EffectState::Ready(row.due);
            self.write(id, Effect { state, ..row.effect }, role, now);
        }
    }

    pub fn cancel(&mut self, id: u8, now: Time) {
        let Some(row) = self.row(id) else { return };
        let cancelled = self.planted.cancel(&row.effect);
        self.write_or_refuse(id, cancelled.ok(), EffectRole::Cancel, now);
        self.follow(row.lane, EffectRole::Follow, now);
    }

    pub fn requeue(&mut self, id: u8, now: Time) {
        let Some(row) = self.row(id) else { return };
        let requeued = self.planted.requeue(&row.effect, now);
        self.write_or_refuse(id, requeued.ok(), EffectRole::Requeue, now);
    }

    /// Decides an effect that is unknown, by evidence about the delivery of a fence.
    pub fn decide(
        &mut self,
        (id, fence): (u8, u32),
        found: EvidenceSeen,
        settle_ms: u64,
        now: Time,
    ) {
        let Some(row) = self.row(id) else { return };
        let settle_time = Duration::from_millis(settle_ms);
        let evidence = match found {
            EvidenceSeen::Happened => EffectEvidence::Delivered,
            EvidenceSeen::NoEffect => EffectEvidence::NoEffect,
            EvidenceSeen::Unwanted => EffectEvidence::Unwanted,
            EvidenceSeen::Absence => EffectEvidence::Absent { settle_time },
        };
        let decided = if row.effect.fence == Fence(fence.into()) {
            row.effect.resolve(evidence, now)
        } else {
            Err(EffectRefusal::WrongState)
        };
        self.write_or_refuse(id, decided.ok(), EffectRole::Decide { fence, found }, now);
        self.follow(row.lane, EffectRole::Follow, now);
    }

    /// What is unknown, with its fence.
    pub fn unknown(&self) -> impl Iterator<Item = (u8, u32)> {
        self.visible()
            .filter(|(_, row)| matches!(row.effect.state, EffectState::Unknown(_)))
            .map(|(id, row)| (id, row.effect.fence.0 as u32))
    }

    /// What is dead.
    pub fn dead(&self) -> impl Iterator<Item = u8> {
        let is_dead = |(_, row): &(u8, &Row)| row.effect.state == EffectState::Dead;
        self.visible().filter(is_dead).map(|(id, _)| id)
    }

    /// Whether nothing will move by itself any more. What is unknown moves if a person looks after it.
    pub fn rests(&self, has_operator: bool) -> bool {
        let moves = |(_, row): (u8, &Row)| match row.effect.state {
            EffectState::Ready(_) | EffectState::Leased(_) => true,
            EffectState::Unknown(_) => has_operator,
            EffectState::Waiting => {
                let head = self.visible().find(|(_, it)| it.lane == row.lane && it.is_open());
                head.is_none_or(|(_, head)| !head.stops_its_lane(has_operator))
            }
            EffectState::Delivered | EffectState::Cancelled | EffectState::Dead => false,
        };
        !self.visible().any(moves) && !self.rows.iter().any(|row| row.seen == Visible::NotYet)
    }

    fn visible(&self) -> impl Iterator<Item = (u8, &Row)> {
        let numbered = self.rows.iter().enumerate().map(|(id, row)| (id as u8, row));
        numbered.filter(|(_, row)| row.seen == Visible::Yes)
    }

    fn row(&self, id: u8) -> Option<Row> {
        self.rows.get(usize::from(id)).copied().filter(|row| row.seen == Visible::Yes)
    }

    fn write_or_refuse(&mut self, id: u8, effect: Option<Effect>, role: EffectRole, now: Time) {
        match effect {
            Some(effect) => self.write(id, effect, role, now),
            None => self.refuse(id, role),
        }
    }

    fn refuse(&mut self, effect: u8, by: EffectRole) {
        self.events.push(EffectEvent::Refused { effect, by });
    }

    fn write(&mut self, id: u8, effect: Effect, by: EffectRole, now: Time) {
        let Some(row) = self.rows.get_mut(usize::from(id)) else { return };
        row.effect = effect;
        let (place, at) = place_of(effect.state);
        self.events.push(EffectEvent::Wrote(EffectWrote {
            effect: id,
            by,
            place,
            at: at.as_ms(),
            fence: effect.fence.0 as u32,
            mark: effect.mark.map(|mark| EffectMark {
                set_by: mark.set_by.0 as u32,
                until: mark.resend_until.map(Time::as_ms),
            }),
            failures: effect.failures as u8,
            crashes: effect.crashes as u8,
            now: now.as_ms(),
        }));
    }
}

impl ClaimedRow {
    fn of(id: u8, effect: &Effect) -> Self {
        Self {
            id,
            fence: effect.fence.0 as u32,
            failures: effect.failures,
            was_sent: effect.mark.is_some(),
            is_suspect: is_suspect(effect),
        }
    }
}

impl Row {
    /// Whether it is still in the way of others of its lane.
    fn is_open(&self) -> bool {
        let is_over = matches!(self.effect.state, EffectState::Delivered | EffectState::Cancelled);
        !is_over && self.seen != Visible::Never
    }

    fn stops_its_lane(&self, has_operator: bool) -> bool {
        match self.effect.state {
            EffectState::Dead => true,
            EffectState::Unknown(_) => !has_operator,
            EffectState::Waiting
            | EffectState::Ready(_)
            | EffectState::Leased(_)
            | EffectState::Delivered
            | EffectState::Cancelled => false,
        }
    }
}

fn is_suspect(effect: &Effect) -> bool {
    effect.crashes >= SUSPECT_CRASHES
}

fn place_of(state: EffectState) -> (Place, Time) {
    let never = Time::from_ms(0);
    match state {
        EffectState::Waiting => (Place::Waiting, never),
        EffectState::Ready(at) => (Place::Ready, at),
        EffectState::Leased(at) => (Place::Leased, at),
        EffectState::Delivered => (Place::Delivered, never),
        EffectState::Unknown(at) => (Place::Unknown, at),
        EffectState::Cancelled => (Place::Cancelled, never),
        EffectState::Dead => (Place::Dead, never),
    }
}

fn seen_end(end: EffectEnd) -> EndSeen {
    match end {
        EffectEnd::Delivered => EndSeen::Delivered,
        EffectEnd::Rejected => EndSeen::Rejected,
        EffectEnd::NoEffect { .. } => EndSeen::NoEffect,
        EffectEnd::NoAnswer { .. } => EndSeen::NoAnswer,
    }
}
