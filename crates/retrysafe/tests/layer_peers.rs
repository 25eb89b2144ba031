//! Do we have the bugs that others had? One test per bug that was found in a peer, with its story.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail"
)]

#[path = "layer/stage.rs"]
mod stage;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::Request;
use retrysafe::layer::IdempotencyLayer;
use retrysafe_core::engine::{Engine, Ruled};
use retrysafe_core::machine::{Evidence, Proof, Verdict};
use retrysafe_core::policy::Policy;
use retrysafe_core::record::{Happened, Judge, Standing};
use retrysafe_core::store::StoreErrorKind;
use tokio::sync::Semaphore;

use stage::{Answer, Fault, On, PATIENCE, Shop, Stage, must, send, serve, shelves};

fn spelt(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name, value.as_bytes())).collect();
    serde_json::to_vec(&(status, headers, body)).unwrap()
}

/// A lease that ends when the test says so: renewals cannot lengthen it.
fn short_lease() -> Policy {
    let lease = Duration::from_secs(60);
    Policy { lease, lease_max: lease, ..Policy::default() }
}

async fn operator_releases(stage: &Stage) {
    let (id, fence) = (stage.records().await[0].id, stage.records().await[0].fence);
    let verdict = Verdict {
        fence,
        evidence: Evidence::NotExecuted(Proof::operator()),
        judge: Judge::Operator,
        reason: "looked it up".into(),
    };
    let ruled = Engine::new(stage.store.clone()).resolve(id, &verdict).await.unwrap();
    assert!(matches!(ruled, Ruled::Done(_)));
}

// A Rust layer deleted its claim when the answer said `Cache-Control: no-store`, which is what
// payment endpoints say: their retries ran again.
#[tokio::test]
async fn an_answer_that_says_no_store_is_recorded_all_the_same() {
    let stage = Stage::open(Policy::default()).await;
    let body = spelt(201, &[("cache-control", "no-store")], b"token");
    let first = stage.post("/headers", "k", body.clone()).await;
    let again = stage.post("/headers", "k", body).await;
    assert!(again.is_replay());
    assert_eq!(again.header("cache-control"), first.header("cache-control"));
    assert_eq!(stage.shop.runs(), 1);
}

// A Rust layer let the next caller run when a lease had ended, and forgot the fingerprint with it:
// after a crash even a different body ran under the old key.
#[tokio::test]
async fn an_ended_lease_neither_runs_again_nor_forgets_what_was_asked() {
    let stage = Stage::open(short_lease()).await;
    let first = stage.begin(stage.request("/slow", "k", "one"));
    stage.shop.began(1).await;
    stage.hand.advance(Duration::from_secs(61));
    stage.post("/slow", "k", "other").await.refuses(422, "idempotency_key_reused");
    stage.post("/slow", "k", "one").await.refuses(409, "outcome_unknown");
    stage.post("/slow", "k", "other").await.refuses(422, "idempotency_key_reused");
    stage.shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "slow 1");
    assert_eq!(stage.shop.runs(), 1);
}

// The same layer never completed streamed or oversized answers, nor a handler that panicked: each
// of them ran again after a minute.
#[tokio::test]
async fn streams_large_answers_and_panics_are_never_run_again() {
    let stage = Stage::open(Policy { response_bytes_max: 4, ..Policy::default() }).await;
    for path in ["/sse", "/pieces/3/4/end", "/panic/late"] {
        stage.post(path, path, "").await;
    }
    stage.hand.advance(Duration::from_secs(3_600));
    for (path, status) in [("/sse", 410), ("/pieces/3/4/end", 410), ("/panic/late", 409)] {
        assert_eq!(stage.post(path, path, "").await.status, status);
    }
    assert_eq!(stage.shop.runs(), 3);
}

// The same layer refused keys with `:` and `/`, kept the quotes of a quoted key as a part of it, and
// replayed `Set-Cookie`.
#[tokio::test]
async fn ordinary_keys_are_taken_and_cookies_are_not_replayed() {
    let stage = Stage::open(Policy::default()).await;
    for key in ["order:42", "dGVzdA==", "a/b/c", "8e03978e-40d5-43dd-bc93-6894a57f9324"] {
        assert_eq!(stage.post("/pay", key, "").await.status, 201, "{key}");
        assert!(stage.post("/pay", &format!("\"{key}\""), "").await.is_replay(), "{key}");
    }
    let body = spelt(200, &[("set-cookie", "session=1"), ("etag", "e")], b"");
    assert!(stage.post("/headers", "c", body.clone()).await.header("set-cookie").is_some());
    let again = stage.post("/headers", "c", body).await;
    assert_eq!((again.header("set-cookie"), again.header("etag")), (None, Some("e")));
}

// A Rust proxy left its lock behind when the upstream refused, timed out or sent too much; followers
// polled to the end and got 502.
#[tokio::test]
async fn no_failure_leaves_its_key_in_progress() {
    let stage = Stage::open(Policy { request_bytes_max: 9, ..Policy::default() }).await;
    for path in ["/failed/not-sent", "/failed/lost", "/pieces/2/4/break", "/panic/late"] {
        stage.post(path, path, "").await;
        let again = stage.post(path, path, "").await;
        assert_ne!(again.code(), "request_in_progress", "{path}");
    }
    stage.post("/pay", "large", "0123456789").await.refuses(413, "request_too_large");
    assert_eq!(stage.post("/pay", "large", "").await.status, 201);
    assert!(stage.records().await.iter().all(|r| r.standing() != Standing::InProgress));
}

// The same proxy kept answers for as long as its upstream timeout, ten seconds: a retry eleven
// seconds later ran again.
#[tokio::test]
async fn an_answer_outlives_every_timeout_by_its_own_time_to_live() {
    let stage = Stage::open(short_lease()).await;
    stage.post("/pay", "k", "").await;
    for _ in 0..23 {
        stage.hand.advance(Duration::from_secs(3_600));
        assert!(stage.post("/pay", "k", "").await.is_replay());
    }
    assert_eq!(stage.shop.runs(), 1);
}

// The same proxy, a Kong plugin, a Go middleware and an axum layer had keys without a route: the
// answer of `/a` was given for `/b`. A Java filter compared bodies only: the same.
#[tokio::test]
async fn one_key_on_two_routes_is_a_mismatch_not_a_foreign_answer() {
    let stage = Stage::open(Policy::default()).await;
    assert_eq!(stage.post("/pay", "k", "same").await.status, 201);
    for path in ["/echo", "/pay/more", "/pay?x=1"] {
        stage.post(path, "k", "same").await.refuses(422, "idempotency_key_reused");
    }
    let mut patch = stage.request("/pay", "k", "same");
    *patch.method_mut() = http::Method::PATCH;
    stage.send(patch).await.refuses(422, "idempotency_key_reused");
    assert_eq!(stage.shop.runs(), 1);
}

// A nested router hides the outer path from its middleware: two of them saw the same `/pay`.
#[tokio::test]
async fn nesting_does_not_hide_the_path_that_was_asked_for() {
    let (store, shop) = (stage::Faulty::new(Default::default()), Shop::new());
    let layer = IdempotencyLayer::new(store);
    let guarded = || Router::new().merge(shelves(&shop)).layer(layer.clone());
    let router = Router::new().nest("/eu", guarded()).nest("/us", guarded());
    let address = serve(&shop, router).await;
    let ask = |path: &str| {
        let request = Request::post(path).header("host", "x").header("idempotency-key", "k");
        send(address, request.body(Body::empty()).unwrap())
    };
    assert_eq!(ask("/eu/pay").await.status, 201);
    ask("/us/pay").await.refuses(422, "idempotency_key_reused");
    assert!(ask("/eu/pay").await.is_replay());
}

// The same proxies shared replays between all callers without a configured credential, and others
// took the key for global: one customer saw another's answer.
#[tokio::test]
async fn two_callers_with_the_same_key_do_not_see_each_other() {
    let stage = Stage::open(Policy::default()).await;
    let ask = |name: &'static str, credential: &str| {
        let mut request = stage.request("/pay", "k", "");
        request.headers_mut().insert(name, credential.parse().unwrap());
        stage.send(request)
    };
    assert_eq!(ask("authorization", "Bearer a").await.text(), "paid 1 for 0 bytes");
    assert_eq!(ask("authorization", "Bearer b").await.text(), "paid 2 for 0 bytes");
    assert_eq!(ask("x-api-key", "Bearer a").await.text(), "paid 3 for 0 bytes");
    assert_eq!(stage.post("/pay", "k", "").await.text(), "paid 4 for 0 bytes");
    assert_eq!(ask("authorization", "Bearer a").await.text(), "paid 1 for 0 bytes");
}

// The proxy's waiting duplicates held a lock over their pause, so that every write of other keys
// waited too. A book's pattern held a second database connection per duplicate until none was left.
#[tokio::test]
async fn waiting_duplicates_hold_up_nobody() {
    let policy = Policy { wait_max: Duration::from_secs(600), ..Policy::default() };
    let stage = Stage::open(policy).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    let waiting: Vec<_> = (0..200).map(|_| stage.begin(stage.request("/slow", "k", ""))).collect();
    stage.store.asked(201, 0).await;
    for at in 0..50 {
        assert_eq!(stage.post("/pay", &at.to_string(), "").await.status, 201);
    }
    stage.shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 201);
    for waiter in waiting {
        assert!(must("woken", waiter).await.unwrap().is_replay());
    }
}

// A webhook service's lock of five seconds was not renewed: a slower handler was overtaken and ran
// twice, then the late 5xx of the first deleted the lock of the second.
#[tokio::test]
async fn a_late_failure_of_a_former_owner_does_not_free_its_successors_key() {
    let stage = Stage::open(short_lease()).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    stage.hand.advance(Duration::from_secs(61));
    stage.post("/slow", "k", "").await.refuses(409, "outcome_unknown");
    operator_releases(&stage).await;
    let second = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(2).await;
    // The former owner ends while its successor is still running.
    stage.shop.gate.add_permits(1);
    let late = must("the former owner ends", first).await.unwrap();
    late.refuses(409, "outcome_unknown");
    stage.post("/slow", "k", "").await.refuses(409, "request_in_progress");
    stage.shop.gate.add_permits(1);
    assert_eq!(must("the successor ends", second).await.unwrap().text(), "slow 2");
    assert_eq!(stage.post("/slow", "k", "").await.text(), "slow 2");
    let record = &stage.records().await[0];
    let late = |what: &Happened| matches!(what, Happened::LateResult(_));
    assert!(record.timeline.iter().any(|moment| late(&moment.what)), "kept as evidence");
}

// The same service, a Quarkus filter, a Java service and a Go middleware failed to store a finished
// answer and then freed the key, or told the caller 500: the retry ran a finished operation again.
#[tokio::test]
async fn a_store_that_fails_exactly_at_settle_frees_nothing() {
    let stage = Stage::open_with(|layer| layer.settle_max(Duration::from_millis(10))).await;
    stage.store.always(Some((On::Swap, Fault::Refuse(StoreErrorKind::Full))));
    stage.post("/pay", "k", "").await.refuses(503, "outcome_unknown");
    stage.post("/pay", "k", "").await.refuses(409, "request_in_progress");
    stage.store.always(None);
    stage.settled().await;
    assert_eq!(stage.post("/pay", "k", "").await.text(), "paid 1 for 0 bytes");
    assert_eq!(stage.shop.runs(), 1);
}

// The same service collapsed repeated headers in a map; two Node libraries kept only the content
// type, so that a replayed 201 lost its `Location`.
#[tokio::test]
async fn repeated_headers_and_the_location_survive() {
    let stage = Stage::open(Policy::default()).await;
    let headers = [("link", "<a>"), ("link", "<b>"), ("location", "/x/1"), ("x-empty", "")];
    let body = spelt(201, &headers, b"");
    let first = stage.post("/headers", "k", body.clone()).await;
    let again = stage.post("/headers", "k", body).await;
    let of = |answer: &Answer| -> Vec<_> {
        let told = |name: &str| ["link", "location", "x-empty"].contains(&name);
        answer.headers.iter().filter(|(name, _)| told(name)).cloned().collect()
    };
    assert_eq!(of(&again), of(&first));
    assert_eq!(of(&again).len(), 4);
}

// The same service, and a proxy, protected nobody who sent no credential.
#[tokio::test]
async fn a_caller_without_a_credential_is_protected() {
    let stage = Stage::open(Policy::default()).await;
    stage.post("/pay", "k", "").await;
    assert!(stage.post("/pay", "k", "").await.is_replay());
}

// A server's `complete` wrote by key alone: a late owner overwrote what had been decided.
#[tokio::test]
async fn a_late_answer_does_not_overwrite_what_was_decided() {
    let stage = Stage::open(short_lease()).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    stage.hand.advance(Duration::from_secs(61));
    stage.post("/slow", "k", "").await.refuses(409, "outcome_unknown");
    operator_releases(&stage).await;
    stage.shop.gate.add_permits(2);
    first.await.unwrap().refuses(409, "outcome_unknown");
    assert_eq!(stage.standing().await, Standing::FailedRetryable);
    assert_eq!(stage.post("/slow", "k", "").await.text(), "slow 2");
}

// An axum layer, a Django middleware and an Express one looked, ran and stored, without reserving:
// two at once both ran. A PHP package looked just before the first had finished, then ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_at_the_very_same_moment_run_once() {
    let stage = Stage::open(Policy::default()).await;
    for round in 0..20 {
        let key = round.to_string();
        let all: Vec<_> = (0..16).map(|_| stage.begin(stage.request("/pay", &key, ""))).collect();
        for one in all {
            one.await.unwrap();
        }
    }
    assert_eq!(stage.shop.runs(), 20);
}

// A Ruby gem's refused second request deleted the mark of the first in its clean-up: a third ran
// beside the first.
#[tokio::test]
async fn of_three_overlapping_requests_one_runs() {
    let stage = Stage::open(Policy::default()).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    for _ in 0..2 {
        stage.post("/slow", "k", "").await.refuses(409, "request_in_progress");
    }
    assert_eq!(stage.shop.runs(), 1);
    stage.shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "slow 1");
}

// The same gem made the body a part of the key: a changed body silently ran. It also never stored an
// answer of unknown length.
#[tokio::test]
async fn a_changed_body_is_refused_and_an_answer_of_unknown_length_is_stored() {
    let stage = Stage::open(Policy::default()).await;
    stage.post("/pay", "k", "10 EUR").await;
    stage.post("/pay", "k", "11 EUR").await.refuses(422, "idempotency_key_reused");
    let first = stage.post("/pieces/3/5/end", "p", "").await;
    let again = stage.post("/pieces/3/5/end", "p", "").await;
    assert!(again.is_replay());
    assert_eq!((&again.body, again.header("content-length")), (&first.body, Some("15")));
    assert_eq!(stage.shop.runs(), 2);
}

// A Java library's waiter, when its three seconds were over, removed the running owner's record: any
// operation slower than that ran again.
#[tokio::test]
async fn a_waiter_whose_time_is_up_touches_nothing() {
    let policy = Policy { wait_max: Duration::from_millis(5), ..Policy::default() };
    let stage = Stage::open(policy).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    let before = stage.records().await;
    for _ in 0..3 {
        stage.post("/slow", "k", "").await.refuses(409, "request_in_progress");
    }
    assert_eq!(stage.records().await, before);
    stage.shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "slow 1");
    assert_eq!(stage.shop.runs(), 1);
}

// A Java filter drained the request body to hash it: the handler got an empty one.
#[tokio::test]
async fn the_handler_gets_the_body_that_was_fingerprinted() {
    let stage = Stage::open(Policy::default()).await;
    let body = r#"{ "b": 1, "a": [1, 2] }"#;
    let mut request = stage.request("/echo", "k", body);
    request.headers_mut().insert("content-type", "application/json".parse().unwrap());
    assert_eq!(stage.send(request).await.text(), body);
}

// A Quarkus and a .NET filter hashed the first mebibyte only: a changed tail got the wrong answer.
#[tokio::test]
async fn a_changed_tail_past_a_mebibyte_is_another_request() {
    let stage = Stage::open(Policy { request_bytes_max: 4 << 20, ..Policy::default() }).await;
    let mut body = vec![b'x'; 3 << 19];
    assert_eq!(stage.post("/pay", "k", body.clone()).await.status, 201);
    assert!(stage.post("/pay", "k", body.clone()).await.is_replay());
    *body.last_mut().unwrap() = b'y';
    stage.post("/pay", "k", body).await.refuses(422, "idempotency_key_reused");
}

// A .NET guard saved the answer with the request's own cancellation: a client that left between the
// handler and the save freed the key, and the retry ran again. A Go middleware did the same.
#[tokio::test]
async fn a_client_that_leaves_between_handler_and_settle_changes_nothing() {
    let stage = Stage::open(Policy::default()).await;
    let gate = Arc::new(Semaphore::new(0));
    stage.store.next(On::Swap, Fault::Hold(gate.clone()));
    let first = stage.begin(stage.request("/pay", "k", ""));
    stage.store.asked(1, 1).await;
    first.abort();
    stage.shop.left(1).await;
    gate.add_permits(1);
    stage.settled().await;
    assert!(stage.post("/pay", "k", "").await.is_replay());
    assert_eq!(stage.shop.runs(), 1);
}

// A .NET library reserved under a lock of its own process: two replicas both ran. Its mark lived as
// long as an answer: a killed process meant 409 for a day.
#[tokio::test]
async fn two_processes_run_once_and_a_killed_one_is_not_in_progress_for_ever() {
    let stage = Stage::open(Policy::default()).await;
    let shop = Shop::new();
    let other = shelves(&shop).layer(IdempotencyLayer::new(stage.store.clone()));
    let address = serve(&shop, other).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    let ask = || must("an answer", send(address, stage.request("/slow", "k", "")));
    ask().await.refuses(409, "request_in_progress");
    // The first process is gone, as far as anybody can tell.
    stage.hand.advance(Duration::from_secs(61));
    ask().await.refuses(409, "outcome_unknown");
    assert_eq!((stage.shop.runs(), shop.runs()), (1, 0));
    stage.shop.gate.add_permits(1);
    first.await.unwrap();
}

// A Node middleware neither answered nor passed on when its store was down: every keyed request hung.
#[tokio::test]
async fn a_store_that_is_down_is_an_answer() {
    let stage = Stage::open_with(|layer| layer.store_timeout(Duration::from_millis(5))).await;
    stage.store.always(Some((On::Insert, Fault::Hang)));
    for key in ["a", "b", "c"] {
        stage.post("/pay", key, "").await.refuses(503, "store_unavailable");
    }
    assert_eq!(stage.shop.runs(), 0);
}

// A Node store took an expired record for a reservation by somebody else, then found nothing and ran
// without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_key_is_reserved_anew_before_it_runs() {
    let stage = Stage::open(Policy::default()).await;
    stage.post("/pay", "k", "").await;
    stage.hand.advance(Duration::from_secs(86_400));
    let all: Vec<_> = (0..16).map(|_| stage.begin(stage.request("/pay", "k", ""))).collect();
    for one in all {
        one.await.unwrap();
    }
    assert_eq!(stage.shop.runs(), 2);
}

// An edge middleware took every body for text: binary answers were damaged even for the first caller.
#[tokio::test]
async fn a_binary_body_is_not_text() {
    let stage = Stage::open(Policy::default()).await;
    let body: Vec<u8> = (0..=255).chain([0xff, 0xfe, 0x00, 0xc3, 0x28]).collect();
    let first = stage.post("/echo", "k", body.clone()).await;
    let again = stage.post("/echo", "k", body.clone()).await;
    assert_eq!((&first.body[..], &again.body[..]), (&body[..], &body[..]));
    assert!(again.is_replay());
}

// A Nest library deleted the record when a handler failed or answered with a stream: half-done
// endpoints ran again.
#[tokio::test]
async fn a_handler_error_keeps_its_record() {
    let stage = Stage::open(Policy::default().strict()).await;
    for path in ["/status/500", "/pieces/1/3/break"] {
        stage.post(path, path, "").await;
        stage.post(path, path, "").await.refuses(409, "outcome_unknown");
    }
    assert_eq!(stage.shop.runs(), 2);
}

// An Express middleware called the handler after it had sent the kept answer, unless a header said
// otherwise that the client could send itself.
#[tokio::test]
async fn a_replay_never_reaches_the_handler_whatever_the_caller_sends() {
    let stage = Stage::open(Policy::default()).await;
    stage.post("/pay", "k", "").await;
    let mut request = stage.request("/pay", "k", "");
    for name in ["idempotent-replayed", "x-hit", "retrysafe-fence", "retrysafe-outcome"] {
        request.headers_mut().insert(name, "retryable".parse().unwrap());
    }
    assert!(stage.send(request).await.is_replay());
    assert_eq!(stage.shop.runs(), 1);
}

// A Node library refused different keys with the same body: two customers could not buy the same
// thing.
#[tokio::test]
async fn different_keys_with_the_same_body_both_run() {
    let stage = Stage::open(Policy::default()).await;
    for key in ["a", "b"] {
        assert_eq!(stage.post("/pay", key, "one item").await.status, 201);
    }
    assert_eq!(stage.shop.runs(), 2);
}

// A Python middleware passed bodies on unprotected when they declared more than a mebibyte.
#[tokio::test]
async fn a_large_body_is_refused_not_passed_on_unprotected() {
    let stage = Stage::open(Policy::default()).await;
    let body = vec![b'x'; (1 << 20) + 1];
    stage.post("/pay", "k", body).await.refuses(413, "request_too_large");
    assert_eq!(stage.shop.runs(), 0);
}

// A Python middleware never removed its pending mark: when the answer had expired, the key was 409
// for ever. A service without leases locked a key for ever with one crash.
#[tokio::test]
async fn an_expired_key_is_free_again() {
    let stage = Stage::open(Policy::default()).await;
    for path in ["/pay", "/status/404"] {
        stage.post(path, path, "").await;
    }
    stage.hand.advance(Duration::from_secs(86_400));
    for (path, status) in [("/pay", 201), ("/status/404", 404)] {
        let again = stage.post(path, path, "").await;
        assert_eq!((again.status, again.is_replay()), (status, false));
    }
    assert_eq!(stage.shop.runs(), 4);
}

// A Django middleware replayed with 409, a proxy with 200: callers took a success for an error.
#[tokio::test]
async fn a_replay_has_the_status_of_the_first_answer() {
    let stage = Stage::open(Policy::default()).await;
    for status in [200, 201, 204, 303, 402, 422] {
        let path = format!("/status/{status}");
        stage.post(&path, &path, "").await;
        assert_eq!(stage.post(&path, &path, "").await.status, status);
    }
}

// A function decorator redid the work when the first run had timed out: its mark ended exactly then.
#[tokio::test]
async fn a_run_that_timed_out_is_not_redone() {
    let lease_max = Duration::from_millis(20);
    let stage = Stage::open(Policy { lease_max, ..Policy::default() }).await;
    stage.post("/slow", "k", "").await.refuses(504, "outcome_unknown");
    stage.shop.began(1).await;
    stage.hand.advance(Duration::from_secs(60));
    stage.post("/slow", "k", "").await.refuses(409, "outcome_unknown");
    assert_eq!(stage.shop.runs(), 1);
    stage.shop.gate.add_permits(1);
    stage.layer.drain().wait(PATIENCE).await.unwrap();
    assert!(stage.post("/slow", "k", "").await.is_replay(), "the late settle is the truth");
}

// A Go middleware turned a success of more than 64 KiB into a 500 that was replayed for ever, and a
// reused key looked like one in flight.
#[tokio::test]
async fn a_large_success_stays_a_success_and_refusals_can_be_told_apart() {
    let stage = Stage::open(Policy { response_bytes_max: 64, ..Policy::default() }).await;
    let first = stage.post("/pieces/100/64/end", "k", "").await;
    assert_eq!((first.status, first.body.len()), (201, 6_400));
    stage.post("/pieces/100/64/end", "k", "").await.refuses(410, "response_not_stored");
    stage.post("/pieces/100/64/end", "k", "other").await.refuses(422, "idempotency_key_reused");
}

// A gateway plugin ran unprotected when its store failed, without a word; and a failed upstream left
// 409 for a day.
#[tokio::test]
async fn a_store_failure_is_refused_unless_the_route_says_otherwise() {
    let stage = Stage::open(Policy::default()).await;
    stage.store.next(On::Insert, Fault::Refuse(StoreErrorKind::Unavailable));
    stage.post("/pay", "k", "").await.refuses(503, "store_unavailable");
    assert_eq!(stage.shop.runs(), 0);
    stage.post("/failed/not-sent", "u", "").await.refuses(502, "upstream_unreachable");
    stage.post("/failed/not-sent", "u", "").await.refuses(502, "upstream_unreachable");
    assert_eq!(stage.shop.runs(), 2);
}

// Layers are often set per route; two of them over one store must not double the lease.
#[tokio::test]
async fn a_layer_per_route_and_one_per_router_are_one() {
    let (store, shop) = (stage::Faulty::new(Default::default()), Shop::new());
    let layer = IdempotencyLayer::new(store);
    let strict = layer.clone().policy(Policy::default().strict());
    let handler = post(async || "done").layer(strict);
    let router = Router::new().route("/one", handler).layer(layer);
    let address = serve(&shop, router).await;
    let ask = |key: Option<&str>| {
        let mut request = Request::post("/one").header("host", "x");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        send(address, request.body(Body::empty()).unwrap())
    };
    assert_eq!(ask(Some("k")).await.status, 200);
    assert!(ask(Some("k")).await.is_replay());
    // Without a key the outer one passes on, and the inner one still demands it.
    ask(None).await.refuses(400, "idempotency_key_missing");
}
