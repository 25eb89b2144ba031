//! How does a record look as bytes?
//!
//! One format for every store that keeps records whole: a version byte, the fields in order, and a
//! CRC-32C over all of it. Numbers are LEB128, byte strings carry their length. Unknown versions and
//! broken checksums are errors, never "absent": a store that took damage for absence would let a
//! request run again.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::fingerprint::{Fingerprint, RulesId};
use crate::key::KeyDigest;
use crate::record::{
    About, Answer, AnswerHead, Doubt, Fence, Happened, Judge, LATE_BODY_BYTES_MAX, LateResult,
    MOMENTS_MAX, Moment, Record, Standing, State,
};
use crate::response::StoredResponse;
use crate::scope::{CredentialMark, Id, Scope};
use crate::time::ms;

mod flow;
mod reader;
mod unstamped;

use reader::Reader;

pub use unstamped::Stamp;

/// The version of the format that is written, and the only one that is read.
pub const VERSION: u8 = 3;

/// Set in the byte of a state behind which a flow's progress stands. A plain record has neither.
const HAS_FLOW: u8 = 0x10;

/// The fewest bytes that a header takes: two lengths and a name of one letter.
const HEADER_BYTES_MIN: usize = 3;

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// Written in another version of this format.
    UnknownVersion(u8),
    /// The checksum does not fit: the bytes were damaged.
    Checksum,
    /// The checksum fits, yet the fields make no sense.
    Malformed,
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownVersion(version) => {
                write!(
                    f,
                    "this program reads record format {VERSION}, and this is format {version}"
                )
            }
            Self::Checksum => f.write_str("the record's checksum does not fit its bytes"),
            Self::Malformed => f.write_str("the record's fields make no sense"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl Record {
    /// The record as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let flow = self.flow.as_ref().map_or(0, |flow| flow.bytes() + 128);
        let mut out = Vec::with_capacity(256 + flow + body_len(&self.state));
        self.encode_into(&mut out);
        out
    }

    /// Appends the record's bytes, for stores that write many at once.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(VERSION);
        out.extend_from_slice(self.id.as_bytes());
        put_bytes(out, self.scope.as_bytes());
        out.extend_from_slice(self.key.as_bytes());
        out.push(self.fingerprint.scheme());
        out.extend_from_slice(self.fingerprint.rules().as_bytes());
        out.extend_from_slice(self.fingerprint.digest());
        put_mark(out, self.mark);
        put_bytes(out, self.about.method.as_bytes());
        put_bytes(out, self.about.route.as_bytes());
        put_bytes(out, self.about.path.as_bytes());
        put(out, self.created_at.as_ms());
        put(out, ms(self.ttl));
        put(out, self.version);
        put(out, self.fence.0);
        put(out, u64::from(self.attempts));
        let state = out.len();
        put_state(out, &self.state);
        if let (Some(flow), Some(tag)) = (&self.flow, out.get_mut(state)) {
            *tag |= HAS_FLOW;
            flow::put_progress(out, flow);
        }
        put(out, self.timeline.len() as u64);
        for moment in &self.timeline {
            put_moment(out, moment);
        }
        let checksum = crc32c::crc32c(out.get(start..).unwrap_or_default());
        out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// The record that these bytes are.
    ///
    /// A kept body is a slice of `bytes`, not a copy.
    ///
    /// # Errors
    ///
    /// See [`DecodeError`]. Bytes of any content are safe to pass.
    pub fn decode(bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let bytes: Bytes = bytes.into();
        let version = *bytes.first().ok_or(DecodeError::Checksum)?;
        let fields = bytes.len().checked_sub(4).ok_or(DecodeError::Checksum)?;
        let (body, checksum) = (bytes.slice(..fields), bytes.slice(fields..));
        if crc32c::crc32c(&body).to_le_bytes() != *checksum {
            return Err(DecodeError::Checksum);
        }
        if version != VERSION {
            return Err(DecodeError::UnknownVersion(version));
        }
        let mut from = Reader { bytes: body, at: 1 };
        let record = from.record().ok_or(DecodeError::Malformed)?;
        if from.at != fields {
            return Err(DecodeError::Malformed);
        }
        Ok(record)
    }

    /// Whose key a damaged record of this name is, and what its request meant, as far as that can
    /// still be read. Scope and key are proved by the name, which is their digest; the fingerprint
    /// is as it stands there.
    pub fn decode_name(
        bytes: impl Into<Bytes>,
        id: &Id,
    ) -> Option<(Scope, KeyDigest, Fingerprint)> {
        let mut from = Reader { bytes: bytes.into(), at: 1 };
        let (_, scope, key) = from.name()?;
        let is_proved = Id::of(&scope, &key) == *id;
        is_proved.then_some((scope, key, from.fingerprint()?))
    }
}

impl Answer {
    /// The answer of the record `of` as bytes by itself, for stores that keep answers apart.
    ///
    /// The checksum covers the record's name too: an answer that was exchanged for another
    /// record's is damage, not a replay.
    pub fn encode(&self, of: &Id) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + answer_len(self));
        out.push(VERSION);
        put_answer(&mut out, self);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(of.as_bytes()), &out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// The answer of the record `of` that these bytes are. A kept body is a slice of them.
    ///
    /// # Errors
    ///
    /// See [`DecodeError`]. Bytes of any content are safe to pass.
    pub fn decode(of: &Id, bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let bytes: Bytes = bytes.into();
        let version = *bytes.first().ok_or(DecodeError::Checksum)?;
        let fields = bytes.len().checked_sub(4).ok_or(DecodeError::Checksum)?;
        let (body, checksum) = (bytes.slice(..fields), bytes.slice(fields..));
        let found = crc32c::crc32c_append(crc32c::crc32c(of.as_bytes()), &body);
        if found.to_le_bytes() != *checksum {
            return Err(DecodeError::Checksum);
        }
        if version != VERSION {
            return Err(DecodeError::UnknownVersion(version));
        }
        let mut from = Reader { bytes: body, at: 1 };
        let answer = from.answer().ok_or(DecodeError::Malformed)?;
        if from.at != fields { Err(DecodeError::Malformed) } else { Ok(answer) }
    }
}

impl Happened {
    /// Appends what happened, as bytes without time and fence, for stores that fill those in themselves.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        put_happened(out, self);
    }

    /// What these bytes say has happened.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Malformed`]. Bytes of any content are safe to pass.
    pub fn decode(bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let mut from = Reader { bytes: bytes.into(), at: 0 };
        let what = from.happened().ok_or(DecodeError::Malformed)?;
        if from.at != from.bytes.len() { Err(DecodeError::Malformed) } else { Ok(what) }
    }
}

impl AnswerHead {
    /// The head as bytes by itself, for stores that keep fields apart.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_head(&mut out, Some(self.status), self.location.as_ref());
        out
    }

    /// The head that these bytes are.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Malformed`]. Bytes of any content are safe to pass.
    pub fn decode(bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let mut from = Reader { bytes: bytes.into(), at: 0 };
        let head = from.head().flatten().ok_or(DecodeError::Malformed)?;
        if from.at != from.bytes.len() { Err(DecodeError::Malformed) } else { Ok(head) }
    }
}

fn body_len(state: &State) -> usize {
    match state {
        State::Completed { answer, .. } => answer_len(answer),
        State::InProgress { .. } | State::FailedRetryable { .. } | State::Unknown { .. } => 0,
    }
}

fn answer_len(answer: &Answer) -> usize {
    match answer {
        Answer::Kept(response) => {
            let header = |(n, v): &(HeaderName, HeaderValue)| n.as_str().len() + v.len() + 4;
            response.body.len() + response.headers.iter().map(header).sum::<usize>()
        }
        Answer::NotKept { .. } => 0,
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number as u8) | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_mark(out: &mut Vec<u8>, mark: Option<CredentialMark>) {
    match mark {
        None => out.push(0),
        Some(mark) => {
            out.push(1);
            out.extend_from_slice(mark.as_bytes());
        }
    }
}

fn put_state(out: &mut Vec<u8>, state: &State) {
    match state {
        State::InProgress { owner, begun_at, lease_until, head } => {
            out.push(0);
            out.extend_from_slice(&owner.to_le_bytes());
            put(out, begun_at.as_ms());
            put(out, lease_until.as_ms());
            put_maybe_head(out, head.as_ref());
        }
        State::Completed { answer, settled_at, expires_at } => {
            out.push(1);
            put(out, settled_at.as_ms());
            put(out, expires_at.as_ms());
            put_answer(out, answer);
        }
        State::FailedRetryable { settled_at, expires_at } => {
            out.push(2);
            put(out, settled_at.as_ms());
            put(out, expires_at.as_ms());
        }
        State::Unknown { since, doubt, lookups, owner, head } => {
            out.push(3);
            put(out, since.as_ms());
            out.push(doubt_byte(*doubt));
            put(out, u64::from(*lookups));
            out.push(u8::from(owner.is_some()));
            out.extend(owner.iter().flat_map(|owner| owner.to_le_bytes()));
            put_maybe_head(out, head.as_ref());
        }
    }
}

fn put_answer(out: &mut Vec<u8>, answer: &Answer) {
    match answer {
        Answer::Kept(response) => {
            out.push(0);
            put(out, u64::from(response.status.as_u16()));
            put(out, response.headers.len() as u64);
            for (name, value) in &response.headers {
                put_bytes(out, name.as_str().as_bytes());
                put_bytes(out, value.as_bytes());
            }
            put_bytes(out, &response.body);
        }
        Answer::NotKept { status, location } => {
            out.push(1);
            put_head(out, *status, location.as_ref());
        }
    }
}

fn put_head(out: &mut Vec<u8>, status: Option<StatusCode>, location: Option<&HeaderValue>) {
    put(out, status.map_or(0, |status| u64::from(status.as_u16())));
    // A location may be empty, so its length is counted from one.
    let location = location.map(HeaderValue::as_bytes);
    put(out, location.map_or(0, |value| value.len() as u64 + 1));
    out.extend_from_slice(location.unwrap_or_default());
}

/// A head, or the zero that no status is.
fn put_maybe_head(out: &mut Vec<u8>, head: Option<&AnswerHead>) {
    match head {
        None => out.push(0),
        Some(AnswerHead { status, location }) => put_head(out, Some(*status), location.as_ref()),
    }
}

fn put_moment(out: &mut Vec<u8>, moment: &Moment) {
    put(out, moment.at.as_ms());
    put(out, moment.fence.0);
    put_happened(out, &moment.what);
}

fn put_happened(out: &mut Vec<u8>, what: &Happened) {
    let status = |status: &Option<u16>| u64::from(status.unwrap_or(0));
    match what {
        Happened::Began(None) => out.push(0),
        Happened::Began(Some(request_id)) => {
            out.push(7);
            put_bytes(out, request_id.as_bytes());
        }
        Happened::Settled(standing, code) => {
            out.extend([1, standing_byte(*standing)]);
            put(out, status(code));
        }
        Happened::Doubted(doubt) => out.extend([2, doubt_byte(*doubt)]),
        Happened::LateResult(late) => {
            out.push(3);
            put(out, late.fence.0);
            out.push(standing_byte(late.standing));
            put(out, status(&late.status));
            // An empty media type is none.
            put_bytes(out, late.content_type.as_deref().unwrap_or_default().as_bytes());
            put_bytes(out, &late.body_start);
            put(out, late.body_bytes);
        }
        Happened::LookedUp(found) if found.is_empty() => out.push(4),
        Happened::LookedUp(found) => {
            out.push(8);
            put_bytes(out, found.as_bytes());
        }
        Happened::Resolved(standing, judge, reason) => {
            out.extend([5, standing_byte(*standing), judge_byte(*judge)]);
            put_bytes(out, reason.as_bytes());
        }
        Happened::Expired(reason) => {
            out.push(6);
            put_bytes(out, reason.as_bytes());
        }
        Happened::Advanced(point) => {
            out.push(9);
            flow::put_point(out, *point);
        }
    }
}

const DOUBTS: [Doubt; 10] = [
    Doubt::LeaseEnded,
    Doubt::OwnerGone,
    Doubt::AnswerLost,
    Doubt::Panicked,
    Doubt::ServerError,
    Doubt::Said,
    Doubt::OtherBytes,
    Doubt::ResultNotKept,
    Doubt::NotRepeatable,
    Doubt::CommittedAlone,
];
const JUDGES: [Judge; 3] = [Judge::Reconciler, Judge::Webhook, Judge::Operator];

fn standing_byte(standing: Standing) -> u8 {
    Standing::ALL.iter().position(|s| *s == standing).unwrap_or_default() as u8
}

fn doubt_byte(doubt: Doubt) -> u8 {
    DOUBTS.iter().position(|d| *d == doubt).unwrap_or_default() as u8
}

fn judge_byte(judge: Judge) -> u8 {
    JUDGES.iter().position(|j| *j == judge).unwrap_or_default() as u8
}

impl Reader {
    fn name(&mut self) -> Option<(Id, Scope, KeyDigest)> {
        let id = Id::from_bytes(self.array()?);
        let scope = Scope::from_bytes(&self.byte_string()?);
        Some((id, scope, KeyDigest::from_bytes(self.array()?)))
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        let scheme = self.byte()?;
        let rules = RulesId::from_bytes(self.array()?);
        Some(Fingerprint::from_parts(scheme, rules, self.array()?))
    }

    fn record(&mut self) -> Option<Record> {
        let (id, scope, key) = self.name()?;
        let fingerprint = self.fingerprint()?;
        let mark = self.mark()?;
        let about = About { method: self.text()?, route: self.text()?, path: self.text()? };
        let created_at = self.time()?;
        let ttl = Duration::from_millis(self.number()?);
        let version = self.number()?;
        let fence = Fence(self.number()?);
        let attempts = u32::try_from(self.number()?).ok()?;
        let tag = self.byte()?;
        let state = self.state(tag & !HAS_FLOW)?;
        let has_flow = tag & HAS_FLOW != 0;
        let flow = if has_flow { Some(Box::new(self.progress()?)) } else { None };
        // A completed flow is forgotten, and a released one has nothing in flight.
        let is_possible = match (&state, &flow) {
            (State::Completed { .. }, Some(_)) => false,
            (State::FailedRetryable { .. }, Some(flow)) => flow.mark().is_none(),
            (State::InProgress { .. } | State::Unknown { .. }, _) | (_, None) => true,
        };
        if !is_possible {
            return None;
        }
        Some(Record {
            id,
            scope,
            key,
            fingerprint,
            mark,
            about,
            created_at,
            ttl,
            version,
            fence,
            attempts,
            state,
            flow,
            timeline: {
                let count = self.count(MOMENTS_MAX)?;
                (0..count).map(|_| self.moment()).collect::<Option<_>>()?
            },
        })
    }

    fn mark(&mut self) -> Option<Option<CredentialMark>> {
        match self.byte()? {
            0 => Some(None),
            1 => self.array().map(CredentialMark::from_bytes).map(Some),
            _ => None,
        }
    }

    fn state(&mut self, tag: u8) -> Option<State> {
        Some(match tag {
            0 => State::InProgress {
                owner: u64::from_le_bytes(self.array()?),
                begun_at: self.time()?,
                lease_until: self.time()?,
                head: self.head()?,
            },
            1 => {
                let (settled_at, expires_at) = (self.time()?, self.time()?);
                State::Completed { answer: self.answer()?, settled_at, expires_at }
            }
            2 => State::FailedRetryable { settled_at: self.time()?, expires_at: self.time()? },
            3 => State::Unknown {
                since: self.time()?,
                doubt: self.one_of(&DOUBTS)?,
                lookups: u32::try_from(self.number()?).ok()?,
                owner: match self.byte()? {
                    0 => None,
                    1 => Some(u64::from_le_bytes(self.array()?)),
                    _ => return None,
                },
                head: self.head()?,
            },
            _ => return None,
        })
    }

    /// A head, where a status of zero stands for none.
    fn head(&mut self) -> Option<Option<AnswerHead>> {
        match self.status()? {
            None => Some(None),
            Some(status) => Some(Some(AnswerHead { status, location: self.location()? })),
        }
    }

    fn location(&mut self) -> Option<Option<HeaderValue>> {
        match self.number()?.checked_sub(1) {
            None => Some(None),
            Some(length) => HeaderValue::from_maybe_shared(self.take(length)?).ok().map(Some),
        }
    }

    fn answer(&mut self) -> Option<Answer> {
        Some(match self.byte()? {
            0 => {
                let status = self.status()??;
                let count = self.count(self.left() / HEADER_BYTES_MIN)?;
                let headers = (0..count)
                    .map(|_| {
                        let name = HeaderName::from_bytes(&self.byte_string()?).ok()?;
                        Some((name, HeaderValue::from_maybe_shared(self.byte_string()?).ok()?))
                    })
                    .collect::<Option<_>>()?;
                Answer::Kept(StoredResponse { status, headers, body: self.byte_string()? })
            }
            1 => Answer::NotKept { status: self.status()?, location: self.location()? },
            _ => return None,
        })
    }

    fn moment(&mut self) -> Option<Moment> {
        let (at, fence) = (self.time()?, Fence(self.number()?));
        Some(Moment { at, fence, what: self.happened()? })
    }

    fn happened(&mut self) -> Option<Happened> {
        Some(match self.byte()? {
            0 => Happened::Began(None),
            1 => Happened::Settled(self.one_of(&Standing::ALL)?, self.code()?),
            2 => Happened::Doubted(self.one_of(&DOUBTS)?),
            3 => Happened::LateResult(Box::new(LateResult {
                fence: Fence(self.number()?),
                standing: self.one_of(&Standing::ALL)?,
                status: self.code()?,
                content_type: self.text().map(|text| (!text.is_empty()).then_some(text))?,
                body_start: {
                    let start = self.byte_string()?;
                    (start.len() <= LATE_BODY_BYTES_MAX).then(|| Bytes::copy_from_slice(&start))?
                },
                body_bytes: self.number()?,
            })),
            4 => Happened::LookedUp("".into()),
            5 => Happened::Resolved(
                self.one_of(&Standing::ALL)?,
                self.one_of(&JUDGES)?,
                self.text()?,
            ),
            6 => Happened::Expired(self.text()?),
            // What is empty has the shorter spelling above.
            7 => Happened::Began(Some(self.text().filter(|id| !id.is_empty())?)),
            8 => Happened::LookedUp(self.text().filter(|found| !found.is_empty())?),
            9 => Happened::Advanced(self.point()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::flow::{FirstSentMark, FlowProgress, FlowVersion, RecoveryPoint, RequestDigest};
    use crate::time::Time;

    fn doubt() -> impl Strategy<Value = Doubt> {
        proptest::sample::select(&DOUBTS[..])
    }

    fn standing() -> impl Strategy<Value = Standing> {
        proptest::sample::select(&Standing::ALL[..])
    }

    fn time() -> impl Strategy<Value = Time> {
        prop_oneof![any::<u64>(), 0..1_000u64, Just(u64::MAX)].prop_map(Time::from_ms)
    }

    fn value() -> impl Strategy<Value = HeaderValue> {
        vec(prop_oneof![0x20..=0x7eu8, 0x80..=0xffu8], 0..40)
            .prop_map(|bytes| HeaderValue::from_bytes(&bytes).unwrap())
    }

    fn status() -> impl Strategy<Value = StatusCode> {
        (100..1_000u16).prop_map(|code| StatusCode::from_u16(code).unwrap())
    }

    fn head() -> impl Strategy<Value = Option<AnswerHead>> {
        let head = (status(), proptest::option::of(value()));
        proptest::option::of(head.prop_map(|(status, location)| AnswerHead { status, location }))
    }

    fn answer() -> impl Strategy<Value = Answer> {
        let name =
            "[a-z][a-z0-9-]{0,20}".prop_map(|n| HeaderName::from_bytes(n.as_bytes()).unwrap());
        prop_oneof![
            (status(), vec((name, value()), 0..8), vec(any::<u8>(), 0..300)).prop_map(
                |(status, headers, body)| {
                    Answer::Kept(StoredResponse { status, headers, body: body.into() })
                }
            ),
            (proptest::option::of(status()), proptest::option::of(value()))
                .prop_map(|(status, location)| Answer::NotKept { status, location }),
        ]
    }

    fn state() -> impl Strategy<Value = State> {
        prop_oneof![
            (any::<u64>(), time(), time(), head()).prop_map(
                |(owner, begun_at, lease_until, head)| {
                    State::InProgress { owner, begun_at, lease_until, head }
                }
            ),
            (answer(), time(), time()).prop_map(|(answer, settled_at, expires_at)| {
                State::Completed { answer, settled_at, expires_at }
            }),
            (time(), time()).prop_map(|(settled_at, expires_at)| State::FailedRetryable {
                settled_at,
                expires_at
            }),
            (time(), doubt(), any::<u32>(), any::<Option<u64>>(), head()).prop_map(
                |(since, doubt, lookups, owner, head)| {
                    State::Unknown { since, doubt, lookups, owner, head }
                }
            ),
        ]
    }

    /// The beginning of a late answer's body, and how long the whole was.
    fn body() -> impl Strategy<Value = (Bytes, u64)> {
        (vec(any::<u8>(), 0..40).prop_map(Bytes::from), any::<u64>())
    }

    fn happened() -> impl Strategy<Value = Happened> {
        let code = || proptest::option::of(1..=u16::MAX);
        let text = || ".{0,40}".prop_map(Into::<Box<str>>::into);
        prop_oneof![
            proptest::option::of(".{1,40}")
                .prop_map(|request_id| Happened::Began(request_id.map(Into::into))),
            (standing(), code()).prop_map(|(standing, code)| Happened::Settled(standing, code)),
            doubt().prop_map(Happened::Doubted),
            (any::<u64>(), standing(), code(), proptest::option::of("[a-z/]{1,40}"), body())
                .prop_map(|(fence, standing, status, content_type, (body_start, body_bytes))| {
                    Happened::LateResult(Box::new(LateResult {
                        fence: Fence(fence),
                        standing,
                        status,
                        content_type: content_type.map(Into::into),
                        body_start,
                        body_bytes,
                    }))
                }),
            text().prop_map(Happened::LookedUp),
            (standing(), proptest::sample::select(&JUDGES[..]), text())
                .prop_map(|(standing, judge, why)| Happened::Resolved(standing, judge, why)),
            text().prop_map(Happened::Expired),
            (any::<u16>(), any::<bool>()).prop_map(|(phase, is_call)| {
                let place = if is_call { RecoveryPoint::Calling } else { RecoveryPoint::Before };
                Happened::Advanced(place(phase))
            }),
        ]
    }

    /// A flow that has come so far, as the machine would move it there.
    fn flow() -> impl Strategy<Value = Option<Box<FlowProgress>>> {
        let bytes = || vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let mark = (any::<[u8; 32]>(), any::<u64>(), proptest::option::of(time()));
        let mark = proptest::option::of(mark);
        let flow = (".{1,20}", any::<u32>(), bytes(), vec(bytes(), 0..6), mark);
        proptest::option::of(flow.prop_map(|(name, version, input, outputs, mark)| {
            let mark = mark.map(|(digest, fence, resume_until)| FirstSentMark {
                digest: RequestDigest::from_bytes(digest),
                set_by: Fence(fence),
                resume_until,
            });
            let flow = FlowVersion::new(&name, version);
            Box::new(FlowProgress { flow, input, outputs, mark })
        }))
    }

    /// What a record in this state may remember of a flow.
    fn possible(state: &State, flow: Option<Box<FlowProgress>>) -> Option<Box<FlowProgress>> {
        match state {
            State::Completed { .. } => None,
            State::FailedRetryable { .. } => {
                flow.map(|flow| Box::new(FlowProgress { mark: None, ..*flow }))
            }
            State::InProgress { .. } | State::Unknown { .. } => flow,
        }
    }

    fn record() -> impl Strategy<Value = Record> {
        let name = (any::<[u8; 32]>(), vec(any::<u8>(), 0..80), any::<[u8; 32]>());
        let mark = proptest::option::of(any::<[u8; CredentialMark::LENGTH]>());
        let print = (any::<u8>(), any::<[u8; 8]>(), any::<[u8; 32]>(), mark);
        let about = (".{0,10}", ".{0,40}", ".{0,40}");
        let numbers = (time(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
        let moment = (time(), any::<u64>(), happened());
        (name, print, about, numbers, (state(), flow()), vec(moment, 0..=MOMENTS_MAX)).prop_map(
            |((id, scope, key), (scheme, rules, digest, mark), about, numbers, found, timeline)| {
                let (state, flow) = found;
                Record {
                    id: Id::from_bytes(id),
                    scope: Scope::from_bytes(&scope),
                    key: KeyDigest::from_bytes(key),
                    fingerprint: Fingerprint::from_parts(
                        scheme,
                        RulesId::from_bytes(rules),
                        digest,
                    ),
                    mark: mark.map(CredentialMark::from_bytes),
                    about: About {
                        method: about.0.into(),
                        route: about.1.into(),
                        path: about.2.into(),
                    },
                    created_at: numbers.0,
                    ttl: Duration::from_millis(numbers.1),
                    version: numbers.2,
                    fence: Fence(numbers.3),
                    attempts: numbers.4,
                    flow: possible(&state, flow),
                    state,
                    timeline: timeline
                        .into_iter()
                        .map(|(at, fence, what)| Moment { at, fence: Fence(fence), what })
                        .collect(),
                }
            },
        )
    }

    /// The same bytes under a checksum that fits them.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let fields = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[..fields]);
        bytes[fields..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_record_comes_back_from_its_bytes(record in record()) {
            prop_assert_eq!(Record::decode(record.encode()), Ok(record));
        }

        #[test]
        fn any_bytes_under_a_good_checksum_are_safe_to_decode(
            mut bytes in vec(any::<u8>(), 5..400),
            version in prop_oneof![Just(VERSION), any::<u8>()],
        ) {
            bytes[0] = version;
            match Record::decode(sealed(bytes)) {
                Ok(record) => prop_assert_eq!(Record::decode(record.encode()), Ok(record)),
                Err(DecodeError::UnknownVersion(found)) => prop_assert_eq!(found, version),
                Err(DecodeError::Malformed) => {}
                Err(DecodeError::Checksum) => prop_assert!(false, "the checksum is good"),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_flipped_byte_and_every_cut_is_noticed(record in record()) {
            let bytes = record.encode();
            for at in 0..bytes.len() {
                for bits in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff] {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= bits;
                    prop_assert_eq!(Record::decode(flipped), Err(DecodeError::Checksum));
                }
                prop_assert_eq!(Record::decode(bytes[..at].to_vec()), Err(DecodeError::Checksum));
            }
            let mut longer = bytes;
            longer.push(0);
            prop_assert_eq!(Record::decode(longer), Err(DecodeError::Checksum));
        }

        #[test]
        fn a_length_that_is_a_lie_is_refused_wherever_it_stands(record in record()) {
            let bytes = record.encode();
            let lies: [&[u8]; 3] = [
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
                &[0xff, 0xff, 0xff, 0xff, 0x0f],
                &[0xff; 10],
            ];
            for at in 1..bytes.len() - 4 {
                for lie in lies {
                    let mut told = bytes[..bytes.len() - 4].to_vec();
                    let end = (at + lie.len()).min(told.len());
                    told[at..end].copy_from_slice(&lie[..end - at]);
                    told.extend_from_slice(&[0; 4]);
                    // It may still be a record, since some fields may hold any bytes; it is never
                    // a panic, an endless loop or an allocation of the length that was told.
                    let _decoded = Record::decode(sealed(told));
                }
            }
        }
    }

    #[test]
    fn another_version_is_named_not_misread() {
        let mut bytes = sample().encode();
        for version in (0..=u8::MAX).filter(|version| *version != VERSION) {
            bytes[0] = version;
            let newer = sealed(bytes.clone());
            assert_eq!(Record::decode(newer), Err(DecodeError::UnknownVersion(version)));
        }
    }

    #[test]
    fn bytes_after_the_last_field_are_malformed() {
        let mut bytes = sample().encode();
        bytes.extend_from_slice(&[0; 3]);
        assert_eq!(Record::decode(sealed(bytes)), Err(DecodeError::Malformed));
    }

    #[test]
    fn fewer_bytes_than_a_checksum_are_no_record() {
        for length in 0..5 {
            assert_eq!(Record::decode(vec![VERSION; length]), Err(DecodeError::Checksum));
        }
    }

    #[test]
    fn a_count_of_headers_or_moments_beyond_what_there_is_is_refused() {
        // The last fields of this record: how many headers (none), an empty body, no moments.
        let bytes = sample().encode();
        let tail = bytes.len() - 4;
        assert_eq!(&bytes[tail - 3..tail], [0, 0, 0]);
        for (at, count) in [(3, 1), (3, 127), (1, 1), (1, 17), (1, 127)] {
            let mut told = bytes.clone();
            told[tail - at] = count;
            assert_eq!(Record::decode(sealed(told)), Err(DecodeError::Malformed));
        }
    }

    #[test]
    fn as_many_headers_come_back_as_were_kept() {
        let mut record = sample();
        let pair = (HeaderName::from_static("x"), HeaderValue::from_static(""));
        let headers = vec![pair; 40_000];
        let body = Bytes::new();
        record.state = State::Completed {
            answer: Answer::Kept(StoredResponse { status: StatusCode::OK, headers, body }),
            settled_at: Time::from_ms(1),
            expires_at: Time::from_ms(2),
        };
        assert_eq!(Record::decode(record.encode()), Ok(record));
    }

    /// The codec writes a position in a list; a value that the list has forgotten would be written
    /// as another one.
    #[test]
    fn every_doubt_and_every_judge_has_a_byte_of_its_own() {
        for (at, doubt) in DOUBTS.into_iter().enumerate() {
            let position = match doubt {
                Doubt::LeaseEnded => 0,
                Doubt::OwnerGone => 1,
                Doubt::AnswerLost => 2,
                Doubt::Panicked => 3,
                Doubt::ServerError => 4,
                Doubt::Said => 5,
                Doubt::OtherBytes => 6,
                Doubt::ResultNotKept => 7,
                Doubt::NotRepeatable => 8,
                Doubt::CommittedAlone => 9,
            };
            assert_eq!((at, usize::from(doubt_byte(doubt))), (position, position));
        }
        for (at, judge) in JUDGES.into_iter().enumerate() {
            let position = match judge {
                Judge::Reconciler => 0,
                Judge::Webhook => 1,
                Judge::Operator => 2,
            };
            assert_eq!((at, usize::from(judge_byte(judge))), (position, position));
        }
        for (at, standing) in Standing::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(standing_byte(standing)), at);
        }
    }

    /// Records outlive programs: the bytes of today must be readable tomorrow. If this fails, the
    /// format has changed, and [`VERSION`] must too.
    #[test]
    fn the_format_stays_as_it_is() {
        for (record, bytes) in shapes().iter().zip(GOLDEN) {
            assert_eq!(crate::hex::hex(&record.encode()), bytes);
        }
        assert_eq!(shapes().len(), GOLDEN.len());
    }

    #[test]
    fn a_head_by_itself_comes_back_and_nothing_else_does() {
        let location = Some(HeaderValue::from_static("/a"));
        for head in [
            AnswerHead { status: StatusCode::CREATED, location },
            AnswerHead { status: StatusCode::OK, location: None },
        ] {
            assert_eq!(AnswerHead::decode(head.encode()), Ok(head));
        }
        for bytes in [&[][..], &[0], &[1, 0], &[0xc8, 1], &[0xc8, 1, 0, 0], &[0xc8, 1, 3, b'/']] {
            assert_eq!(AnswerHead::decode(bytes.to_vec()), Err(DecodeError::Malformed));
        }
    }

    #[test]
    fn what_a_moment_may_say_beside_stays_as_it_is() {
        for (what, bytes) in [
            (Happened::Began(Some("i".into())), &[7, 1, b'i'][..]),
            (Happened::LookedUp("l".into()), &[8, 1, b'l']),
            (Happened::Advanced(RecoveryPoint::Before(3)), &[9, 0, 3]),
            (Happened::Advanced(RecoveryPoint::Calling(3)), &[9, 1, 3]),
        ] {
            let mut encoded = Vec::new();
            what.encode_into(&mut encoded);
            assert_eq!(encoded, bytes);
            assert_eq!(Happened::decode(bytes), Ok(what));
        }
        for empty in [&[7, 0][..], &[8, 0]] {
            assert_eq!(Happened::decode(empty), Err(DecodeError::Malformed), "spelt otherwise");
        }
    }

    const GOLDEN: [&str; 5] = [
        "030101010101010101010101010101010101010101010101010101010101010101017302020202020202\
         020202020202020202020202020202020202020202020202020103030303030303030404040404040404\
         0404040404040404040404040404040404040404040404040004504f5354022f72022f7080d095ffbc31\
         e0d403ac02ab020101050600c80101016e01760500626f64790079bc9144",
        "030101010101010101010101010101010101010101010101010101010101010101017302020202020202\
         020202020202020202020202020202020202020202020202020103030303030303030404040404040404\
         040404040404040404040404040404040404040404040404010909090909090909090909090909090904\
         504f5354022f72022f7080d095ffbc31e0d403ac02ab020101050601c901032f610205ab020005ab0201\
         01c901ae3a285e",
        "030101010101010101010101010101010101010101010101010101010101010101017302020202020202\
         020202020202020202020202020202020202020202020202020103030303030303030404040404040404\
         0404040404040404040404040404040404040404040404040004504f5354022f72022f7080d095ffbc31\
         e0d403ac02ab02010007000000000000000506000205ab02020105ab0204cdcdb55f",
        "030101010101010101010101010101010101010101010101010101010101010101017302020202020202\
         020202020202020202020202020202020202020202020202020103030303030303030404040404040404\
         040404040404040404040404040404040404040404040404010909090909090909090909090909090904\
         504f5354022f72022f7080d095ffbc31e0d403ac02ab02010205060105ab02030301000174046c617465\
         0517633d36",
        "030101010101010101010101010101010101010101010101010101010101010101017302020202020202\
         020202020202020202020202020202020202020202020202020103030303030303030404040404040404\
         0404040404040404040404040404040404040404040404040004504f5354022f72022f7080d095ffbc31\
         e0d403ac02ab020103050509010700000000000000c901032f610205ab02050202017205ab020601658a\
         c7c89e",
    ];

    /// A record in every state, and among them every kind of moment.
    fn shapes() -> Vec<Record> {
        let at = Time::from_ms;
        let name = HeaderName::from_static("n");
        let states = [
            State::Completed {
                answer: Answer::Kept(StoredResponse {
                    status: StatusCode::OK,
                    headers: vec![(name, HeaderValue::from_static("v"))],
                    body: Bytes::from_static(b"\0body"),
                }),
                settled_at: at(5),
                expires_at: at(6),
            },
            State::Completed {
                answer: Answer::NotKept {
                    status: Some(StatusCode::CREATED),
                    location: Some(HeaderValue::from_static("/a")),
                },
                settled_at: at(5),
                expires_at: at(6),
            },
            State::InProgress { owner: 7, begun_at: at(5), lease_until: at(6), head: None },
            State::FailedRetryable { settled_at: at(5), expires_at: at(6) },
            State::Unknown {
                since: at(5),
                doubt: Doubt::Said,
                lookups: 9,
                owner: Some(7),
                head: Some(AnswerHead {
                    status: StatusCode::CREATED,
                    location: Some(HeaderValue::from_static("/a")),
                }),
            },
        ];
        let moments = [
            vec![],
            vec![Happened::Began(None), Happened::Settled(Standing::Completed, Some(201))],
            vec![Happened::Doubted(Doubt::OwnerGone), Happened::LookedUp("".into())],
            vec![Happened::LateResult(Box::new(LateResult {
                fence: Fence(3),
                standing: Standing::Completed,
                status: None,
                content_type: Some("t".into()),
                body_start: Bytes::from_static(b"late"),
                body_bytes: 5,
            }))],
            vec![
                Happened::Resolved(Standing::FailedRetryable, Judge::Operator, "r".into()),
                Happened::Expired("e".into()),
            ],
        ];
        let moment = |what| Moment { at: at(5), fence: Fence(299), what };
        states
            .into_iter()
            .zip(moments)
            .enumerate()
            .map(|(at, (state, moments))| Record {
                mark: (at % 2 == 1).then(|| CredentialMark::from_bytes([9; 16])),
                state,
                timeline: moments.into_iter().map(moment).collect(),
                ..sample()
            })
            .collect()
    }

    fn sample() -> Record {
        Record {
            id: Id::from_bytes([1; 32]),
            scope: Scope::from_bytes(b"s"),
            key: KeyDigest::from_bytes([2; 32]),
            fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([3; 8]), [4; 32]),
            mark: None,
            about: About { method: "POST".into(), route: "/r".into(), path: "/p".into() },
            created_at: Time::from_ms(1_700_000_000_000),
            ttl: Duration::from_secs(60),
            version: 300,
            fence: Fence(299),
            attempts: 1,
            state: State::Completed {
                answer: Answer::Kept(StoredResponse {
                    status: StatusCode::OK,
                    headers: vec![],
                    body: Bytes::new(),
                }),
                settled_at: Time::from_ms(5),
                expires_at: Time::from_ms(6),
            },
            flow: None,
            timeline: vec![],
        }
    }

    fn calling() -> Record {
        let (begun_at, lease_until) = (Time::from_ms(5), Time::from_ms(6));
        let flow = FlowProgress {
            flow: FlowVersion::new("ride", 2),
            input: Bytes::from_static(b"in"),
            outputs: vec![Bytes::from_static(b"o1"), Bytes::new()],
            mark: Some(FirstSentMark {
                digest: RequestDigest::from_bytes([8; 32]),
                set_by: Fence(299),
                resume_until: Some(Time::from_ms(7)),
            }),
        };
        let state = State::InProgress { owner: 7, begun_at, lease_until, head: None };
        Record { state, flow: Some(Box::new(flow)), ..sample() }
    }

    /// A flow stands behind the state, and a plain record has not a byte of it.
    #[test]
    fn the_format_of_a_flow_stays_as_it_is() {
        let (record, bytes) = (calling(), calling().encode());
        let plain = Record { flow: None, ..calling() }.encode();
        let state = plain.len() - 4 - 1 - 12;
        assert_eq!((plain[state], bytes[state]), (0, HAS_FLOW));
        let told = crate::hex::hex(&bytes[state + 12..bytes.len() - 5]);
        let digest = "08".repeat(32);
        assert_eq!(told, format!("04726964650202696e02026f310001{digest}ab020107"));
        assert_eq!(Record::decode(bytes), Ok(record));
    }

    #[test]
    fn a_flow_in_a_state_that_cannot_have_it_is_malformed() {
        let done = Record { flow: calling().flow, ..sample() };
        assert_eq!(Record::decode(done.encode()), Err(DecodeError::Malformed));
        let (settled_at, expires_at) = (Time::from_ms(5), Time::from_ms(6));
        let state = State::FailedRetryable { settled_at, expires_at };
        let released = Record { state, ..calling() };
        assert_eq!(Record::decode(released.encode()), Err(DecodeError::Malformed));
    }

    #[test]
    fn a_flow_beyond_its_bounds_is_malformed() {
        let with = |change: &dyn Fn(&mut FlowProgress)| {
            let mut flow = *calling().flow.unwrap();
            change(&mut flow);
            FlowProgress::decode(flow.encode())
        };
        assert!(with(&|_| {}).is_ok());
        let phases = usize::from(crate::flow::PHASES_MAX);
        assert!(with(&|flow| flow.outputs = vec![Bytes::new(); phases]).is_ok());
        for wrong in [
            with(&|flow| flow.outputs = vec![Bytes::new(); phases + 1]),
            with(&|flow| flow.input = vec![0; crate::flow::FLOW_BYTES_MAX].into()),
            with(&|flow| flow.flow.name = "".into()),
        ] {
            assert_eq!(wrong, Err(DecodeError::Malformed));
        }
        let mut longer = calling().flow.unwrap().encode();
        longer.push(0);
        assert_eq!(FlowProgress::decode(longer), Err(DecodeError::Malformed));
    }
}
