//! What is left of a flow that its owner has given up?
//!
//! What its death would have left: while nothing outside is in flight, somebody else goes on at once.

use super::flows::{commit, flow_at, go_on, start};
use super::samples::*;
use super::stand::Stand;
use super::verbs::settled;
use crate::engine::{Engine, Renewed};
use crate::flow::RecoveryPoint;
use crate::record::{Doubt, Outcome, Standing};
use crate::store::Store;

const DOUBTS: [Doubt; 4] = [Doubt::AnswerLost, Doubt::Panicked, Doubt::ServerError, Doubt::Said];

/// A shutdown, a panic or a server error between two calls leaves nothing that nobody knows.
pub(super) async fn a_flow_without_a_call_in_flight_is_never_unknown(bench: Stand) {
    let engine = Engine::new(bench.store());
    for doubt in DOUBTS {
        let plain = Request::new(&format!("plain {doubt:?}"));
        let record =
            settled(&engine, plain.execute(&engine, 1).await, &Outcome::Unknown(doubt)).await;
        assert_eq!(record.standing(), Standing::Unknown, "a plain request may have been executed");

        let request = Request::new(&format!("{doubt:?}"));
        let lease = flow_at(&engine, &request, &[start(), commit(0)]).await;
        let fence = lease.fence();
        let record = settled(&engine, lease, &Outcome::Unknown(doubt)).await;
        assert_eq!((record.standing(), record.fence), (Standing::InProgress, fence), "{doubt:?}");
        let swept = engine.sweep(10).await.expect("it is answered");
        assert_eq!((swept.doubted, swept.failed), (0, 0), "{doubt:?}");
        let next = go_on(&engine, &request, 2).await;
        assert!(next.fence() > fence, "{doubt:?}");
        let point = next.flow().map(|flow| flow.recovery_point());
        assert_eq!(point, Some(RecoveryPoint::Before(1)), "{doubt:?}");
        settled(&engine, next, &done("x")).await;
    }
}

/// A renewal that was on its way when the lease was given back would keep the next one waiting.
pub(super) async fn a_lease_that_was_given_back_is_not_renewed(bench: Stand) {
    let engine = Engine::new(bench.store());
    for is_withdrawn in [false, true] {
        let request = Request::new(&format!("withdrawn {is_withdrawn}"));
        let lease = flow_at(&engine, &request, &[start(), commit(0)]).await;
        let renewal = lease.renewal();
        let renewed = engine.renew(renewal, LEASE, LEASE * 10).await.expect("it is answered");
        assert!(matches!(renewed, Renewed::For(_)), "{renewed:?}");
        if is_withdrawn {
            assert!(engine.withdraw(request.id(), 1).await.expect("it is answered"));
        } else {
            settled(&engine, lease, &Outcome::Unknown(Doubt::Panicked)).await;
        }
        let renewed = engine.renew(renewal, LEASE, LEASE * 10).await.expect("it is answered");
        assert_eq!(renewed, Renewed::Lost);
        let next = go_on(&engine, &request, 2).await;
        let renewed = engine.renew(next.renewal(), LEASE, LEASE * 10).await;
        assert!(matches!(renewed, Ok(Renewed::For(_))), "{renewed:?}");
    }
}

/// A key that is used again after its record is gone is another operation, and its calls have other keys.
pub(super) async fn the_calls_of_another_generation_have_other_keys(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = flow_at(&engine, &request, &[start(), commit(0)]).await;
    let key = lease.downstream_key("charge");
    assert_ne!(key, lease.downstream_key("refund"));
    settled(&engine, lease, &Outcome::Retryable(None)).await;
    let lease = go_on(&engine, &request, 2).await;
    assert_eq!(lease.downstream_key("charge"), key, "the same on every attempt");
    settled(&engine, lease, &done("x")).await;
    bench.advance(TTL * 2).await;
    let lease = flow_at(&engine, &request, &[start(), commit(0)]).await;
    assert_ne!(lease.downstream_key("charge"), key);
    drop(lease);
    let store = engine.store();
    assert_eq!(load(store, request.id()).await.map(|record| record.attempts), Some(1));
    assert_eq!(store.reap(10).await.expect("it is answered").value, 0);
}
