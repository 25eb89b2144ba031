//! How does a record look before its store has filled in its numbers?
//!
//! A store that keeps whole records on a server wants one round trip, and only the server knows the
//! clock and the next version. So the client sends what is to be written as it was asked for, a
//! [`First`] or a [`Write`] with the record that it was read from. The server puts its [`Stamp`]
//! beside these bytes and looks no further into them: the version has a fixed place there, and is all
//! that a swap compares. Whoever reads both makes the record of them, by the same functions by which
//! any other store does. The bytes have a checksum of their own; the server seals bytes and stamp
//! together, with whatever digest it has at hand.

use bytes::Bytes;

use super::flow::{put_move, put_progress};
use super::{
    DOUBTS, DecodeError, Reader, VERSION, doubt_byte, put, put_answer, put_bytes, put_head,
    put_mark,
};
use crate::record::{About, Becomes, First, Happened, Record, Write};
use crate::time::{Time, ms};

/// The numbers that only a store can fill in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The version of the record that is made.
    pub version: u64,
    /// The store's clock at the moment of the write.
    pub now: Time,
}

impl Stamp {
    /// How many bytes it takes.
    pub const LENGTH: usize = 16;

    /// The stamp as bytes: the version, then the clock, both big-endian.
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let both = u128::from(self.version) << 64 | u128::from(self.now.as_ms());
        both.to_be_bytes()
    }

    /// The stamp that these bytes are.
    pub fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let both = u128::from_be_bytes(bytes);
        Self { version: (both >> 64) as u64, now: Time::from_ms(both as u64) }
    }
}

impl First {
    /// The first record of a key as bytes that a server can stamp.
    pub fn encode_unstamped(&self) -> Vec<u8> {
        let mut out = vec![VERSION, 0];
        out.extend_from_slice(self.id.as_bytes());
        put_bytes(&mut out, self.scope.as_bytes());
        out.extend_from_slice(self.key.as_bytes());
        out.push(self.fingerprint.scheme());
        out.extend_from_slice(self.fingerprint.rules().as_bytes());
        out.extend_from_slice(self.fingerprint.digest());
        put_mark(&mut out, self.mark);
        for text in [&self.about.method, &self.about.route, &self.about.path] {
            put_bytes(&mut out, text.as_bytes());
        }
        put(&mut out, ms(self.ttl));
        put(&mut out, ms(self.lease));
        out.extend_from_slice(&self.owner.to_le_bytes());
        // An id that is kept is never empty.
        put_bytes(&mut out, self.request_id.as_deref().unwrap_or_default().as_bytes());
        out.push(u8::from(self.flow.is_some()));
        if let Some(flow) = &self.flow {
            put_progress(&mut out, flow);
        }
        sealed(out)
    }
}

impl Write {
    /// What this write makes of `from`, as bytes that a server can stamp.
    pub fn encode_unstamped(&self, from: &Record) -> Vec<u8> {
        let mut out = vec![VERSION, 1];
        put_bytes(&mut out, &from.encode());
        put_becomes(&mut out, &self.becomes);
        out.push(u8::from(self.new_fence));
        let mut what = Vec::new();
        if let Some(happened) = &self.what {
            happened.encode_into(&mut what);
        }
        put_bytes(&mut out, &what);
        // A length of life may be zero, so it is counted from one.
        put(&mut out, self.ttl.map_or(0, |ttl| ms(ttl).saturating_add(1)));
        sealed(out)
    }
}

impl Record {
    /// The record that a stamp and the bytes beside it are.
    ///
    /// # Errors
    ///
    /// See [`DecodeError`]. Bytes of any content are safe to pass.
    pub fn decode_stamped(stamp: Stamp, bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let bytes: Bytes = bytes.into();
        let fields = bytes.len().checked_sub(4).ok_or(DecodeError::Checksum)?;
        let body = bytes.slice(..fields);
        if crc32c::crc32c(&body).to_le_bytes() != *bytes.slice(fields..) {
            return Err(DecodeError::Checksum);
        }
        let version = *body.first().ok_or(DecodeError::Checksum)?;
        if version != VERSION {
            return Err(DecodeError::UnknownVersion(version));
        }
        let mut from = Reader { bytes: body, at: 1 };
        let record = match from.byte() {
            Some(0) => from.first().map(|first| first.into_record(stamp.now, stamp.version)),
            Some(1) => from.written(stamp),
            Some(_) | None => None,
        };
        let record = record.ok_or(DecodeError::Malformed)?;
        if from.at != fields { Err(DecodeError::Malformed) } else { Ok(record) }
    }
}

fn sealed(mut out: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

fn put_becomes(out: &mut Vec<u8>, becomes: &Becomes) {
    match becomes {
        Becomes::Same => out.push(0),
        Becomes::Begun { owner, lease, mark } => {
            out.push(1);
            out.extend_from_slice(&owner.to_le_bytes());
            put(out, ms(*lease));
            put_mark(out, *mark);
        }
        Becomes::Renewed { lease, lease_max } => {
            out.push(2);
            put(out, ms(*lease));
            put(out, ms(*lease_max));
        }
        Becomes::HeadKept { head, lease, lease_max } => {
            out.push(3);
            put_head(out, Some(head.status), head.location.as_ref());
            put(out, ms(*lease));
            put(out, ms(*lease_max));
        }
        Becomes::Completed(answer) => {
            out.push(4);
            put_answer(out, answer);
        }
        Becomes::FailedRetryable => out.push(5),
        Becomes::Unknown(doubt) => out.extend([6, doubt_byte(*doubt)]),
        Becomes::LookedUp => out.push(7),
        Becomes::Expired => out.push(8),
        Becomes::Advanced(moved) => {
            out.push(9);
            put_move(out, moved);
        }
        Becomes::LeaseEnded => out.push(10),
    }
}

impl Reader {
    fn first(&mut self) -> Option<First> {
        let (id, scope, key) = self.name()?;
        Some(First {
            id,
            scope,
            key,
            fingerprint: self.fingerprint()?,
            mark: self.mark()?,
            about: About { method: self.text()?, route: self.text()?, path: self.text()? },
            ttl: self.length()?,
            lease: self.length()?,
            owner: u64::from_le_bytes(self.array()?),
            request_id: self.text().map(|id| (!id.is_empty()).then_some(id))?,
            flow: match self.byte()? {
                0 => None,
                1 => Some(Box::new(self.progress()?)),
                _ => return None,
            },
        })
    }

    /// What a write makes of the record that it was read from.
    fn written(&mut self, stamp: Stamp) -> Option<Record> {
        let from = Record::decode(self.byte_string()?).ok()?;
        let becomes = self.becomes()?;
        let new_fence = match self.byte()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let what = self.byte_string()?;
        let what = if what.is_empty() { None } else { Some(Happened::decode(what).ok()?) };
        let ttl = self.number()?.checked_sub(1).map(std::time::Duration::from_millis);
        let write = Write { becomes, new_fence, what, ttl };
        Some(write.over(from, stamp.now, stamp.version))
    }

    fn becomes(&mut self) -> Option<Becomes> {
        Some(match self.byte()? {
            0 => Becomes::Same,
            1 => Becomes::Begun {
                owner: u64::from_le_bytes(self.array()?),
                lease: self.length()?,
                mark: self.mark()?,
            },
            2 => Becomes::Renewed { lease: self.length()?, lease_max: self.length()? },
            3 => Becomes::HeadKept {
                head: self.head()??,
                lease: self.length()?,
                lease_max: self.length()?,
            },
            4 => Becomes::Completed(self.answer()?),
            5 => Becomes::FailedRetryable,
            6 => Becomes::Unknown(self.one_of(&DOUBTS)?),
            7 => Becomes::LookedUp,
            8 => Becomes::Expired,
            9 => Becomes::Advanced(self.flow_move()?),
            10 => Becomes::LeaseEnded,
            _ => return None,
        })
    }

    fn length(&mut self) -> Option<std::time::Duration> {
        self.number().map(std::time::Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_has_its_version_at_a_fixed_place() {
        let stamp = Stamp { version: 0x0102_0304_0506_0708, now: Time::from_ms(9) };
        assert_eq!(stamp.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(Stamp::from_bytes(stamp.to_bytes()), stamp);
        let last = Stamp { version: u64::MAX, now: Time::from_ms(u64::MAX) };
        assert_eq!(Stamp::from_bytes(last.to_bytes()), last);
    }

    #[test]
    fn any_bytes_under_a_good_checksum_are_safe_to_decode() {
        let stamp = Stamp { version: 1, now: Time::from_ms(1) };
        for kind in 0..=3 {
            for filler in [0, 1, 0x7f, 0x80, 0xff] {
                for length in 0..200 {
                    let mut bytes = vec![VERSION, kind];
                    bytes.extend(std::iter::repeat_n(filler, length));
                    // Never a panic, whatever they are.
                    let _decoded = Record::decode_stamped(stamp, sealed(bytes));
                }
            }
        }
        assert_eq!(Record::decode_stamped(stamp, vec![]), Err(DecodeError::Checksum));
        let other = sealed(vec![VERSION + 1, 0]);
        let unknown = DecodeError::UnknownVersion(VERSION + 1);
        assert_eq!(Record::decode_stamped(stamp, other), Err(unknown));
    }
}
