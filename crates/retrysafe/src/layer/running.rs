//! What is this process executing, and who waits for it?
//!
//! A duplicate may wait for the running request. Where that runs in the same process its end wakes
//! the waiters; they touch nothing but this table. It also counts what is under way, so that a
//! shutdown can wait for its end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::event;
use retrysafe_core::record::Fence;
use retrysafe_core::scope::Id;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use super::memory::HeldBody;

/// The executions of this process and their waiters.
#[derive(Debug, Default)]
pub(super) struct Running {
    table: Mutex<HashMap<Id, Entry>>,
    waiting: AtomicUsize,
    executing: Arc<Executing>,
}

#[derive(Debug)]
struct Entry {
    fence: Fence,
    since: Instant,
    // Made by the first waiter: most executions have none.
    ended: Option<Arc<Notify>>,
    waiting: usize,
    // The first waiter's, for all of them: they ask the same.
    waiters_body: Option<Bytes>,
}

#[derive(Debug, Default)]
struct Executing {
    count: AtomicUsize,
    idle: Notify,
}

/// One execution. Its end, however it comes about, wakes the waiters.
#[derive(Debug)]
pub(super) struct Run {
    running: Arc<Running>,
    id: Id,
    fence: Fence,
    _counted: Counted,
}

/// Something that a shutdown waits for, until it is dropped.
#[derive(Debug)]
pub(super) struct Counted(Arc<Executing>);

/// What a duplicate finds when it wants to wait.
#[derive(Debug)]
pub(super) enum Seat {
    /// The request runs here.
    Here(Waiter),
    /// It runs elsewhere, or has just ended.
    Elsewhere,
    /// Too many are waiting already.
    Full,
}

/// One waiting duplicate.
#[derive(Debug)]
pub(super) struct Waiter {
    place: Place,
    ended: OwnedNotified,
    body: Bytes,
}

/// A waiter's place in the table, given up when it is dropped.
#[derive(Debug)]
struct Place {
    running: Arc<Running>,
    id: Id,
    fence: Fence,
}

/// Waits until every execution is settled, for a shutdown that loses no answer.
///
/// Stop accepting requests first; a handle does not refuse new ones.
#[derive(Clone, Debug)]
pub struct Drain(Arc<Executing>);

impl Running {
    pub(super) fn start(self: &Arc<Self>, id: Id, fence: Fence) -> Run {
        let entry =
            Entry { fence, since: Instant::now(), ended: None, waiting: 0, waiters_body: None };
        let former = self.lock().insert(id, entry);
        // A former owner whose record was decided over its head may still be running.
        wake(former);
        Run { running: Arc::clone(self), id, fence, _counted: self.count() }
    }

    /// Counts something that a shutdown waits for.
    pub(super) fn count(&self) -> Counted {
        self.executing.count.fetch_add(1, Ordering::AcqRel);
        metrics::gauge!(event::EXECUTING.name).increment(1.0);
        Counted(Arc::clone(&self.executing))
    }

    /// How long a request has been running here.
    pub(super) fn elapsed(&self, id: Id) -> Option<Duration> {
        self.lock().get(&id).map(|entry| entry.since.elapsed())
    }

    pub(super) fn wait(
        self: &Arc<Self>,
        id: Id,
        per_key_max: usize,
        in_all_max: usize,
        body: &mut HeldBody,
    ) -> Seat {
        let mut table = self.lock();
        let Some(entry) = table.get_mut(&id) else { return Seat::Elsewhere };
        if entry.waiting >= per_key_max || self.waiting.load(Ordering::Acquire) >= in_all_max {
            return Seat::Full;
        }
        entry.waiting += 1;
        self.waiting.fetch_add(1, Ordering::AcqRel);
        metrics::gauge!(event::WAITING.name).increment(1.0);
        // Taken under the lock: an end that comes now already knows of this waiter.
        let ended = Arc::clone(entry.ended.get_or_insert_default()).notified_owned();
        let body = entry.waiters_body.get_or_insert_with(|| body.share()).clone();
        let place = Place { running: Arc::clone(self), id, fence: entry.fence };
        Seat::Here(Waiter { place, ended, body })
    }

    pub(super) fn drain(&self) -> Drain {
        Drain(Arc::clone(&self.executing))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// The body of the first who came to wait.
    pub(super) fn body(&self) -> Bytes {
        self.body.clone()
    }

    /// Waits for the end of the running request. Says whether it came before `deadline`.
    pub(super) async fn until(self, deadline: Instant) -> bool {
        let Self { place, ended, body } = self;
        drop(body);
        let came = tokio::time::timeout_at(deadline, ended).await.is_ok();
        drop(place);
        came
    }
}

impl Drain {
    /// How many executions are under way.
    pub fn executing(&self) -> usize {
        self.0.count.load(Ordering::Acquire)
    }

    /// Waits until none is, at most for `patience`.
    ///
    /// # Errors
    ///
    /// How many are still under way. Their records become unknown if the process ends now.
    pub async fn wait(&self, patience: Duration) -> Result<(), usize> {
        let idle = async {
            loop {
                let changed = self.0.idle.notified();
                if self.executing() == 0 {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(patience, idle).await.map_err(|_| self.executing())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.running.waiting.fetch_sub(1, Ordering::AcqRel);
        metrics::gauge!(event::WAITING.name).decrement(1.0);
        if let Some(entry) = self.running.lock().get_mut(&self.id)
            && entry.fence == self.fence
        {
            entry.waiting = entry.waiting.saturating_sub(1);
            if entry.waiting == 0 {
                entry.waiters_body = None;
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut table = self.running.lock();
        let mine = table.get(&self.id).is_some_and(|entry| entry.fence == self.fence);
        let entry = if mine { table.remove(&self.id) } else { None };
        drop(table);
        wake(entry);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::gauge!(event::EXECUTING.name).decrement(1.0);
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

fn wake(entry: Option<Entry>) {
    if let Some(ended) = entry.and_then(|entry| entry.ended) {
        ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Hold;
    use super::*;
    use retrysafe_core::{Key, Scope};

    fn id() -> Id {
        Id::of(&Scope::anonymous(), &Key::new("k").unwrap().digest())
    }

    fn body() -> HeldBody {
        HeldBody::new(Bytes::from_static(b"{}"), Hold::of_body(None, None))
    }

    fn seat(running: &Arc<Running>) -> Option<Waiter> {
        match running.wait(id(), 2, 3, &mut body()) {
            Seat::Here(waiter) => Some(waiter),
            Seat::Elsewhere | Seat::Full => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_between_taking_a_seat_and_waiting_is_not_missed() {
        let running = Arc::new(Running::default());
        let run = running.start(id(), Fence(1));
        let waiter = seat(&running).unwrap();
        drop(run);
        assert!(waiter.until(Instant::now() + Duration::from_secs(1)).await);
        assert!(matches!(running.wait(id(), 9, 9, &mut body()), Seat::Elsewhere));
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_are_bounded_and_places_are_given_up() {
        let running = Arc::new(Running::default());
        let _run = running.start(id(), Fence(1));
        let (one, two) = (seat(&running), seat(&running));
        assert!(two.is_some());
        assert!(matches!(running.wait(id(), 2, 3, &mut body()), Seat::Full));
        let late = Instant::now() + Duration::from_secs(1);
        assert!(!one.unwrap().until(late).await, "nothing has ended");
        assert!(seat(&running).is_some());
    }

    #[tokio::test]
    async fn a_former_owner_neither_ends_nor_hides_the_present_one() {
        let running = Arc::new(Running::default());
        let former = running.start(id(), Fence(1));
        let waiter = seat(&running).unwrap();
        let present = running.start(id(), Fence(2));
        assert!(waiter.until(Instant::now() + Duration::from_secs(60)).await);
        drop(former);
        assert!(running.elapsed(id()).is_some());
        assert_eq!(running.drain().executing(), 1);
        drop(present);
        assert!(running.elapsed(id()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_waits_for_the_last_one_or_says_how_many_are_left() {
        let running = Arc::new(Running::default());
        let (one, two) = (running.count(), running.count());
        let drain = running.drain();
        assert_eq!(drain.wait(Duration::from_secs(1)).await, Err(2));
        let waiting = tokio::spawn(async move { drain.wait(Duration::from_secs(60)).await });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(two);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }
}
