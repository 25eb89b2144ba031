//! What does the core's machine say to the same question?
//!
//! Each function takes the record as it was and the clock, and says what the SQL function must answer and what the
//! record must be then. The version is the store's to choose, so it is taken from what was found.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use retrysafe::core::fingerprint::{Fingerprint, RulesId};
use retrysafe::core::flow::{
    FirstSentMark, FlowMove, FlowProgress, FlowVersion, RecoveryPoint, RequestDigest,
};
use retrysafe::core::machine::flows::{
    Advance, AdvanceReply, BeforeWire, CallNotSent, FlowStep, SendDecision, decide_send,
};
use retrysafe::core::machine::{
    Begin, BeginDecision, Decision, Renew, Settle, SettleReply, Withdraw, decide, decide_begin,
};
use retrysafe::core::record::{
    About, Answer as Stored, Becomes, Doubt, Fence, First, Happened, LateResult, Outcome, Record,
    Write, request_id,
};
use retrysafe::core::response::StoredResponse;
use retrysafe::core::scope::CredentialMark;
use retrysafe::core::time::Time;
use retrysafe::core::{Id, Key, Scope};

use super::caller::{Answer, Asked, Told};

/// A record before an operation, and the clock; `version` is the one that was found after it.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) before: Option<&'a Record>,
    pub(super) now: Time,
    pub(super) version: u64,
}

/// What must be answered, and what the record must be then.
pub(super) struct Expected<T> {
    pub(super) answer: Answer<T>,
    pub(super) after: Option<Record>,
}

/// A recovery point in the words of SQL.
pub(super) fn words(point: Option<RecoveryPoint>) -> Option<String> {
    point.map(|point| match point {
        RecoveryPoint::Before(phase) => format!("before {phase}"),
        RecoveryPoint::Calling(phase) => format!("calling {phase}"),
    })
}

impl Seen<'_> {
    fn written(self, write: &Write) -> Option<Record> {
        self.before.map(|record| write.onto(record, self.now, self.version))
    }

    fn same<T>(self, answer: Answer<T>) -> Expected<T> {
        Expected { answer, after: self.before.cloned() }
    }

    /// What a late owner reports is kept once. Stricter than the machine: of whoever was no owner of this record, nothing.
    fn noted(self, late: LateResult) -> Option<Record> {
        let record = self.before?;
        if late.fence < record.birth() || late.fence > record.fence {
            return Some(record.clone());
        }
        let is_told = record.timeline.iter().any(
            |moment| matches!(&moment.what, Happened::LateResult(told) if told.fence == late.fence),
        );
        if is_told {
            return Some(record.clone());
        }
        let what = Some(Happened::LateResult(Box::new(late)));
        self.written(&Write { becomes: Becomes::Same, new_fence: false, what, ttl: None })
    }
}

fn refused<T>(code: &str) -> Answer<T> {
    Err(code.to_owned())
}

fn bytes<const N: usize>(from: &[u8]) -> [u8; N] {
    from.try_into().expect("as many bytes")
}

fn ms(length: i64) -> Duration {
    Duration::from_millis(length.try_into().expect("a length"))
}

/// The decision with what comes along, in one line.
pub(super) fn begin(seen: Seen<'_>, asked: &Asked) -> Expected<String> {
    let scope = Scope::from_bytes(&asked.scope);
    let key = Key::new(&asked.key).expect("a key").digest();
    let [scheme, rest @ ..] = bytes::<41>(&asked.fingerprint);
    let (rules, digest) = rest.split_at(8);
    let fingerprint =
        Fingerprint::from_parts(scheme, RulesId::from_bytes(bytes(rules)), bytes(digest));
    let mark = asked.mark.as_ref().map(|mark| CredentialMark::from_bytes(bytes(mark)));
    let flows: Vec<FlowVersion> = asked
        .flows
        .iter()
        .map(|code| {
            let (name, version) = code.rsplit_once('/').expect("a version");
            FlowVersion::new(name, version.parse().expect("a number"))
        })
        .collect();
    let ask = Begin {
        same_request: seen.before.is_some_and(|record| record.fingerprint == fingerprint),
        mark,
        owner: asked.owner.cast_unsigned(),
        lease: ms(asked.lease_ms),
        request_id: asked.request_id.as_deref(),
        flows: &flows,
    };
    match decide_begin(seen.before.cloned(), &ask, seen.now) {
        BeginDecision::Insert => {
            let first = First {
                id: Id::of(&scope, &key),
                scope,
                key,
                fingerprint,
                mark,
                about: About {
                    method: "POST".into(),
                    route: "/rides".into(),
                    path: "/rides/1".into(),
                },
                ttl: ms(asked.ttl_ms),
                lease: ms(asked.lease_ms),
                owner: asked.owner.cast_unsigned(),
                request_id: asked.request_id.as_deref().and_then(request_id),
                flow: None,
            };
            let record = first.record(seen.now, seen.version);
            Expected { answer: Ok(execute(&record)), after: Some(record) }
        }
        BeginDecision::Execute(_, write) => {
            let after = seen.written(&write);
            Expected { answer: Ok(execute(after.as_ref().expect("a record"))), after }
        }
        BeginDecision::Doubt(_, write) => {
            Expected { answer: Ok("unknown".into()), after: seen.written(&write) }
        }
        BeginDecision::Mismatch => seen.same(Ok("mismatch".into())),
        BeginDecision::CredentialChanged => seen.same(Ok("credential_changed".into())),
        BeginDecision::InProgress(until) => {
            let left = seen.now.until(until).as_millis().clamp(1_000, 600_000);
            seen.same(Ok(format!("in_progress {left}")))
        }
        BeginDecision::Held(flow) => seen.same(Ok(format!("held {}/{}", flow.name, flow.version))),
        BeginDecision::Replay(Stored::Kept(response), _) => {
            let body = String::from_utf8_lossy(&response.body).into_owned();
            seen.same(Ok(format!("replay {} {body}", response.status.as_u16())))
        }
        BeginDecision::Replay(Stored::NotKept { status, .. }, _) => {
            let status = status.map_or(0, |status| status.as_u16());
            seen.same(Ok(format!("not_replayable {status}")))
        }
        BeginDecision::Unknown(_) => seen.same(Ok("unknown".into())),
    }
}

fn execute(record: &Record) -> String {
    let flow = record.flow.as_deref().map(|flow| {
        let outputs: Vec<_> =
            flow.outputs().iter().map(|output| String::from_utf8_lossy(output)).collect();
        let (code, input) = (flow.flow(), String::from_utf8_lossy(flow.input()));
        format!(" {}/{} {input} {outputs:?}", code.name, code.version)
    });
    let point = words(record.recovery_point()).unwrap_or_default();
    format!("execute {} {point}{}", record.fence.0, flow.unwrap_or_default())
}

/// An advance that commits by itself, or one inside a transaction.
pub(super) fn advance(
    seen: Seen<'_>,
    fence: i64,
    step: &FlowStep,
    joins: bool,
) -> Expected<String> {
    let fence = Fence(fence.cast_unsigned());
    let answer = Ok(words(Some(step.to())).expect("a point"));
    // A rollback would lose it.
    if joins && matches!(step, FlowStep::CallResult { .. }) {
        return seen.same(refused("RS007"));
    }
    match decide(seen.before, &Advance { fence, step }, seen.now) {
        Some(Decision::Write(write)) if write.new_fence => {
            Expected { answer: refused("RS005"), after: seen.written(&write) }
        }
        Some(Decision::Write(write)) => Expected { answer, after: seen.written(&write) },
        Some(Decision::Stands(AdvanceReply::Repeated)) if !joins => seen.same(answer),
        Some(Decision::Stands(AdvanceReply::TooLarge)) => seen.same(refused("RS006")),
        Some(Decision::Stands(AdvanceReply::Repeated | AdvanceReply::Lost)) | None => match step {
            FlowStep::CallResult { output, .. } => Expected {
                answer: refused("RS001"),
                after: seen.noted(LateResult::of_call(fence, output)),
            },
            FlowStep::Start { .. } | FlowStep::Commit { .. } | FlowStep::Call { .. } => {
                seen.same(refused("RS001"))
            }
        },
    }
}

/// A call that is about to be sent.
pub(super) struct AboutToCall<'a> {
    pub(super) fence: i64,
    pub(super) from: RecoveryPoint,
    pub(super) request: &'a [u8],
    pub(super) remembers_ms: Option<i64>,
    pub(super) deadline_ms: i32,
}

/// Two decisions in one step: the mark, and the check before the wire.
pub(super) fn about_to_call(seen: Seen<'_>, call: &AboutToCall<'_>) -> Expected<String> {
    let fence = Fence(call.fence.cast_unsigned());
    // As a call of the program's has it: the name of the phase, a zero, and the bytes.
    let digest = RequestDigest::of(&[&b"charge\0"[..], call.request].concat());
    let phase = call.from.phase();
    let deadline = ms(call.deadline_ms.into());
    let repeatable_for = call
        .remembers_ms
        .map(|length| length - i64::from(call.deadline_ms) - 1)
        .filter(|length| *length > 0)
        .map(ms);
    let mut is_unsent = false;
    let mut marked = seen.before.cloned();
    if call.from == RecoveryPoint::Before(phase) {
        let step = FlowStep::Call { phase, digest, repeatable_for };
        match decide(seen.before, &Advance { fence, step: &step }, seen.now) {
            Some(Decision::Write(write)) => {
                marked = seen.written(&write);
                is_unsent = true;
            }
            Some(Decision::Stands(AdvanceReply::Repeated)) => {}
            Some(Decision::Stands(AdvanceReply::TooLarge)) => return seen.same(refused("RS006")),
            Some(Decision::Stands(AdvanceReply::Lost)) | None => {
                return seen.same(refused("RS001"));
            }
        }
    }
    let is_here = |record: &&Record| {
        record.fence == fence
            && record.lease_until().is_some()
            && record.recovery_point() == Some(RecoveryPoint::Calling(phase))
    };
    let Some(record) = marked.as_ref().filter(is_here) else { return seen.same(refused("RS001")) };
    let then = Seen { before: Some(record), ..seen };
    let unknown = |doubt: Doubt| {
        let settle = Settle { fence, outcome: &Outcome::Unknown(doubt), ttl: None, point: None };
        match decide(Some(record), &settle, seen.now) {
            Some(Decision::Write(write)) => then.written(&write),
            Some(Decision::Stands(_)) | None => panic!("it is its owner's"),
        }
    };
    let wire = BeforeWire {
        record,
        read_at: seen.now,
        elapsed: Duration::ZERO,
        deadline,
        digest: &digest,
        is_repeatable: repeatable_for.is_some(),
    };
    let mark = *record.flow.as_ref().and_then(|flow| flow.mark()).expect("a mark");
    let is_keyed = mark.resume_until.is_some();
    match decide_send(&wire) {
        SendDecision::OtherBytes => {
            Expected { answer: Ok("unknown".into()), after: unknown(Doubt::OtherBytes) }
        }
        // Stricter than the machine, whose caller knows that it has not sent: here nobody does.
        SendDecision::Send | SendDecision::TooLate | SendDecision::NotRepeatable
            if !is_keyed && !is_unsent =>
        {
            Expected { answer: Ok("unknown".into()), after: unknown(Doubt::AnswerLost) }
        }
        SendDecision::Send | SendDecision::TooLate | SendDecision::NotRepeatable
            if repeatable_for.is_none() && !is_unsent =>
        {
            Expected { answer: Ok("unknown".into()), after: unknown(Doubt::NotRepeatable) }
        }
        SendDecision::NotRepeatable => panic!("it has just set the mark by itself"),
        // Asked once more, so bytes may have left: the mark is nobody's to clear from here on, and else as it was.
        SendDecision::Send if mark.set_by == fence && !is_unsent => {
            let mut asked_twice = record.clone();
            asked_twice.version = seen.version;
            let mark = FirstSentMark { set_by: Fence(0), ..mark };
            FlowProgress::make(&mut asked_twice.flow, &FlowMove::CallMarked(mark));
            Expected { answer: Ok("send".into()), after: Some(asked_twice) }
        }
        SendDecision::Send => Expected { answer: Ok("send".into()), after: marked },
        SendDecision::TooLate if is_unsent => {
            match decide(Some(record), &CallNotSent { fence, phase }, seen.now) {
                Some(Decision::Write(write)) => {
                    Expected { answer: Ok("too_late".into()), after: then.written(&write) }
                }
                Some(Decision::Stands(_)) | None => panic!("it is its owner's"),
            }
        }
        SendDecision::TooLate => {
            Expected { answer: Ok("too_late".into()), after: unknown(Doubt::AnswerLost) }
        }
    }
}

pub(super) fn call_not_sent(seen: Seen<'_>, fence: i64, phase: u16) -> Expected<String> {
    let fence = Fence(fence.cast_unsigned());
    match decide(seen.before, &CallNotSent { fence, phase }, seen.now) {
        Some(Decision::Write(write)) => {
            let after = seen.written(&write);
            Expected { answer: Ok(standing(after.as_ref())), after }
        }
        Some(Decision::Stands(_)) | None => seen.same(refused("RS001")),
    }
}

/// A settle that commits by itself, or one inside a transaction.
pub(super) fn settle(
    seen: Seen<'_>,
    fence: i64,
    told: &Told,
    point: Option<RecoveryPoint>,
    joins: bool,
) -> Expected<String> {
    let fence = Fence(fence.cast_unsigned());
    let outcome = outcome(told);
    // What is committed with it would be done again.
    if joins && matches!(outcome, Outcome::Retryable(_)) {
        return seen.same(refused("RS007"));
    }
    let settle = Settle { fence, outcome: &outcome, ttl: told.ttl_ms.map(ms), point };
    let code = match decide(seen.before, &settle, seen.now) {
        Some(Decision::Write(write)) => {
            let after = seen.written(&write);
            return Expected { answer: Ok(standing(after.as_ref())), after };
        }
        Some(Decision::Stands(SettleReply::Repeated)) if joins => "RS001",
        Some(Decision::Stands(SettleReply::Repeated)) => {
            return seen.same(Ok(standing(seen.before)));
        }
        Some(Decision::Stands(SettleReply::Contradicts)) => "RS011",
        Some(Decision::Stands(SettleReply::Lost)) | None => "RS001",
    };
    let is_evidence = !joins && !matches!(outcome, Outcome::Unknown(_));
    let after = if is_evidence {
        seen.noted(LateResult::new(fence, &outcome))
    } else {
        seen.before.cloned()
    };
    Expected { answer: refused(code), after }
}

fn outcome(told: &Told) -> Outcome {
    let status = told.status.map(|status| StatusCode::from_u16(status as u16).expect("a status"));
    match told.outcome {
        "completed" => {
            let headers: Vec<(HeaderName, HeaderValue)> = match told.headers {
                None => vec![],
                Some(_) => vec![(CONTENT_TYPE, HeaderValue::from_static("text/plain"))],
            };
            let body = Bytes::from(told.body.clone().unwrap_or_default());
            let status = status.expect("it has one");
            Outcome::Completed(Stored::Kept(StoredResponse { status, headers, body }))
        }
        "not_kept" => {
            let location = told.headers.map(|_| HeaderValue::from_static("/rides/7"));
            Outcome::Completed(Stored::NotKept { status, location })
        }
        "retryable" => Outcome::Retryable(status),
        "unknown" => Outcome::Unknown(Doubt::Said),
        other => panic!("{other}"),
    }
}

/// The headers of an answer whose body is not kept: only this one stays.
pub(super) const NOT_KEPT_HEADERS: &str = "{{date,today},{location,/rides/7}}";

pub(super) fn withdraw(seen: Seen<'_>, owner: i64) -> Expected<bool> {
    match decide(seen.before, &Withdraw { owner: owner.cast_unsigned() }, seen.now) {
        Some(Decision::Write(write)) => Expected { answer: Ok(true), after: seen.written(&write) },
        Some(Decision::Stands(_)) | None => seen.same(Ok(false)),
    }
}

pub(super) fn renew(seen: Seen<'_>, fence: i64, lease_ms: i64, lease_max_ms: i64) -> Expected<i32> {
    let fence = Fence(fence.cast_unsigned());
    let renew = Renew { fence, lease: ms(lease_ms), lease_max: ms(lease_max_ms) };
    match decide(seen.before, &renew, seen.now) {
        Some(Decision::Write(write)) => {
            let after = seen.written(&write);
            let until = after.as_ref().and_then(Record::lease_until).expect("a lease");
            let left = seen.now.until(until).as_millis();
            Expected { answer: Ok(left.try_into().expect("a short lease")), after }
        }
        Some(Decision::Stands(_)) | None => seen.same(refused("RS001")),
    }
}

fn standing(record: Option<&Record>) -> String {
    record.map_or("none", |record| record.standing().name()).to_owned()
}
