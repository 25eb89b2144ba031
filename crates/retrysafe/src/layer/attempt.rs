//! What may the handler know about its attempt, and what may it say?
//!
//! The layer puts an [`Attempt`] into the extensions of every request that it lets execute; with
//! the `axum` feature it is an extractor too. A handler can also put [`Said`] into its response's
//! extensions, which in axum is `Extension(Said::Retryable)` in the returned tuple.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use retrysafe_core::key::KeyDigest;
use retrysafe_core::policy::Said;
use retrysafe_core::record::Fence;
use retrysafe_core::scope::Id;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

/// One execution of a keyed request, as its handler sees it.
///
/// ```
/// use http::Request;
/// use retrysafe::core::policy::Said;
/// use retrysafe::layer::Attempt;
///
/// async fn pay<B>(request: Request<B>) {
///     // In axum it is an argument of the handler.
///     let Some(attempt) = request.extensions().get::<Attempt>() else { return };
///     let downstream_key = format!("{}-charge", attempt.id());
///     // … a charge with that key that is declined for now:
///     attempt.say(Said::Retryable);
///     # let _ = downstream_key;
/// }
/// # let _ = pay::<()>;
/// ```
#[derive(Clone, Debug)]
pub struct Attempt {
    id: Id,
    key: KeyDigest,
    fence: Fence,
    number: u32,
    deadline: Instant,
    wishes: Arc<Wishes>,
}

/// What a service says of a request that it could not answer itself, in the extensions of the
/// response that it gives instead. A proxy uses it; the layer then answers the caller.
///
/// ```
/// use http::Response;
/// use retrysafe::layer::Failed;
///
/// let mut response = Response::new("");
/// response.extensions_mut().insert(Failed::NotSent);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failed {
    /// Nothing was sent on: the request surely was not executed.
    NotSent,
    /// Nothing was sent on, because the server behind the proxy is known to be unhealthy.
    Unhealthy,
    /// It was sent on, and no whole answer came back.
    Lost {
        /// Whether time ran out, or the connection broke.
        timed_out: bool,
    },
}

/// What the handler or a shutdown has asked for. Zero says nothing in the first two.
#[derive(Debug, Default)]
struct Wishes {
    said: AtomicU8,
    ttl_ms: AtomicU64,
    is_given_up: AtomicBool,
    runs_flow: AtomicBool,
    is_flow_over: AtomicBool,
    asked: Notify,
}

impl Attempt {
    pub(super) fn new(
        id: Id,
        key: KeyDigest,
        fence: Fence,
        number: u32,
        deadline: Instant,
    ) -> Self {
        Self { id, key, fence, number, deadline, wishes: Arc::default() }
    }

    /// The record's name: a digest of scope and key. Derive the keys of downstream calls from it,
    /// and every attempt sends the same ones.
    pub fn id(&self) -> Id {
        self.id
    }

    /// What stands for the caller's key.
    pub fn key(&self) -> KeyDigest {
        self.key
    }

    /// The number that rises with ownership. Store it beside what you write, refuse a lower one,
    /// and a late owner cannot overwrite a newer one's work.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The how-manieth attempt this is, from one.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Until when somebody waits for the answer. Later the caller has been told that the outcome is
    /// unknown; what the handler says then still counts.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Says the outcome, which wins over what the status would mean. The last word counts: while an
    /// answer is passed on as a stream, a word that comes before the stream's end wins over how it ends.
    pub fn say(&self, said: Said) {
        let code = match said {
            Said::Completed => 1,
            Said::Retryable => 2,
            Said::Unknown => 3,
        };
        self.wishes.said.store(code, Ordering::Release);
    }

    /// Keeps the record for this long after it is settled, instead of the route's time to live.
    pub fn keep_for(&self, ttl: Duration) {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.wishes.ttl_ms.store(ms.max(1), Ordering::Release);
    }

    /// Lets the caller go, and goes on: it is answered 504 with the code `request_in_progress`, and what
    /// the handler answers later is settled like any other answer. For a handler that still waits for
    /// somebody else when its caller has waited for long enough; a proxy uses it.
    ///
    /// The number of such executions is bounded by
    /// [`late_answers_max`](super::IdempotencyLayer::late_answers_max). Past it the handler is dropped
    /// and the outcome is unknown.
    pub fn release_caller(&self) {
        self.wishes.asked.notify_one();
    }

    /// Ends the waiting for this execution: its outcome becomes unknown.
    pub(super) fn give_up(&self) {
        self.wishes.is_given_up.store(true, Ordering::Release);
        self.wishes.asked.notify_one();
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.wishes.is_given_up.load(Ordering::Acquire)
    }

    /// Waits until the caller is to be released, or the execution to be given up.
    pub(super) fn asked(&self) -> Notified<'_> {
        self.wishes.asked.notified()
    }

    /// The handler goes on with the record's flow, whose end decides. True if it is the first time: a second run under the
    /// same lease would not see what the first one has sent.
    #[cfg(feature = "phases")]
    pub(crate) fn run_flow(&self) -> bool {
        !self.wishes.runs_flow.swap(true, Ordering::AcqRel)
    }

    /// Whether the handler has gone on with the record's flow.
    pub(super) fn runs_flow(&self) -> bool {
        self.wishes.runs_flow.load(Ordering::Acquire)
    }

    /// The handler's flow has come to its end, and its record says so.
    #[cfg(feature = "phases")]
    pub(crate) fn flow_is_over(&self) {
        self.wishes.is_flow_over.store(true, Ordering::Release);
    }

    /// Whether the record is completed already, by a flow: its answer has to be passed on and nothing else.
    pub(super) fn is_flow_over(&self) -> bool {
        self.wishes.is_flow_over.load(Ordering::Acquire)
    }

    /// What the handler has said so far.
    #[cfg(all(feature = "axum", feature = "sqlx"))]
    pub(crate) fn said(&self) -> Option<Said> {
        word(self.wishes.said.load(Ordering::Acquire))
    }

    /// What the handler has said since this was last asked.
    pub(super) fn take_said(&self) -> Option<Said> {
        word(self.wishes.said.swap(0, Ordering::AcqRel))
    }

    pub(crate) fn ttl(&self) -> Option<Duration> {
        match self.wishes.ttl_ms.load(Ordering::Acquire) {
            0 => None,
            ms => Some(Duration::from_millis(ms)),
        }
    }
}

/// What the handler said, by its code.
const fn word(code: u8) -> Option<Said> {
    match code {
        1 => Some(Said::Completed),
        2 => Some(Said::Retryable),
        3 => Some(Said::Unknown),
        _ => None,
    }
}
