//! Is a retry that is answered at once answered as any other?
//!
//! The second replay of a request is given from what the first one left at hand, without a call of the store. Each test asks
//! twice before it changes something, so that an answer is at hand which must not be given.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use http::HeaderName;
use retrysafe::layer::{Limits, RoutePolicy};
use retrysafe_core::engine::Engine;
use retrysafe_core::policy::Policy;
use retrysafe_core::scope::{Caller, CredentialMark, Scope};
use retrysafe_core::store::StoreErrorKind;

use super::stage::{Answer, Fault, On, Stage};

/// A request whose head can be changed piece by piece.
fn request(change: impl FnOnce(http::request::Builder) -> http::request::Builder) -> Request {
    let head = Request::post("/pay?cart=1")
        .header("host", "shop.example")
        .header("idempotency-key", "k")
        .header("content-type", "application/json")
        .header("authorization", "Bearer alice");
    change(head).body(Body::from(r#"{"amount":1}"#)).unwrap()
}

fn usual() -> Request {
    request(|head| head)
}

/// Asks three times: for the first answer, for its replay, and for the one that is at hand from then on.
async fn left_at_hand(stage: &Stage) -> Answer {
    let first = stage.send(usual()).await;
    assert!(!first.is_replay() && first.status == 201, "{first:?}");
    let replay = stage.send(usual()).await;
    assert!(replay.is_replay(), "{replay:?}");
    let inserts = stage.store.inserts();
    let again = stage.send(usual()).await;
    assert_eq!(stage.store.inserts(), inserts, "the store was asked");
    let undated = |answer: &Answer| {
        let mut answer = answer.clone();
        answer.headers.retain(|(name, _)| name != "date");
        answer.headers.sort_unstable();
        answer
    };
    assert_eq!(undated(&again), undated(&replay), "a replay is a replay");
    again
}

#[tokio::test]
async fn a_retry_is_answered_at_once_with_the_same_bytes() {
    let stage = Stage::open(Policy::default()).await;
    let answer = left_at_hand(&stage).await;
    assert_eq!(answer.text(), "paid 1 for 12 bytes");
    // What does not count in a request may differ.
    let traced = request(|head| head.header("traceparent", "00-1").header("x-request-id", "r-7"));
    let inserts = stage.store.inserts();
    assert!(stage.send(traced).await.is_replay());
    assert_eq!((stage.store.inserts(), stage.shop.runs()), (inserts, 1));
}

#[tokio::test]
async fn the_answers_of_a_thousand_keys_are_at_hand_together_and_those_of_very_many_are_not() {
    let stage = Stage::open(Policy::default()).await;
    let asked = |number: u32| {
        let (mut parts, body) = usual().into_parts();
        parts.headers.insert("idempotency-key", format!("k{number}").parse().unwrap());
        Request::from_parts(parts, body)
    };
    for count in [1_000, 30_000] {
        for number in (0..count).chain(0..count) {
            stage.send(asked(number)).await;
        }
        let inserts = stage.store.inserts();
        for number in 0..count {
            assert!(stage.send(asked(number)).await.is_replay());
        }
        let is_all = stage.store.inserts() == inserts;
        assert_eq!(is_all, count == 1_000, "{count}: {}", stage.store.inserts() - inserts);
    }
}

// Each of these was answered with another request's answer when that one part of the request was not looked at.
#[tokio::test]
async fn whatever_makes_it_another_request_is_seen() {
    let api_version = HeaderName::from_static("api-version");
    let mut policy = Policy::default();
    policy.fingerprint = policy.fingerprint.header(api_version);
    let stage = Stage::open(policy).await;
    left_at_hand(&stage).await;
    let with_body = |body: &'static str| {
        let (parts, _) = usual().into_parts();
        Request::from_parts(parts, Body::from(body))
    };
    let changed = |change: fn(&mut http::request::Parts)| {
        let (mut parts, body) = usual().into_parts();
        change(&mut parts);
        Request::from_parts(parts, body)
    };
    for (what, other) in [
        ("body", with_body(r#"{"amount":2}"#)),
        ("length of the body", with_body(r#"{"amount":1}x"#)),
        ("path", changed(|parts| parts.uri = "/pay/more?cart=1".parse().unwrap())),
        ("query", changed(|parts| parts.uri = "/pay?cart=2".parse().unwrap())),
        ("method", changed(|parts| parts.method = http::Method::PATCH)),
        ("override", request(|head| head.header("x-http-method-override", "DELETE"))),
        ("host", changed(|parts| drop(parts.headers.insert("host", "b.example".parse().unwrap())))),
        (
            "media type",
            changed(|parts| {
                drop(parts.headers.insert("content-type", "text/plain".parse().unwrap()))
            }),
        ),
        ("coding", request(|head| head.header("content-encoding", "gzip"))),
        ("chosen header", request(|head| head.header("api-version", "2"))),
    ] {
        stage.send(other).await.refuses(422, "idempotency_key_reused");
        assert!(stage.send(usual()).await.is_replay(), "after another {what}");
    }
    assert_eq!(stage.shop.runs(), 1);
}

#[tokio::test]
async fn another_caller_or_key_runs_on_its_own() {
    let stage = Stage::open(Policy::default()).await;
    left_at_hand(&stage).await;
    for (number, (name, value)) in
        [("authorization", "Bearer bob"), ("idempotency-key", "other")].into_iter().enumerate()
    {
        let (mut parts, body) = usual().into_parts();
        parts.headers.insert(name, value.parse().unwrap());
        let answer = stage.send(Request::from_parts(parts, body)).await;
        assert!(!answer.is_replay() && answer.status == 201, "{name}: {answer:?}");
        assert_eq!(stage.shop.runs(), number + 2);
    }
}

#[tokio::test]
async fn another_credential_of_the_same_name_is_refused() {
    let by_claim = |parts: &http::request::Parts| {
        let token = parts.headers["authorization"].as_bytes();
        let claimed = Scope::of([("sub", &b"alice"[..])]);
        Ok(Caller { scope: claimed, mark: Some(CredentialMark::of(token)) })
    };
    let stage = Stage::open_with(|layer| layer.caller(by_claim)).await;
    left_at_hand(&stage).await;
    let (mut parts, body) = usual().into_parts();
    parts.headers.insert("authorization", "Bearer forged".parse().unwrap());
    stage.send(Request::from_parts(parts, body)).await.refuses(409, "credential_changed");
    assert_eq!(stage.shop.runs(), 1);
}

#[tokio::test]
async fn an_expired_answer_is_not_given() {
    let policy = Policy { ttl: Duration::from_secs(60), ..Policy::default() };
    let stage = Stage::open(policy).await;
    left_at_hand(&stage).await;
    stage.hand.advance(Duration::from_secs(61));
    let anew = stage.send(usual()).await;
    assert!(!anew.is_replay() && anew.text().starts_with("paid 2"), "{anew:?}");
    let replay = stage.send(usual()).await;
    assert!(replay.is_replay() && replay.text().starts_with("paid 2"), "{replay:?}");
}

#[tokio::test]
async fn an_answer_that_an_operator_has_ended_is_not_given() {
    let stage = Stage::open(Policy::default()).await;
    left_at_hand(&stage).await;
    let [record] = &stage.records().await[..] else { panic!("one record") };
    let engine = Engine::new(Arc::clone(&stage.store));
    engine.expire(record.id, None, "wrong amount").await.unwrap();
    stage.hand.advance(Duration::from_millis(1));
    let anew = stage.send(usual()).await;
    assert!(!anew.is_replay() && anew.text().starts_with("paid 2"), "{anew:?}");
}

// A reload gave a route another marker, and answers at hand still had the old one.
#[tokio::test]
async fn an_answer_is_written_by_the_policy_of_its_request() {
    let is_new = Arc::new(AtomicBool::new(false));
    let marker =
        |name| Policy { replay_marker: HeaderName::from_static(name), ..Policy::default() };
    let routes = [marker("idempotent-replayed"), marker("x-again")]
        .map(|policy| Arc::new(RoutePolicy::new("/pay", policy)));
    let asked = Arc::clone(&is_new);
    let policy = move |_: &http::request::Parts| {
        let [old, new] = &routes;
        Arc::clone(if asked.load(Ordering::SeqCst) { new } else { old })
    };
    let stage = Stage::open_with(|layer| layer.policy_by(policy)).await;
    left_at_hand(&stage).await;
    is_new.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let replay = stage.send(usual()).await;
        assert_eq!((replay.header("x-again"), replay.is_replay()), (Some("true"), false));
    }
    assert_eq!(stage.shop.runs(), 1);
}

#[tokio::test]
async fn limits_count_what_is_answered_at_once() {
    let limits = Limits { retries_per_key_per_second: NonZeroU32::new(3), ..Limits::default() };
    let stage = Stage::open_with(|layer| layer.limits(limits)).await;
    left_at_hand(&stage).await;
    let mut answers = Vec::new();
    for _ in 0..50 {
        answers.push(stage.send(usual()).await);
    }
    let refused = answers.iter().find(|answer| answer.status == 429).expect("a refusal");
    refused.refuses(429, "retry_too_fast");
}

// A store that counts as dead is asked once a second, whatever is at hand.
#[tokio::test]
async fn nothing_is_given_while_the_store_counts_as_dead() {
    let stage = Stage::open(Policy::default()).await;
    left_at_hand(&stage).await;
    stage.store.always(Some((On::Insert, Fault::Refuse(StoreErrorKind::Unavailable))));
    for number in 0..5 {
        let other = stage.post("/pay", &format!("k{number}"), "x").await;
        other.refuses(503, "store_unavailable");
    }
    stage.send(usual()).await.refuses(503, "store_unavailable");
}

// Retries of known keys kept the breaker shut when they asked the store, and still do.
#[tokio::test]
async fn an_answer_at_hand_counts_as_a_sign_of_life() {
    let stage = Stage::open(Policy::default()).await;
    left_at_hand(&stage).await;
    stage.store.always(Some((On::Insert, Fault::Refuse(StoreErrorKind::Unavailable))));
    for round in 0..3 {
        for number in 0..4 {
            let other = stage.post("/pay", &format!("k{round}-{number}"), "x").await;
            other.refuses(503, "store_unavailable");
        }
        assert!(stage.send(usual()).await.is_replay(), "round {round}");
    }
}

// Each replay of a large answer read its record a second time, only to find that it was too large to keep.
#[tokio::test]
async fn an_answer_that_is_too_large_to_keep_is_read_once() {
    let stage = Stage::open(Policy::default()).await;
    for (bytes, reads) in [(20_000, 0), (200, 1)] {
        let body = "x".repeat(bytes);
        for _ in 0..4 {
            assert_eq!(stage.post("/echo", &format!("k{bytes}"), body.clone()).await.text(), body);
        }
        assert_eq!(stage.store.read_at_hand(), reads, "{bytes} bytes");
    }
    assert_eq!(stage.shop.runs(), 2);
}

#[tokio::test]
async fn a_meaning_of_the_users_own_is_asked_each_time() {
    let by_user =
        |parts: &http::request::Parts, body: &[u8], rules: &retrysafe_core::fingerprint::Rules| {
            let mut headers = http::HeaderMap::new();
            headers.extend(
                parts.headers.get("x-user").map(|user| (http::header::CONTENT_TYPE, user.clone())),
            );
            rules.print(&retrysafe_core::fingerprint::Request {
                headers: &headers,
                ..retrysafe::layer::fingerprint_request(parts, body)
            })
        };
    let stage = Stage::open_with(|layer| layer.fingerprint(by_user)).await;
    for _ in 0..3 {
        assert_eq!(stage.send(usual()).await.status, 201);
    }
    stage
        .send(request(|head| head.header("x-user", "u")))
        .await
        .refuses(422, "idempotency_key_reused");
}
