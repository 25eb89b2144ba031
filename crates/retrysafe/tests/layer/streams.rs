//! What becomes of answers that come piece by piece, or too late for their caller?

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use retrysafe::layer::{Attempt, IdempotencyLayer};
use retrysafe::stores::clock::{Clock, Hand};
use retrysafe::stores::memory::MemoryStore;
use retrysafe_core::policy::{OnServerError, Policy, Said};
use retrysafe_core::record::{Record, Standing};
use retrysafe_core::store::{Filter, Query, Store as _, StoreErrorKind};
use retrysafe_core::time::Time;
use tokio::sync::{Semaphore, mpsc};
use tower::{Layer as _, Service as _, ServiceExt as _};

use crate::stage::{Fault, Faulty, On, must};

const AWAY: Fault = Fault::Refuse(StoreErrorKind::Unavailable);

type Piece = Result<Frame<Bytes>, &'static str>;

/// The handler's body: what the test hands to it, piece by piece.
struct Pieces(mpsc::UnboundedReceiver<Piece>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        self.0.poll_recv(context)
    }
}

/// A layer around a handler whose answer the test writes as it goes.
struct Theatre {
    app: Router,
    layer: IdempotencyLayer<Arc<Faulty>>,
    store: Arc<Faulty>,
    hand: Hand,
    pieces: Mutex<Option<mpsc::UnboundedSender<Piece>>>,
    attempt: Arc<Mutex<Option<Attempt>>>,
}

#[derive(Clone)]
struct Play {
    attempt: Arc<Mutex<Option<Attempt>>>,
    media_type: &'static str,
    length: Option<usize>,
    pieces: Arc<Mutex<Option<Pieces>>>,
}

impl Theatre {
    fn new(policy: Policy, media_type: &'static str) -> Self {
        Self::announcing(policy, media_type, None)
    }

    /// A handler that says how long its body is going to be.
    fn announcing(policy: Policy, media_type: &'static str, length: Option<usize>) -> Self {
        let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
        let store = Faulty::new(MemoryStore::with_clock(clock));
        let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy);
        let (pieces, received) = mpsc::unbounded_channel();
        let pieces_to_come = Arc::new(Mutex::new(Some(Pieces(received))));
        let attempt = Arc::<Mutex<Option<Attempt>>>::default();
        let play =
            Play { attempt: Arc::clone(&attempt), media_type, length, pieces: pieces_to_come };
        let app = Router::new().route("/x", post(perform)).with_state(play).layer(layer.clone());
        Self { app, layer, store, hand, pieces: Mutex::new(Some(pieces)), attempt }
    }

    async fn ask(&self) -> Response {
        self.app.clone().oneshot(request()).await.unwrap()
    }

    fn say(&self, text: &'static str) {
        self.send(Ok(Frame::data(Bytes::from_static(text.as_bytes()))));
    }

    fn send(&self, piece: Piece) {
        self.sender().send(piece).ok().unwrap();
    }

    fn sender(&self) -> mpsc::UnboundedSender<Piece> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap()
    }

    /// Ends the handler's body.
    fn end(&self) {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Lets both clocks run.
    async fn pass(&self, time: Duration) {
        for _ in 0..100 {
            self.hand.advance(time / 100);
            tokio::time::sleep(time / 100).await;
        }
    }

    async fn record(&self) -> Record {
        let mut records = self.store.inner.scan(everything()).await.unwrap().value.records;
        assert_eq!(records.len(), 1);
        records.pop().unwrap()
    }

    async fn until(&self, standing: Standing) -> Record {
        must("the record's standing", async {
            loop {
                let record = self.record().await;
                if record.standing() == standing {
                    return record;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
    }
}

fn request() -> Request<Body> {
    let head = Request::post("/x").header("host", "shop.example").header("idempotency-key", "k");
    head.header("authorization", "Bearer alice").body(Body::empty()).unwrap()
}

async fn perform(attempt: Attempt, State(play): State<Play>) -> Response {
    *play.attempt.lock().unwrap() = Some(attempt);
    let pieces = play.pieces.lock().unwrap().take().expect("it runs once");
    let body = Body::new(pieces);
    let head = Response::builder().status(StatusCode::CREATED).header("location", "/p/1");
    let mut response = head.header("content-type", play.media_type).body(body).unwrap();
    if let Some(length) = play.length {
        response.headers_mut().insert("content-length", length.into());
    }
    response
}

async fn next(body: &mut Body) -> Option<Result<Bytes, axum::Error>> {
    let piece = must("the next piece", body.frame()).await;
    piece.map(|piece| piece.map(|frame| frame.into_data().unwrap()))
}

async fn problem(response: Response) -> serde_json::Value {
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice(&body).unwrap_or_default()
}

async fn refuses(response: Response, status: u16, code: &str) -> serde_json::Value {
    let found = response.status().as_u16();
    let problem = problem(response).await;
    assert_eq!((found, problem["code"].as_str()), (status, Some(code)), "{problem}");
    problem
}

/// A stream was held until it ended, so its caller saw its first event after the last one.
#[tokio::test(start_paused = true)]
async fn a_stream_is_passed_on_live_and_its_end_is_durable_before_it_is_seen() {
    for media_type in [
        "text/event-stream",
        "Application/X-NDJSON",
        "multipart/x-mixed-replace; boundary=f",
        "application/grpc+proto",
    ] {
        let theatre = Theatre::new(Policy::default(), media_type);
        theatre.say("one");
        let response = theatre.ask().await;
        assert_eq!(response.status(), 201, "{media_type}");
        let head = theatre.record().await.state.head().cloned().expect("it is durable by now");
        assert_eq!(
            (head.status, head.location.unwrap()),
            (StatusCode::CREATED, "/p/1".parse().unwrap())
        );
        let mut body = response.into_body();
        assert_eq!(next(&mut body).await.unwrap().unwrap(), "one");
        refuses(theatre.ask().await, 409, "request_in_progress").await;
        theatre.say("two");
        assert_eq!(next(&mut body).await.unwrap().unwrap(), "two");
        theatre.end();
        assert!(next(&mut body).await.is_none());
        let gone = refuses(theatre.ask().await, 410, "response_not_stored").await;
        assert_eq!(
            (&gone["original_status"], &gone["original_location"]),
            (&201.into(), &"/p/1".into())
        );
    }
}

/// Trailers end an answer, and so does the last byte that was announced. Both were passed on before the
/// end was in the record.
#[tokio::test(start_paused = true)]
async fn what_shows_the_end_of_a_stream_is_passed_on_after_the_end_is_durable() {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let last_bytes = Frame::data(Bytes::from_static(b"two"));
    for (length, last) in [(None, Frame::trailers(trailers)), (Some(6), last_bytes)] {
        let theatre = Theatre::announcing(Policy::default(), "application/grpc", length);
        theatre.say("one");
        let mut body = theatre.ask().await.into_body();
        assert_eq!(next(&mut body).await.unwrap().unwrap(), "one");
        theatre.store.always(Some((On::Swap, AWAY)));
        theatre.send(Ok(last));
        theatre.end();
        let early = tokio::time::timeout(Duration::from_secs(1), body.frame()).await;
        assert!(early.is_err(), "{length:?}: its end is not in the record yet");
        theatre.store.always(None);
        must("the last piece", body.frame()).await.unwrap().unwrap();
        assert_eq!(theatre.record().await.standing(), Standing::Completed, "{length:?}");
        assert!(next(&mut body).await.is_none());
    }
}

/// Whoever has the head of a stream may keep the future that gave it. The body waited for that future.
#[tokio::test(start_paused = true)]
async fn a_stream_flows_although_the_future_of_its_head_is_kept() {
    let (pieces, received) = mpsc::unbounded_channel();
    let received = Arc::new(Mutex::new(Some(Pieces(received))));
    let handler = tower::service_fn(move |_: Request<Body>| {
        let body = received.lock().unwrap().take().expect("it runs once");
        let head = http::Response::builder().header("content-type", "text/event-stream");
        async move { Ok::<_, Infallible>(head.body(body).unwrap()) }
    });
    let mut service = IdempotencyLayer::new(MemoryStore::default()).layer(handler);
    let mut future = std::pin::pin!(service.call(request()));
    let mut body = Body::new(future.as_mut().await.unwrap().into_body());
    pieces.send(Ok(Frame::data(Bytes::from_static(b"one")))).ok().unwrap();
    assert_eq!(next(&mut body).await.unwrap().unwrap(), "one");
}

/// Its head is its end, and was seen before the end was in the record.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_known_to_be_empty_is_kept_like_any_other_answer() {
    let empty = || async { ([("content-type", "text/event-stream")], Body::empty()) };
    let layer = IdempotencyLayer::new(MemoryStore::default());
    let app = Router::new().route("/x", post(empty)).layer(layer);
    assert_eq!(app.clone().oneshot(request()).await.unwrap().status(), 200);
    let replay = app.oneshot(request()).await.unwrap();
    assert_eq!(replay.status(), 200);
    assert!(replay.headers().contains_key("idempotent-replayed"));
}

/// A slow reader has its record by then, and the server waits for its connection.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_the_reader_of_a_stream_that_is_settled() {
    let theatre = Theatre::new(Policy::default(), "text/event-stream");
    theatre.say("one");
    let mut body = theatre.ask().await.into_body();
    theatre.end();
    theatre.until(Standing::Completed).await;
    assert_eq!(theatre.layer.drain().wait(Duration::from_secs(1)).await, Ok(()));
    assert_eq!(next(&mut body).await.unwrap().unwrap(), "one");
    assert!(next(&mut body).await.is_none());
}

/// An answer that trickles was held for as long as the attempt could last, and then lost.
#[tokio::test(start_paused = true)]
async fn an_answer_slower_than_its_hold_is_passed_on_with_what_was_held() {
    let policy = Policy { answer_hold_max: Duration::from_secs(3), ..Policy::default() };
    let theatre = Theatre::new(policy, "text/plain");
    theatre.say("held ");
    let response = theatre.ask().await;
    let mut body = response.into_body();
    assert_eq!(next(&mut body).await.unwrap().unwrap(), "held ");
    theatre.say("later");
    assert_eq!(next(&mut body).await.unwrap().unwrap(), "later");
    theatre.send(Err("the connection broke"));
    assert!(next(&mut body).await.unwrap().is_err());
    let unknown = refuses(theatre.ask().await, 409, "outcome_unknown").await;
    assert_eq!(unknown["original_status"], 201);
}

/// While bytes flow the owner is alive, however long it takes; when they stop, its lease ends.
#[tokio::test(start_paused = true)]
async fn a_stream_keeps_its_lease_past_lease_max_for_as_long_as_bytes_flow() {
    let lease = Duration::from_secs(10);
    let policy = Policy { lease, lease_max: lease * 2, ..Policy::default() };
    let theatre = Theatre::new(policy, "text/event-stream");
    let mut body = theatre.ask().await.into_body();
    for _ in 0..12 {
        theatre.pass(lease / 2).await;
        theatre.say("tick");
        assert_eq!(next(&mut body).await.unwrap().unwrap(), "tick");
        refuses(theatre.ask().await, 409, "request_in_progress").await;
    }
    theatre.pass(lease * 3).await;
    refuses(theatre.ask().await, 409, "outcome_unknown").await;
    // Its late end is the truth all the same.
    theatre.end();
    assert!(next(&mut body).await.is_none());
}

/// Only the end of an answer says that its request was executed, so a caller that leaves does not end
/// the reading.
#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_a_stream_does_not_end_it() {
    let theatre = Theatre::new(Policy::default(), "text/event-stream");
    let response = theatre.ask().await;
    drop(response);
    for _ in 0..9 {
        theatre.say("nobody hears it");
    }
    theatre.end();
    must("the settle", theatre.layer.drain().wait(Duration::from_secs(60))).await.unwrap();
    refuses(theatre.ask().await, 410, "response_not_stored").await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_hears_is_given_up_when_its_time_is_used_up() {
    let lease_max = Duration::from_secs(5);
    let policy = Policy { lease: lease_max, lease_max, ..Policy::default() };
    let theatre = Theatre::new(policy, "text/event-stream");
    let asked_at = tokio::time::Instant::now();
    drop(theatre.ask().await);
    let sender = theatre.sender();
    must("the end", sender.closed()).await;
    assert!(asked_at.elapsed() >= lease_max);
    theatre.until(Standing::Unknown).await;
}

/// The head must be durable before anything of the answer leaves.
#[tokio::test(start_paused = true)]
async fn without_a_store_nothing_of_a_stream_reaches_its_caller() {
    let theatre = Theatre::new(Policy::default(), "text/event-stream");
    theatre.say("secret");
    theatre.store.always(Some((On::Load, AWAY)));
    let response = theatre.ask().await;
    refuses(response, 503, "outcome_unknown").await;
    theatre.store.always(None);
    assert_eq!(theatre.record().await.state.head(), None);
    // Its owner reads on, and tells the truth when it knows it. More pieces than may be under way must
    // not wait for a reader.
    theatre.say("more");
    theatre.say("and more");
    theatre.end();
    theatre.until(Standing::Completed).await;
    must("the end", theatre.layer.drain().wait(Duration::from_secs(9))).await.unwrap();
    refuses(theatre.ask().await, 410, "response_not_stored").await;
}

/// The owner stood still past its lease, and its record was unknown when the head came. Nothing of the
/// answer may be passed on then, but its end still counts.
#[tokio::test(start_paused = true)]
async fn a_stream_whose_lease_has_ended_is_read_for_the_record_alone() {
    let theatre = Theatre::new(Policy::default(), "text/event-stream");
    theatre.say("secret");
    // The store's clock leaps over the lease while the head is on its way to the record.
    theatre.store.next(On::Load, AWAY);
    let first = tokio::spawn(theatre.app.clone().oneshot(request()));
    while theatre.store.inner.scan(everything()).await.unwrap().value.records.is_empty() {
        tokio::task::yield_now().await;
    }
    theatre.hand.advance(Policy::default().lease * 2);
    let engine = retrysafe_core::engine::Engine::new(Arc::clone(&theatre.store));
    assert_eq!(engine.sweep(10).await.unwrap().doubted, 1);
    refuses(must("an answer", first).await.unwrap().unwrap(), 409, "outcome_unknown").await;
    theatre.end();
    theatre.until(Standing::Completed).await;
    refuses(theatre.ask().await, 410, "response_not_stored").await;
}

fn everything() -> Query {
    Query { filter: Filter::default(), after: None, limit: 9 }
}

/// A shutdown that has waited for long enough says at once that nobody knows, and what a caller has
/// got by then does not look like the whole answer.
#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_a_stream_up_and_its_part_is_not_taken_for_the_whole() {
    let theatre = Theatre::new(Policy::default(), "text/event-stream");
    theatre.say("part");
    let mut body = theatre.ask().await.into_body();
    assert_eq!(next(&mut body).await.unwrap().unwrap(), "part");
    let drain = theatre.layer.drain();
    assert_eq!(drain.wait(Duration::from_secs(1)).await, Err(1));
    drain.give_up(Duration::from_secs(1)).await.unwrap();
    theatre.until(Standing::Unknown).await;
    let ended = tokio::time::timeout(Duration::from_secs(60), body.frame()).await;
    assert!(ended.is_err(), "it does not end by itself");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_a_handler_up() {
    let (layer, app) = around(std::future::pending::<&'static str>, Policy::default());
    let first = tokio::spawn(app.clone().oneshot(request()));
    let drain = layer.drain();
    while drain.executing() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(drain.wait(Duration::from_secs(1)).await, Err(1));
    drain.give_up(Duration::from_secs(1)).await.unwrap();
    refuses(first.await.unwrap().unwrap(), 504, "outcome_unknown").await;
    refuses(app.oneshot(request()).await.unwrap(), 409, "outcome_unknown").await;
}

fn around<F>(
    handler: impl Fn() -> F + Clone + Send + Sync + 'static,
    policy: Policy,
) -> (IdempotencyLayer<MemoryStore>, Router)
where
    F: Future<Output = &'static str> + Send + 'static,
{
    let layer = IdempotencyLayer::new(MemoryStore::default()).policy(policy);
    let app = Router::new().route("/x", post(handler)).layer(layer.clone());
    (layer, app)
}

/// A handler that lets its caller go, and ends when the test says so.
fn released(gate: &Arc<Semaphore>, layer: &IdempotencyLayer<MemoryStore>) -> Router {
    let gate = Arc::clone(gate);
    let handler = move |attempt: Attempt| async move {
        attempt.release_caller();
        gate.acquire().await.unwrap().forget();
        "late"
    };
    Router::new().route("/x", post(handler)).layer(layer.clone())
}

/// The caller has waited for long enough; its request has not. It used to be given up with its caller.
#[tokio::test(start_paused = true)]
async fn a_late_answer_is_settled_although_its_caller_was_let_go() {
    let layer = IdempotencyLayer::new(MemoryStore::default());
    let gate = Arc::new(Semaphore::new(0));
    let app = released(&gate, &layer);
    let response = app.clone().oneshot(request()).await.unwrap();
    assert!(response.headers().contains_key("retry-after"));
    refuses(response, 504, "request_in_progress").await;
    refuses(app.clone().oneshot(request()).await.unwrap(), 409, "request_in_progress").await;
    gate.add_permits(1);
    must("the settle", layer.drain().wait(Duration::from_secs(60))).await.unwrap();
    let replay = app.oneshot(request()).await.unwrap();
    assert!(replay.headers().contains_key("idempotent-replayed"));
    assert_eq!(axum::body::to_bytes(replay.into_body(), 99).await.unwrap(), "late");
}

/// An answer that came after `lease_max` was kept only if all its bytes came together with its head. Over a network they
/// seldom do, and its replay was a 410.
#[tokio::test(start_paused = true)]
async fn a_late_answer_is_kept_although_its_bytes_come_after_its_head() {
    let length = Duration::from_secs(60);
    let policy = Policy { lease: length, lease_max: length, ..Policy::default() };
    let layer = IdempotencyLayer::new(MemoryStore::default()).policy(policy);
    let handler = move || async move {
        tokio::time::sleep(length * 2).await;
        let (pieces, received) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            pieces.send(Ok(Frame::data(Bytes::from_static(b"late")))).ok().unwrap();
        });
        Body::new(Pieces(received))
    };
    let app = Router::new().route("/x", post(handler)).layer(layer.clone());
    let told = app.clone().oneshot(request()).await.unwrap();
    assert_eq!(told.status(), 504);
    layer.drain().wait(length * 3).await.unwrap();
    let replay = app.oneshot(request()).await.unwrap();
    assert_eq!(replay.status(), 200);
    assert_eq!(axum::body::to_bytes(replay.into_body(), 99).await.unwrap(), "late");
}

#[tokio::test(start_paused = true)]
async fn past_their_bound_late_answers_are_unknown() {
    let layer = IdempotencyLayer::new(MemoryStore::default()).late_answers_max(0);
    let app = released(&Arc::new(Semaphore::new(0)), &layer);
    refuses(app.clone().oneshot(request()).await.unwrap(), 504, "outcome_unknown").await;
    refuses(app.oneshot(request()).await.unwrap(), 409, "outcome_unknown").await;
    assert_eq!(layer.drain().executing(), 0);
}

/// The first caller of a request whose outcome is unknown knew less than the second.
#[tokio::test(start_paused = true)]
async fn an_answer_that_leaves_the_outcome_unknown_says_so_to_its_own_caller() {
    let policy = Policy { on_server_error: OnServerError::Unknown, ..Policy::default() };
    let layer = IdempotencyLayer::new(MemoryStore::default()).policy(policy);
    let fails = || async { Ok::<_, Infallible>(StatusCode::INTERNAL_SERVER_ERROR) };
    let app = Router::new().route("/x", post(fails)).layer(layer);
    let response = app.oneshot(request()).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retrysafe-outcome"]),
        (500, &"unknown".parse().unwrap())
    );
}

/// What a handler said while its answer was on its way was not heard.
#[tokio::test(start_paused = true)]
async fn what_the_handler_says_during_a_stream_counts() {
    for (said, standing) in [
        (Said::Completed, Standing::Completed),
        (Said::Retryable, Standing::FailedRetryable),
        (Said::Unknown, Standing::Unknown),
    ] {
        for is_whole in [true, false] {
            let theatre = Theatre::new(Policy::default(), "text/event-stream");
            let mut body = theatre.ask().await.into_body();
            theatre.say("one");
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
            theatre.attempt.lock().unwrap().as_ref().unwrap().say(said);
            if !is_whole {
                theatre.send(Err("it breaks off"));
            }
            theatre.end();
            assert_eq!(body.frame().await.is_none(), is_whole);
            theatre.until(standing).await;
        }
    }
}
