//! How is a record read from its columns?
//!
//! Two drivers read the same rows: the store's own connections, and the application's transactions.
//! [`Cells`] is what they have in common. What a row says is believed only if its checksums fit:
//! one over what never changes, one over what every write changes, and one over the answer.

use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::codec::DecodeError;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::key::KeyDigest;
use retrysafe_core::record::{
    About, Answer, AnswerHead, Doubt, Fence, First, Happened, MOMENTS_MAX, Moment, Record, State,
};
use retrysafe_core::scope::{CredentialMark, Id, Scope};
use retrysafe_core::time::Time;
use sha2::{Digest as _, Sha256};

/// The version of the columns' meaning that this program writes, and the only one it reads.
pub(super) const FORMAT: i16 = 1;

/// How many bytes of the SHA-256 are kept as a seal.
const SEAL_BYTES: usize = 16;

/// The columns of a row by their position, as every statement of ours returns them.
pub(super) trait Cells {
    fn flag(&self, at: usize) -> Option<bool>;
    fn short(&self, at: usize) -> Option<i16>;
    fn number(&self, at: usize) -> Option<i64>;
    fn text(&self, at: usize) -> Option<&str>;
    fn bytes(&self, at: usize) -> Option<&[u8]>;
}

/// What one returned row says.
#[derive(Debug)]
pub(super) enum Row {
    /// What time it is; no record.
    Clock(Time),
    /// This record was written, at this time and with this version.
    Done { id: Id, now: Time, version: u64 },
    /// This record is there, or something damaged in its place.
    Found { id: Id, now: Time, version: u64, record: Result<Box<Record>, DecodeError> },
}

impl Row {
    /// Reads a row. None means that the server returned something that our functions do not return.
    pub(super) fn read(cells: &impl Cells) -> Option<Self> {
        let now = time(cells.number(1)?);
        let Some(id) = cells.bytes(2) else { return Some(Self::Clock(now)) };
        let id = Id::from_bytes(id.try_into().ok()?);
        let version = u64::try_from(cells.number(3)?).ok()?;
        Some(match cells.flag(0)? {
            true => Self::Done { id, now, version },
            false => {
                Self::Found { id, now, version, record: record(cells, id, version).map(Box::new) }
            }
        })
    }
}

fn record(cells: &impl Cells, id: Id, version: u64) -> Result<Record, DecodeError> {
    match cells.short(11) {
        Some(FORMAT) => read(cells, id, version).ok_or(DecodeError::Malformed)?,
        Some(other) => Err(DecodeError::UnknownVersion(u8::try_from(other).unwrap_or(u8::MAX))),
        None => Err(DecodeError::Malformed),
    }
}

/// None if a column is missing or makes no sense.
fn read(cells: &impl Cells, id: Id, version: u64) -> Option<Result<Record, DecodeError>> {
    let about = About {
        method: cells.text(7)?.into(),
        route: cells.text(8)?.into(),
        path: cells.text(9)?.into(),
    };
    let (scope, key) = (Scope::from_bytes(cells.bytes(4)?), cells.bytes(5)?);
    let (stated, timeline) = (cells.number(10)?, cells.bytes(23)?);
    let seal = Seal {
        checksum: checksum(&id, scope.as_bytes(), key, cells.bytes(6)?, &about),
        format: FORMAT,
        created_at: cells.number(12)?,
        ttl_ms: cells.number(13)?,
        version: cells.number(3)?,
        fence: cells.number(14)?,
        attempts: cells.number(15)?,
        state: cells.short(16)?,
        since: cells.number(17)?,
        until: cells.number(18),
        owner: cells.number(19),
        doubt: cells.short(20),
        lookups: cells.number(21),
        answer: cells.number(22),
        mark: cells.bytes(26),
        head: cells.bytes(27),
        timeline,
    };
    if seal.checksum != stated || *cells.bytes(24)? != seal.digest() {
        return Some(Err(DecodeError::Checksum));
    }
    let (since, until) = (time(seal.since), seal.until.map(time));
    let head = match seal.head.map(|head| AnswerHead::decode(head.to_vec())).transpose() {
        Ok(head) => head,
        Err(damage) => return Some(Err(damage)),
    };
    let state = match seal.state {
        0 => State::InProgress {
            owner: seal.owner?.cast_unsigned(),
            begun_at: since,
            lease_until: until?,
            head,
        },
        // An answer that is not where the record says is damage like any other.
        1 => match Answer::decode(&id, Bytes::copy_from_slice(cells.bytes(25)?)) {
            Ok(answer) => State::Completed { answer, settled_at: since, expires_at: until? },
            Err(damage) => return Some(Err(damage)),
        },
        2 => State::FailedRetryable { settled_at: since, expires_at: until? },
        3 => State::Unknown {
            since,
            doubt: doubt_of(seal.doubt?)?,
            lookups: u32::try_from(seal.lookups?).ok()?,
            owner: seal.owner.map(i64::cast_unsigned),
            head,
        },
        _ => return None,
    };
    Some(Ok(Record {
        id,
        scope,
        key: KeyDigest::from_bytes(key.try_into().ok()?),
        fingerprint: fingerprint(cells.bytes(6)?)?,
        mark: match seal.mark {
            None => None,
            Some(mark) => Some(CredentialMark::from_bytes(mark.try_into().ok()?)),
        },
        about,
        created_at: time(seal.created_at),
        ttl: Duration::from_millis(time(seal.ttl_ms).as_ms()),
        version,
        fence: Fence(u64::try_from(seal.fence).ok()?),
        attempts: u32::try_from(seal.attempts).ok()?,
        state,
        timeline: moments(timeline)?,
    }))
}

/// The same fields in the same order as `retrysafe.seal` in the migrations.
struct Seal<'a> {
    checksum: i64,
    format: i16,
    created_at: i64,
    ttl_ms: i64,
    version: i64,
    fence: i64,
    attempts: i64,
    state: i16,
    since: i64,
    until: Option<i64>,
    owner: Option<i64>,
    doubt: Option<i16>,
    lookups: Option<i64>,
    answer: Option<i64>,
    mark: Option<&'a [u8]>,
    head: Option<&'a [u8]>,
    timeline: &'a [u8],
}

impl Seal<'_> {
    fn digest(&self) -> [u8; SEAL_BYTES] {
        let mut hash = Sha256::new();
        hash.update(self.checksum.to_be_bytes());
        hash.update(self.format.to_be_bytes());
        for number in [self.created_at, self.ttl_ms, self.version, self.fence, self.attempts] {
            hash.update(number.to_be_bytes());
        }
        hash.update(self.state.to_be_bytes());
        hash.update(self.since.to_be_bytes());
        hash.update(self.until.unwrap_or(-1).to_be_bytes());
        hash.update(self.owner.unwrap_or(-1).to_be_bytes());
        hash.update(self.doubt.unwrap_or(-1).to_be_bytes());
        hash.update(self.lookups.unwrap_or(-1).to_be_bytes());
        hash.update(self.answer.unwrap_or(-1).to_be_bytes());
        for bytes in [self.mark, self.head] {
            let length = bytes.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap_or(i32::MAX));
            hash.update(length.to_be_bytes());
            hash.update(bytes.unwrap_or_default());
        }
        hash.update(self.timeline);
        let digest: [u8; 32] = hash.finalize().into();
        let mut seal = [0; SEAL_BYTES];
        seal.copy_from_slice(digest.first_chunk::<SEAL_BYTES>().unwrap_or(&[0; SEAL_BYTES]));
        seal
    }
}

/// The checksum over what never changes: every field with its length, so that none runs into the
/// next.
pub(super) fn checksum(id: &Id, scope: &[u8], key: &[u8], print: &[u8], about: &About) -> i64 {
    let parts = [
        id.as_bytes(),
        scope,
        key,
        print,
        about.method.as_bytes(),
        about.route.as_bytes(),
        about.path.as_bytes(),
    ];
    let sum = parts.iter().fold(0, |sum, part| {
        let sum = crc32c::crc32c_append(sum, &(part.len() as u64).to_le_bytes());
        crc32c::crc32c_append(sum, part)
    });
    i64::from(sum)
}

/// A first record as it can be stored: PostgreSQL's text has no NUL, and no HTTP request has one.
pub(super) fn storable(mut first: First) -> First {
    for text in [&mut first.about.method, &mut first.about.route, &mut first.about.path] {
        if text.contains('\0') {
            *text = text.replace('\0', "\u{fffd}").into();
        }
    }
    first
}

pub(super) fn print_bytes(print: &Fingerprint) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(41);
    bytes.push(print.scheme());
    bytes.extend_from_slice(print.rules().as_bytes());
    bytes.extend_from_slice(print.digest());
    bytes
}

fn fingerprint(bytes: &[u8]) -> Option<Fingerprint> {
    let (scheme, rest) = bytes.split_first()?;
    let (rules, digest) = rest.split_first_chunk::<8>()?;
    Some(Fingerprint::from_parts(*scheme, RulesId::from_bytes(*rules), digest.try_into().ok()?))
}

/// The moments as `retrysafe.moment` lays them out: time, fence, length, what.
pub(super) fn moment_bytes(moments: &[Moment]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for moment in moments {
        let what = moment.what.encode();
        bytes.extend_from_slice(&ms(moment.at).to_be_bytes());
        bytes.extend_from_slice(&moment.fence.0.to_be_bytes());
        bytes.extend_from_slice(&u32::try_from(what.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(&what);
    }
    bytes
}

fn moments(mut bytes: &[u8]) -> Option<Vec<Moment>> {
    let mut moments = Vec::new();
    while let Some((at, rest)) = bytes.split_first_chunk::<8>() {
        let (fence, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (what, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        moments.push(Moment {
            at: time(i64::from_be_bytes(*at)),
            fence: Fence(u64::from_be_bytes(*fence)),
            what: Happened::decode(what.to_vec()).ok()?,
        });
        bytes = rest;
    }
    (bytes.is_empty() && moments.len() <= MOMENTS_MAX).then_some(moments)
}

const DOUBTS: [Doubt; 6] = [
    Doubt::LeaseEnded,
    Doubt::OwnerGone,
    Doubt::AnswerLost,
    Doubt::Panicked,
    Doubt::ServerError,
    Doubt::Said,
];

pub(super) fn doubt_number(doubt: Doubt) -> i16 {
    DOUBTS.iter().position(|d| *d == doubt).and_then(|at| i16::try_from(at).ok()).unwrap_or(-1)
}

fn doubt_of(number: i16) -> Option<Doubt> {
    DOUBTS.get(usize::try_from(number).ok()?).copied()
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

impl Cells for tokio_postgres::Row {
    fn flag(&self, at: usize) -> Option<bool> {
        self.try_get(at).ok().flatten()
    }
    fn short(&self, at: usize) -> Option<i16> {
        self.try_get(at).ok().flatten()
    }
    fn number(&self, at: usize) -> Option<i64> {
        self.try_get(at).ok().flatten()
    }
    fn text(&self, at: usize) -> Option<&str> {
        self.try_get(at).ok().flatten()
    }
    fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.try_get(at).ok().flatten()
    }
}

#[cfg(feature = "sqlx")]
impl Cells for sqlx::postgres::PgRow {
    fn flag(&self, at: usize) -> Option<bool> {
        sqlx::Row::try_get(self, at).ok().flatten()
    }
    fn short(&self, at: usize) -> Option<i16> {
        sqlx::Row::try_get(self, at).ok().flatten()
    }
    fn number(&self, at: usize) -> Option<i64> {
        sqlx::Row::try_get(self, at).ok().flatten()
    }
    fn text(&self, at: usize) -> Option<&str> {
        sqlx::Row::try_get(self, at).ok().flatten()
    }
    fn bytes(&self, at: usize) -> Option<&[u8]> {
        sqlx::Row::try_get(self, at).ok().flatten()
    }
}
