//! Does an event say the same as what was decided, and was it this event that has decided?

use retrysafe_core::record::{Answer, Fence, Happened, Judge, Moment, Record};

use crate::evidence::DocumentVerdict;

/// Whether it was this event that has decided, and its process died before it could say so.
pub(super) fn is_own(record: &Record, reason: &str) -> bool {
    record.timeline.iter().any(|moment| match &moment.what {
        Happened::Resolved(_, Judge::Webhook, why) => {
            **why == *retrysafe_core::record::reason(reason)
        }
        Happened::Resolved(_, Judge::Reconciler | Judge::Operator, _)
        | Happened::Began(_)
        | Happened::Settled(..)
        | Happened::Doubted(_)
        | Happened::LateResult(_)
        | Happened::LookedUp(_)
        | Happened::Advanced(_)
        | Happened::Expired(_) => false,
    })
}

/// Whether an event proves that a completed request was executed twice: it says that an attempt was executed which another one has
/// followed. A flow is one execution, however many owners have gone on with it.
pub(super) fn is_doubled(verdict: &DocumentVerdict, record: &Record, fence: Option<u64>) -> bool {
    let is_done = match verdict {
        DocumentVerdict::Executed(answer) => failed(answer) != Some(true),
        DocumentVerdict::Declined(_)
        | DocumentVerdict::NotExecuted
        | DocumentVerdict::Pending
        | DocumentVerdict::Inconclusive(_) => false,
    };
    // A verdict raises the fence too, so the attempts are those that began.
    let last = record.timeline.iter().rev().find(|moment| match moment.what {
        Happened::Began(_) => true,
        Happened::Settled(..)
        | Happened::Doubted(_)
        | Happened::LateResult(_)
        | Happened::LookedUp(_)
        | Happened::Advanced(_)
        | Happened::Resolved(..)
        | Happened::Expired(_) => false,
    });
    let is_former = |fence: u64| last.is_some_and(|last| Fence(fence) < last.fence);
    let is_phase = |moment: &Moment| matches!(moment.what, Happened::Advanced(_));
    let is_flow = record.flow.is_some() || record.timeline.iter().any(is_phase);
    is_done && !is_flow && fence.is_some_and(is_former)
}

/// Whether an event says that something failed for good, if it says which.
pub(super) fn is_failure(verdict: &DocumentVerdict) -> Option<bool> {
    match verdict {
        DocumentVerdict::Declined(_) => Some(true),
        DocumentVerdict::Executed(answer) => Some(failed(answer).unwrap_or(false)),
        DocumentVerdict::NotExecuted
        | DocumentVerdict::Pending
        | DocumentVerdict::Inconclusive(_) => None,
    }
}

/// Whether an answer is a failure, if its status is known.
pub(super) fn failed(answer: &Answer) -> Option<bool> {
    let status = match answer {
        Answer::Kept(response) => Some(response.status),
        Answer::NotKept { status, .. } => *status,
    };
    status.map(|status| status.is_client_error() || status.is_server_error())
}
