//! How does a duplicate wait for the running request?
//!
//! Where the request runs in this process its end wakes the duplicate. Elsewhere the store may hint at a
//! change; in any case the duplicate looks at the record again after a while. It begins once more only
//! when the record has changed or its lease is over. A waiter never touches the record.

use std::time::Duration;

use retrysafe_core::execution::Patience;
use retrysafe_core::record::{Record, State};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{ChangeHint, LoadedUnless, Store};
use retrysafe_core::time::Time;

use super::context::RequestContext;
use super::memory::HeldBody;
use super::running::{Place, WaitSlot};

/// One duplicate that waits, over all its tries.
#[derive(Debug)]
pub(super) struct Waiting {
    patience: Patience,
    /// Kept between two looks, so that nobody who came later gets it.
    place: Option<Place>,
    known: Option<KnownRun>,
    hint: Option<ChangeHint>,
}

/// The execution that was running at the last look.
#[derive(Clone, Copy, Debug)]
struct KnownRun {
    version: u64,
    lease_until: Time,
}

impl Waiting {
    /// A duplicate that waits for at most so long.
    pub(super) fn new(now: Duration, wait_max: Duration) -> Self {
        Self { patience: Patience::new(now, wait_max), place: None, known: None, hint: None }
    }

    /// Waits for the request that somebody else executes. Says whether to begin once more.
    pub(super) async fn wait<S: Store>(
        &mut self,
        context: &RequestContext<S>,
        id: Id,
        body: &mut HeldBody,
    ) -> bool {
        let waited = context.shared.drain.unless_given_up(self.end_of_run(context, id, body)).await;
        waited.unwrap_or(false)
    }

    async fn end_of_run<S: Store>(
        &mut self,
        context: &RequestContext<S>,
        id: Id,
        body: &mut HeldBody,
    ) -> bool {
        loop {
            let Some(until) = self.patience.wait_until(context.now()) else { return false };
            // It may have begun here a moment before this process knew of it. Whoever waits here is
            // woken, and shares one body with the others.
            self.place.take_if(|_| context.shared.running.elapsed(id).is_some());
            if self.place.is_none() {
                match context.wait_slot(id, body) {
                    WaitSlot::Here(waiter) => {
                        let has_ended = waiter.until(context.moment(until)).await;
                        if has_ended {
                            self.patience.woken();
                        }
                        return has_ended;
                    }
                    WaitSlot::Elsewhere(free) => self.place = Some(free),
                    WaitSlot::Full => return false,
                }
            }
            if self.has_ended(context, id).await {
                return true;
            }
        }
    }

    /// Waits for a hint or for a while, and then looks whether the record still shows a run.
    async fn has_ended<S: Store>(&mut self, context: &RequestContext<S>, id: Id) -> bool {
        if self.known.is_none() && self.look(context, id).await == Some(true) {
            return true;
        }
        let pause = self.patience.look_again(context.now());
        match self.hint.take() {
            // Either may come first; both lead to another look.
            Some(hint) => drop(tokio::time::timeout(pause, hint).await),
            None => tokio::time::sleep(pause).await,
        }
        // The begin decides what a store that is away means on this route.
        self.look(context, id).await.unwrap_or(true)
    }

    /// Whether the record shows no run any more. `None` if the store failed.
    async fn look<S: Store>(&mut self, context: &RequestContext<S>, id: Id) -> Option<bool> {
        let store = context.shared.engine.store();
        // Asked for before the look, so that no change in between is missed.
        self.hint = store.change_hint(id);
        let version = self.known.map_or(0, |known| known.version);
        let looked = store.load_unless(id, version).await.ok()?;
        match looked.value {
            LoadedUnless::AsKnown => {}
            // A run whose lease was renewed, or a new one, is waited for as well.
            LoadedUnless::Changed(record) => self.known = record.and_then(KnownRun::of),
        }
        Some(self.known.is_none_or(|known| known.lease_until <= looked.now))
    }
}

impl KnownRun {
    fn of(record: Record) -> Option<Self> {
        match record.state {
            State::InProgress { lease_until, .. } => {
                Some(Self { version: record.version, lease_until })
            }
            State::Completed { .. } | State::FailedRetryable { .. } | State::Unknown { .. } => None,
        }
    }
}

impl<S: Store> RequestContext<S> {
    /// A place to wait for a running request. All who wait share one copy of its body.
    fn wait_slot(&self, id: Id, body: &mut HeldBody) -> WaitSlot {
        let per_key_max = self.settings.waiters_per_key_max;
        let slot = self.shared.running.wait(id, per_key_max, self.settings.waiters_max, body);
        if let WaitSlot::Here(waiter) = &slot {
            body.give_up_for(waiter.body());
        }
        slot
    }
}
