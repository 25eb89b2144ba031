//! What does the caller see? Every row of the answer table, and every rule beside it.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use retrysafe::layer::Limits;
use retrysafe_core::policy::{Dialect, InFlight, KeyRule, OnStoreError, Policy};
use retrysafe_core::record::Standing;
use retrysafe_core::retry;
use retrysafe_core::scope::Scope;
use retrysafe_core::store::StoreErrorKind;

use crate::stage::{Fault, On, Stage, must};

#[tokio::test]
async fn key_missing_where_required_is_400() {
    let stage = Stage::open(Policy::default().strict()).await;
    let request = Request::post("/pay").body(Body::empty()).unwrap();
    stage.send(request).await.refuses(400, "idempotency_key_missing");
    assert_eq!((stage.shop.runs(), stage.records().await.len()), (0, 0));
}

#[tokio::test]
async fn key_malformed_too_long_or_twice_is_400() {
    let stage = Stage::open(Policy { key_chars_min: 2, ..Policy::default() }).await;
    for key in ["", "a b", "\"open", "a,b", &"k".repeat(256), "k"] {
        stage.post("/pay", key, "").await.refuses(400, "idempotency_key_invalid");
    }
    let mut twice = stage.request("/pay", "same", "");
    twice.headers_mut().append("idempotency-key", "same".parse().unwrap());
    stage.send(twice).await.refuses(400, "idempotency_key_invalid");
    assert_eq!((stage.shop.runs(), stage.records().await.len()), (0, 0));
}

#[tokio::test]
async fn same_key_for_another_request_is_422_400_or_409_by_dialect() {
    for (dialect, status) in
        [(Dialect::Ietf, 422), (Dialect::Stripe, 400), (Dialect::Conflict, 409)]
    {
        let stage = Stage::open(Policy { dialect, ..Policy::default() }).await;
        assert_eq!(stage.post("/pay", "k", "one").await.status, 201);
        let other = stage.post("/pay", "k", "two").await;
        assert_eq!(other.status, status);
        match dialect {
            Dialect::Stripe => assert!(other.text().contains(r#""type":"idempotency_error""#)),
            Dialect::Ietf | Dialect::Conflict => other.refuses(status, "idempotency_key_reused"),
        }
        assert_eq!(stage.post("/pay", "k", "one").await.text(), "paid 1 for 3 bytes");
        assert_eq!(stage.shop.runs(), 1);
    }
}

// A policy built in code may say "for ever" in any of its lengths. Adding that to a clock's reading
// used to panic in the middle of a request.
#[tokio::test]
async fn lengths_without_end_are_kept_to() {
    let ever = Duration::MAX;
    let (lease, lease_max, wait_max) = (ever, ever, ever);
    let policy = Policy { ttl: ever, lease, lease_max, wait_max, ..Policy::default() };
    let stage = Stage::open(Policy { request_time_max: ever, ..policy }).await;
    assert_eq!(stage.post("/pay", "k", "").await.status, 201);
    assert!(stage.post("/pay", "k", "").await.is_replay());
    let first = stage.begin(stage.request("/slow", "slow", ""));
    stage.shop.began(2).await;
    let mut patient = stage.request("/slow", "slow", "");
    let wait = format!("wait={}", u64::MAX);
    patient.headers_mut().insert("prefer", wait.parse().unwrap());
    let second = stage.begin(patient);
    stage.store.asked(4, 1).await;
    stage.shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert!(second.await.unwrap().is_replay());
    assert_eq!(stage.shop.runs(), 2);
}

#[tokio::test]
async fn still_running_is_409_with_retry_after() {
    let stage = Stage::open(Policy::default()).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    let second = stage.post("/slow", "k", "").await;
    second.refuses(409, "request_in_progress");
    assert!((1..=60).contains(&second.retry_after()));
    stage.post("/slow", "k", "other").await.refuses(422, "idempotency_key_reused");
    stage.shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "slow 1");
    assert!(stage.post("/slow", "k", "").await.is_replay());
    assert_eq!(stage.shop.runs(), 1);
}

#[tokio::test]
async fn still_running_is_202_where_the_route_says_accepted_and_stripes_where_it_says_stripe() {
    let accepted = Policy { in_flight: InFlight::Accepted, ..Policy::default() };
    let stripe = Policy { dialect: Dialect::Stripe, ..Policy::default() };
    for (policy, status, text) in
        [(accepted, 202, "request_in_progress"), (stripe, 409, "idempotency_key_in_use")]
    {
        let stage = Stage::open(policy).await;
        let first = stage.begin(stage.request("/slow", "k", ""));
        stage.shop.began(1).await;
        let second = stage.post("/slow", "k", "").await;
        assert_eq!(second.status, status);
        assert!(second.text().contains(text), "{}", second.text());
        assert!(second.retry_after() >= 1);
        stage.shop.gate.add_permits(1);
        first.await.unwrap();
    }
}

#[tokio::test]
async fn outcome_unknown_is_409_with_retry_after_and_never_runs_again() {
    let stage = Stage::open(Policy::default()).await;
    stage.post("/failed/lost", "k", "").await.refuses(502, "outcome_unknown");
    for _ in 0..3 {
        let again = stage.post("/failed/lost", "k", "").await;
        again.refuses(409, "outcome_unknown");
        assert!(again.retry_after() >= 1);
    }
    assert_eq!(stage.shop.runs(), 1);
}

#[tokio::test]
async fn executed_without_a_kept_answer_is_410_with_the_original_status_and_location() {
    let stage = Stage::open(Policy { response_bytes_max: 10, ..Policy::default() }).await;
    let first = stage.post("/pieces/3/4/end", "k", "").await;
    assert_eq!((first.status, first.body.len()), (201, 12), "the first caller gets it whole");
    let second = stage.post("/pieces/3/4/end", "k", "").await;
    second.refuses(410, "response_not_stored");
    assert!(second.text().contains(r#""original_status":201"#));
    assert!(second.text().contains(r#""original_location":"/exports/1""#));
    assert_eq!(stage.shop.runs(), 1);
}

#[tokio::test]
async fn store_out_of_reach_is_503_with_retry_after_and_nothing_runs() {
    let stage = Stage::open(Policy::default()).await;
    for kind in [
        StoreErrorKind::Unavailable,
        StoreErrorKind::Full,
        StoreErrorKind::Held,
        StoreErrorKind::Damaged,
        StoreErrorKind::Broken,
    ] {
        stage.store.next(On::Insert, Fault::Refuse(kind));
        let answer = stage.post("/pay", "k", "").await;
        answer.refuses(503, "store_unavailable");
        assert!(answer.retry_after() >= 1);
    }
    assert_eq!(stage.shop.runs(), 0);
    assert_eq!(stage.post("/pay", "k", "").await.status, 201);
}

#[tokio::test]
async fn too_many_new_keys_is_429_and_creates_nothing() {
    let one = NonZeroU32::new(1);
    let limits = Limits { live_keys_per_scope: one, ..Limits::default() };
    let stage = Stage::open_with(|layer| layer.limits(limits)).await;
    assert_eq!(stage.post("/pay", "a", "").await.status, 201);
    let refused = stage.post("/pay", "b", "").await;
    refused.refuses(429, "key_rate_exceeded");
    assert!(refused.retry_after() >= 1);
    assert!(stage.post("/pay", "a", "").await.is_replay(), "a known key is not a new one");
    assert_eq!((stage.shop.runs(), stage.records().await.len()), (1, 1));

    let limits = Limits { new_keys_per_scope_per_second: one, ..Limits::default() };
    let stage = Stage::open_with(|layer| layer.limits(limits)).await;
    // The allowance grows back within a second: of four keys at once at least one is too many.
    let mut codes = Vec::new();
    for key in ["a", "b", "c", "d"] {
        codes.push(stage.post("/pay", key, "").await.code());
    }
    assert!(codes.contains(&"key_rate_exceeded".to_owned()), "{codes:?}");
    assert_eq!(stage.records().await.len(), stage.shop.runs());
}

#[tokio::test]
async fn retrying_or_guessing_too_fast_is_429_before_the_store_is_asked() {
    let few = NonZeroU32::new(3);
    let per_key = Limits { retries_per_key_per_second: few, ..Limits::default() };
    let per_scope = Limits { keyed_per_scope_per_second: few, ..Limits::default() };
    for (limits, guess) in [(per_key, false), (per_scope, true)] {
        let stage = Stage::open_with(|layer| layer.limits(limits)).await;
        let mut refused = 0;
        for at in 0..12 {
            let key = if guess { format!("k{at}") } else { "k".into() };
            let answer = stage.post("/pay", &key, "").await;
            if answer.status == 429 {
                answer.refuses(429, "retry_too_fast");
                refused += 1;
            }
        }
        assert!(refused > 0);
        // Of one key, all but the first two are answered from what is at hand.
        assert_eq!(stage.store.inserts(), if guess { 12 - refused } else { 2 });
    }
}

#[tokio::test]
async fn a_cookie_alone_is_400_scope_unsafe() {
    let stage = Stage::open(Policy::default()).await;
    let mut request = stage.request("/pay", "k", "");
    request.headers_mut().insert("cookie", "session=1".parse().unwrap());
    stage.send(request).await.refuses(400, "scope_unsafe");
    let mut request = stage.request("/pay", "k", "");
    request.headers_mut().insert("cookie", "session=1".parse().unwrap());
    request.headers_mut().insert("authorization", "Bearer t".parse().unwrap());
    assert_eq!(stage.send(request).await.status, 201);
}

#[tokio::test]
async fn first_sent_too_long_ago_is_412_where_the_route_asks() {
    let hour = Some(Duration::from_secs(3_600));
    let stage = Stage::open(Policy { first_sent_age_max: hour, ..Policy::default() }).await;
    let sent = |date: &str| {
        let mut request = stage.request("/pay", "k", "");
        request.headers_mut().insert("repeatability-first-sent", date.parse().unwrap());
        request
    };
    stage.post("/pay", "k", "").await.refuses(412, "request_too_old");
    stage.send(sent("Sun, 06 Nov 1994 08:49:37 GMT")).await.refuses(412, "request_too_old");
    let future = retry::show_http_date(4_000_000_000);
    assert_eq!(stage.send(sent(&future)).await.status, 201);
}

#[tokio::test]
async fn a_body_too_large_is_413_and_leaves_no_record() {
    let stage = Stage::open(Policy { request_bytes_max: 10, ..Policy::default() }).await;
    assert_eq!(stage.post("/pay", "a", "0123456789").await.status, 201);
    stage.post("/pay", "b", "0123456789+").await.refuses(413, "request_too_large");
    // Without a declared length it is read up to the bound.
    let mut chunked = stage.request("/pay", "b", "");
    *chunked.body_mut() = crate::stage::pieces(3, 4, crate::stage::Then::End);
    stage.send(chunked).await.refuses(413, "request_too_large");
    assert_eq!((stage.shop.runs(), stage.records().await.len()), (1, 1));
    assert_eq!(stage.post("/pay", "b", "short").await.status, 201, "the key is still free");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408_and_leaves_no_record() {
    let soon = Duration::from_millis(20);
    let stage = Stage::open(Policy { request_time_max: soon, ..Policy::default() }).await;
    let mut request = stage.request("/pay", "k", "");
    *request.body_mut() =
        crate::stage::pieces(1, 4, crate::stage::Then::Wait(stage.shop.gate.clone()));
    stage.send(request).await.refuses(408, "request_timeout");
    assert_eq!((stage.shop.runs(), stage.records().await.len()), (0, 0));
}

#[tokio::test]
async fn replays_carry_the_marker_the_expiry_and_the_length_of_the_stored_body() {
    let stage = Stage::open(Policy::default()).await;
    let first = stage.post("/pay", "k", "abc").await;
    let again = stage.post("/pay", "k", "abc").await;
    assert!(!first.is_replay() && again.is_replay());
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.header("location"), Some("/payments/1"));
    assert_eq!(again.header("content-length"), Some("18"));
    // The store's clock stands at 1,800,000,000 s, and records are kept for a day.
    let expires = retry::show_http_date(1_800_000_000 + 86_400);
    assert_eq!(first.header("idempotency-expires"), Some(expires.as_str()));
    assert_eq!(again.header("idempotency-expires"), Some(expires.as_str()));
}

#[tokio::test]
async fn the_marker_can_be_renamed_and_the_expiry_kept_silent() {
    let replay_marker = http::HeaderName::from_static("x-again");
    let policy = Policy { replay_marker, announce_expiry: false, ..Policy::default() };
    let stage = Stage::open(policy).await;
    let first = stage.post("/pay", "k", "").await;
    let again = stage.post("/pay", "k", "").await;
    assert_eq!(again.header("x-again"), Some("true"));
    assert_eq!(first.header("idempotency-expires").or(again.header("idempotency-expires")), None);
}

#[tokio::test]
async fn quoted_and_bare_spellings_name_the_same_key() {
    let stage = Stage::open(Policy::default()).await;
    stage.post("/pay", "k-1", "").await;
    assert!(stage.post("/pay", "\"k-1\";v=1", "").await.is_replay());
}

#[tokio::test]
async fn uncovered_methods_and_unkeyed_requests_are_passed_on() {
    let stage = Stage::open(Policy::default()).await;
    for method in ["GET", "PUT", "DELETE"] {
        for _ in 0..2 {
            let mut request = stage.request("/pay", "k", "");
            *request.method_mut() = method.parse().unwrap();
            assert_eq!(stage.send(request).await.status, 201);
        }
    }
    for _ in 0..2 {
        let request = Request::post("/pay").body(Body::empty()).unwrap();
        assert_eq!(stage.send(request).await.status, 201);
    }
    assert_eq!((stage.shop.runs(), stage.records().await.len()), (8, 0));
    let off = Stage::open(Policy { key: KeyRule::Off, ..Policy::default() }).await;
    off.post("/pay", "\"not even a key", "").await;
    off.post("/pay", "\"not even a key", "").await;
    assert_eq!(off.shop.runs(), 2);
}

#[tokio::test]
async fn a_method_override_makes_a_safe_method_covered() {
    let stage = Stage::open(Policy::default().strict()).await;
    for header in ["x-http-method-override", "x-http-method", "x-method-override"] {
        let request = Request::get("/pay").header(header, "POST").body(Body::empty()).unwrap();
        stage.send(request).await.refuses(400, "idempotency_key_missing");
    }
    assert_eq!(stage.shop.runs(), 0);
}

#[tokio::test]
async fn a_duplicate_waits_where_the_route_allows_it() {
    let wait_max = Duration::from_secs(600);
    let stage = Stage::open(Policy { wait_max, ..Policy::default() }).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    let waiting: Vec<_> = (0..5).map(|_| stage.begin(stage.request("/slow", "k", ""))).collect();
    stage.store.asked(6, 0).await;
    assert!(!waiting.iter().any(|waiter| waiter.is_finished()));
    stage.shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "slow 1");
    for waiter in waiting {
        let answer = must("waiter woken", waiter).await.unwrap();
        assert!(answer.is_replay());
        assert_eq!(answer.text(), "slow 1");
    }
    assert_eq!(stage.shop.runs(), 1);
}

#[tokio::test]
async fn the_caller_may_wait_less_than_the_route_allows_but_never_longer() {
    let wait_max = Duration::from_secs(600);
    let stage = Stage::open(Policy { wait_max, ..Policy::default() }).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    let mut impatient = stage.request("/slow", "k", "");
    impatient.headers_mut().insert("prefer", "wait=0".parse().unwrap());
    stage.send(impatient).await.refuses(409, "request_in_progress");
    stage.shop.gate.add_permits(1);
    first.await.unwrap();

    let stage = Stage::open(Policy::default()).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    let mut greedy = stage.request("/slow", "k", "");
    greedy.headers_mut().insert("prefer", "wait=600".parse().unwrap());
    stage.send(greedy).await.refuses(409, "request_in_progress");
    stage.shop.gate.add_permits(1);
    first.await.unwrap();
}

#[tokio::test]
async fn waiters_are_bounded_per_key() {
    let wait_max = Duration::from_secs(600);
    let policy = Policy { wait_max, ..Policy::default() };
    let stage = Stage::open_with(|layer| layer.policy(policy).waiters_max(1, 9)).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    // Whichever of the two comes second finds the only seat taken.
    let mut two = [
        stage.begin(stage.request("/slow", "k", "")),
        stage.begin(stage.request("/slow", "k", "")),
    ];
    let [one, other] = &mut two;
    let refused = tokio::select! { answer = one => answer, answer = other => answer };
    refused.unwrap().refuses(409, "request_in_progress");
    stage.shop.gate.add_permits(1);
    first.await.unwrap();
}

#[tokio::test]
async fn when_the_running_one_fails_a_waiter_begins_once_more() {
    let wait_max = Duration::from_secs(600);
    let stage = Stage::open(Policy { wait_max, ..Policy::default() }).await;
    // The first attempt is held in its settle, so that the waiter surely waits.
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    stage.store.next(On::Swap, Fault::Hold(gate.clone()));
    let first = stage.begin(stage.request("/status/500", "k", ""));
    stage.store.asked(1, 1).await;
    let waiter = stage.begin(stage.request("/status/500", "k", ""));
    stage.store.asked(2, 1).await;
    gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "run 1");
    assert_eq!(must("waiter", waiter).await.unwrap().text(), "run 2");
    assert_eq!(stage.shop.runs(), 2);
}

#[tokio::test]
async fn a_request_that_runs_in_another_process_is_polled_for() {
    let wait_max = Duration::from_secs(600);
    let stage = Stage::open(Policy { wait_max, ..Policy::default() }).await;
    // Another layer over the same store stands for another process: it shares no table.
    let shop = crate::stage::Shop::new();
    let elsewhere = retrysafe::layer::IdempotencyLayer::new(stage.store.clone());
    let router = crate::stage::shelves(&shop).layer(elsewhere);
    let address = crate::stage::serve(&shop, router).await;
    let first = tokio::spawn(crate::stage::send(address, stage.request("/slow", "k", "")));
    shop.began(1).await;
    let waiter = stage.begin(stage.request("/slow", "k", ""));
    stage.store.asked(2, 0).await;
    shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "slow 1");
    assert!(must("polled", waiter).await.unwrap().is_replay());
    assert_eq!(stage.shop.runs(), 0);
}

#[tokio::test]
async fn failing_open_is_marked_and_only_where_the_begin_surely_was_not_applied() {
    let policy = Policy { on_store_error: OnStoreError::Open, ..Policy::default() };
    let stage = Stage::open(policy).await;
    stage.store.next(On::Insert, Fault::Refuse(StoreErrorKind::Unavailable));
    let open = stage.post("/pay", "k", "").await;
    assert_eq!((open.status, open.header("retrysafe-unprotected")), (201, Some("store")));
    assert_eq!((stage.shop.runs(), stage.records().await.len()), (1, 0));
    for fault in [Fault::LoseWrite, Fault::LoseAnswer, Fault::Refuse(StoreErrorKind::Damaged)] {
        stage.store.next(On::Insert, fault);
        stage.post("/pay", "k", "").await.refuses(503, "store_unavailable");
    }
    assert_eq!(stage.shop.runs(), 1);
}

// A duplicate of a running request found the store out of reach and ran beside it, in the same
// process. Another one was told by the store that a lease had ended, could not note that, and ran.
#[tokio::test]
async fn failing_open_never_runs_what_is_known_to_have_begun() {
    let policy = Policy { on_store_error: OnStoreError::Open, ..Policy::default() };
    let stage = Stage::open(policy).await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(1).await;
    stage.store.next(On::Insert, Fault::Refuse(StoreErrorKind::Unavailable));
    stage.post("/slow", "k", "").await.refuses(503, "store_unavailable");
    stage.hand.advance(Duration::from_secs(60));
    stage.store.next(On::Swap, Fault::Refuse(StoreErrorKind::Unavailable));
    stage.post("/slow", "k", "").await.refuses(409, "outcome_unknown");
    stage.shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "slow 1");
    assert!(stage.post("/slow", "k", "").await.is_replay());
    assert_eq!(stage.shop.runs(), 1);
}

#[tokio::test]
async fn error_bodies_keys_scopes_and_fingerprints_can_be_ones_own() {
    let stage = Stage::open_with(|layer| {
        layer
            .policy(Policy {
                key_header: http::HeaderName::from_static("x-key"),
                ..Policy::default().strict()
            })
            .scope(|parts| {
                let tenant = parts.headers.get("x-tenant")?;
                Some(Scope::of([("tenant", tenant.as_bytes())]))
            })
            .fingerprint(|parts, _, rules| {
                rules.print(&retrysafe::layer::fingerprint_request(parts, b""))
            })
            .error_body(|refusal, mut problem| {
                problem.body = format!("no: {}", refusal.code()).into_bytes();
                problem.content_type = "text/plain";
                problem.headers.remove("link");
                problem.headers.insert("x-code", refusal.code().parse().unwrap());
                problem
            })
    })
    .await;
    let ask = |tenant: Option<&str>, key: Option<&str>, body: &'static str| {
        let mut request = Request::post("/pay");
        for (name, value) in [("x-tenant", tenant), ("x-key", key)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        stage.send(request.body(Body::from(body)).unwrap())
    };
    let missing = ask(Some("a"), None, "").await;
    assert_eq!(missing.text(), "no: idempotency_key_missing");
    assert_eq!(missing.header("x-code"), Some("idempotency_key_missing"));
    assert_eq!(missing.header("link"), None, "whoever writes refusals owns all of their headers");
    assert_eq!(ask(None, Some("k"), "").await.text(), "no: scope_unsafe");
    assert_eq!(ask(Some("a"), Some("k"), "one").await.text(), "paid 1 for 3 bytes");
    assert_eq!(ask(Some("a"), Some("k"), "other").await.text(), "paid 1 for 3 bytes");
    assert_eq!(ask(Some("b"), Some("k"), "one").await.text(), "paid 2 for 3 bytes");
}

#[tokio::test]
async fn the_handler_sees_its_attempt_and_its_unchanged_body() {
    let stage = Stage::open(Policy::default()).await;
    let answer = stage.post("/attempt", "k", "").await;
    let record = &stage.records().await[0];
    assert_eq!(answer.text(), format!("{} {} 1", record.key, record.fence.0));
    let unkeyed = Request::post("/attempt").body(Body::empty()).unwrap();
    assert_eq!(stage.send(unkeyed).await.text(), "none");
    let body: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    assert_eq!(stage.post("/echo", "bytes", body.clone()).await.body, body);
}

#[tokio::test]
async fn the_handler_may_lengthen_or_shorten_its_records_life() {
    let stage = Stage::open(Policy::default()).await;
    let first = stage.post("/keep/60", "k", "").await;
    let expires = retry::show_http_date(1_800_000_060);
    assert_eq!(first.header("idempotency-expires"), Some(expires.as_str()));
    stage.hand.advance(Duration::from_secs(59));
    assert!(stage.post("/keep/60", "k", "").await.is_replay());
    stage.hand.advance(Duration::from_secs(1));
    assert_eq!(stage.post("/keep/60", "k", "").await.text(), "run 2");
    assert_eq!(stage.standing().await, Standing::Completed);
}

#[tokio::test]
async fn retry_after_follows_what_is_usual_on_the_route() {
    let stage = Stage::open(Policy::default()).await;
    stage.shop.gate.add_permits(1);
    stage.post("/slow", "quick", "").await;
    let first = stage.begin(stage.request("/slow", "k", ""));
    stage.shop.began(2).await;
    // What was quick before is asked for again soon, not when the lease of a minute ends.
    assert!(stage.post("/slow", "k", "").await.retry_after() < 30);
    stage.shop.gate.add_permits(1);
    first.await.unwrap();
}
