//! Is everything done once, wherever the operation is broken off?

use retrysafe::phases::FlowEnd;

use super::rides::{Break, Point, Rides, keyed};

const POINTS: [Point; 7] = [
    Point::RideBefore,
    Point::RideAfter,
    Point::ChargePrepared,
    Point::ChargeBefore,
    Point::ChargeAfter,
    Point::ReceiptBefore,
    Point::ReceiptAfter,
];

/// What the run says that was broken off: nothing if it crashed.
fn is_told(ended: Option<&FlowEnd>, point: Point, how: Break) -> bool {
    match (ended, how) {
        (None, Break::Crash) => true,
        (Some(FlowEnd::CallToRepeat { .. }), Break::Error | Break::Panic) => {
            matches!(point, Point::ChargeBefore | Point::ChargeAfter)
        }
        (Some(FlowEnd::PhaseFailed { .. }), Break::Error | Break::Panic) => {
            !matches!(point, Point::ChargeBefore | Point::ChargeAfter)
        }
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_ride_and_one_charge_wherever_a_run_is_broken_off() {
    let rides = Rides::open(keyed()).await;
    let mut cells = 0;
    for how in [Break::Crash, Break::Error, Break::Panic] {
        // What is not awaited cannot be left in the middle.
        let points = POINTS
            .into_iter()
            .filter(|point| !(*point == Point::ChargePrepared && how == Break::Crash));
        for point in points {
            let key = format!("{point:?} {how:?}").replace(' ', "-");
            rides.breaks.arm(point, how);
            let ended = rides.run(&key).await;
            assert!(is_told(ended.as_ref(), point, how), "{key}: {ended:?}");
            // The rows of a phase are there all or none.
            let is_ride_made = i64::from(point > Point::RideAfter);
            assert_eq!(rides.rides(&key).await, is_ride_made, "{key}");
            assert_eq!(rides.receipts(&key).await, 0, "{key}");
            if how == Break::Crash {
                let left = rides.run(&key).await;
                assert!(matches!(left, Some(FlowEnd::InProgress(_))), "{key}: {left:?}");
                rides.end_leases().await;
            }
            let answer = rides.answer(&key).await;
            rides.check_done_once(&key, &answer, &key).await;
            cells += 1;
        }
    }
    println!("{cells} cells: 7 points by crash, error and panic");
}

/// A COMMIT that did not arrive, and one whose acknowledgement was lost. The run reads the record, and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_an_answer_is_read_back_and_made_once() {
    let rides = Rides::open(keyed()).await;
    for how in [Break::CutBeforeCommit, Break::CutAfterCommit] {
        for point in [Point::RideAfter, Point::ReceiptAfter] {
            let key = format!("{point:?}-{how:?}");
            rides.breaks.arm(point, how);
            let answer = rides.answer(&key).await;
            assert!(rides.breaks.is_used_up(), "{key}");
            rides.check_done_once(&key, &answer, &key).await;
        }
    }
}
