//! Does the PostgreSQL store keep the contract, and its own word?

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

mod common;

use std::time::Duration;

use common::{database, store};
use retrysafe::core::engine::{Ask, Begun, Engine, Settled};
use retrysafe::core::fingerprint::{Fingerprint, RulesId};
use retrysafe::core::record::{About, Answer, Outcome};
use retrysafe::core::response::StoredResponse;
use retrysafe::core::{Key, Scope};

fn done(body: &str) -> Outcome {
    Outcome::Completed(Answer::Kept(StoredResponse {
        status: http::StatusCode::CREATED,
        headers: vec![],
        body: body.to_owned().into(),
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_request_executes_and_its_retry_is_replayed() {
    let url = database().await;
    let engine = Engine::new(store(&url).await);
    let scope = Scope::anonymous();
    let about = About { method: "POST".into(), route: "/r".into(), path: "/r/1".into() };
    let print = Fingerprint::from_parts(1, RulesId::from_bytes([1; 8]), [2; 32]);
    let ask = |owner| Ask {
        scope: &scope,
        mark: None,
        key: Key::new("k").unwrap().digest(),
        prints: &print,
        about: &about,
        ttl: Duration::from_secs(60),
        lease: Duration::from_secs(5),
        owner,
    };
    let Begun::Execute(lease) = engine.begin(&ask(1)).await.unwrap() else { panic!() };
    assert!(matches!(engine.begin(&ask(2)).await.unwrap(), Begun::InProgress(_)));
    let Settled::Done(record) = engine.settle(lease, &done("paid")).await.unwrap() else {
        panic!()
    };
    let Begun::Replay(answer, _) = engine.begin(&ask(3)).await.unwrap() else { panic!() };
    assert_eq!(Outcome::Completed(answer), done("paid"));
    assert_eq!(engine.look(record.id).await.unwrap().value, Some(record));
}
