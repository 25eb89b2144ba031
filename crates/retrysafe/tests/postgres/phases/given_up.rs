//! What is left of a flow whose handler is given up in the midst of a phase?

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use bytes::Bytes;
use http::{Request, StatusCode};
use retrysafe::core::record::{Record, Standing};
use retrysafe::core::store::{Filter, Query};
use retrysafe::core::{Policy, Store as _};
use retrysafe::layer::{Attempt, Drain, IdempotencyLayer};
use tower::ServiceExt as _;

use super::rides::{Break, Point, RideRequest, Rides, keyed};

/// How a handler is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    /// A shutdown has waited for long enough.
    Shutdown,
    /// It panics.
    Panic,
    /// It asks for more time, and there are too many that do.
    LateAnswers,
}

/// An API whose handler is given up where its flow stops, and not a second time.
fn api(rides: &Arc<Rides>, how: GivenUp) -> (Router, Drain) {
    let theirs = Arc::clone(rides);
    let ride = async move |attempt: Attempt| -> Response {
        let request = RideRequest { key: "k".to_owned() };
        let answer = theirs.flows.answer(&theirs.flow, &attempt, &request);
        if how == GivenUp::Shutdown {
            return answer.await.into_response();
        }
        tokio::select! {
            answer = answer => return answer.into_response(),
            () = theirs.breaks.reached() => {}
        }
        assert_eq!(how, GivenUp::LateAnswers, "the handler panics");
        attempt.release_caller();
        std::future::pending().await
    };
    let layer = IdempotencyLayer::new(rides.store.clone()).policy(Policy::default().strict());
    let layer = layer.flows(rides.flows.versions()).late_answers_max(0);
    let drain = layer.drain();
    (Router::new().route("/rides", post(ride)).layer(layer), drain)
}

async fn ask(api: Router) -> (StatusCode, Bytes) {
    let asked = Request::post("/rides").header("idempotency-key", "k").body(Body::empty());
    let told = api.oneshot(asked.unwrap()).await.unwrap();
    (told.status(), to_bytes(told.into_body(), 1 << 20).await.unwrap())
}

/// The only record there is.
async fn record(rides: &Rides) -> Record {
    let query = Query { filter: Filter::default(), after: None, limit: 2 };
    let page = rides.store.scan(query).await.unwrap().value;
    let [record] = page.records.try_into().unwrap();
    record
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_goes_on_where_a_handler_was_given_up() {
    for how in [GivenUp::Shutdown, GivenUp::Panic, GivenUp::LateAnswers] {
        for point in [Point::RideAfter, Point::ReceiptAfter] {
            let what = format!("{point:?} {how:?}");
            let rides = Arc::new(Rides::open(keyed()).await);
            rides.breaks.arm(point, Break::Crash);
            let (first, drain) = api(&rides, how);
            let first = tokio::spawn(ask(first));
            if how == GivenUp::Shutdown {
                rides.breaks.reached().await;
                drain.give_up(Duration::from_secs(30)).await.unwrap();
            }
            let (status, body) = first.await.unwrap();
            assert_eq!(status, StatusCode::CONFLICT, "{what}: {body:?}");
            assert!(String::from_utf8_lossy(&body).contains("request_in_progress"), "{body:?}");
            let left = record(&rides).await;
            assert_eq!(left.standing(), Standing::InProgress, "{what}: {left:?}");

            let (next, _) = api(&rides, GivenUp::Shutdown);
            let (status, answer) = ask(next.clone()).await;
            assert_eq!(status, StatusCode::CREATED, "{what}: {answer:?}");
            assert_eq!(ask(next).await, (status, answer), "{what}");
            let done =
                (rides.rides("k").await, rides.provider.charges(), rides.receipts("k").await);
            assert_eq!(done, (1, 1, 1), "{what}");
        }
    }
}

/// In the midst of a call the mark decides, as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_handler_that_was_given_up_is_repeated_or_unknown() {
    for how in [GivenUp::Shutdown, GivenUp::Panic, GivenUp::LateAnswers] {
        for is_keyed in [true, false] {
            let what = format!("{how:?}, keyed: {is_keyed}");
            let rides =
                if is_keyed { Rides::open(keyed()).await } else { Rides::without_keys().await };
            let rides = Arc::new(rides);
            rides.breaks.arm(Point::ChargeAfter, Break::Crash);
            let (first, drain) = api(&rides, how);
            let first = tokio::spawn(ask(first));
            if how == GivenUp::Shutdown {
                rides.breaks.reached().await;
                drain.give_up(Duration::from_secs(30)).await.unwrap();
            }
            first.await.unwrap();
            let left = record(&rides).await.standing();
            assert_eq!(
                left,
                if is_keyed { Standing::InProgress } else { Standing::Unknown },
                "{what}"
            );
            let (next, _) = api(&rides, GivenUp::Shutdown);
            let (status, answer) = ask(next).await;
            let expected = if is_keyed { StatusCode::CREATED } else { StatusCode::CONFLICT };
            assert_eq!(status, expected, "{what}: {answer:?}");
            assert_eq!(rides.provider.charges(), 1, "{what}");
        }
    }
}
