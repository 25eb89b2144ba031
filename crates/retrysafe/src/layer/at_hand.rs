//! Was this very request answered from its record a moment ago?
//!
//! A retry is often followed by another one, with the same bytes. The first one's answer is kept here ready made, with the record
//! that it came from and the spelling of the request that it was for. The next one is answered from it without waiting for anything, if
//!
//! * it has the same scope and key: that is the id under which the answer is kept,
//! * it is spelt alike in everything that its fingerprint is made of, so that it has the same one,
//! * the store vouches for the record: it is still of the version that was read, so that nothing stale is given, and
//! * the machine says replay, by the record, the caller's credential mark and the store's clock.
//!
//! Whatever else a request goes through before and after this (its key, its caller, limits, memory, metrics, log) is as it is for
//! every other. An answer gets here with its first replay: a request that nobody retries costs nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http_body::Body as HttpBody;
use retrysafe_core::event::Met;
use retrysafe_core::fingerprint::KnownSpelling;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{About, Answer, Record, State};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::scope::{Caller, Id};
use retrysafe_core::store::Store;

use super::body::Body;
use super::context::{NamedRequest, RequestContext};
use super::known_replays::KnownReplay;
use super::request;
use super::watch::WatchedStep;

/// The most that one answer and the request that it is for may take up, in bytes, so that a few large ones do not push out many small ones.
const BYTES_MAX: usize = 16 << 10;

/// What a header field takes up besides its name and its value.
const FIELD_BYTES: usize = size_of::<HeaderName>() + size_of::<HeaderValue>();

impl<S: Store> RequestContext<S> {
    /// The answer to a request that was read whole, if it is at hand.
    pub(super) fn replay_at_hand<R: HttpBody>(
        &self,
        id: Id,
        key: KeyDigest,
        caller: &Caller,
        parts: &Parts,
        body: &[u8],
    ) -> Option<Response<Body<R>>> {
        let known = self.shared.known_replays.get(id)?;
        if !Arc::ptr_eq(&known.route, &self.route) || self.settings.print.is_some() {
            return None;
        }
        let rules = &self.policy().fingerprint;
        let print =
            request::spelt(parts, body, rules, |spelling| known.spelling.print_of(&spelling))?;
        let (answer, _) = self.shared.engine.replay(&known.record, print, caller.mark)?;
        let Answer::Kept(stored) = answer else { return None };
        if let Some(watch) = &self.watch {
            watch.stepped(WatchedStep::Begin(Met::Replay), Duration::ZERO);
        }
        self.met_by(Met::Replay, key, &caller.scope);
        self.tell_what_is_replayed(known.span);
        let (status, body) = (stored.status, stored.body.clone());
        let mut response = self.replay_with(id, status, body, known.headers.clone());
        // Where there is no memory for the answer, the response is a refusal.
        if self.is_repeatable && response.extensions().get::<Refusal>().is_none() {
            let body = stored.body.clone();
            let repeatable = self.repeatable_replay(known, print, key, caller, body);
            response.extensions_mut().insert(repeatable);
        }
        Some(response)
    }

    /// Keeps the answer of a request that was answered from its record, for the next one of its kind.
    pub(super) fn keep_at_hand(
        &self,
        named: &NamedRequest,
        parts: &Parts,
        body: &[u8],
        given: &StoredResponse,
    ) {
        // What is too large is not read a second time to find that out.
        if self.settings.print.is_some() || bytes_of(given) > BYTES_MAX {
            return;
        }
        let voucher = self.shared.engine.store().voucher();
        let Some(record) = voucher.and_then(|voucher| voucher.at_hand(named.id)) else { return };
        let span = record.span();
        let record = slim(record);
        let replay = self.shared.engine.replay(&record, named.print, named.caller.mark);
        let Some((Answer::Kept(stored), expires_at)) = replay else { return };
        let rules = &self.policy().fingerprint;
        let spelling = request::spelt(parts, body, rules, |spelling| {
            KnownSpelling::new(&spelling, named.print)
        });
        let scope = record.scope.as_bytes().len();
        let bytes = spelling.bytes() + scope + bytes_of(stored);
        if bytes > BYTES_MAX {
            return;
        }
        let headers = self.replay_headers(stored, expires_at);
        let route = Arc::clone(&self.route);
        let known = KnownReplay { route, spelling, record, span, headers, bytes };
        self.shared.known_replays.put(known);
    }
}

/// The record without what the machine does not ask for when it replays. The answer is copied: as it was read, it is a piece of the whole
/// record.
fn slim(mut record: Record) -> Record {
    if let State::Completed { answer: Answer::Kept(stored), .. } = &mut record.state {
        *stored = copied(stored);
    }
    record.timeline = Vec::new();
    record.about = About::default();
    record
}

fn copied(stored: &StoredResponse) -> StoredResponse {
    let headers = stored.headers.iter().map(|(name, value)| {
        let copy = HeaderValue::from_bytes(value.as_bytes());
        (name.clone(), copy.unwrap_or_else(|_| value.clone()))
    });
    StoredResponse {
        status: stored.status,
        headers: headers.collect(),
        body: Bytes::copy_from_slice(&stored.body),
    }
}

/// How many bytes an answer takes up, roughly.
fn bytes_of(stored: &StoredResponse) -> usize {
    let headers = stored.headers.iter();
    stored.body.len()
        + headers
            .map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES)
            .sum::<usize>()
}
