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
    About, Answer, Doubt, Fence, Happened, Judge, MOMENTS_MAX, Moment, Record, Standing, State,
};
use crate::response::StoredResponse;
use crate::scope::{Id, Scope};
use crate::time::{Time, ms};

/// The version of the format that is written. Older ones stay readable.
pub const VERSION: u8 = 1;

/// The most headers a stored response may have. HTTP servers accept far fewer.
const HEADERS_MAX: usize = 10_000;

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Written by a newer version of this format.
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
                write!(f, "record format {version} is newer than this program")
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
        let mut out = Vec::with_capacity(256 + body_len(&self.state));
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
        put_bytes(out, self.about.method.as_bytes());
        put_bytes(out, self.about.route.as_bytes());
        put_bytes(out, self.about.path.as_bytes());
        put(out, self.created_at.as_ms());
        put(out, ms(self.ttl));
        put(out, self.version);
        put(out, self.fence.0);
        put(out, u64::from(self.attempts));
        put_state(out, &self.state);
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
}

fn body_len(state: &State) -> usize {
    match state {
        State::Completed { answer: Answer::Kept(response), .. } => {
            response.body.len()
                + response
                    .headers
                    .iter()
                    .map(|(n, v)| n.as_str().len() + v.len() + 4)
                    .sum::<usize>()
        }
        State::Completed { answer: Answer::NotKept { .. }, .. }
        | State::InProgress { .. }
        | State::FailedRetryable { .. }
        | State::Unknown { .. } => 0,
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

fn put_state(out: &mut Vec<u8>, state: &State) {
    match state {
        State::InProgress { owner, begun_at, lease_until } => {
            out.push(0);
            out.extend_from_slice(&owner.to_le_bytes());
            put(out, begun_at.as_ms());
            put(out, lease_until.as_ms());
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
        State::Unknown { since, doubt, lookups } => {
            out.push(3);
            put(out, since.as_ms());
            out.push(doubt_byte(*doubt));
            put(out, u64::from(*lookups));
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
            put(out, status.map_or(0, |status| u64::from(status.as_u16())));
            put_bytes(out, location.as_ref().map_or(&[], |value| value.as_bytes()));
        }
    }
}

fn put_moment(out: &mut Vec<u8>, moment: &Moment) {
    put(out, moment.at.as_ms());
    put(out, moment.fence.0);
    let status = |status: &Option<u16>| u64::from(status.unwrap_or(0));
    match &moment.what {
        Happened::Began => out.push(0),
        Happened::Settled(standing, code) => {
            out.extend([1, standing_byte(*standing)]);
            put(out, status(code));
        }
        Happened::Doubted(doubt) => out.extend([2, doubt_byte(*doubt)]),
        Happened::LateResult(fence, standing, code) => {
            out.push(3);
            put(out, fence.0);
            out.push(standing_byte(*standing));
            put(out, status(code));
        }
        Happened::LookedUp => out.push(4),
        Happened::Resolved(standing, judge, reason) => {
            out.extend([5, standing_byte(*standing), judge_byte(*judge)]);
            put_bytes(out, reason.as_bytes());
        }
        Happened::Expired(reason) => {
            out.push(6);
            put_bytes(out, reason.as_bytes());
        }
    }
}

const DOUBTS: [Doubt; 6] = [
    Doubt::LeaseEnded,
    Doubt::OwnerGone,
    Doubt::AnswerLost,
    Doubt::Panicked,
    Doubt::ServerError,
    Doubt::Said,
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

/// Reads fields one after the other. `None` means that they do not fit.
struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    fn record(&mut self) -> Option<Record> {
        Some(Record {
            id: Id::from_bytes(self.array()?),
            scope: Scope::from_bytes(&self.byte_string()?),
            key: KeyDigest::from_bytes(self.array()?),
            fingerprint: {
                let scheme = self.byte()?;
                let rules = RulesId::from_bytes(self.array()?);
                Fingerprint::from_parts(scheme, rules, self.array()?)
            },
            about: About { method: self.text()?, route: self.text()?, path: self.text()? },
            created_at: self.time()?,
            ttl: Duration::from_millis(self.number()?),
            version: self.number()?,
            fence: Fence(self.number()?),
            attempts: u32::try_from(self.number()?).ok()?,
            state: self.state()?,
            timeline: {
                let count = self.count(MOMENTS_MAX)?;
                (0..count).map(|_| self.moment()).collect::<Option<_>>()?
            },
        })
    }

    fn state(&mut self) -> Option<State> {
        Some(match self.byte()? {
            0 => State::InProgress {
                owner: u64::from_le_bytes(self.array()?),
                begun_at: self.time()?,
                lease_until: self.time()?,
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
            },
            _ => return None,
        })
    }

    fn answer(&mut self) -> Option<Answer> {
        Some(match self.byte()? {
            0 => {
                let status = self.status()??;
                let count = self.count(HEADERS_MAX)?;
                let headers = (0..count)
                    .map(|_| {
                        let name = HeaderName::from_bytes(&self.byte_string()?).ok()?;
                        Some((name, HeaderValue::from_maybe_shared(self.byte_string()?).ok()?))
                    })
                    .collect::<Option<_>>()?;
                Answer::Kept(StoredResponse { status, headers, body: self.byte_string()? })
            }
            1 => {
                let status = self.status()?;
                let location = self.byte_string()?;
                let location = match location.is_empty() {
                    true => None,
                    false => Some(HeaderValue::from_maybe_shared(location).ok()?),
                };
                Answer::NotKept { status, location }
            }
            _ => return None,
        })
    }

    fn moment(&mut self) -> Option<Moment> {
        let (at, fence) = (self.time()?, Fence(self.number()?));
        let what = match self.byte()? {
            0 => Happened::Began,
            1 => Happened::Settled(self.one_of(&Standing::ALL)?, self.code()?),
            2 => Happened::Doubted(self.one_of(&DOUBTS)?),
            3 => Happened::LateResult(
                Fence(self.number()?),
                self.one_of(&Standing::ALL)?,
                self.code()?,
            ),
            4 => Happened::LookedUp,
            5 => Happened::Resolved(
                self.one_of(&Standing::ALL)?,
                self.one_of(&JUDGES)?,
                self.text()?,
            ),
            6 => Happened::Expired(self.text()?),
            _ => return None,
        };
        Some(Moment { at, fence, what })
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let end = self.at.checked_add(N)?;
        let array = self.bytes.get(self.at..end)?.try_into().ok()?;
        self.at = end;
        Some(array)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte holds the last bit only; more would be another spelling.
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A count that is at most `max`, so that nothing is allocated for a lie.
    fn count(&mut self, max: usize) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= max)
    }

    fn byte_string(&mut self) -> Option<Bytes> {
        let length = usize::try_from(self.number()?).ok()?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len())?;
        let slice = self.bytes.slice(self.at..end);
        self.at = end;
        Some(slice)
    }

    fn text(&mut self) -> Option<Box<str>> {
        let bytes = self.byte_string()?;
        std::str::from_utf8(&bytes).ok().map(Into::into)
    }

    fn time(&mut self) -> Option<Time> {
        self.number().map(Time::from_ms)
    }

    /// A status, where zero stands for none.
    fn status(&mut self) -> Option<Option<StatusCode>> {
        match self.code()? {
            None => Some(None),
            Some(code) => StatusCode::from_u16(code).ok().map(Some),
        }
    }

    fn code(&mut self) -> Option<Option<u16>> {
        let code = u16::try_from(self.number()?).ok()?;
        Some((code != 0).then_some(code))
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(usize::from(self.byte()?)).copied()
    }
}
