//! What does a shutdown wait for?
//!
//! For everything that was begun and is not settled: from before the begin is sent, because a begin
//! whose client has left goes on, until the settle is durable. Taking back a begin that was never
//! executed is worth a short wait only: if it fails, the record becomes unknown and nothing else.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use super::running::Running;

/// How long a shutdown waits for withdrawals once nothing executes any more. The store may be away,
/// and nothing that was done depends on them.
const WITHDRAWALS_WAITED_FOR: Duration = Duration::from_secs(2);

/// Waits until every execution is settled, for a shutdown that loses no answer.
///
/// Stop accepting requests first; a handle does not refuse new ones.
///
/// ```
/// # async fn shut_down(layer: retrysafe::layer::IdempotencyLayer<retrysafe::stores::memory::MemoryStore>) {
/// use std::time::Duration;
///
/// let drain = layer.drain();
/// if drain.wait(Duration::from_secs(30)).await.is_err() {
///     // What has not ended by now becomes unknown at once instead of when its lease ends.
///     let _ = drain.give_up(Duration::from_secs(2)).await;
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Drain {
    executions: Arc<Unfinished>,
    withdrawals: Arc<Unfinished>,
    running: Arc<Running>,
    given_up: Arc<GivenUp>,
}

/// Whether a shutdown has lost its patience.
#[derive(Debug, Default)]
struct GivenUp {
    is_told: AtomicBool,
    told: Notify,
}

/// A number of things that are under way.
#[derive(Debug, Default)]
struct Unfinished {
    count: AtomicUsize,
    none_left: Notify,
}

/// One thing that a shutdown waits for, until it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Unfinished>);

impl Drain {
    pub(super) fn new(running: Arc<Running>) -> Self {
        Self {
            executions: Arc::default(),
            withdrawals: Arc::default(),
            running,
            given_up: Arc::default(),
        }
    }

    /// Counts an execution, from before its begin.
    pub(super) fn execution(&self) -> UnderWay {
        Unfinished::one_more(&self.executions)
    }

    /// Counts the withdrawal of a begin.
    pub(super) fn withdrawal(&self) -> UnderWay {
        Unfinished::one_more(&self.withdrawals)
    }

    /// How many begins are being withdrawn.
    pub(super) fn withdrawing(&self) -> usize {
        self.withdrawals.count.load(Ordering::Acquire)
    }

    /// How many executions are under way.
    pub fn executing(&self) -> usize {
        self.executions.count.load(Ordering::Acquire)
    }

    /// Waits until none is, at most for `patience`.
    ///
    /// # Errors
    ///
    /// How many are still under way. Their records become unknown if the process ends now.
    pub async fn wait(&self, patience: Duration) -> Result<(), usize> {
        let ended = tokio::time::timeout(patience, self.executions.ended()).await;
        ended.map_err(|_| self.executing())?;
        let waited_for = patience.min(WITHDRAWALS_WAITED_FOR);
        // Nothing was executed, so nothing is lost if this takes too long.
        let _ = tokio::time::timeout(waited_for, self.withdrawals.ended()).await;
        Ok(())
    }
}

impl Drain {
    /// Gives up what is still under way after a [`wait`](Self::wait): handlers are dropped, and the
    /// records of their requests become unknown now instead of when their leases end. A begin that the
    /// store has not answered is withdrawn, and nothing begins any more. Waits for that at most for
    /// `patience`.
    ///
    /// # Errors
    ///
    /// How many are still under way: the store is away, or a handler blocks its thread.
    pub async fn give_up(&self, patience: Duration) -> Result<(), usize> {
        self.running.give_up_all();
        self.given_up.is_told.store(true, Ordering::Release);
        self.given_up.told.notify_waiters();
        let ended = tokio::time::timeout(patience, self.executions.ended()).await;
        ended.map_err(|_| self.executing())
    }
}

impl Drain {
    /// Does some work of a request that has no attempt yet. `None` if a shutdown gives it up first.
    pub(super) async fn unless_given_up<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        // Made before the look: a word that comes now is heard.
        let mut told = pin!(self.given_up.told.notified());
        let is_told = self.given_up.is_told.load(Ordering::Acquire);
        std::future::poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            if is_told {
                return Poll::Ready(None);
            }
            told.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

impl Unfinished {
    fn one_more(this: &Arc<Self>) -> UnderWay {
        this.count.fetch_add(1, Ordering::AcqRel);
        UnderWay(Arc::clone(this))
    }

    async fn ended(&self) {
        loop {
            let changed = self.none_left.notified();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none_left.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_waits_for_the_last_one_or_says_how_many_are_left() {
        let drain = Drain::new(Arc::default());
        let one = drain.execution();
        let two = drain.execution();
        assert_eq!(drain.wait(Duration::from_secs(1)).await, Err(2));
        let waiting = tokio::spawn(async move { drain.wait(Duration::from_secs(60)).await });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(two);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_withdrawal_that_never_ends_does_not_hold_up_a_shutdown() {
        let drain = Drain::new(Arc::default());
        let _withdrawal = drain.withdrawal();
        let begun = tokio::time::Instant::now();
        assert_eq!(drain.wait(Duration::from_secs(60)).await, Ok(()));
        assert_eq!(begun.elapsed(), WITHDRAWALS_WAITED_FOR);
    }
}
