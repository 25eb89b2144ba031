//! What may a flow do?
//!
//! The rules about records that have a recovery point: from where to where it moves, by whom, what a
//! first-sent mark permits, and what a verdict makes of it. What belongs to the provider is in
//! [`charges`]. Histories of flows come here with every write; the others never do.

mod charges;
mod verdicts;

use retrysafe_core::record::Standing;

use super::records::is_decided;
use super::{Checker, GrantEnd, Live, Sometimes};
use crate::flow_plan::{FlowPlan, PhaseKind};
use crate::history::{Act, FlowSeen, NONE, Role, What, Wrote};
use crate::invariant::Invariant as I;
use crate::options::Profile;

pub(super) use charges::ChargeSeen;

/// How many rows a phase writes, by the page of the simulation; not taken from its store.
const ROWS_OF_PHASE: u8 = 2;

/// Rows that were written, and whose recovery point must follow at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowsSeen {
    key: u8,
    phase: u8,
}

/// A write, and how far the flow was before and after it.
#[derive(Clone, Copy)]
struct Step<'a> {
    wrote: &'a Wrote,
    live: Live,
    before: Option<FlowSeen>,
    after: Option<FlowSeen>,
}

impl Checker {
    pub(super) fn flow_seen(&mut self, seen: FlowSeen) {
        self.next_flow = Some(seen);
    }

    /// The rows of a phase: all of them, and once in a generation.
    pub(super) fn rows_written(&mut self, key: u8, phase: u8, rows: u8) {
        let pending = self.pending_rows.replace(RowsSeen { key, phase });
        self.require(pending.is_none() && rows == ROWS_OF_PHASE, I::S28, key);
        let generation = self.live(key).map(|live| live.generation);
        let generation = generation.and_then(|it| self.generations.get_mut(usize::from(it)));
        let bit = 1u8.checked_shl(u32::from(phase)).unwrap_or_default();
        let was_there = generation.is_none_or(|generation| {
            let was_there = generation.rows & bit != 0;
            generation.rows |= bit;
            was_there
        });
        self.require(!was_there, I::S28, key);
    }

    /// Nothing comes between the rows of a commit and its recovery point.
    pub(super) fn rows_are_followed(&mut self, what: &What) {
        let is_of_commit = matches!(what, What::Flow(_) | What::Wrote(_));
        if let (Some(pending), false) = (self.pending_rows, is_of_commit) {
            self.pending_rows = None;
            self.violate(I::S28, Some(pending.key));
        }
    }

    pub(super) fn flow_of(&self, key: u8) -> Option<FlowSeen> {
        self.keys.get(usize::from(key)).and_then(|key| key.flow)
    }

    /// Whether something has happened that must not be forgotten.
    pub(super) fn holds_work(&self, key: u8) -> bool {
        self.flow_of(key).is_some_and(|flow| flow.phase > 0 || flow.mark.is_some())
    }

    /// Whether it is a flow that could go on, and that no process knows any more.
    pub(super) fn is_held_for_good(&self, key: u8, live: Live) -> bool {
        let (Some(flow), Some(plan)) = (self.flow_of(key), self.rules.flow) else { return false };
        let could_go_on = match live.standing {
            Standing::InProgress => flow.mark.is_none(),
            Standing::FailedRetryable => true,
            Standing::Completed | Standing::Unknown => false,
        };
        let count = self.gateways.iter().filter(|gateway| gateway.epoch > 0).count() as u8;
        could_go_on && !(0..count).any(|gateway| knows(plan, gateway, true, flow.version))
    }

    /// A write to a record that is there, in a history of flows.
    pub(super) fn flow_wrote(&mut self, wrote: &Wrote, live: Live) {
        let before = self.flow_of(wrote.key);
        let after = self.next_flow.take().filter(|seen| seen.key == wrote.key);
        let rows = self.pending_rows.take();
        let step = Step { wrote, live, before, after };
        self.rows_belong(&step, rows);
        match wrote.act {
            Act::Began => self.flow_began(&step),
            Act::Advanced => self.flow_advanced(&step),
            Act::Settled => self.flow_settled(&step),
            Act::Resolved => self.flow_resolved(&step),
            Act::Doubted => {
                self.flow_stands(&step);
                self.doubted(wrote, live);
                self.note_doubt(&step);
            }
            Act::Renewed => {
                self.flow_stands(&step);
                self.renewed(wrote, live);
                self.lease_lasts(wrote);
            }
            Act::HeadKept => self.violate(I::F2, Some(wrote.key)),
            Act::Remarked | Act::LookedUp => {
                self.flow_stands(&step);
                self.require(wrote.standing == live.standing, I::S30, wrote.key);
            }
            Act::Expired => {
                let may_end = is_decided(live.standing) && wrote.by.role == Role::Expirer;
                self.require(may_end, I::S22, wrote.key);
                self.require(!self.holds_work(wrote.key), I::F7, wrote.key);
            }
            Act::Inserted | Act::RolledBack => {}
        }
        if let Some(key) = self.keys.get_mut(usize::from(wrote.key)) {
            key.flow = after;
        }
    }

    /// Only a step of its own moves a flow.
    fn flow_stands(&mut self, step: &Step<'_>) {
        self.require(step.before == step.after, I::F2, step.wrote.key);
    }

    /// Rows and recovery point are of one phase, and neither is without the other.
    fn rows_belong(&mut self, step: &Step<'_>, rows: Option<RowsSeen>) {
        let key = step.wrote.key;
        let of_transaction = match (step.wrote.act, step.before, step.after) {
            (Act::Advanced, Some(before), Some(after)) if before.mark.is_none() => {
                (after.phase == before.phase + 1).then_some(before.phase)
            }
            (Act::Settled, Some(before), None) if before.mark.is_none() => {
                (step.wrote.standing == Standing::Completed).then_some(before.phase)
            }
            (_, _, _) => None,
        };
        let wrote = rows.filter(|rows| rows.key == key).map(|rows| rows.phase);
        self.require(wrote == of_transaction && rows.is_some() == wrote.is_some(), I::S28, key);
    }

    /// A new owner: of a flow that may go on, or of a record that was released.
    fn flow_began(&mut self, step: &Step<'_>) {
        let Step { wrote, live, before, .. } = *step;
        let key = wrote.key;
        self.flow_stands(step);
        match live.standing {
            Standing::FailedRetryable => {
                self.require(before.is_none_or(|flow| flow.mark.is_none()), I::F3, key);
                if before.is_some_and(|flow| flow.phase > 0) {
                    self.reach(Sometimes::FlowReleasedGoesOn);
                }
            }
            Standing::InProgress => {
                let is_over = live.until <= self.clock_max;
                self.require(is_over && before.is_some(), I::S10, key);
                // That the provider may have forgotten its key is asked again before the wire.
                let may_go_on =
                    before.and_then(|flow| flow.mark).is_none_or(|mark| mark.until.is_some());
                self.require(may_go_on, I::F6, key);
                self.note_takeover(before);
            }
            Standing::Unknown => self.violate(I::S9, Some(key)),
            Standing::Completed => self.violate(I::S30, Some(key)),
        }
        if let Some(flow) = before {
            self.knows_version(wrote, flow.version);
        }
        self.grants_to(wrote, live.generation);
        self.lease_lasts(wrote);
    }

    fn note_takeover(&mut self, before: Option<FlowSeen>) {
        self.reach(match before {
            Some(FlowSeen { mark: Some(_), .. }) => Sometimes::FlowResumedCall,
            Some(FlowSeen { phase: 1.., .. }) => Sometimes::FlowResumedPhase,
            Some(_) | None => Sometimes::FlowResumedStart,
        });
    }

    fn knows_version(&mut self, wrote: &Wrote, version: u8) {
        let Some(plan) = self.rules.flow else { return };
        // Whoever has asked before the healing knows what it knew then.
        let is_known = [false, self.healed_at.is_some()]
            .into_iter()
            .any(|is_healed| knows(plan, wrote.by.gateway, is_healed, version));
        self.require(is_known, I::F9, wrote.key);
    }

    /// A step by the owner. From unknown only the result of a call counts.
    fn flow_advanced(&mut self, step: &Step<'_>) {
        let Step { wrote, live, before, after } = *step;
        let key = wrote.key;
        let is_late = live.standing == Standing::Unknown;
        let mine = wrote.by.role == Role::Owner { fence: live.fence }
            && self.is_of_owner(wrote, live.fence);
        self.require(mine, I::S11, key);
        self.require(!is_decided(live.standing), I::F2, key);
        self.require(wrote.standing == Standing::InProgress, I::F2, key);
        let is_step = after.is_some_and(|after| match before {
            None => (after.phase, after.mark) == (0, None) && !is_late,
            Some(before) => {
                self.is_one_step(before, after, live.fence) && { !is_late || before.mark.is_some() }
            }
        });
        self.require(is_step, I::F2, key);
        if let (None, Some(after)) = (before, after) {
            self.knows_version(wrote, after.version);
        }
        // Somebody else goes on after a late result; else the lease is as it was.
        let lease_fits = if is_late {
            wrote.until <= wrote.now && wrote.fence > live.fence
        } else {
            wrote.until == live.until
        };
        self.require(lease_fits, I::F2, key);
        if let (Some(before), Some(after)) = (before, after)
            && before.mark.is_some()
        {
            self.is_result_of_its_call(live, before.phase, after.output, key);
            if is_late {
                self.reach(Sometimes::FlowLateResult);
            }
        }
    }

    fn is_one_step(&self, before: FlowSeen, after: FlowSeen, fence: u32) -> bool {
        let kind = self.rules.flow.and_then(|plan| plan.phase(u16::from(before.phase)));
        let is_next = after.phase == before.phase + 1;
        after.version == before.version
            && match (before.mark, after.mark) {
                (None, None) => is_next && kind == Some(PhaseKind::Tx),
                (None, Some(mark)) => {
                    after.phase == before.phase
                        && kind == Some(PhaseKind::Charge)
                        && mark.set_by == fence
                }
                (Some(_), None) => is_next && kind == Some(PhaseKind::Charge),
                (Some(_), Some(_)) => false,
            }
    }

    fn flow_settled(&mut self, step: &Step<'_>) {
        let Step { wrote, live, before, .. } = *step;
        let key = wrote.key;
        let grant = self.grant(Some(key), live.fence);
        self.require(!is_decided(live.standing), I::S30, key);
        match wrote.by.role {
            Role::Owner { fence } => {
                let mine = fence == live.fence && self.is_of_owner(wrote, live.fence);
                self.require(mine, I::S11, key);
                self.settled_by_owner(step);
                if let Some(grant) = grant.and_then(|at| self.grants.get_mut(at)) {
                    grant.end = GrantEnd::Settled(wrote.standing);
                }
            }
            Role::Withdraw => {
                self.reach(Sometimes::Withdrawal);
                if live.standing == Standing::Unknown {
                    self.reach(Sometimes::UnknownWithdrawn);
                }
                if before.is_some() {
                    // The former owner may have sent: only the lease ends.
                    self.reach(Sometimes::FlowTakeoverWithdrawn);
                    self.flow_stands_under_mark(step);
                    self.require(wrote.standing == Standing::InProgress, I::F3, key);
                } else {
                    self.require(wrote.standing == Standing::FailedRetryable, I::S14, key);
                }
                if let Some(grant) = grant.and_then(|at| self.grants.get_mut(at)) {
                    grant.end = GrantEnd::Withdrawn;
                }
            }
            Role::Opening => {
                // Its process is gone, so somebody else may go on at once.
                self.reach(Sometimes::StoreReopened);
                self.require(self.rules.profile == Profile::SingleOwner, I::S24, key);
                self.require(wrote.standing == Standing::InProgress, I::F2, key);
                self.flow_stands(step);
            }
            Role::Begin { .. }
            | Role::Completer
            | Role::Sweeper
            | Role::Reaper
            | Role::Reader
            | Role::Judge { .. }
            | Role::Expirer
            | Role::FailOver => self.violate(I::S11, Some(key)),
        }
        self.kept_for_its_time(wrote, live.generation);
    }

    /// As [`flow_stands`](Self::flow_stands), where a mark that is gone is the graver matter.
    fn flow_stands_under_mark(&mut self, step: &Step<'_>) {
        let marks = (step.before.and_then(|it| it.mark), step.after.and_then(|it| it.mark));
        self.require(marks.0 == marks.1, I::F3, step.wrote.key);
        let phases = (step.before.map(|it| it.phase), step.after.map(|it| it.phase));
        self.require(phases.0 == phases.1, I::F2, step.wrote.key);
    }

    fn settled_by_owner(&mut self, step: &Step<'_>) {
        let Step { wrote, live, before, after } = *step;
        let key = wrote.key;
        match wrote.standing {
            Standing::InProgress => {
                self.flow_stands_under_mark(step);
                self.require(wrote.until <= wrote.now, I::F2, key);
            }
            Standing::Unknown => {
                self.flow_stands_under_mark(step);
                self.note_doubt(step);
            }
            Standing::FailedRetryable => {
                let marked = before.and_then(|flow| flow.mark.map(|mark| (flow.phase, mark)));
                if let Some((phase, mark)) = marked {
                    let sent = self.has_sent(live, phase, live.fence);
                    self.require(mark.set_by == live.fence && !sent, I::F3, key);
                    self.reach(Sometimes::FlowNotSentClears);
                }
                let kept = |flow: Option<FlowSeen>| flow.map(|it| (it.phase, it.output));
                self.require(kept(before) == kept(after), I::F2, key);
                self.require(after.is_none_or(|flow| flow.mark.is_none()), I::F3, key);
            }
            Standing::Completed => self.flow_completed(step),
        }
    }

    /// The end of a flow: by its last transaction, or by a provider that has declined.
    fn flow_completed(&mut self, step: &Step<'_>) {
        let Step { wrote, live, before, .. } = *step;
        let key = wrote.key;
        let plan = self.rules.flow;
        let is_whole = before.is_some_and(|flow| {
            let phase = u16::from(flow.phase);
            let is_last = plan.is_some_and(|plan| plan.is_last(phase));
            match flow.mark {
                None => is_last && plan.and_then(|plan| plan.phase(phase)) == Some(PhaseKind::Tx),
                Some(_) => self.is_decline(live, flow.phase, wrote.body),
            }
        });
        self.require(is_whole && wrote.body != NONE, I::F8, key);
        let by_completer = self
            .grant(Some(key), live.fence)
            .and_then(|at| self.grants.get(at))
            .is_some_and(|grant| grant.conn == NONE);
        if by_completer {
            self.reach(Sometimes::FlowCompleterFinishes);
        }
        self.keep_answer(wrote, live);
    }

    /// What is answered from now on.
    fn keep_answer(&mut self, wrote: &Wrote, live: Live) {
        if let Some(generation) = self.generations.get_mut(usize::from(live.generation)) {
            generation.kept = Some((wrote.status, wrote.body));
        }
    }

    /// How long, by the recorder's clock, an owner may believe in its lease.
    pub(super) fn lease_lasts(&mut self, wrote: &Wrote) {
        let ends_at = self.at.saturating_add(wrote.until.saturating_sub(wrote.now));
        let grant = self.grant(Some(wrote.key), wrote.fence);
        if let Some(grant) = grant.and_then(|at| self.grants.get_mut(at)) {
            grant.lease_ends_at = grant.lease_ends_at.max(ends_at);
        }
    }

    fn note_doubt(&mut self, step: &Step<'_>) {
        if let Some(mark) = step.before.and_then(|flow| flow.mark) {
            self.reach(match mark.until {
                Some(_) => Sometimes::FlowForgotten,
                None => Sometimes::FlowUnkeyedUnknown,
            });
        }
    }

    /// A final answer of a flow is what its record keeps, for everybody.
    pub(super) fn flow_answer(&mut self, conn: super::Conn, (status, body): (u16, u16)) {
        let holds = self.lived(conn, |generation| {
            generation.print == conn.print && generation.kept == Some((status, body))
        });
        self.require(holds, I::S5, conn.key);
    }
}

fn knows(plan: FlowPlan, gateway: u8, is_healed: bool, version: u8) -> bool {
    plan.versions.known_to(gateway, is_healed).contains(&u32::from(version))
}
