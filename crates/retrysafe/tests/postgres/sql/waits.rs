//! Does anybody wait for as long as somebody else likes?

use std::time::Duration;

use retrysafe::core::engine::Engine;
use retrysafe::stores::postgres::script;

use super::caller::{Asked, Begun, Caller, Told};
use crate::kit::{database, number, sql, store};

/// Far longer than anything here may take: a wait without an end is a failure and no hanging test.
async fn in_time<T>(asking: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), asking).await.expect("it does not wait")
}

async fn retryable(caller: &Caller) -> Begun {
    let begun = caller.begin(&Asked::plain("k")).await.unwrap();
    caller.settle(begun.owner(), &Told::outcome("retryable"), None).await.unwrap();
    begun
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_inside_a_transaction_does_not_wait_for_another_one() {
    let url = database().await;
    let (first, second) = (Caller::connect(&url).await, Caller::connect(&url).await);
    retryable(&first).await;
    first.run("BEGIN").await.unwrap();
    assert_eq!(first.begin_in(&Asked::plain("k")).await.unwrap().decision, "execute");
    second.run("BEGIN").await.unwrap();
    let told = in_time(second.begin_in(&Asked::plain("k"))).await;
    assert_eq!(told.unwrap().decision, "in_progress");
    second.run("ROLLBACK").await.unwrap();
    first.run("ROLLBACK").await.unwrap();

    // Of a row that somebody holds in another way it is told the same, after a while.
    first.run("BEGIN; SELECT FROM retrysafe.record FOR UPDATE").await.unwrap();
    second.run("BEGIN").await.unwrap();
    let told = in_time(second.begin_in(&Asked::plain("k"))).await;
    assert_eq!(told.unwrap().decision, "in_progress");
    second.run("ROLLBACK").await.unwrap();
    first.run("ROLLBACK").await.unwrap();

    second.run("BEGIN").await.unwrap();
    let begun = second.begin_in(&Asked::plain("k")).await.unwrap();
    second.settle_in(begun.owner(), &Told::completed("done"), None).await.unwrap();
    second.run("COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_owner_says_alone_does_not_wait_without_an_end() {
    let url = database().await;
    let (first, second) = (Caller::connect(&url).await, Caller::connect(&url).await);
    let begun = first.begin(&Asked::flow("k")).await.unwrap();
    first.run("BEGIN; SELECT FROM retrysafe.record FOR UPDATE").await.unwrap();
    let told = [
        in_time(second.renew(begun.owner(), 1_000, 1_000)).await.map(drop),
        in_time(second.withdraw(&begun.id, 7)).await.map(drop),
        in_time(second.call_not_sent(begun.owner(), "calling 0")).await.map(drop),
    ];
    for told in told {
        assert_eq!(told, Err("55P03".into()));
    }
}

/// Whoever makes a partition holds a lock up to the end of its transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_transaction_of_an_application_makes_the_partition_of_a_new_day() {
    let url = database().await;
    let days =
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'retrysafe.transition'::regclass";
    assert_eq!(number(&url, days).await, 8, "a migration makes today and a week");
    // Three days after the first of them, whatever the time is: midnight may have passed since the migration.
    let later = "UPDATE retrysafe_test.clock SET still = true, ms = (
        SELECT 86400000 * (3 + min(split_part(inhrelid::regclass::text, '_', 2)::bigint))
        FROM pg_inherits WHERE inhparent = 'retrysafe.transition'::regclass)";
    sql(&url, later).await;
    let caller = Caller::connect(&url).await;
    caller.run("BEGIN").await.unwrap();
    let begun = caller.begin_in(&Asked::plain("k")).await.unwrap();
    caller.settle_in(begun.owner(), &Told::completed("done"), None).await.unwrap();
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database =
        (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(number(&url, held).await, 1, "that of the begin");
    caller.run("COMMIT").await.unwrap();
    assert_eq!(number(&url, days).await, 8);
    Engine::new(store(&url).await).reap(1).await.unwrap();
    assert_eq!(number(&url, days).await, 11, "upkeep makes the next ones");
}

/// psql looks for the end of a body that begins, unless the word stands in quotes.
#[test]
fn no_name_in_the_script_begins_a_body() {
    let script = script();
    assert!(script.contains("CREATE PROCEDURE retrysafe.\"begin\"("));
    let bare = script.lines().find(|line| line.starts_with("CREATE") && line.contains(".begin("));
    assert_eq!(bare, None);
}
