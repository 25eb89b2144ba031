//! How is a call made once?
//!
//! First what is sent becomes known, then the first-sent mark is committed, then comes the check before the wire, and
//! then one call. A crash between two of these leaves a record that says how far it got:
//!
//! | last committed | what the next run does |
//! | --- | --- |
//! | the phase before | everything: nothing was sent |
//! | the mark, and the provider remembers our key | the same call with the same key, up to a time |
//! | the mark, and the provider takes no key, by the code of then or by that of now | nothing: the record is unknown |
//! | the result | the next phase |

use bytes::Bytes;
use http::Response;
use retrysafe_core::engine::Settled;
use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::machine::flows::{FlowStep, SendDecision};
use retrysafe_core::record::{Doubt, Outcome};

use super::PhaseError;
use super::end::{FlowAnswer, FlowEnd};
use super::flow::{CallWork, PreparedCall, SentEnd};
use super::provider::{Call, CallEnd};
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
        let repeatable_for = work.provider.repeatable_for(&self.policy);
        let held = if held.point() == Some(RecoveryPoint::Before(phase)) {
            let about_to_call = FlowStep::Call { phase, digest, repeatable_for };
            self.advance(held, name, &about_to_call).await?
        } else {
            held
        };
        let is_repeatable = repeatable_for.is_some();
        match held.lease.may_send(&digest, is_repeatable, held.asked_at.elapsed(), deadline) {
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
            SendDecision::NotRepeatable => {
                let error = "an attempt before may have sent it, and this provider is declared to \
                             take no key, or to forget it too soon"
                    .into();
                return Err(self.unknown(held, name, Doubt::NotRepeatable, error).await);
            }
        }
        let call = Call { key: held.lease.downstream_key(name), deadline };
        let sending = catch_panic(async move { send(call).await });
        // From here on only a word of the phase's own says that nothing was sent.
        let end = match tokio::time::timeout(deadline, sending).await {
            Ok(Ok(Ok(SentEnd::Told(end)))) => end,
            Ok(Ok(Ok(SentEnd::Unreadable(result, error)))) => {
                return Err(self.not_kept(held, name, &result, error).await);
            }
            Ok(Ok(Err(error))) => CallEnd::Unknown(error),
            Ok(Err(panic)) => CallEnd::Unknown(panicked(&*panic)),
            Err(_) => CallEnd::Unknown("no answer within the deadline of the call".into()),
        };
        match end {
            CallEnd::Done(output) if !has_room_for(&held, &output) => {
                let error = "the call was made, and its output is more than a flow keeps".into();
                Err(self.not_kept(held, name, &output, error).await)
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

    /// The call's answer is the flow's. One that is too large to be kept is for the caller of this run alone.
    async fn answered(&self, held: HeldLease, response: Response<Bytes>) -> RunEnd {
        let FlowAnswer { kept, given } = FlowAnswer::new(response, &self.policy);
        match self.settle(held.lease, &Outcome::Completed(kept)).await? {
            Settled::Done(_) => Ok(given),
            Settled::Lost { .. } => Ok(owned_by_another()),
        }
    }

    /// The call was made, and later phases could not read what it has brought. Somebody has to look at it.
    async fn not_kept(
        &self,
        held: HeldLease,
        name: &'static str,
        result: &Bytes,
        error: PhaseError,
    ) -> RunEnd {
        tracing::error!(target: "retrysafe", phase = name, %error, "call_result_not_kept");
        match self.result_not_kept(held.lease, result).await? {
            Settled::Done(_) => Ok(FlowEnd::Unknown),
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
