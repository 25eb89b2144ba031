//! How does a batch of writes become arrays?
//!
//! One array per column, one element per record, sorted by record: `unnest` turns them into rows
//! again on the other side. The store's own connections and the application's transactions bind the
//! same arrays.

use http::header::LOCATION;
use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::record::{
    Answer, First, Happened, LateResult, Record, Standing, Write, make_room,
};
use retrysafe_core::trace::{BeginOrigin, read_begin_text};
use tokio_postgres::types::{ToSql, Type};

use super::fields::{
    Detail, STAMP_BYTES, first_request, header_lines, length_ms, ms, put_moments, put_next_moment,
    record_request,
};
use super::next::Next;
use super::seal::Content;

/// A parameter of one of our statements.
#[derive(Debug)]
pub enum Column {
    Bytes(Vec<Vec<u8>>),
    MaybeBytes(Vec<Option<Vec<u8>>>),
    MaybeTexts(Vec<Option<String>>),
    Numbers(Vec<i64>),
    MaybeNumbers(Vec<Option<i64>>),
    Shorts(Vec<i16>),
    MaybeShorts(Vec<Option<i16>>),
}

impl Column {
    /// The value and the type that the store's own driver sends.
    pub(super) fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Bytes(values) => (values, Type::BYTEA_ARRAY),
            Self::MaybeBytes(values) => (values, Type::BYTEA_ARRAY),
            Self::MaybeTexts(values) => (values, Type::TEXT_ARRAY),
            Self::Numbers(values) => (values, Type::INT8_ARRAY),
            Self::MaybeNumbers(values) => (values, Type::INT8_ARRAY),
            Self::Shorts(values) => (values, Type::INT2_ARRAY),
            Self::MaybeShorts(values) => (values, Type::INT2_ARRAY),
        }
    }
}

/// The begins of a batch, as `write_v1` and `begin_in_v1` take them.
#[derive(Debug, Default)]
pub(super) struct Begins {
    ids: Vec<Vec<u8>>,
    requests: Vec<Vec<u8>>,
    ttls: Vec<i64>,
    leases: Vec<i64>,
    details: Vec<Vec<u8>>,
    timelines: Vec<Vec<u8>>,
    sums: Vec<i64>,
}

impl Begins {
    pub(super) fn push(&mut self, first: &First) {
        let request = first_request(first);
        let ttl_ms = length_ms(first.ttl);
        let detail = Detail {
            attempts: 1,
            ttl_ms,
            owner: Some(first.owner),
            mark: first.mark,
            flow: first.flow.clone(),
            ..Detail::default()
        };
        let detail = detail.bytes();
        let mut timeline = Vec::with_capacity(16);
        put_next_moment(&mut timeline, &Happened::Began(first.request_id.clone()));
        let content = Content {
            id: &first.id,
            state: 0,
            status: None,
            request: &request,
            detail: &detail,
            timeline: &timeline,
            headers: None,
            body: None,
        };
        self.sums.push(content.sum());
        self.ids.push(first.id.as_bytes().to_vec());
        self.requests.push(request);
        self.ttls.push(ttl_ms);
        self.leases.push(length_ms(first.lease));
        self.details.push(detail);
        self.timelines.push(timeline);
    }

    pub(super) fn columns(self) -> [Column; 7] {
        [
            Column::Bytes(self.ids),
            Column::Bytes(self.requests),
            Column::Numbers(self.ttls),
            Column::Numbers(self.leases),
            Column::Bytes(self.details),
            Column::Bytes(self.timelines),
            Column::Numbers(self.sums),
        ]
    }
}

/// Writes over records that were read, as `write_v1` and `change_v1` take them.
#[derive(Debug, Default)]
pub(super) struct Changes {
    ids: Vec<Vec<u8>>,
    froms: Vec<i64>,
    requests: Vec<Vec<u8>>,
    created: Vec<i64>,
    /// 0 for a new one.
    fences: Vec<i64>,
    states: Vec<i16>,
    lengths: Vec<Option<i64>>,
    details: Vec<Vec<u8>>,
    timelines: Vec<Vec<u8>>,
    statuses: Vec<Option<i16>>,
    headers: Vec<Option<Vec<u8>>>,
    bodies: Vec<Option<Vec<u8>>>,
    sums: Vec<i64>,
    sinces: Vec<Option<i64>>,
    untils: Vec<Option<i64>>,
    last_fences: Vec<Option<i64>>,
    last_ats: Vec<Option<i64>>,
    labels: Vec<Option<String>>,
}

impl Changes {
    pub(super) fn push(&mut self, from: &Record, write: &Write) {
        let next = Next::of(from, write);
        let request = record_request(from);
        let (timeline, last) = open_timeline(from, write);
        let (status, headers, body) = next.answer.map_or((None, None, None), answer_columns);
        let detail = next.detail().bytes();
        let content = Content {
            id: &from.id,
            state: next.state,
            status,
            request: &request,
            detail: &detail,
            timeline: &timeline,
            headers: headers.as_deref(),
            body: body.as_deref(),
        };
        self.sums.push(content.sum());
        self.ids.push(from.id.as_bytes().to_vec());
        self.froms.push(from.version.cast_signed());
        self.requests.push(request);
        self.created.push(ms(from.created_at));
        self.fences.push(if write.new_fence { 0 } else { from.fence.0.cast_signed() });
        self.states.push(next.state);
        self.lengths.push(next.length);
        self.details.push(detail);
        self.timelines.push(timeline);
        self.statuses.push(status);
        self.headers.push(headers);
        self.bodies.push(body);
        self.sinces.push(next.since);
        self.untils.push(next.until);
        self.last_fences.push(last.map(|(fence, _)| fence));
        self.last_ats.push(last.map(|(_, at)| at));
        self.labels.push(write.what.as_ref().filter(|what| is_told_at_once(what)).map(label));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// For settles, and what else makes a state that begins now.
    pub(super) fn settles(self) -> [Column; 13] {
        let [settles @ .., _, _, _, _, _] = self.columns();
        settles
    }

    /// For all writes.
    pub(super) fn columns(self) -> [Column; 18] {
        [
            Column::Bytes(self.ids),
            Column::Numbers(self.froms),
            Column::Bytes(self.requests),
            Column::Numbers(self.created),
            Column::Numbers(self.fences),
            Column::Shorts(self.states),
            Column::MaybeNumbers(self.lengths),
            Column::Bytes(self.details),
            Column::Bytes(self.timelines),
            Column::MaybeShorts(self.statuses),
            Column::MaybeBytes(self.headers),
            Column::MaybeBytes(self.bodies),
            Column::Numbers(self.sums),
            Column::MaybeNumbers(self.sinces),
            Column::MaybeNumbers(self.untils),
            Column::MaybeNumbers(self.last_fences),
            Column::MaybeNumbers(self.last_ats),
            Column::MaybeTexts(self.labels),
        ]
    }

    /// For `mend_v1`: the unchanging part alone.
    pub(super) fn unchanging(self) -> [Column; 4] {
        [
            Column::Bytes(self.ids),
            Column::Numbers(self.froms),
            Column::Bytes(self.requests),
            Column::Numbers(self.created),
        ]
    }
}

/// Whether a write can go with the common ones: a settle by the owner, or a new attempt. Its state
/// begins now, and its moment is no news for auditors.
pub(super) fn is_common(from: &Record, write: &Write) -> bool {
    let next = Next::of(from, write);
    let begins_now = next.since.is_none() && next.until.is_none() && next.length.is_some();
    begins_now && write.what.as_ref().is_some_and(|what| !is_told_at_once(what))
}

/// About how many bytes a write will send.
pub(super) fn size(from: &Record, write: &Write) -> usize {
    let flow = write.flow_after(from).map_or(0, |flow| flow.bytes());
    match Next::of(from, write).answer {
        Some(Answer::Kept(response)) => response.body.len() + 512,
        Some(Answer::NotKept { .. }) | None => flow + 512,
    }
}

/// The timeline without the fence and the time of its last moment, and those two unless the server
/// fills them in.
fn open_timeline(from: &Record, write: &Write) -> (Vec<u8>, Option<(i64, i64)>) {
    let mut out = Vec::with_capacity(96);
    let Some(what) = &write.what else {
        put_moments(&mut out, &from.timeline);
        out.truncate(out.len().saturating_sub(STAMP_BYTES));
        let last = from.timeline.last();
        return (out, last.map(|last| (last.fence.0.cast_signed(), ms(last.at))));
    };
    let mut kept = from.timeline.clone();
    make_room(&mut kept, what);
    put_moments(&mut out, &kept);
    put_next_moment(&mut out, what);
    (out, None)
}

/// Status, headers and body of an answer. Of one that was not kept, the location is its only header,
/// and there is no body.
fn answer_columns(answer: &Answer) -> (Option<i16>, Option<Vec<u8>>, Option<Vec<u8>>) {
    let status = answer.status().map(|status| status.as_u16().cast_signed());
    match answer {
        Answer::Kept(response) => {
            let headers = response.headers.iter().map(|(name, value)| (name, value));
            (status, Some(header_lines(headers)), Some(response.body.to_vec()))
        }
        Answer::NotKept { location, .. } => {
            let location = location.as_ref().map(|value| (&LOCATION, value));
            (status, location.map(|header| header_lines(std::iter::once(header))), None)
        }
    }
}

/// Whether auditors hear of it at once: doubts, verdicts, evidence, and what an operator did. All
/// else they read in the timeline.
fn is_told_at_once(what: &Happened) -> bool {
    match what {
        Happened::Began(_)
        | Happened::LookedUp(_)
        | Happened::Advanced(_)
        | Happened::Settled(
            Standing::InProgress | Standing::Completed | Standing::FailedRetryable,
            _,
        ) => false,
        Happened::Settled(Standing::Unknown, _)
        | Happened::Doubted(_)
        | Happened::LateResult(_)
        | Happened::Resolved(..)
        | Happened::Expired(_) => true,
    }
}

/// A recovery point, in words.
fn advanced(point: RecoveryPoint) -> String {
    match point {
        RecoveryPoint::Before(phase) => format!("advanced to phase {phase}"),
        RecoveryPoint::Calling(phase) => format!("about to call in phase {phase}"),
    }
}

/// A begin, in words.
fn began(kept: &str) -> String {
    let BeginOrigin { request_id, span } = read_begin_text(kept);
    let request = request_id.map(|id| format!(" request {id}")).unwrap_or_default();
    let trace = span.map(|span| format!(" in trace {}", span.trace_hex())).unwrap_or_default();
    format!("began{request}{trace}")
}

/// What happened, for people who read the table of transitions.
fn label(what: &Happened) -> String {
    let code = |code: &Option<u16>| code.map(|code| format!(" {code}")).unwrap_or_default();
    let text = match what {
        Happened::Began(None) => "began".into(),
        Happened::Began(Some(kept)) => began(kept),
        Happened::Settled(standing, status) => {
            format!("settled {}{}", standing.name(), code(status))
        }
        Happened::Doubted(doubt) => format!("doubted {}", doubt.name()),
        Happened::LateResult(late) => {
            let LateResult { fence, standing, status, .. } = &**late;
            format!("late result of fence {}: {}{}", fence.0, standing.name(), code(status))
        }
        Happened::LookedUp(found) => format!("looked up: {found}"),
        Happened::Advanced(point) => advanced(*point),
        Happened::Resolved(standing, judge, reason) => {
            format!("resolved {} by {}: {reason}", standing.name(), judge.name())
        }
        Happened::Expired(reason) => format!("expired: {reason}"),
    };
    // PostgreSQL's text has no NUL.
    text.replace('\0', "\u{fffd}")
}
