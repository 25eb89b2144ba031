//! What becomes of an effect that kills its workers, and of those around it?
//!
//! Whenever it stands at its point, its worker is killed: that is what it does.

use std::sync::Arc;

use payment_provider::Mode;
use tokio::time::timeout;

use crate::points::Point;
use crate::process::PATIENCE;
use crate::wire::{Act, Gate};
use crate::world::{Database, PAST_LEASES, World};

/// After so many leases that ended without a word after their mark an effect is given up.
const CRASHES_MAX: usize = 5;

const POISON: &str = "poison";

/// Kills one worker after the other, each when it sends the poison.
async fn kill_whoever_sends_it(world: &Arc<World>, database: &Database) {
    let receipts = world.provider("receipt");
    receipts.set_mode(POISON, Mode::HoldBeforeCharging.always());
    for _ in 0..CRASHES_MAX {
        let mut dying = database.start_bare();
        timeout(PATIENCE, receipts.held(POISON)).await.expect("the poison is sent");
        dying.kill();
        receipts.release(POISON);
        receipts.idle(POISON).await;
        database.later(PAST_LEASES).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_that_may_have_been_done_is_unknown_and_stops_no_other_lane() {
    let world = World::open().await;
    let database = world.database().await;
    database.stage("receipt", POISON, Some("p")).await;
    database.stage("receipt", "behind it", Some("p")).await;
    for number in 0..5 {
        database.stage("receipt", &format!("q-{number}"), Some("q")).await;
        database.stage("receipt", &format!("alone-{number}"), None).await;
    }
    kill_whoever_sends_it(&world, &database).await;
    let mut worker = database.start_bare();
    database
        .until("SELECT count(*) FROM retrysafe.effect WHERE state = 3 AND crashes = 5", 1)
        .await;
    database.until("SELECT count(*) FROM retrysafe.effect_done WHERE state = 5", 10).await;
    worker.end().await;
    assert_eq!(database.number("SELECT count(*) FROM retrysafe.effect WHERE state = 0").await, 1);
    assert_eq!(database.overtaken().await, 0);
    let poison = world.provider("receipt").ride(POISON);
    assert_eq!((poison.requests, poison.charges), (CRASHES_MAX as u64, 1));
}

/// Nobody is called before the mark, so whatever killed these workers was not the effect. It was given up, and its lane stood.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_die_before_the_mark_are_not_held_against_an_effect() {
    let world = World::open().await;
    let database = world.database().await;
    database.stage("receipt", "claimed", Some("p")).await;
    database.stage("receipt", "behind it", Some("p")).await;
    let gate = Gate { times: 1, ..Point::BeforeMark.gate(Act::Hold).unwrap() };
    for _ in 0..CRASHES_MAX {
        let (mut dying, wire) = database.start(Some(gate)).await;
        timeout(PATIENCE, wire.has_met(1)).await.expect("it is claimed");
        dying.kill();
        database.later(PAST_LEASES).await;
    }
    let mut worker = database.start_bare();
    let done = "SELECT count(*) FROM retrysafe.effect_done WHERE state = 5 AND crashes = 0";
    database.until(done, 2).await;
    worker.end().await;
    assert_eq!(database.overtaken().await, 0);
    assert_eq!(world.provider("receipt").ride("claimed").requests, 1);
}

/// Effects that were claimed together with a poison once died with it, five times out of five, and were given up with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_takes_no_neighbour_with_it() {
    let world = World::open().await;
    let database = world.database().await;
    for number in 0..6 {
        let ride = format!("neighbour-{number}");
        // Slow enough to be under way when the poison kills.
        world.provider("receipt").set_mode(&ride, Mode::Slow { ms: 500 }.always());
        database.stage("receipt", &ride, None).await;
        if number == 2 {
            database.stage("receipt", POISON, None).await;
        }
    }
    kill_whoever_sends_it(&world, &database).await;
    let mut worker = database.start_bare();
    database
        .until("SELECT count(*) FROM retrysafe.effect WHERE state = 3 AND crashes = 5", 1)
        .await;
    database.until("SELECT count(*) FROM retrysafe.effect_done WHERE state = 5", 6).await;
    worker.end().await;
}
