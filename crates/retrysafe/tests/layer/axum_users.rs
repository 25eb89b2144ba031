//! Does the layer fit where axum's users put it?

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;
use retrysafe::layer::{Attempt, IdempotencyLayer};
use retrysafe::stores::memory::MemoryStore;
use tower::ServiceExt as _;

async fn pass_on(request: Request, next: Next) -> Response {
    next.run(request).await
}

fn request(key: Option<&str>) -> Request {
    let request = Request::post("/x");
    let request =
        key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
    request.body(Body::from("whole")).unwrap()
}

/// The layer once gave the inner service a body of its own type, which `from_fn` does not take.
#[tokio::test]
async fn middleware_made_of_functions_may_stand_on_either_side() {
    let app: Router = Router::new().route("/x", post(|body: String| async move { body })).layer((
        from_fn(pass_on),
        IdempotencyLayer::new(MemoryStore::default()),
        from_fn(pass_on),
    ));
    for (key, is_replay) in [(None, false), (Some("k"), false), (Some("k"), true)] {
        let answer = app.clone().oneshot(request(key)).await.unwrap();
        assert_eq!(answer.headers().contains_key("idempotent-replayed"), is_replay);
        assert_eq!(axum::body::to_bytes(answer.into_body(), 99).await.unwrap(), "whole");
    }
}

#[tokio::test]
async fn a_handler_that_needs_an_attempt_says_so_where_there_is_none() {
    let handler = |attempt: Attempt| async move { attempt.number().to_string() };
    let app = Router::new().route("/x", post(handler));
    let bare = app.clone().oneshot(request(Some("k"))).await.unwrap();
    assert_eq!(bare.status(), 500);
    assert_eq!(bare.headers()["content-type"], "application/problem+json");
    let body = axum::body::to_bytes(bare.into_body(), 9_999).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains("handler_failed") && body.contains("Option<Attempt>"), "{body}");
    let guarded = app.layer(IdempotencyLayer::new(MemoryStore::default()));
    let answer = guarded.oneshot(request(Some("k"))).await.unwrap();
    assert_eq!(axum::body::to_bytes(answer.into_body(), 99).await.unwrap(), "1");
}
