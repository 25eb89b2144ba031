//! How do the parts of a record look that have no columns of their own?
//!
//! | column | holds |
//! | --- | --- |
//! | `request` | what never changes: format, key, fingerprint, scope, method, route, path |
//! | `detail` | what only programs read: attempts, time to live, owner, doubt, mark, flow, head |
//! | `timeline` | what happened |
//! | `headers` | the headers of the answer, as lines of text |
//!
//! Numbers are big-endian and texts have their length in front, in four bytes, as `int4send` and
//! `int8send` of the server write them. The seal vouches for the bytes; here they only make sense or
//! not.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::flow::FlowProgress;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::record::{
    About, AnswerHead, Doubt, Fence, First, Happened, MOMENTS_MAX, Moment, Record,
};
use retrysafe_core::scope::{CredentialMark, Scope};
use retrysafe_core::time::Time;

/// The version of the columns' meaning that this program writes, and the only one it reads. It is the
/// first byte of a request.
pub(super) const FORMAT: u8 = 1;

/// How many bytes a length takes.
pub(super) const LENGTH_BYTES: usize = 4;

/// How many bytes the fence and the time of a moment take.
pub(super) const STAMP_BYTES: usize = 16;

/// What never changes about a record.
pub(super) struct Request {
    pub(super) key: KeyDigest,
    pub(super) fingerprint: Fingerprint,
    pub(super) scope: Scope,
    pub(super) about: About,
}

/// What only programs read.
#[derive(Default)]
pub(super) struct Detail {
    pub(super) attempts: u32,
    pub(super) ttl_ms: i64,
    pub(super) owner: Option<u64>,
    pub(super) doubt: Option<(Doubt, u32)>,
    pub(super) mark: Option<CredentialMark>,
    pub(super) flow: Option<Box<FlowProgress>>,
    pub(super) head: Option<AnswerHead>,
}

/// Appends the request of a record that begins.
pub(super) fn put_first_request(out: &mut Vec<u8>, first: &First) {
    put_request(out, &first.key, &first.fingerprint, &first.scope, &first.about);
}

/// Appends the request of a record that is there.
pub(super) fn put_record_request(out: &mut Vec<u8>, record: &Record) {
    put_request(out, &record.key, &record.fingerprint, &record.scope, &record.about);
}

fn put_request(
    out: &mut Vec<u8>,
    key: &KeyDigest,
    print: &Fingerprint,
    scope: &Scope,
    about: &About,
) {
    out.push(FORMAT);
    out.extend_from_slice(key.as_bytes());
    out.push(print.scheme());
    out.extend_from_slice(print.rules().as_bytes());
    out.extend_from_slice(print.digest());
    let About { method, route, path } = about;
    for field in [scope.as_bytes(), method.as_bytes(), route.as_bytes(), path.as_bytes()] {
        put_field(out, field);
    }
}

/// A field with its length, as it stands in a request.
pub(super) fn field(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 4);
    put_field(&mut out, bytes);
    out
}

fn put_field(out: &mut Vec<u8>, bytes: &[u8]) {
    put_with_length(out, |out| out.extend_from_slice(bytes));
}

/// Appends what `write` appends, with its length in front.
pub(super) fn put_with_length(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let length_from = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    write(out);
    let length = out.len().saturating_sub(length_from + LENGTH_BYTES);
    if let Some(length_bytes) = out.get_mut(length_from..).and_then(<[u8]>::first_chunk_mut) {
        *length_bytes = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    }
}

impl Request {
    /// The request that these bytes are; none if they make no sense.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut from = Fields(bytes);
        from.array::<1>()?;
        let key = KeyDigest::from_bytes(from.array()?);
        let [scheme] = from.array()?;
        let fingerprint =
            Fingerprint::from_parts(scheme, RulesId::from_bytes(from.array()?), from.array()?);
        let scope = Scope::from_bytes(from.field()?);
        let about = About { method: from.text()?, route: from.text()?, path: from.text()? };
        from.0.is_empty().then_some(Self { key, fingerprint, scope, about })
    }
}

const HAS_OWNER: u8 = 1;
const HAS_DOUBT: u8 = 2;
const HAS_MARK: u8 = 4;
const HAS_HEAD: u8 = 8;
const HAS_FLOW: u8 = 16;

impl Detail {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
        out.extend_from_slice(&self.attempts.to_be_bytes());
        out.extend_from_slice(&self.ttl_ms.to_be_bytes());
        out.push(
            flag(self.owner.is_some(), HAS_OWNER)
                | flag(self.doubt.is_some(), HAS_DOUBT)
                | flag(self.mark.is_some(), HAS_MARK)
                | flag(self.head.is_some(), HAS_HEAD)
                | flag(self.flow.is_some(), HAS_FLOW),
        );
        out.extend(self.owner.iter().flat_map(|owner| owner.to_be_bytes()));
        if let Some((doubt, lookups)) = self.doubt {
            out.push(doubt_byte(doubt));
            out.extend_from_slice(&lookups.to_be_bytes());
        }
        out.extend(self.mark.iter().flat_map(|mark| *mark.as_bytes()));
        if let Some(flow) = &self.flow {
            put_field(out, &flow.encode());
        }
        out.extend(self.head.iter().flat_map(AnswerHead::encode));
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut from = Fields(bytes);
        let attempts = u32::from_be_bytes(from.array()?);
        let ttl_ms = i64::from_be_bytes(from.array()?);
        let [flags] = from.array()?;
        let has = |flag: u8| flags & flag != 0;
        let mut detail = Self { attempts, ttl_ms, ..Self::default() };
        if has(HAS_OWNER) {
            detail.owner = Some(u64::from_be_bytes(from.array()?));
        }
        if has(HAS_DOUBT) {
            let [doubt] = from.array()?;
            let lookups = u32::from_be_bytes(from.array()?);
            detail.doubt = Some((*DOUBTS.get(usize::from(doubt))?, lookups));
        }
        if has(HAS_MARK) {
            detail.mark = Some(CredentialMark::from_bytes(from.array()?));
        }
        if has(HAS_FLOW) {
            let flow = FlowProgress::decode(from.field()?.to_vec()).ok()?;
            detail.flow = Some(Box::new(flow));
        }
        if has(HAS_HEAD) {
            detail.head = Some(AnswerHead::decode(from.0.to_vec()).ok()?);
        } else if !from.0.is_empty() {
            return None;
        }
        Some(detail)
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

fn doubt_byte(doubt: Doubt) -> u8 {
    DOUBTS
        .iter()
        .position(|each| *each == doubt)
        .and_then(|at| u8::try_from(at).ok())
        .unwrap_or(u8::MAX)
}

/// Appends moments that have happened.
pub(super) fn put_moments(out: &mut Vec<u8>, moments: &[Moment]) {
    for moment in moments {
        put_happened(out, &moment.what);
        out.extend_from_slice(&moment.fence.0.to_be_bytes());
        out.extend_from_slice(&ms(moment.at).to_be_bytes());
    }
}

/// Appends a moment whose fence and time the server fills in.
pub(super) fn put_next_moment(out: &mut Vec<u8>, what: &Happened) {
    put_happened(out, what);
}

fn put_happened(out: &mut Vec<u8>, what: &Happened) {
    put_with_length(out, |out| what.encode_into(out));
}

/// The moments of a timeline; none if the bytes make no sense.
pub(super) fn moments(bytes: &[u8]) -> Option<Vec<Moment>> {
    let mut from = Fields(bytes);
    let mut moments = Vec::with_capacity(2);
    while !from.0.is_empty() {
        let what = Happened::decode(from.field()?.to_vec()).ok()?;
        let fence = Fence(u64::from_be_bytes(from.array()?));
        let at = time(i64::from_be_bytes(from.array()?));
        moments.push(Moment { at, fence, what });
    }
    (moments.len() <= MOMENTS_MAX).then_some(moments)
}

/// Appends headers as lines of text: `name: value`. No value holds a line feed.
pub(super) fn put_header_lines<'a>(
    out: &mut Vec<u8>,
    headers: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
) {
    for (name, value) in headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.push(b'\n');
    }
}

/// The headers that these lines are; none if they make no sense.
pub(super) fn headers(lines: &[u8]) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut headers = Vec::new();
    let mut rest = lines;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let (line, next) = rest.split_at_checked(end)?;
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(colon)?;
        let value = HeaderValue::from_bytes(value.strip_prefix(b": ")?).ok()?;
        headers.push((HeaderName::from_bytes(name).ok()?, value));
        rest = next.get(1..)?;
    }
    Some(headers)
}

/// Reads fields one after the other. None means that they do not fit.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn field(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(self.array()?);
        let (field, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(field)
    }

    fn text(&mut self) -> Option<Box<str>> {
        Some(std::str::from_utf8(self.field()?).ok()?.into())
    }
}

/// The greatest number that a column holds stands for the end of time.
pub(super) fn time(ms: i64) -> Time {
    match ms {
        i64::MAX => Time::from_ms(u64::MAX),
        ms => Time::from_ms(u64::try_from(ms).unwrap_or(0)),
    }
}

pub(super) fn ms(time: Time) -> i64 {
    i64::try_from(time.as_ms()).unwrap_or(i64::MAX)
}

/// A length in whole milliseconds, rounded up.
pub(super) fn length_ms(length: Duration) -> i64 {
    i64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}
