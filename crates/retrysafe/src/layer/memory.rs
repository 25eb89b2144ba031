//! How much memory may guarded requests hold?
//!
//! A guarded request is held whole: its body until it was sent on, its answer until the caller has
//! taken it. A [`MemoryBudget`] counts these bytes for all layers that it is given to, and refuses a
//! request, before it is begun, where they would be too many.
//!
//! | what | may hold |
//! | --- | --- |
//! | bodies of requests that have not begun: they arrive, or wait for a duplicate | half of the budget, and one connection an eighth of that |
//! | answers from the record | a quarter of the budget, whatever the others hold: retries are answered first |
//! | executions | what they need: nothing that has begun is refused memory |
//!
//! What executions need is bounded by their number, one for each 256 KiB of the budget, and none
//! begins while everything together exceeds the budget.
//!
//! Bytes count until nobody has them any more. So an answer that the server has taken over, and
//! keeps for a reader that does not read, still counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::problem::Refusal;
use retrysafe_core::scope::Id;

/// Bodies that have not begun may hold this part of the budget.
const BODIES_PART: usize = 2;

/// One connection may hold this part of what bodies may hold, so that nobody takes it all alone. Its
/// only body may be larger.
const CONNECTION_PART: usize = 8;

/// Answers from the record may hold this part of the budget.
const REPLAYS_PART: usize = 4;

/// The budget has room for an execution for each of these bytes. Most requests and answers have a
/// few kilobytes; a budget of 256 MiB lets 1,024 of them run.
const EXECUTION_BYTES: usize = 256 << 10;

/// From this size on, replays of one record at the same time share one copy of its answer. Below it
/// the search for the copy would cost more than it saves.
const SHARED_BYTES_MIN: usize = 16 << 10;

/// When to ask again: bodies come and answers go within seconds.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How much memory guarded requests may hold, and how much they do. Clones are one budget.
///
/// ```
/// use retrysafe::layer::{IdempotencyLayer, MemoryBudget};
/// use retrysafe::stores::memory::MemoryStore;
///
/// let budget = MemoryBudget::new(256 << 20);
/// let layer = IdempotencyLayer::new(MemoryStore::default()).memory(budget.clone());
/// assert_eq!(budget.held(), 0);
/// # let _ = layer;
/// ```
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Counts>);

/// What one connection holds. A server that puts a clone of the same one into the extensions of all
/// requests of a connection keeps that connection from taking the whole budget.
///
/// ```
/// use http::Request;
/// use retrysafe::layer::ConnectionShare;
///
/// let of_this_connection = ConnectionShare::default();
/// let mut request = Request::new(());
/// request.extensions_mut().insert(of_this_connection.clone());
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectionShare(Arc<AtomicUsize>);

#[derive(Debug)]
struct Counts {
    bytes_max: AtomicUsize,
    bodies: AtomicUsize,
    replays: AtomicUsize,
    executions: AtomicUsize,
    /// How many executions are under way.
    executing: AtomicUsize,
    /// The large answers that are being replayed.
    shared: Mutex<HashMap<Id, Weak<SharedAnswer>>>,
}

/// The right to one execution, given back when it is dropped.
#[derive(Debug)]
pub(super) struct ExecutionSlot(MemoryBudget);

/// Which part of the budget some bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Bodies,
    Replays,
    Executions,
}

/// Bytes that count, until it is dropped. Without a budget nothing counts.
#[derive(Debug)]
pub(super) struct Hold {
    budget: Option<MemoryBudget>,
    part: Part,
    share: Option<ConnectionShare>,
    bytes: usize,
}

/// A body that was read whole, and what it counts as.
#[derive(Debug)]
pub(super) struct HeldBody {
    pub data: Bytes,
    hold: Hold,
}

/// Bytes that count for as long as somebody has them.
struct Kept {
    data: Bytes,
    _hold: Hold,
}

/// An answer that several replays send at the same time.
#[derive(Debug)]
struct SharedAnswer {
    id: Id,
    data: Bytes,
    hold: Hold,
}

struct SharedBytes(Arc<SharedAnswer>);

impl MemoryBudget {
    /// A budget of so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Counts {
            bytes_max: AtomicUsize::new(bytes_max),
            bodies: AtomicUsize::new(0),
            replays: AtomicUsize::new(0),
            executions: AtomicUsize::new(0),
            executing: AtomicUsize::new(0),
            shared: Mutex::default(),
        }))
    }

    /// Changes how many bytes there are. What is held already stays.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        self.0.bytes_max.store(bytes_max, Ordering::Release);
    }

    /// How many bytes are held now.
    pub fn held(&self) -> usize {
        [Part::Bodies, Part::Replays, Part::Executions]
            .into_iter()
            .map(|part| self.counter(part).load(Ordering::Acquire))
            .sum()
    }

    /// The largest body that a budget of so many bytes lets in.
    pub const fn body_bytes_max(bytes_max: usize) -> usize {
        bytes_max / BODIES_PART
    }

    /// The largest answer that a budget of so many bytes lets out of the record.
    pub const fn replay_bytes_max(bytes_max: usize) -> usize {
        bytes_max / REPLAYS_PART
    }

    /// What a request is told that finds no room.
    pub(super) fn refusal() -> Refusal {
        Refusal::Overloaded { retry_after: RETRY_AFTER }
    }

    /// The right to one execution, if another one may begin now.
    pub(super) fn execution_slot(&self) -> Option<ExecutionSlot> {
        let bytes_max = self.bytes_max();
        if self.held() > bytes_max {
            return None;
        }
        take(&self.0.executing, 1, (bytes_max / EXECUTION_BYTES).max(1))
            .then(|| ExecutionSlot(self.clone()))
    }

    /// An answer from the record as it is sent, if there is room for it.
    pub(super) fn replay(&self, id: Id, body: Bytes) -> Option<Bytes> {
        let is_large = body.len() >= SHARED_BYTES_MIN;
        // In a statement of its own: whoever drops the last copy takes the lock as well.
        let shared = if is_large { self.shared().get(&id).and_then(Weak::upgrade) } else { None };
        if let Some(shared) = shared.filter(|shared| shared.data == body) {
            return Some(Bytes::from_owner(SharedBytes(shared)));
        }
        let hold = Hold::of_replay(Some(self), body.len())?;
        if !is_large {
            return Some(hold.keep(body));
        }
        let shared = Arc::new(SharedAnswer { id, data: body, hold });
        self.shared().insert(id, Arc::downgrade(&shared));
        Some(Bytes::from_owner(SharedBytes(shared)))
    }

    fn bytes_max(&self) -> usize {
        self.0.bytes_max.load(Ordering::Acquire)
    }

    fn counter(&self, part: Part) -> &AtomicUsize {
        match part {
            Part::Bodies => &self.0.bodies,
            Part::Replays => &self.0.replays,
            Part::Executions => &self.0.executions,
        }
    }

    /// Counts more bytes of a part, if they may be held.
    fn take(&self, part: Part, bytes: usize) -> bool {
        let bytes_max = self.bytes_max();
        let counter = self.counter(part);
        match part {
            Part::Executions => take(counter, bytes, usize::MAX),
            Part::Replays => take(counter, bytes, Self::replay_bytes_max(bytes_max)),
            Part::Bodies => {
                self.held().saturating_add(bytes) <= bytes_max
                    && take(counter, bytes, Self::body_bytes_max(bytes_max))
            }
        }
    }

    fn shared(&self) -> MutexGuard<'_, HashMap<Id, Weak<SharedAnswer>>> {
        self.0.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts more, unless it would be too much.
fn take(counter: &AtomicUsize, more: usize, max: usize) -> bool {
    let taken = |count: usize| count.checked_add(more).filter(|count| *count <= max);
    counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, taken).is_ok()
}

impl Hold {
    fn new(budget: Option<MemoryBudget>, part: Part, share: Option<ConnectionShare>) -> Self {
        Self { budget, part, share, bytes: 0 }
    }

    /// For nothing.
    fn empty() -> Self {
        Self::new(None, Part::Bodies, None)
    }

    /// For a body that arrives over a connection.
    pub(super) fn of_body(budget: Option<&MemoryBudget>, share: Option<&ConnectionShare>) -> Self {
        Self::new(budget.cloned(), Part::Bodies, share.cloned())
    }

    /// For an answer from the record, if there is room for it.
    pub(super) fn of_replay(budget: Option<&MemoryBudget>, bytes: usize) -> Option<Self> {
        let mut hold = Self::new(budget.cloned(), Part::Replays, None);
        hold.grow_to(bytes).then_some(hold)
    }

    /// For what an execution reads.
    pub(super) fn of_execution(budget: Option<&MemoryBudget>) -> Self {
        Self::new(budget.cloned(), Part::Executions, None)
    }

    /// Counts up to so many bytes. Says whether they may be held.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        let (Some(budget), Some(more)) = (&self.budget, bytes.checked_sub(self.bytes)) else {
            return true;
        };
        if let Some(ConnectionShare(held)) = &self.share {
            let bodies_max = MemoryBudget::body_bytes_max(budget.bytes_max());
            let others = held.load(Ordering::Acquire).saturating_sub(self.bytes);
            if others > 0 && others.saturating_add(bytes) > bodies_max / CONNECTION_PART {
                return false;
            }
        }
        if !budget.take(self.part, more) {
            return false;
        }
        if let Some(ConnectionShare(held)) = &self.share {
            held.fetch_add(more, Ordering::AcqRel);
        }
        self.bytes = bytes;
        true
    }

    /// Lets the bytes count for as long as somebody has them.
    pub(super) fn keep(self, data: Bytes) -> Bytes {
        if self.bytes == 0 {
            return data;
        }
        Bytes::from_owner(Kept { data, _hold: self })
    }

    /// From now on the bytes are an execution's, which is never refused any.
    fn begun(mut self) -> Self {
        let mut begun = Self::of_execution(self.budget.as_ref());
        begun.grow_to(self.bytes);
        self.give_back();
        begun
    }

    fn give_back(&mut self) {
        if let Some(budget) = &self.budget {
            budget.counter(self.part).fetch_sub(self.bytes, Ordering::AcqRel);
        }
        if let Some(ConnectionShare(held)) = &self.share {
            held.fetch_sub(self.bytes, Ordering::AcqRel);
        }
        self.bytes = 0;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl HeldBody {
    pub(super) fn new(data: Bytes, hold: Hold) -> Self {
        Self { data, hold }
    }

    /// The body on its way to the handler.
    pub(super) fn begun(self) -> Bytes {
        self.hold.begun().keep(self.data)
    }

    /// The body as something that several can have.
    pub(super) fn share(&mut self) -> Bytes {
        let hold = std::mem::replace(&mut self.hold, Hold::empty());
        self.data = hold.keep(std::mem::take(&mut self.data));
        self.data.clone()
    }

    /// Gives this copy up for another one, if they are equal.
    pub(super) fn give_up_for(&mut self, other: Bytes) {
        if self.data == other {
            *self = Self::new(other, Hold::empty());
        }
    }
}

impl Drop for ExecutionSlot {
    fn drop(&mut self) {
        self.0.0.executing.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for SharedAnswer {
    fn drop(&mut self) {
        let Some(budget) = &self.hold.budget else { return };
        let mut shared = budget.shared();
        // Meanwhile another copy may have taken its place.
        if shared.get(&self.id).is_some_and(|answer| answer.strong_count() == 0) {
            shared.remove(&self.id);
        }
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrysafe_core::{Key, Scope};

    const MIB: usize = 1 << 20;

    fn id(key: &str) -> Id {
        Id::of(&Scope::anonymous(), &Key::new(key).unwrap().digest())
    }

    fn body(budget: &MemoryBudget, share: Option<&ConnectionShare>) -> Hold {
        Hold::of_body(Some(budget), share)
    }

    #[test]
    fn bodies_may_take_half_and_replays_a_quarter_of_their_own() {
        let budget = MemoryBudget::new(8 * MIB);
        let mut one = body(&budget, None);
        let mut two = body(&budget, None);
        assert!(one.grow_to(3 * MIB) && one.grow_to(2 * MIB), "less is no question");
        assert!(two.grow_to(MIB) && !two.grow_to(MIB + 1));
        assert!(budget.execution_slot().is_some());
        let replays: Vec<_> =
            (0..3).map(|n| budget.replay(id(&format!("k{n}")), vec![n; MIB].into())).collect();
        assert_eq!(replays.iter().flatten().count(), 2);
        assert_eq!(budget.held(), 6 * MIB);
        drop((one, two, replays));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn one_connection_has_a_share_but_its_only_body_may_be_large() {
        let budget = MemoryBudget::new(16 * MIB);
        let greedy = ConnectionShare::default();
        let modest = ConnectionShare::default();
        let mut large = body(&budget, Some(&greedy));
        assert!(large.grow_to(3 * MIB), "alone");
        assert!(!body(&budget, Some(&greedy)).grow_to(1));
        assert!(body(&budget, Some(&modest)).grow_to(MIB));
        drop(large);
        let mut half = body(&budget, Some(&greedy));
        let mut other = body(&budget, Some(&greedy));
        assert!(half.grow_to(MIB / 2) && other.grow_to(MIB / 2) && !other.grow_to(MIB / 2 + 1));
    }

    #[test]
    fn what_has_begun_is_never_refused_and_keeps_others_from_beginning() {
        let budget = MemoryBudget::new(MIB);
        let mut arriving = body(&budget, None);
        assert!(arriving.grow_to(MIB / 2));
        let sent = HeldBody::new(vec![0; MIB / 2].into(), arriving).begun();
        assert!(body(&budget, None).grow_to(MIB / 2), "its half is free again");
        let mut answer = Hold::of_execution(Some(&budget));
        assert!(answer.grow_to(9 * MIB));
        assert!(!body(&budget, None).grow_to(1) && budget.execution_slot().is_none());
        drop((sent, answer));
        let slots: Vec<_> = std::iter::from_fn(|| budget.execution_slot()).collect();
        assert_eq!(slots.len(), MIB / EXECUTION_BYTES);
    }

    #[test]
    fn replays_of_one_record_share_its_answer() {
        let budget = MemoryBudget::new(4 * MIB);
        let copies: Vec<_> =
            (0..100).map(|_| budget.replay(id("k"), vec![7; MIB].into()).unwrap()).collect();
        assert_eq!(budget.held(), MIB);
        assert!(budget.replay(id("k"), vec![8; MIB].into()).is_none(), "another answer");
        drop(copies);
        assert_eq!((budget.held(), budget.shared().len()), (0, 0));
        assert_eq!(budget.replay(id("k"), vec![8; MIB].into()).unwrap().len(), MIB);
    }

    #[test]
    fn bytes_count_until_the_last_slice_is_gone() {
        let budget = MemoryBudget::new(MIB);
        let mut hold = body(&budget, None);
        assert!(hold.grow_to(1_000));
        let mut first = HeldBody::new(vec![1; 1_000].into(), hold);
        let slice = first.share().slice(10..20);
        let mut hold = body(&budget, None);
        assert!(hold.grow_to(1_000));
        let mut second = HeldBody::new(vec![1; 1_000].into(), hold);
        second.give_up_for(first.share());
        assert_eq!(budget.held(), 1_000, "one copy for two who wait");
        drop((first, second));
        assert_eq!(budget.held(), 1_000);
        drop(slice);
        assert_eq!(budget.held(), 0);
    }
}
