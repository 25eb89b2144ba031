//! How is a record shown to an operator?
//!
//! Everything but what could hurt: never the key, the request's body, the answer that callers get or
//! a credential. Of an answer that came too late its beginning is shown: it is the evidence by which
//! an operator decides, and nobody else ever gets it. Times are RFC 3339, by the store's clock.

use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::record::{
    Answer, AnswerHead, Happened, Judge, Moment, Record, State, read_lookup_note,
};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::time::Time;
use retrysafe_core::trace::read_begin_text;
use serde_json::{Map, Value, json};

use super::signature;
use crate::harmless::harmless;

/// How many digits of an id are shown where it is to be read or typed: as many as in the log.
pub(crate) const SHORT_ID_DIGITS: usize = 12;

/// A store's time as people and machines read it.
pub(crate) fn time(at: Time) -> String {
    let ms = i64::try_from(at.as_ms()).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(stamp) => format!("{stamp:.3}"),
        Err(_) => format!("{ms}ms"),
    }
}

/// When a record may be reaped; none if that is never.
pub(crate) fn expires_at(record: &Record) -> Option<Time> {
    record.expires_at().filter(|at| *at != Time::NEVER)
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A record in a list.
pub(crate) fn summary(record: &Record) -> Value {
    let mut shown = Map::new();
    let mut put = |name: &str, value: Value| {
        shown.insert(name.into(), value);
    };
    put("id", record.id.to_string().into());
    put("state", record.standing().name().into());
    put("method", (*record.about.method).into());
    put("route", (*record.about.route).into());
    put("path", (*record.about.path).into());
    put("scope", record.scope.to_string().into());
    put("scope_hex", hex(record.scope.as_bytes()).into());
    put("key", record.key.to_string().into());
    put("request_id", record.request_id().into());
    put("fence", record.fence.0.into());
    put("attempts", record.attempts.into());
    put("created_at", time(record.created_at).into());
    put("expires_at", expires_at(record).map(time).into());
    match &record.state {
        State::InProgress { begun_at, lease_until, head, .. } => {
            put("begun_at", time(*begun_at).into());
            put("lease_until", time(*lease_until).into());
            put_head(&mut put, head.as_ref());
        }
        State::Completed { answer, settled_at, .. } => {
            put("settled_at", time(*settled_at).into());
            put("status", answer.status().map(|status| status.as_u16()).into());
            match answer {
                Answer::Kept(response) => put("response_bytes", response.body.len().into()),
                Answer::NotKept { .. } => put("response_bytes", Value::Null),
            }
        }
        State::FailedRetryable { settled_at, .. } => put("settled_at", time(*settled_at).into()),
        State::Unknown { since, doubt, lookups, head, .. } => {
            put("since", time(*since).into());
            put("doubt", doubt.name().into());
            put("lookups", (*lookups).into());
            put_head(&mut put, head.as_ref());
        }
    }
    Value::Object(shown)
}

/// What is known of an answer that was not kept whole.
fn put_head(put: &mut impl FnMut(&str, Value), head: Option<&AnswerHead>) {
    let location = |head: &AnswerHead| {
        let location = head.location.as_ref()?;
        Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
    };
    put("original_status", head.map(|head| head.status.as_u16()).into());
    put("original_location", head.and_then(location).into());
}

/// A record by itself, with what happened to it.
pub(crate) fn whole(record: &Record) -> Value {
    let mut shown = summary(record);
    if let Some(object) = shown.as_object_mut() {
        object.insert("version".into(), record.version.into());
        object.insert("ttl_seconds".into(), record.ttl.as_secs_f64().into());
        object.insert("fingerprint".into(), hex(record.fingerprint.digest()).into());
        object.insert("timeline".into(), record.timeline.iter().map(moment).collect());
        if let State::Completed { answer: Answer::Kept(response), .. } = &record.state {
            let names = response.headers.iter().map(|(name, _)| name.as_str());
            object.insert("response_headers".into(), names.collect::<Vec<_>>().into());
            object.insert("schema_version".into(), schema_version(response).into());
        }
    }
    shown
}

/// The header by which an answer names the version of its schema.
const SCHEMA_VERSION: &str = "schema-version";

/// The version of the schema that an answer has, if it names one. An ordinary header: it is kept and replayed as it is.
fn schema_version(response: &StoredResponse) -> Option<String> {
    let mut headers = response.headers.iter();
    let (_, value) = headers.find(|(name, _)| name.as_str() == SCHEMA_VERSION)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// Which request began, and in which trace it was executed, if it was traced.
fn began(kept: Option<&str>) -> Value {
    let origin = kept.map(read_begin_text);
    let request_id = origin.and_then(|origin| origin.request_id);
    match origin.and_then(|origin| origin.span) {
        None => json!({"request_id": request_id}),
        Some(span) => json!({
            "request_id": request_id,
            "trace_id": span.trace_hex(),
            "span_id": span.span_hex(),
        }),
    }
}

fn moment(moment: &Moment) -> Value {
    let (what, more) = match &moment.what {
        Happened::Began(kept) => ("began", began(kept.as_deref())),
        Happened::Settled(standing, status) => {
            ("settled", json!({"state": standing.name(), "status": status}))
        }
        Happened::Doubted(doubt) => ("doubted", json!({"doubt": doubt.name()})),
        Happened::LateResult(late) => (
            "late_result",
            json!({
                "of_fence": late.fence.0,
                "state": late.standing.name(),
                "status": late.status,
                "content_type": late.content_type,
                "body_start": printable(&late.body_start),
                "body_bytes": late.body_bytes,
            }),
        ),
        Happened::LookedUp(note) => {
            let (found, answer) = read_lookup_note(note);
            let answer = answer.map(|answer| printable(answer.as_bytes()));
            ("looked_up", json!({"found": printable(found.as_bytes()), "answer": answer}))
        }
        Happened::Advanced(point) => (
            "advanced",
            match point {
                RecoveryPoint::Before(phase) => json!({"phase": phase, "calling": false}),
                RecoveryPoint::Calling(phase) => json!({"phase": phase, "calling": true}),
            },
        ),
        Happened::Resolved(standing, judge, reason) => {
            let mut told = match judge {
                Judge::Operator => signature::parts(reason),
                Judge::Reconciler | Judge::Webhook => json!({ "reason": reason }),
            };
            if let Some(told) = told.as_object_mut() {
                told.insert("state".into(), standing.name().into());
                told.insert("judge".into(), judge.name().into());
            }
            ("resolved", told)
        }
        Happened::Expired(reason) => ("expired", signature::parts(reason)),
    };
    let mut shown = json!({"at": time(moment.at), "fence": moment.fence.0, "what": what});
    if let (Some(shown), Value::Object(more)) = (shown.as_object_mut(), more) {
        shown.extend(more);
    }
    shown
}

/// What the next request with the key gets from a record that stands like this.
pub(crate) fn retry_gets(record: &Record, now: Time) -> String {
    if record.is_expired(now) {
        return "it runs as a new request, and nothing is remembered of the former one".into();
    }
    match &record.state {
        State::InProgress { .. } if record.flow.is_some() => {
            "the flow goes on from its recovery point".into()
        }
        State::InProgress { .. } => "409 request_in_progress".into(),
        State::Completed { answer: Answer::Kept(response), .. } => {
            format!("a replay: status {}, {} bytes", response.status.as_u16(), response.body.len())
        }
        State::Completed { answer: Answer::NotKept { .. }, .. } => {
            "410 response_not_stored: executed, and the answer is not known".into()
        }
        State::FailedRetryable { .. } => "it is executed again".into(),
        State::Unknown { .. } => "409 outcome_unknown".into(),
    }
}

/// What the last lookup of a record has found, and when.
pub(crate) fn last_lookup(record: &Record) -> Value {
    let last = record.timeline.iter().rev().find_map(|moment| match &moment.what {
        Happened::LookedUp(found) => Some((moment.at, found)),
        Happened::Began(_)
        | Happened::Settled(..)
        | Happened::Doubted(_)
        | Happened::LateResult(_)
        | Happened::Advanced(_)
        | Happened::Resolved(..)
        | Happened::Expired(_) => None,
    });
    last.map_or(
        Value::Null,
        |(at, found)| json!({"at": time(at), "found": printable(found.as_bytes())}),
    )
}

/// Bytes as text that does nothing to a terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_does_nothing_to_a_terminal() {
        assert_eq!(printable(b"{\"id\":1}\nx"), "{\"id\":1}\nx");
        assert_eq!(printable(b"\x1b[2J\xff\0"), "\u{fffd}[2J\u{fffd}\u{fffd}");
    }

    #[test]
    fn times_are_readable_at_both_ends() {
        assert_eq!(time(Time::from_ms(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(Time::from_ms(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
        assert!(time(Time::from_ms(u64::MAX)).ends_with("ms"));
    }
}
