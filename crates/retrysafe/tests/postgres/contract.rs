//! Does the PostgreSQL store keep the contract, and its own word?

use std::time::Duration;

use crate::kit::{database, sql, store};
use retrysafe::core::engine::{Ask, Begun, Engine, Settled};
use retrysafe::core::fingerprint::{Fingerprint, RulesId};
use retrysafe::core::mention::Mention;
use retrysafe::core::record::{About, Answer, Outcome};
use retrysafe::core::response::StoredResponse;
use retrysafe::core::store::{Filter, Query};
use retrysafe::core::{Key, Scope, Store as _};

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
        request_id: None,
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

/// More rows than one page of a search looks at, with ids that come before any other.
pub(crate) const MANY: &str =
    "INSERT INTO retrysafe.record (id, request, created_at, keep_until, lease_until,
    sweep_at, version, fence, since, seal, state, expires_at, detail, timeline)
    SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), '\\x01'::bytea || sha256(int4send(n)), 1,
    9000000000000000000, 1, 1, nextval('retrysafe.version'), 1, 1, 0, 2, 9000000000000000000, '', ''
    FROM generate_series(1, 60000) n";

#[tokio::test(flavor = "multi_thread")]
async fn a_search_of_a_large_table_goes_on_page_after_page() {
    let url = database().await;
    let engine = Engine::new(store(&url).await);
    sql(&url, MANY).await;
    let about = About { method: "POST".into(), route: "/r".into(), path: "/r/1".into() };
    let print = Fingerprint::from_parts(1, RulesId::from_bytes([1; 8]), [2; 32]);
    let ask = Ask {
        scope: &Scope::anonymous(),
        mark: None,
        key: Key::new("wanted").unwrap().digest(),
        prints: &print,
        about: &about,
        ttl: Duration::from_secs(60),
        lease: Duration::from_secs(5),
        owner: 1,
        request_id: Some("r-1"),
    };
    let Begun::Execute(lease) = engine.begin(&ask).await.unwrap() else { panic!() };
    for text in ["wanted", "r-1"] {
        let filter = Filter { mention: Some(Mention::parse(text)), ..Filter::default() };
        let mut query = Query { filter, after: None, limit: 10 };
        let first = engine.store().scan(query.clone()).await.unwrap().value;
        assert_eq!(first.records, [], "{text} is not among the first");
        query.after = Some(first.next.expect("there are more"));
        let second = engine.store().scan(query).await.unwrap().value;
        assert_eq!(second.records.iter().map(|record| record.id).collect::<Vec<_>>(), [lease.id()]);
        assert_eq!(second.next, None, "{text}");
    }
    // The catalogue's estimate, once the server has looked at the table.
    sql(&url, "ANALYZE retrysafe.record").await;
    let census = engine.store().census().await.unwrap().value;
    assert!(census.records.is_some_and(|count| (59_000..62_000).contains(&count)), "{census:?}");
    assert!(census.bytes.is_some_and(|bytes| bytes > 4 << 20), "{census:?}");
}
