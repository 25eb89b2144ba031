//! Is an effect there if and only if its transaction is?

use std::time::{Duration, SystemTime};

use retrysafe::outbox::{Effect, OutboxError};

use super::stage::{HOUR, Mood, OutboxStage, mail};

#[tokio::test]
async fn an_effect_exists_if_its_transaction_commits() {
    let stage = OutboxStage::new().await;
    let mut tx = stage.pool.begin().await.unwrap();
    stage.outbox.stage(&mut tx, mail("never")).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(stage.count(1).await, 0);
    stage.stage(mail("hello")).await;
    assert_eq!(stage.count(1).await, 1);
}

#[tokio::test]
async fn a_name_is_staged_once_and_stands_for_one_content() {
    let stage = OutboxStage::new().await;
    let first = stage.stage(mail("a").name("ride 7")).await;
    let second = stage.stage(mail("a").name("ride 7")).await;
    assert!(first.is_new && !second.is_new);
    assert_eq!((first.id, first.key), (second.id, second.key));
    let mut tx = stage.pool.begin().await.unwrap();
    let other = stage.outbox.stage(&mut tx, mail("b").name("ride 7")).await;
    assert!(matches!(other, Err(OutboxError::OtherContent)), "{other:?}");
    drop(tx);
    // Also when it was delivered long ago.
    let working = stage.worker(stage.known()).start();
    stage.wait_for(5, 1).await;
    assert!(working.stop(HOUR).await);
    assert!(!stage.stage(mail("a").name("ride 7")).await.is_new);
}

#[tokio::test]
async fn of_two_transactions_that_stage_one_name_one_does() {
    let stage = OutboxStage::new().await;
    let mut first = stage.pool.begin().await.unwrap();
    let mut second = stage.pool.begin().await.unwrap();
    assert!(stage.outbox.stage(&mut first, mail("a").name("n")).await.unwrap().is_new);
    let outbox = stage.outbox.clone();
    // It waits for the first one, which is committed meanwhile.
    let waiting = tokio::spawn(async move {
        let staged = outbox.stage(&mut second, mail("a").name("n")).await.unwrap();
        second.commit().await.unwrap();
        staged
    });
    let is_waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
        AND datname = current_database()";
    while crate::kit::number(&stage.url, is_waiting).await == 0 {
        tokio::task::yield_now().await;
    }
    first.commit().await.unwrap();
    assert!(!waiting.await.unwrap().is_new);
    assert_eq!(stage.count(1).await, 1);
}

#[tokio::test]
async fn an_effect_waits_for_its_time() {
    let stage = OutboxStage::new().await;
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_000);
    stage.stage(mail("later").not_before(now + HOUR)).await;
    stage.stage(mail("now")).await;
    let working = stage.worker(stage.known()).start();
    stage.wait_for(5, 1).await;
    assert_eq!(stage.receiver.order(), ["now"]);
    stage.later(HOUR).await;
    stage.wait_for(5, 2).await;
    assert!(working.stop(HOUR).await);
}

#[tokio::test]
async fn an_effect_can_be_cancelled_until_it_is_sent() {
    let stage = OutboxStage::new().await;
    let unsent = stage.stage(mail("unsent")).await;
    stage.outbox.cancel(unsent.id).await.unwrap();
    let again = stage.outbox.cancel(unsent.id).await;
    assert!(matches!(again, Err(OutboxError::WrongState)), "{again:?}");
    assert!(matches!(stage.outbox.cancel(999).await, Err(OutboxError::Absent)));

    stage.receiver.set(Mood::Hangs);
    let sent = stage.stage(mail("sent")).await;
    let working = stage.worker(stage.known()).start();
    stage.receiver.was_asked.notified().await;
    let refused = stage.outbox.cancel(sent.id).await;
    assert!(matches!(refused, Err(OutboxError::MayHaveBeenSent)), "{refused:?}");
    drop(working);
    assert!(!stage.receiver.order().contains(&"unsent".to_owned()));
}

#[tokio::test]
async fn a_payload_that_is_too_large_is_refused_with_its_transaction() {
    let stage = OutboxStage::new().await;
    let mut tx = stage.pool.begin().await.unwrap();
    let large = Effect::new("mail").body("text/plain", vec![b'x'; (1 << 20) + 1]);
    let refused = stage.outbox.stage(&mut tx, large).await;
    assert!(matches!(refused, Err(OutboxError::Database(_))), "{refused:?}");
}

#[tokio::test]
async fn a_lane_needs_a_transaction_that_sees_who_is_ahead() {
    let stage = OutboxStage::new().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let mut tx = stage.pool.begin().await.unwrap();
        let set = sqlx::AssertSqlSafe(format!("SET TRANSACTION ISOLATION LEVEL {level}"));
        sqlx::query(set).execute(&mut *tx).await.unwrap();
        stage.outbox.stage(&mut tx, mail("a")).await.unwrap();
        let refused = stage.outbox.stage(&mut tx, mail("b").lane("l")).await.unwrap_err();
        assert!(refused.to_string().contains("READ COMMITTED"), "{refused}");
    }
}

#[tokio::test]
async fn names_tell_a_lane_from_the_beginning_of_a_payload() {
    let stage = OutboxStage::new().await;
    stage.stage(mail("23 EUR").lane("acct 1").name("n")).await;
    let mut tx = stage.pool.begin().await.unwrap();
    let other = stage.outbox.stage(&mut tx, mail("3 EUR").lane("acct 12").name("n")).await;
    assert!(matches!(other, Err(OutboxError::OtherContent)), "{other:?}");
}

#[tokio::test]
async fn evidence_without_what_it_is_about_is_refused() {
    let stage = OutboxStage::new().await;
    for call in [
        "(1, NULL, 1::smallint, 0, NULL, 'x')",
        "(1, 1, NULL, 0, NULL, 'x')",
        "(1, 1, 2::smallint, NULL, NULL, 'x')",
        "(1, 1, 9::smallint, 0, NULL, 'x')",
    ] {
        let sql = sqlx::AssertSqlSafe(format!("SELECT retrysafe.resolve_effect_v1{call}"));
        let refused = sqlx::query(sql).execute(&stage.pool).await.unwrap_err();
        let code = refused.as_database_error().and_then(|error| error.code()).unwrap().into_owned();
        assert_eq!(code, "RS007", "{call}");
    }
}
