//! Which answers were replayed lately, and to what were they the answer?
//!
//! A bounded number of bytes of answers, ready made, each with the record that it came from and the spelling of the request that it was
//! for. The oldest give way to new ones. When one may be given is decided [elsewhere](super::at_hand).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use http::header::HeaderMap;
use retrysafe_core::fingerprint::KnownSpelling;
use retrysafe_core::record::Record;
use retrysafe_core::scope::Id;
use retrysafe_core::trace::TracedSpan;

use super::settings::RoutePolicy;
use crate::id_map::IdMap;

/// Many, so that two threads seldom wait for each other.
const SHARDS: usize = 64;

/// How many bytes of answers one shard keeps: 16 MiB in all shards.
const SHARD_BYTES_MAX: usize = 256 << 10;

/// What an answer takes up besides its bytes: itself, its places in the map and in the queue.
const ENTRY_BYTES: usize = size_of::<KnownReplay>() + 128;

/// Answers that were replayed lately.
#[derive(Debug)]
pub(super) struct KnownReplays(Box<[Mutex<Shard>]>);

/// Those whose ids end alike.
#[derive(Debug, Default)]
struct Shard {
    known: IdMap<Arc<KnownReplay>>,
    /// Their ids, oldest first.
    order: VecDeque<Id>,
    bytes: usize,
}

/// An answer, and what it is the answer to.
pub(super) struct KnownReplay {
    /// What the headers were written by.
    pub route: Arc<RoutePolicy>,
    pub spelling: KnownSpelling,
    pub record: Record,
    /// In which it was executed, if it was traced.
    pub span: Option<TracedSpan>,
    pub headers: HeaderMap,
    /// How many bytes the answer and the request take up, roughly.
    pub bytes: usize,
}

impl Default for KnownReplays {
    fn default() -> Self {
        Self(std::iter::repeat_with(Mutex::default).take(SHARDS).collect())
    }
}

impl KnownReplays {
    pub(super) fn get(&self, id: Id) -> Option<Arc<KnownReplay>> {
        let shard = self.shard(id)?.lock().unwrap_or_else(PoisonError::into_inner);
        shard.known.get(&id).cloned()
    }

    pub(super) fn put(&self, known: KnownReplay) {
        if let Some(shard) = self.shard(known.record.id) {
            let given_up = shard.lock().unwrap_or_else(PoisonError::into_inner).put(known);
            // They may be large, and nobody waits for the shard any more.
            drop(given_up);
        }
    }

    fn shard(&self, id: Id) -> Option<&Mutex<Shard>> {
        // Ids are digests: any of their bytes are as good as a hash.
        let [.., last] = *id.as_bytes();
        self.0.get(usize::from(last) % SHARDS)
    }
}

impl Shard {
    /// Keeps an answer, and gives those that have to go.
    fn put(&mut self, known: KnownReplay) -> Vec<Arc<KnownReplay>> {
        let id = known.record.id;
        let mut given_up = Vec::new();
        self.bytes += known.bytes + ENTRY_BYTES;
        match self.known.insert(id, Arc::new(known)) {
            Some(former) => self.give_up(former, &mut given_up),
            None => self.order.push_back(id),
        }
        while self.bytes > SHARD_BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(oldest) = self.known.remove(&oldest) {
                self.give_up(oldest, &mut given_up);
            }
        }
        given_up
    }

    fn give_up(&mut self, known: Arc<KnownReplay>, given_up: &mut Vec<Arc<KnownReplay>>) {
        self.bytes = self.bytes.saturating_sub(known.bytes + ENTRY_BYTES);
        given_up.push(known);
    }
}

/// Answers are nobody's to read.
impl fmt::Debug for KnownReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownReplay").field("id", &self.record.id).finish_non_exhaustive()
    }
}
