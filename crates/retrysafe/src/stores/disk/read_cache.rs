//! Which answers were asked for a moment ago?
//!
//! A retry is often followed by another one. The record that answered the first is kept here, ready made,
//! so that the second needs neither a read nor a decode. Nothing here is ever stale: the index is asked
//! first, a copy counts only for the version that the index shows, and what a version holds never changes.

use std::sync::{Mutex, PoisonError};

use http::{HeaderName, HeaderValue};
use retrysafe_core::record::{Answer, Record, State};
use retrysafe_core::scope::Id;

/// How many records are kept; two whose ids fall together take turns.
const SLOTS: usize = 1_024;

/// The most that one record may have, as it was read and with its header fields: all of them together are 8 MiB at the most, and the
/// texts that a record copies out of them. An answer is a piece of what was read from the log, so the whole of that stays with it:
/// headers, scope, path and timeline as well as the body.
const RECORD_BYTES_MAX: usize = 8 << 10;

/// What a header field takes up besides its name and its value.
const FIELD_BYTES: usize = size_of::<HeaderName>() + size_of::<HeaderValue>();

/// Answers that were replayed lately.
#[derive(Debug)]
pub(crate) struct ReadCache(Box<[Mutex<Option<Record>>]>);

impl Default for ReadCache {
    fn default() -> Self {
        Self(std::iter::repeat_with(Mutex::default).take(SLOTS).collect())
    }
}

impl ReadCache {
    /// The record of this id, if it is here as this version.
    pub(crate) fn get(&self, id: &Id, version: u64) -> Option<Record> {
        let kept = self.slot(id)?.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|kept| kept.version == version && kept.id == *id).cloned()
    }

    /// Keeps an answer whose record has so many bytes in the log. What is not answered yet changes soon, and is not worth a place.
    pub(crate) fn put(&self, record: &Record, log_bytes: usize) {
        let State::Completed { answer: Answer::Kept(response), .. } = &record.state else { return };
        let fields = response.headers.len().saturating_mul(FIELD_BYTES);
        if log_bytes.saturating_add(fields) > RECORD_BYTES_MAX {
            return;
        }
        if let Some(slot) = self.slot(&record.id) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(record.clone());
        }
    }

    fn slot(&self, id: &Id) -> Option<&Mutex<Option<Record>>> {
        // Ids are digests: any of their bytes are as good as a hash.
        let [.., a, b] = *id.as_bytes();
        self.0.get(usize::from(u16::from_le_bytes([a, b])) % SLOTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::StatusCode;
    use retrysafe_core::fingerprint::{Fingerprint, RulesId};
    use retrysafe_core::record::{About, First};
    use retrysafe_core::response::StoredResponse;
    use retrysafe_core::time::Time;
    use retrysafe_core::{Key, Scope};
    use std::time::Duration;

    fn answered(key: &str, version: u64, body_bytes: usize) -> Record {
        let scope = Scope::anonymous();
        let key = Key::new(key).unwrap().digest();
        let first = First {
            id: Id::of(&scope, &key),
            scope,
            key,
            fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [1; 32]),
            mark: None,
            about: About::default(),
            ttl: Duration::from_secs(1),
            lease: Duration::from_secs(1),
            owner: 1,
            request_id: None,
            flow: None,
        };
        let mut record = first.record(Time::from_ms(1), version);
        let status = StatusCode::OK;
        let body = Bytes::from(vec![0; body_bytes]);
        let answer = Answer::Kept(StoredResponse { status, headers: vec![], body });
        let settled_at = Time::from_ms(1);
        let expires_at = Time::from_ms(9);
        record.state = State::Completed { answer, settled_at, expires_at };
        record
    }

    /// Keeps a record as if it had been read.
    fn keep(cache: &ReadCache, record: &Record) {
        cache.put(record, record.encode().len());
    }

    #[test]
    fn only_the_version_that_the_index_shows_counts() {
        let cache = ReadCache::default();
        let record = answered("k", 7, 10);
        assert_eq!(cache.get(&record.id, 7), None);
        keep(&cache, &record);
        assert_eq!(cache.get(&record.id, 7), Some(record.clone()));
        assert_eq!(cache.get(&record.id, 8), None, "it was written since");
        let other = answered("other", 7, 10);
        assert_eq!(cache.get(&other.id, 7), None, "another record");
        keep(&cache, &answered("k", 8, 10));
        assert_eq!(cache.get(&record.id, 7), None, "one place for each");
    }

    #[test]
    fn what_is_large_or_may_change_is_not_kept() {
        let cache = ReadCache::default();
        let large = answered("k", 7, RECORD_BYTES_MAX + 1);
        keep(&cache, &large);
        assert_eq!(cache.get(&large.id, 7), None);
        // The whole record is kept, and not its body alone.
        let mut wordy = answered("k", 7, 0);
        if let State::Completed { answer: Answer::Kept(response), .. } = &mut wordy.state {
            let value = "x".repeat(RECORD_BYTES_MAX).parse().unwrap();
            response.headers.push((http::header::SET_COOKIE, value));
        }
        keep(&cache, &wordy);
        assert_eq!(cache.get(&wordy.id, 7), None);
        // Many small fields take up more than they have in the log.
        let mut many = answered("k", 7, 0);
        if let State::Completed { answer: Answer::Kept(response), .. } = &mut many.state {
            let field = (http::header::VIA, HeaderValue::from_static("a"));
            response.headers = vec![field; RECORD_BYTES_MAX / FIELD_BYTES];
        }
        assert!(many.encode().len() < RECORD_BYTES_MAX);
        keep(&cache, &many);
        assert_eq!(cache.get(&many.id, 7), None);
        let mut far = answered("k", 7, 0);
        far.about.path = "/x".repeat(RECORD_BYTES_MAX / 2).into();
        keep(&cache, &far);
        assert_eq!(cache.get(&far.id, 7), None);
        let mut running = answered("k", 7, 0);
        running.state =
            State::FailedRetryable { settled_at: Time::from_ms(1), expires_at: Time::from_ms(2) };
        keep(&cache, &running);
        assert_eq!(cache.get(&running.id, 7), None);
    }
}
