//! How is a file written while time stands still?
//!
//! The journal writes its files on another thread, which no seed controls. So whoever waits for it does
//! so with the whole thread: to the history, the file is written at once, and nothing happens meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// How often, and for how long, a file is waited for: longer than any disk takes. After that the work
/// waits as all work does, and its history may differ from run to run.
const WAITS_MAX: u32 = 10_000;
const WAIT: Duration = Duration::from_millis(1);

/// Work whose waiting stops everything else, as long as the mark is set.
pub struct AtOnce<F> {
    work: Pin<Box<F>>,
    stops: Arc<AtomicBool>,
}

struct ThreadWaker {
    thread: Thread,
    is_woken: AtomicBool,
    task: Waker,
}

impl<F: Future> AtOnce<F> {
    pub fn new(work: F, stops: Arc<AtomicBool>) -> Self {
        Self { work: Box::pin(work), stops }
    }

    /// Work that stops everything else until its end.
    pub fn whole(work: F) -> Self {
        Self::new(work, Arc::new(AtomicBool::new(true)))
    }
}

impl<F: Future> Future for AtOnce<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let woken = Arc::new(ThreadWaker {
            thread: std::thread::current(),
            is_woken: AtomicBool::new(false),
            task: context.waker().clone(),
        });
        let waker = Waker::from(Arc::clone(&woken));
        for _ in 0..WAITS_MAX {
            let polled = self.work.as_mut().poll(&mut Context::from_waker(&waker));
            if polled.is_ready() || !self.stops.load(Ordering::Acquire) {
                return polled;
            }
            if !woken.is_woken.swap(false, Ordering::AcqRel) {
                std::thread::park_timeout(WAIT);
            }
        }
        Poll::Pending
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
        self.task.wake_by_ref();
    }
}
