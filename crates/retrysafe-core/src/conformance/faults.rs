//! Does the promise hold when the store fails?
//!
//! Each case runs over the same store behind [`Faulty`]. The last one does everything at random.

use std::sync::Arc;

use super::samples::*;
use super::stand::{AnyStore, Stand};
use super::verbs::{refused, settled};
use super::verdicts::{executed, not_executed};
use super::{Fault, Faulty, Op};
use crate::engine::{Begun, Engine, Lease, Renewed, Ruled, Settled, Swept};
use crate::record::{Doubt, Happened, Outcome, Standing};
use crate::store::{Store, StoreErrorKind};

fn faulty(bench: &Stand) -> Engine<Arc<Faulty<AnyStore>>> {
    Engine::new(Arc::new(Faulty::new(bench.store())))
}

/// Settles under a fault that is armed; the lease that comes back.
async fn unsettled(engine: &Engine<impl Store>, lease: Lease, outcome: &Outcome) -> Lease {
    match engine.settle(lease, outcome).await {
        Err(unsettled) => unsettled.lease,
        Ok(settled) => panic!("the fault did not strike: {settled:?}"),
    }
}

/// A begin under a fault that is armed, which must not execute. Whether it may have been applied.
async fn unbegun(engine: &Engine<impl Store>, request: &Request, owner: u64) -> bool {
    match engine.begin(&request.ask(owner)).await {
        Err(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
            error.may_have_applied()
        }
        Ok(begun) => panic!("the fault did not strike: {begun:?}"),
    }
}

/// No store, no execution; and an insert that was refused leaves nothing behind.
pub(super) async fn a_refused_begin_leaves_nothing(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    engine.store().arm(Op::Insert, Fault::Refused);
    assert!(!unbegun(&engine, &request, 1).await);
    assert_eq!(load(&bench.store(), request.id()).await, None);
    assert_eq!(request.execute(&engine, 2).await.attempt(), 1);
}

/// A begin whose acknowledgement was lost does not execute; withdrawn, its key is free at once.
pub(super) async fn an_ambiguous_begin_is_withdrawn(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    engine.store().arm(Op::Insert, Fault::AnswerLost);
    assert!(unbegun(&engine, &request, 1).await);
    assert!(matches!(request.begin(&engine, 2).await, Begun::InProgress(_)));
    assert!(engine.withdraw(request.id(), 1).await.expect("it is answered"));
    assert_eq!(request.execute(&engine, 3).await.attempt(), 2);
}

/// If it was not applied there is nothing to take back, and that is no error.
pub(super) async fn an_ambiguous_begin_that_was_not_applied_leaves_nothing(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    engine.store().arm(Op::Insert, Fault::RequestLost);
    assert!(unbegun(&engine, &request, 1).await);
    assert!(!engine.withdraw(request.id(), 1).await.expect("it is answered"));
    assert_eq!(request.execute(&engine, 2).await.attempt(), 1);
}

/// If its owner cannot even withdraw, doubt remains; it is never taken for permission.
pub(super) async fn an_ambiguous_begin_that_is_not_withdrawn_becomes_unknown(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    engine.store().arm(Op::Insert, Fault::AnswerLost);
    assert!(unbegun(&engine, &request, 1).await);
    bench.advance(LEASE * 2).await;
    assert!(matches!(request.begin(&engine, 2).await, Begun::Unknown(_)));
}

/// A begin that lands after it was given up and withdrawn executes nothing, and is swept.
pub(super) async fn a_begin_that_lands_late_executes_nothing(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    engine.store().arm(Op::Insert, Fault::RequestLate);
    assert!(unbegun(&engine, &request, 1).await);
    assert!(!engine.withdraw(request.id(), 1).await.expect("it is answered"));
    engine.store().land().await.expect("it lands");
    assert!(matches!(request.begin(&engine, 2).await, Begun::InProgress(_)));
    bench.advance(LEASE * 2).await;
    let swept = engine.sweep(10).await.expect("the sweep is answered");
    assert_eq!(swept, Swept { doubted: 1, failed: 0 });
    assert!(matches!(request.begin(&engine, 3).await, Begun::Unknown(_)));
}

/// If somebody else has begun meanwhile, the late begin does not disturb it.
pub(super) async fn a_begin_that_lands_late_disturbs_nobody(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    engine.store().arm(Op::Insert, Fault::RequestLate);
    assert!(unbegun(&engine, &request, 1).await);
    let lease = request.execute(&engine, 2).await;
    engine.store().land().await.expect("it lands");
    assert!(!engine.withdraw(request.id(), 1).await.expect("it is answered"));
    settled(&engine, lease, &done("x")).await;
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// A second attempt is a swap; the same holds for it.
pub(super) async fn an_ambiguous_second_attempt_is_withdrawn(bench: Stand) {
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Refused] {
        let engine = faulty(&bench);
        let request = Request::new(&format!("{fault:?}"));
        let lease = request.execute(&engine, 1).await;
        let fence = lease.fence();
        settled(&engine, lease, &Outcome::Retryable(None)).await;
        engine.store().arm(Op::Swap, fault);
        assert_eq!(unbegun(&engine, &request, 2).await, fault != Fault::Refused);
        let withdrawn = engine.withdraw(request.id(), 2).await.expect("it is answered");
        assert_eq!(withdrawn, fault == Fault::AnswerLost);
        assert!(request.execute(&engine, 3).await.fence() > fence);
    }
}

/// A withdrawal that is not acknowledged is repeated, and finds its work done.
pub(super) async fn an_ambiguous_withdrawal_is_repeated(bench: Stand) {
    for (fault, again) in [(Fault::AnswerLost, false), (Fault::RequestLost, true)] {
        let engine = faulty(&bench);
        let request = Request::new(&format!("{fault:?}"));
        let _lease = request.execute(&engine, 1).await;
        engine.store().arm(Op::Swap, fault);
        let error = engine.withdraw(request.id(), 1).await.expect_err("the fault strikes");
        assert!(error.may_have_applied());
        assert_eq!(engine.withdraw(request.id(), 1).await.expect("it is answered"), again);
        let _lease = request.execute(&engine, 2).await;
    }
}

/// A settle whose acknowledgement was lost is repeated with the same fence: one answer, same bytes.
pub(super) async fn an_ambiguous_settle_is_repeated(bench: Stand) {
    let outcomes = [done("x"), Outcome::Retryable(None), Outcome::Unknown(Doubt::Panicked)];
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Refused] {
        for (n, outcome) in outcomes.iter().enumerate() {
            let engine = faulty(&bench);
            let request = Request::new(&format!("{fault:?}{n}"));
            let lease = request.execute(&engine, 1).await;
            engine.store().arm(Op::Swap, fault);
            let lease = unsettled(&engine, lease, outcome).await;
            let record = settled(&engine, lease, outcome).await;
            assert_eq!(record.standing(), outcome.standing());
            assert_eq!(request.record(&engine).await, record);
            assert_eq!(record.timeline.len(), 2, "it was settled once: {record:?}");
        }
        assert_eq!(Request::new(&format!("{fault:?}0")).replay(&faulty(&bench)).await, answer("x"));
    }
}

/// A settle that is repeated with another outcome has contradicted itself.
pub(super) async fn a_settle_that_changes_its_word_is_refused(bench: Stand) {
    let pairs = [
        (done("x"), done("y")),
        (done("x"), Outcome::Retryable(None)),
        (Outcome::Retryable(None), done("x")),
    ];
    for (n, (one, other)) in pairs.into_iter().enumerate() {
        let engine = faulty(&bench);
        let request = Request::new(&format!("k{n}"));
        let lease = request.execute(&engine, 1).await;
        engine.store().arm(Op::Swap, Fault::AnswerLost);
        let lease = unsettled(&engine, lease, &one).await;
        let record = request.record(&engine).await;
        let (_, contradiction) = refused(&engine, lease, &other).await;
        assert!(contradiction, "{one:?}, then {other:?}");
        assert_eq!(request.record(&engine).await.state, record.state);
    }
}

/// A settle that lands after its repetition changes nothing any more.
pub(super) async fn a_settle_that_lands_late_changes_nothing(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    engine.store().arm(Op::Swap, Fault::RequestLate);
    let lease = unsettled(&engine, lease, &done("x")).await;
    let record = settled(&engine, lease, &done("x")).await;
    engine.store().land().await.expect("it lands");
    assert_eq!(request.record(&engine).await, record);
}

/// An owner that repeats its settle after a sweeper doubted it is still believed.
pub(super) async fn a_settle_repeated_after_the_lease_holds(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    engine.store().arm(Op::Swap, Fault::RequestLost);
    let lease = unsettled(&engine, lease, &done("x")).await;
    bench.advance(LEASE * 2).await;
    assert_eq!(engine.sweep(10).await.expect("it is answered").doubted, 1);
    settled(&engine, lease, &done("x")).await;
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// Evidence that cannot be written is lost, and nothing else is.
pub(super) async fn a_late_result_that_cannot_be_kept_does_no_harm(bench: Stand) {
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Refused] {
        let engine = faulty(&bench);
        let request = Request::new(&format!("{fault:?}"));
        let late = request.execute(&engine, 1).await;
        engine.withdraw(request.id(), 1).await.expect("it is answered");
        let lease = request.execute(&engine, 2).await;
        // The late owner's own swap loses; then the fault strikes the one that keeps its word.
        engine.store().arm(Op::Swap, Fault::Delayed);
        engine.store().arm(Op::Swap, fault);
        let settled_late = engine.settle(late, &done("late")).await.expect("it is answered");
        assert!(matches!(settled_late, Settled::Lost { contradiction: true, .. }));
        settled(&engine, lease, &done("x")).await;
        assert_eq!(request.replay(&engine).await, answer("x"));
    }
}

/// A renewal that is not acknowledged does not lose the lease.
pub(super) async fn an_ambiguous_renewal_keeps_the_lease(bench: Stand) {
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Refused] {
        let engine = faulty(&bench);
        let request = Request::new(&format!("{fault:?}"));
        let lease = request.execute(&engine, 1).await;
        engine.store().arm(Op::Swap, fault);
        engine.renew(lease.renewal(), LEASE, AGES).await.expect_err("the fault strikes");
        bench.advance(LEASE / 2).await;
        let renewed = engine.renew(lease.renewal(), LEASE, AGES).await.expect("it is answered");
        assert!(matches!(renewed, Renewed::For(_)));
        settled(&engine, lease, &done("x")).await;
        assert_eq!(request.replay(&engine).await, answer("x"));
    }
}

/// A verdict that is not acknowledged is repeated: decided once, with one new fence.
pub(super) async fn an_ambiguous_verdict_is_decided_once(bench: Stand) {
    for fault in [Fault::AnswerLost, Fault::RequestLost] {
        let engine = faulty(&bench);
        let request = Request::new(&format!("{fault:?}"));
        let lease = request.execute(&engine, 1).await;
        let fence = lease.fence();
        settled(&engine, lease, &Outcome::Unknown(Doubt::AnswerLost)).await;
        let verdict = executed(fence, answer("found"));
        engine.store().arm(Op::Swap, fault);
        engine.resolve(request.id(), &verdict).await.expect_err("the fault strikes");
        match engine.resolve(request.id(), &verdict).await.expect("it is answered") {
            Ruled::Done(_) => assert_eq!(fault, Fault::RequestLost),
            Ruled::Refused(_) => assert_eq!(fault, Fault::AnswerLost),
            Ruled::Absent => panic!("it is there"),
        }
        let again = not_executed(fence);
        let again = engine.resolve(request.id(), &again).await.expect("it is answered");
        assert!(matches!(again, Ruled::Refused(_)));
        let record = request.record(&engine).await;
        let resolved = |what: &Happened| matches!(what, Happened::Resolved(..));
        assert_eq!(record.timeline.iter().filter(|moment| resolved(&moment.what)).count(), 1);
        assert_eq!(request.replay(&engine).await, answer("found"));
    }
}

/// A retention whose end was not acknowledged is ended by the repetition, or was.
pub(super) async fn an_ambiguous_expire_is_repeated(bench: Stand) {
    for fault in [Fault::AnswerLost, Fault::RequestLost] {
        let engine = faulty(&bench);
        let request = Request::new(&format!("{fault:?}"));
        let lease = request.execute(&engine, 1).await;
        settled(&engine, lease, &done("x")).await;
        engine.store().arm(Op::Swap, fault);
        engine.expire(request.id(), None, "asked for").await.expect_err("the fault strikes");
        engine.expire(request.id(), None, "asked for").await.expect("it is answered");
        assert_eq!(request.execute(&engine, 2).await.attempt(), 1);
    }
}

/// A sweep goes on past a record that it could not write, and the next one finishes.
pub(super) async fn a_sweep_goes_on_past_failures(bench: Stand) {
    let engine = faulty(&bench);
    for n in 0..10 {
        let _lease = Request::new(&format!("k{n}")).execute(&engine, 1).await;
    }
    bench.advance(LEASE * 2).await;
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Refused] {
        engine.store().arm(Op::Swap, fault);
    }
    let swept = engine.sweep(100).await.expect("the sweep is answered");
    assert_eq!(swept, Swept { doubted: 7, failed: 3 });
    let swept = engine.sweep(100).await.expect("the sweep is answered");
    assert_eq!(swept, Swept { doubted: 2, failed: 0 });
    for n in 0..10 {
        let record = Request::new(&format!("k{n}")).record(&engine).await;
        assert_eq!(record.standing(), Standing::Unknown);
        assert_eq!(record.timeline.len(), 2, "it was doubted once: {record:?}");
    }
}

/// A store that cannot be read stops a sweep or a reap with an error, not with an answer.
pub(super) async fn upkeep_says_when_it_cannot_work(bench: Stand) {
    let engine = faulty(&bench);
    engine.store().arm(Op::Scan, Fault::Refused);
    let error = engine.sweep(10).await.expect_err("the fault strikes");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    engine.store().arm(Op::Reap, Fault::AnswerLost);
    assert!(engine.reap(10).await.expect_err("the fault strikes").may_have_applied());
    engine.store().arm(Op::Load, Fault::AnswerLost);
    let error = engine.look(Request::new("k").id()).await.expect_err("the fault strikes");
    assert!(!error.may_have_applied(), "a read has no consequences");
}

/// A caller that goes away in the midst of its begin is withdrawn by its owner number.
pub(super) async fn a_begin_that_was_dropped_is_withdrawn(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    engine.store().arm(Op::Insert, Fault::Silent);
    let task = {
        let (engine, request) = (engine.clone(), request.clone());
        tokio::spawn(async move { request.begin(&engine, 1).await })
    };
    engine.store().silenced().await;
    task.abort();
    assert!(task.await.expect_err("it never ends").is_cancelled());
    assert!(engine.withdraw(request.id(), 1).await.expect("it is answered"));
    let _lease = request.execute(&engine, 2).await;
}

/// A settle that was dropped in the midst was applied or not; nobody executes again.
pub(super) async fn a_settle_that_was_dropped_permits_no_second_execution(bench: Stand) {
    let engine = faulty(&bench);
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    engine.store().arm(Op::Swap, Fault::Silent);
    let task = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.settle(lease, &done("x")).await })
    };
    engine.store().silenced().await;
    task.abort();
    assert!(task.await.expect_err("it never ends").is_cancelled());
    assert_eq!(request.replay(&engine).await, answer("x"));
}
