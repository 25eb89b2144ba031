//! Which ends of leases are held against an effect?

use std::time::Duration;

use sqlx::Row as _;

use super::stage::{OutboxStage, mail};
use crate::kit::number;

/// Longer than the leases of these claims.
const PAST_LEASES: Duration = Duration::from_secs(16);

/// After so many crashes an effect is given up.
const CRASHES_MAX: i64 = 5;

const CRASHES: &str = "SELECT crashes::bigint FROM retrysafe.effect ORDER BY id LIMIT 1";

/// Claims the effect that is due, marks it if its worker comes so far, and lets the lease end without a word.
async fn die_over_it(stage: &OutboxStage, is_marked: bool) {
    let claim = "SELECT id, fence FROM retrysafe.claim_effects_v1('mail', 10, 15000)";
    let claimed = sqlx::query(claim).fetch_all(&stage.pool).await.unwrap();
    assert_eq!(claimed.len(), 1, "it is claimed");
    if is_marked {
        let mark = "SELECT is_sendable FROM retrysafe.mark_effects_v1(ARRAY[$1], ARRAY[$2], ARRAY[7::bigint], 3600000)";
        let mark = sqlx::query_scalar(mark)
            .bind(claimed[0].get::<i64, _>("id"))
            .bind(claimed[0].get::<i64, _>("fence"));
        let is_sendable: Option<bool> = mark.fetch_one(&stage.pool).await.unwrap();
        assert_eq!(is_sendable, Some(true));
    }
    stage.later(PAST_LEASES).await;
    let sweep =
        format!("SELECT ready + unknown FROM retrysafe.sweep_effects_v1({CRASHES_MAX}, 100)");
    assert_eq!(number(&stage.url, &sweep).await, 1, "its lease has ended");
}

/// The answers of claims were lost, whatever their size. Each counted as a crash of a worker: after two the effect was claimed alone,
/// and after five it was dead, although nobody had ever tried it.
#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_no_crash() {
    let stage = OutboxStage::new().await;
    stage.stage(mail("never tried")).await;
    for _ in 0..CRASHES_MAX {
        die_over_it(&stage, false).await;
        assert_eq!(stage.count(1).await, 1, "it is ready");
        assert_eq!(number(&stage.url, CRASHES).await, 0);
    }
    // A neighbour is claimed beside it: it is no suspect.
    stage.stage(mail("neighbour")).await;
    let claim = "SELECT count(*) FROM retrysafe.claim_effects_v1('mail', 10, 15000)";
    assert_eq!(number(&stage.url, claim).await, 2);
}

/// The mark keeps the fence of the first delivery. A worker that dies over a later one has died all the same.
#[tokio::test]
async fn a_worker_that_dies_after_its_mark_counts_also_where_another_was_the_first() {
    let stage = OutboxStage::new().await;
    stage.stage(mail("poison")).await;
    for (is_marked, crashes) in [(true, 1), (false, 1), (true, 2), (true, 3), (false, 3), (true, 4)]
    {
        die_over_it(&stage, is_marked).await;
        assert_eq!(number(&stage.url, CRASHES).await, crashes);
        assert_eq!(stage.count(1).await, 1, "it is ready");
    }
    // It may have been done, so it is not dead. It stops nobody else.
    die_over_it(&stage, true).await;
    assert_eq!((stage.count(3).await, number(&stage.url, CRASHES).await), (1, CRASHES_MAX));
    stage.stage(mail("good")).await;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(5, 1).await;
    assert!(working.stop(Duration::from_secs(60)).await);
}
