//! May the answer of a moment ago be given again, to a request that is the same byte for byte?
//!
//! A server that remembers the bytes of a request need not read them a second time: whatever they say is known. What it cannot know is
//! whether the answer still holds. [`RepeatableReplay::again`] asks that each time, as it is asked for [every other
//! replay](super::at_hand): the store vouches for the record, the machine says replay, there is memory for the answer, and the replay
//! is reported. So nothing is given that has expired, was changed, or was taken back.
//!
//! Where callers are [limited](super::Limits), nothing is repeated here: the way of all requests counts them, and has the words for a
//! refusal.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use retrysafe_core::event::Met;
use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::record::Answer;
use retrysafe_core::scope::Caller;
use retrysafe_core::store::Store;

use super::context::RequestContext;
use super::known_replays::KnownReplay;
use super::limits::Limiter;
use super::memory::Hold;
use super::report::Report;
use super::settings::Settings;
use super::shared::LayerShared;

/// An answer from a record, which may be given again to a request with the very bytes of the one that it was given to. It is among the
/// extensions of an answer to a request whose facts are [repeatable](super::RequestFacts::repeatable).
#[derive(Clone)]
pub struct RepeatableReplay(Arc<dyn Repeats>);

/// The right to send an answer, and the memory that it counts as until this is dropped.
#[derive(Debug)]
pub struct HeldReplay {
    _hold: Hold,
}

impl RepeatableReplay {
    /// Asks whether the answer may be given once more, now, and reports that it is. None: ask as for any other request.
    pub fn again(&self) -> Option<HeldReplay> {
        self.0.again()
    }

    /// The body of the answer.
    pub fn body(&self) -> &Bytes {
        self.0.body()
    }

    /// How many bytes are kept for it, roughly.
    pub fn bytes_held(&self) -> usize {
        self.0.bytes_held()
    }
}

/// Answers are nobody's to read.
impl fmt::Debug for RepeatableReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatableReplay").finish_non_exhaustive()
    }
}

/// The same, whatever the store.
trait Repeats: Send + Sync {
    fn again(&self) -> Option<HeldReplay>;
    fn body(&self) -> &Bytes;
    fn bytes_held(&self) -> usize;
}

/// What is known of the request, and of its answer.
struct KnownRequest<S> {
    settings: Arc<Settings>,
    shared: Arc<LayerShared<S>>,
    report: Arc<Report>,
    known: Arc<KnownReplay>,
    print: Fingerprint,
    key: KeyDigest,
    caller: Caller,
    body: Bytes,
}

impl<S: Store> Repeats for KnownRequest<S> {
    fn again(&self) -> Option<HeldReplay> {
        if self.settings.limiter.as_ref().and_then(Limiter::counters).is_some() {
            return None;
        }
        let record = &self.known.record;
        let (answer, _) = self.shared.engine.replay(record, self.print, self.caller.mark)?;
        let Answer::Kept(stored) = answer else { return None };
        let hold = Hold::of_replay(self.settings.memory.as_ref(), stored.body.len())?;
        self.report.met(Met::Replay, self.key);
        if let Some(tally) = &self.settings.tally {
            tally.met(Met::Replay, &self.caller.scope);
        }
        Some(HeldReplay { _hold: hold })
    }

    fn body(&self) -> &Bytes {
        &self.body
    }

    fn bytes_held(&self) -> usize {
        self.known.bytes
    }
}

impl<S: Store> RequestContext<S> {
    /// What was just answered, for whoever may repeat it.
    pub(super) fn repeatable_replay(
        &self,
        known: Arc<KnownReplay>,
        print: Fingerprint,
        key: KeyDigest,
        caller: &Caller,
        body: Bytes,
    ) -> RepeatableReplay {
        RepeatableReplay(Arc::new(KnownRequest {
            settings: Arc::clone(&self.settings),
            shared: Arc::clone(&self.shared),
            report: Arc::clone(&self.report),
            known,
            print,
            key,
            caller: caller.clone(),
            body,
        }))
    }
}
