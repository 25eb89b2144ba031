//! What happens in the very millisecond at which something ends?
//!
//! For stores whose clock stands still until it is advanced. Everything ends *at* its time: one
//! millisecond before it holds, at it it does not.

use std::time::Duration;

use super::samples::*;
use super::stand::Stand;
use crate::engine::{Begun, Engine, Renewed, Settled};
use crate::record::Standing;
use crate::store::Filter;

const TICK: Duration = Duration::from_millis(1);

/// The bench keeps its word, so that the other cases here mean something.
pub(super) async fn the_clock_stands_still_until_it_is_advanced(bench: Stand) {
    let store = bench.store();
    let now = insert(&store, first("k")).await.now;
    for _ in 0..100 {
        assert_eq!(insert(&store, first("k")).await.now, now);
    }
    bench.advance(TICK).await;
    assert_eq!(insert(&store, first("k")).await.now, now.plus(TICK));
}

/// An insert finds the record one millisecond before its expiry, and none at it.
pub(super) async fn a_record_is_live_until_the_millisecond_of_its_expiry(bench: Stand) {
    let store = bench.store();
    for (key, how) in [("c", Standing::Completed), ("f", Standing::FailedRetryable)] {
        let record = standing(&store, key, how).await;
        bench.advance(TTL - TICK).await;
        assert_eq!(existing(&store, first(key)).await, record);
        bench.advance(TICK).await;
        new(&store, first(key)).await;
    }
}

/// The reaper agrees with the inserts about the moment.
pub(super) async fn a_record_is_reaped_from_the_millisecond_of_its_expiry(bench: Stand) {
    let store = bench.store();
    let record = standing(&store, "k", Standing::Completed).await;
    bench.advance(TTL - TICK).await;
    assert_eq!(reap(&store, 10).await, 0);
    assert_eq!(load(&store, record.id).await.as_ref(), Some(&record));
    bench.advance(TICK).await;
    assert_eq!(reap(&store, 10).await, 1);
    assert_eq!(load(&store, record.id).await, None);
}

/// The sweeper sees a lease as over at its end, not before.
pub(super) async fn a_lease_is_over_at_the_millisecond_of_its_end(bench: Stand) {
    let store = bench.store();
    let record = new(&store, first("k")).await;
    let over = Filter { lease_over: true, ..Filter::default() };
    bench.advance(LEASE - TICK).await;
    assert_eq!(all(&store, over.clone(), 10).await, []);
    bench.advance(TICK).await;
    assert_eq!(all(&store, over, 10).await, [record]);
}

/// The next caller sees the last millisecond of a lease, then doubt.
pub(super) async fn a_begin_sees_the_last_millisecond_of_a_lease(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let _lease = request.execute(&engine, 1).await;
    bench.advance(LEASE - TICK).await;
    let begun = request.begin(&engine, 2).await;
    assert!(matches!(begun, Begun::InProgress(TICK)), "{begun:?}");
    bench.advance(TICK).await;
    assert!(matches!(request.begin(&engine, 2).await, Begun::Unknown(_)));
}

/// A replay says until when the record is kept, and that is when it ends.
pub(super) async fn a_replay_names_the_millisecond_of_expiry(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    let expected = lease.expires_at();
    let settled = engine.settle(lease, &done("x")).await.expect("the settle is answered");
    assert!(matches!(settled, Settled::Done(_)));
    let Begun::Replay(_, facts) = request.begin(&engine, 2).await else { panic!("no replay") };
    assert_eq!(facts.expires_at, expected);
    bench.advance(TTL - TICK).await;
    request.replay(&engine).await;
    bench.advance(TICK).await;
    let _lease = request.execute(&engine, 3).await;
}

/// An attempt is renewed up to `lease_max` after it began, to the millisecond.
pub(super) async fn a_lease_is_renewed_up_to_lease_max_exactly(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    let lease_max = LEASE + LEASE / 2;
    bench.advance(LEASE - TICK).await;
    let renewed = engine.renew(lease.renewal(), LEASE, lease_max).await.expect("it is answered");
    assert_eq!(renewed, Renewed::For(LEASE / 2 + TICK));
    bench.advance(LEASE / 2).await;
    let renewed = engine.renew(lease.renewal(), LEASE, lease_max).await.expect("it is answered");
    assert_eq!(renewed, Renewed::For(TICK));
    bench.advance(TICK).await;
    let renewed = engine.renew(lease.renewal(), LEASE, lease_max).await.expect("it is answered");
    assert_eq!(renewed, Renewed::Lost);
    assert!(matches!(request.begin(&engine, 2).await, Begun::Unknown(_)));
}

/// A page of records created before a moment does not hold those created at it.
pub(super) async fn created_before_leaves_out_the_millisecond_itself(bench: Stand) {
    let store = bench.store();
    let older = new(&store, first("older")).await;
    bench.advance(TICK).await;
    let newer = new(&store, first("newer")).await;
    let before = |at| Filter { created_before: Some(at), ..Filter::default() };
    assert_eq!(all(&store, before(older.created_at), 10).await, []);
    assert_eq!(all(&store, before(newer.created_at), 10).await, [older]);
    assert_eq!(all(&store, before(newer.created_at.plus(TICK)), 10).await.len(), 2);
}
