//! Does the reaper take what is expired, and nothing else?

use super::samples::*;
use super::stand::Stand;
use crate::record::{Becomes, Happened, Standing, Write};
use crate::store::{Filter, Inserted, Swapped};

/// Both settled states end.
pub(super) async fn reap_takes_expired_records_of_both_settled_states(bench: Stand) {
    let store = bench.store();
    let completed = standing(&store, "c", Standing::Completed).await;
    let failed = standing(&store, "f", Standing::FailedRetryable).await;
    bench.advance(TTL * 2).await;
    assert_eq!(reap(&store, 10).await, 2);
    assert_eq!(load(&store, completed.id).await, None);
    assert_eq!(load(&store, failed.id).await, None);
    assert_eq!(all(&store, Filter::default(), 10).await, []);
    assert_eq!(reap(&store, 10).await, 0);
}

/// What is kept is kept.
pub(super) async fn reap_leaves_live_records(bench: Stand) {
    let store = bench.store();
    let old = standing(&store, "old", Standing::Completed).await;
    bench.advance(TTL * 2).await;
    let live = standing(&store, "live", Standing::Completed).await;
    assert_eq!(reap(&store, 10).await, 1);
    assert_eq!(load(&store, old.id).await, None);
    assert_eq!(load(&store, live.id).await, Some(live));
}

/// A forgotten reservation or doubt would let the request run again.
pub(super) async fn reap_never_touches_in_progress_and_unknown_at_any_age(bench: Stand) {
    let store = bench.store();
    let running = standing(&store, "i", Standing::InProgress).await;
    let unknown = standing(&store, "u", Standing::Unknown).await;
    bench.advance(AGES).await;
    assert_eq!(reap(&store, 1_000).await, 0);
    assert_eq!(load(&store, running.id).await, Some(running));
    assert_eq!(load(&store, unknown.id).await, Some(unknown));
}

/// The caller says how much work one reap may be.
pub(super) async fn reap_honours_its_limit(bench: Stand) {
    let store = bench.store();
    for n in 0..10 {
        standing(&store, &format!("k{n}"), Standing::Completed).await;
    }
    bench.advance(TTL * 2).await;
    for (limit, expected) in [(0, 0), (3, 3), (1, 1), (4, 4), (9, 2), (9, 0)] {
        assert_eq!(reap(&store, limit).await, expected, "of a limit of {limit}");
    }
}

/// Several reapers share the work, and each record is counted by one of them.
pub(super) async fn concurrent_reapers_count_each_record_once(bench: Stand) {
    const RECORDS: usize = 100;
    let store = bench.store();
    for n in 0..RECORDS {
        standing(&store, &format!("k{n}"), Standing::FailedRetryable).await;
    }
    bench.advance(TTL * 2).await;
    let counts = race(8, |_| {
        let store = store.clone();
        async move {
            let mut count = 0;
            loop {
                match reap(&store, 3).await {
                    0 => break count,
                    more => count += more,
                }
            }
        }
    })
    .await;
    assert_eq!(counts.into_iter().sum::<usize>(), RECORDS);
}

/// A new generation that begins while the old one is reaped stays.
pub(super) async fn reap_beside_inserts_never_takes_a_new_generation(bench: Stand) {
    const RECORDS: usize = 100;
    let store = bench.store();
    for n in 0..RECORDS {
        standing(&store, &format!("k{n}"), Standing::Completed).await;
    }
    bench.advance(TTL * 2).await;
    let begun = race(2, |task| {
        let store = store.clone();
        async move {
            let mut begun = Vec::new();
            if task == 0 {
                for _ in 0..RECORDS {
                    reap(&store, 1).await;
                }
            } else {
                for n in 0..RECORDS {
                    begun.push(new(&store, first(&format!("k{n}"))).await);
                }
            }
            begun
        }
    })
    .await;
    for record in begun.into_iter().flatten() {
        assert_eq!(load(&store, record.id).await, Some(record));
    }
}

/// A reader beside the reaper gets the whole record or none.
pub(super) async fn reap_beside_loads_shows_all_or_nothing(bench: Stand) {
    let store = bench.store();
    let mut records = Vec::new();
    for n in 0..50 {
        records.push(standing(&store, &format!("k{n}"), Standing::Completed).await);
    }
    bench.advance(TTL * 2).await;
    race(2, |task| {
        let (store, records) = (store.clone(), records.clone());
        async move {
            if task == 0 {
                while reap(&store, 5).await > 0 {}
            } else {
                for record in records.into_iter().rev() {
                    if let Some(found) = load(&store, record.id).await {
                        assert_eq!(found, record);
                    }
                }
            }
        }
    })
    .await;
}

/// A begin that wins an expired record just before the reaper keeps it.
pub(super) async fn reap_beside_a_begin_never_takes_what_is_running(bench: Stand) {
    let store = bench.store();
    let mut old = Vec::new();
    for n in 0..50 {
        old.push(standing(&store, &format!("k{n}"), Standing::FailedRetryable).await);
    }
    bench.advance(TTL * 2).await;
    let begun = race(2, |task| {
        let (store, old) = (store.clone(), old.clone());
        async move {
            let mut begun = Vec::new();
            if task == 0 {
                while reap(&store, 2).await > 0 {}
            } else {
                for record in old.iter().rev() {
                    match swap(&store, record, take_over(2)).await {
                        Swapped::Done(record) => begun.push(record),
                        Swapped::Lost(current) => assert_eq!(current, None),
                    }
                }
            }
            begun
        }
    })
    .await;
    for record in begun.into_iter().flatten() {
        assert_eq!(load(&store, record.id).await, Some(record));
    }
}

/// After reaping a key is as if it had never been there.
pub(super) async fn a_reaped_key_may_be_used_again(bench: Stand) {
    let store = bench.store();
    standing(&store, "k", Standing::Completed).await;
    bench.advance(TTL * 2).await;
    assert_eq!(reap(&store, 10).await, 1);
    let mut again = first("k");
    again.fingerprint = print(2);
    let record = new(&store, again).await;
    assert_eq!((record.attempts, record.fingerprint), (1, print(2)));
    assert_eq!(record.timeline.len(), 1);
}

/// A record that replaced an expired one is reaped at its own time, not at the old one's.
pub(super) async fn a_new_generation_is_reaped_at_its_own_time(bench: Stand) {
    let store = bench.store();
    standing(&store, "k", Standing::Completed).await;
    bench.advance(TTL * 2).await;
    let mut again = first("k");
    again.ttl = TTL * 100;
    let begun = new(&store, again).await;
    let settled = swapped(&store, &begun, complete(answer("x"))).await;
    bench.advance(TTL * 50).await;
    assert_eq!(reap(&store, 10).await, 0);
    assert_eq!(load(&store, begun.id).await, Some(settled));
    bench.advance(TTL * 60).await;
    assert_eq!(reap(&store, 10).await, 1);
}

/// A record that was taken up again after it failed has no expiry any more.
pub(super) async fn a_record_begun_again_is_not_reaped_at_its_former_expiry(bench: Stand) {
    let store = bench.store();
    let failed = standing(&store, "k", Standing::FailedRetryable).await;
    let begun = swapped(&store, &failed, take_over(2)).await;
    bench.advance(TTL * 2).await;
    assert_eq!(reap(&store, 10).await, 0);
    assert_eq!(load(&store, begun.id).await, Some(begun));
}

/// An operator may end a retention early; then it is over for the reaper too.
pub(super) async fn a_record_whose_retention_was_ended_is_reaped(bench: Stand) {
    let store = bench.store();
    let settled = standing(&store, "k", Standing::Completed).await;
    let what = Some(Happened::Expired("asked for".into()));
    let write = Write { becomes: Becomes::Expired, new_fence: false, what, ttl: None };
    swapped(&store, &settled, write).await;
    assert_eq!(reap(&store, 10).await, 1);
    assert_eq!(load(&store, settled.id).await, None);
}

/// Many records end in many small steps, and none is left behind.
pub(super) async fn reap_gets_through_a_backlog(bench: Stand) {
    const RECORDS: usize = 600;
    let store = bench.store();
    race(RACERS, |task| {
        let store = store.clone();
        async move {
            for n in (task..RECORDS).step_by(RACERS) {
                standing(&store, &format!("k{n}"), Standing::FailedRetryable).await;
            }
        }
    })
    .await;
    let kept = standing(&store, "kept", Standing::Unknown).await;
    bench.advance(TTL * 2).await;
    let mut reaped = 0;
    while reaped < RECORDS {
        let more = reap(&store, 97).await;
        assert!(more > 0 && more <= 97, "{more} after {reaped}");
        reaped += more;
    }
    assert_eq!(reap(&store, 97).await, 0);
    assert_eq!(all(&store, Filter::default(), 100).await, [kept]);
}

/// What an insert replaced is not there for the reaper to count.
pub(super) async fn a_replaced_record_is_not_reaped_as_well(bench: Stand) {
    let store = bench.store();
    standing(&store, "k", Standing::Completed).await;
    bench.advance(TTL * 2).await;
    let answer = insert(&store, first("k")).await.value;
    assert!(matches!(answer, Inserted::New(_)), "{answer:?}");
    assert_eq!(reap(&store, 10).await, 0);
}
