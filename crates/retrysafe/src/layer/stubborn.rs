//! How does work go on when nobody waits for it any more?
//!
//! A server drops its handler's future when the client disconnects, and a timeout further out does
//! the same. [`Stubborn`] work is polled in place as long as somebody waits; dropped before its end,
//! it goes on as a task of its own. So a request that nobody leaves costs no task, and one that is
//! left ends all the same. Only the end of the runtime ends it early, as a crash would.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tracing::Instrument as _;

pub(super) struct Stubborn<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    // Taken at the start: whoever drops this may stand outside of every runtime.
    runtime: Option<Handle>,
    span: tracing::Span,
}

impl<T: Send + 'static> Stubborn<T> {
    pub(super) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        let runtime = Handle::try_current().ok();
        Self { work: Some(Box::pin(work)), runtime, span: tracing::Span::current() }
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
        if let (Some(work), Some(runtime)) = (self.work.take(), &self.runtime) {
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
