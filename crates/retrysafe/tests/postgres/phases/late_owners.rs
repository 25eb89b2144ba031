//! What can an owner still do whose flow another one has finished?

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use retrysafe::core::Policy;
use retrysafe::core::record::Happened;
use retrysafe::phases::{Flow, FlowEnd, Flows, Next};
use tokio::task::JoinHandle;

use super::rides::{Break, DAY, Point, RideRequest, Rides, answered, keyed};
use crate::kit::sql;

/// Starts a run that stops at this point, and comes back once it has.
async fn paused(rides: &Arc<Rides>, key: &str, point: Point) -> JoinHandle<FlowEnd> {
    rides.breaks.arm(point, Break::Pause);
    let (theirs, key) = (Arc::clone(rides), key.to_owned());
    let run = async move { theirs.run_with(&theirs.flows, &theirs.flow, &key).await.unwrap() };
    let run = tokio::spawn(run);
    rides.breaks.reached().await;
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_was_paused_past_its_lease_changes_nothing() {
    let rides = Arc::new(Rides::open(keyed()).await);
    for point in [
        Point::RideBefore,
        Point::RideAfter,
        Point::ChargeBefore,
        Point::ChargeAfter,
        Point::ReceiptBefore,
        Point::ReceiptAfter,
    ] {
        let key = format!("{point:?}");
        let late = paused(&rides, &key, point).await;
        rides.end_leases().await;
        let answer = rides.answer(&key).await;
        rides.breaks.release();
        let late = late.await.unwrap();
        assert!(matches!(late, FlowEnd::InProgress(_)), "{key}: {late:?}");
        rides.check_done_once(&key, &answer, &key).await;
        // The result of its call is kept as evidence.
        let timeline = rides.record(&key).await.timeline;
        let is_kept = timeline.iter().any(|moment| matches!(moment.what, Happened::LateResult(_)));
        let has_called = matches!(point, Point::ChargeBefore | Point::ChargeAfter);
        assert_eq!(is_kept, has_called, "{key}: {timeline:?}");
    }
}

/// While nobody has decided, the owner of a call is the one who knows: with a provider that has forgotten the
/// key meanwhile, and with one that takes none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_late_result_of_an_unknown_call_counts() {
    for rides in [Rides::open(keyed()).await, Rides::without_keys().await] {
        let rides = Arc::new(rides);
        for point in [Point::ChargeBefore, Point::ChargeAfter] {
            let key = format!("{point:?}");
            let late = paused(&rides, &key, point).await;
            rides.later(DAY).await;
            rides.provider.forget_keys();
            let ended = rides.run(&key).await;
            assert!(matches!(ended, Some(FlowEnd::Unknown)), "{key}: {ended:?}");
            rides.breaks.release();
            let late = late.await.unwrap();
            assert!(matches!(late, FlowEnd::InProgress(_)), "{key}: {late:?}");
            let answer = rides.answer(&key).await;
            rides.check_done_once(&key, &answer, &key).await;
        }
    }
}

/// A phase that locks a row, and stops. The server ends its session before its lease would be over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_stopped_owner_does_not_hold_its_successor() {
    let rides = Arc::new(Rides::open(keyed()).await);
    sql(&rides.url, "INSERT INTO ride (key) VALUES ('locked')").await;
    let breaks = Arc::clone(&rides.breaks);
    let flow: Flow<RideRequest> = Flow::named("locks", 1)
        .tx("locked", async move |mut tx, _: RideRequest, ()| {
            sqlx::raw_sql("SELECT FROM ride FOR UPDATE").execute(&mut *tx).await?;
            breaks.at(Point::RideAfter).await?;
            Ok(Next::Done(()))
        })
        .respond("told", async |_, _, _| Ok(Response::builder().status(201).body(Bytes::new())?))
        .unwrap();
    // A lock is waited for a third of it, and a transaction may take half: there is time for a slow machine in between.
    let lease = Duration::from_secs(12);
    let policy = Policy { lease, ..Policy::default() };
    let flows = Flows::new(rides.pool.clone(), rides.store.clone()).policy(policy).with(&flow);
    rides.breaks.arm(Point::RideAfter, Break::Pause);
    let (theirs, their_flows, their_flow) = (Arc::clone(&rides), flows.clone(), flow.clone());
    let stopped = async move { theirs.run_with(&their_flows, &their_flow, "k").await };
    let stopped = tokio::spawn(stopped);
    rides.breaks.reached().await;
    // The stopped owner's lease may be renewed between the turn of the clock and the run.
    let ended = loop {
        rides.later(lease * 2).await;
        match rides.run_with(&flows, &flow, "k").await.unwrap() {
            FlowEnd::InProgress(_) => {}
            ended => break ended,
        }
    };
    answered(Some(ended));
    rides.breaks.release();
    let late = stopped.await.unwrap();
    assert!(!matches!(late, Ok(FlowEnd::Answered(_))), "{late:?}");
}
