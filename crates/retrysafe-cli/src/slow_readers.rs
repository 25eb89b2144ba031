//! Which callers read too slowly to be waited for?
//!
//! An answer is held in memory until its caller has taken it. While there is something to take, a
//! caller must take [`PROGRESS_BYTES_MIN`] within `write_time_max`, or it is let go: over HTTP/1.1
//! with its connection, over HTTP/2 with its stream alone, since others may use the connection. Time
//! in which the upstream has nothing to send does not count.
//!
//! HTTP/2 gives each stream a window, and a stream whose window is shut writes nothing, so the
//! connection cannot tell. There, an answer is handed out in small frames, and the next one is asked
//! for only when the last one found a place in the window.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::{Executor, Read, ReadBufCursor, Write};
use tokio::time::Sleep;

/// How much a caller must take within `write_time_max`. With half a minute this is half a kilobyte
/// per second, less than the slowest mobile network gives.
pub(crate) const PROGRESS_BYTES_MIN: usize = 16 << 10;

type Timer = Pin<Box<Sleep>>;

/// A connection whose writes must get on.
pub(crate) struct TimedWrites<T> {
    io: T,
    time_max: Duration,
    /// Since when the caller takes too little, and how much it took.
    stalled: Option<(Timer, usize)>,
}

impl<T> TimedWrites<T> {
    pub(crate) fn new(io: T, time_max: Duration) -> Self {
        Self { io, time_max, stalled: None }
    }

    /// Judges a write: of so many bytes offered, so many were taken.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        offered: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(result) = written else {
            ready!(self.wait(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        };
        if let (Ok(count), Some((_, taken))) = (&result, &mut self.stalled) {
            *taken += count;
            if *count == offered || *taken >= PROGRESS_BYTES_MIN {
                self.stalled = None;
            }
        }
        Poll::Ready(result)
    }

    /// Judges something that has no length.
    fn judge_end(
        &mut self,
        context: &mut Context<'_>,
        ended: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let ended = ended.map_ok(|()| 0);
        self.judge(context, 0, ended).map_ok(drop)
    }

    fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let time_max = self.time_max;
        let begin = || (Box::pin(tokio::time::sleep(time_max)), 0);
        let (timer, _) = self.stalled.get_or_insert_with(begin);
        timer.as_mut().poll(context)
    }
}

impl<T: Read + Unpin> Read for TimedWrites<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl<T: Write + Unpin> Write for TimedWrites<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.judge(context, bytes.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, pieces);
        self.judge(context, pieces.iter().map(|piece| piece.len()).sum(), written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.judge_end(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.io).poll_shutdown(context);
        self.judge_end(context, ended)
    }
}

tokio::task_local! {
    /// How the answer of the stream that is being polled gets on.
    static STREAM: Arc<StreamProgress>;
}

/// How the answer of one HTTP/2 stream gets on.
#[derive(Debug, Default)]
pub(crate) struct StreamProgress {
    /// How many frames were handed out.
    frames: AtomicUsize,
    /// Whether the last of them waits for the caller.
    is_waiting: AtomicBool,
}

impl StreamProgress {
    /// That of the stream that is being polled; none over HTTP/1.1.
    pub(crate) fn here() -> Option<Arc<Self>> {
        STREAM.try_with(Arc::clone).ok()
    }

    /// A frame was handed out.
    pub(crate) fn handed_out(&self) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.is_waiting.store(true, Ordering::Relaxed);
    }

    /// The last frame was taken, and there is nothing to hand out.
    pub(crate) fn idles(&self) {
        self.is_waiting.store(false, Ordering::Relaxed);
    }
}

/// Runs the streams of HTTP/2 connections, each as long as its caller takes what it is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamExecutor {
    pub time_max: Duration,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let stream = Box::pin(stream);
        let progress = Arc::default();
        tokio::spawn(TimedStream { stream, progress, time_max: self.time_max, stalled: None });
    }
}

struct TimedStream<F> {
    stream: Pin<Box<F>>,
    progress: Arc<StreamProgress>,
    time_max: Duration,
    /// Since when the caller has not taken this frame.
    stalled: Option<(Timer, usize)>,
}

impl<F: Future<Output = ()>> Future for TimedStream<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let progress = Arc::clone(&this.progress);
        if STREAM.sync_scope(progress, || this.stream.as_mut().poll(context)).is_ready() {
            return Poll::Ready(());
        }
        if !this.progress.is_waiting.load(Ordering::Relaxed) {
            this.stalled = None;
            return Poll::Pending;
        }
        let frame = this.progress.frames.load(Ordering::Relaxed);
        this.stalled.take_if(|(_, stalled)| *stalled != frame);
        let time_max = this.time_max;
        let begin = || (Box::pin(tokio::time::sleep(time_max)) as Timer, frame);
        // Past its time the stream is dropped, and with it what it holds; the caller sees a reset.
        this.stalled.get_or_insert_with(begin).0.as_mut().poll(context)
    }
}

/// The next frame of a large piece of an answer.
pub(crate) fn next_frame(rest: &mut Bytes) -> Bytes {
    if rest.len() > PROGRESS_BYTES_MIN {
        return rest.split_to(PROGRESS_BYTES_MIN);
    }
    // The connection may keep the last frame for long, and a slice would keep the whole answer.
    Bytes::copy_from_slice(&std::mem::take(rest))
}
