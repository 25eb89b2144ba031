//! How are many requests of one thread woken at the price of one?
//!
//! A store answers a whole batch at once, from a thread of its own. To wake a task on another
//! thread's runtime is a system call, each time. So what a worker serves is woken through its
//! courier: the first wake from outside rouses the courier, the others wait in its bag, and the
//! courier hands all of them out on the worker's own thread, where a wake costs next to nothing.
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
    /// The number of the courier that delivers on this thread; zero for none.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Delivers the wakes of one worker thread.
#[derive(Debug)]
pub(crate) struct Courier {
    number: usize,
    bag: Mutex<Bag>,
}

#[derive(Debug, Default)]
struct Bag {
    wakes: Vec<Waker>,
    /// The courier's own task.
    carrier: Option<Waker>,
    /// The runtime has ended: nobody delivers any more, and everything is woken directly.
    is_gone: bool,
}

/// A wake on its way to a task.
struct Letter {
    to: Waker,
    courier: Arc<Courier>,
}

/// A future whose wakes are delivered by a courier.
pub(crate) struct Delivered<F> {
    future: Pin<Box<F>>,
    courier: Arc<Courier>,
    /// The waker that was last polled with, and the one that it was wrapped in.
    wrapped: Option<(Waker, Waker)>,
}

impl Courier {
    /// Starts the courier of this thread, whose runtime runs on this thread alone.
    pub(crate) fn start() -> Arc<Self> {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        HERE.set(number);
        let courier = Arc::new(Self { number, bag: Mutex::default() });
        tokio::spawn(Round(Arc::clone(&courier)));
        courier
    }

    /// Lets a future be woken through this courier.
    pub(crate) fn deliver<F: Future>(self: &Arc<Self>, future: F) -> Delivered<F> {
        Delivered { future: Box::pin(future), courier: Arc::clone(self), wrapped: None }
    }

    fn bag(&self) -> MutexGuard<'_, Bag> {
        self.bag.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, wake: Waker) {
        let mut bag = self.bag();
        if bag.is_gone {
            drop(bag);
            return wake.wake();
        }
        bag.wakes.push(wake);
        // Whoever put the first one in has roused the courier.
        let rouse = if bag.wakes.len() == 1 { bag.carrier.clone() } else { None };
        drop(bag);
        if let Some(carrier) = rouse {
            carrier.wake();
        }
    }
}

/// The courier's task. It never ends by itself.
struct Round(Arc<Courier>);

impl Future for Round {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let wakes = {
            let mut bag = self.0.bag();
            bag.carrier = Some(context.waker().clone());
            std::mem::take(&mut bag.wakes)
        };
        wakes.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        let wakes = {
            let mut bag = self.0.bag();
            bag.is_gone = true;
            std::mem::take(&mut bag.wakes)
        };
        wakes.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Letter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if HERE.get() == self.courier.number {
            self.to.wake_by_ref()
        } else {
            self.courier.take(self.to.clone())
        }
    }
}

impl<F: Future> Future for Delivered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let courier = &this.courier;
        let wrap = |to: &Waker| {
            let letter = Letter { to: to.clone(), courier: Arc::clone(courier) };
            (to.clone(), Waker::from(Arc::new(letter)))
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
            let courier = Courier::start();
            for round in 0..200 {
                let (answers, tasks): (Vec<_>, Vec<_>) = (0..16)
                    .map(|number| {
                        let (answer, asked) = oneshot::channel::<u64>();
                        let sum = Arc::clone(&sum);
                        let work = async move {
                            tokio::task::yield_now().await;
                            sum.fetch_add(asked.await.unwrap(), Ordering::Relaxed);
                        };
                        ((answer, number), tokio::spawn(courier.deliver(work)))
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

    // A wake that is under way when the runtime ends must not be kept in a bag that nobody empties.
    #[test]
    fn a_courier_that_is_gone_wakes_directly() {
        struct Counted(AtomicUsize);
        impl Wake for Counted {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let counted = Arc::new(Counted(AtomicUsize::new(0)));
        let courier = runtime.block_on(async { Courier::start() });
        let to = Waker::from(Arc::clone(&counted));
        let letter = Arc::new(Letter { to, courier });
        let send = |letter: &Arc<Letter>| {
            let letter = Arc::clone(letter);
            std::thread::spawn(move || letter.wake()).join().unwrap();
        };
        send(&letter);
        assert_eq!(counted.0.load(Ordering::Relaxed), 0, "it is in the bag");
        drop(runtime);
        assert_eq!(counted.0.load(Ordering::Relaxed), 1, "it was handed out at the end");
        send(&letter);
        assert_eq!(counted.0.load(Ordering::Relaxed), 2);
    }
}
