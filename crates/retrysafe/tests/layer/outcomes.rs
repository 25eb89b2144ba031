//! What does an execution's end mean? Every row of the outcome table.

use std::time::Duration;

use retrysafe_core::policy::{OnServerError, Policy};
use retrysafe_core::record::{Doubt, Standing, State};

use crate::stage::Stage;

/// Sends twice, and says how often it ran and where the record stands.
async fn twice(stage: &Stage, path: &str) -> (usize, Standing) {
    let before = stage.shop.runs();
    stage.post(path, path, "").await;
    stage.post(path, path, "").await;
    let key = retrysafe_core::Key::new(path).unwrap().digest();
    let records = stage.records().await;
    let record = records.iter().find(|record| record.key == key).unwrap();
    (stage.shop.runs() - before, record.standing())
}

#[tokio::test]
async fn an_answer_that_will_not_change_is_completed_and_replayed() {
    let stage = Stage::open(Policy::default()).await;
    for status in [200, 201, 202, 204, 301, 303, 304, 400, 402, 409, 410, 412, 422] {
        let path = format!("/status/{status}");
        assert_eq!(twice(&stage, &path).await, (1, Standing::Completed), "{status}");
        let again = stage.post(&path, &path, "").await;
        assert_eq!(again.status, status);
        assert!(again.is_replay());
    }
}

#[tokio::test]
async fn an_answer_without_content_is_replayed_without_a_length() {
    let stage = Stage::open(Policy::default()).await;
    for path in ["/status/204", "/status/304"] {
        let first = stage.post(path, path, "").await;
        let again = stage.post(path, path, "").await;
        assert!(again.body.is_empty() && first.body.is_empty());
        assert_eq!(again.header("content-length"), first.header("content-length"), "{path}");
    }
}

#[tokio::test]
async fn answers_of_the_moment_are_retryable() {
    let stage = Stage::open(Policy::default()).await;
    for status in [401, 403, 404, 407, 408, 421, 425, 429] {
        let path = format!("/status/{status}");
        assert_eq!(twice(&stage, &path).await, (2, Standing::FailedRetryable), "{status}");
    }
}

#[tokio::test]
async fn a_handlers_own_5xx_follows_the_policy() {
    for (on_server_error, runs, standing) in [
        (OnServerError::Release, 2, Standing::FailedRetryable),
        (OnServerError::Store, 1, Standing::Completed),
        (OnServerError::Unknown, 1, Standing::Unknown),
    ] {
        let stage = Stage::open(Policy { on_server_error, ..Policy::default() }).await;
        for status in [500, 501, 503, 502, 504] {
            let path = format!("/status/{status}");
            assert_eq!(
                twice(&stage, &path).await,
                (runs, standing),
                "{on_server_error:?} {status}"
            );
        }
    }
    let strict = Stage::open(Policy::default().strict()).await;
    assert_eq!(twice(&strict, "/status/500").await, (1, Standing::Unknown));
}

#[tokio::test]
async fn a_502_or_504_of_an_upstream_is_unknown() {
    let stage = Stage::open_with(|layer| layer.by_upstream(true)).await;
    for status in [502, 504] {
        let path = format!("/status/{status}");
        assert_eq!(twice(&stage, &path).await, (1, Standing::Unknown), "{status}");
    }
    assert_eq!(twice(&stage, "/status/500").await, (2, Standing::FailedRetryable));
}

#[tokio::test]
async fn nothing_sent_is_retryable_and_says_so() {
    let stage = Stage::open(Policy::default()).await;
    let answer = stage.post("/failed/not-sent", "k", "").await;
    answer.refuses(502, "upstream_unreachable");
    assert!(answer.retry_after() >= 1);
    assert_eq!(stage.standing().await, Standing::FailedRetryable);
    stage.post("/failed/not-sent", "k", "").await;
    assert_eq!(stage.shop.runs(), 2);
}

#[tokio::test]
async fn sent_without_a_whole_answer_is_unknown_and_says_so() {
    let stage = Stage::open(Policy::default()).await;
    stage.post("/failed/lost", "lost", "").await.refuses(502, "outcome_unknown");
    stage.post("/failed/late", "late", "").await.refuses(504, "outcome_unknown");
    stage.post("/pieces/2/4/break", "cut", "").await.refuses(502, "outcome_unknown");
    for record in stage.records().await {
        assert!(matches!(record.state, State::Unknown { doubt: Doubt::AnswerLost, .. }));
    }
    assert_eq!(stage.shop.runs(), 3);
}

#[tokio::test]
async fn a_panic_is_unknown_wherever_it_comes_from() {
    let stage = Stage::open(Policy::default()).await;
    for when in ["at-once", "late", "in-drop", "in-body"] {
        let path = format!("/panic/{when}");
        stage.post(&path, &path, "").await.refuses(500, "outcome_unknown");
        stage.post(&path, &path, "").await.refuses(409, "outcome_unknown");
    }
    for record in stage.records().await {
        assert!(matches!(record.state, State::Unknown { doubt: Doubt::Panicked, .. }));
    }
    assert_eq!(stage.shop.runs(), 4);
    assert_eq!(stage.post("/pay", "k", "").await.status, 201, "the process lives");
}

#[tokio::test]
async fn an_answer_too_large_is_executed_and_never_run_again() {
    let stage = Stage::open(Policy { response_bytes_max: 8, ..Policy::default() }).await;
    for (path, bytes) in [("/pieces/5/4/end", 20), ("/pieces/1/9/end", 9), ("/pieces/2/4/end", 8)] {
        let first = stage.post(path, path, "").await;
        assert_eq!((first.status, first.body.len(), first.broken), (201, bytes, false), "{path}");
        let second = stage.post(path, path, "").await;
        match bytes {
            8 => assert!(second.is_replay(), "the limit itself is kept"),
            _ => second.refuses(410, "response_not_stored"),
        }
    }
    assert_eq!(stage.shop.runs(), 3);
}

#[tokio::test]
async fn an_endless_answer_reaches_its_caller_after_its_head_is_in_the_record() {
    let stage = Stage::open(Policy { response_bytes_max: 8, ..Policy::default() }).await;
    let endless = stage.begin(stage.request("/pieces/3/4/wait", "k", ""));
    stage.shop.began(1).await;
    stage.until(|record| record.state.head().is_some()).await;
    stage.post("/pieces/3/4/wait", "k", "").await.refuses(409, "request_in_progress");
    assert!(!endless.is_finished());
    assert_eq!(stage.shop.runs(), 1);
    endless.abort();
}

#[tokio::test]
async fn a_body_that_breaks_after_its_head_is_unknown_with_what_is_known_of_it() {
    let stage = Stage::open(Policy { response_bytes_max: 8, ..Policy::default() }).await;
    let first = stage.post("/pieces/3/4/break", "k", "").await;
    assert!(first.broken);
    let second = stage.post("/pieces/3/4/break", "k", "").await;
    assert!(second.text().contains(r#""original_status":201"#), "{}", second.text());
    second.refuses(409, "outcome_unknown");
    assert_eq!(stage.shop.runs(), 1);
}

#[tokio::test]
async fn events_are_streamed_and_trailers_are_not_kept() {
    let stage = Stage::open(Policy::default()).await;
    let first = stage.post("/sse", "sse", "").await;
    assert_eq!((first.status, first.body.len()), (200, 8));
    stage.post("/sse", "sse", "").await.refuses(410, "response_not_stored");
    let first = stage.post("/pieces/1/4/trailers", "t", "").await;
    assert_eq!((first.status, first.body.len()), (201, 4));
    stage.post("/pieces/1/4/trailers", "t", "").await.refuses(410, "response_not_stored");
    assert_eq!(stage.shop.runs(), 2);
}

#[tokio::test]
async fn the_handlers_own_word_wins() {
    let stage = Stage::open_with(|layer| layer.trust_outcome_header(true).by_upstream(true)).await;
    for how in ["said", "says", "header"] {
        for (word, status, runs, standing) in [
            ("completed", 500, 1, Standing::Completed),
            ("retryable", 200, 2, Standing::FailedRetryable),
            ("retryable", 502, 2, Standing::FailedRetryable),
            ("unknown", 201, 1, Standing::Unknown),
        ] {
            let path = format!("/{how}/{word}/{status}");
            assert_eq!(twice(&stage, &path).await, (runs, standing), "{path}");
        }
    }
    let answer = stage.post("/header/completed/200", "k", "").await;
    assert_eq!(answer.header("retrysafe-outcome"), None, "it is for us, not for the caller");
}

#[tokio::test]
async fn an_outcome_header_that_is_not_trusted_says_nothing() {
    let stage = Stage::open(Policy::default()).await;
    assert_eq!(twice(&stage, "/header/retryable/200").await, (1, Standing::Completed));
}

#[tokio::test]
async fn an_error_of_the_inner_service_is_passed_through_and_unknown() {
    use http::{Request, Response};
    use http_body_util::Full;
    use tower::{Layer, ServiceExt, service_fn};

    let (store, runs) = (crate::stage::Faulty::new(Default::default()), crate::stage::Shop::new());
    let layer = retrysafe::layer::IdempotencyLayer::new(store.clone());
    let service = layer.layer(service_fn(|_: Request<_>| async {
        Err::<Response<Full<bytes::Bytes>>, _>("the inner service's own error")
    }));
    let request = || {
        Request::post("/")
            .header("idempotency-key", "k")
            .body(Full::<bytes::Bytes>::default())
            .unwrap()
    };
    assert_eq!(
        service.clone().oneshot(request()).await.unwrap_err(),
        "the inner service's own error"
    );
    assert_eq!(service.oneshot(request()).await.unwrap().status(), 409);
    assert_eq!(runs.runs(), 0);
}

#[tokio::test]
async fn a_record_expires_after_its_last_settle_and_the_key_is_free_again() {
    let ttl = Duration::from_secs(60);
    let stage = Stage::open(Policy { ttl, ..Policy::default() }).await;
    assert_eq!(stage.post("/pay", "k", "a").await.text(), "paid 1 for 1 bytes");
    stage.hand.advance(ttl - Duration::from_millis(1));
    assert!(stage.post("/pay", "k", "a").await.is_replay());
    stage.hand.advance(Duration::from_millis(1));
    assert_eq!(stage.post("/pay", "k", "other").await.text(), "paid 2 for 5 bytes");
}
