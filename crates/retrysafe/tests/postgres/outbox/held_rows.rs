//! What may a transaction of the application's do to a worker, while it holds an effect open?

use std::sync::Arc;
use std::time::Duration;

use retrysafe::outbox::{Delivered, Delivery, DeliveryEnd, Worker};
use sqlx::{PgConnection, Row as _};
use tokio::sync::Semaphore;

use super::stage::{OutboxStage, mail};

/// Claims what is due: each effect's number and fence.
const CLAIM: &str = "SELECT id, fence FROM retrysafe.claim_effects_v1('mail', 10, 60000)";

/// A worker that finished an effect waited for the next one of its lane, which an open transaction was cancelling. It held
/// its whole batch meanwhile, and two such transactions could wait for one another.
#[tokio::test]
async fn whoever_finishes_an_effect_does_not_wait_for_the_next_one_of_its_lane() {
    let stage = OutboxStage::new().await;
    // A worker makes the days to come when it starts; whoever needs one that is missing makes it in its own transaction.
    sqlx::query("SELECT retrysafe.make_effect_days()").execute(&stage.pool).await.unwrap();
    let head = stage.stage(mail("head").lane("x")).await.id;
    let next = stage.stage(mail("next").lane("x")).await.id;
    let claimed = sqlx::query(CLAIM).fetch_one(&stage.pool).await.unwrap();
    let fence: i64 = claimed.get("fence");
    assert_eq!(claimed.get::<i64, _>("id"), head);
    let mut open = stage.pool.begin().await.unwrap();
    let cancel = sqlx::query_scalar("SELECT retrysafe.cancel_effect_v1($1)");
    let refused: Option<String> = cancel.bind(next).fetch_one(&mut *open).await.unwrap();
    assert_eq!(refused, None);
    let finish = "SELECT state FROM retrysafe.finish_effects_v1(ARRAY[$1], ARRAY[$2], ARRAY[0::smallint], ARRAY[0::bigint],
        ARRAY[NULL::text], ARRAY[NULL::text], 20)";
    let state: i16 =
        sqlx::query_scalar(finish).bind(head).bind(fence).fetch_one(&stage.pool).await.unwrap();
    assert_eq!(state, 5, "it is delivered");
    open.rollback().await.unwrap();
    // What was passed by is found by the sweep.
    assert_eq!(stage.count(0).await, 1, "the next one waits");
    let sweep = sqlx::query("SELECT retrysafe.sweep_lanes_v1(NULL, 10)");
    sweep.execute(&stage.pool).await.unwrap();
    assert_eq!(stage.count(1).await, 1, "the next one is ready");
}

/// Claims two effects and marks them as sent: the number and the fence of each.
async fn two_that_are_sent(stage: &OutboxStage) -> Vec<(i64, i64)> {
    stage.stage(mail("one")).await;
    stage.stage(mail("two")).await;
    let claimed = sqlx::query(CLAIM).fetch_all(&stage.pool).await.unwrap();
    let sent: Vec<_> = claimed.iter().map(|row| (row.get("id"), row.get("fence"))).collect();
    for (id, fence) in &sent {
        let mark = sqlx::query(MARK).bind(id).bind(fence);
        assert_eq!(mark.fetch_all(&stage.pool).await.unwrap().len(), 1);
    }
    sent
}

const MARK: &str =
    "SELECT id FROM retrysafe.mark_effects_v1(ARRAY[$1], ARRAY[$2], ARRAY[7::bigint], 3600000)";
const CANCEL: &str = "SELECT retrysafe.cancel_effect_v1($1)";

/// Fails if somebody else holds an effect.
async fn is_free(stage: &OutboxStage, id: i64) {
    let lock = sqlx::query("SELECT FROM retrysafe.effect WHERE id = $1 FOR UPDATE NOWAIT");
    lock.bind(id).execute(&stage.pool).await.unwrap();
}

/// An application that came too late to take an effect back kept it, for as long as its transaction was open. Its worker waited.
#[tokio::test]
async fn whoever_cannot_take_an_effect_back_does_not_hold_it() {
    let stage = OutboxStage::new().await;
    let sent = two_that_are_sent(&stage).await;
    let mut open = stage.pool.begin().await.unwrap();
    let refused: Option<String> =
        sqlx::query_scalar(CANCEL).bind(sent[0].0).fetch_one(&mut *open).await.unwrap();
    assert_eq!(refused.as_deref(), Some("may_have_been_sent"));
    is_free(&stage, sent[0].0).await;
    open.commit().await.unwrap();
}

/// The same of one that is marked in the moment in which it is taken back.
#[tokio::test]
async fn whoever_meets_a_mark_while_taking_an_effect_back_does_not_hold_the_effect() {
    let stage = OutboxStage::new().await;
    let id = stage.stage(mail("once")).await.id;
    let claimed = sqlx::query(CLAIM).fetch_one(&stage.pool).await.unwrap();
    let mut marking = stage.pool.begin().await.unwrap();
    let mark = sqlx::query(MARK).bind(id).bind(claimed.get::<i64, _>("fence"));
    assert_eq!(mark.fetch_all(&mut *marking).await.unwrap().len(), 1);
    let mut open = stage.pool.begin().await.unwrap();
    let cancelling = tokio::spawn(async move {
        let cancel = sqlx::query_scalar::<_, Option<String>>(CANCEL).bind(id);
        (cancel.fetch_one(&mut *open).await.unwrap(), open)
    });
    let waits = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%cancel_effect_v1%'";
    while crate::kit::number(&stage.url, waits).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    marking.commit().await.unwrap();
    let (refused, open) = cancelling.await.unwrap();
    assert_eq!(refused.as_deref(), Some("may_have_been_sent"));
    is_free(&stage, id).await;
    open.commit().await.unwrap();
}

/// A transaction that holds an effect, until it is ended.
async fn holding(stage: &OutboxStage, id: i64) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut open = stage.pool.begin().await.unwrap();
    let hold = sqlx::query("SELECT FROM retrysafe.effect WHERE id = $1 FOR UPDATE").bind(id);
    hold.execute(&mut *open).await.unwrap();
    open
}

/// The answers to a question about two effects.
async fn ask(
    worker: &mut PgConnection,
    question: &'static str,
    about: &[(i64, i64)],
) -> Vec<(i64, Option<i16>)> {
    let (ids, fences): (Vec<i64>, Vec<i64>) = about.iter().copied().unzip();
    let rows = sqlx::query(question).bind(ids).bind(fences).fetch_all(worker).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// One held effect kept the renewal, the end and the return of all others waiting: without an end, or until all were untold.
#[tokio::test]
async fn an_effect_that_somebody_holds_keeps_no_other_one_waiting() {
    let stage = OutboxStage::new().await;
    let sent = two_that_are_sent(&stage).await;
    let (held, free) = (sent[0].0, sent[1].0);
    let open = holding(&stage, held).await;
    let mut worker = stage.pool.acquire().await.unwrap();
    let limit = "SET statement_timeout = '20s'; SET lock_timeout = '20s'";
    sqlx::raw_sql(limit).execute(&mut *worker).await.unwrap();
    let renew = "SELECT id, 2::smallint FROM retrysafe.renew_effects_v1($1, $2, 60000)";
    assert_eq!(ask(&mut worker, renew, &sent).await, [(free, Some(2))]);
    let finish = "SELECT id, state FROM retrysafe.finish_effects_v1($1, $2, '{0,0}', '{0,0}', '{NULL,NULL}', '{NULL,NULL}', 20)
        ORDER BY id";
    assert_eq!(ask(&mut worker, finish, &sent).await, [(held, None), (free, Some(5))]);
    let hand_back = "SELECT id, NULL::smallint FROM retrysafe.hand_back_effects_v1($1, $2)";
    assert_eq!(ask(&mut worker, hand_back, &sent).await, [(held, None)], "the other one is over");
    open.rollback().await.unwrap();
    // What was held is told again.
    assert_eq!(ask(&mut worker, finish, &sent).await, [(held, Some(5)), (free, Some(5))]);
}

/// How many effects one claim takes in the tests below.
const BATCH: usize = 10;

/// Stages and claims a batch: the number and the fence of each effect, in their order.
async fn claimed_batch(stage: &OutboxStage) -> Vec<(i64, i64)> {
    for number in 0..BATCH {
        stage.stage(mail(&format!("mail {number}"))).await;
    }
    let claimed = sqlx::query(CLAIM).fetch_all(&stage.pool).await.unwrap();
    let mut claimed: Vec<(i64, i64)> =
        claimed.iter().map(|row| (row.get("id"), row.get("fence"))).collect();
    claimed.sort_unstable();
    assert_eq!(claimed.len(), BATCH);
    claimed
}

/// Marks a batch, and says of each effect whether it may be sent; nothing of one that somebody else holds.
async fn mark_batch(
    stage: &OutboxStage,
    about: &[(i64, i64)],
) -> Result<Vec<(i64, Option<bool>)>, sqlx::Error> {
    let mark = "SELECT id, is_sendable FROM retrysafe.mark_effects_v1($1, $2, array_fill(7::bigint, ARRAY[cardinality($1)]), NULL)
        ORDER BY id";
    let (ids, fences): (Vec<i64>, Vec<i64>) = about.iter().copied().unzip();
    let rows = sqlx::query(mark).bind(ids).bind(fences).fetch_all(&stage.pool).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// An application was taking one effect back when its batch was marked. The mark waited for the application, and after five seconds
/// the whole batch was given back.
#[tokio::test]
async fn a_mark_passes_by_what_an_open_transaction_takes_back() {
    let stage = OutboxStage::new().await;
    let claimed = claimed_batch(&stage).await;
    let (held, fence) = claimed[4];
    let mut open = stage.pool.begin().await.unwrap();
    let cancel = sqlx::query_scalar::<_, Option<String>>(CANCEL).bind(held);
    assert_eq!(cancel.fetch_one(&mut *open).await.unwrap(), None);
    let marked = mark_batch(&stage, &claimed).await.unwrap();
    let wanted: Vec<(i64, Option<bool>)> =
        claimed.iter().map(|(id, _)| (*id, (*id != held).then_some(true))).collect();
    assert_eq!(marked, wanted, "nine are sent");
    open.rollback().await.unwrap();
    // The application has changed its mind, and nothing of the tenth has left.
    let back = sqlx::query("SELECT id FROM retrysafe.hand_back_effects_v1(ARRAY[$1], ARRAY[$2])");
    let busy = back.bind(held).bind(fence).fetch_all(&stage.pool).await.unwrap();
    assert!(busy.is_empty(), "nobody holds it any more");
    assert_eq!((stage.count(1).await, stage.count(2).await), (1, 9));
}

/// The same where the application commits: what it has taken back is nobody's.
#[tokio::test]
async fn what_was_taken_back_before_its_mark_does_not_come_back() {
    let stage = OutboxStage::new().await;
    let claimed = claimed_batch(&stage).await;
    let (gone, rest) = claimed.split_first().unwrap();
    let cancel = sqlx::query_scalar::<_, Option<String>>(CANCEL).bind(gone.0);
    assert_eq!(cancel.fetch_one(&stage.pool).await.unwrap(), None);
    let marked = mark_batch(&stage, &claimed).await.unwrap();
    assert_eq!(marked, rest.iter().map(|(id, _)| (*id, Some(true))).collect::<Vec<_>>());
}

/// An application took two effects back, the later one first. The mark held the one and waited for the other, and PostgreSQL ended
/// the application's transaction.
#[tokio::test]
async fn a_mark_and_an_application_do_not_wait_for_one_another() {
    let stage = OutboxStage::new().await;
    let claimed = claimed_batch(&stage).await;
    let mut open = stage.pool.begin().await.unwrap();
    // Whoever waits in a circle waits for the server's look at it: the application's is the first.
    let looks = "SET LOCAL deadlock_timeout = '10ms'";
    sqlx::query(looks).execute(&mut *open).await.unwrap();
    let cancel = |id: i64| sqlx::query_scalar::<_, Option<String>>(CANCEL).bind(id);
    assert_eq!(cancel(claimed[9].0).fetch_one(&mut *open).await.unwrap(), None);
    let mut marking = stage.pool.begin().await.unwrap();
    let (ids, fences): (Vec<i64>, Vec<i64>) = claimed.iter().copied().unzip();
    let worker: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *marking).await.unwrap();
    let marked = tokio::spawn(async move {
        let mark = "SELECT count(*) FILTER (WHERE is_sendable) FROM retrysafe.mark_effects_v1($1, $2, NULL, NULL)";
        let mark = sqlx::query_scalar::<_, i64>(mark).bind(ids).bind(fences);
        let marked = mark.fetch_one(&mut *marking).await;
        marking.commit().await.map(|()| marked)
    });
    // The mark has passed by, or it waits for the application.
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {worker} AND wait_event_type = 'Lock'"
    );
    while !marked.is_finished() && crate::kit::number(&stage.url, &waits).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = cancel(claimed[4].0).fetch_one(&mut *open).await;
    assert_eq!(refused.unwrap().as_deref(), Some("may_have_been_sent"), "the application goes on");
    open.commit().await.unwrap();
    assert_eq!(marked.await.unwrap().unwrap().unwrap(), 9);
    assert_eq!((stage.count(2).await, stage.count(6).await), (9, 1));
}

/// The same of a worker that ships: one effect that is held must not keep it from telling how the other one ended, nor from
/// delivering more.
#[tokio::test]
async fn a_worker_goes_on_while_somebody_holds_one_of_its_effects() {
    let stage = OutboxStage::new().await;
    let held = stage.stage(mail("held")).await.id;
    stage.stage(mail("free")).await;
    let gate = Arc::new(Semaphore::new(0));
    let asked = Arc::new(Semaphore::new(0));
    let (passing, asking) = (Arc::clone(&gate), Arc::clone(&asked));
    let known = stage.known();
    let deliver = move |_: Delivery| {
        let (passing, asking) = (Arc::clone(&passing), Arc::clone(&asking));
        async move {
            asking.add_permits(1);
            let _passed = passing.acquire().await;
            Ok(DeliveryEnd::Delivered(Delivered::default()))
        }
    };
    let working = Worker::new(stage.pool.clone()).deliver("mail", known, deliver).start();
    let both = asked.acquire_many(2).await.unwrap();
    let open = holding(&stage, held).await;
    gate.add_permits(2);
    stage.wait_for(5, 1).await;
    stage.stage(mail("later")).await;
    stage.wait_for(5, 2).await;
    assert_eq!(stage.count(2).await, 1, "what is held is not told yet");
    open.rollback().await.unwrap();
    stage.wait_for(5, 3).await;
    drop(both);
    assert!(working.stop(Duration::from_secs(60)).await);
}

/// A claim that a crash of the server takes back lets the next worker have the effect too.
#[tokio::test]
async fn claims_marks_and_ends_are_flushed_whatever_the_session_says() {
    let stage = OutboxStage::new().await;
    stage.stage(mail("once")).await;
    for question in [
        CLAIM,
        "SELECT * FROM retrysafe.mark_effects_v1('{1}', ARRAY(SELECT fence FROM retrysafe.effect), '{NULL}', NULL)",
        "SELECT * FROM retrysafe.finish_effects_v1('{1}', ARRAY(SELECT fence FROM retrysafe.effect), '{0}', '{0}', '{NULL}', '{NULL}', 20)",
    ] {
        let mut tx = stage.pool.begin().await.unwrap();
        sqlx::raw_sql("SET LOCAL synchronous_commit = off").execute(&mut *tx).await.unwrap();
        sqlx::query(question).fetch_all(&mut *tx).await.unwrap();
        let show = sqlx::query_scalar("SELECT current_setting('synchronous_commit')");
        let setting: String = show.fetch_one(&mut *tx).await.unwrap();
        assert_eq!(setting, "on", "{question}");
        tx.commit().await.unwrap();
    }
}
