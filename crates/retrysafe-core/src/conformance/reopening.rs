//! Is everything that was acknowledged there after a restart?
//!
//! For stores that can be closed and opened again over what they have stored.

use super::Owners;
use super::flows::{flow_at, go_on};
use super::samples::*;
use super::stand::ReopenStand;
use crate::engine::{Begun, Engine, Settled};
use crate::flow::{FlowVersion, RequestDigest};
use crate::machine::flows::FlowStep;
use crate::machine::{Decision, OwnerGone, decide};
use crate::record::{Doubt, Outcome, Record, Standing, State};
use crate::scope::CredentialMark;
use crate::store::{Filter, Store as _};
use crate::time::Time;

/// Settled and unknown records are as they were, to the byte.
pub(super) async fn settled_and_unknown_records_survive(mut bench: ReopenStand) {
    let mut records = Vec::new();
    for n in 0..30 {
        let how = [Standing::Completed, Standing::FailedRetryable, Standing::Unknown][n % 3];
        records.push(standing(&bench.store(), &format!("k{n}"), how).await);
    }
    bench.reopen().await;
    for record in &records {
        assert_eq!(load(&bench.store(), record.id).await.as_ref(), Some(record));
    }
    let found = all(&bench.store(), Filter::default(), 7).await;
    assert_eq!(ids(&found), ids(&records));
}

/// A replay after the restart has the same bytes.
pub(super) async fn answers_replay_after_a_restart(mut bench: ReopenStand) {
    let body: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let request = Request::new("k");
    {
        let engine = Engine::new(bench.store());
        let lease = request.execute(&engine, 1).await;
        engine.settle(lease, &done(body.clone())).await.expect("the settle is answered");
    }
    bench.reopen().await;
    let engine = Engine::new(bench.store());
    assert_eq!(request.replay(&engine).await, answer(body));
}

/// A record is still its own credential's after the restart, and that of its last attempt.
pub(super) async fn credential_marks_survive(mut bench: ReopenStand) {
    let request =
        |name: &[u8]| Request { mark: Some(CredentialMark::of(name)), ..Request::new("k") };
    {
        let engine = Engine::new(bench.store());
        let lease = request(b"old").execute(&engine, 1).await;
        engine.settle(lease, &Outcome::Retryable(None)).await.expect("the settle is answered");
        let lease = request(b"new").execute(&engine, 2).await;
        engine.settle(lease, &done("new")).await.expect("the settle is answered");
    }
    bench.reopen().await;
    let engine = Engine::new(bench.store());
    assert_eq!(request(b"new").replay(&engine).await, answer("new"));
    let begun = request(b"old").begin(&engine, 3).await;
    assert!(matches!(begun, Begun::CredentialChanged), "{begun:?}");
}

/// What is known of an answer that did not come whole, and whose it was, is known after the restart.
pub(super) async fn heads_and_owners_survive(mut bench: ReopenStand) {
    let head = head(201, Some("/orders/7"));
    let store = bench.store();
    let mut with_head = Vec::new();
    for key in ["running", "doubted"] {
        let mut asked = first(key);
        asked.owner = u64::MAX;
        let begun = new(&store, asked).await;
        with_head.push(swapped(&store, &begun, keep_head(head.clone())).await);
    }
    let running = with_head.remove(0);
    let doubted = swapped(&store, &with_head.remove(0), doubt()).await;
    drop(store);
    let owners = bench.reopen().await;
    let after = load(&bench.store(), running.id).await.expect("a reservation is durable");
    reopened(&running, &after, owners);
    assert_eq!(load(&bench.store(), doubted.id).await.as_ref(), Some(&doubted));
    for record in [after, doubted] {
        assert_eq!((record.state.owner(), record.state.head()), (Some(u64::MAX), Some(&head)));
    }
}

/// A flow is where it was, and somebody goes on with it: at once if its owner is gone.
pub(super) async fn flows_survive_and_go_on(mut bench: ReopenStand) {
    let digest = RequestDigest::of(b"charge");
    let start = FlowStep::Start { flow: FlowVersion::new("ride", 1), input: "input".into() };
    let commit = FlowStep::Commit { phase: 0, output: "output".into() };
    let call = |length| FlowStep::Call { phase: 1, digest, repeatable_for: length };
    let (between, keyed) = (Request::new("between"), Request::new("keyed"));
    let (unkeyed, released) = (Request::new("unkeyed"), Request::new("released"));
    let mut before = Vec::new();
    {
        let engine = Engine::new(bench.store());
        let steps = [start.clone(), commit.clone()];
        drop(flow_at(&engine, &between, &steps).await);
        let lease = flow_at(&engine, &released, &steps).await;
        let outcome = Outcome::Retryable(None);
        assert!(matches!(engine.settle(lease, &outcome).await, Ok(Settled::Done(_))));
        for (request, length) in [(&keyed, Some(AGES)), (&unkeyed, None)] {
            drop(flow_at(&engine, request, &[start.clone(), commit.clone(), call(length)]).await);
        }
        for request in [&between, &keyed, &unkeyed, &released] {
            before.push(request.record(&engine).await);
        }
    }
    let owners = bench.reopen().await;
    let engine = Engine::new(bench.store());
    for (request, before) in [&between, &keyed, &unkeyed, &released].into_iter().zip(before) {
        assert_eq!(request.record(&engine).await.flow, before.flow);
    }
    if owners == Owners::Remain {
        bench.advance(LEASE * 2).await;
    }
    for request in [&between, &keyed, &released] {
        let lease = go_on(&engine, request, 2).await;
        assert_eq!(lease.flow().map(|flow| flow.outputs().len()), Some(1));
    }
    assert!(matches!(unkeyed.begin(&engine, 2).await, Begun::Unknown(_)));
}

/// What a record in progress is after a restart, as the store says of its owners.
fn reopened(before: &Record, after: &Record, owners: Owners) {
    match owners {
        Owners::Remain => assert_eq!(after, before),
        Owners::Gone => {
            let State::Unknown { since, doubt, .. } = after.state else { panic!("{after:?}") };
            assert_eq!(doubt, Doubt::OwnerGone);
            let write = decide(Some(before), &OwnerGone, since).and_then(Decision::write);
            let write = write.expect("it was in progress");
            assert_eq!(*after, write.onto(before, since, after.version));
            assert!(after.version > before.version);
        }
    }
}

/// Whoever was executing is gone, or goes on, and the record says so at once.
pub(super) async fn running_records_are_in_doubt_where_their_owners_are_gone(
    mut bench: ReopenStand,
) {
    let mut running = Vec::new();
    for n in 0..20 {
        running.push(new(&bench.store(), first(&format!("k{n}"))).await);
    }
    let owners = bench.reopen().await;
    for before in &running {
        let after = load(&bench.store(), before.id).await.expect("a reservation is durable");
        reopened(before, &after, owners);
        let engine = Engine::new(bench.store());
        let begun = engine.begin(&Request::new("k0").ask(9)).await.expect("it is answered");
        match owners {
            Owners::Gone => assert!(matches!(begun, Begun::Unknown(_)), "{begun:?}"),
            Owners::Remain => assert!(matches!(begun, Begun::InProgress(_)), "{begun:?}"),
        }
    }
}

/// An owner that outlived the store's restart still tells the truth while nobody has decided.
pub(super) async fn a_lease_from_before_the_restart_still_settles(mut bench: ReopenStand) {
    let request = Request::new("k");
    let lease = {
        let engine = Engine::new(bench.store());
        request.execute(&engine, 1).await
    };
    bench.reopen().await;
    let engine = Engine::new(bench.store());
    let settled = engine.settle(lease, &done("x")).await.expect("the settle is answered");
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// Numbers rise across restarts, over the same record.
pub(super) async fn numbers_rise_across_restarts(mut bench: ReopenStand) {
    let mut last = standing(&bench.store(), "k", Standing::Unknown).await.version;
    for n in 0..5 {
        bench.reopen().await;
        let store = bench.store();
        let record = load(&store, first("k").id).await.expect("it is there");
        let next = swapped(&store, &record, look_up()).await.version;
        assert!(next > last, "{next} after {last}");
        let other = new(&store, first(&format!("other{n}"))).await;
        assert!(other.version > next, "{} after {next}", other.version);
        last = other.version;
    }
}

/// And when everything was reaped, so that nothing that is left is as high as what was given out.
pub(super) async fn numbers_rise_across_reaping_and_restarts(mut bench: ReopenStand) {
    let mut last = 0;
    for owner in 0..5 {
        {
            let store = bench.store();
            let mut again = first("k");
            again.owner = owner;
            let begun = new(&store, again).await;
            assert!(begun.version > last, "{} after {last}", begun.version);
            let settled = swapped(&store, &begun, complete(answer("x"))).await;
            last = settled.version;
            bench.advance(TTL * 2).await;
            assert_eq!(reap(&store, 10).await, 1);
        }
        bench.reopen().await;
    }
}

/// Time does not go back over a restart, so a retention does not begin again.
pub(super) async fn the_clock_does_not_go_back_over_a_restart(mut bench: ReopenStand) {
    let mut last = Time::default();
    for _ in 0..5 {
        let now = bench.store().load(first("k").id).await.expect("it is answered").now;
        assert!(now >= last, "{now:?} after {last:?}");
        insert(&bench.store(), first("k")).await;
        bench.advance(LEASE).await;
        last = insert(&bench.store(), first("k")).await.now;
        bench.reopen().await;
    }
}

/// What was reaped stays gone, and what had expired is still there to be reaped, once.
pub(super) async fn reaped_records_stay_gone(mut bench: ReopenStand) {
    for n in 0..10 {
        standing(&bench.store(), &format!("k{n}"), Standing::Completed).await;
    }
    bench.advance(TTL * 2).await;
    assert_eq!(reap(&bench.store(), 6).await, 6);
    bench.reopen().await;
    assert_eq!(all(&bench.store(), Filter::default(), 100).await.len(), 4);
    assert_eq!(reap(&bench.store(), 100).await, 4);
    bench.reopen().await;
    assert_eq!(all(&bench.store(), Filter::default(), 100).await, []);
    assert_eq!(reap(&bench.store(), 100).await, 0);
    for n in 0..10 {
        new(&bench.store(), first(&format!("k{n}"))).await;
    }
}

/// A record that replaced an expired one is the one that is found.
pub(super) async fn the_last_generation_is_the_one_that_survives(mut bench: ReopenStand) {
    for generation in 0..4u8 {
        let store = bench.store();
        let begun = new(&store, first("k")).await;
        swapped(&store, &begun, complete(answer(vec![generation]))).await;
        drop(store);
        bench.reopen().await;
        let engine = Engine::new(bench.store());
        assert_eq!(Request::new("k").replay(&engine).await, answer(vec![generation]));
        bench.advance(TTL * 2).await;
    }
}

/// A writer from before the restart loses to whoever has written since.
pub(super) async fn a_swap_from_before_the_restart_loses_to_a_later_one(mut bench: ReopenStand) {
    let old = standing(&bench.store(), "k", Standing::Unknown).await;
    bench.reopen().await;
    let store = bench.store();
    let current = swapped(&store, &old, complete(answer("x"))).await;
    drop(store);
    bench.reopen().await;
    assert_eq!(beaten(&bench.store(), &old, fail()).await, Some(current));
}

/// One restart after the other changes nothing more.
pub(super) async fn restarts_in_a_row_change_nothing_more(mut bench: ReopenStand) {
    let settled = standing(&bench.store(), "c", Standing::Completed).await;
    new(&bench.store(), first("i")).await;
    bench.reopen().await;
    let running = load(&bench.store(), first("i").id).await;
    for _ in 0..4 {
        bench.reopen().await;
        assert_eq!(load(&bench.store(), first("i").id).await, running);
        assert_eq!(load(&bench.store(), settled.id).await.as_ref(), Some(&settled));
    }
}

/// A scan that was interrupted by a restart begins anew, and meets everything.
pub(super) async fn scans_are_whole_after_a_restart(mut bench: ReopenStand) {
    let mut records = Vec::new();
    for n in 0..40 {
        records.push(standing(&bench.store(), &format!("k{n}"), Standing::ALL[n % 4]).await);
    }
    let owners = bench.reopen().await;
    for standing in Standing::ALL {
        let filter = Filter { standing: Some(standing), ..Filter::default() };
        let expected = match (owners, standing) {
            (Owners::Gone, Standing::InProgress) => 0,
            (Owners::Gone, Standing::Unknown) => 20,
            (Owners::Gone | Owners::Remain, _) => 10,
        };
        assert_eq!(all(&bench.store(), filter, 7).await.len(), expected, "{standing:?}");
    }
}

/// Leases and expiries are due after a restart as they were before.
pub(super) async fn upkeep_goes_on_after_a_restart(mut bench: ReopenStand) {
    for n in 0..10 {
        let how = [Standing::InProgress, Standing::Completed][n % 2];
        standing(&bench.store(), &format!("k{n}"), how).await;
    }
    let owners = bench.reopen().await;
    bench.advance(TTL * 2).await;
    let engine = Engine::new(bench.store());
    let swept = engine.sweep(100).await.expect("the sweep is answered");
    assert_eq!(swept.doubted, if owners == Owners::Gone { 0 } else { 5 });
    assert_eq!(engine.reap(100).await.expect("the reap is answered"), 5);
    let unknown = Filter { standing: Some(Standing::Unknown), ..Filter::default() };
    assert_eq!(all(engine.store(), unknown, 100).await.len(), 5);
}
