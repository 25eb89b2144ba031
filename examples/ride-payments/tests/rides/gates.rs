//! What must an implementation of idempotency keys show before it ships? One test for each line; docs/checklist.md has the list.

use crate::director::Order;
use crate::languages::Language;
use crate::matrix::{DONE, hold, is_held};
use crate::points::Point;
use crate::program::Program;
use crate::wire::Wire;
use crate::world::{Keys, World};

async fn open() -> (World, Program, Wire) {
    let world = World::open(Keys::Taken).await;
    let (program, wire) = world.start(Language::Rust).await;
    (world, program, wire)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_the_same_request_twice_is_one_answer() {
    let (world, program, _wire) = open().await;
    let first = program.caller.book("r").await.unwrap();
    let second = program.caller.book("r").await.unwrap();
    assert_eq!((first.status, first.is_replay), (201, false), "{first:?}");
    assert_eq!((second.status, second.is_replay), (201, true), "{second:?}");
    assert_eq!(first.body, second.body);
    assert_eq!(world.visible("r").await, DONE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_another_body_under_the_key_is_422() {
    let (world, program, _wire) = open().await;
    assert_eq!(program.caller.book_with("r", "key").await.unwrap().status, 201);
    let other = program.caller.book_with("another", "key").await.unwrap();
    assert_eq!(other.status, 422, "{other:?}");
    assert!(other.has_code("idempotency_key_reused"), "{other:?}");
    assert_eq!(world.visible("another").await.rides, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_of_two_at_once_one_runs_and_one_is_told_to_come_back() {
    let (world, program, _wire) = open().await;
    let first = tokio::spawn(hold(&world, &program.caller, "r", Point::RideToCommit));
    is_held(&world, "r", Point::RideToCommit).await;
    let second = program.caller.book("r").await.unwrap();
    assert_eq!(second.status, 409, "{second:?}");
    assert!(second.has_code("request_in_progress"), "{second:?}");
    assert!(second.body.contains("\"retry_after\""), "{second:?}");
    world.director.release("r", Point::RideToCommit.name());
    assert_eq!(first.await.unwrap().unwrap().status, 201);
    assert_eq!(world.visible("r").await, DONE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_a_killed_worker_is_resumed_and_no_phase_runs_twice() {
    let (world, program, _wire) = open().await;
    let (mut victim, _victims_wire) = world.start(Language::Rust).await;
    let booking = tokio::spawn(hold(&world, &victim.caller, "r", Point::ReceiptBegun));
    is_held(&world, "r", Point::ReceiptBegun).await;
    victim.kill();
    assert_eq!(booking.await.unwrap(), None);
    world.later(std::time::Duration::from_secs(61)).await;
    let before = world.director.visits("r").len();
    assert_eq!(program.caller.book_until_decided("r").await.status, 201);
    let visits = world.director.visits("r").split_off(before);
    let earlier = [Point::RideBegun, Point::RideToCommit, Point::ChargeToPrepare];
    assert!(earlier.iter().all(|point| !visits.contains(&point.name().to_owned())), "{visits:?}");
    assert_eq!(world.provider.ride("r").requests, 1);
    assert_eq!(world.visible("r").await, DONE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_scope_and_key_are_one_unique_index() {
    let (world, program, _wire) = open().await;
    assert_eq!(program.caller.book("r").await.unwrap().status, 201);
    // A record's name is the digest of scope and key, and nothing else is.
    let unique = "SELECT count(*) FROM pg_index i WHERE i.indrelid = 'retrysafe.record'::regclass
        AND i.indisunique AND i.indpred IS NULL AND i.indkey::text = (SELECT attnum::text
            FROM pg_attribute WHERE attrelid = i.indrelid AND attname = 'id')";
    assert_eq!(world.number(unique).await, 1);
    // A table of one row is read as it lies, unless that is forbidden: the question is which index there is to use.
    let plan = world.plan("SELECT FROM retrysafe.record WHERE id = sha256('')").await;
    assert!(plan.contains("Index") && plan.contains("record_pkey"), "{plan}");
}

/// Where the route does not say otherwise, only POST and PATCH need a key. This program has no other route.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_methods_that_are_idempotent_anyway_need_no_key() {
    let (_world, program, _wire) = open().await;
    assert_eq!(program.caller.ask_without_key("POST").await, 400);
    for method in ["GET", "PUT", "DELETE"] {
        assert_eq!(
            program.caller.ask_without_key(method).await,
            405,
            "{method} reaches the router"
        );
    }
}

#[test]
fn gate_the_documents_say_which_statuses_there_are_and_how_long_keys_are_kept() {
    let read = |page: &str| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
        std::fs::read_to_string(format!("{root}{page}")).unwrap()
    };
    for (page, status) in [
        ("problems/idempotency_key_reused.md", "422"),
        ("problems/request_in_progress.md", "409"),
        ("problems/idempotency_key_missing.md", "400"),
    ] {
        assert!(read(page).contains(status), "{page}");
    }
    assert!(read("config.md").contains("`ttl`"), "how long keys are kept");
}

/// The gates can fail: an order that nobody carries out is noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_for_a_point_that_nobody_comes_to_stays() {
    let (world, program, _wire) = open().await;
    world.director.order("r", "no such point", Order::Error);
    assert_eq!(program.caller.book("r").await.unwrap().status, 201);
    assert!(world.director.is_pending("r", "no such point"));
}
