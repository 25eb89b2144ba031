//! Whom does a request wait for while it is being sent: its caller, or the upstream?
//!
//! A caller may take its time over a large body, and that is not the upstream's time. So the body
//! notes, as the connection asks it for more, whose turn it is. The upstream's time counts from the
//! last piece that was handed to its connection: for the head of the answer that is the last byte of
//! the request.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use retrysafe::layer::Attempt;
use tokio::time::{Instant, timeout_at};

use super::callers_body::BrokenUpload;
use super::lasting_timer::LastingTimer;
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
    /// Whether the connection has let go of the body, and asks it for nothing more.
    is_let_go: bool,
    /// How many of its pieces wait in the connection, where that is counted.
    queued: usize,
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
    pub(crate) fn new(now: Instant) -> Self {
        let progress = Progress { turn: Turn::Upstream, since: now, is_let_go: false, queued: 0 };
        Self(Arc::new(Mutex::new(progress)))
    }

    /// The same body, whose progress is noted here.
    pub(crate) fn watch(&self, body: Outgoing) -> Watched {
        Watched { body, upload: self.clone(), counts_pieces: false }
    }

    /// Whether the caller's body broke off, or its framing is malformed.
    pub(crate) fn has_failed(&self) -> bool {
        self.progress().turn == Turn::CallerFailed
    }

    /// Whether nothing more of the body will be sent: all of it was written, or given up.
    pub(crate) fn is_over(&self) -> bool {
        let Progress { is_let_go, queued, .. } = self.progress();
        is_let_go && queued == 0
    }

    /// Since when the upstream has taken no piece; none while the caller's next piece is waited for.
    pub(crate) fn waits_for_upstream_since(&self) -> Option<Instant> {
        let Progress { turn, since, .. } = self.progress();
        (turn != Turn::Caller).then_some(since)
    }

    /// The request is about to be handed to a connection.
    pub(crate) fn begin(&self, now: Instant) {
        let mut progress = self.state();
        progress.turn = Turn::Upstream;
        progress.since = now;
    }

    /// Waits for the answer to a request that was handed to a connection, for as long as nobody is too slow. A
    /// protected request that the upstream takes too long over lets its caller go, and is waited for
    /// until the time of its attempt is used up.
    ///
    /// `now` is when it was [begun](Self::begin).
    ///
    /// # Errors
    ///
    /// Who is too slow.
    pub(crate) async fn wait_for_answer<T>(
        &self,
        mut answer: Pin<&mut impl Future<Output = T>>,
        timer: &mut LastingTimer,
        patience: Patience,
        attempt: Option<&Attempt>,
        mut now: Instant,
    ) -> Result<T, TooSlow> {
        loop {
            let Progress { turn, since, .. } = self.progress();
            let (one, other, too_slow) = match turn {
                Turn::Caller => (patience.with_caller, patience.with_upstream, TooSlow::Caller),
                Turn::Upstream | Turn::CallerFailed => {
                    (patience.with_upstream, patience.with_caller, TooSlow::Upstream)
                }
            };
            let left = one.saturating_sub(now.saturating_duration_since(since));
            if left.is_zero() {
                let (TooSlow::Upstream, Some(attempt)) = (too_slow, attempt) else {
                    return Err(too_slow);
                };
                attempt.release_caller();
                let late = timeout_at(attempt.deadline(), answer).await;
                return late.map_err(|_| TooSlow::Upstream);
            }
            // Nobody tells us when the turn changes, but the other side's time lies ahead then.
            let next_look = now.checked_add(left.min(other).max(LOOK_PAUSE_MIN));
            let answered = poll_fn(|context| match answer.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => timer.poll_until(next_look, context).map(|()| None),
            });
            if let Some(answer) = answered.await {
                return Ok(answer);
            }
            now = Instant::now();
        }
    }

    fn progress(&self) -> Progress {
        *self.state()
    }

    fn state(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, turn: Turn) {
        let mut progress = self.state();
        // A caller that is asked again has still not sent anything.
        if turn != Turn::Caller || progress.turn != Turn::Caller {
            progress.turn = turn;
            progress.since = Instant::now();
        }
    }
}

/// A body whose progress is noted.
pub(crate) struct Watched {
    body: Outgoing,
    upload: Upload,
    counts_pieces: bool,
}

impl Watched {
    /// Notes also when the connection has written each piece. A connection of HTTP/2 takes a piece of any size at once, and
    /// writes it as the upstream makes room.
    pub(crate) fn count_pieces(&mut self) {
        self.counts_pieces = true;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.upload.state().is_let_go = true;
    }
}

/// A piece of a body in the hands of a connection. It is dropped when it was written, or will never be.
struct QueuedPiece {
    bytes: Bytes,
    upload: Upload,
}

impl QueuedPiece {
    fn put(bytes: Bytes, upload: &Upload) -> Bytes {
        upload.state().queued += 1;
        Bytes::from_owner(Self { bytes, upload: upload.clone() })
    }
}

impl AsRef<[u8]> for QueuedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for QueuedPiece {
    fn drop(&mut self) {
        let mut progress = self.upload.state();
        progress.queued = progress.queued.saturating_sub(1);
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BrokenUpload;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenUpload>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.upload.note(match &frame {
            Poll::Pending => Turn::Caller,
            Poll::Ready(None | Some(Ok(_))) => Turn::Upstream,
            Poll::Ready(Some(Err(_))) => Turn::CallerFailed,
        });
        if !self.counts_pieces {
            return frame;
        }
        let upload = &self.upload;
        frame.map_ok(|frame| frame.map_data(|bytes| QueuedPiece::put(bytes, upload)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
