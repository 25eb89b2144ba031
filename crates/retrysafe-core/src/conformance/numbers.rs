//! Do versions and fences rise for ever?
//!
//! A number that occurs twice in the life of a key would let a writer of an older generation win.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::samples::*;
use super::stand::Stand;
use crate::record::{Fence, Standing};
use crate::store::Swapped;

/// Every write of a record raises its version.
pub(super) async fn versions_rise_with_every_write(bench: Stand) {
    let store = bench.store();
    let mut record = standing(&store, "k", Standing::Unknown).await;
    for _ in 0..50 {
        let next = swapped(&store, &record, look_up()).await;
        assert!(next.version > record.version, "{} after {}", next.version, record.version);
        record = next;
    }
}

/// Numbers come from a sequence, not from the clock, which may stand still.
pub(super) async fn numbers_rise_while_no_time_passes(bench: Stand) {
    let store = bench.store();
    let mut record = new(&store, first("k")).await;
    for owner in 0..50 {
        let failed = swapped(&store, &record, fail()).await;
        let again = swapped(&store, &failed, take_over(owner)).await;
        assert!(failed.version > record.version && again.version > failed.version);
        assert!(again.fence > record.fence);
        record = again;
    }
}

/// The next generation's numbers are higher when it replaces the expired record.
pub(super) async fn numbers_rise_across_expiry(bench: Stand) {
    let store = bench.store();
    let mut last = 0;
    for owner in 0..10 {
        let mut first = first("k");
        first.owner = owner;
        let begun = new(&store, first).await;
        assert!(begun.version > last, "{} after {last}", begun.version);
        assert_eq!(begun.fence, Fence(begun.version));
        last = swapped(&store, &begun, complete(answer("x"))).await.version;
        bench.advance(TTL * 2).await;
    }
}

/// And when the record was reaped, so that nothing of it is left to be higher than.
pub(super) async fn numbers_rise_across_reaping(bench: Stand) {
    let store = bench.store();
    let mut last = 0;
    for owner in 0..10 {
        let mut first = first("k");
        first.owner = owner;
        let begun = new(&store, first).await;
        assert!(begun.version > last, "{} after {last}", begun.version);
        assert_eq!(begun.fence, Fence(begun.version));
        last = swapped(&store, &begun, complete(answer("x"))).await.version;
        bench.advance(TTL * 2).await;
        assert_eq!(reap(&store, 10).await, 1);
    }
}

/// Whoever looks while others write never sees an older version after a newer one.
pub(super) async fn a_reader_never_sees_a_version_go_back(bench: Stand) {
    let store = bench.store();
    let record = standing(&store, "k", Standing::Unknown).await;
    let written = Arc::new(AtomicBool::new(false));
    let reader = {
        let (store, written, id) = (store.clone(), Arc::clone(&written), record.id);
        tokio::spawn(async move {
            let mut seen = 0;
            while !written.load(Ordering::SeqCst) {
                let version = load(&store, id).await.expect("it is there").version;
                assert!(version >= seen, "{version} after {seen}");
                seen = version;
                tokio::task::yield_now().await;
            }
        })
    };
    race(8, |_| {
        let (store, mut from) = (store.clone(), record.clone());
        async move {
            for _ in 0..25 {
                from = match swap(&store, &from, look_up()).await {
                    Swapped::Done(record) => record,
                    Swapped::Lost(current) => current.expect("it is not gone"),
                };
            }
        }
    })
    .await;
    written.store(true, Ordering::SeqCst);
    reader.await.expect("versions rise");
}

/// Concurrent writes of one record draw different numbers, and rise in the order of the writes.
pub(super) async fn versions_rise_in_the_order_of_the_writes(bench: Stand) {
    let store = bench.store();
    let record = standing(&store, "k", Standing::Unknown).await;
    let chains = race(8, |_| {
        let (store, mut from) = (store.clone(), record.clone());
        async move {
            let mut won = Vec::new();
            while won.len() < 10 {
                from = match swap(&store, &from, look_up()).await {
                    Swapped::Done(next) => {
                        won.push((from.version, next.version));
                        next
                    }
                    Swapped::Lost(current) => current.expect("it is not gone"),
                };
            }
            won
        }
    })
    .await;
    let mut steps: Vec<(u64, u64)> = chains.into_iter().flatten().collect();
    steps.sort_unstable();
    let mut last = record.version;
    for (from, to) in steps {
        assert_eq!(from, last, "each write replaced the one before it");
        assert!(to > from);
        last = to;
    }
}
