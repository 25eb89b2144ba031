//! Is a flow behind the layer one answer, however often its request comes?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use bytes::Bytes;
use http::{Request, StatusCode};
use retrysafe::core::Policy;
use retrysafe::layer::{Attempt, IdempotencyLayer};
use tower::ServiceExt as _;

use super::rides::{Break, Point, RideRequest, Rides, keyed};
use crate::kit::number;

/// An API whose handler runs the flow, unless it is told to refuse.
fn api(rides: &Arc<Rides>, refuses: &Arc<AtomicBool>) -> Router {
    let (theirs, refuses) = (Arc::clone(rides), Arc::clone(refuses));
    let ride = async move |attempt: Attempt| -> Response {
        if refuses.load(Ordering::SeqCst) {
            return (StatusCode::BAD_REQUEST, "not today").into_response();
        }
        let request = RideRequest { key: "k".to_owned() };
        theirs.flows.answer(&theirs.flow, &attempt, &request).await.into_response()
    };
    let layer = IdempotencyLayer::new(rides.store.clone()).policy(Policy::default().strict());
    Router::new().route("/rides", post(ride)).layer(layer.flows(rides.flows.versions()))
}

async fn ask(api: &Router) -> (StatusCode, bool, Bytes) {
    let asked = Request::post("/rides").header("idempotency-key", "k").body(Body::empty());
    let told = api.clone().oneshot(asked.unwrap()).await.unwrap();
    let status = told.status();
    let is_replay = told.headers().contains_key("idempotent-replayed");
    (status, is_replay, to_bytes(told.into_body(), 1 << 20).await.unwrap())
}

async fn counts(rides: &Rides) -> (i64, usize, i64) {
    let receipts = number(&rides.url, "SELECT count(*) FROM receipt").await;
    (rides.rides("k").await, rides.provider.charges(), receipts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_answered_once_and_then_replayed() {
    let rides = Arc::new(Rides::open(keyed()).await);
    let api = api(&rides, &Arc::default());
    let (status, is_replay, body) = ask(&api).await;
    assert_eq!((status, is_replay), (StatusCode::CREATED, false));
    for _ in 0..2 {
        assert_eq!(ask(&api).await, (status, true, body.clone()));
    }
    assert_eq!(counts(&rides).await, (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_goes_on_where_the_first_request_failed() {
    for how in [Break::Error, Break::Panic] {
        for (point, status, done) in [
            (Point::RideAfter, StatusCode::INTERNAL_SERVER_ERROR, (0, 0, 0)),
            (Point::ChargeAfter, StatusCode::CONFLICT, (1, 1, 0)),
            (Point::ReceiptAfter, StatusCode::INTERNAL_SERVER_ERROR, (1, 1, 0)),
        ] {
            let rides = Arc::new(Rides::open(keyed()).await);
            let api = api(&rides, &Arc::default());
            rides.breaks.arm(point, how);
            let (told, _, body) = ask(&api).await;
            assert_eq!(told, status, "{point:?} {how:?}: {body:?}");
            assert_eq!(counts(&rides).await, done, "{point:?} {how:?}");
            let (told, _, answer) = ask(&api).await;
            assert_eq!(told, StatusCode::CREATED, "{point:?} {how:?}: {answer:?}");
            assert_eq!(counts(&rides).await, (1, 1, 1), "{point:?} {how:?}");
            assert_eq!(ask(&api).await, (StatusCode::CREATED, true, answer));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_call_is_told_and_never_made_again() {
    let rides = Arc::new(Rides::without_keys().await);
    let api = api(&rides, &Arc::default());
    rides.breaks.arm(Point::ChargeAfter, Break::Error);
    assert_eq!(ask(&api).await.0, StatusCode::BAD_GATEWAY);
    for _ in 0..2 {
        let (status, _, body) = ask(&api).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(String::from_utf8_lossy(&body).contains("outcome_unknown"), "{body:?}");
    }
    assert_eq!(counts(&rides).await, (1, 1, 0));
}

/// The first request came as far as the charge. A handler that refuses the retry, without going on with the
/// flow, must not end it: a ride would be charged and never be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_the_flow_does_not_end_it() {
    let rides = Arc::new(Rides::open(keyed()).await);
    let refuses = Arc::<AtomicBool>::default();
    let api = api(&rides, &refuses);
    rides.breaks.arm(Point::ReceiptBefore, Break::Error);
    assert_eq!(ask(&api).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    refuses.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let (status, is_replay, _) = ask(&api).await;
        assert_eq!((status, is_replay), (StatusCode::BAD_REQUEST, false));
    }
    refuses.store(false, Ordering::SeqCst);
    assert_eq!(ask(&api).await.0, StatusCode::CREATED);
    assert_eq!(counts(&rides).await, (1, 1, 1));
}

/// The handler's process dies. Once its lease is over, a retry of the same request goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_goes_on_where_the_first_owner_died() {
    let rides = Arc::new(Rides::open(keyed()).await);
    let api = api(&rides, &Arc::default());
    rides.breaks.arm(Point::ChargeAfter, Break::Crash);
    let first = api.clone();
    let first = tokio::spawn(async move { ask(&first).await });
    rides.breaks.reached().await;
    rides.end_leases().await;
    let (status, _, answer) = ask(&api).await;
    assert_eq!(status, StatusCode::CREATED, "{answer:?}");
    assert_eq!(ask(&api).await, (status, true, answer));
    assert_eq!(counts(&rides).await, (1, 1, 1));
    first.abort();
}

/// A handler that stops waiting for its flow, and answers in its own words, once completed a flow that was not over: the
/// charge was made, and the receipt never written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_does_not_wait_for_its_flow_ends_nothing() {
    let rides = Arc::new(Rides::open(keyed()).await);
    let first = api(&rides, &Arc::default());
    rides.breaks.arm(Point::ChargeAfter, Break::Error);
    assert_eq!(ask(&first).await.0, StatusCode::CONFLICT, "the call is to be repeated");

    let theirs = Arc::clone(&rides);
    let impatient = async move |attempt: Attempt| -> Response {
        let request = RideRequest { key: "k".to_owned() };
        let answer = theirs.flows.answer(&theirs.flow, &attempt, &request);
        tokio::select! {
            _ = answer => panic!("it is broken off before its end"),
            () = theirs.breaks.reached() => {}
        }
        (StatusCode::ACCEPTED, "pending").into_response()
    };
    let layer = IdempotencyLayer::new(rides.store.clone()).policy(Policy::default().strict());
    let layer = layer.flows(rides.flows.versions());
    let second = Router::new().route("/rides", post(impatient)).layer(layer);
    rides.breaks.arm(Point::ChargeBefore, Break::Crash);
    assert_eq!(ask(&second).await.0, StatusCode::ACCEPTED);

    let (status, is_replay, _) = ask(&first).await;
    assert_eq!((status, is_replay), (StatusCode::CREATED, false));
    assert_eq!(counts(&rides).await, (1, 1, 1));
}
