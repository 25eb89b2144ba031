//! Which answer shows how an unknown request ended?
//!
//! One that an operator gives, one that an owner reported too late and whose bytes were kept, or none: the mere fact. Which one it
//! was stands on the record's timeline.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use retrysafe_core::machine::{Evidence, Proof};
use retrysafe_core::record::{Answer, Happened, LateResult, Record, Standing};
use retrysafe_core::response::StoredResponse;
use serde::Deserialize;

use super::error::Refused;

/// Where an answer is taken from that the operator does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AnswerSource {
    /// What an owner reported after it had lost its fence.
    LateResult,
}

/// What an operator says about a request.
#[derive(Debug)]
pub(crate) enum Finding {
    /// It was executed, and this was its answer.
    Given(Answer),
    /// It was executed, and an owner has reported so too late: the one of this fence, if there are several.
    LateResult(Option<u64>),
    /// It was executed; that is all that is known.
    Fact,
    /// It was not executed.
    NotExecuted,
}

/// What a finding shows about this record, and what the timeline says of it.
///
/// # Errors
///
/// If there is no such evidence, or it cannot be replayed.
pub(crate) fn weigh(finding: &Finding, record: &Record) -> Result<(Evidence, String), Refused> {
    match finding {
        Finding::Given(answer) => {
            Ok((Evidence::Executed(answer.clone()), "answer: given by the operator".into()))
        }
        Finding::LateResult(fence) => of_late_result(record, *fence),
        Finding::Fact => {
            let answer = Answer::NotKept { status: None, location: None };
            Ok((Evidence::Executed(answer), "no answer, the mere fact".into()))
        }
        Finding::NotExecuted => Ok((
            Evidence::NotExecuted(Proof::operator()),
            "not executed, by the operator's word".into(),
        )),
    }
}

/// The late results of a record that say that what is unknown was executed.
///
/// While a flow makes a call, only results of that call are: those of owners that held the flow since the call's first-sent mark was set. An
/// owner from before reported about a former call. Without a mark no call is unknown, and the result of one decides nothing.
pub(crate) fn late_successes(record: &Record) -> impl Iterator<Item = &LateResult> {
    let mark = record.flow.as_ref().and_then(|flow| flow.mark());
    let is_of_now = move |late: &LateResult| match (mark, late.standing) {
        (Some(mark), _) => late.fence >= mark.set_by,
        (None, Standing::InProgress) => false,
        (None, Standing::Completed | Standing::FailedRetryable | Standing::Unknown) => true,
    };
    record.timeline.iter().filter_map(move |moment| match &moment.what {
        Happened::LateResult(late) if !is_of_now(late) => None,
        Happened::LateResult(late) => match late.standing {
            Standing::Completed | Standing::InProgress => Some(&**late),
            Standing::FailedRetryable | Standing::Unknown => None,
        },
        Happened::Began(_)
        | Happened::Settled(..)
        | Happened::Doubted(_)
        | Happened::LookedUp(_)
        | Happened::Advanced(_)
        | Happened::Resolved(..)
        | Happened::Expired(_) => None,
    })
}

fn of_late_result(record: &Record, fence: Option<u64>) -> Result<(Evidence, String), Refused> {
    let mut chosen: Vec<&LateResult> = late_successes(record)
        .filter(|late| fence.is_none_or(|fence| late.fence.0 == fence))
        .collect();
    chosen.dedup_by(|one, other| one == other);
    let late = match chosen[..] {
        [late] => late,
        [] => {
            let why = "no late result on the timeline is about what is unknown now and says that it was executed; give the answer itself in `response`";
            return Err(Refused::NoEvidence(why.into()));
        }
        [_, _, ..] => {
            let why = "there are several late results: say in `late_fence` which one, by its `of_fence` on the timeline";
            return Err(Refused::NoEvidence(why.into()));
        }
    };
    let kept = late.body_start.len() as u64;
    if kept < late.body_bytes {
        return Err(Refused::NoEvidence(format!(
            "of the late result's {} bytes only the first {kept} were kept; give the whole answer in `response`",
            late.body_bytes
        )));
    }
    let used = format!("answer: the late result of fence {}", late.fence.0);
    if late.standing == Standing::InProgress {
        return Ok((Evidence::CallExecuted(late.body_start.clone()), used));
    }
    let status = late.status.and_then(|status| StatusCode::from_u16(status).ok());
    let Some(status) = status else {
        let why = "the late result has no status; give the answer itself in `response`";
        return Err(Refused::NoEvidence(why.into()));
    };
    // Of its headers only the type was kept. Compressed bytes without the name of their coding would be replayed as garbage.
    if std::str::from_utf8(&late.body_start).is_err() {
        let why = "the late result's bytes are no text: they may be compressed, and its coding was not kept; give the answer itself \
                   in `response`";
        return Err(Refused::NoEvidence(why.into()));
    }
    let content_type = late.content_type.as_deref().and_then(|it| HeaderValue::from_str(it).ok());
    let headers = content_type.into_iter().map(|value| (CONTENT_TYPE, value)).collect();
    let body = late.body_start.clone();
    Ok((Evidence::Executed(Answer::Kept(StoredResponse { status, headers, body })), used))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use retrysafe_core::fingerprint::{Fingerprint, RulesId};
    use retrysafe_core::flow::{FirstSentMark, FlowMove, FlowProgress, FlowVersion, RequestDigest};
    use retrysafe_core::key::Key;
    use retrysafe_core::record::{About, Fence, First, Moment};
    use retrysafe_core::scope::{Id, Scope};
    use retrysafe_core::time::Time;

    use super::*;

    /// A flow that its second owner has brought to a second call: its record, with the late result of each of these owners.
    fn in_second_call(late: &[u64]) -> Record {
        let mut flow =
            FlowProgress::started(FlowVersion::new("ride", 1), "ride".into()).map(Box::new);
        let digest = RequestDigest::of(b"second");
        let mark = FirstSentMark { digest, set_by: Fence(20), resume_until: None };
        for moved in [FlowMove::PhaseDone("charged".into()), FlowMove::CallMarked(mark)] {
            FlowProgress::make(&mut flow, &moved);
        }
        let scope = Scope::anonymous();
        let key = Key::new("k").unwrap().digest();
        let second = std::time::Duration::from_secs(1);
        let first = First {
            id: Id::of(&scope, &key),
            scope,
            key,
            fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
            mark: None,
            about: About { method: "POST".into(), route: "/r".into(), path: "/r".into() },
            ttl: second,
            lease: second,
            owner: 1,
            request_id: None,
            flow,
        };
        let mut record = first.record(Time::from_ms(1), 10);
        record.timeline.extend(late.iter().map(|fence| Moment {
            at: Time::from_ms(2),
            fence: Fence(30),
            what: Happened::LateResult(Box::new(LateResult::of_call(
                Fence(*fence),
                &Bytes::from(format!("of {fence}")),
            ))),
        }));
        record
    }

    /// The owner of the first call comes late, while the second call is unknown. Its result would be taken for the second one's.
    #[test]
    fn a_late_result_of_a_former_call_is_no_evidence_about_this_one() {
        assert!(of_late_result(&in_second_call(&[10]), None).is_err());
        assert!(of_late_result(&in_second_call(&[10]), Some(10)).is_err(), "not even by name");
        for owner in [20, 25] {
            let (evidence, _) = of_late_result(&in_second_call(&[10, owner]), None).unwrap();
            assert_eq!(evidence, Evidence::CallExecuted(format!("of {owner}").into()));
        }
        assert!(of_late_result(&in_second_call(&[10, 20, 25]), None).is_err(), "which of the two?");
    }
}
