//! How does work go on when nobody waits for it any more?
//!
//! A server drops its handler's future when the client disconnects, and a timeout further out does
//! the same. [`RunToCompletion`] is polled in place as long as somebody waits. Dropped before its end,
//! or once it has answered, the work goes on as a task of its own. So a request that nobody leaves costs no task, and one that
//! is left ends all the same. Only the end of the runtime ends it early, as a crash would.
//!
//! The work gives its answer through an [`AnswerSlot`], and may go on after that: an answer that comes
//! too late for its caller is still settled.
//!
//! Work may have times at which it can be dropped, because it has begun nothing yet or only waits: its
//! [`MustEnd`] mark says so.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tracing::Instrument as _;

/// Whether something has begun that must end. Clones are one mark.
#[derive(Clone, Debug, Default)]
pub(super) struct MustEnd(Arc<AtomicBool>);

/// Where the work puts its answer. The first one counts.
pub(super) struct AnswerSlot<T>(Arc<Slot<T>>);

struct Slot<T> {
    answer: Mutex<Option<T>>,
    is_given: AtomicBool,
}

/// Work that ends, whoever waits for its answer.
pub(super) struct RunToCompletion<T: Send + 'static> {
    must_end: MustEnd,
    answer: AnswerSlot<T>,
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    // Taken at the start: whoever drops this may stand outside of every runtime.
    runtime: Option<Handle>,
    span: tracing::Span,
}

impl<T: Send + 'static> RunToCompletion<T> {
    /// Work that must end while it is marked, and that puts its answer into the slot it is given.
    pub(super) fn new<W>(must_end: MustEnd, work: impl FnOnce(AnswerSlot<T>) -> W) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let slot = Slot { answer: Mutex::new(None), is_given: AtomicBool::new(false) };
        let answer = AnswerSlot(Arc::new(slot));
        let work = Box::pin(work(answer.clone()));
        let runtime = Handle::try_current().ok();
        Self { must_end, answer, work: Some(work), runtime, span: tracing::Span::current() }
    }
}

impl<T: Send + 'static> RunToCompletion<T> {
    /// Lets the work go on as a task of its own.
    fn go_on(&mut self) {
        if let (Some(work), Some(runtime), true) =
            (self.work.take(), &self.runtime, self.must_end.is_set())
        {
            runtime.spawn(work.instrument(self.span.clone()));
        }
    }
}

impl MustEnd {
    pub(super) fn set(&self, must_end: bool) {
        self.0.store(must_end, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl<T> AnswerSlot<T> {
    /// Gives the answer. Later ones come too late for the caller and are dropped.
    pub(super) fn give(&self, answer: T) {
        if !self.0.is_given.swap(true, Ordering::AcqRel) {
            *self.0.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        }
    }

    /// Whether an answer was given.
    pub(super) fn is_given(&self) -> bool {
        self.0.is_given.load(Ordering::Acquire)
    }

    fn take(&self) -> Option<T> {
        // Most polls end without an answer, and need no lock.
        let is_given = self.is_given();
        is_given
            .then(|| self.0.answer.lock().unwrap_or_else(PoisonError::into_inner).take())
            .flatten()
    }
}

impl<T> Clone for AnswerSlot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static> Future for RunToCompletion<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out while it is polled: work that panics is not resumed by the drop.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        if work.as_mut().poll(context).is_pending() {
            self.work = Some(work);
        }
        let Some(answer) = self.answer.take() else { return Poll::Pending };
        // Whoever has the answer may keep this future, and does not poll it again.
        self.go_on();
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for RunToCompletion<T> {
    fn drop(&mut self) {
        self.go_on();
    }
}

impl<T: Send + 'static> fmt::Debug for RunToCompletion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunToCompletion").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn marked() -> MustEnd {
        let must_end = MustEnd::default();
        must_end.set(true);
        must_end
    }

    #[tokio::test]
    async fn dropped_work_goes_on() {
        let (go, begun) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let mut work = RunToCompletion::<()>::new(marked(), async move |_| {
            let _ = begun.await;
            let _ = done.send(7);
        });
        assert!(
            std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut work).poll(cx))).await.is_pending()
        );
        drop(work);
        go.send(()).unwrap();
        assert_eq!(ended.await, Ok(7));
    }

    #[tokio::test]
    async fn the_first_answer_counts_and_the_work_goes_on_after_it() {
        let (go, begun) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let work = RunToCompletion::new(marked(), async move |answer: AnswerSlot<u8>| {
            answer.give(1);
            answer.give(2);
            let _ = begun.await;
            let _ = done.send(answer.is_given());
        });
        assert_eq!(work.await, 1);
        go.send(()).unwrap();
        assert_eq!(ended.await, Ok(true));
    }

    #[tokio::test]
    async fn work_that_has_begun_nothing_can_be_dropped() {
        let must_end = MustEnd::default();
        let (done, ended) = oneshot::channel::<()>();
        drop(RunToCompletion::<()>::new(must_end.clone(), async move |_| done.send(()).unwrap()));
        assert!(ended.await.is_err(), "it was dropped");
        let (done, ended) = oneshot::channel();
        must_end.set(true);
        drop(RunToCompletion::<()>::new(must_end, async move |_| done.send(7).unwrap()));
        assert_eq!(ended.await, Ok(7));
    }

    #[test]
    fn work_dropped_outside_of_the_runtime_goes_on_inside() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (done, ended) = oneshot::channel();
        let inside = runtime.enter();
        let work = RunToCompletion::<()>::new(marked(), async move |_| done.send(7).unwrap());
        drop(inside);
        drop(work);
        assert_eq!(runtime.block_on(ended), Ok(7));
    }
}
