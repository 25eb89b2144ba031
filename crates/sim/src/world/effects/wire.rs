//! What goes wrong between a worker and the store?
//!
//! A question that was sent arrives, also if its asker has given up or died. It may be lost, late or doubled; its answer
//! may be lost; the store may refuse it.

use std::time::Duration;

use retrysafe_core::effect::DeliveryLimits;

use super::{EffectWorld, Event};
use crate::effects::table::{ClaimedRow, MarkedRow, ToldRow};
use crate::history::EffectEvent;
use crate::options::Kind;

/// How long a worker waits for the store.
pub(super) const ASK_MAX_MS: u64 = 2_000;

/// A question to the store.
pub(super) struct Ask {
    pub worker: u8,
    pub epoch: u16,
    pub asked_at: u64,
    pub question: Question,
    pub answer: Answer,
    /// Whether something goes wrong with it.
    is_troubled: bool,
    /// Whether its asker has heard, or has given up.
    pub is_closed: bool,
}

pub(super) enum Question {
    Claim { kind: u8, most: usize },
    Mark { kind: u8, held: Vec<(u8, u32)> },
    Renew(Vec<(u8, u32)>),
    HandBack(Vec<(u8, u32)>),
    Finish(Vec<ToldRow>),
    Sweep,
}

#[derive(Default)]
pub(super) enum Answer {
    #[default]
    Nothing,
    Claimed(Vec<ClaimedRow>),
    Marked(Vec<MarkedRow>),
    Done,
}

impl EffectWorld {
    /// Asks the store.
    pub(super) fn ask(&mut self, worker: u8, epoch: u16, question: Question) {
        let number = self.asks.len() as u16;
        let is_cut_off = self.is_cut_off(worker);
        let is_lost = self.strike(Kind::StoreLost, 8);
        let is_answer_lost = self.strike(Kind::StoreLost, 8);
        let is_late = self.strike(Kind::StoreLate, 6);
        let is_twice = self.strike(Kind::StoreTwice, 8);
        let out_ms = if is_late {
            ASK_MAX_MS + self.chance.scaled(1, 2 * self.plan.lease_ms)
        } else {
            self.chance.between(1, 10)
        };
        let back_ms = self.chance.between(1, 10);
        let is_heard = !(is_cut_off || is_lost || is_answer_lost || is_late);
        let is_troubled = !is_heard || is_twice;
        if is_troubled {
            self.note(EffectEvent::Troubled { worker });
        }
        if !(is_cut_off || is_lost) {
            self.after(out_ms, Event::AskArrives(number));
        }
        if is_twice {
            let again_ms = out_ms + self.chance.scaled(1, 2 * self.plan.lease_ms);
            self.after(again_ms, Event::AskArrives(number));
        }
        if is_heard {
            self.after(out_ms + back_ms, Event::AskAnswered(number));
        } else {
            self.after(ASK_MAX_MS, Event::AskFails(number));
        }
        let asked_at = self.now;
        self.asks.push(Ask {
            worker,
            epoch,
            asked_at,
            question,
            answer: Answer::Nothing,
            is_troubled,
            is_closed: false,
        });
    }

    pub(super) fn ask_arrives(&mut self, number: u16) {
        let now = self.store_now();
        let lease = Duration::from_millis(self.plan.lease_ms);
        let limits = self.limits();
        let Some(ask) = self.asks.get_mut(usize::from(number)) else { return };
        let table = &mut self.table;
        let answer = match &ask.question {
            Question::Claim { kind, most } => {
                let asker = (ask.worker, ask.epoch);
                Answer::Claimed(table.claim(asker, *kind, *most, lease, now))
            }
            Question::Mark { kind, held } => {
                let resend_for = self.planted.resend_for(&self.plan, *kind);
                Answer::Marked(table.mark(held, resend_for, now))
            }
            Question::Renew(held) => {
                table.renew(held, lease, now);
                Answer::Done
            }
            Question::HandBack(held) => {
                table.hand_back(held, now);
                Answer::Done
            }
            Question::Finish(told) => {
                table.finish(told, &limits, now);
                Answer::Done
            }
            Question::Sweep => {
                table.sweep(&limits, now);
                table.sweep_lanes(now);
                Answer::Done
            }
        };
        // The first answer is the one that is on its way.
        if matches!(ask.answer, Answer::Nothing) {
            ask.answer = answer;
        }
        if ask.is_troubled {
            let worker = ask.worker;
            self.take_events();
            self.note(EffectEvent::Troubled { worker });
        }
    }

    pub(super) fn limits(&self) -> DeliveryLimits {
        DeliveryLimits { failures_max: self.plan.failures_max, crashes_max: self.plan.crashes_max }
    }
}
