//! Do the application's work and its answer commit together?

use std::time::Duration;

use crate::kit::load::{begin, begin_for, begin_in, completed, id};
use crate::kit::{database, number, store};
use retrysafe::core::Store as _;
use retrysafe::core::engine::{Begun, Engine, Lease, NotSettled, Settled};
use retrysafe::core::machine::{Evidence, Proof, Verdict};
use retrysafe::core::record::{Judge, Outcome, Standing};
use retrysafe::stores::postgres::PostgresStore;
use sqlx::PgPool;

async fn shop() -> (String, PgPool, Engine<PostgresStore>) {
    let url = database().await;
    let pool = PgPool::connect(&url).await.unwrap();
    let table = "CREATE TABLE payment (key text PRIMARY KEY,
        record bytea REFERENCES retrysafe.record (id) ON DELETE SET NULL)";
    sqlx::raw_sql(table).execute(&pool).await.unwrap();
    let engine = Engine::new(store(&url).await);
    (url, pool, engine)
}

async fn pay(tx: &mut sqlx::Transaction<'static, sqlx::Postgres>, key: &str) {
    let insert = sqlx::query("INSERT INTO payment (key, record) VALUES ($1, $2)");
    insert.bind(key).bind(id(key).as_bytes().to_vec()).execute(&mut **tx).await.unwrap();
}

async fn payments(url: &str) -> i64 {
    number(url, "SELECT count(*) FROM payment").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_and_answer_are_committed_together() {
    let (url, pool, engine) = shop().await;
    let Ok(Begun::Execute(lease)) = begin(&engine, "k", 1).await else { panic!() };
    let mut tx = pool.begin().await.unwrap();
    pay(&mut tx, "k").await;
    let settled = engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap();
    assert_eq!(settled.standing(), Standing::Completed);
    // Nobody sees either before the commit.
    let seen = engine.look(id("k")).await.unwrap().value.unwrap();
    assert_eq!((seen.standing(), payments(&url).await), (Standing::InProgress, 0));
    tx.commit().await.unwrap();
    assert_eq!(engine.look(id("k")).await.unwrap().value, Some(settled));
    assert_eq!(payments(&url).await, 1);
    // The layer around a handler says the same once more; that is fine.
    let again = engine.settle(lease, &completed("paid")).await.unwrap();
    assert!(matches!(again, Settled::Done(_)), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_back_undoes_both_and_frees_the_key() {
    let (url, pool, engine) = shop().await;
    let Ok(Begun::Execute(lease)) = begin(&engine, "k", 1).await else { panic!() };
    let mut tx = pool.begin().await.unwrap();
    pay(&mut tx, "k").await;
    engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap();
    tx.rollback().await.unwrap();
    let seen = engine.look(id("k")).await.unwrap().value.unwrap();
    assert_eq!((seen.standing(), payments(&url).await), (Standing::InProgress, 0));
    let freed = engine.settle(lease, &Outcome::Retryable(None)).await.unwrap();
    assert!(matches!(freed, Settled::Done(_)), "{freed:?}");
    assert!(matches!(begin(&engine, "k", 2).await, Ok(Begun::Execute(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_fence_makes_the_transaction_fail() {
    let (url, pool, engine) = shop().await;
    let begun = begin_for(&engine, "k", 1, Duration::from_millis(1)).await;
    let Ok(Begun::Execute(lease)) = begun else { panic!() };
    let mut tx = pool.begin().await.unwrap();
    pay(&mut tx, "k").await;
    // Meanwhile the lease ends and an operator decides.
    while engine.sweep(10).await.unwrap().doubted == 0 {}
    let evidence = Evidence::NotExecuted(Proof::operator());
    let fence = lease.fence();
    let verdict = Verdict { fence, evidence, judge: Judge::Operator, reason: "looked".into() };
    engine.resolve(id("k"), &verdict).await.unwrap();
    let lost = engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap_err();
    assert!(matches!(lost, NotSettled::Lost), "{lost}");
    // Even a caller that does not look at the error cannot commit.
    let _ = tx.commit().await;
    assert_eq!(payments(&url).await, 0);
    let seen = engine.look(id("k")).await.unwrap().value.unwrap();
    assert_eq!(seen.standing(), Standing::FailedRetryable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_does_not_take_the_fence_away() {
    let (_, pool, engine) = shop().await;
    let Ok(Begun::Execute(lease)) = begin(&engine, "k", 1).await else { panic!() };
    let stale = begin(&engine, "other", 2).await;
    assert!(matches!(stale, Ok(Begun::Execute(_))));
    let fence = lease.fence();
    engine.renew(lease.renewal(), Duration::from_secs(60), Duration::from_secs(600)).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let settled = engine.settle_fenced_in(&mut tx, id("k"), fence, None, &completed("paid")).await;
    assert_eq!(settled.unwrap().fence, fence);
    tx.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_inside_the_transaction_exists_only_if_that_commits() {
    let (url, pool, engine) = shop().await;
    let mut tx = pool.begin().await.unwrap();
    let Ok(Begun::Execute(lease)) = begin_in(&engine, &mut tx, "k", 1).await else { panic!() };
    pay(&mut tx, "k").await;
    // A duplicate is turned away; a neighbour in the same lane is not held up by it.
    let (duplicate, neighbour) =
        tokio::join!(begin(&engine, "k", 2), begin(&engine, "neighbour", 3));
    assert!(duplicate.is_err_and(|error| !error.may_have_applied()));
    assert!(matches!(neighbour, Ok(Begun::Execute(_))));
    let mut second = pool.begin().await.unwrap();
    assert!(begin_in(&engine, &mut second, "k", 4).await.is_err());
    second.rollback().await.unwrap();
    engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap();
    tx.commit().await.unwrap();
    assert!(matches!(begin(&engine, "k", 5).await, Ok(Begun::Replay(..))));

    let mut tx = pool.begin().await.unwrap();
    assert!(matches!(begin_in(&engine, &mut tx, "undone", 6).await, Ok(Begun::Execute(_))));
    tx.rollback().await.unwrap();
    assert_eq!(engine.store().load(id("undone")).await.unwrap().value, None);
    assert_eq!(payments(&url).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_refers_to_a_record_survives_its_reaping() {
    let (url, pool, engine) = shop().await;
    let Ok(Begun::Execute(lease)) = begin(&engine, "k", 1).await else { panic!() };
    let mut tx = pool.begin().await.unwrap();
    pay(&mut tx, "k").await;
    engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap();
    tx.commit().await.unwrap();
    crate::kit::sql(&url, "UPDATE retrysafe_test.clock SET ms = ms + 4000000").await;
    assert_eq!(engine.reap(10).await.unwrap(), 1);
    assert_eq!(number(&url, "SELECT count(*) FROM payment WHERE record IS NULL").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_above_read_committed_is_refused_and_told_why() {
    let (url, pool, engine) = shop().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let key = format!("settled at {level}");
        let Ok(Begun::Execute(lease)) = begin(&engine, &key, 1).await else { panic!() };
        let set = format!("SET TRANSACTION ISOLATION LEVEL {level}");
        let mut tx = pool.begin().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(set.clone())).execute(&mut *tx).await.unwrap();
        let told = begin_in(&engine, &mut tx, level, 2).await.unwrap_err().to_string();
        assert!(told.contains(level) && told.contains("READ COMMITTED"), "{told}");
        tx.rollback().await.unwrap();

        let mut tx = pool.begin().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut *tx).await.unwrap();
        let told = engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap_err();
        let told = told.to_string();
        assert!(told.contains(level) && told.contains("READ COMMITTED"), "{told}");
        tx.rollback().await.unwrap();
    }
    assert_eq!(payments(&url).await, 0);
}

/// A late owner whose lease was taken away by an operator while its transaction is open.
async fn late_owner(engine: &Engine<PostgresStore>, lease: &Lease) {
    while engine.sweep(10).await.unwrap().doubted == 0 {}
    let evidence = Evidence::NotExecuted(Proof::operator());
    let fence = lease.fence();
    let verdict = Verdict { fence, evidence, judge: Judge::Operator, reason: "looked".into() };
    engine.resolve(lease.id(), &verdict).await.unwrap();
}

// A refused settle leaves the transaction failed, but a savepoint before it brings the transaction
// back, and the payment before that with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_does_not_bring_a_refused_settle_back_where_the_transaction_is_guarded() {
    for is_guarded in [false, true] {
        let (url, pool, engine) = shop().await;
        let begun = begin_for(&engine, "k", 1, Duration::from_millis(1)).await;
        let Ok(Begun::Execute(lease)) = begun else { panic!() };
        let mut tx = pool.begin().await.unwrap();
        if is_guarded {
            engine.guard_in(&mut tx, lease.id(), lease.fence()).await.unwrap();
        }
        pay(&mut tx, "k").await;
        sqlx::raw_sql("SAVEPOINT s").execute(&mut *tx).await.unwrap();
        late_owner(&engine, &lease).await;
        let lost = engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap_err();
        assert!(matches!(lost, NotSettled::Lost), "{lost}");
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT s").execute(&mut *tx).await.unwrap();
        let committed = tx.commit().await;
        let told = committed.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert_eq!(committed.is_err(), is_guarded, "{told}");
        assert_eq!(told.contains("guarded"), is_guarded, "{told}");
        assert_eq!(payments(&url).await, i64::from(!is_guarded), "what the guard is for");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_transaction_commits_with_its_settle_and_only_with_it() {
    let (url, pool, engine) = shop().await;
    let Ok(Begun::Execute(lease)) = begin(&engine, "k", 1).await else { panic!() };
    let guard = async |tx: &mut sqlx::PgTransaction<'static>| {
        engine.guard_in(tx, lease.id(), lease.fence()).await
    };
    let mut tx = pool.begin().await.unwrap();
    guard(&mut tx).await.unwrap();
    pay(&mut tx, "k").await;
    assert!(tx.commit().await.is_err(), "nothing is settled");

    let mut tx = pool.begin().await.unwrap();
    guard(&mut tx).await.unwrap();
    sqlx::raw_sql("SAVEPOINT s").execute(&mut *tx).await.unwrap();
    pay(&mut tx, "k").await;
    engine.settle_in(&mut tx, &lease, &completed("undone")).await.unwrap();
    sqlx::raw_sql("ROLLBACK TO SAVEPOINT s").execute(&mut *tx).await.unwrap();
    assert!(tx.commit().await.is_err(), "the settle was rolled back");
    assert_eq!(payments(&url).await, 0);

    let mut tx = pool.begin().await.unwrap();
    guard(&mut tx).await.unwrap();
    pay(&mut tx, "k").await;
    engine.settle_in(&mut tx, &lease, &Outcome::Retryable(None)).await.unwrap();
    assert!(tx.commit().await.is_err(), "the next attempt would pay once more");
    assert_eq!(payments(&url).await, 0);

    let mut tx = pool.begin().await.unwrap();
    sqlx::raw_sql("SAVEPOINT s").execute(&mut *tx).await.unwrap();
    let told = guard(&mut tx).await.unwrap_err().to_string();
    assert!(told.contains("savepoint"), "{told}");
    tx.rollback().await.unwrap();

    let mut tx = pool.begin().await.unwrap();
    guard(&mut tx).await.unwrap();
    pay(&mut tx, "k").await;
    engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(payments(&url).await, 1);
    assert_eq!(number(&url, "SELECT count(*) FROM retrysafe.guard").await, 0);
    assert!(matches!(begin(&engine, "k", 2).await, Ok(Begun::Replay(..))));
    let mut tx = pool.begin().await.unwrap();
    let told = guard(&mut tx).await.unwrap_err().to_string();
    assert!(told.contains("lost"), "{told}");
}
