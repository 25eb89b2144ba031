//! How is a time limit kept that is set with every request and hardly ever reached?
//!
//! To put a timer among those of the runtime and to take it out again costs several hundred instructions. Nearly every request is
//! answered long before its time is over, and the next one sets a limit that is a little later. So a connection has one timer for all of
//! its requests. A later limit is not told to the runtime: the timer fires at the earlier one, finds that a later one holds by now, and
//! waits for that. A timer that fires for nobody costs one needless turn of a task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is kept from one request to the next.
#[derive(Debug, Default)]
pub(crate) struct LastingTimer(Option<Pin<Box<Sleep>>>);

impl LastingTimer {
    /// Ready once this moment has come. Without one it never is: a limit so late that no clock shows it is no limit.
    pub(crate) fn poll_until(
        &mut self,
        limit: Option<Instant>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(limit) = limit else { return Poll::Pending };
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(limit)));
        if timer.deadline() > limit {
            timer.as_mut().reset(limit);
        }
        ready!(timer.as_mut().poll(context));
        if timer.deadline() >= limit {
            return Poll::Ready(());
        }
        timer.as_mut().reset(limit);
        timer.as_mut().poll(context)
    }
}

/// Gives hyper its limits for the heads of one connection's requests, all of them by one timer.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadTimer(Arc<Mutex<LastingTimer>>);

/// The limit for one head.
struct HeadLimit {
    limit: Instant,
    timer: HeadTimer,
}

impl hyper::rt::Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, limit: std::time::Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(HeadLimit { limit: limit.into(), timer: self.clone() })
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}

impl Future for HeadLimit {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut timer = self.timer.0.lock().unwrap_or_else(PoisonError::into_inner);
        timer.poll_until(Some(self.limit), context)
    }
}

impl hyper::rt::Sleep for HeadLimit {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    /// How long a timer takes to reach a limit that lies so many milliseconds ahead.
    async fn waited(timer: &mut LastingTimer, ahead: u64) -> u64 {
        let begun = Instant::now();
        let limit = begun + Duration::from_millis(ahead);
        poll_fn(|context| timer.poll_until(Some(limit), context)).await;
        u64::try_from(begun.elapsed().as_millis()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn each_limit_is_kept_whatever_the_one_before_was() {
        let mut timer = LastingTimer::default();
        assert_eq!(waited(&mut timer, 50).await, 50);
        assert_eq!(waited(&mut timer, 20).await, 20, "a timer that has fired is used again");
        let late = Instant::now() + Duration::from_secs(60);
        let given_up = tokio::time::timeout(
            Duration::from_millis(5),
            poll_fn(|context| timer.poll_until(Some(late), context)),
        );
        assert!(given_up.await.is_err());
        assert_eq!(
            waited(&mut timer, 10).await,
            10,
            "an earlier limit takes the later one's place"
        );
        let soon = Instant::now() + Duration::from_millis(10);
        let first = poll_fn(|context| Poll::Ready(timer.poll_until(Some(soon), context)));
        assert!(first.await.is_pending());
        assert_eq!(
            waited(&mut timer, 30).await,
            30,
            "a later limit is not reached at the earlier one"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn no_limit_is_never_reached() {
        let mut timer = LastingTimer::default();
        let never = poll_fn(|context| timer.poll_until(None, context));
        assert!(tokio::time::timeout(Duration::from_secs(3_600), never).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_heads_of_one_connection_have_limits_of_their_own() {
        let timer = HeadTimer::default();
        let begun = Instant::now();
        for milliseconds in [30, 10, 20] {
            hyper::rt::Timer::sleep(&timer, Duration::from_millis(milliseconds)).await;
        }
        assert_eq!(begun.elapsed().as_millis(), 60);
        // A head that came in time, and the next one, which does not.
        drop(hyper::rt::Timer::sleep(&timer, Duration::from_secs(60)));
        hyper::rt::Timer::sleep(&timer, Duration::from_millis(40)).await;
        assert_eq!(begun.elapsed().as_millis(), 100);
    }
}
