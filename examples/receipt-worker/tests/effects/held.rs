//! What becomes of a batch of which an application takes one effect back?

use tokio::time::timeout;

use crate::points::Point;
use crate::process::PATIENCE;
use crate::wire::{Act, Gate};
use crate::world::World;

const BATCH: i64 = 10;

/// The mark waited for the application's transaction, and after five seconds the whole batch was given back and claimed anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_others_of_a_batch_are_sent_under_their_claim_while_one_is_taken_back() {
    let world = World::open().await;
    let database = world.database().await;
    let ride = |number: i64| format!("held-{number}");
    let mut ids = Vec::new();
    for number in 0..BATCH {
        ids.push(database.stage("receipt", &ride(number), None).await);
    }
    let gate = Gate { times: 1, ..Point::BeforeMark.gate(Act::Hold).unwrap() };
    let (mut worker, wire) = database.start(Some(gate)).await;
    timeout(PATIENCE, wire.has_met(1)).await.expect("the batch is claimed");
    let claimed = "CREATE TABLE claimed AS SELECT id, fence FROM retrysafe.effect WHERE state = 2";
    world.cluster.sql(database.name(), claimed);
    let mut application = database.another_client().await;
    let open = application.transaction().await.unwrap();
    let refused = open.query_one("SELECT retrysafe.cancel_effect_v1($1)", &[&ids[4]]).await;
    assert_eq!(refused.unwrap().get::<_, Option<&str>>(0), None);
    wire.open();
    let under_its_claim =
        "SELECT count(*) FROM retrysafe.effect_done JOIN claimed USING (id, fence) WHERE state = 5";
    database.until(under_its_claim, BATCH - 1).await;
    // The application has changed its mind: what nobody has sent is sent.
    open.rollback().await.unwrap();
    database.until("SELECT count(*) FROM retrysafe.effect_done WHERE state = 5", BATCH).await;
    worker.end().await;
    for number in 0..BATCH {
        assert_eq!(world.provider("receipt").ride(&ride(number)).requests, 1, "{number}");
    }
}
