//! Are flows finished that nobody comes back for?

use std::time::Duration;

use retrysafe::core::record::Standing;
use retrysafe::phases::{Completed, FlowEnd};
use retrysafe::upkeep::Upkeep;

use super::rides::{Break, Point, Rides, keyed};

/// Longer than a flow is left to its caller after two attempts.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_whose_owner_died_is_finished_without_its_caller() {
    let rides = Rides::open(keyed()).await;
    for point in [Point::RideBefore, Point::ChargeBefore, Point::ChargeAfter, Point::ReceiptAfter] {
        let key = format!("{point:?}");
        rides.breaks.arm(point, Break::Crash);
        assert!(rides.run(&key).await.is_none());
        assert_eq!(rides.flows.complete().await.unwrap(), Completed::default(), "its owner lives");
        rides.end_leases().await;
        assert_eq!(rides.flows.complete().await.unwrap(), Completed::default(), "callers first");
        rides.later(PATIENCE).await;
        // Of two processes one wins.
        let (one, other) = tokio::join!(rides.flows.complete(), rides.flows.complete());
        assert_eq!(one.unwrap().finished + other.unwrap().finished, 1, "{key}");
        let answer = rides.answer(&key).await;
        rides.check_done_once(&key, &answer, &key).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_whose_phase_failed_is_finished_too() {
    let rides = Rides::open(keyed()).await;
    rides.breaks.arm(Point::ReceiptBefore, Break::Error);
    let failed = rides.run("k").await;
    assert!(matches!(failed, Some(FlowEnd::PhaseFailed { .. })), "{failed:?}");
    rides.later(PATIENCE).await;
    rides.breaks.arm(Point::ReceiptBefore, Break::Error);
    let unfinished = Completed { unfinished: 1, ..Completed::default() };
    assert_eq!(rides.flows.complete().await.unwrap(), unfinished);
    assert_eq!(rides.flows.complete().await.unwrap(), Completed::default(), "not at once again");
    rides.later(PATIENCE).await;
    let finished = Completed { finished: 1, ..Completed::default() };
    assert_eq!(rides.flows.complete().await.unwrap(), finished);
    let answer = rides.answer("k").await;
    rides.check_done_once("k", &answer, "k").await;
}

/// What has committed nothing, and what nobody may go on with, is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_completer_leaves_alone_what_may_not_go_on() {
    let rides = Rides::without_keys().await;
    rides.breaks.arm(Point::RideBefore, Break::Error);
    assert!(matches!(rides.run("nothing").await, Some(FlowEnd::PhaseFailed { .. })));
    rides.breaks.arm(Point::ChargeBefore, Break::Crash);
    assert!(rides.run("called").await.is_none());
    rides.later(Duration::from_secs(3_600)).await;
    assert_eq!(rides.flows.complete().await.unwrap(), Completed::default());
    assert_eq!(rides.provider.charges(), 0);
    assert_eq!(rides.engine.sweep(10).await.unwrap().doubted, 1);
    assert_eq!(rides.record("called").await.standing(), Standing::Unknown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upkeep_completes_by_itself() {
    let rides = Rides::open(keyed()).await;
    rides.breaks.arm(Point::ChargeAfter, Break::Crash);
    assert!(rides.run("k").await.is_none());
    rides.end_leases().await;
    rides.later(PATIENCE).await;
    let upkeep = Upkeep::new(rides.store.clone());
    let upkeep = upkeep.complete(rides.flows.clone(), Duration::from_millis(10)).start();
    while rides.record("k").await.standing() != Standing::Completed {
        tokio::task::yield_now().await;
    }
    upkeep.stop().await;
    let answer = rides.answer("k").await;
    rides.check_done_once("k", &answer, "k").await;
}
