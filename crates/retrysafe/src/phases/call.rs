//! How is a call made once?
//!
//! First what is sent becomes known, then the first-sent mark is committed, then comes the check before the wire, and
//! then one call. A crash between two of these leaves a record that says how far it got:
//!
//! | last committed | what the next run does |
//! | --- | --- |
//! | the phase before | everything: nothing was sent |
//! | the mark, and the provider remembers our key | the same call with the same key, up to a time |
//! | the mark, and the provider takes no key | nothing: the record is unknown |
//! | the result | the next phase |

use bytes::Bytes;
use http::Response;
use http::header;
use retrysafe_core::engine::Settled;
use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::machine::flows::{FlowStep, SendDecision};
use retrysafe_core::record::{Answer, Doubt, Outcome};

use super::PhaseError;
use super::end::FlowEnd;
use super::flow::{CallWork, PreparedCall};
use super::provider::{Call, CallEnd, downstream_key};
use super::runner::{AfterPhase, HeldLease, RunEnd, Runner, owned_by_another, panicked};
use crate::layer::catch_panic;

impl Runner {
    /// Runs a phase that is a call.
    pub(super) async fn run_call(
        &self,
        held: HeldLease,
        phase: u16,
        name: &'static str,
        work: &CallWork,
    ) -> AfterPhase {
        let PreparedCall { digest, send } = match prepare(&held, work) {
            Ok(prepared) => prepared,
            Err(error) if held.point() == Some(RecoveryPoint::Before(phase)) => {
                return Err(self.give_back(held, name, error).await);
            }
            // An attempt before this one may have sent it.
            Err(error) => return Err(self.unknown(held, name, Doubt::AnswerLost, error).await),
        };
        let deadline = work.provider.deadline_under(&self.policy);
        let held = if held.point() == Some(RecoveryPoint::Before(phase)) {
            let repeatable_for = work.provider.repeatable_for(&self.policy);
            let about_to_call = FlowStep::Call { phase, digest, repeatable_for };
            self.advance(held, name, &about_to_call).await?
        } else {
            held
        };
        match held.lease.may_send(&digest, held.asked_at.elapsed(), deadline) {
            SendDecision::Send => {}
            SendDecision::TooLate => {
                let late = "too little is left of the lease, or of the time in which the provider \
                            remembers the key";
                return Err(self.not_sent(held, phase, name, late.into()).await);
            }
            SendDecision::OtherBytes => {
                let error = "the first attempt has sent something else".into();
                return Err(self.unknown(held, name, Doubt::OtherBytes, error).await);
            }
        }
        let call = Call { key: downstream_key(held.lease.id(), name), deadline };
        let sending = catch_panic(async move { send(call).await });
        // From here on only a word of the phase's own says that nothing was sent.
        let end = match tokio::time::timeout(deadline, sending).await {
            Ok(Ok(Ok(end))) => end,
            Ok(Ok(Err(error))) => CallEnd::Unknown(error),
            Ok(Err(panic)) => CallEnd::Unknown(panicked(&*panic)),
            Err(_) => CallEnd::Unknown("no answer within the deadline of the call".into()),
        };
        match end {
            CallEnd::Done(output) if !has_room_for(&held, &output) => {
                let error = "the call was made, and its output is more than a flow keeps".into();
                Err(self.unknown(held, name, Doubt::AnswerLost, error).await)
            }
            CallEnd::Done(output) => {
                self.advance(held, name, &FlowStep::CallResult { phase, output }).await
            }
            CallEnd::Respond(response) => Err(self.answered(held, response).await),
            CallEnd::NotSent(error) => Err(self.not_sent(held, phase, name, error).await),
            CallEnd::Unknown(error) => {
                Err(self.unknown(held, name, Doubt::AnswerLost, error).await)
            }
        }
    }

    /// The call's answer is the flow's.
    async fn answered(&self, held: HeldLease, response: Response<Bytes>) -> RunEnd {
        let status = Some(response.status());
        let location = response.headers().get(header::LOCATION).cloned();
        let answer = self.keep(response).map_or(Answer::NotKept { status, location }, Answer::Kept);
        let outcome = Outcome::Completed(answer.clone());
        match self.settle(held.lease, &outcome).await? {
            Settled::Done(_) => Ok(answer.into()),
            Settled::Lost { .. } => Ok(owned_by_another()),
        }
    }

    async fn not_sent(
        &self,
        held: HeldLease,
        phase: u16,
        name: &'static str,
        error: PhaseError,
    ) -> RunEnd {
        tracing::warn!(target: "retrysafe", phase = name, %error, "call_not_sent");
        self.call_not_sent(held.lease, phase).await;
        Ok(FlowEnd::NotSent { phase: name, error })
    }

    /// Nobody knows how the call ended. What that means for the record follows from its mark.
    async fn unknown(
        &self,
        held: HeldLease,
        name: &'static str,
        doubt: Doubt,
        error: PhaseError,
    ) -> RunEnd {
        tracing::warn!(target: "retrysafe", phase = name, %error, "call_unknown");
        match self.settle(held.lease, &Outcome::Unknown(doubt)).await? {
            Settled::Done(record) if record.unknown_since().is_some() => Ok(FlowEnd::Unknown),
            Settled::Done(_) => Ok(FlowEnd::CallToRepeat { phase: name, error }),
            Settled::Lost { .. } => Ok(owned_by_another()),
        }
    }
}

/// What is to be sent. A phase that panics over it has sent nothing.
fn prepare(held: &HeldLease, work: &CallWork) -> Result<PreparedCall, PhaseError> {
    let Some(progress) = held.lease.flow() else { return Err("the record has no flow".into()) };
    let preparing = std::panic::AssertUnwindSafe(|| (work.prepare)(progress));
    std::panic::catch_unwind(preparing).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn has_room_for(held: &HeldLease, output: &Bytes) -> bool {
    held.lease.flow().is_some_and(|progress| progress.has_room_for(output))
}
