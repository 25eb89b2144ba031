//! What if the store fails, the owner is slow, or the process is told to stop?

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use retrysafe::layer::IdempotencyLayer;
use retrysafe::stores::clock::Clock;
use retrysafe::stores::memory::MemoryStore;
use retrysafe_core::policy::Policy;
use retrysafe_core::record::{Happened, Standing};
use retrysafe_core::store::StoreErrorKind;
use retrysafe_core::time::Time;
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt};

use crate::stage::{Fault, Faulty, On, PATIENCE, Shop, Stage, must, shelves};

const DOWN: Fault = Fault::Refuse(StoreErrorKind::Unavailable);

#[tokio::test]
async fn a_settle_whose_acknowledgement_is_lost_is_repeated_with_the_same_fence() {
    let stage = Stage::open(Policy::default()).await;
    stage.store.next(On::Swap, Fault::LoseAnswer);
    stage.store.next(On::Swap, Fault::LoseWrite);
    let first = stage.post("/pay", "k", "").await;
    assert_eq!((first.status, first.text()), (201, "paid 1 for 0 bytes"));
    assert!(stage.post("/pay", "k", "").await.is_replay());
    let record = &stage.records().await[0];
    assert_eq!((record.attempts, record.standing()), (1, Standing::Completed));
    let settles = record.timeline.iter().filter(|m| matches!(m.what, Happened::Settled(..)));
    assert_eq!(settles.count(), 1);
}

#[tokio::test]
async fn a_settle_that_fails_for_too_long_is_told_as_unknown_and_tried_on() {
    let soon = Duration::from_millis(10);
    let stage = Stage::open_with(|layer| layer.settle_max(soon)).await;
    let full = Fault::Refuse(StoreErrorKind::Full);
    stage.store.always(Some((On::Swap, full)));
    let first = stage.post("/pay", "k", "").await;
    first.refuses(503, "outcome_unknown");
    assert!(!first.text().contains("paid"));
    stage.post("/pay", "k", "").await.refuses(409, "request_in_progress");
    stage.store.always(None);
    stage.settled().await;
    let again = stage.post("/pay", "k", "").await;
    assert!(again.is_replay());
    assert_eq!((again.text(), stage.shop.runs()), ("paid 1 for 0 bytes", 1));
}

#[tokio::test]
async fn an_ambiguous_begin_is_503_and_its_key_is_not_stuck() {
    let stage = Stage::open(Policy::default()).await;
    stage.store.next(On::Insert, Fault::LoseAnswer);
    stage.post("/pay", "k", "").await.refuses(503, "store_unavailable");
    stage.settled().await;
    assert_eq!(stage.standing().await, Standing::FailedRetryable);
    assert_eq!(stage.shop.runs(), 0);
    let again = stage.post("/pay", "k", "").await;
    assert_eq!((again.status, stage.shop.runs()), (201, 1));
}

#[tokio::test]
async fn a_store_that_never_answers_costs_its_time_limit_and_nothing_runs() {
    let soon = Duration::from_millis(10);
    let stage = Stage::open_with(|layer| layer.store_timeout(soon)).await;
    stage.store.next(On::Insert, Fault::Hang);
    stage.post("/pay", "k", "").await.refuses(503, "store_unavailable");
    assert_eq!(stage.shop.runs(), 0);
    assert_eq!(stage.post("/pay", "k", "").await.status, 201);
}

#[tokio::test]
async fn a_dead_store_is_not_asked_by_everybody() {
    let stage = Stage::open(Policy::default()).await;
    stage.store.always(Some((On::Insert, DOWN)));
    for at in 0..50 {
        stage.post("/pay", &at.to_string(), "").await.refuses(503, "store_unavailable");
    }
    let asked = stage.store.inserts();
    assert!((5..50).contains(&asked), "{asked} of 50");
    assert_eq!(stage.shop.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_the_handler_runs() {
    let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
    let (store, shop) = (Faulty::new(MemoryStore::with_clock(clock)), Shop::new());
    let service = IdempotencyLayer::new(store.clone()).layer(shelves(&shop));
    let call = tokio::spawn(service.clone().oneshot(request("/slow")));
    shop.began(1).await;
    // With each third of the lease of a minute, two thirds of it go by on the store's clock.
    for renewals in 1..=3 {
        hand.advance(Duration::from_secs(40));
        store.asked(1, renewals).await;
    }
    hand.advance(Duration::from_secs(40));
    let again = service.clone().oneshot(request("/slow")).await.unwrap();
    let problem = again.into_body().collect().await.unwrap().to_bytes();
    let problem = String::from_utf8_lossy(&problem);
    assert!(problem.contains("request_in_progress"), "{problem}");
    shop.gate.add_permits(1);
    assert_eq!(call.await.unwrap().unwrap().status(), 201);
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn a_handler_that_outlives_its_time_is_answered_for_and_its_late_settle_counts() {
    // A caller waits for no longer than `lease_max`; the record's own lease of a minute is over when
    // the store's clock says so.
    let lease_max = Duration::from_millis(40);
    let stage = Stage::open(Policy { lease_max, ..Policy::default() }).await;
    let first = stage.post("/slow", "k", "").await;
    first.refuses(504, "outcome_unknown");
    stage.shop.began(1).await;
    stage.hand.advance(Duration::from_secs(60));
    stage.post("/slow", "k", "").await.refuses(409, "outcome_unknown");
    assert_eq!(stage.standing().await, Standing::Unknown);
    stage.shop.gate.add_permits(1);
    stage.settled().await;
    let again = stage.post("/slow", "k", "").await;
    assert!(again.is_replay());
    assert_eq!((again.text(), stage.shop.runs()), ("slow 1", 1));
}

fn request(path: &str) -> Request<Body> {
    Request::post(path).header("idempotency-key", "k").body(Body::empty()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_lease_ended_before_the_handler_started_does_not_run() {
    let (store, shop) = (Faulty::new(Default::default()), Shop::new());
    let gate = Arc::new(Semaphore::new(0));
    store.next(On::Insert, Fault::Hold(gate.clone()));
    let hour = Duration::from_secs(3_600);
    let layer = IdempotencyLayer::new(store.clone())
        .policy(Policy { lease_max: hour, ..Policy::default() })
        .store_timeout(hour);
    let service = layer.layer(shelves(&shop));
    let call = tokio::spawn(service.clone().oneshot(request("/pay")));
    store.asked(1, 0).await;
    // The store's answer comes after the lease of a minute that it grants.
    tokio::time::advance(Duration::from_secs(61)).await;
    gate.add_permits(1);
    assert_eq!(call.await.unwrap().unwrap().status(), 503);
    assert_eq!(shop.runs(), 0);
    let again = service.oneshot(request("/pay")).await.unwrap();
    assert_eq!((again.status().as_u16(), shop.runs()), (201, 1));
}

#[tokio::test]
async fn a_shutdown_waits_until_every_execution_is_settled() {
    let stage = Stage::open(Policy::default()).await;
    let drain = stage.layer.drain();
    assert_eq!(drain.wait(Duration::ZERO).await, Ok(()));
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    assert_eq!(drain.executing(), 1);
    assert_eq!(drain.wait(Duration::from_millis(1)).await, Err(1));
    stage.shop.gate.add_permits(1);
    assert_eq!(drain.wait(PATIENCE).await, Ok(()));
    assert_eq!(stage.standing().await, Standing::Completed);
    assert_eq!(must("an answer", first).await.unwrap().status, 201);
}

#[tokio::test]
async fn two_layers_around_one_handler_guard_it_once() {
    let shop = Shop::new();
    let store = Faulty::new(Default::default());
    let layer = IdempotencyLayer::new(store.clone());
    let service = layer.layer(layer.layer(shelves(&shop)));
    let first = service.clone().oneshot(request("/pay")).await.unwrap();
    assert_eq!((first.status().as_u16(), store.inserts()), (201, 1));
    let again = service.oneshot(request("/pay")).await.unwrap();
    assert_eq!(again.headers().get("idempotent-replayed").unwrap(), "true");
}
