//! What becomes of an answer or a result that cannot be kept?

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::response::IntoResponse as _;
use axum::routing::post;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use retrysafe::core::Policy;
use retrysafe::core::machine::{Evidence, Verdict};
use retrysafe::core::record::{Happened, Judge, Standing};
use retrysafe::layer::{Attempt, IdempotencyLayer};
use retrysafe::phases::{CallEnd, Flow, FlowEnd, Flows, Next, Provider};
use tower::ServiceExt as _;

use super::rides::{RideRequest, Rides, answered, id, keyed};

const LARGE: &str = "an answer of more than sixteen bytes";

fn policy() -> Policy {
    Policy { response_bytes_max: 16, ..Policy::default().strict() }
}

fn large() -> Response<Bytes> {
    Response::builder().status(402).body(Bytes::from_static(LARGE.as_bytes())).unwrap()
}

/// Flows that end with an answer which is too large: in a call, and in a transaction.
fn large_answers() -> [Flow<RideRequest>; 2] {
    let called = Flow::named("called", 1)
        .call(
            "called",
            Provider::takes_no_key(),
            |_: RideRequest, ()| Ok("content"),
            async |_, _| Ok(CallEnd::<i64>::Respond(large())),
        )
        .respond("told", async |_, _, _| Ok(Response::default()));
    let made = Flow::named("made", 1)
        .tx("made", async |_, _: RideRequest, ()| Ok(Next::<i64>::Respond(large())))
        .respond("told", async |_, _, _| Ok(Response::default()));
    [called.unwrap(), made.unwrap()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_too_large_reaches_its_own_caller() {
    let rides = Rides::open(keyed()).await;
    for flow in large_answers() {
        let flows =
            Flows::new(rides.pool.clone(), rides.store.clone()).policy(policy()).with(&flow);
        let key = flow.version().name.to_string();
        let ended = rides.run_with(&flows, &flow, &key).await.unwrap();
        let FlowEnd::AnsweredOnce(given) = ended else { panic!("{ended:?}") };
        assert_eq!((given.status.as_u16(), &*given.body), (402, LARGE.as_bytes()), "{key}");
        let again = rides.run_with(&flows, &flow, &key).await.unwrap();
        let FlowEnd::AnswerNotKept { status, .. } = again else { panic!("{again:?}") };
        assert_eq!(status, Some(StatusCode::PAYMENT_REQUIRED), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_too_large_passes_the_layer() {
    let rides = Rides::open(keyed()).await;
    for flow in large_answers() {
        let flows =
            Flows::new(rides.pool.clone(), rides.store.clone()).policy(policy()).with(&flow);
        let key = flow.version().name.to_string();
        let layer = IdempotencyLayer::new(rides.store.clone()).policy(policy());
        let layer = layer.flows(flows.versions());
        let handler = async move |attempt: Attempt| {
            let request = RideRequest { key: "k".to_owned() };
            flows.answer(&flow, &attempt, &request).await.into_response()
        };
        let api = Router::new().route("/rides", post(handler)).layer(layer);
        let ask = async || {
            let asked = Request::post("/rides").header("idempotency-key", key.as_str());
            let told = api.clone().oneshot(asked.body(Body::empty()).unwrap()).await.unwrap();
            (told.status(), to_bytes(told.into_body(), 1 << 20).await.unwrap())
        };
        let expected = (StatusCode::PAYMENT_REQUIRED, Bytes::from_static(LARGE.as_bytes()));
        assert_eq!(ask().await, expected, "{key}");
        let (status, body) = ask().await;
        assert_eq!(status, StatusCode::GONE, "{key}: {body:?}");
        assert!(String::from_utf8_lossy(&body).contains("402"), "{key}: {body:?}");
    }
}

/// A call whose result later phases could not read: `NaN` is written as `null`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_cannot_be_read_again_is_not_lost() {
    let rides = Rides::open(keyed()).await;
    for (key, provider) in [("keyed", keyed()), ("unkeyed", Provider::takes_no_key())] {
        let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&sent);
        let flow: Flow<RideRequest> = Flow::named(key, 1)
            .call(
                "called",
                provider,
                |_: RideRequest, ()| Ok("content"),
                async move |_, _| {
                    counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    Ok(CallEnd::Done(f64::NAN))
                },
            )
            .respond("told", async |_, _, (number,)| {
                let body = Bytes::from(number.to_string());
                Ok(Response::builder().status(201).body(body)?)
            })
            .unwrap();
        let flows = Flows::new(rides.pool.clone(), rides.store.clone()).with(&flow);
        for _ in 0..2 {
            let ended = rides.run_with(&flows, &flow, key).await.unwrap();
            assert!(matches!(ended, FlowEnd::Unknown), "{key}: {ended:?}");
        }
        assert_eq!(sent.load(std::sync::atomic::Ordering::SeqCst), 1, "{key}");
        let record = rides.record(key).await;
        assert_eq!(record.standing(), Standing::Unknown, "{key}");
        let seen = record.timeline.iter().find_map(|moment| match &moment.what {
            Happened::LateResult(late) => Some(late.body_start.clone()),
            _ => None,
        });
        assert_eq!(seen.as_deref(), Some(&b"null"[..]), "{key}: that it was made can be seen");
        // Somebody looks, and says what the result was.
        let evidence = Evidence::CallExecuted(Bytes::from_static(b"7.5"));
        let (fence, judge, reason) = (record.fence, Judge::Operator, "looked".into());
        let verdict = Verdict { fence, evidence, judge, reason };
        rides.engine.resolve(id(key), &verdict).await.unwrap();
        let ended = rides.run_with(&flows, &flow, key).await.unwrap();
        assert_eq!(answered(Some(ended)), "7.5", "{key}");
    }
}
