//! Does a record join the transactions of every driver alike?
//!
//! `tx.rs` looks at a transaction of `sqlx` closely. Here are the others: a transaction of
//! `tokio-postgres`, and a connection of `sqlx` that is in a transaction, or is not.

use crate::kit::load::{begin, begin_for, begin_in, completed, id};
use crate::kit::{client, database, number, store};
use retrysafe::core::Store as _;
use retrysafe::core::engine::{Begun, Engine, NotSettled};
use retrysafe::core::machine::{Evidence, Proof, Verdict};
use retrysafe::core::record::{Judge, Standing};
use retrysafe::stores::postgres::PostgresStore;
use sqlx::{Connection as _, PgConnection};
use std::time::Duration;

const TABLE: &str = "CREATE TABLE payment (key text PRIMARY KEY)";
const PAY: &str = "INSERT INTO payment VALUES ('k')";

async fn shop() -> (String, Engine<PostgresStore>) {
    let url = database().await;
    crate::kit::sql(&url, TABLE).await;
    let engine = Engine::new(store(&url).await);
    (url, engine)
}

async fn payments(url: &str) -> i64 {
    number(url, "SELECT count(*) FROM payment").await
}

/// An operator decides about an attempt whose lease is over.
async fn take_away(engine: &Engine<PostgresStore>) {
    while engine.sweep(10).await.unwrap().doubted == 0 {}
    let fence = engine.look(id("k")).await.unwrap().value.unwrap().fence;
    let evidence = Evidence::NotExecuted(Proof::operator());
    let verdict = Verdict { fence, evidence, judge: Judge::Operator, reason: "looked".into() };
    engine.resolve(id("k"), &verdict).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tokio_postgres_transaction_commits_the_answer_with_the_work() {
    let (url, engine) = shop().await;
    let mut client = client(&url).await;
    let mut tx = client.transaction().await.unwrap();
    let Ok(Begun::Execute(lease)) = begin_in(&engine, &mut tx, "k", 1).await else { panic!() };
    engine.guard_in(&mut tx, lease.id(), lease.fence()).await.unwrap();
    tx.batch_execute(PAY).await.unwrap();
    engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap();
    assert_eq!(engine.store().load(id("k")).await.unwrap().value, None, "nobody sees it yet");
    tx.commit().await.unwrap();
    assert!(matches!(begin(&engine, "k", 2).await, Ok(Begun::Replay(..))));
    assert_eq!(payments(&url).await, 1);
    // A duplicate inside a transaction finds the answer, and a rolled back begin was none.
    let mut tx = client.transaction().await.unwrap();
    assert!(matches!(begin_in(&engine, &mut tx, "k", 3).await, Ok(Begun::Replay(..))));
    assert!(matches!(begin_in(&engine, &mut tx, "undone", 4).await, Ok(Begun::Execute(_))));
    tx.rollback().await.unwrap();
    assert_eq!(engine.store().load(id("undone")).await.unwrap().value, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_fence_makes_a_tokio_postgres_transaction_fail() {
    let (url, engine) = shop().await;
    let begun = begin_for(&engine, "k", 1, Duration::from_millis(1)).await;
    let Ok(Begun::Execute(lease)) = begun else { panic!() };
    let mut client = client(&url).await;
    let mut tx = client.transaction().await.unwrap();
    tx.batch_execute(PAY).await.unwrap();
    take_away(&engine).await;
    let lost = engine.settle_in(&mut tx, &lease, &completed("paid")).await.unwrap_err();
    assert!(matches!(lost, NotSettled::Lost), "{lost}");
    // PostgreSQL answers the COMMIT of a failed transaction with a rollback.
    let _ = tx.commit().await;
    assert_eq!(payments(&url).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nested_tokio_postgres_transaction_is_a_savepoint_and_takes_no_guard() {
    let (url, engine) = shop().await;
    let Ok(Begun::Execute(lease)) = begin(&engine, "k", 1).await else { panic!() };
    let mut client = client(&url).await;
    let mut tx = client.transaction().await.unwrap();
    let mut nested = tx.transaction().await.unwrap();
    let told = engine.guard_in(&mut nested, lease.id(), lease.fence()).await.unwrap_err();
    assert!(told.to_string().contains("savepoint"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_in_a_transaction_commits_the_answer_with_the_work() {
    let (url, engine) = shop().await;
    let Ok(Begun::Execute(lease)) = begin(&engine, "k", 1).await else { panic!() };
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut connection).await.unwrap();
    engine.guard_in(&mut connection, lease.id(), lease.fence()).await.unwrap();
    sqlx::raw_sql(PAY).execute(&mut connection).await.unwrap();
    engine.settle_in(&mut connection, &lease, &completed("paid")).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut connection).await.unwrap();
    assert!(matches!(begin(&engine, "k", 2).await, Ok(Begun::Replay(..))));
    assert_eq!(payments(&url).await, 1);
    // One that is borrowed from a transaction is the same.
    let mut tx = connection.begin().await.unwrap();
    let begun = begin_in(&engine, &mut *tx, "other", 3).await;
    assert!(matches!(begun, Ok(Begun::Execute(_))), "{begun:?}");
    tx.rollback().await.unwrap();
    assert_eq!(engine.store().load(id("other")).await.unwrap().value, None);
}

/// Each statement would be a transaction of its own: a begin would hold though the work is undone, and
/// a refused settle would undo nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_in_no_transaction_is_refused() {
    let (url, engine) = shop().await;
    let Ok(Begun::Execute(lease)) = begin(&engine, "k", 1).await else { panic!() };
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let told = begin_in(&engine, &mut connection, "new", 2).await.unwrap_err().to_string();
    assert!(told.contains("transaction block"), "{told}");
    let settled = engine.settle_in(&mut connection, &lease, &completed("paid")).await;
    assert!(matches!(settled, Err(NotSettled::Store(_))), "{settled:?}");
    assert!(engine.guard_in(&mut connection, lease.id(), lease.fence()).await.is_err());
    assert_eq!(engine.store().load(id("new")).await.unwrap().value, None);
    let seen = engine.look(id("k")).await.unwrap().value.unwrap();
    assert_eq!(seen.standing(), Standing::InProgress);
}

/// A duplicate that comes into the guarded transaction itself finds the lease over and doubts the
/// attempt. That is no settle, and the work may not be committed on the strength of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doubt_inside_a_guarded_transaction_is_no_settle() {
    let (url, engine) = shop().await;
    let begun = begin_for(&engine, "k", 1, Duration::from_millis(1)).await;
    let Ok(Begun::Execute(lease)) = begun else { panic!() };
    let mut client = client(&url).await;
    let mut tx = client.transaction().await.unwrap();
    engine.guard_in(&mut tx, lease.id(), lease.fence()).await.unwrap();
    tx.batch_execute(PAY).await.unwrap();
    while !matches!(begin_in(&engine, &mut tx, "k", 2).await, Ok(Begun::Unknown(_))) {}
    let told = tx.commit().await.unwrap_err();
    assert_eq!(told.code().map(|code| code.code()), Some("RS004"), "{told}");
    assert_eq!(payments(&url).await, 0);
}
