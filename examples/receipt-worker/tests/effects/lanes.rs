//! Does a lane keep its order while deliveries fail and workers die?

use payment_provider::Mode;
use tokio::time::timeout;

use crate::process::PATIENCE;
use crate::world::{PAST_LEASES, World};

const LANES: usize = 8;
const EFFECTS_PER_LANE: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_keep_their_order_under_crashes_and_retries() {
    let world = World::open().await;
    let database = world.database().await;
    let receipts = world.provider("receipt");
    let name = |lane: usize, number: usize| format!("lane-{lane}-{number:02}");
    for number in 0..EFFECTS_PER_LANE {
        for lane in 0..LANES {
            let ride = name(lane, number);
            let failure = match number % 4 {
                0 => Some(Mode::ResetAfterCharging),
                1 => Some(Mode::FailBeforeCharging),
                2 => Some(Mode::FailAfterCharging),
                _ => None,
            };
            if let Some(failure) = failure {
                receipts.set_mode(&ride, failure.once());
            }
            database.stage("receipt", &ride, Some(&format!("lane {lane}"))).await;
        }
    }
    // Workers die in the middle of some lanes, with an effect that is done and one that is not.
    let deaths = [(0, 3, Mode::HoldAfterCharging), (1, 7, Mode::HoldBeforeCharging)];
    for (lane, number, hold) in deaths {
        let ride = name(lane, number);
        receipts.set_mode(&ride, hold.once());
        let mut dying = database.start_bare();
        timeout(PATIENCE, receipts.held(&ride)).await.expect("the lane comes so far");
        dying.kill();
        receipts.release(&ride);
        database.later(PAST_LEASES).await;
    }
    let mut worker = database.start_bare();
    let delivered = "SELECT count(*) FROM retrysafe.effect_done WHERE state = 5";
    database.until(delivered, (LANES * EFFECTS_PER_LANE) as i64).await;
    worker.end().await;
    assert_eq!(database.overtaken().await, 0);
    let totals = receipts.totals();
    assert_eq!(totals.charges, (LANES * EFFECTS_PER_LANE) as u64);
    assert!(totals.requests > totals.charges, "nothing was tried again");
}
