//! Where are the planted faults about effects?
//!
//! Here, and at the few places of the fast simulator's worker that ask for one by name. Nothing of this can reach a
//! build of the product: the simulator of shipped code plants none.

use std::time::Duration;

use retrysafe_core::effect::{
    DeliveryLimits, Effect, EffectEnd, EffectRefusal, EffectState, Finished, Marked, SentMark,
};
use retrysafe_core::record::Fence;
use retrysafe_core::time::Time;

use crate::effect_plan::EffectPlan;
use crate::fault::Fault;

/// Which fault is planted, if one is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted(pub Option<Fault>);

impl Planted {
    pub fn is(self, fault: Fault) -> bool {
        self.0 == Some(fault)
    }

    /// What becomes of a worker's word. `failures` is what the worker read when it claimed.
    pub fn finish(
        self,
        effect: &Effect,
        (fence, failures): (Fence, u32),
        end: EffectEnd,
        limits: &DeliveryLimits,
        now: Time,
    ) -> Finished {
        let present = effect.fence;
        let named = if self.is(Fault::EffectFinishUnfenced)
            || self.is(Fault::EffectAttemptAsFence) && effect.failures == failures
        {
            present
        } else {
            fence
        };
        let finished = effect.finish(named, end, limits, now);
        let Finished::Changed(changed) = finished else { return finished };
        let may_be_hidden = matches!(changed.state, EffectState::Unknown(_))
            && changed.failures >= limits.failures_max;
        if self.is(Fault::EffectDeadAfterSend) && may_be_hidden {
            return Finished::Changed(Effect { state: EffectState::Dead, ..changed });
        }
        let is_no_effect = matches!(end, EffectEnd::NoEffect { .. });
        if self.is(Fault::EffectAnyMarkCleared) && is_no_effect {
            return Finished::Changed(Effect { mark: None, ..changed });
        }
        finished
    }

    /// For how long an effect of a kind may be sent again.
    pub fn resend_for(self, plan: &EffectPlan, kind: u8) -> Option<Duration> {
        let for_ever = Duration::from_secs(24 * 60 * 60);
        plan.resend_for(kind).or(self.is(Fault::EffectUnkeyedResent).then_some(for_ever))
    }

    pub fn mark(
        self,
        effect: &Effect,
        fence: Fence,
        resend_for: Option<Duration>,
        now: Time,
    ) -> Marked {
        match (effect.mark(fence, resend_for, now), resend_for) {
            (Marked::Stands(marked), Some(length)) if self.is(Fault::EffectMarkMoves) => {
                let resend_until = Some(now.plus(length));
                let mark = Some(SentMark { set_by: fence, last_by: fence, resend_until });
                Marked::Stands(Effect { mark, ..marked })
            }
            (marked, _) => marked,
        }
    }

    pub fn requeue(self, effect: &Effect, now: Time) -> Result<Effect, EffectRefusal> {
        match effect.requeue(now) {
            Err(EffectRefusal::PastMemory) if self.is(Fault::EffectRequeuePastMemory) => {
                Effect { mark: None, ..*effect }.requeue(now)
            }
            decided => decided,
        }
    }

    pub fn cancel(self, effect: &Effect) -> Result<Effect, EffectRefusal> {
        match effect.cancel() {
            Err(EffectRefusal::MayHaveBeenSent) if self.is(Fault::EffectCancelAfterSend) => {
                Effect { mark: None, ..*effect }.cancel()
            }
            decided => decided,
        }
    }
}
