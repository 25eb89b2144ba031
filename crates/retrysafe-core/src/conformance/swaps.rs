//! Does a writer who read an older version lose?

use super::samples::*;
use super::stand::Stand;
use crate::record::{Fence, Standing, State};
use crate::store::{Store as _, Swapped};

/// What is kept is what [`Write::onto`](crate::record::Write::onto) says.
pub(super) async fn a_swap_from_the_current_version_is_done(bench: Stand) {
    let store = bench.store();
    let record = new(&store, first("k")).await;
    let write = complete(answer("x"));
    let answer = store.swap(record.clone(), write.clone()).await.expect("the swap is answered");
    let Swapped::Done(next) = answer.value else { panic!("lost: {answer:?}") };
    let State::Completed { settled_at, .. } = next.state else { panic!("{next:?}") };
    assert!(settled_at <= answer.now);
    assert_eq!(next, write.onto(&record, settled_at, next.version));
    assert!(next.version > record.version);
    assert_eq!(load(&store, record.id).await, Some(next));
}

/// The losing swap returns what it lost to.
pub(super) async fn a_swap_from_a_stale_version_loses_and_returns_the_current_record(bench: Stand) {
    let store = bench.store();
    let record = new(&store, first("k")).await;
    let current = swapped(&store, &record, complete(answer("x"))).await;
    for write in [doubt(), fail(), complete(answer("y")), take_over(2), touch()] {
        assert_eq!(beaten(&store, &record, write).await.as_ref(), Some(&current));
    }
    assert_eq!(load(&store, record.id).await, Some(current));
}

/// Of concurrent writers who read the same, one wins and the others learn who.
pub(super) async fn of_32_swaps_from_one_version_one_is_done(bench: Stand) {
    for round in 0..8 {
        let store = bench.store();
        let record = new(&store, first(&format!("k{round}"))).await;
        let answers = race(RACERS, |n| {
            let (store, record) = (store.clone(), record.clone());
            async move { swap(&store, &record, complete(answer(vec![n as u8]))).await }
        })
        .await;
        let won: Vec<_> = answers
            .iter()
            .filter_map(|answer| match answer {
                Swapped::Done(record) => Some(record),
                Swapped::Lost(_) => None,
            })
            .collect();
        assert_eq!(won.len(), 1, "exactly one swap is done: {won:?}");
        for answer in &answers {
            match answer {
                Swapped::Done(record) => assert_eq!(record, won[0]),
                Swapped::Lost(current) => assert_eq!(current.as_ref(), Some(won[0])),
            }
        }
    }
}

/// There is nothing to swap.
pub(super) async fn a_swap_of_an_absent_record_is_lost_to_none(bench: Stand) {
    let store = bench.store();
    let other = new(&store, first("other")).await;
    let absent = first("k").record(other.created_at, other.version);
    assert_eq!(beaten(&store, &absent, complete(answer("x"))).await, None);
    assert_eq!(load(&store, absent.id).await, None);
}

/// A record that was reaped is not brought back by somebody who read it before.
pub(super) async fn a_swap_of_a_reaped_record_is_lost_to_none(bench: Stand) {
    let store = bench.store();
    let record = standing(&store, "k", Standing::FailedRetryable).await;
    bench.advance(TTL * 2).await;
    assert_eq!(reap(&store, 10).await, 1);
    assert_eq!(beaten(&store, &record, take_over(2)).await, None);
    assert_eq!(load(&store, record.id).await, None);
}

/// A writer of an older generation loses, although the new one looks the same.
pub(super) async fn a_swap_from_a_former_generation_loses(bench: Stand) {
    let store = bench.store();
    let old = new(&store, first("k")).await;
    let settled = swapped(&store, &old, fail()).await;
    bench.advance(TTL * 2).await;
    let current = new(&store, first("k")).await;
    for stale in [old, settled] {
        assert_eq!(beaten(&store, &stale, complete(answer("old"))).await.as_ref(), Some(&current));
    }
    assert_eq!(load(&store, current.id).await, Some(current));
}

/// The same, when the former generation was reaped and nothing in the store remembers it.
pub(super) async fn a_swap_from_a_reaped_generation_loses(bench: Stand) {
    let store = bench.store();
    let old = new(&store, first("k")).await;
    let settled = swapped(&store, &old, fail()).await;
    bench.advance(TTL * 2).await;
    assert_eq!(reap(&store, 10).await, 1);
    let current = new(&store, first("k")).await;
    let begun_again = swapped(&store, &current, fail()).await;
    for stale in [old, settled, current] {
        assert_eq!(
            beaten(&store, &stale, complete(answer("old"))).await.as_ref(),
            Some(&begun_again)
        );
    }
}

/// A record that looks as it did before is not the same version.
pub(super) async fn a_record_that_looks_as_before_has_another_version(bench: Stand) {
    let store = bench.store();
    let record = new(&store, first("k")).await;
    let same = swapped(&store, &record, touch()).await;
    assert_eq!(same.state, record.state);
    assert_eq!(beaten(&store, &record, doubt()).await, Some(same));
}

/// A sweeper that read `in_progress` cannot overwrite an answer that was acknowledged meanwhile.
pub(super) async fn a_sweeper_that_read_before_never_overwrites_a_settled_record(bench: Stand) {
    for round in 0..16 {
        let store = bench.store();
        let record = new(&store, first(&format!("k{round}"))).await;
        bench.advance(LEASE * 2).await;
        let answers = race(RACERS, |n| {
            let (store, record) = (store.clone(), record.clone());
            async move {
                let write = if n == 0 { complete(answer("done")) } else { doubt() };
                (n == 0, swap(&store, &record, write).await)
            }
        })
        .await;
        let current = load(&store, record.id).await.expect("the record is there");
        let settled = answers.iter().any(|(is_settle, a)| *is_settle && is_done(a));
        assert_eq!(settled, current.standing() == Standing::Completed, "{current:?}");
        assert_eq!(answers.iter().filter(|(_, answer)| is_done(answer)).count(), 1);
    }
}

fn is_done(answer: &Swapped) -> bool {
    matches!(answer, Swapped::Done(_))
}

/// A losing swap leaves no trace.
pub(super) async fn losing_swaps_change_nothing(bench: Stand) {
    let store = bench.store();
    let record = new(&store, first("k")).await;
    let current = swapped(&store, &record, complete(answer("x"))).await;
    race(RACERS, |_| {
        let (store, record) = (store.clone(), record.clone());
        async move { beaten(&store, &record, doubt()).await }
    })
    .await;
    assert_eq!(load(&store, record.id).await, Some(current));
}

/// Writers that look again until they win are all counted.
pub(super) async fn no_update_is_lost(bench: Stand) {
    const EACH: u32 = 8;
    let store = bench.store();
    let record = standing(&store, "k", Standing::Unknown).await;
    race(RACERS, |_| {
        let (store, mut from) = (store.clone(), record.clone());
        async move {
            for _ in 0..EACH {
                loop {
                    match swap(&store, &from, look_up()).await {
                        Swapped::Done(record) => break from = record,
                        Swapped::Lost(current) => from = current.expect("it is not gone"),
                    }
                }
            }
        }
    })
    .await;
    let current = load(&store, record.id).await.expect("the record is there");
    let State::Unknown { lookups, .. } = current.state else { panic!("{current:?}") };
    assert_eq!(lookups, EACH * RACERS as u32);
}

/// Writes to one record leave its neighbours alone.
pub(super) async fn a_swap_of_one_record_leaves_the_others_alone(bench: Stand) {
    let store = bench.store();
    let mut others = Vec::new();
    for n in 0..20 {
        others.push(new(&store, first(&format!("k{n}"))).await);
    }
    let mine = others.remove(7);
    swapped(&store, &mine, complete(answer("x"))).await;
    for other in others {
        assert_eq!(load(&store, other.id).await, Some(other));
    }
}

/// The fence is the version at which an owner took over, and stays while it owns.
pub(super) async fn the_fence_changes_with_ownership_only(bench: Stand) {
    let store = bench.store();
    let begun = new(&store, first("k")).await;
    let renewed = swapped(&store, &begun, renew(LEASE * 2)).await;
    assert_eq!(renewed.fence, begun.fence);
    let failed = swapped(&store, &renewed, fail()).await;
    assert_eq!(failed.fence, begun.fence);
    let again = swapped(&store, &failed, take_over(2)).await;
    assert_eq!(again.fence, Fence(again.version));
    assert!(again.fence > begun.fence);
    assert_eq!(load(&store, begun.id).await, Some(again));
}

/// What a write does not name stays, however many writes there are.
pub(super) async fn a_swap_keeps_what_it_does_not_name(bench: Stand) {
    let store = bench.store();
    let begun = new(&store, first("k")).await;
    let doubted = swapped(&store, &begun, doubt()).await;
    let asked = swapped(&store, &doubted, look_up()).await;
    let settled = swapped(&store, &asked, complete(answer("x"))).await;
    for record in [&doubted, &asked, &settled] {
        assert_eq!(
            (record.id, &record.scope, record.key, record.fingerprint, &record.about),
            (begun.id, &begun.scope, begun.key, begun.fingerprint, &begun.about)
        );
        assert_eq!(
            (record.created_at, record.ttl, record.attempts),
            (begun.created_at, begun.ttl, begun.attempts)
        );
    }
    assert_eq!(settled.timeline.len(), 4);
    assert_eq!(load(&store, begun.id).await, Some(settled));
}

/// A swap asks for the version, not for the age: whoever read the record last may write it.
pub(super) async fn a_swap_of_an_expired_record_is_done(bench: Stand) {
    let store = bench.store();
    let record = standing(&store, "k", Standing::FailedRetryable).await;
    bench.advance(TTL * 2).await;
    let begun = swapped(&store, &record, take_over(2)).await;
    bench.advance(AGES).await;
    assert_eq!(existing(&store, first("k")).await, begun);
}

/// Settle, sweeper, verdict and renewal at once: one wins, and what is kept is what it wrote.
pub(super) async fn mixed_writers_have_one_winner(bench: Stand) {
    for round in 0..16 {
        let store = bench.store();
        let record = new(&store, first(&format!("k{round}"))).await;
        let answers = race(RACERS, |n| {
            let (store, record) = (store.clone(), record.clone());
            async move {
                let write = match n % 4 {
                    0 => complete(answer("x")),
                    1 => doubt(),
                    2 => fail(),
                    _ => renew(LEASE * 2),
                };
                swap(&store, &record, write).await
            }
        })
        .await;
        let mut won = answers.into_iter().filter_map(|answer| match answer {
            Swapped::Done(record) => Some(record),
            Swapped::Lost(_) => None,
        });
        let winner = won.next();
        assert!(winner.is_some() && won.next().is_none(), "exactly one is done");
        assert_eq!(load(&store, record.id).await, winner);
    }
}

/// Each state is kept as what it is.
pub(super) async fn every_standing_is_kept(bench: Stand) {
    let store = bench.store();
    for (n, how) in Standing::ALL.into_iter().enumerate() {
        let record = standing(&store, &format!("k{n}"), how).await;
        assert_eq!(record.standing(), how);
        assert_eq!(load(&store, record.id).await, Some(record));
    }
}
