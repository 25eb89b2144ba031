//! What does the upstream do with a request?
//!
//! It works, takes effect and answers, each of which may be late, and the last of which may be
//! lost, broken off, too large or an error. Effects are written into the history as they happen:
//! they are the ground truth. It does nothing twice by itself. It remembers what it did, so that a
//! reconciler can ask; and where the options say so it can *burn* a fence, after which a late
//! request with that fence bounces.

use std::task::Poll;

use retrysafe_core::policy::{End, Said};
use retrysafe_core::record::Answer;

use super::wire::STORE_DEADLINE_MS;
use super::{Event, TaskNo, World, tables};
use crate::history::{SaidSo, TRUNCATED, What};
use crate::options::Kind;

/// One request to the upstream, and what becomes of it.
pub struct Exec {
    pub key: u8,
    fence: u32,
    print: u8,
    gateway: u8,
    epoch: u16,
    waiter: TaskNo,
    plan: Plan,
    took_effect: bool,
    took_effect_at: u64,
    heard: bool,
}

/// What the upstream will do, drawn when the request is sent.
#[derive(Clone, Copy)]
struct Plan {
    effect: bool,
    status: u16,
    said: SaidSo,
    large: bool,
    whole: bool,
    panics: bool,
    answer_lost: bool,
}

/// A question to the upstream about a fence.
pub struct Lookup {
    key: u8,
    fence: u32,
    burn: bool,
    lost: bool,
    waiter: TaskNo,
    looked: Option<Looked>,
    heard: bool,
}

/// What the upstream says about a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It took effect, in this execution.
    Found(u16),
    /// It has not taken effect. So far.
    Absent,
    /// It has not taken effect and will not.
    Burnt,
    /// No answer.
    Lost,
}

impl World {
    /// A gateway sends a request on, for the present task.
    pub fn send(&mut self, key: u8, fence: u32, print: u8, gateway: u8, epoch: u16) -> u16 {
        let exec = self.execs.len() as u16;
        let plan = self.plan_execution();
        self.execs.push(Exec {
            key,
            fence,
            print,
            gateway,
            epoch,
            waiter: self.current,
            plan,
            took_effect: false,
            took_effect_at: 0,
            heard: false,
        });
        if !self.strike(Kind::UpstreamLost, 4) {
            let ms = if self.strike(Kind::UpstreamSlow, 8) {
                self.chance.scaled(10, self.options.upstream_way_max_ms())
            } else {
                self.chance.between(1, 10)
            };
            self.after(ms, Event::UpstreamArrives(exec));
        }
        exec
    }

    fn plan_execution(&mut self) -> Plan {
        let mut plan = Plan {
            effect: true,
            status: 201,
            said: SaidSo::Nothing,
            large: self.strike(Kind::TooLarge, 8),
            whole: true,
            panics: self.strike(Kind::Panic, 4),
            answer_lost: self.strike(Kind::UpstreamLost, 6),
        };
        if self.strike(Kind::UpstreamErrors, 25) {
            (plan.status, plan.effect, plan.said) = self.chance.pick(
                (500, false, SaidSo::Nothing),
                &[
                    (500, true, SaidSo::Nothing),
                    (503, false, SaidSo::Nothing),
                    (402, false, SaidSo::Nothing),
                    (404, false, SaidSo::Nothing),
                    (429, false, SaidSo::Nothing),
                    (502, true, SaidSo::Nothing),
                    (504, false, SaidSo::Nothing),
                    (500, true, SaidSo::Completed),
                    (200, false, SaidSo::Retryable),
                    (200, true, SaidSo::Unknown),
                ],
            );
        }
        if self.strike(Kind::Truncated, 6) {
            plan.whole = false;
        }
        if plan.panics {
            (plan.effect, plan.status) = (self.chance.percent(50), 201);
        }
        plan
    }

    pub fn upstream_arrives(&mut self, exec: u16) {
        let Some(it) = self.execs.get(usize::from(exec)) else { return };
        let (key, fence, print) = (it.key, it.fence, it.print);
        if self.is_burnt(key, fence) {
            self.bounce(exec);
            return;
        }
        self.record(What::Ran { exec, key, fence, print });
        let ms = if self.strike(Kind::UpstreamSlow, 20) {
            self.chance.scaled(50, self.options.upstream_work_max_ms())
        } else {
            self.chance.between(1, 60)
        };
        self.after(ms, Event::TakesEffect(exec));
    }

    pub fn takes_effect(&mut self, exec: u16) {
        let Some(it) = self.execs.get_mut(usize::from(exec)) else { return };
        let (key, fence) = (it.key, it.fence);
        if it.plan.effect {
            // The burn is checked in the same step as the effect, or it would be no proof.
            if self.is_burnt(key, fence) {
                self.bounce(exec);
                return;
            }
            if let Some(it) = self.execs.get_mut(usize::from(exec)) {
                (it.took_effect, it.took_effect_at) = (true, self.now);
            }
            self.record(What::Effect { exec });
            self.report_effect(exec);
            if self.options.webhooks && self.chance.percent(60) {
                for _ in 0..self.chance.between(1, 2) {
                    let ms = self.chance.scaled(5, 4 * self.options.lease_ms);
                    self.after(ms, Event::WebhookArrives(exec));
                }
            }
        }
        let ms = self.chance.between(1, 20);
        self.after(ms, Event::UpstreamAnswers(exec));
    }

    fn bounce(&mut self, exec: u16) {
        if let Some(it) = self.execs.get_mut(usize::from(exec)) {
            it.plan = Plan {
                effect: false,
                status: 409,
                said: SaidSo::Retryable,
                large: false,
                whole: true,
                panics: false,
                ..it.plan
            };
            let what = What::Bounced { key: it.key, fence: it.fence };
            self.record(what);
        }
        self.upstream_answers(exec);
    }

    pub fn upstream_answers(&mut self, exec: u16) {
        let Some(it) = self.execs.get(usize::from(exec)) else { return };
        let plan = it.plan;
        self.record(if plan.panics {
            What::Panicked { exec }
        } else {
            let Plan { status, said, large, .. } = plan;
            What::Replied { exec, status, said, large, slow: false, head: 0 }
        });
        if plan.panics || !plan.answer_lost {
            let ms = self.chance.between(1, 10);
            self.after(ms, Event::AnswerArrives(exec));
        }
    }

    pub fn answer_arrives(&mut self, exec: u16) {
        let Some(it) = self.execs.get_mut(usize::from(exec)) else { return };
        let lives = self
            .gateways
            .get(usize::from(it.gateway))
            .is_some_and(|process| process.up && process.epoch == it.epoch);
        if lives {
            it.heard = true;
            self.ready.push(it.waiter);
        }
    }

    /// What a gateway has from its upstream, until a time.
    pub fn end(&mut self, exec: u16, until: u64) -> Poll<Option<End>> {
        let Some(it) = self.execs.get(usize::from(exec)) else { return Poll::Ready(None) };
        if !it.heard {
            return if self.now >= until { Poll::Ready(None) } else { Poll::Pending };
        }
        let plan = it.plan;
        if plan.panics {
            self.record(What::GotPanic { exec });
            return Poll::Ready(Some(End::Panicked));
        }
        self.record(What::GotAnswer { exec, whole: plan.whole });
        if !plan.whole && self.options.fault != Some(crate::fault::Fault::TruncatedKept) {
            return Poll::Ready(Some(End::AnswerLost));
        }
        let said = match plan.said {
            SaidSo::Nothing => None,
            SaidSo::Completed => Some(Said::Completed),
            SaidSo::Retryable => Some(Said::Retryable),
            SaidSo::Unknown => Some(Said::Unknown),
        };
        let mark = if plan.whole { 0 } else { TRUNCATED };
        let response = tables::response(plan.status, exec | mark);
        Poll::Ready(Some(if plan.large {
            End::TooLarge { status: response.status, location: None, by_upstream: true, said }
        } else {
            End::Answered { response, by_upstream: true, said }
        }))
    }

    /// Whether the answer is too large to be kept.
    pub fn is_large(&self, exec: u16) -> bool {
        self.execs.get(usize::from(exec)).is_some_and(|it| it.plan.large)
    }

    /// Status of the answer that the upstream gave, for the caller who gets it whole.
    pub fn status_of(&self, exec: u16) -> u16 {
        self.execs.get(usize::from(exec)).map(|it| it.plan.status).unwrap_or_default()
    }

    /// Whose execution it is.
    pub fn exec_about(&self, exec: u16) -> Option<(u8, u32, u8)> {
        self.execs.get(usize::from(exec)).map(|it| (it.key, it.fence, it.print))
    }

    /// The executions that a process was waiting for.
    pub fn execs_of(&self, gateway: u8) -> impl Iterator<Item = u16> {
        (self.execs.iter().enumerate())
            .filter(move |(_, it)| it.gateway == gateway && !it.heard)
            .map(|(exec, _)| exec as u16)
    }

    /// What the upstream would tell about an execution that took effect.
    pub fn remembered(&self, exec: u16) -> Answer {
        let plan = self.execs.get(usize::from(exec)).map(|it| it.plan);
        let status = match plan {
            Some(plan) if plan.status < 500 => plan.status,
            Some(_) | None => 201,
        };
        let response = tables::response(status, exec);
        if plan.is_some_and(|plan| plan.large) {
            Answer::NotKept { status: Some(response.status), location: None }
        } else {
            Answer::Kept(response)
        }
    }

    /// The execution in which a fence took effect, if it did.
    pub fn effect_of(&self, key: u8, fence: u32) -> Option<u16> {
        (self.execs.iter())
            .position(|it| it.key == key && it.fence == fence && it.took_effect)
            .map(|at| at as u16)
    }

    /// Asks the upstream about a fence, for the present task; with `burn` it is to refuse it.
    pub fn look_up(&mut self, key: u8, fence: u32, burn: bool) -> u16 {
        let number = self.lookups.len() as u16;
        let lost = self.strike(Kind::UpstreamLost, 10) || self.is_silent();
        // What is lost may be the question or the answer.
        let arrives = !lost || self.chance.percent(50);
        self.lookups.push(Lookup {
            key,
            fence,
            burn,
            lost,
            waiter: self.current,
            looked: None,
            heard: false,
        });
        if arrives {
            let ms = self.chance.between(1, 10);
            self.after(ms, Event::LookupArrives(number));
        }
        if lost {
            self.after(STORE_DEADLINE_MS, Event::LookupReplies(number));
        }
        number
    }

    pub fn lookup_arrives(&mut self, number: u16) {
        let Some(lookup) = self.lookups.get(usize::from(number)) else { return };
        let (key, fence, burn, lost) = (lookup.key, lookup.fence, lookup.burn, lookup.lost);
        let looked = match self.effect_of(key, fence) {
            // Whoever burns asks where it is written.
            Some(exec) if burn || self.is_visible(exec) => Looked::Found(exec),
            Some(_) => Looked::Absent,
            None if burn => {
                while self.burnt.len() <= usize::from(key) {
                    self.burnt.push(0);
                }
                if let Some(burnt) = self.burnt.get_mut(usize::from(key)) {
                    *burnt = (*burnt).max(fence);
                }
                self.record(What::Burnt { key, fence });
                Looked::Burnt
            }
            None => Looked::Absent,
        };
        if self.options.provider.is_some() {
            let found = matches!(looked, Looked::Found(_));
            self.record(What::Looked { key, fence, found });
        }
        if let Some(lookup) = self.lookups.get_mut(usize::from(number)) {
            lookup.looked = Some(looked);
        }
        if !lost {
            let ms = if self.strike(Kind::UpstreamSlow, 20) {
                self.chance.scaled(10, 4 * self.options.lease_ms)
            } else {
                self.chance.between(1, 10)
            };
            self.after(ms, Event::LookupReplies(number));
        }
    }

    /// Whether a lookup shows what was done: each is behind by another length.
    fn is_visible(&mut self, exec: u16) -> bool {
        let Some(plan) = self.options.provider else { return true };
        let lag = self.chance.below(plan.lag_max_ms + 1);
        let done_at = self.execs.get(usize::from(exec)).map_or(0, |it| it.took_effect_at);
        done_at + lag <= self.now
    }

    /// Whether a lookup fails, or says that it does not know yet.
    fn is_silent(&mut self) -> bool {
        let Some(plan) = self.options.provider else { return false };
        let fails = self.healed_at.is_none() && self.chance.percent(plan.silent_percent);
        let is_silent = fails || !plan.has_lookups;
        self.faults += u64::from(is_silent);
        is_silent
    }

    pub fn lookup_replies(&mut self, number: u16) {
        if let Some(lookup) = self.lookups.get_mut(usize::from(number)) {
            lookup.heard = true;
            self.ready.push(lookup.waiter);
        }
    }

    /// What came of a question.
    pub fn looked(&self, number: u16) -> Poll<Looked> {
        match self.lookups.get(usize::from(number)) {
            Some(lookup) if !lookup.heard => Poll::Pending,
            Some(Lookup { looked: Some(looked), lost: false, .. }) => Poll::Ready(*looked),
            Some(_) | None => Poll::Ready(Looked::Lost),
        }
    }

    pub fn is_burnt(&self, key: u8, fence: u32) -> bool {
        self.burnt.get(usize::from(key)).is_some_and(|burnt| fence <= *burnt && fence != 0)
    }
}
