//! The worker's loop over a store that does what the test says.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::outbox::store::{
    ClaimedEffect, EffectCount, EffectStore, EffectStoreError, Held, MarkWord, MarkedEffect,
    SweptEffects, ToMark, Told,
};
use crate::outbox::{Delivered, DeliveryEnd, Receiver, Worker};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Longer than any test takes by the runtime's clock, which is turned on when everybody waits.
const PATIENCE: Duration = Duration::from_secs(300);

/// When the end of a delivery is heard.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Hearing {
    /// After whoever is ready to run had a turn.
    #[default]
    Soon,
    /// Once something is claimed meanwhile.
    WithAClaim,
    /// The server refuses to answer.
    Never,
    /// The server takes longer than anybody waits.
    Late,
}

#[derive(Default)]
struct Table {
    ready: VecDeque<i64>,
    /// The first is delivered after the second.
    lane: Option<(i64, i64)>,
    hearing: Hearing,
    claimed: Vec<i64>,
    finished: Vec<i64>,
    finishes_under_way: usize,
    claims_beside_a_finish: usize,
}

#[derive(Clone, Default)]
struct ScriptedStore {
    table: Arc<Mutex<Table>>,
    claim_came: Arc<Notify>,
    something_finished: Arc<Notify>,
}

impl ScriptedStore {
    fn with(ready: impl IntoIterator<Item = i64>, hearing: Hearing) -> Self {
        let store = Self::default();
        store.table().ready = ready.into_iter().collect();
        store.table().hearing = hearing;
        store
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap()
    }

    async fn until_finished(&self, effects: usize) {
        let all = async {
            while self.table().finished.len() < effects {
                self.something_finished.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("all of them end");
    }
}

impl EffectStore for ScriptedStore {
    async fn claim(
        &self,
        _: &str,
        most: usize,
        _: Duration,
    ) -> Result<Vec<ClaimedEffect>, EffectStoreError> {
        let mut table = self.table();
        table.claims_beside_a_finish += usize::from(table.finishes_under_way > 0);
        self.claim_came.notify_one();
        let most = most.min(table.ready.len());
        let ids: Vec<i64> = table.ready.drain(..most).collect();
        table.claimed.extend(&ids);
        let claimed = |id| ClaimedEffect {
            held: Held { id, fence: 1 },
            key: id.to_string().into(),
            destination: None,
            content_type: None,
            payload: Bytes::new(),
            failures: 0,
            was_sent: false,
            is_suspect: false,
        };
        Ok(ids.into_iter().map(claimed).collect())
    }

    async fn mark(
        &self,
        to_mark: &[ToMark],
        _: Option<Duration>,
    ) -> Result<Vec<MarkedEffect>, EffectStoreError> {
        let marked = |to_mark: &ToMark| MarkedEffect {
            id: to_mark.held.id,
            word: MarkWord::Sendable,
            lease_left: DAY,
            resend_left: Some(DAY),
        };
        Ok(to_mark.iter().map(marked).collect())
    }

    async fn renew(&self, _: &[Held], _: Duration) -> Result<(), EffectStoreError> {
        Ok(())
    }

    async fn hand_back(&self, _: &[Held]) -> Result<Vec<i64>, EffectStoreError> {
        Ok(Vec::new())
    }

    async fn finish(&self, told: &[Told], _: u32) -> Result<Vec<i64>, EffectStoreError> {
        let hearing = self.table().hearing;
        let claims_before = {
            let mut table = self.table();
            table.finishes_under_way += 1;
            table.claims_beside_a_finish
        };
        match hearing {
            Hearing::Soon => tokio::task::yield_now().await,
            Hearing::WithAClaim => {
                while self.table().claims_beside_a_finish == claims_before {
                    self.claim_came.notified().await;
                }
            }
            Hearing::Late => std::future::pending().await,
            Hearing::Never => {
                self.table().finishes_under_way -= 1;
                return Err(EffectStoreError::NoAnswer("the test says so".into()));
            }
        }
        let mut table = self.table();
        table.finishes_under_way -= 1;
        for told in told {
            table.finished.push(told.held.id);
            if let Some((next, _)) = table.lane.take_if(|(_, head)| *head == told.held.id) {
                table.ready.push_back(next);
            }
        }
        self.something_finished.notify_one();
        Ok(Vec::new())
    }

    async fn sweep(&self, _: u32, _: usize) -> Result<SweptEffects, EffectStoreError> {
        Ok(SweptEffects::default())
    }

    async fn sweep_lanes(
        &self,
        _: Option<&str>,
        _: usize,
    ) -> Result<Option<String>, EffectStoreError> {
        Ok(None)
    }

    async fn turn_days(&self, _: i32) -> Result<(), EffectStoreError> {
        Ok(())
    }

    async fn count(&self) -> Result<Vec<EffectCount>, EffectStoreError> {
        Ok(Vec::new())
    }

    async fn listen(&self, _: &Notify) -> Result<(), EffectStoreError> {
        std::future::pending().await
    }
}

fn two_at_once() -> Receiver {
    Receiver::remembers_keys_for(DAY).at_once(2)
}

fn delivered() -> DeliveryEnd {
    DeliveryEnd::Delivered(Delivered::known_as("done"))
}

#[tokio::test(start_paused = true)]
async fn the_next_batch_is_claimed_while_the_server_is_told_of_the_last_one() {
    // The server hears nothing unless it is asked for more meanwhile. A loop that asks one thing after the other would wait in vain.
    let store = ScriptedStore::with(1..=8, Hearing::WithAClaim);
    let worker = Worker::simulated(store.clone(), 1);
    let working = worker.deliver("mail", two_at_once(), async |_| Ok(delivered())).start();
    let begun = Instant::now();
    store.until_finished(8).await;
    assert_eq!(begun.elapsed(), Duration::ZERO, "nothing was given up and told again");
    assert_eq!(store.table().finished, (1..=8).collect::<Vec<_>>());
    drop(working);
}

#[tokio::test(start_paused = true)]
async fn what_an_end_sets_free_is_claimed_without_a_pause() {
    // The claim that is made beside the end of the head comes too early for the next of its lane.
    let store = ScriptedStore::with([1, 2], Hearing::Soon);
    store.table().lane = Some((3, 1));
    let worker = Worker::simulated(store.clone(), 1);
    let working = worker.deliver("mail", two_at_once(), async |_| Ok(delivered())).start();
    let begun = Instant::now();
    store.until_finished(3).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(store.table().claims_beside_a_finish > 0, "the test is about such a claim");
    drop(working);
}

#[tokio::test(start_paused = true)]
async fn no_more_are_delivered_at_once_than_was_said() {
    let store = ScriptedStore::with(1..=20, Hearing::Soon);
    let now = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let counts = (Arc::clone(&now), Arc::clone(&most));
    let deliver = move |_| {
        let (now, most) = counts.clone();
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(delivered())
        }
    };
    let working =
        Worker::simulated(store.clone(), 1).deliver("mail", two_at_once(), deliver).start();
    store.until_finished(20).await;
    assert_eq!(most.load(Ordering::SeqCst), 2);
    drop(working);
}

#[tokio::test(start_paused = true)]
async fn nothing_more_is_claimed_while_the_server_does_not_hear() {
    let store = ScriptedStore::with(1..=20, Hearing::Never);
    let sent = Arc::new(Semaphore::new(0));
    let counted = Arc::clone(&sent);
    let deliver = move |_| {
        counted.add_permits(1);
        std::future::ready(Ok(delivered()))
    };
    let working =
        Worker::simulated(store.clone(), 1).deliver("mail", two_at_once(), deliver).start();
    tokio::time::sleep(PATIENCE).await;
    // The batch whose ends were not heard, and the one that was claimed meanwhile.
    assert_eq!(store.table().claimed, [1, 2, 3, 4]);
    assert_eq!(sent.available_permits(), 4);
    drop(working);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_sent_when_its_marks_stand_whatever_the_server_hears_of_the_last_one() {
    let store = ScriptedStore::with(1..=4, Hearing::Late);
    let sent = Arc::new(Semaphore::new(0));
    let counted = Arc::clone(&sent);
    let deliver = move |_| {
        counted.add_permits(1);
        std::future::ready(Ok(delivered()))
    };
    let begun = Instant::now();
    let working =
        Worker::simulated(store.clone(), 1).deliver("mail", two_at_once(), deliver).start();
    // Two batches of two.
    drop(sent.acquire_many(4).await.unwrap());
    assert_eq!(begun.elapsed(), Duration::ZERO);
    drop(working);
}
