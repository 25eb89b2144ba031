//! What does a promoted server grant?

use super::caller::{Asked, Caller, Told};
use crate::kit::{database, number, sql};

/// The database as a promoted standby finds it: written last on another timeline, by a server whose commits nobody
/// waited for.
async fn promoted(url: &str) {
    sql(url, "UPDATE retrysafe.server SET timeline = '000000FE', is_awaited = false").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_have_lost_commits_grants_nothing_new_and_keeps_what_it_has() {
    let url = database().await;
    sql(&url, "UPDATE retrysafe_test.clock SET still = true, ms = 1700000000000").await;
    let caller = Caller::connect(&url).await;
    let running = caller.begin(&Asked::plain("running")).await.unwrap();
    let done = caller.begin(&Asked::plain("done")).await.unwrap();
    caller.settle(done.owner(), &Told::completed("paid"), None).await.unwrap();
    let free = caller.begin(&Asked::plain("free")).await.unwrap();
    caller.settle(free.owner(), &Told::outcome("retryable"), None).await.unwrap();

    promoted(&url).await;
    for key in ["new", "free"] {
        assert_eq!(caller.begin(&Asked::plain(key)).await, Err("RS008".into()), "{key}");
        caller.run("BEGIN").await.unwrap();
        assert_eq!(caller.begin_in(&Asked::plain(key)).await, Err("RS008".into()), "{key}");
        caller.run("ROLLBACK").await.unwrap();
    }
    // It was noted, so that it ends.
    let held =
        "SELECT held_until - 1700000000000 FROM retrysafe.server WHERE timeline <> '000000FE'";
    assert_eq!(number(&url, held).await, 600_000);
    // What is there is replayed, and what was running is settled.
    assert_eq!(caller.begin(&Asked::plain("done")).await.unwrap().decision, "replay");
    let settled = caller.settle(running.owner(), &Told::completed("paid"), None).await;
    assert_eq!(settled.unwrap(), "completed");

    sql(&url, "UPDATE retrysafe_test.clock SET ms = ms + 600000").await;
    for key in ["new", "free"] {
        assert_eq!(caller.begin(&Asked::plain(key)).await.unwrap().decision, "execute", "{key}");
    }
}

/// What is not new is written also by whoever meets the change first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_that_meets_a_promoted_server_first_holds() {
    let url = database().await;
    let caller = Caller::connect(&url).await;
    let begun = caller.begin(&Asked::plain("k")).await.unwrap();
    promoted(&url).await;
    assert_eq!(
        caller.settle(begun.owner(), &Told::completed("paid"), None).await.unwrap(),
        "completed"
    );
    assert_eq!(
        number(&url, "SELECT count(*) FROM retrysafe.server WHERE timeline = '000000FE'").await,
        0
    );
}
