//! Does whoever waits for a record learn that it has changed?

use std::time::Duration;

use super::samples::*;
use super::stand::{AnyStore, Stand};
use crate::record::{Record, Standing};
use crate::scope::Id;
use crate::store::{LoadedUnless, Store};

/// How long a hint may take on a busy machine. A store that gives hints at all gives them at once.
const HINT_MAX: Duration = Duration::from_secs(10);

async fn load_unless(store: &AnyStore, id: Id, version: u64) -> LoadedUnless {
    store.load_unless(id, version).await.expect("it is answered").value
}

/// The version that is there is known; any other one is answered with the record.
pub(super) async fn a_load_unless_it_changed_says_what_is_known(bench: Stand) {
    let store = bench.store();
    let absent = first("absent").id;
    assert_eq!(load_unless(&store, absent, 0).await, LoadedUnless::Changed(None));
    for (n, how) in Standing::ALL.into_iter().enumerate() {
        let record = standing(&store, &format!("k{n}"), how).await;
        assert_eq!(load_unless(&store, record.id, record.version).await, LoadedUnless::AsKnown);
        for other in [0, record.version - 1, record.version + 1, u64::MAX] {
            let changed = LoadedUnless::Changed(Some(record.clone()));
            assert_eq!(load_unless(&store, record.id, other).await, changed, "{how:?}");
        }
        let touched = swapped(&store, &record, touch()).await;
        let changed = LoadedUnless::Changed(Some(touched.clone()));
        assert_eq!(load_unless(&store, record.id, record.version).await, changed);
        assert_eq!(load_unless(&store, record.id, touched.version).await, LoadedUnless::AsKnown);
    }
}

/// What is gone is not as it was known, nor is what came after it.
pub(super) async fn a_load_unless_it_changed_sees_another_generation(bench: Stand) {
    let store = bench.store();
    let known = standing(&store, "k", Standing::Completed).await;
    bench.advance(TTL * 2).await;
    assert_eq!(reap(&store, 10).await, 1);
    assert_eq!(load_unless(&store, known.id, known.version).await, LoadedUnless::Changed(None));
    let next = standing(&store, "k", Standing::Completed).await;
    let changed = LoadedUnless::Changed(Some(next));
    assert_eq!(load_unless(&store, known.id, known.version).await, changed);
}

/// A waiter that always names the version it has seen last misses no end.
pub(super) async fn whoever_waits_for_a_change_sees_it(bench: Stand) {
    let store = bench.store();
    let begun = new(&store, first("k")).await;
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let (store, mut seen) = (store.clone(), begun.clone());
            tokio::spawn(async move {
                while seen.standing() != Standing::Completed {
                    match load_unless(&store, seen.id, seen.version).await {
                        LoadedUnless::AsKnown => tokio::task::yield_now().await,
                        LoadedUnless::Changed(record) => {
                            let record = record.expect("it is not gone");
                            assert!(record.version > seen.version, "it has changed");
                            seen = record;
                        }
                    }
                }
            })
        })
        .collect();
    let mut record = begun;
    for n in 1..10 {
        record = swapped(&store, &record, renew(LEASE * n)).await;
        tokio::task::yield_now().await;
    }
    swapped(&store, &record, complete(answer("x"))).await;
    for waiter in waiters {
        waiter.await.expect("it sees the end");
    }
}

/// Where a store gives hints, one that was asked for before a write comes after it: for every kind
/// of write, to all who wait, and to nobody who waits for another record in vain.
pub(super) async fn a_hint_comes_after_a_write(bench: Stand) {
    let store = bench.store();
    let id = first("k").id;
    let hints = || [store.change_hint(id), store.change_hint(id)];
    let come = async |hints: [Option<crate::store::ChangeHint>; 2]| {
        for hint in hints.into_iter().flatten() {
            tokio::time::timeout(HINT_MAX, hint).await.expect("the hint comes");
        }
    };
    let waiting = hints();
    let mut record = new(&store, first("k")).await;
    come(waiting).await;
    for write in [renew(LEASE), doubt(), look_up(), complete(answer("x"))] {
        let waiting = hints();
        record = swapped(&store, &record, write).await;
        come(waiting).await;
    }
    let waiting = hints();
    let writer = {
        let (store, record) = (store.clone(), record.clone());
        tokio::spawn(async move { swapped(&store, &record, touch()).await })
    };
    come(waiting).await;
    writer.await.expect("it is written");
}

/// Waiters come and go; a write does not care.
pub(super) async fn a_hint_that_nobody_waits_for_does_no_harm(bench: Stand) {
    let store = bench.store();
    let mut record = new(&store, first("k")).await;
    for _ in 0..10 {
        let forgotten = store.change_hint(record.id);
        let waiting = store.change_hint(record.id);
        drop(forgotten);
        record = swapped(&store, &record, touch()).await;
        if let Some(hint) = waiting {
            tokio::time::timeout(HINT_MAX, hint).await.expect("the hint comes");
        }
    }
}

/// Where a store vouches for records, it does so for the version that is there and for no other one: not for a former one, not
/// for one to come, not after the record was reaped, not when its name is used anew. Its clock is the store's.
pub(super) async fn a_voucher_knows_what_is_there_and_nothing_else(bench: Stand) {
    let store = bench.store();
    let Some(voucher) = store.voucher() else { return };
    let absent = first("absent").id;
    assert_eq!(voucher.vouch(absent, 0), None);
    assert_eq!(voucher.at_hand(absent), None);
    let vouched = async |record: &Record| {
        let before = store.load(record.id).await.expect("it is answered").now;
        let now = voucher.vouch(record.id, record.version).expect("it is there");
        let after = store.load(record.id).await.expect("it is answered").now;
        assert!(before <= now && now <= after, "{before:?} {now:?} {after:?}");
        assert_eq!(voucher.at_hand(record.id).as_ref(), Some(record));
        for other in [0, record.version - 1, record.version + 1, u64::MAX] {
            assert_eq!(voucher.vouch(record.id, other), None);
        }
    };
    for (n, how) in Standing::ALL.into_iter().enumerate() {
        let record = standing(&store, &format!("k{n}"), how).await;
        vouched(&record).await;
        let touched = swapped(&store, &record, touch()).await;
        assert_eq!(voucher.vouch(record.id, record.version), None, "{how:?}");
        vouched(&touched).await;
    }
    let known = standing(&store, "k", Standing::Completed).await;
    vouched(&known).await;
    bench.advance(TTL * 2).await;
    // Whether it has expired is for the machine to say, by the clock.
    assert!(voucher.vouch(known.id, known.version).is_none_or(|now| known.is_expired(now)));
    while reap(&store, 10).await > 0 {}
    assert_eq!(voucher.vouch(known.id, known.version), None);
    assert_eq!(voucher.at_hand(known.id), None);
    let next = standing(&store, "k", Standing::Completed).await;
    assert_eq!(voucher.vouch(known.id, known.version), None);
    vouched(&next).await;
}
