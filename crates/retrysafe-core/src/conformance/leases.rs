//! Does a lease end when it should, and only then?

use std::time::Duration;

use super::samples::*;
use super::stand::Stand;
use super::verbs::{refused, settled};
use crate::engine::{Begun, Engine, Lease, Renewed};
use crate::record::{Outcome, Standing};
use crate::store::Store;

async fn renewed(engine: &Engine<impl Store>, lease: &Lease, lease_max: Duration) -> Renewed {
    engine.renew(lease.renewal(), LEASE, lease_max).await.expect("the renewal is answered")
}

/// An owner that says so in time stays believed, however long it executes.
pub(super) async fn a_renewed_lease_outlives_its_first_length(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    for _ in 0..10 {
        bench.advance(LEASE / 2).await;
        let answer = renewed(&engine, &lease, AGES).await;
        assert!(matches!(answer, Renewed::For(left) if left <= LEASE && left > LEASE / 2));
        assert!(matches!(request.begin(&engine, 2).await, Begun::InProgress(_)));
    }
    settled(&engine, lease, &done("x")).await;
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// A renewal raises the version, keeps the fence, and leaves no trace on the timeline.
pub(super) async fn a_renewal_changes_only_version_and_lease(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    let before = request.record(&engine).await;
    bench.advance(LEASE / 2).await;
    renewed(&engine, &lease, AGES).await;
    let after = request.record(&engine).await;
    assert!(after.version > before.version);
    assert!(after.lease_until() > before.lease_until());
    let mut expected = before;
    (expected.version, expected.state) = (after.version, after.state.clone());
    assert_eq!(after, expected);
}

/// A handler that outlives `lease_max` is not killed: it is in doubt, and its own settle counts.
pub(super) async fn past_lease_max_the_owner_is_in_doubt_and_its_settle_counts(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    bench.advance(LEASE * 3).await;
    assert_eq!(renewed(&engine, &lease, LEASE * 2).await, Renewed::Lost);
    assert!(matches!(request.begin(&engine, 2).await, Begun::Unknown(_)));
    assert_eq!(renewed(&engine, &lease, LEASE * 2).await, Renewed::Lost);
    settled(&engine, lease, &done("x")).await;
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// An unknown record is never revived.
pub(super) async fn an_unknown_record_is_not_renewed(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    bench.advance(LEASE * 2).await;
    assert!(matches!(request.begin(&engine, 2).await, Begun::Unknown(_)));
    let doubted = request.record(&engine).await;
    assert_eq!(renewed(&engine, &lease, AGES).await, Renewed::Lost);
    assert_eq!(request.record(&engine).await, doubted);
}

/// Nor is one that is somebody else's by now.
pub(super) async fn an_overtaken_owner_renews_nothing(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let late = request.execute(&engine, 1).await;
    engine.withdraw(request.id(), 1).await.expect("it is answered");
    let lease = request.execute(&engine, 2).await;
    let current = request.record(&engine).await;
    assert_eq!(renewed(&engine, &late, AGES).await, Renewed::Lost);
    assert_eq!(request.record(&engine).await, current);
    assert!(late.fence() < lease.fence());
    // Having read the other's record does not make it the late owner's.
    refused(&engine, late, &done("late")).await;
    settled(&engine, lease, &done("x")).await;
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// Nor is one that is gone.
pub(super) async fn a_reaped_record_is_not_renewed(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let late = request.execute(&engine, 1).await;
    engine.withdraw(request.id(), 1).await.expect("it is answered");
    bench.advance(TTL * 2).await;
    assert_eq!(engine.reap(10).await.expect("it is answered"), 1);
    assert_eq!(renewed(&engine, &late, AGES).await, Renewed::Lost);
    assert_eq!(load(engine.store(), request.id()).await, None);
}

/// A second attempt has a lease of its own, and its `lease_max` counts from its own begin.
pub(super) async fn lease_max_counts_from_the_attempt(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    settled(&engine, lease, &Outcome::Retryable(None)).await;
    bench.advance(LEASE * 10).await;
    let lease = request.execute(&engine, 2).await;
    bench.advance(LEASE / 2).await;
    assert!(matches!(renewed(&engine, &lease, LEASE * 2).await, Renewed::For(_)));
}

/// A begin that was not acknowledged is taken back by its owner number, and the key is free.
pub(super) async fn a_withdrawn_begin_frees_its_key(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    assert!(engine.withdraw(request.id(), 1).await.expect("it is answered"));
    assert_eq!(request.record(&engine).await.standing(), Standing::FailedRetryable);
    let again = request.execute(&engine, 2).await;
    assert!(again.fence() > lease.fence());
}

/// Only the owner itself takes back, and only what it has not settled.
pub(super) async fn only_the_owner_withdraws(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let withdraw = async |owner| engine.withdraw(request.id(), owner).await.expect("answered");
    assert!(!withdraw(1).await, "there is nothing");
    let lease = request.execute(&engine, 1).await;
    let begun = request.record(&engine).await;
    assert!(!withdraw(2).await, "it is another's");
    assert_eq!(request.record(&engine).await, begun);
    settled(&engine, lease, &done("x")).await;
    assert!(!withdraw(1).await, "it is settled");
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// Renewals, a sweeper and a settle at once: the acknowledged answer is what is kept.
pub(super) async fn renewals_beside_a_sweeper_never_lose_the_answer(bench: Stand) {
    for round in 0..16 {
        let engine = shaken(&bench);
        let request = Request::new(&format!("k{round}"));
        let mut first = Some(request.execute(&engine, 1).await);
        bench.advance(LEASE * 2).await;
        race(8, |_| {
            let (engine, lease) = (engine.clone(), first.take());
            async move {
                match lease {
                    Some(lease) => {
                        // Lost to the sweeper or not, the outcome is the owner's to tell.
                        renewed(&engine, &lease, AGES).await;
                        settled(&engine, lease, &done("x")).await;
                    }
                    None => {
                        engine.sweep(10).await.expect("the sweep is answered");
                    }
                }
            }
        })
        .await;
        assert_eq!(request.replay(&engine).await, answer("x"));
    }
}

/// A handler's own time to live is kept with its answer.
pub(super) async fn a_lease_may_carry_another_ttl(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let mut lease = request.execute(&engine, 1).await;
    lease.set_ttl(TTL * 10);
    let record = settled(&engine, lease, &done("x")).await;
    assert_eq!(record.ttl, TTL * 10);
    bench.advance(TTL * 9).await;
    assert_eq!(request.replay(&engine).await, answer("x"));
    bench.advance(TTL * 2).await;
    let _lease = request.execute(&engine, 2).await;
}
