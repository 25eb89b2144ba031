//! Does only the store's clock decide?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::samples::*;
use super::stand::Stand;
use crate::record::{Standing, State};
use crate::store::{Filter, Query, Store};
use crate::time::Time;

/// One reading from each of the five operations.
async fn readings(store: &impl Store, key: &str) -> Vec<Time> {
    let begun = insert(store, first(key)).await;
    let loaded = store.load(first(key).id).await.expect("the load is answered");
    let record = loaded.value.expect("it is there");
    let touched = store.swap(record, touch()).await.expect("the swap is answered");
    let query = Query { filter: Filter::default(), after: None, limit: 1 };
    let page = store.scan(query).await.expect("the scan is answered");
    let reaped = store.reap(1).await.expect("the reap is answered");
    vec![begun.now, loaded.now, touched.now, page.now, reaped.now]
}

/// Answers carry a clock that does not go back.
pub(super) async fn readings_never_go_back(bench: Stand) {
    let store = bench.store();
    let mut last = Time::default();
    for round in 0..20 {
        for now in readings(&store, &format!("k{round}")).await {
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
        bench.advance(Duration::from_secs(5)).await;
    }
}

/// Nor between tasks: what begins after an answer is not earlier than that answer.
pub(super) async fn readings_never_go_back_between_tasks(bench: Stand) {
    let store = bench.store();
    let latest = Arc::new(AtomicU64::new(0));
    let readers = race(8, |n| {
        let (store, latest) = (store.clone(), Arc::clone(&latest));
        async move {
            for round in 0..20 {
                let before = latest.load(Ordering::SeqCst);
                for now in readings(&store, &format!("k{}", (n + round) % 10)).await {
                    assert!(now.as_ms() >= before, "{now:?} after {before}");
                    latest.fetch_max(now.as_ms(), Ordering::SeqCst);
                }
            }
        }
    });
    readers.await;
}

/// The bench's hand moves the store's clock by at least what was asked.
pub(super) async fn an_advance_moves_the_stores_clock(bench: Stand) {
    let store = bench.store();
    let before = insert(&store, first("k")).await.now;
    for by in [Duration::from_millis(1), Duration::from_secs(1), AGES] {
        let at_least = insert(&store, first("k")).await.now.plus(by);
        bench.advance(by).await;
        assert!(insert(&store, first("k")).await.now >= at_least);
    }
    assert!(before < insert(&store, first("k")).await.now);
}

/// The times in a record lie between the readings before and after its write.
pub(super) async fn a_write_is_stamped_with_the_time_of_the_write(bench: Stand) {
    let store = bench.store();
    let before = insert(&store, first("other")).await.now;
    bench.advance(Duration::from_secs(10)).await;
    let begun = insert(&store, first("k")).await;
    let record = load(&store, first("k").id).await.expect("it is there");
    assert!(before.plus(Duration::from_secs(10)) <= record.created_at);
    assert!(record.created_at <= begun.now);
    bench.advance(Duration::from_secs(10)).await;
    let settled = swapped(&store, &record, complete(answer("x"))).await;
    let State::Completed { settled_at, .. } = settled.state else { panic!("{settled:?}") };
    assert!(record.created_at.plus(Duration::from_secs(10)) <= settled_at);
    assert!(settled_at <= insert(&store, first("k")).await.now);
    assert_eq!(
        settled.timeline.iter().map(|m| m.at).collect::<Vec<_>>(),
        [record.created_at, settled_at]
    );
}

/// Retention is the time of the settle, by the store's clock, and the time to live.
pub(super) async fn a_settled_record_expires_its_ttl_after_the_settle(bench: Stand) {
    let store = bench.store();
    for (key, write) in [("c", complete(answer("x"))), ("f", fail())] {
        let begun = new(&store, first(key)).await;
        bench.advance(LEASE / 2).await;
        let settled = swapped(&store, &begun, write).await;
        let settled_at = settled.timeline.last().expect("it was settled").at;
        assert!(settled_at >= begun.created_at.plus(LEASE / 2));
        assert_eq!(settled.expires_at(), Some(settled_at.plus(TTL)));
    }
}

/// A handler may ask for another time to live; it counts from the settle too.
pub(super) async fn a_settle_may_change_the_ttl(bench: Stand) {
    let store = bench.store();
    let begun = new(&store, first("k")).await;
    let mut write = complete(answer("x"));
    write.ttl = Some(TTL * 24);
    let settled = swapped(&store, &begun, write).await;
    assert_eq!(settled.ttl, TTL * 24);
    bench.advance(TTL * 23).await;
    assert_eq!(existing(&store, first("k")).await, settled);
    bench.advance(TTL * 2).await;
    new(&store, first("k")).await;
}

/// An unknown that is decided on day three is not born expired.
pub(super) async fn retention_counts_from_the_verdict_not_from_the_birth(bench: Stand) {
    let store = bench.store();
    let doubted = standing(&store, "k", Standing::Unknown).await;
    bench.advance(TTL * 72).await;
    let decided = swapped(&store, &doubted, complete(answer("x"))).await;
    bench.advance(TTL / 2).await;
    assert_eq!(existing(&store, first("k")).await, decided);
    assert_eq!(reap(&store, 10).await, 0);
}

/// A lease counts from the write that took it.
pub(super) async fn a_lease_counts_from_its_write(bench: Stand) {
    let store = bench.store();
    let begun = new(&store, first("k")).await;
    assert_eq!(begun.lease_until(), Some(begun.created_at.plus(LEASE)));
    bench.advance(LEASE / 2).await;
    let renewed = swapped(&store, &begun, renew(LEASE)).await;
    assert!(renewed.lease_until() >= Some(begun.created_at.plus(LEASE / 2 + LEASE)));
}

/// Expiry is seen by whoever asks; a load shows the record until it is reaped.
pub(super) async fn an_expired_record_is_loaded_until_it_is_reaped(bench: Stand) {
    let store = bench.store();
    let record = standing(&store, "k", Standing::Completed).await;
    bench.advance(TTL * 2).await;
    assert_eq!(load(&store, record.id).await.as_ref(), Some(&record));
    assert_eq!(reap(&store, 10).await, 1);
    assert_eq!(load(&store, record.id).await, None);
}

/// A record that is kept for no time at all is expired at once, and not an error.
pub(super) async fn a_record_may_be_kept_for_no_time(bench: Stand) {
    let store = bench.store();
    let mut brief = first("k");
    brief.ttl = Duration::ZERO;
    let begun = new(&store, brief).await;
    let settled = swapped(&store, &begun, complete(answer("x"))).await;
    let again = new(&store, first("k")).await;
    assert!(again.version > settled.version);
}

/// Nor is a long retention cut or wrapped round.
pub(super) async fn a_record_may_be_kept_for_a_century(bench: Stand) {
    let store = bench.store();
    let mut long = first("k");
    long.ttl = AGES * 10;
    let begun = new(&store, long.clone()).await;
    let settled = swapped(&store, &begun, complete(answer("x"))).await;
    assert_eq!(settled.ttl, AGES * 10);
    bench.advance(AGES).await;
    assert_eq!(reap(&store, 10).await, 0);
    assert_eq!(existing(&store, long).await, settled);
}

/// A store decides about expiry with the very reading that it answers with.
pub(super) async fn an_insert_agrees_with_its_own_reading(bench: Stand) {
    let store = bench.store();
    let mut brief = first("k");
    brief.ttl = Duration::from_millis(20);
    let mut expires_at: Option<Time> = None;
    for _ in 0..200 {
        let answer = insert(&store, brief.clone()).await;
        match answer.value {
            crate::store::Inserted::New(record) => {
                assert!(expires_at.is_none_or(|at| at <= answer.now), "gone at {:?}", answer.now);
                let settled = swapped(&store, &record, complete(answer_of(&record))).await;
                expires_at = settled.expires_at();
            }
            crate::store::Inserted::Exists(record) => {
                assert!(record.expires_at() > Some(answer.now), "kept at {:?}", answer.now);
            }
        }
        bench.advance(Duration::from_millis(3)).await;
    }
}

fn answer_of(record: &crate::record::Record) -> crate::record::Answer {
    answer(record.version.to_string())
}
