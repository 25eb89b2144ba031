//! How are many requests of one thread woken at the price of one?
//!
//! A store answers a whole batch at once, from a thread of its own. To wake a task on another
//! thread's runtime is a system call, each time. So what a worker serves is woken through the
//! worker's batcher: the first wake from another thread wakes the batcher's task, further wakes are
//! gathered until that task runs, and it wakes all of them on the worker's own thread, where a wake
//! costs next to nothing.
//!
//! What is woken so is a connection, and with it the HTTP/1.1 request that it serves. A stream of
//! HTTP/2 and work that its caller has left are tasks of their own and are woken directly.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// The number of the batcher whose task runs on this thread; zero for none.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Gathers the wakes of one worker thread.
#[derive(Debug)]
pub(crate) struct WakeBatcher {
    number: usize,
    pending: Mutex<PendingWakes>,
}

#[derive(Debug, Default)]
struct PendingWakes {
    wakes: Vec<Waker>,
    /// The waker of the batcher's own task.
    batcher_task: Option<Waker>,
    /// The runtime has ended: nobody gathers any more, and everything is woken directly.
    is_gone: bool,
}

/// The waker of a task whose wakes are gathered.
struct BatchedWake {
    to: Waker,
    batcher: Arc<WakeBatcher>,
}

/// A future whose wakes are gathered.
pub(crate) struct BatchedFuture<F> {
    future: Pin<Box<F>>,
    batcher: Arc<WakeBatcher>,
    /// The waker that was last polled with, and the one that it was wrapped in.
    wrapped: Option<(Waker, Waker)>,
}

impl WakeBatcher {
    /// Starts the batcher of this thread, whose runtime runs on this thread alone.
    pub(crate) fn start() -> Arc<Self> {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        HERE.set(number);
        let batcher = Arc::new(Self { number, pending: Mutex::default() });
        tokio::spawn(BatcherTask(Arc::clone(&batcher)));
        batcher
    }

    /// Lets a future be woken through this batcher.
    pub(crate) fn batch_wakes_of<F: Future>(self: &Arc<Self>, future: F) -> BatchedFuture<F> {
        BatchedFuture { future: Box::pin(future), batcher: Arc::clone(self), wrapped: None }
    }

    fn pending(&self) -> MutexGuard<'_, PendingWakes> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, wake: Waker) {
        let mut pending = self.pending();
        if pending.is_gone {
            drop(pending);
            return wake.wake();
        }
        pending.wakes.push(wake);
        // Whoever put the first one in has woken the batcher's task.
        let batcher_task =
            if pending.wakes.len() == 1 { pending.batcher_task.clone() } else { None };
        drop(pending);
        if let Some(batcher_task) = batcher_task {
            batcher_task.wake();
        }
    }
}

/// The batcher's task. It never ends by itself.
struct BatcherTask(Arc<WakeBatcher>);

impl Future for BatcherTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let wakes = {
            let mut pending = self.0.pending();
            pending.batcher_task = Some(context.waker().clone());
            std::mem::take(&mut pending.wakes)
        };
        wakes.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

impl Drop for BatcherTask {
    fn drop(&mut self) {
        let wakes = {
            let mut pending = self.0.pending();
            pending.is_gone = true;
            std::mem::take(&mut pending.wakes)
        };
        wakes.into_iter().for_each(Waker::wake);
    }
}

impl Wake for BatchedWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if HERE.get() == self.batcher.number {
            self.to.wake_by_ref()
        } else {
            self.batcher.take(self.to.clone())
        }
    }
}

impl<F: Future> Future for BatchedFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let batcher = &this.batcher;
        let wrap = |to: &Waker| {
            let wake = BatchedWake { to: to.clone(), batcher: Arc::clone(batcher) };
            (to.clone(), Waker::from(Arc::new(wake)))
        };
        let known = this.wrapped.take().filter(|(to, _)| to.will_wake(context.waker()));
        let (_, waker) = this.wrapped.insert(known.unwrap_or_else(|| wrap(context.waker())));
        this.future.as_mut().poll(&mut Context::from_waker(waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use tokio::sync::oneshot;

    #[test]
    fn wakes_from_another_thread_arrive_and_local_ones_too() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sum = Arc::new(AtomicU64::new(0));
        runtime.block_on(async {
            let batcher = WakeBatcher::start();
            for round in 0..200 {
                let (answers, tasks): (Vec<_>, Vec<_>) = (0..16)
                    .map(|number| {
                        let (answer, asked) = oneshot::channel::<u64>();
                        let sum = Arc::clone(&sum);
                        let work = async move {
                            tokio::task::yield_now().await;
                            sum.fetch_add(asked.await.unwrap(), Ordering::Relaxed);
                        };
                        ((answer, number), tokio::spawn(batcher.batch_wakes_of(work)))
                    })
                    .unzip();
                let writer = std::thread::spawn(move || {
                    answers.into_iter().for_each(|(answer, number)| answer.send(number).unwrap());
                });
                for task in tasks {
                    task.await.unwrap();
                }
                writer.join().unwrap();
                assert_eq!(sum.load(Ordering::Relaxed), (round + 1) * 120);
            }
        });
    }

    // A wake that is under way when the runtime ends must not be kept in a pending that nobody empties.
    #[test]
    fn a_batcher_that_is_gone_wakes_directly() {
        struct Counted(AtomicUsize);
        impl Wake for Counted {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let counted = Arc::new(Counted(AtomicUsize::new(0)));
        let batcher = runtime.block_on(async { WakeBatcher::start() });
        let to = Waker::from(Arc::clone(&counted));
        let wake = Arc::new(BatchedWake { to, batcher });
        let send = |wake: &Arc<BatchedWake>| {
            let wake = Arc::clone(wake);
            std::thread::spawn(move || wake.wake()).join().unwrap();
        };
        send(&wake);
        assert_eq!(counted.0.load(Ordering::Relaxed), 0, "it is pending");
        drop(runtime);
        assert_eq!(counted.0.load(Ordering::Relaxed), 1, "it was handed out at the end");
        send(&wake);
        assert_eq!(counted.0.load(Ordering::Relaxed), 2);
    }
}
