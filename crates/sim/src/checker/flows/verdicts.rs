//! What may evidence make of a flow?
//!
//! Evidence about a call moves the flow, it does not complete it: the phases after the call are missing.
//! Only an answer as a whole does.

use retrysafe_core::policy::Absence;
use retrysafe_core::record::Standing;

use super::Step;
use crate::checker::{Checker, GrantEnd, Sometimes};
use crate::history::{Found, Role};
use crate::invariant::Invariant as I;

impl Checker {
    pub(super) fn flow_resolved(&mut self, step: &Step<'_>) {
        let Step { wrote, live, before, after } = *step;
        let key = wrote.key;
        self.require(live.standing == Standing::Unknown, I::S30, key);
        self.require(wrote.fence > live.fence, I::S12, key);
        let Role::Judge { fence, evidence } = wrote.by.role else {
            return self.violate(I::S13, Some(key));
        };
        self.require(fence == live.fence, I::S13, key);
        let phase = before.map_or(0, |flow| flow.phase);
        let is_marked = before.is_some_and(|flow| flow.mark.is_some());
        match evidence {
            Found::Effect | Found::OperatorSaysDone => {
                self.reach(Sometimes::FlowEvidenceExecuted);
                self.require(wrote.standing != Standing::Completed, I::F8, key);
                let moved = after.is_some_and(|it| it.phase == phase + 1 && it.mark.is_none());
                let is_left = wrote.standing == Standing::InProgress && wrote.until <= wrote.now;
                self.require(is_marked && moved && is_left, I::F2, key);
                let output = after.map_or(crate::history::NONE, |flow| flow.output);
                self.is_result_of_its_call(live, phase, output, key);
            }
            Found::Declined => {
                self.reach(Sometimes::FlowEvidenceDeclined);
                let is_told = self.is_decline(live, phase, wrote.body);
                self.require(is_told && wrote.standing == Standing::Completed, I::F8, key);
                self.keep_answer(wrote, live);
            }
            Found::Burnt | Found::Absence | Found::NoRows | Found::OperatorSaysNot => {
                let kept = after.map(|flow| (flow.phase, flow.mark));
                let is_before = kept == before.map(|flow| (flow.phase, None));
                self.require(is_before, I::F2, key);
                self.require(wrote.standing == Standing::FailedRetryable, I::S13, key);
                self.require(self.is_proof(step, evidence), I::S13, key);
                if is_marked {
                    self.reach(Sometimes::FlowEvidenceNotExecuted);
                    self.proven_unmade(live, phase, evidence);
                }
            }
        }
        let grant = self.grant(Some(key), live.fence);
        if let Some(grant) = grant.and_then(|at| self.grants.get_mut(at)) {
            grant.end = GrantEnd::Judged(evidence);
        }
        self.kept_for_its_time(wrote, live.generation);
    }

    /// Whether this shows that nothing was executed.
    fn is_proof(&self, step: &Step<'_>, evidence: Found) -> bool {
        let (key, live) = (step.wrote.key, step.live);
        match evidence {
            Found::Burnt => self.burnt.contains(&(key, live.fence)),
            Found::Absence => {
                let waited = self.at.saturating_sub(live.unknown_since);
                self.rules.absence == Absence::Proof && waited >= self.rules.settle_ms
            }
            Found::NoRows => step.before.is_none_or(|flow| flow.mark.is_none()),
            Found::OperatorSaysNot => true,
            Found::Effect | Found::Declined | Found::OperatorSaysDone => false,
        }
    }
}
