//! What is a copy of an answer, and when may it be served?
//!
//! A completed record as bytes, and before it a code over the record's name, the answer epoch and
//! these bytes. A copy is served if the code is right, the epoch is the present one, the record is the
//! one that was asked for, and its expiry is more than [`MARGIN`] away. Anything else is no copy: the
//! database is asked. The record's fingerprint and version are within, and are judged as always.

use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::record::{Record, Standing};
use retrysafe_core::scope::Id;
use retrysafe_core::time::Time;

use super::hmac::{CODE_BYTES, code, is_same};

/// The first byte of every copy.
const FORMAT: u8 = 1;

/// How long before its expiry a copy ends. The database's clock is only known as of a few seconds ago.
const MARGIN: Duration = Duration::from_secs(60);

/// The longest life of a copy, whatever the record's: an answer that nobody asks for again for an hour
/// need not take up memory.
const LIFE_MAX: Duration = Duration::from_secs(60 * 60);

/// The largest copy. A larger answer is the database's to serve.
const COPY_BYTES_MAX: usize = 1 << 20;

const HEAD_BYTES: usize = 1 + CODE_BYTES;

/// The bytes of a copy, and how long Redis keeps it. None: this record is not copied.
pub(super) fn seal(
    secret: &[u8; 32],
    epoch: u64,
    record: &Record,
    now: Time,
) -> Option<(Vec<u8>, Duration)> {
    if record.standing() != Standing::Completed {
        return None;
    }
    let left = now.until(record.expires_at()?).checked_sub(MARGIN)?.min(LIFE_MAX);
    let bytes = record.encode();
    if left.is_zero() || bytes.len() > COPY_BYTES_MAX {
        return None;
    }
    let mut copy = Vec::with_capacity(HEAD_BYTES + bytes.len());
    copy.push(FORMAT);
    copy.extend(code(secret, &[record.id.as_bytes(), &epoch.to_be_bytes(), &bytes]));
    copy.extend(bytes);
    Some((copy, left))
}

/// The record of a copy that may be served.
pub(super) fn open(
    secret: &[u8; 32],
    epoch: u64,
    id: &Id,
    copy: Vec<u8>,
    now: Time,
) -> Option<Record> {
    let copy = Bytes::from(copy);
    let (head, bytes) = (copy.get(..HEAD_BYTES)?, copy.slice(HEAD_BYTES..));
    let (format, claimed) = head.split_first()?;
    let right = code(secret, &[id.as_bytes(), &epoch.to_be_bytes(), &bytes]);
    if *format != FORMAT || !is_same(&right, claimed) {
        return None;
    }
    let record = Record::decode(bytes).ok()?;
    let is_fresh = record.expires_at()? > now.plus(MARGIN);
    (record.id == *id && record.standing() == Standing::Completed && is_fresh).then_some(record)
}

#[cfg(test)]
mod tests {
    use retrysafe_core::fingerprint::{Fingerprint, RulesId};
    use retrysafe_core::key::Key;
    use retrysafe_core::record::{About, Answer, Becomes, First, Write};
    use retrysafe_core::scope::Scope;

    use super::*;

    const SECRET: [u8; 32] = [9; 32];
    const NOW: Time = Time::from_ms(1_700_000_000_000);

    fn completed(key: &str, ttl: Duration) -> Record {
        let (scope, key) = (Scope::anonymous(), Key::new(key).unwrap().digest());
        let first = First {
            id: Id::of(&scope, &key),
            scope,
            key,
            fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
            mark: None,
            about: About::default(),
            ttl,
            lease: ttl,
            owner: 1,
            request_id: None,
            flow: None,
        };
        let becomes = Becomes::Completed(Answer::NotKept { status: None, location: None });
        let write = Write { becomes, new_fence: false, what: None, ttl: None };
        write.onto(&first.record(NOW, 1), NOW, 2)
    }

    #[test]
    fn a_copy_is_served_until_a_minute_before_its_record_expires() {
        let record = completed("k", Duration::from_secs(600));
        let (copy, life) = seal(&SECRET, 3, &record, NOW).unwrap();
        assert_eq!(life, Duration::from_secs(540));
        let served = |now| open(&SECRET, 3, &record.id, copy.clone(), now);
        assert_eq!(served(NOW).as_ref(), Some(&record));
        assert_eq!(served(NOW.plus(Duration::from_millis(539_999))), Some(record.clone()));
        assert_eq!(served(NOW.plus(Duration::from_secs(540))), None);
        assert!(seal(&SECRET, 3, &completed("k", MARGIN), NOW).is_none(), "it would be born old");
    }

    #[test]
    fn nothing_else_is_served() {
        let record = completed("k", Duration::from_secs(600));
        let (copy, _) = seal(&SECRET, 3, &record, NOW).unwrap();
        let other = completed("other", Duration::from_secs(600));
        assert!(open(&[8; 32], 3, &record.id, copy.clone(), NOW).is_none(), "another secret");
        assert!(open(&SECRET, 4, &record.id, copy.clone(), NOW).is_none(), "another epoch");
        assert!(open(&SECRET, 3, &other.id, copy.clone(), NOW).is_none(), "another record");
        for at in 0..copy.len() {
            let mut damaged = copy.clone();
            damaged[at] ^= 1;
            assert!(open(&SECRET, 3, &record.id, damaged, NOW).is_none(), "byte {at}");
            assert!(open(&SECRET, 3, &record.id, copy[..at].to_vec(), NOW).is_none());
        }
    }

    #[test]
    fn only_what_is_completed_is_copied() {
        let done = completed("k", Duration::from_secs(600));
        for becomes in [
            Becomes::FailedRetryable,
            Becomes::Unknown(retrysafe_core::record::Doubt::Said),
            Becomes::Begun { owner: 1, lease: MARGIN, mark: None },
        ] {
            let write = Write { becomes, new_fence: false, what: None, ttl: None };
            assert!(seal(&SECRET, 3, &write.onto(&done, NOW, 3), NOW).is_none());
        }
    }
}
