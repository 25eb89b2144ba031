//! What is this process executing, and who waits for it?
//!
//! A duplicate may wait for the running request. Where that runs in the same process its end wakes
//! the waiters; they touch nothing but this table. Waiters for a request that runs elsewhere hold a
//! place as well, so that their number is bounded. What runs without the store's protection is here
//! too: the process knows of it, whatever the store does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::engine::Renewal;
use retrysafe_core::event;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::record::Fence;
use retrysafe_core::scope::Id;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::deadline::after;
use super::memory::HeldBody;
use super::report::Report;
use crate::id_map::IdMap;

/// A lease is renewed this often before it ends.
const RENEWALS_PER_LEASE: u32 = 3;

/// A renewal that failed is tried again this often within a lease, so that a short loss of the store
/// costs no lease.
const TRIES_PER_LEASE: u32 = 30;

/// The shortest pause between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// What is needed to renew the lease of one execution.
#[derive(Clone, Debug)]
pub(super) struct RenewalOrder {
    pub renewal: Renewal,
    pub lease: Duration,
    pub lease_max: Duration,
    pub key: KeyDigest,
    pub report: Arc<Report>,
}

impl RenewalOrder {
    /// When a lease that was asked for at this moment is renewed.
    pub(super) fn due_after(&self, asked_at: Instant) -> Instant {
        after(asked_at, (self.lease / RENEWALS_PER_LEASE).max(PAUSE_MIN))
    }

    /// When a renewal that failed is tried again.
    pub(super) fn again_after(&self, failed_at: Instant) -> Instant {
        after(failed_at, (self.lease / TRIES_PER_LEASE).max(PAUSE_MIN))
    }
}

/// The executions of this process and their waiters.
#[derive(Debug, Default)]
pub(super) struct Running {
    table: Mutex<Table>,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    here: IdMap<Entry>,
    /// How many wait here for a request that runs elsewhere.
    elsewhere: IdMap<usize>,
    /// When the renewer looks at the table next.
    next_look: Option<Instant>,
    /// Owners whose records were decided over their heads, and who still run.
    former: Vec<Attempt>,
    /// A shutdown has given everything up: nothing starts any more.
    is_given_up: bool,
}

/// Why an execution may not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotStarted {
    /// The same request runs here without protection.
    RunsUnprotected,
    /// A shutdown has given everything up.
    GivenUp,
}

#[derive(Debug)]
struct Entry {
    by: Protection,
    since: Instant,
    // Made by the first waiter: most executions have none.
    ended: Option<Arc<Notify>>,
    waiting: usize,
    // The first waiter's, for all of them: they ask the same.
    waiters_body: Option<Bytes>,
    renewal: Option<(Instant, RenewalOrder)>,
    // None where nothing but this table protects it.
    attempt: Option<Attempt>,
    flow: Option<Arc<Flow>>,
}

/// When bytes of an answer that is passed on have last moved.
#[derive(Debug)]
pub(super) struct Flow(Mutex<Instant>);

/// What keeps an execution from happening twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    /// The record, under this fence.
    Record(Fence),
    /// Nothing but this table: the store is away, and the route runs all the same.
    ThisTable,
}

/// One execution. Its end, however it comes about, wakes the waiters.
#[derive(Debug)]
pub(super) struct Run {
    running: Arc<Running>,
    id: Id,
    by: Protection,
}

/// What a duplicate finds when it wants to wait.
#[derive(Debug)]
pub(super) enum WaitSlot {
    /// The request runs here.
    Here(Waiter),
    /// It runs elsewhere, or has just ended.
    Elsewhere(Place),
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
pub(super) struct Place {
    running: Arc<Running>,
    id: Id,
    /// The execution here that it waits for, or none where that runs elsewhere.
    by: Option<Protection>,
}

impl Running {
    /// Notes an execution whose lease is renewed when that is due. Says also whether that is earlier
    /// than the renewer's next look.
    ///
    /// # Errors
    ///
    /// Why it may not start.
    pub(super) fn start(
        self: &Arc<Self>,
        attempt: &Attempt,
        due: Instant,
        order: RenewalOrder,
    ) -> Result<(Run, bool), NotStarted> {
        let id = attempt.id();
        let mut table = self.lock();
        if table.is_given_up {
            return Err(NotStarted::GivenUp);
        }
        if table.here.get(&id).is_some_and(|entry| entry.by == Protection::ThisTable) {
            return Err(NotStarted::RunsUnprotected);
        }
        let by = Protection::Record(attempt.fence());
        let mut entry = Entry::new(by);
        entry.renewal = Some((due, order));
        entry.attempt = Some(attempt.clone());
        let run = self.insert(&mut table, id, entry);
        Ok((run, table.is_earlier(due)))
    }

    /// Notes an execution that nothing else protects. `None` if the same request runs here already.
    pub(super) fn start_unprotected(self: &Arc<Self>, id: Id) -> Option<Run> {
        let mut table = self.lock();
        if table.is_given_up || table.here.contains_key(&id) {
            return None;
        }
        Some(self.insert(&mut table, id, Entry::new(Protection::ThisTable)))
    }

    fn insert(self: &Arc<Self>, table: &mut Table, id: Id, entry: Entry) -> Run {
        let by = entry.by;
        let mut former = table.here.insert(id, entry);
        // A former owner whose record was decided over its head may still be running.
        table.former.extend(former.as_mut().and_then(|former| former.attempt.take()));
        wake(former);
        metrics::gauge!(event::EXECUTING.name).increment(1.0);
        Run { running: Arc::clone(self), id, by }
    }

    /// Takes the renewals that are due, and says when to look again.
    pub(super) fn take_due(&self, now: Instant) -> (Vec<RenewalOrder>, Option<Instant>) {
        let mut table = self.lock();
        let mut due = Vec::new();
        let mut next_look: Option<Instant> = None;
        for entry in table.here.values_mut() {
            if let Some(order) = entry.take_due(now) {
                due.push(order);
            } else if let Some((at, _)) = &entry.renewal {
                next_look = Some(next_look.map_or(*at, |next| next.min(*at)));
            }
        }
        table.next_look = next_look;
        (due, next_look)
    }

    /// Notes when a lease is renewed next, if its execution still runs. Says whether that is earlier
    /// than the renewer's next look.
    pub(super) fn renew_again(&self, order: RenewalOrder, at: Instant) -> bool {
        let mut table = self.lock();
        let by = Protection::Record(order.renewal.fence());
        let Some(entry) = table.here.get_mut(&order.renewal.id()) else { return false };
        if entry.by != by {
            return false;
        }
        entry.renewal = Some((at, order));
        table.is_earlier(at)
    }

    /// Notes that the answer of an execution is passed on from now on. Its lease is renewed for as long
    /// as bytes flow, and for no longer.
    pub(super) fn starts_to_flow(&self, owner: Renewal) -> Arc<Flow> {
        let flow = Arc::new(Flow(Mutex::new(Instant::now())));
        let by = Protection::Record(owner.fence());
        if let Some(entry) = self.lock().here.get_mut(&owner.id()).filter(|entry| entry.by == by) {
            entry.flow = Some(Arc::clone(&flow));
        }
        flow
    }

    /// Ends the waiting for every execution that the store protects, or has protected. None starts any
    /// more.
    pub(super) fn give_up_all(&self) {
        let mut table = self.lock();
        table.is_given_up = true;
        let present = table.here.values().filter_map(|entry| entry.attempt.as_ref());
        present.chain(&table.former).for_each(Attempt::give_up);
    }

    /// How long a request has been running here.
    pub(super) fn elapsed(&self, id: Id) -> Option<Duration> {
        self.lock().here.get(&id).map(|entry| entry.since.elapsed())
    }

    pub(super) fn wait(
        self: &Arc<Self>,
        id: Id,
        per_key_max: usize,
        in_all_max: usize,
        body: &mut HeldBody,
    ) -> WaitSlot {
        let mut table = self.lock();
        let here = table.here.get(&id).map(|entry| entry.waiting);
        let waiting = here.or_else(|| table.elsewhere.get(&id).copied()).unwrap_or_default();
        if waiting >= per_key_max || self.waiting.load(Ordering::Acquire) >= in_all_max {
            return WaitSlot::Full;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        metrics::gauge!(event::WAITING.name).increment(1.0);
        let place = |by| Place { running: Arc::clone(self), id, by };
        let Some(entry) = table.here.get_mut(&id) else {
            *table.elsewhere.entry(id).or_default() += 1;
            return WaitSlot::Elsewhere(place(None));
        };
        entry.waiting += 1;
        // Taken under the lock: an end that comes now already knows of this waiter.
        let ended = Arc::clone(entry.ended.get_or_insert_default()).notified_owned();
        let body = entry.waiters_body.get_or_insert_with(|| body.share()).clone();
        WaitSlot::Here(Waiter { place: place(Some(entry.by)), ended, body })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flow {
    /// Bytes have moved.
    pub(super) fn moved(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn has_moved_since(&self, moment: Instant) -> bool {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) >= moment
    }
}

impl Entry {
    fn new(by: Protection) -> Self {
        Self {
            by,
            since: Instant::now(),
            ended: None,
            waiting: 0,
            waiters_body: None,
            renewal: None,
            attempt: None,
            flow: None,
        }
    }

    /// Takes the renewal if it is due. That of an answer which has not moved for a whole lease is put
    /// off instead: bytes may flow again before the lease ends.
    fn take_due(&mut self, now: Instant) -> Option<RenewalOrder> {
        let (_, mut order) = self.renewal.take_if(|(at, _)| *at <= now)?;
        let Some(flow) = &self.flow else { return Some(order) };
        // An answer that is passed on may last longer than any other execution.
        order.lease_max = Duration::MAX;
        let has_moved =
            now.checked_sub(order.lease).is_none_or(|since| flow.has_moved_since(since));
        if has_moved {
            return Some(order);
        }
        self.renewal = Some((order.due_after(now), order));
        None
    }
}

impl Table {
    /// Whether a moment lies before the renewer's next look; if so, it is to look then.
    fn is_earlier(&mut self, at: Instant) -> bool {
        let is_earlier = self.next_look.is_none_or(|next| at < next);
        if is_earlier {
            self.next_look = Some(at);
        }
        is_earlier
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

impl Drop for Place {
    fn drop(&mut self) {
        self.running.waiting.fetch_sub(1, Ordering::AcqRel);
        metrics::gauge!(event::WAITING.name).decrement(1.0);
        let mut table = self.running.lock();
        let Some(by) = self.by else {
            if let Some(waiting) = table.elsewhere.get_mut(&self.id) {
                *waiting = waiting.saturating_sub(1);
                if *waiting == 0 {
                    table.elsewhere.remove(&self.id);
                }
            }
            return;
        };
        if let Some(entry) = table.here.get_mut(&self.id).filter(|entry| entry.by == by) {
            entry.waiting = entry.waiting.saturating_sub(1);
            if entry.waiting == 0 {
                entry.waiters_body = None;
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        metrics::gauge!(event::EXECUTING.name).decrement(1.0);
        let mut table = self.running.lock();
        let is_mine = table.here.get(&self.id).is_some_and(|entry| entry.by == self.by);
        let entry = if is_mine { table.here.remove(&self.id) } else { None };
        if let (false, Protection::Record(fence)) = (is_mine, self.by) {
            table.former.retain(|former| (former.id(), former.fence()) != (self.id, fence));
        }
        drop(table);
        wake(entry);
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
    use crate::layer::report::Reports;
    use retrysafe_core::engine::Renewal;
    use retrysafe_core::{Key, Scope};

    fn id() -> Id {
        Id::of(&Scope::anonymous(), &Key::new("k").unwrap().digest())
    }

    fn body() -> HeldBody {
        HeldBody::new(Bytes::from_static(b"{}"), Hold::of_body(None, None))
    }

    fn order(fence: u64) -> RenewalOrder {
        RenewalOrder {
            renewal: Renewal::new(id(), Fence(fence)),
            lease: Duration::from_secs(60),
            lease_max: Duration::from_secs(600),
            key: Key::new("k").unwrap().digest(),
            report: Reports::default().of("r"),
        }
    }

    fn attempt(fence: u64) -> Attempt {
        let key = Key::new("k").unwrap().digest();
        Attempt::new(id(), key, Fence(fence), 1, Instant::now() + Duration::from_secs(600))
    }

    fn start(running: &Arc<Running>, fence: u64) -> Run {
        let due = Instant::now() + Duration::from_secs(20);
        running.start(&attempt(fence), due, order(fence)).unwrap().0
    }

    fn seat(running: &Arc<Running>) -> Option<Waiter> {
        match running.wait(id(), 2, 3, &mut body()) {
            WaitSlot::Here(waiter) => Some(waiter),
            WaitSlot::Elsewhere(_) | WaitSlot::Full => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_between_taking_a_seat_and_waiting_is_not_missed() {
        let running = Arc::new(Running::default());
        let run = start(&running, 1);
        let waiter = seat(&running).unwrap();
        drop(run);
        assert!(waiter.until(Instant::now() + Duration::from_secs(1)).await);
        assert!(matches!(running.wait(id(), 9, 9, &mut body()), WaitSlot::Elsewhere(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_are_bounded_and_places_are_given_up() {
        let running = Arc::new(Running::default());
        let _run = start(&running, 1);
        let one = seat(&running);
        let two = seat(&running);
        assert!(two.is_some());
        assert!(matches!(running.wait(id(), 2, 3, &mut body()), WaitSlot::Full));
        let late = Instant::now() + Duration::from_secs(1);
        assert!(!one.unwrap().until(late).await, "nothing has ended");
        assert!(seat(&running).is_some());
    }

    #[tokio::test]
    async fn a_former_owner_neither_ends_nor_hides_the_present_one() {
        let running = Arc::new(Running::default());
        let former = start(&running, 1);
        let waiter = seat(&running).unwrap();
        let present = start(&running, 2);
        assert!(waiter.until(Instant::now() + Duration::from_secs(60)).await);
        drop(former);
        assert!(running.elapsed(id()).is_some());
        drop(present);
        assert!(running.elapsed(id()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_due_once_and_only_while_its_execution_runs() {
        let running = Arc::new(Running::default());
        let run = start(&running, 1);
        let due_at = Instant::now() + Duration::from_secs(20);
        assert_eq!(running.take_due(Instant::now()).1, Some(due_at));
        let (due, next) = running.take_due(due_at);
        assert_eq!((due.len(), next), (1, None));
        assert!(running.take_due(due_at).0.is_empty(), "it is under way");
        assert!(running.renew_again(order(1), due_at), "the renewer has nothing else to wait for");
        assert!(!running.renew_again(order(2), due_at), "of another owner");
        assert_eq!(running.take_due(Instant::now()).1, Some(due_at));
        drop(run);
        assert!(!running.renew_again(order(1), due_at));
        assert!(running.take_due(due_at).0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_renewed_while_its_bytes_flow_and_put_off_while_they_do_not() {
        let running = Arc::new(Running::default());
        let _run = start(&running, 1);
        let flow = running.starts_to_flow(order(1).renewal);
        let lease = order(1).lease;
        tokio::time::advance(lease).await;
        let (due, _) = running.take_due(Instant::now());
        assert_eq!(due.len(), 1, "bytes have flowed within a lease");
        assert_eq!(due.first().map(|order| order.lease_max), Some(Duration::MAX));
        running.renew_again(order(1), Instant::now());
        tokio::time::advance(Duration::from_millis(1)).await;
        let (due, next) = running.take_due(Instant::now());
        assert!(due.is_empty() && next.is_some(), "nothing has moved for a whole lease");
        flow.moved();
        tokio::time::advance(lease / 2).await;
        assert_eq!(running.take_due(Instant::now()).0.len(), 1);
    }

    #[test]
    fn what_runs_unprotected_here_runs_once_at_a_time() {
        let running = Arc::new(Running::default());
        let run = running.start_unprotected(id()).unwrap();
        assert!(running.start_unprotected(id()).is_none());
        let started = running.start(&attempt(1), Instant::now(), order(1));
        assert_eq!(started.map(drop), Err(NotStarted::RunsUnprotected));
        drop(run);
        let protected = start(&running, 1);
        assert!(running.start_unprotected(id()).is_none());
        drop(protected);
        assert!(running.start_unprotected(id()).is_some());
    }

    #[tokio::test]
    async fn a_shutdown_reaches_former_owners_and_lets_nothing_start() {
        let running = Arc::new(Running::default());
        let former = attempt(1);
        let present = attempt(2);
        let due = Instant::now() + Duration::from_secs(20);
        let first = running.start(&former, due, order(1)).unwrap();
        let second = running.start(&present, due, order(2)).unwrap();
        running.give_up_all();
        assert!(former.is_given_up() && present.is_given_up());
        let third = running.start(&attempt(3), due, order(3));
        assert_eq!(third.map(drop), Err(NotStarted::GivenUp));
        drop((first, second));
        assert!(running.start_unprotected(id()).is_none());
        assert!(running.lock().former.is_empty() && running.lock().here.is_empty());
    }

    #[test]
    fn places_for_what_runs_elsewhere_are_bounded_and_given_up() {
        let running = Arc::new(Running::default());
        let WaitSlot::Elsewhere(place) = running.wait(id(), 1, 9, &mut body()) else {
            panic!("it runs nowhere here")
        };
        assert!(matches!(running.wait(id(), 1, 9, &mut body()), WaitSlot::Full));
        drop(place);
        assert!(running.lock().elsewhere.is_empty());
        assert!(matches!(running.wait(id(), 1, 9, &mut body()), WaitSlot::Elsewhere(_)));
    }
}
