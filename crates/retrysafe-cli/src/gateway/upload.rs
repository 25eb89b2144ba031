//! Whom does a request wait for while it is being sent: its caller, or the upstream?
//!
//! A caller may take its time over a large body, and that is not the upstream's time. So the body
//! notes, as the connection asks it for more, whose turn it is. The upstream's time counts from the
//! last piece that was handed to its connection: for the head of the answer that is the last byte of
//! the request.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use retrysafe::layer::Attempt;
use tokio::time::{Instant, timeout, timeout_at};

use super::outgoing::Outgoing;

/// The least pause between two looks at whose turn it is, and so the most by which anybody is given
/// up too late.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(10);

/// How long each side may keep the other waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For the caller's next piece.
    pub with_caller: Duration,
    /// For the upstream to take a piece, or to begin its answer.
    pub with_upstream: Duration,
}

/// Who kept the other waiting for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooSlow {
    Caller,
    Upstream,
}

/// How far a body is. Its connection owns the body, so this is shared with whoever sends it.
#[derive(Clone)]
pub(crate) struct Upload(Arc<Mutex<Progress>>);

#[derive(Clone, Copy)]
struct Progress {
    turn: Turn,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The connection waits for the caller's next piece.
    Caller,
    /// The upstream has to take a piece, or to answer.
    Upstream,
    /// The caller's body broke off, or its framing is malformed.
    CallerFailed,
}

impl Upload {
    /// An upload that has not begun.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Progress { turn: Turn::Upstream, since: Instant::now() })))
    }

    /// The same body, whose progress is noted here.
    pub(crate) fn watch(&self, body: Outgoing) -> Watched {
        Watched { body, upload: self.clone() }
    }

    /// Whether the caller's body broke off, or its framing is malformed.
    pub(crate) fn has_failed(&self) -> bool {
        self.progress().turn == Turn::CallerFailed
    }

    /// Since when the upstream has taken no piece; none while the caller's next piece is waited for.
    pub(crate) fn waits_for_upstream_since(&self) -> Option<Instant> {
        let Progress { turn, since } = self.progress();
        (turn != Turn::Caller).then_some(since)
    }

    /// Sends over a connection, and waits for the answer for as long as nobody is too slow. A
    /// protected request that the upstream takes too long over lets its caller go, and is waited for
    /// until the time of its attempt is used up.
    ///
    /// # Errors
    ///
    /// Who is too slow.
    pub(crate) async fn send<T>(
        &self,
        answer: impl Future<Output = T>,
        patience: Patience,
        attempt: Option<&Attempt>,
    ) -> Result<T, TooSlow> {
        self.note(Turn::Upstream);
        let mut answer = pin!(answer);
        loop {
            let Progress { turn, since } = self.progress();
            let (one, other, too_slow) = match turn {
                Turn::Caller => (patience.with_caller, patience.with_upstream, TooSlow::Caller),
                Turn::Upstream | Turn::CallerFailed => {
                    (patience.with_upstream, patience.with_caller, TooSlow::Upstream)
                }
            };
            let left = one.saturating_sub(since.elapsed());
            if left.is_zero() {
                let (TooSlow::Upstream, Some(attempt)) = (too_slow, attempt) else {
                    return Err(too_slow);
                };
                attempt.release_caller();
                let late = timeout_at(attempt.deadline(), answer).await;
                return late.map_err(|_| TooSlow::Upstream);
            }
            // Nobody tells us when the turn changes, but the other side's time lies ahead then.
            if let Ok(answer) = timeout(left.min(other).max(LOOK_PAUSE_MIN), &mut answer).await {
                return Ok(answer);
            }
        }
    }

    fn progress(&self) -> Progress {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, turn: Turn) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A caller that is asked again has still not sent anything.
        if turn != Turn::Caller || progress.turn != Turn::Caller {
            *progress = Progress { turn, since: Instant::now() };
        }
    }
}

/// A body whose progress is noted.
pub(crate) struct Watched {
    body: Outgoing,
    upload: Upload,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.upload.note(match &frame {
            Poll::Pending => Turn::Caller,
            Poll::Ready(None | Some(Ok(_))) => Turn::Upstream,
            Poll::Ready(Some(Err(_))) => Turn::CallerFailed,
        });
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
