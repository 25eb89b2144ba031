//! How does a batch of writes become arrays?
//!
//! One array per column, one element per record, sorted by record: `unnest` turns them into rows
//! again on the other side. The store's own connections and the application's transactions bind the
//! same arrays.

use http::header::LOCATION;
use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::record::{
    Answer, First, Happened, LateResult, MOMENTS_MAX, Record, Standing, Write, make_room,
};
use retrysafe_core::trace::{BeginOrigin, read_begin_text};

use super::column::Column;
use super::fields::{
    Detail, STAMP_BYTES, length_ms, ms, put_first_request, put_header_lines, put_moments,
    put_next_moment, put_record_request,
};
use super::next::Next;
use super::seal::Content;

/// The begins of a batch, as `write_v1` and `begin_in_v1` take them.
#[derive(Debug)]
pub(super) struct Begins {
    ids: Column,
    requests: Column,
    ttls: Column,
    leases: Column,
    details: Column,
    timelines: Column,
    sums: Column,
}

impl Begins {
    pub(super) fn none() -> Self {
        Self {
            ids: Column::of_bytes(),
            requests: Column::of_bytes(),
            ttls: Column::of_numbers(),
            leases: Column::of_numbers(),
            details: Column::of_bytes(),
            timelines: Column::of_bytes(),
            sums: Column::of_numbers(),
        }
    }

    pub(super) fn push(&mut self, first: &First) {
        let ttl_ms = length_ms(first.ttl);
        let detail = Detail {
            attempts: 1,
            ttl_ms,
            owner: Some(first.owner),
            mark: first.mark,
            flow: first.flow.clone(),
            ..Detail::default()
        };
        let began = Happened::Began(first.request_id.clone());
        self.ids.push(first.id.as_bytes());
        self.requests.push_written(|out| put_first_request(out, first));
        self.ttls.push_number(ttl_ms);
        self.leases.push_number(length_ms(first.lease));
        self.details.push_written(|out| detail.put(out));
        self.timelines.push_written(|out| put_next_moment(out, &began));
        let content = Content {
            id: &first.id,
            state: 0,
            status: None,
            request: self.requests.last(),
            detail: self.details.last(),
            timeline: self.timelines.last(),
            headers: None,
            body: None,
        };
        self.sums.push_number(content.sum());
    }

    pub(super) fn columns(self) -> [Column; 7] {
        [self.ids, self.requests, self.ttls, self.leases, self.details, self.timelines, self.sums]
    }
}

/// Writes over records that were read, as `write_v1` and `change_v1` take them.
#[derive(Debug)]
pub(super) struct Changes {
    ids: Column,
    froms: Column,
    requests: Column,
    created: Column,
    /// 0 for a new one.
    fences: Column,
    states: Column,
    lengths: Column,
    details: Column,
    timelines: Column,
    statuses: Column,
    headers: Column,
    bodies: Column,
    sums: Column,
    sinces: Column,
    untils: Column,
    last_fences: Column,
    last_ats: Column,
    labels: Column,
}

impl Changes {
    pub(super) fn none() -> Self {
        Self {
            ids: Column::of_bytes(),
            froms: Column::of_numbers(),
            requests: Column::of_bytes(),
            created: Column::of_numbers(),
            fences: Column::of_numbers(),
            states: Column::of_shorts(),
            lengths: Column::of_numbers(),
            details: Column::of_bytes(),
            timelines: Column::of_bytes(),
            statuses: Column::of_shorts(),
            headers: Column::of_bytes(),
            bodies: Column::of_bytes(),
            sums: Column::of_numbers(),
            sinces: Column::of_numbers(),
            untils: Column::of_numbers(),
            last_fences: Column::of_numbers(),
            last_ats: Column::of_numbers(),
            labels: Column::of_texts(),
        }
    }

    pub(super) fn push(&mut self, from: &Record, write: &Write) {
        let next = Next::of(from, write);
        self.ids.push(from.id.as_bytes());
        self.froms.push_number(from.version.cast_signed());
        self.requests.push_written(|out| put_record_request(out, from));
        self.created.push_number(ms(from.created_at));
        self.fences.push_number(if write.new_fence { 0 } else { from.fence.0.cast_signed() });
        self.states.push_short(next.state);
        self.lengths.push_number(next.length);
        self.details.push_written(|out| next.detail().put(out));
        let last = self.push_timeline(from, write);
        let (status, has_headers, has_body) = self.push_answer(next.answer);
        let content = Content {
            id: &from.id,
            state: next.state,
            status,
            request: self.requests.last(),
            detail: self.details.last(),
            timeline: self.timelines.last(),
            headers: has_headers.then(|| self.headers.last()),
            body: has_body.then(|| self.bodies.last()),
        };
        self.sums.push_number(content.sum());
        self.sinces.push_number(next.since);
        self.untils.push_number(next.until);
        self.last_fences.push_number(last.map(|(fence, _)| fence));
        self.last_ats.push_number(last.map(|(_, at)| at));
        match write.what.as_ref().filter(|what| is_told_at_once(what)) {
            Some(what) => self.labels.push(label(what).as_bytes()),
            None => self.labels.push_null(),
        }
    }

    /// Appends the timeline without the fence and the time of its last moment. Returns those two, unless the server fills them in.
    fn push_timeline(&mut self, from: &Record, write: &Write) -> Option<(i64, i64)> {
        let Some(what) = &write.what else {
            self.timelines.push_written(|out| {
                let begin = out.len();
                put_moments(out, &from.timeline);
                out.truncate(out.len().saturating_sub(STAMP_BYTES).max(begin));
            });
            let last = from.timeline.last();
            return last.map(|last| (last.fence.0.cast_signed(), ms(last.at)));
        };
        self.timelines.push_written(|out| {
            if from.timeline.len() < MOMENTS_MAX {
                put_moments(out, &from.timeline);
            } else {
                let mut kept = from.timeline.clone();
                make_room(&mut kept, what);
                put_moments(out, &kept);
            }
            put_next_moment(out, what);
        });
        None
    }

    /// Appends status, headers and body of an answer. Of one that was not kept, the location is its only header, and there is no body. Returns the
    /// status, and whether there are headers and a body.
    fn push_answer(&mut self, answer: Option<&Answer>) -> (Option<i16>, bool, bool) {
        let status = answer.and_then(Answer::status).map(|status| status.as_u16().cast_signed());
        self.statuses.push_short(status);
        match answer {
            Some(Answer::Kept(response)) => {
                let headers = response.headers.iter().map(|(name, value)| (name, value));
                self.headers.push_written(|out| put_header_lines(out, headers));
                self.bodies.push(&response.body);
                (status, true, true)
            }
            Some(Answer::NotKept { location: Some(location), .. }) => {
                let header = std::iter::once((&LOCATION, location));
                self.headers.push_written(|out| put_header_lines(out, header));
                self.bodies.push_null();
                (status, true, false)
            }
            Some(Answer::NotKept { location: None, .. }) | None => {
                self.headers.push_null();
                self.bodies.push_null();
                (status, false, false)
            }
        }
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
            self.ids,
            self.froms,
            self.requests,
            self.created,
            self.fences,
            self.states,
            self.lengths,
            self.details,
            self.timelines,
            self.statuses,
            self.headers,
            self.bodies,
            self.sums,
            self.sinces,
            self.untils,
            self.last_fences,
            self.last_ats,
            self.labels,
        ]
    }

    /// For `mend_v1`: the unchanging part alone.
    pub(super) fn unchanging(self) -> [Column; 4] {
        [self.ids, self.froms, self.requests, self.created]
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
