//! What becomes of a ride when the provider, the caller or the operator does not do the usual?

use std::time::{Duration, Instant};

use payment_provider::Mode;

use crate::languages::{LANGUAGES, Language};
use crate::matrix::{DONE, hold, is_held};
use crate::points::{Point, Visible};
use crate::program::{PACE, PATIENCE};
use crate::world::{Keys, World};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_told_to_stop_finishes_what_it_has_begun() {
    let world = World::open(Keys::Taken).await;
    let (mut program, _wire) = world.start(Language::Rust).await;
    let booking = tokio::spawn(hold(&world, &program.caller, "r", Point::ReceiptToCommit));
    is_held(&world, "r", Point::ReceiptToCommit).await;
    program.ask_to_end();
    world.director.release("r", Point::ReceiptToCommit.name());
    assert_eq!(booking.await.unwrap().unwrap().status, 201);
    assert!(program.ended().await, "it ends without a complaint");
    assert_eq!(world.visible("r").await, DONE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declined_card_is_one_answer_for_everybody() {
    for language in LANGUAGES {
        let world = World::open(Keys::Taken).await;
        let (program, _wire) = world.start(language).await;
        world.provider.set_mode("r", Mode::Decline.once());
        let told = program.caller.book("r").await.unwrap();
        assert_eq!(told.status, 402, "{language:?}: {told:?}");
        let again = program.caller.book("r").await.unwrap();
        assert_eq!((again.status, again.is_replay, again.body), (402, true, told.body));
        let ride = world.provider.ride("r");
        assert_eq!((ride.requests, ride.charges, ride.declined), (1, 0, 1), "{language:?}");
    }
}

/// Two keys for one booking are two operations: the constraint of the application's own is the last net.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_booking_under_two_keys_is_charged_once() {
    for language in LANGUAGES {
        let world = World::open(Keys::Taken).await;
        let (program, _wire) = world.start(language).await;
        assert_eq!(program.caller.book_with("r", "one").await.unwrap().status, 201);
        for is_replay in [false, true] {
            let other = program.caller.book_with("r", "other").await.unwrap();
            assert_eq!(
                (other.status, other.is_replay),
                (409, is_replay),
                "{language:?}: {other:?}"
            );
            assert!(other.body.contains("has a ride already"), "{language:?}: {other:?}");
        }
        assert_eq!(world.visible("r").await, DONE, "{language:?}");
    }
}

/// The provider remembers keys for a day, and the outage is longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_is_not_repeated_once_its_provider_has_forgotten_the_key() {
    let world = World::open(Keys::Taken).await;
    let (program, _wire) = world.start(Language::Rust).await;
    let (mut victim, _victims_wire) = world.start(Language::Rust).await;
    let point = Point::ChargeMade;
    let booking = tokio::spawn(hold(&world, &victim.caller, "r", point));
    is_held(&world, "r", point).await;
    victim.kill();
    assert_eq!(booking.await.unwrap(), None);
    world.later(DAY).await;
    world.provider.forget_keys();
    for _ in 0..2 {
        let told = program.caller.book("r").await.unwrap();
        assert!(told.has_code("outcome_unknown"), "{told:?}");
    }
    assert_eq!(world.visible("r").await, Visible { rides: 1, charges: 1, receipts: 0 });
    assert_eq!(world.provider.ride("r").requests, 1);
}

/// "This key is in use" and a 503 say nothing about the charge. They are not kept, and the next attempt asks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_the_provider_that_says_nothing_is_not_kept() {
    let world = World::open(Keys::Taken).await;
    let (program, _wire) = world.start(Language::Rust).await;
    for mode in [Mode::KeyInUse, Mode::FailBeforeCharging] {
        let ride = format!("{mode:?}");
        world.provider.set_mode(&ride, mode.once());
        let told = program.caller.book(&ride).await.unwrap();
        assert!(told.has_code("request_in_progress"), "{told:?}");
        assert_eq!(program.caller.book(&ride).await.unwrap().status, 201);
        assert_eq!(world.visible(&ride).await, DONE);
    }
    // A connection that was reset before the provider read anything may have carried the request all the same.
    world.provider.reset_connections(1);
    let told = program.caller.book("r").await.unwrap();
    assert!(told.is_for_later(), "{told:?}");
    assert_eq!(program.caller.book_until_decided("r").await.status, 201);
    assert_eq!(world.visible("r").await, DONE);
}

/// The call is over its deadline, a third of the lease. Nobody knows, and the next attempt asks with the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_is_too_slow_is_asked_again_with_the_same_key() {
    let mut world = World::open(Keys::Taken).await;
    // The second call must be in time on a machine that stalls.
    world.settings.push(("LEASE_MS", "15000".to_owned()));
    world.settings.push(("PROVIDER_MARGIN_MS", "0".to_owned()));
    for language in LANGUAGES {
        let (program, _wire) = world.start(language).await;
        let ride = format!("{language:?}");
        world.provider.set_mode(&ride, Mode::Slow { ms: 60_000 }.once());
        let told = program.caller.book(&ride).await.unwrap();
        assert!(told.is_for_later(), "{language:?}: {told:?}");
        assert_eq!(program.caller.book_until_decided(&ride).await.status, 201, "{language:?}");
        let charged = world.provider.ride(&ride);
        assert_eq!((charged.requests, charged.charges, charged.keys.len()), (2, 1, 1), "{ride}");
        assert_eq!(world.visible(&ride).await, DONE, "{ride}");
    }
}

/// Nobody asks again. The completer of another process finishes the ride.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ride_whose_caller_never_came_back_is_finished() {
    let mut world = World::open(Keys::Taken).await;
    world.settings.push(("COMPLETE_EVERY_MS", "50".to_owned()));
    let (_program, _wire) = world.start(Language::Rust).await;
    let (mut victim, _victims_wire) = world.start(Language::Rust).await;
    let left_at = [
        ("one", Point::RideToCommit),
        ("two", Point::ChargeAnswered),
        ("three", Point::ReceiptToCommit),
    ];
    for (ride, point) in left_at {
        tokio::spawn(hold(&world, &victim.caller, ride, point));
        is_held(&world, ride, point).await;
    }
    victim.kill();
    world.later(Duration::from_secs(120)).await;
    let begun = Instant::now();
    for (ride, point) in left_at {
        while world.visible(ride).await != DONE {
            assert!(begun.elapsed() < PATIENCE, "{point:?}");
            tokio::time::sleep(PACE).await;
        }
    }
}
