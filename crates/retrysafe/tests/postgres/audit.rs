//! What do auditors see, and what does a write cost?

use std::time::Duration;

use crate::kit::load::{begin, begin_for, completed, id};
use crate::kit::{client, database, number, sql, store};
use retrysafe::core::Store as _;
use retrysafe::core::engine::{Begun, Engine};
use retrysafe::core::machine::{Evidence, Proof, Verdict};
use retrysafe::core::record::{Judge, Standing};
use retrysafe::core::store::{Filter, Query};

async fn texts(url: &str, sql: &str) -> Vec<String> {
    let rows = client(url).await.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubts_and_verdicts_are_audited_at_once_and_the_rest_when_a_record_is_reaped() {
    let url = database().await;
    let engine = Engine::new(store(&url).await);
    let Ok(Begun::Execute(lease)) = begin(&engine, "plain", 1).await else { panic!() };
    engine.settle(lease, &completed("paid")).await.unwrap();
    let audited = "SELECT what FROM retrysafe.transition ORDER BY version";
    assert_eq!(texts(&url, audited).await, [""; 0], "a begin and a settle write no audit");

    let begun = begin_for(&engine, "doubt", 2, Duration::from_millis(1)).await;
    let Ok(Begun::Execute(lease)) = begun else { panic!() };
    while engine.sweep(10).await.unwrap().doubted == 0 {}
    let verdict = Verdict {
        fence: lease.fence(),
        evidence: Evidence::NotExecuted(Proof::operator()),
        judge: Judge::Operator,
        reason: "looked".into(),
    };
    engine.resolve(id("doubt"), &verdict).await.unwrap();
    let told = texts(&url, audited).await;
    assert_eq!(told, ["doubted lease_ended", "resolved failed_retryable by operator: looked"]);

    // More happens than a timeline holds.
    for owner in 3..20 {
        let Ok(Begun::Execute(lease)) = begin(&engine, "doubt", owner).await else { panic!() };
        let outcome = retrysafe::core::record::Outcome::Retryable(None);
        engine.settle(lease, &outcome).await.unwrap();
    }
    sql(&url, "UPDATE retrysafe_test.clock SET ms = ms + 4000000").await;
    assert_eq!(engine.reap(10).await.unwrap(), 2);
    let reaped = "SELECT count(*) FROM retrysafe.transition WHERE what = 'reaped'";
    assert_eq!(number(&url, reaped).await, 2);
    let history = |key: &str| {
        format!(
            "SELECT what FROM retrysafe.history WHERE id = '{}' AND what <> 'reaped' ORDER BY at",
            id(key)
        )
    };
    assert_eq!(texts(&url, &history("plain")).await, ["began", "settled completed"]);
    let left_out =
        format!("SELECT max(left_out) FROM retrysafe.history WHERE id = '{}'", id("doubt"));
    // A begin, a doubt, a verdict and 17 attempts of two moments each; 16 are remembered.
    assert_eq!(number(&url, &left_out).await, 37 - 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_touches_no_index() {
    const COUNT: i64 = 400;
    let url = database().await;
    let engine = Engine::new(store(&url).await);
    for n in 0..COUNT {
        let Ok(Begun::Execute(lease)) = begin(&engine, &format!("k{n}"), 1).await else { panic!() };
        engine.settle(lease, &completed(&"x".repeat(300))).await.unwrap();
    }
    let updates =
        |column: &str| format!("SELECT {column} FROM pg_stat_user_tables WHERE relname = 'record'");
    // The server's own statistics come late.
    while number(&url, &updates("n_tup_upd")).await < COUNT {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let hot = number(&url, &updates("n_tup_hot_upd")).await;
    assert!(hot * 10 >= COUNT * 9, "{hot} of {COUNT} stayed in their page");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unknown_is_found_by_its_own_index() {
    let url = database().await;
    let engine = Engine::new(store(&url).await);
    sql(&url, &format!("{}; ANALYZE retrysafe.record", crate::contract::MANY)).await;
    let begun = begin_for(&engine, "lost", 1, Duration::from_millis(1)).await;
    assert!(matches!(begun, Ok(Begun::Execute(_))));
    while engine.sweep(10).await.unwrap().doubted == 0 {}
    let standing = Some(Standing::Unknown);
    let query = Query { filter: Filter { standing, ..Filter::default() }, after: None, limit: 10 };
    let page = engine.store().scan(query).await.unwrap().value;
    assert_eq!(page.records.iter().map(|record| record.id).collect::<Vec<_>>(), [id("lost")]);
    assert_eq!(engine.store().census().await.unwrap().value.unknown, 1);
    let used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'record_unknown'";
    // One for the page and one for the census; the server's own statistics come late.
    while number(&url, used).await < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
