//! What does a worker ask, and what goes wrong on the way?
//!
//! [`SimEffectStore`] is what the shipped worker holds: the [table](crate::effects::table) across a wire that belongs to
//! nobody. A question that was sent arrives, also if its asker has given up or died.

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use retrysafe::outbox::store::{
    ClaimedEffect, EffectCount, EffectStore, EffectStoreError, EndCode, Held, MarkWord,
    MarkedEffect, SweptEffects, ToMark, Told,
};
use retrysafe_core::effect::{DeliveryLimits, EffectEnd};
use tokio::sync::{Notify, oneshot};

use crate::effect_plan::{EffectPlan, KINDS};
use crate::effects::table::{ClaimedRow, MarkedRow, ToldRow};
use crate::history::EffectEvent;
use crate::shipped::options::Kind;
use crate::shipped::stage::{Life, Stage, State};

/// The effects, for one worker.
#[derive(Clone)]
pub(super) struct SimEffectStore {
    stage: Stage,
    plan: EffectPlan,
    life: Life,
}

/// What is asked.
#[derive(Clone)]
enum Question {
    Claim { kind: u8, most: usize, lease: Duration },
    Mark { held: Vec<(u8, u32)>, resend_for: Option<Duration> },
    Renew { held: Vec<(u8, u32)>, lease: Duration },
    HandBack(Vec<(u8, u32)>),
    Finish(Vec<ToldRow>, u32),
    Sweep { crashes_max: u32 },
    SweepLanes,
}

enum Answer {
    Claimed(Vec<ClaimedRow>),
    Marked(Vec<MarkedRow>),
    Done,
}

/// What becomes of a question on its way.
struct Fate {
    out_ms: u64,
    back_ms: u64,
    arrives: bool,
    again_after_ms: Option<u64>,
    returns: Returns,
}

/// What its asker hears.
#[derive(PartialEq, Eq)]
enum Returns {
    Answer,
    Refusal,
    Error,
    Nothing,
}

impl SimEffectStore {
    pub(super) fn new(stage: &Stage, plan: EffectPlan, life: &Life) -> Self {
        Self { stage: stage.clone(), plan, life: life.clone() }
    }

    async fn ask(&self, question: Question) -> Result<Answer, EffectStoreError> {
        let stage = &self.stage;
        self.life.pass(stage).await;
        let (fate, is_troubled) = self.fate(&question);
        let trouble = EffectEvent::Troubled { worker: self.life.gateway };
        if is_troubled {
            stage.with(|state| state.note(trouble));
        }
        let answer = self.carry(question, &fate, is_troubled.then_some(trouble));
        let heard = match fate.returns {
            Returns::Answer => match answer.await {
                Ok(answer) => Ok(answer),
                // The carrier ends with the history only.
                Err(_) => pending().await,
            },
            Returns::Refusal => {
                stage.sleep(fate.out_ms + fate.back_ms).await;
                Err(EffectStoreError::Refused("simulated".into()))
            }
            Returns::Error => {
                stage.sleep(fate.out_ms + fate.back_ms).await;
                Err(EffectStoreError::NoAnswer("simulated".into()))
            }
            Returns::Nothing => pending().await,
        };
        if is_troubled {
            stage.with(|state| state.note(trouble));
        }
        self.life.pass(stage).await;
        heard
    }

    /// Sends a question on its way. It arrives whoever goes away.
    fn carry(
        &self,
        question: Question,
        fate: &Fate,
        trouble: Option<EffectEvent>,
    ) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        if !fate.arrives {
            return answer;
        }
        let &Fate { out_ms, back_ms, again_after_ms, .. } = fate;
        let copies = if again_after_ms.is_some() { 2 } else { 1 };
        self.stage.with(|state| state.writes_on_the_way += copies);
        let store = self.clone();
        tokio::spawn(async move {
            store.stage.sleep(out_ms).await;
            let answer = store.arrive(&question, trouble);
            if let Some(ms) = again_after_ms {
                let store = store.clone();
                tokio::spawn(async move {
                    store.stage.sleep(ms).await;
                    store.arrive(&question, trouble);
                });
            }
            store.stage.sleep(back_ms).await;
            // Whoever asked may be gone.
            let _ = reply.send(answer);
        });
        answer
    }

    /// One copy of a question has reached the store.
    fn arrive(&self, question: &Question, trouble: Option<EffectEvent>) -> Answer {
        self.stage.with(|state| {
            state.writes_on_the_way -= 1;
            let answer = self.apply(state, question);
            state.take_events();
            if let Some(trouble) = trouble {
                state.note(trouble);
            }
            answer
        })
    }

    fn apply(&self, state: &mut State, question: &Question) -> Answer {
        let now = state.records.clock(state.now_ms());
        let limits = |failures_max, crashes_max| DeliveryLimits { failures_max, crashes_max };
        let table = &mut state.outbox.table;
        match question {
            Question::Claim { kind, most, lease } => {
                let asker = (self.life.gateway, self.life.epoch);
                return Answer::Claimed(table.claim(asker, *kind, *most, *lease, now));
            }
            Question::Mark { held, resend_for } => {
                return Answer::Marked(table.mark(held, *resend_for, now));
            }
            Question::Renew { held, lease } => table.renew(held, *lease, now),
            Question::HandBack(held) => table.hand_back(held, now),
            Question::Finish(told, failures_max) => {
                table.finish(told, &limits(*failures_max, self.plan.crashes_max), now);
            }
            Question::Sweep { crashes_max } => {
                table.sweep(&limits(self.plan.failures_max, *crashes_max), now);
            }
            Question::SweepLanes => table.sweep_lanes(now),
        }
        Answer::Done
    }

    /// What becomes of a question, and whether that is trouble.
    fn fate(&self, question: &Question) -> (Fate, bool) {
        let verb = match question {
            Question::Claim { kind, .. } => u64::from(*kind),
            Question::Mark { .. } => 10,
            Question::Renew { .. } => 11,
            Question::HandBack(_) => 12,
            Question::Finish(..) => 13,
            Question::Sweep { .. } => 14,
            Question::SweepLanes => 15,
        };
        let name = [92, self.life.gateway.into(), self.life.epoch.into(), verb];
        let number = self.stage.with(|state| state.count(&name));
        let mut chance = self.stage.chance(&[name.as_slice(), &[number]].concat());
        let mut fate = Fate {
            out_ms: chance.between(0, 4),
            back_ms: chance.between(0, 4),
            arrives: true,
            again_after_ms: None,
            returns: Returns::Answer,
        };
        let long = 2 * self.plan.lease_ms;
        let mut strikes = |kind, percent| self.stage.strikes(&mut chance, kind, percent);
        let is_slow_out = strikes(Kind::StoreSlow, 4);
        let is_slow_back = strikes(Kind::StoreSlow, 4);
        let is_lost = strikes(Kind::StoreLost, 4);
        let is_answer_lost = strikes(Kind::StoreLost, 4);
        let is_refused = strikes(Kind::StoreErrors, 5);
        let is_twice = strikes(Kind::StoreTwice, 5);
        let slow_out_ms = chance.scaled(20, long);
        let slow_back_ms = chance.scaled(20, long);
        let again_ms = chance.scaled(1, long);
        let is_silent = chance.percent(50);
        let failure = if is_silent { Returns::Nothing } else { Returns::Error };
        if is_slow_out {
            fate.out_ms = slow_out_ms;
        }
        if is_slow_back {
            fate.back_ms = slow_back_ms;
        }
        fate.again_after_ms = is_twice.then_some(again_ms);
        let is_cut_off = self.life.is_cut_off(&self.stage);
        if is_refused {
            fate.arrives = false;
            fate.returns = Returns::Refusal;
        } else if is_lost || is_cut_off || is_answer_lost {
            fate.arrives = is_answer_lost && !is_cut_off;
            fate.returns = failure;
        }
        let is_good = fate.returns == Returns::Answer;
        let is_troubled = !is_good || is_slow_out || is_slow_back || is_twice;
        (fate, is_troubled)
    }

    /// At times a process stands still between the answer to its mark and its look at the clock.
    async fn stand_still(&self, held: &[(u8, u32)]) {
        let Some((effect, fence)) = held.first().copied() else { return };
        let mut chance = self.stage.chance(&[96, effect.into(), fence.into()]);
        if self.stage.strikes(&mut chance, Kind::Pause, 12) {
            let worker = self.life.gateway;
            self.stage.with(|state| state.note(EffectEvent::Troubled { worker }));
            self.stage.sleep(chance.between(self.plan.lease_ms / 3, self.plan.lease_ms)).await;
            self.stage.with(|state| state.note(EffectEvent::Troubled { worker }));
        }
    }

    async fn do_it(&self, question: Question) -> Result<(), EffectStoreError> {
        self.ask(question).await.map(|_| ())
    }
}

/// The name of a kind of effects.
pub(super) fn kind_name(kind: u8) -> String {
    format!("kind {kind}")
}

fn rows(held: &[Held]) -> Vec<(u8, u32)> {
    held.iter().map(|held| (held.id as u8, held.fence as u32)).collect()
}

fn told_row(told: &Told) -> ToldRow {
    let retry_after = told.retry_after;
    let end = match told.end {
        EndCode::Delivered => EffectEnd::Delivered,
        EndCode::Rejected => EffectEnd::Rejected,
        EndCode::NoEffect => EffectEnd::NoEffect { retry_after },
        EndCode::NoAnswer => EffectEnd::NoAnswer { retry_after },
    };
    ToldRow { id: told.held.id as u8, fence: told.held.fence as u32, failures: 0, end }
}

impl EffectStore for SimEffectStore {
    async fn claim(
        &self,
        kind: &str,
        most: usize,
        lease: Duration,
    ) -> Result<Vec<ClaimedEffect>, EffectStoreError> {
        let kind = (0..KINDS).find(|number| kind_name(*number) == kind).unwrap_or(0);
        let Answer::Claimed(rows) = self.ask(Question::Claim { kind, most, lease }).await? else {
            return Ok(Vec::new());
        };
        let claimed = |row: ClaimedRow| ClaimedEffect {
            held: Held { id: row.id.into(), fence: row.fence.into() },
            key: row.id.to_string().into(),
            destination: None,
            content_type: None,
            // By this the network knows the claim.
            payload: Bytes::copy_from_slice(&row.fence.to_be_bytes()),
            failures: row.failures,
            was_sent: row.was_sent,
            is_suspect: row.is_suspect,
        };
        Ok(rows.into_iter().map(claimed).collect())
    }

    async fn mark(
        &self,
        to_mark: &[ToMark],
        resend_for: Option<Duration>,
    ) -> Result<Vec<MarkedEffect>, EffectStoreError> {
        let held: Vec<Held> = to_mark.iter().map(|to_mark| to_mark.held).collect();
        let held = rows(&held);
        let question = Question::Mark { held: held.clone(), resend_for };
        let Answer::Marked(marked) = self.ask(question).await? else { return Ok(Vec::new()) };
        self.stand_still(&held).await;
        self.stage.with(|state| state.outbox.marks_heard.extend(held));
        let marked = marked.into_iter().map(|row| MarkedEffect {
            id: row.id.into(),
            word: if row.is_sendable { MarkWord::Sendable } else { MarkWord::Unknown },
            lease_left: row.lease_left,
            resend_left: row.resend_left,
        });
        Ok(marked.collect())
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<(), EffectStoreError> {
        self.do_it(Question::Renew { held: rows(held), lease }).await
    }

    async fn hand_back(&self, held: &[Held]) -> Result<Vec<i64>, EffectStoreError> {
        let held = rows(held);
        self.stage.with(|state| {
            for (effect, fence) in held.iter().copied() {
                // Its worker has heard that it may send, and has not: it was too late.
                if state.outbox.marks_heard.contains(&(effect, fence)) {
                    state.note(EffectEvent::TooLate { effect, fence });
                }
            }
        });
        self.do_it(Question::HandBack(held)).await?;
        Ok(Vec::new())
    }

    async fn finish(&self, told: &[Told], failures_max: u32) -> Result<Vec<i64>, EffectStoreError> {
        let told = told.iter().map(told_row).collect();
        self.do_it(Question::Finish(told, failures_max)).await?;
        Ok(Vec::new())
    }

    async fn sweep(
        &self,
        crashes_max: u32,
        _most: usize,
    ) -> Result<SweptEffects, EffectStoreError> {
        self.do_it(Question::Sweep { crashes_max }).await?;
        Ok(SweptEffects::default())
    }

    async fn sweep_lanes(
        &self,
        _after: Option<&str>,
        _most: usize,
    ) -> Result<Option<String>, EffectStoreError> {
        self.do_it(Question::SweepLanes).await?;
        Ok(None)
    }

    async fn turn_days(&self, _keep_days: i32) -> Result<(), EffectStoreError> {
        Ok(())
    }

    async fn count(&self) -> Result<Vec<EffectCount>, EffectStoreError> {
        Ok(Vec::new())
    }

    async fn listen(&self, wake: &Notify) -> Result<(), EffectStoreError> {
        let hint = self.stage.with(|state| state.outbox.hint.clone());
        loop {
            hint.notified().await;
            self.life.pass(&self.stage).await;
            let name = [93, self.life.gateway.into(), self.life.epoch.into()];
            let number = self.stage.with(|state| state.count(&name));
            let mut chance = self.stage.chance(&[name.as_slice(), &[number]].concat());
            if self.stage.strikes(&mut chance, Kind::StoreErrors, 20) {
                return Err(EffectStoreError::NoAnswer("simulated".into()));
            }
            if chance.percent(80) {
                wake.notify_waiters();
            }
        }
    }
}
