//! Which events of the inbox are judged again, and which are over?

use std::sync::{MutexGuard, PoisonError};

use retrysafe_core::event;
use retrysafe_core::store::{Cursor, Query, Store, StoreError};

use super::{Webhooks, count_end};
use crate::webhooks::end::EventStanding;
use crate::webhooks::inbox::{Inbox, KeptEvent};
use crate::webhooks::judge::{SearchReach, names_of, unknown};

/// How many waiting events one round looks at for their own sake.
const DUE_MAX: usize = 32;

/// How many waiting events that name an unknown record are judged in one round, and how many that name an unknown effect.
const NAMED_MAX: usize = 64;

/// How many unknown records a round reads in one page, and how many pages.
const PAGE: usize = 256;
const PAGES_MAX: usize = 40;

/// How many events one round ends or deletes.
const ENDED_MAX: usize = 1_000;

/// Where a round has ended, and the next one goes on.
#[derive(Clone, Debug, Default)]
pub(super) struct ReachedPlace {
    /// The page of unknown records whose events come next; none for the first.
    page: Option<Cursor>,
    /// The last event of that page that was judged; 0 before the first.
    event: i64,
    /// The last event that was judged among those of unknown effects; 0 for their beginning.
    effect_event: i64,
}

impl<S: Store> Webhooks<S> {
    /// One round of upkeep: ends events whose time is over, forgets old ones, counts those that wait, and judges those whose subject
    /// may be there by now. It may run in several processes at once.
    ///
    /// # Errors
    ///
    /// The store's. The next round goes on.
    pub async fn round(&self) -> Result<(), StoreError> {
        let Some(inbox) = &self.shared.inbox else { return Ok(()) };
        for provider in inbox.expire(ENDED_MAX).await? {
            if let Some(provider) = self.provider(&provider) {
                count_end(provider, EventStanding::Unmatched);
            }
            tracing::warn!(target: "retrysafe", provider, "webhook_unmatched");
        }
        let (waiting, now) = inbox.stats().await?;
        for provider in &self.shared.providers {
            inbox.reap(&provider.name, provider.keep, ENDED_MAX).await?;
            let here = waiting.iter().find(|counted| *counted.provider == *provider.name);
            let oldest = here.map_or(0, |counted| now.as_ms().saturating_sub(counted.oldest));
            let name = String::from(&*provider.name);
            metrics::gauge!(event::INBOX_WAITING.name, "provider" => name.clone())
                .set(here.map_or(0, |counted| counted.waiting) as f64);
            metrics::gauge!(event::INBOX_OLDEST_SECONDS.name, "provider" => name)
                .set(oldest as f64 / 1_000.0);
        }
        if waiting.is_empty() {
            return Ok(());
        }
        self.judge_named(inbox).await?;
        self.judge_of_effects(inbox).await?;
        // What an event waits for otherwise is looked at ever less often.
        let events = inbox.due(DUE_MAX).await?;
        self.judge_all(events, SearchReach::Direct, &[]).await;
        Ok(())
    }

    /// Judges events that wait for a record which is unknown by now: what is unknown is few as a rule, so events are looked for from there.
    /// A round looks at so many records and judges so many events. The next round goes on where this one ended, also where the store
    /// has failed: nothing at the front holds up what comes after it.
    async fn judge_named(&self, inbox: &Inbox) -> Result<(), StoreError> {
        let ReachedPlace { page: mut after, event: mut last, .. } = self.reached().clone();
        let mut left = NAMED_MAX;
        for _ in 0..PAGES_MAX {
            let query = Query { filter: unknown(), after: after.clone(), limit: PAGE };
            let page = self.shared.engine.store().scan(query).await?.value;
            let names =
                page.records.iter().flat_map(|record| names_of(&self.shared.providers, record));
            let names: Vec<String> = names.collect();
            let events = match names.as_slice() {
                [] => Vec::new(),
                names => inbox.named(names, last, left).await?,
            };
            let next = last_of_full(&events, left);
            left = left.saturating_sub(events.len());
            self.judge_all(events, SearchReach::AllUnknown, &page.records).await;
            // A page that has more events than may be judged is gone on with.
            if next.is_none() {
                after = page.next;
            }
            last = next.unwrap_or(0);
            {
                let mut reached = self.reached();
                reached.page = after.clone();
                reached.event = last;
            }
            if left == 0 || after.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Judges events that wait for an effect which is unknown by now, from where the last round ended.
    async fn judge_of_effects(&self, inbox: &Inbox) -> Result<(), StoreError> {
        let after = self.reached().effect_event;
        let events = inbox.of_effects(after, NAMED_MAX).await?;
        let next = last_of_full(&events, NAMED_MAX).unwrap_or(0);
        self.judge_all(events, SearchReach::AllUnknown, &[]).await;
        self.reached().effect_event = next;
        Ok(())
    }

    fn reached(&self) -> MutexGuard<'_, ReachedPlace> {
        self.shared.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last of these events, if there may be more of their kind.
fn last_of_full(events: &[KeptEvent], most: usize) -> Option<i64> {
    events.last().map(|event| event.id).filter(|_| events.len() >= most)
}
