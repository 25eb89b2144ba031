//! What can happen next, and what does it make of everything?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use retrysafe_core::machine::{
    self, Begin, BeginDecision, Decision, Event, Evidence, LeaseCheck, Proof, Renew, Resolve,
    Settle, SettleReply, Verdict, Withdraw,
};
use retrysafe_core::record::{Becomes, Doubt, Fence, Judge, Outcome, Record, Standing, Write};
use retrysafe_core::store::Inserted;
use retrysafe_core::time::Time;

use crate::world::{answer, mark_of};
use crate::{
    Bounds, Broken, End, Everything, Fault, LEASE, Owner, Pending, Phase, Reached, Step, TTL,
    TheJudge,
};

impl Bounds {
    pub(super) fn new(
        keys: u8,
        begins_max: u8,
        versions_max: u8,
        ticks_max: u8,
        fault: Option<Fault>,
    ) -> Self {
        Self {
            keys,
            marks: 1,
            owners: 2,
            begins_max,
            versions_max,
            ticks_max,
            fault,
            reached: Arc::default(),
        }
    }

    pub(super) fn reach(&self, what: Reached) {
        self.reached.fetch_or(what as u16, Ordering::Relaxed);
    }

    /// What somebody decides about a record that it has read, as a write under way.
    pub(super) fn pend<E: Event>(
        &self,
        record: &Record,
        key: u8,
        event: &E,
        now: Time,
    ) -> Result<Pending, Option<E::Reply>> {
        match machine::decide(Some(record), event, now) {
            Some(Decision::Write(write)) => Ok(Pending::new(key, record.version, write)),
            Some(Decision::Stands(reply)) => Err(Some(reply)),
            None => Err(None),
        }
    }

    fn decide_begin(&self, record: Record, begin: &Begin<'_>, now: Time) -> BeginDecision {
        let mut begin = *begin;
        if self.fault == Some(Fault::MarkIgnored) {
            begin.mark = record.mark;
        }
        match (machine::decide_begin(Some(record), &begin, now), self.fault) {
            (BeginDecision::Doubt(record, _), Some(Fault::EndedLeaseRuns)) => {
                let Begin { owner, lease, mark, .. } = begin;
                let becomes = Becomes::Begun { owner, lease, mark };
                let write = Write { becomes, new_fence: true, what: None, ttl: None };
                BeginDecision::Execute(record, write)
            }
            (decision, _) => decision,
        }
    }

    pub(super) fn begin(
        &self,
        state: &mut Everything,
        owner: u8,
        key: u8,
        mark: u8,
        acknowledged: bool,
    ) -> Option<()> {
        let at = usize::from(owner);
        state.begins += 1;
        // A number that is used twice would withdraw what another attempt is executing.
        let number = match self.fault {
            Some(Fault::NumberReused) => owner,
            Some(_) | None => state.begins,
        };
        match state.insert(key, number, mark, self) {
            Inserted::New(record) => {
                state.owners[at] = if acknowledged {
                    state.holds(key, mark, record)
                } else {
                    Owner::Doubtful { key, number, pending: None }
                };
            }
            Inserted::Exists(record) => {
                if !acknowledged {
                    return None;
                }
                let begin = Begin {
                    same_request: true,
                    mark: mark_of(mark),
                    owner: u64::from(number),
                    lease: LEASE,
                    request_id: None,
                    flows: &[],
                };
                let is_other_mark = record.mark != begin.mark;
                match self.decide_begin(record, &begin, state.clock()) {
                    BeginDecision::Execute(record, write) | BeginDecision::Doubt(record, write) => {
                        let pending = Pending::new(key, record.version, write);
                        state.owners[at] = Owner::Beginning { number, mark, pending };
                    }
                    BeginDecision::CredentialChanged => {
                        self.reach(Reached::AnotherMarkRefused);
                        return None;
                    }
                    BeginDecision::Insert
                    | BeginDecision::Mismatch
                    | BeginDecision::InProgress(_)
                    | BeginDecision::Held(_)
                    | BeginDecision::Replay(..)
                    | BeginDecision::Unknown(_) => {
                        if !is_other_mark {
                            return None;
                        }
                        state.broken = Some(Broken::AnotherMarkAnswered);
                    }
                }
            }
        }
        Some(())
    }

    pub(super) fn settle(&self, state: &mut Everything, owner: u8) -> Option<()> {
        let now = state.clock();
        let at = usize::from(owner);
        let Owner::Holding(holding) = &mut state.owners[at] else { return None };
        let Phase::Knows(end) = holding.phase else { return None };
        let fence = Fence(u64::from(holding.fence));
        let outcome = match end {
            End::Executed => Outcome::Completed(answer(holding.fence)),
            End::NotExecuted => Outcome::Retryable(None),
            End::Unknown => Outcome::Unknown(Doubt::AnswerLost),
        };
        let event = Settle { fence, outcome: &outcome, ttl: None, point: None };
        match self.pend(&holding.seen.0, holding.key, &event, now) {
            Ok(write) => holding.pending = Some(write),
            Err(reply) => {
                state.owners[at] = Owner::Idle;
                if reply != Some(SettleReply::Repeated) {
                    self.reach(Reached::LateSettleRefused);
                }
            }
        }
        Some(())
    }

    pub(super) fn rule(&self, state: &mut Everything) -> Option<()> {
        let TheJudge::Knows { key, fence, executed } = state.judge else { return None };
        let evidence = if executed {
            Evidence::Executed(answer(fence))
        } else {
            Evidence::NotExecuted(Proof::burnt())
        };
        let about = Fence(u64::from(fence));
        let verdict =
            Verdict { fence: about, evidence, judge: Judge::Reconciler, reason: "".into() };
        let now = state.clock();
        let pending = state
            .record(key)
            .map(|record| (record.clone(), self.pend(record, key, &Resolve(&verdict), now)));
        state.judge = match pending {
            Some((_, Ok(pending))) => TheJudge::Writing { key, fence, executed, pending },
            Some((record, Err(_))) => {
                if record.standing() == Standing::Unknown {
                    self.reach(Reached::StaleVerdictRefused);
                }
                TheJudge::Free
            }
            None => TheJudge::Free,
        };
        Some(())
    }

    pub(super) fn step(&self, state: &mut Everything, step: Step) -> Option<()> {
        match step {
            Step::Tick => state.now += 1,
            Step::Begin { owner, key, mark, acknowledged } => {
                return self.begin(state, owner, key, mark, acknowledged);
            }
            Step::Withdraw { owner } => {
                let Owner::Doubtful { key, number, .. } = state.owners[usize::from(owner)] else {
                    return None;
                };
                let event = Withdraw { owner: u64::from(number) };
                let write = self.pend(state.record(key)?, key, &event, state.clock()).ok()?;
                state.owners[usize::from(owner)] =
                    Owner::Doubtful { key, number, pending: Some(write) };
            }
            Step::Send { owner } => {
                let Owner::Holding(holding) = &mut state.owners[usize::from(owner)] else {
                    return None;
                };
                holding.phase = Phase::Sent;
                let sent = (holding.fence, holding.generation);
                state.places[usize::from(holding.key)].under_way.push(sent);
            }
            Step::DoNotSend { owner } => self.learn(state, owner, End::NotExecuted)?,
            Step::GiveUp { owner } => self.learn(state, owner, End::Unknown)?,
            Step::Renew { owner } => {
                let now = state.clock();
                let Owner::Holding(holding) = &mut state.owners[usize::from(owner)] else {
                    return None;
                };
                let fence = Fence(u64::from(holding.fence));
                let event = Renew { fence, lease: LEASE, lease_max: TTL };
                holding.pending = Some(self.pend(&holding.seen.0, holding.key, &event, now).ok()?);
            }
            Step::Settle { owner } => return self.settle(state, owner),
            Step::Swap { owner, acknowledged } => state.answered(owner, acknowledged, self),
            Step::Crash { owner } => {
                let crashed = std::mem::replace(&mut state.owners[usize::from(owner)], Owner::Idle);
                state.orphan = match crashed {
                    Owner::Idle => return None,
                    Owner::Beginning { pending, .. } => Some(pending),
                    Owner::Doubtful { pending, .. } => pending,
                    Owner::Holding(holding) => holding.pending,
                };
            }
            Step::Effect { key, at, told } => {
                let place = &mut state.places[usize::from(key)];
                let sent = place.under_way.remove(usize::from(at));
                let bounces = sent.0 <= place.burnt;
                if !bounces {
                    place.effects.push(sent);
                }
                let end = if bounces { End::NotExecuted } else { End::Executed };
                if told {
                    self.tell(state, key, sent.0, end);
                }
            }
            Step::Refuse { key, at } => {
                let sent = state.places[usize::from(key)].under_way.remove(usize::from(at));
                self.tell(state, key, sent.0, End::NotExecuted);
            }
            Step::Sweep { key } => {
                let now = state.clock();
                state.sweeper = Some(self.pend(state.record(key)?, key, &LeaseCheck, now).ok()?);
            }
            Step::SweeperSwaps => {
                let pending = state.sweeper.take()?;
                state.swap(&pending);
            }
            Step::LookUp { key } => {
                let fence = state.record(key)?.fence.0 as u8;
                let place = &mut state.places[usize::from(key)];
                let executed = place.effects.iter().any(|(with, _)| *with == fence);
                if !executed {
                    place.burnt = place.burnt.max(fence);
                }
                state.judge = TheJudge::Knows { key, fence, executed };
            }
            Step::Rule => return self.rule(state),
            Step::JudgeSwaps => {
                let TheJudge::Writing { key, fence, executed, pending } = state.judge.clone()
                else {
                    return None;
                };
                state.judge = match state.swap(&pending) {
                    Some(_) => TheJudge::Free,
                    None => TheJudge::Knows { key, fence, executed },
                };
                if executed && state.judge == TheJudge::Free {
                    self.reach(Reached::UnknownExecuted);
                }
            }
            Step::OrphanArrives => {
                let pending = state.orphan.take()?;
                if state.swap(&pending).is_some() {
                    self.reach(Reached::OrphanApplied);
                }
            }
            Step::Reap { key } => {
                let now = state.clock();
                state.record(key).filter(|record| record.is_expired(now))?;
                let place = &mut state.places[usize::from(key)];
                (place.record, place.promised_until) = (None, 0);
            }
        }
        Some(())
    }

    pub(super) fn learn(&self, state: &mut Everything, owner: u8, end: End) -> Option<()> {
        let Owner::Holding(holding) = &mut state.owners[usize::from(owner)] else {
            return None;
        };
        holding.phase = Phase::Knows(end);
        Some(())
    }

    /// The upstream's answer reaches whoever waits for it, if anybody does.
    pub(super) fn tell(&self, state: &mut Everything, key: u8, fence: u8, end: End) {
        for owner in &mut state.owners {
            if let Owner::Holding(holding) = owner
                && holding.phase == Phase::Sent
                && (holding.key, holding.fence) == (key, fence)
            {
                holding.phase = Phase::Knows(end);
            }
        }
    }

    pub(super) fn steps_of(&self, owner: u8, state: &Everything, steps: &mut Vec<Step>) {
        let mut may_swap = |pending: &Option<Pending>| {
            if pending.is_some() {
                steps.extend([true, false].map(|acknowledged| Step::Swap { owner, acknowledged }));
            }
            pending.is_some()
        };
        match &state.owners[usize::from(owner)] {
            Owner::Idle => {
                let asked =
                    (0..self.keys).flat_map(|key| (0..self.marks).map(move |mark| (key, mark)));
                for (key, mark) in asked {
                    steps.extend([true, false].map(|acknowledged| Step::Begin {
                        owner,
                        key,
                        mark,
                        acknowledged,
                    }));
                }
                return;
            }
            Owner::Beginning { .. } => {
                steps.extend([true, false].map(|acknowledged| Step::Swap { owner, acknowledged }));
            }
            Owner::Doubtful { pending, .. } => {
                if !may_swap(pending) {
                    steps.push(Step::Withdraw { owner });
                }
            }
            Owner::Holding(holding) => {
                let busy = may_swap(&holding.pending);
                match holding.phase {
                    Phase::Granted => {
                        steps.extend([Step::Send { owner }, Step::DoNotSend { owner }]);
                    }
                    Phase::Sent if !busy => {
                        steps.extend([Step::GiveUp { owner }, Step::Renew { owner }]);
                    }
                    Phase::Knows(_) if !busy => steps.push(Step::Settle { owner }),
                    Phase::Sent | Phase::Knows(_) => {}
                }
            }
        }
        steps.push(Step::Crash { owner });
    }
}
