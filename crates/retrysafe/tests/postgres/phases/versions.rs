//! What becomes of a flow whose version another process has begun? And is it seen?

use metrics_exporter_prometheus::PrometheusBuilder;
use retrysafe::core::flow::RecoveryPoint;
use retrysafe::core::record::Happened;
use retrysafe::phases::{Completed, FlowEnd, Flows};
use std::time::Duration;

use super::rides::{Break, Point, Rides, create_ride, keyed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_nobody_has_registered_is_held_and_never_run() {
    let rides = Rides::open(keyed()).await;
    rides.breaks.arm(Point::ChargeAfter, Break::Crash);
    assert!(rides.run("k").await.is_none());
    rides.end_leases().await;
    rides.later(Duration::from_secs(60)).await;

    let second = create_ride(2, keyed(), &rides.provider, &rides.breaks);
    let only_second = Flows::new(rides.pool.clone(), rides.store.clone()).with(&second);
    let before = rides.record("k").await;
    let ended = rides.run_with(&only_second, &second, "k").await.unwrap();
    let FlowEnd::Held(version) = ended else { panic!("{ended:?}") };
    assert_eq!((&*version.name, version.version), ("create_ride", 1));
    let held = Completed { held: 1, ..Completed::default() };
    assert_eq!(only_second.complete().await.unwrap(), held);
    assert_eq!(rides.record("k").await, before, "nothing has changed");

    // With both versions the first one is gone on with, though the second one was asked for.
    let both = only_second.with(&rides.flow);
    let ended = rides.run_with(&both, &second, "k").await.unwrap();
    let answer = super::rides::answered(Some(ended));
    rides.check_done_once("k", &answer, "k").await;
    let ended = rides.run_with(&both, &second, "new").await.unwrap();
    let answer = super::rides::answered(Some(ended));
    rides.check_done_once("new", &answer, "new").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_that_is_not_registered_is_not_begun() {
    let rides = Rides::open(keyed()).await;
    let flows = Flows::new(rides.pool.clone(), rides.store.clone());
    let ended = rides.run_with(&flows, &rides.flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::Held(_)), "{ended:?}");
    assert_eq!(rides.rides("k").await, 0);
    let answer = rides.answer("k").await;
    rides.check_done_once("k", &answer, "k").await;
}

/// The timeline shows each recovery point, and the metrics each phase, each resume and what is held.
#[test]
fn phases_resumes_and_holds_are_seen() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let rides = Rides::open(keyed()).await;
            rides.breaks.arm(Point::ReceiptBefore, Break::Crash);
            assert!(rides.run("k").await.is_none());
            let points: Vec<RecoveryPoint> = rides
                .record("k")
                .await
                .timeline
                .iter()
                .filter_map(|moment| match moment.what {
                    Happened::Advanced(point) => Some(point),
                    _ => None,
                })
                .collect();
            // Its start came with its begin, which is a moment of its own.
            let expected =
                [RecoveryPoint::Before(1), RecoveryPoint::Calling(1), RecoveryPoint::Before(2)];
            assert_eq!(points, expected);
            rides.end_leases().await;
            let nobody = Flows::new(rides.pool.clone(), rides.store.clone());
            assert_eq!(nobody.complete().await.unwrap().held, 1);
            rides.answer("k").await;
        });
    });
    let metrics = metrics.render();
    for line in [
        "retrysafe_flow_resumes_total{flow=\"create_ride\"} 1",
        "retrysafe_phase_seconds_count{flow=\"create_ride\",phase=\"ride_created\"} 1",
        "retrysafe_phase_seconds_count{flow=\"create_ride\",phase=\"charge_created\"} 1",
        "retrysafe_phase_seconds_count{flow=\"create_ride\",phase=\"receipt_written\"} 1",
        "retrysafe_flows_held 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}
