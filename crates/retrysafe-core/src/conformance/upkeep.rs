//! Does nothing stay stuck, and nothing grow without bound?

use super::samples::*;
use super::stand::Stand;
use super::verbs::settled;
use crate::engine::{Begun, Engine, Swept};
use crate::record::{Doubt, Happened, MOMENTS_MAX, Outcome, Standing};
use crate::store::Filter;

/// Every ended lease becomes unknown, and nothing else does.
pub(super) async fn a_sweep_doubts_ended_leases_only(bench: Stand) {
    let engine = Engine::new(bench.store());
    for n in 0..10 {
        let _lease = Request::new(&format!("ended{n}")).execute(&engine, 1).await;
    }
    let settled_one = Request::new("settled");
    let lease = settled_one.execute(&engine, 1).await;
    let record = settled(&engine, lease, &done("x")).await;
    bench.advance(LEASE * 2).await;
    let running = Request::new("running");
    let _lease = running.execute(&engine, 1).await;
    let swept = engine.sweep(100).await.expect("the sweep is answered");
    assert_eq!(swept, Swept { doubted: 10, failed: 0 });
    for n in 0..10 {
        let record = Request::new(&format!("ended{n}")).record(&engine).await;
        assert_eq!(record.standing(), Standing::Unknown);
        let last = record.timeline.last().map(|moment| &moment.what);
        assert_eq!(last, Some(&Happened::Doubted(Doubt::LeaseEnded)));
    }
    assert_eq!(settled_one.record(&engine).await, record);
    assert_eq!(running.record(&engine).await.standing(), Standing::InProgress);
    assert_eq!(engine.sweep(100).await.expect("it is answered"), Swept::default());
}

/// The caller says how much work one sweep may be.
pub(super) async fn a_sweep_honours_its_limit(bench: Stand) {
    const RECORDS: usize = 600;
    let engine = shaken(&bench);
    race(RACERS, |task| {
        let engine = engine.clone();
        async move {
            for n in (task..RECORDS).step_by(RACERS) {
                new(engine.store(), first(&format!("k{n}"))).await;
            }
        }
    })
    .await;
    bench.advance(LEASE * 2).await;
    for (limit, expected) in [(0, 0), (1, 1), (9, 9), (300, 300), (1_000, 290), (10, 0)] {
        let swept = engine.sweep(limit).await.expect("the sweep is answered");
        assert_eq!(swept, Swept { doubted: expected, failed: 0 }, "of a limit of {limit}");
    }
}

/// Several sweepers share the work, and each lease is counted by one of them.
pub(super) async fn concurrent_sweepers_count_each_lease_once(bench: Stand) {
    let engine = shaken(&bench);
    for n in 0..60 {
        new(engine.store(), first(&format!("k{n}"))).await;
    }
    bench.advance(LEASE * 2).await;
    let swept = race(8, |_| {
        let engine = engine.clone();
        async move { engine.sweep(100).await.expect("the sweep is answered") }
    })
    .await;
    assert_eq!(swept.iter().map(|swept| swept.doubted).sum::<usize>(), 60);
    assert_eq!(swept.iter().map(|swept| swept.failed).sum::<usize>(), 0);
    let unknown = Filter { standing: Some(Standing::Unknown), ..Filter::default() };
    assert_eq!(all(engine.store(), unknown, 100).await.len(), 60);
}

/// An answer that was acknowledged while the sweeper was on its way is what is kept.
pub(super) async fn a_sweep_beside_settles_never_loses_an_answer(bench: Stand) {
    for round in 0..8 {
        let engine = shaken(&bench);
        let mut leases = Vec::new();
        for n in 0..RACERS {
            leases.push(Request::new(&format!("k{round}-{n}")).execute(&engine, 1).await);
        }
        bench.advance(LEASE * 2).await;
        let mut leases = leases.into_iter();
        race(RACERS + 4, |_| {
            let (engine, lease) = (engine.clone(), leases.next());
            async move {
                match lease {
                    Some(lease) => drop(settled(&engine, lease, &done("x")).await),
                    None => drop(engine.sweep(100).await.expect("the sweep is answered")),
                }
            }
        })
        .await;
        for n in 0..RACERS {
            let request = Request::new(&format!("k{round}-{n}"));
            assert_eq!(request.replay(&engine).await, answer("x"));
        }
    }
}

/// Sweeper and reaper beside callers: every key still executes at most once per generation.
pub(super) async fn upkeep_beside_begins_permits_no_second_execution(bench: Stand) {
    let engine = shaken(&bench);
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    bench.advance(LEASE * 2).await;
    race(RACERS, |n| {
        let (engine, request) = (engine.clone(), request.clone());
        async move {
            match n % 4 {
                0 => drop(engine.sweep(10).await.expect("the sweep is answered")),
                1 => assert_eq!(engine.reap(10).await.expect("the reap is answered"), 0),
                _ => {
                    let begun = request.begin(&engine, 10 + n as u64).await;
                    assert!(matches!(begun, Begun::Unknown(_)), "{begun:?}");
                }
            }
        }
    })
    .await;
    settled(&engine, lease, &done("x")).await;
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// A reaper beside replays: the whole answer, or a new generation after the old one has gone.
pub(super) async fn a_replay_beside_the_reaper_is_whole_or_a_new_generation(bench: Stand) {
    for round in 0..8 {
        let engine = shaken(&bench);
        let request = Request::new(&format!("k{round}"));
        let lease = request.execute(&engine, 1).await;
        let old_fence = lease.fence();
        settled(&engine, lease, &done("x")).await;
        bench.advance(TTL * 2).await;
        let begun = race(RACERS, |n| {
            let (engine, request) = (engine.clone(), request.clone());
            async move {
                if n % 4 == 0 {
                    engine.reap(10).await.expect("the reap is answered");
                    return None;
                }
                Some(request.begin(&engine, n as u64).await)
            }
        })
        .await;
        let mut executing = 0;
        for begun in begun.into_iter().flatten() {
            match begun {
                Begun::Execute(lease) => {
                    executing += 1;
                    assert!(lease.fence() > old_fence);
                }
                Begun::InProgress(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(executing, 1);
    }
}

/// The reaper's verb is the store's.
pub(super) async fn reap_deletes_what_has_expired(bench: Stand) {
    let engine = Engine::new(bench.store());
    for n in 0..5 {
        let lease = Request::new(&format!("k{n}")).execute(&engine, 1).await;
        settled(&engine, lease, &Outcome::Retryable(None)).await;
    }
    assert_eq!(engine.reap(10).await.expect("it is answered"), 0);
    bench.advance(TTL * 2).await;
    assert_eq!(engine.reap(3).await.expect("it is answered"), 3);
    assert_eq!(engine.reap(10).await.expect("it is answered"), 2);
}

/// However often a request is retried, its record stays small: the first moment and the last ones.
pub(super) async fn a_timeline_is_bounded(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let first = request.execute(&engine, 1).await;
    let first_fence = first.fence();
    settled(&engine, first, &Outcome::Retryable(None)).await;
    for owner in 2..40 {
        let lease = request.execute(&engine, owner).await;
        settled(&engine, lease, &Outcome::Retryable(None)).await;
    }
    let record = request.record(&engine).await;
    assert_eq!(record.timeline.len(), MOMENTS_MAX);
    assert_eq!(
        (record.timeline[0].fence, &record.timeline[0].what),
        (first_fence, &Happened::Began(None))
    );
    assert_eq!(record.timeline.last().map(|moment| moment.fence), Some(record.fence));
    assert!(record.timeline.is_sorted_by_key(|moment| (moment.fence, moment.at)));
    assert_eq!(record.attempts, 39);
}
