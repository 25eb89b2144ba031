//! How does work go on when nobody waits for it any more?
//!
//! A server drops its handler's future when the client disconnects, and a timeout further out does
//! the same. [`Stubborn`] work is polled in place as long as somebody waits; dropped before its end,
//! it goes on as a task of its own. So a request that nobody leaves costs no task, and one that is
//! left ends all the same. Only the end of the runtime ends it early, as a crash would.
//!
//! Work may have times at which it can be dropped, because it has begun nothing yet or only waits:
//! its [`Begun`] mark says so.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tracing::Instrument as _;

/// Whether something has begun that must end. Clones are one mark.
#[derive(Clone, Debug, Default)]
pub(super) struct Begun(Arc<AtomicBool>);

pub(super) struct Stubborn<T: Send + 'static> {
    begun: Option<Begun>,
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    // Taken at the start: whoever drops this may stand outside of every runtime.
    runtime: Option<Handle>,
    span: tracing::Span,
}

impl<T: Send + 'static> Stubborn<T> {
    /// Work that ends in any case.
    pub(super) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self::boxed(None, Box::pin(work))
    }

    /// Work that ends in any case while it is marked.
    pub(super) fn once_begun(begun: Begun, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self::boxed(Some(begun), Box::pin(work))
    }

    fn boxed(begun: Option<Begun>, work: Pin<Box<dyn Future<Output = T> + Send>>) -> Self {
        let runtime = Handle::try_current().ok();
        Self { begun, work: Some(work), runtime, span: tracing::Span::current() }
    }
}

impl Begun {
    pub(super) fn set(&self, begun: bool) {
        self.0.store(begun, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl<T: Send + 'static> Future for Stubborn<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out while it is polled: work that panics is not resumed by the drop.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Stubborn<T> {
    fn drop(&mut self) {
        let must_end = self.begun.as_ref().is_none_or(Begun::is_set);
        if let (Some(work), Some(runtime), true) = (self.work.take(), &self.runtime, must_end) {
            runtime.spawn(work.instrument(self.span.clone()));
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Stubborn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stubborn").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn dropped_work_goes_on() {
        let (go, begun) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let mut work = Stubborn::new(async move {
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
    async fn work_that_has_begun_nothing_can_be_dropped() {
        let begun = Begun::default();
        let (done, ended) = oneshot::channel::<()>();
        drop(Stubborn::once_begun(begun.clone(), async move { done.send(()).unwrap() }));
        assert!(ended.await.is_err(), "it was dropped");
        let (done, ended) = oneshot::channel();
        begun.set(true);
        drop(Stubborn::once_begun(begun, async move { done.send(7).unwrap() }));
        assert_eq!(ended.await, Ok(7));
    }

    #[test]
    fn work_dropped_outside_of_the_runtime_goes_on_inside() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (done, ended) = oneshot::channel();
        let inside = runtime.enter();
        let work = Stubborn::new(async move { done.send(7).unwrap() });
        drop(inside);
        drop(work);
        assert_eq!(runtime.block_on(ended), Ok(7));
    }
}
