//! Does a store survive callers who go away?
//!
//! A future may be dropped at any point, and its write may have been applied or not. Whatever it
//! was, the store goes on and has not half of it.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::samples::*;
use super::stand::Stand;
use crate::record::{Standing, State};
use crate::store::{Filter, Inserted, Query, Store, Swapped};

/// More polls than any store needs for one operation, so that every point is met.
const POLLS: usize = 12;

/// Polls a future this often at the most, then drops it. The answer, if it came.
async fn abandoned<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    struct AtMost<F> {
        polls: usize,
        future: Pin<Box<F>>,
    }

    impl<F: Future> Future for AtMost<F> {
        type Output = Option<F::Output>;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            if self.polls == 0 {
                return Poll::Ready(None);
            }
            self.polls -= 1;
            match self.future.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending if self.polls == 0 => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        }
    }

    AtMost { polls, future: Box::pin(future) }.await
}

/// The record of a dropped insert is there whole, or not at all.
pub(super) async fn a_dropped_insert_is_applied_whole_or_not_at_all(bench: Stand) {
    let store = bench.store();
    for polls in 0..POLLS {
        let key = format!("k{polls}");
        let mut asked = first(&key);
        asked.owner = 100 + polls as u64;
        abandoned(polls, store.insert(asked.clone())).await;
        match insert(&store, first(&key)).await.value {
            Inserted::New(record) => assert_eq!(record.attempts, 1),
            Inserted::Exists(record) => {
                assert_eq!(record, asked.record(record.created_at, record.version));
            }
        }
    }
}

/// So is the write of a dropped swap.
pub(super) async fn a_dropped_swap_is_applied_whole_or_not_at_all(bench: Stand) {
    let store = bench.store();
    for polls in 0..POLLS {
        let begun = new(&store, first(&format!("k{polls}"))).await;
        let write = complete(answer(vec![7; 100_000]));
        abandoned(polls, store.swap(begun.clone(), write.clone())).await;
        // Whether it was applied shows when somebody else asks for the same version.
        let current = match swap(&store, &begun, doubt()).await {
            Swapped::Done(record) => record,
            Swapped::Lost(current) => current.expect("it is not gone"),
        };
        match current.standing() {
            Standing::Completed => {
                let State::Completed { settled_at, .. } = current.state else { unreachable!() };
                assert_eq!(current, write.onto(&begun, settled_at, current.version));
            }
            Standing::Unknown => assert!(current.version > begun.version),
            Standing::InProgress | Standing::FailedRetryable => panic!("{current:?}"),
        }
    }
}

/// A dropped read changes nothing, and a dropped reap takes only what is due.
pub(super) async fn dropped_reads_and_reaps_do_no_harm(bench: Stand) {
    let store = bench.store();
    for n in 0..20 {
        standing(&store, &format!("old{n}"), Standing::Completed).await;
    }
    bench.advance(TTL * 2).await;
    let live = standing(&store, "live", Standing::Completed).await;
    for polls in 0..POLLS {
        abandoned(polls, store.load(live.id)).await;
        let query = Query { filter: Filter::default(), after: None, limit: 3 };
        abandoned(polls, store.scan(query)).await;
        abandoned(polls, store.reap(1)).await;
    }
    while reap(&store, 7).await > 0 {}
    assert_eq!(all(&store, Filter::default(), 10).await, [live]);
}

/// In a race in which most callers go away, there is still one owner at the most.
pub(super) async fn a_race_with_dropped_callers_has_one_winner(bench: Stand) {
    for round in 0..8 {
        let store = bench.store();
        let key = format!("k{round}");
        let answers = race(RACERS, |n| {
            let (store, key) = (store.clone(), key.clone());
            async move {
                let mut asked = first(&key);
                asked.owner = n as u64;
                let polls = if n % 4 == 0 { usize::MAX } else { n % 3 };
                abandoned(polls, store.insert(asked)).await
            }
        })
        .await;
        let current = load(&store, first(&key).id).await.expect("somebody stayed");
        let mut new = 0;
        for answer in answers.into_iter().flatten() {
            match answer.expect("the insert is answered").value {
                Inserted::New(record) => {
                    assert_eq!(record, current);
                    new += 1;
                }
                Inserted::Exists(record) => assert_eq!(record, current),
            }
        }
        assert!(new <= 1, "{new} inserts are new");
    }
}

/// Tasks that are aborted in the midst of everything leave a store that keeps its promises.
pub(super) async fn aborted_tasks_leave_the_store_usable(bench: Stand) {
    let store = bench.store();
    let mut tasks = Vec::new();
    for n in 0..RACERS {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..100 {
                let record = match insert(&store, first(&format!("k{n}-{round}"))).await.value {
                    Inserted::New(record) | Inserted::Exists(record) => record,
                };
                swap(&store, &record, complete(answer("x"))).await;
            }
        }));
    }
    for task in &tasks {
        tokio::task::yield_now().await;
        task.abort();
    }
    for task in tasks {
        if let Err(ended) = task.await {
            assert!(ended.is_cancelled(), "{ended:?}");
        }
    }
    // A write whose task is gone may still land, so a record may move on while it is looked at.
    for record in all(&store, Filter::default(), 100).await {
        let loaded = load(&store, record.id).await.expect("what was there is there");
        assert!(loaded.version >= record.version);
        assert!(matches!(record.standing(), Standing::InProgress | Standing::Completed));
    }
    let begun = new(&store, first("after")).await;
    swapped(&store, &begun, complete(answer("x"))).await;
}
