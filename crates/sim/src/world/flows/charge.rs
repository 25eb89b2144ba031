//! How is a charge made once?
//!
//! What is sent becomes known, the first-sent mark is committed, then comes the check before the wire,
//! and then one packet. Between the check and the packet nothing can come: what a pause there could do is
//! a part of the packet's way.

use std::future::poll_fn;
use std::time::Duration;

use retrysafe_core::engine::Settled;
use retrysafe_core::flow::{RecoveryPoint, RequestDigest};
use retrysafe_core::machine::flows::{FlowStep, SendDecision};
use retrysafe_core::record::{Answer, Doubt, Outcome};

use super::provider::Heard;
use super::{AfterPhase, FlowEnd, HeldLease, Run, mutant, point_of, tables};
use crate::history::What;
use crate::options::Kind;

impl Run {
    /// Runs a phase that is a call.
    pub(super) async fn run_charge(&self, held: HeldLease, phase: u16) -> AfterPhase {
        let is_first = point_of(&held) == Some(RecoveryPoint::Before(phase));
        let varies = self.plan.varies && !is_first;
        let bytes = self.gate.sim.with(|world| {
            // Made up anew by whoever goes on: it may be something else.
            1 + phase as u8 + if varies && world.chance.percent(20) { 100 } else { 0 }
        });
        let digest = RequestDigest::from_bytes([bytes; RequestDigest::LENGTH]);
        let held = if is_first {
            let repeatable_for = self.plan.repeatable_for();
            self.advance(held, &FlowStep::Call { phase, digest, repeatable_for }).await?
        } else {
            held
        };
        self.strike_here().await;
        let ms = self.gate.sim.with(|world| world.connecting_ms());
        self.gate.sim.sleep(ms).await;
        let elapsed = self.gate.now().saturating_sub(held.asked_at);
        let deadline = Duration::from_millis(self.plan.deadline_ms);
        let is_repeatable = self.plan.repeatable_for().is_some();
        let decided = held.lease.may_send(&digest, is_repeatable, elapsed, deadline);
        match mutant::before_wire(self.gate.options.fault, decided) {
            SendDecision::Send => self.send(held, phase, bytes).await,
            SendDecision::TooLate => Err(self.not_sent(held, phase).await),
            SendDecision::OtherBytes => {
                let what = What::OtherBytesRefused { key: self.key, fence: self.fence };
                self.gate.sim.with(|world| world.record(what));
                Err(self.unknown(held, Doubt::OtherBytes).await)
            }
            // The declaration of a provider does not change within a history, so no begin leads here.
            SendDecision::NotRepeatable => Err(self.unknown(held, Doubt::NotRepeatable).await),
        }
    }

    async fn send(&self, held: HeldLease, phase: u16, bytes: u8) -> AfterPhase {
        if self.gate.sim.with(|world| world.strike(Kind::UpstreamRefuses, 20)) {
            return Err(self.not_sent(held, phase).await);
        }
        let (charge, until) = self.gate.sim.with(|world| {
            let by = (self.gate.number, self.gate.epoch);
            let charge = world.send_charge(self.key, phase as u8, self.fence, bytes, by);
            world.struck_in_flow(self.gate.number);
            (charge, world.wake_in(self.plan.deadline_ms))
        });
        let heard =
            poll_fn(|_| self.gate.sim.with(|world| world.charge_heard(charge, until))).await;
        match heard {
            Heard::Made(made) => {
                let step = FlowStep::CallResult { phase, output: tables::body(made) };
                self.advance(held, &step).await
            }
            Heard::Declined(charge) => Err(self.answered(held, declined_answer(charge)).await),
            Heard::Busy | Heard::Nothing => Err(self.unknown(held, Doubt::AnswerLost).await),
        }
    }

    /// The provider has declined for good: that is the flow's answer.
    async fn answered(&self, held: HeldLease, answer: Answer) -> FlowEnd {
        match self.settle(held.lease, &Outcome::Completed(answer.clone())).await {
            Some(Settled::Done(_)) => match answer {
                Answer::Kept(stored) => FlowEnd::Answered(stored),
                Answer::NotKept { .. } => FlowEnd::Elsewhere,
            },
            Some(Settled::Lost { .. }) => FlowEnd::Elsewhere,
            None => FlowEnd::NoStore,
        }
    }

    /// Not a byte of it has left since this lease was granted.
    async fn not_sent(&self, held: HeldLease, phase: u16) -> FlowEnd {
        let (key, fence) = (self.key, self.fence);
        let what = What::ChargeNotSent { key, phase: phase as u8, fence };
        self.gate.sim.with(|world| world.record(what));
        let mut lease = held.lease;
        for tried in 0..super::TRIES_MAX {
            match self.engine.call_not_sent(lease, phase).await {
                Ok(_) => return FlowEnd::NotSent,
                Err(unsettled) => lease = unsettled.lease,
            }
            self.pause_before(tried).await;
        }
        FlowEnd::NotSent
    }

    /// Nobody knows how the charge ended. What that means for the record follows from its mark.
    async fn unknown(&self, held: HeldLease, doubt: Doubt) -> FlowEnd {
        // A handler that makes a 5xx of it says "try again", and must not be believed.
        let says_retryable = doubt == Doubt::AnswerLost
            && self.gate.sim.with(|world| world.strike(Kind::UpstreamErrors, 30));
        let outcome =
            if says_retryable { Outcome::Retryable(None) } else { Outcome::Unknown(doubt) };
        match self.settle(held.lease, &outcome).await {
            Some(Settled::Done(record)) if record.unknown_since().is_some() => FlowEnd::Unknown,
            Some(Settled::Done(_)) => FlowEnd::ToRepeat,
            Some(Settled::Lost { .. }) => FlowEnd::Elsewhere,
            None => FlowEnd::NoStore,
        }
    }
}

/// That the provider has declined, as the flow's answer: the same for everybody who hears it.
pub(super) fn declined_answer(charge: u16) -> Answer {
    Answer::Kept(tables::response(402, charge))
}
