//! Which requests were answered from their record lately, in which bytes, and with which?
//!
//! Each thread remembers the bytes of requests that were replayed, and the head of each answer as it is sent. A request with the same
//! bytes is answered from that, without being parsed. The bytes decide nearly everything: which rule holds, whose key it is, what the
//! request means, and that nothing about it is refused. What they do not decide is asked each time, or keeps a request from being
//! remembered at all:
//!
//! | what an answer depends on | |
//! | --- | --- |
//! | the configuration | another one than at that time: parsed |
//! | the record: there, unchanged, not expired, durable | the store and the machine are asked: [`RepeatableReplay::again`] |
//! | limits of callers; memory for the answer | the layer is asked; where anything is limited, or memory is short: parsed |
//! | the present date, the id of the request, the peer and the time it took in the log | made anew |
//! | the scheme (TLS) | another one than at that time: parsed |
//! | a token that is verified, and may have expired (`claim:` in the scope) | not remembered |
//! | the age of the request (`first_sent_age_max`) | not remembered |
//! | the page in a browser (`Origin`), and what the upstream permits it | not remembered |
//! | an id of the request that the caller has chosen | not remembered |
//! | what receives webhooks on its path | not remembered |
//! | traces | nothing is remembered |
//!
//! Requests hold credentials, so they are kept for about a minute after they were answered, and never shown.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode, Version};
use http_body::Body as _;
use metrics::Counter;
use retrysafe::layer::{HeldReplay, RepeatableReplay};
use retrysafe_core::event;
use retrysafe_core::policy::Mode;
use retrysafe_core::retry::show_http_date;
use retrysafe_core::store::Store;
use tokio::time::Instant;
use twox_hash::XxHash3_64;

use super::body::Reply;
use super::headers::Peer;
use super::kept_lately::KeptLately;
use super::live::Live;
use super::named_fields::X_REQUEST_ID;
use super::request_log::Outcome;
use super::route::Route;
use super::same_bytes::{AnswersBytes, ByBytes};
use super::{Noted, Worker};
use crate::config::ScopePart;

/// The largest request that is remembered. Its answer is no larger: the layer keeps no larger one at hand.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// How much all threads remember, in bytes of requests and answers: some 4,000 of 1 KiB each.
const BYTES_MAX: usize = 16 << 20;

/// What a request takes up besides its bytes: itself, what the layer keeps for it, its places in the map and in the queue.
const ENTRY_BYTES: usize = size_of::<KnownRequest>() + 1_024;

/// How long a request is remembered. After that, one more is parsed.
const KEPT_MAX: Duration = Duration::from_secs(60);

/// How many requests are remembered by their hash alone. A request is copied only if it comes a second time within about as many.
const SEEN_MAX: usize = 4_096;

/// How long a date is in a message: `Sun, 06 Nov 1994 08:49:37 GMT`.
const DATE_BYTES: usize = 29;

/// Who is at the other end of a connection, and the thread that answers there.
pub(super) struct PeerBytes<S> {
    pub worker: Arc<Worker<S>>,
    pub peer: Arc<Peer>,
}

/// A request whose bytes are remembered if it is replayed.
pub(super) struct Rememberable {
    bytes: Bytes,
    live: Weak<Live>,
}

/// What one thread remembers.
pub(super) struct KnownBytes {
    /// What hashes begin from, so that nobody can choose bytes that push out those of others.
    seed: u64,
    known: KeptLately<KnownRequest>,
    /// The hashes of requests that came lately, each in its place.
    seen: Box<[u64]>,
    date: PresentDate,
    answered: Counter,
}

/// A request, and its answer.
struct KnownRequest {
    bytes: Bytes,
    /// What held when it was answered. Nobody else has the same address, as long as this points there.
    live: Weak<Live>,
    route: Arc<Route>,
    noted: Noted,
    status: StatusCode,
    head: ReadyHead,
    replay: RepeatableReplay,
}

/// The head of an answer as it is sent, but for its date and its id.
struct ReadyHead {
    bytes: Vec<u8>,
    id_at: usize,
    /// None where the date is the upstream's own.
    date_at: Option<usize>,
}

/// The date of the present second.
#[derive(Default)]
struct PresentDate {
    second: u64,
    text: String,
}

impl<S: Store> AnswersBytes for PeerBytes<S> {
    type Held = HeldReplay;

    /// Every request of a traced gateway has a span, and the parser reads in which trace.
    fn is_on(&self) -> bool {
        self.worker.gateway.tracer.is_none()
    }

    fn answer(&self, bytes: &[u8], until: Instant) -> ByBytes<HeldReplay> {
        self.worker.answer_by_bytes(&self.peer, bytes, until)
    }

    fn given(&self, bytes: Bytes) {
        self.peer.given_bytes.put(bytes);
    }
}

impl Rememberable {
    /// The bytes of a request that has just been parsed, if its connection has kept them and its headers say nothing that the bytes of
    /// an answer could not be remembered for.
    pub(super) fn of(peer: &Peer, parts: &Parts, live: &Arc<Live>) -> Option<Self> {
        let bytes = peer.given_bytes.take()?;
        let keeps_from_it = [header::ORIGIN, X_REQUEST_ID];
        let is_plain = !keeps_from_it.iter().any(|name| parts.headers.contains_key(name));
        // After a reload, what receives webhooks is exchanged a moment later than the rest.
        let path = parts.uri.path();
        let is_webhook = live.config.webhooks.iter().any(|endpoint| endpoint.path == path);
        (is_plain && !is_webhook).then(|| Self { bytes, live: Arc::downgrade(live) })
    }

    /// Whether the rule of the request lets its answer depend on nothing but what is looked at each time.
    pub(super) fn may_be_under(route: &Route) -> bool {
        let policy = &route.rules.policy;
        policy.mode == Mode::Enforce
            && policy.first_sent_age_max.is_none()
            && route.rules.scope.iter().all(|part| match part {
                ScopePart::Credential
                | ScopePart::Header(_)
                | ScopePart::Cookie(_)
                | ScopePart::Route
                | ScopePart::Const(_) => true,
                ScopePart::Claim(_) => false,
            })
    }
}

impl<S: Store> Worker<S> {
    fn answer_by_bytes(&self, peer: &Peer, bytes: &[u8], until: Instant) -> ByBytes<HeldReplay> {
        // What else is covered is rare: it is parsed.
        let is_usual = matches!(bytes.first(), Some(b'P' | b'D'));
        if !is_usual || bytes.len() > REQUEST_BYTES_MAX {
            return ByBytes::New;
        }
        let mut known_bytes = self.known_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = known_bytes.hash(bytes);
        let KnownBytes { known, date, answered, .. } = &mut *known_bytes;
        let live = self.gateway.live.load();
        let found = known.get_mut(hash).filter(|known| {
            known.live.as_ptr() == Arc::as_ptr(&live)
                && known.noted.labels.is_tls() == peer.is_tls()
                && known.bytes == bytes
        });
        let Some(found) = found else { return known_bytes.saw(hash) };
        let started = Instant::now();
        if started >= until {
            return ByBytes::New;
        }
        let Some(held) = found.replay.again() else { return ByBytes::Repeated };
        let request_id = self.gateway.ids.made();
        let answer = found.head.answer(&request_id, date.now(), found.replay.body());
        answered.increment(1);
        if let Some(line) = &mut found.noted.line {
            line.came_from(peer);
        }
        let KnownRequest { route, noted, status, .. } = found;
        let took = started.elapsed();
        self.gateway.tell(route, noted, *status, took, &request_id, Outcome::Replayed);
        ByBytes::Answered(answer, held)
    }

    /// Remembers a request that was answered from its record, with the answer as it leaves.
    pub(super) fn remember_bytes(
        &self,
        request: Rememberable,
        replay: RepeatableReplay,
        route: Arc<Route>,
        noted: Noted,
        response: &Response<Reply>,
    ) {
        let Some(head) = ReadyHead::of(response, replay.body()) else { return };
        let Rememberable { bytes, live } = request;
        let status = response.status();
        let known = KnownRequest { bytes, live, route, noted, status, head, replay };
        self.known_bytes.lock().unwrap_or_else(PoisonError::into_inner).put(known);
    }
}

impl KnownBytes {
    /// What one of so many threads remembers.
    pub(super) fn new(seed: u64, threads: usize) -> Self {
        Self {
            seed,
            known: KeptLately::new(BYTES_MAX / threads.max(1), KEPT_MAX),
            seen: vec![0; SEEN_MAX].into(),
            date: PresentDate::default(),
            answered: metrics::counter!(event::REPLAYS_BY_BYTES.name),
        }
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed, bytes)
    }

    /// Takes note of bytes that have no answer here, and says whether they came before.
    fn saw(&mut self, hash: u64) -> ByBytes<HeldReplay> {
        let place = usize::try_from(hash % SEEN_MAX as u64).unwrap_or_default();
        match self.seen.get_mut(place) {
            Some(seen) if *seen == hash => ByBytes::Repeated,
            Some(seen) => {
                *seen = hash;
                ByBytes::New
            }
            None => ByBytes::New,
        }
    }

    fn put(&mut self, known: KnownRequest) {
        let hash = self.hash(&known.bytes);
        let bytes = known.bytes_held();
        self.known.put(hash, known, bytes);
    }

    /// Forgets what was remembered for long enough.
    pub(super) fn tidy(&mut self) {
        self.known.tidy();
    }
}

impl KnownRequest {
    fn bytes_held(&self) -> usize {
        let line = self.noted.line.as_ref().map_or(0, super::Asked::bytes_held);
        let answer = self.head.bytes.len() + self.replay.bytes_held();
        self.bytes.len() + answer + line + ENTRY_BYTES
    }
}

impl ReadyHead {
    /// The head of an answer whose id and whose date are made anew each time, in the bytes that hyper would write. None for an answer that
    /// hyper would not write as it stands here.
    fn of(response: &Response<Reply>, body: &Bytes) -> Option<Self> {
        let status = response.status();
        let headers = response.headers();
        let has_no_content = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let is_framed = if has_no_content {
            body.is_empty() && !headers.contains_key(header::CONTENT_LENGTH)
        } else {
            is_length(headers, body.len())
        };
        if !is_framed
            || status.is_informational()
            || response.version() != Version::HTTP_11
            || response.body().size_hint().exact() != Some(body.len() as u64)
            || headers.keys().any(is_of_framing)
        {
            return None;
        }
        let mut bytes = Vec::new();
        let reason = status.canonical_reason().unwrap_or("<none>");
        put(&mut bytes, &[b"HTTP/1.1 ", status.as_str().as_bytes(), b" ", reason.as_bytes(), END]);
        let mut id_at = None;
        for (name, value) in headers {
            // Where there is no body, hyper writes this one last.
            if *name == header::CONTENT_LENGTH && body.is_empty() {
                continue;
            }
            put(&mut bytes, &[name.as_str().as_bytes(), b": "]);
            if *name == X_REQUEST_ID {
                id_at = Some(bytes.len());
            }
            put(&mut bytes, &[value.as_bytes(), END]);
        }
        if body.is_empty() && !has_no_content {
            put(&mut bytes, &[b"content-length: 0", END]);
        }
        let mut date_at = None;
        if !headers.contains_key(header::DATE) {
            put(&mut bytes, &[b"date: "]);
            date_at = Some(bytes.len());
            put(&mut bytes, &[&[b' '; DATE_BYTES], END]);
        }
        put(&mut bytes, &[END]);
        Some(Self { bytes, id_at: id_at?, date_at })
    }

    /// The whole answer, at this time and under this id.
    fn answer(&self, id: &HeaderValue, date: &str, body: &[u8]) -> Vec<u8> {
        let mut answer = Vec::with_capacity(self.bytes.len() + body.len());
        answer.extend_from_slice(&self.bytes);
        write_at(&mut answer, Some(self.id_at), id.as_bytes());
        write_at(&mut answer, self.date_at, date.as_bytes());
        answer.extend_from_slice(body);
        answer
    }
}

const END: &[u8] = b"\r\n";

fn put(into: &mut Vec<u8>, pieces: &[&[u8]]) {
    for piece in pieces {
        into.extend_from_slice(piece);
    }
}

fn write_at(into: &mut [u8], at: Option<usize>, bytes: &[u8]) {
    let place = at.and_then(|at| into.get_mut(at..at + bytes.len()));
    if let Some(place) = place {
        place.copy_from_slice(bytes);
    }
}

/// Whether headers say once that a body has this length.
fn is_length(headers: &HeaderMap, length: usize) -> bool {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let (Some(said), None) = (lengths.next(), lengths.next()) else { return false };
    said.as_bytes() == length.to_string().as_bytes()
}

/// Whether a header of an answer makes hyper do more than to write it.
fn is_of_framing(name: &HeaderName) -> bool {
    [header::CONNECTION, header::TRANSFER_ENCODING, header::TRAILER, header::UPGRADE].contains(name)
}

impl PresentDate {
    fn now(&mut self) -> &str {
        let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = show_http_date(second);
        }
        &self.text
    }
}
