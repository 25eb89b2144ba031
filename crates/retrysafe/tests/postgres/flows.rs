//! Do the rows of a phase and the recovery point of its flow commit together?

use crate::kit::load::{begin, id};
use crate::kit::{database, number, store};
use retrysafe::core::engine::{Begun, Engine, Lease, NotSettled};
use retrysafe::core::flow::{FlowVersion, RecoveryPoint};
use retrysafe::core::machine::flows::FlowStep;
use retrysafe::stores::postgres::PostgresStore;
use sqlx::PgPool;

async fn rides() -> (String, PgPool, Engine<PostgresStore>) {
    let url = database().await;
    let pool = PgPool::connect(&url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE ride (key text)").execute(&pool).await.unwrap();
    let engine = Engine::new(store(&url).await);
    (url, pool, engine)
}

async fn started(engine: &Engine<PostgresStore>) -> Lease {
    let Ok(Begun::Execute(lease)) = begin(engine, "k", 1).await else { panic!() };
    let flow = FlowVersion::new("ride", 1);
    let step = FlowStep::Start { flow, input: "input".into() };
    let advanced = engine.advance(lease, &step).await.unwrap();
    let retrysafe::core::engine::Advanced::Done(lease) = advanced else { panic!("{advanced:?}") };
    lease
}

fn ride_created() -> FlowStep {
    FlowStep::Commit { phase: 0, output: "ride 7".into() }
}

async fn make_ride(tx: &mut sqlx::Transaction<'static, sqlx::Postgres>) {
    sqlx::raw_sql("INSERT INTO ride VALUES ('k')").execute(&mut **tx).await.unwrap();
}

async fn point(engine: &Engine<PostgresStore>) -> Option<RecoveryPoint> {
    engine.look(id("k")).await.unwrap().value.unwrap().recovery_point()
}

async fn count(url: &str) -> i64 {
    number(url, "SELECT count(*) FROM ride").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_and_recovery_point_are_committed_together() {
    let (url, pool, engine) = rides().await;
    let lease = started(&engine).await;
    for commits in [false, true] {
        let mut tx = pool.begin().await.unwrap();
        engine.guard_in(&mut tx, id("k"), lease.fence()).await.unwrap();
        make_ride(&mut tx).await;
        let moved = engine.advance_in(&mut tx, &lease, &ride_created()).await.unwrap();
        assert_eq!((point(&engine).await, count(&url).await), (Some(RecoveryPoint::Before(0)), 0));
        if commits {
            tx.commit().await.unwrap();
            assert_eq!(point(&engine).await, Some(RecoveryPoint::Before(1)));
            assert_eq!(count(&url).await, 1);
            let lease = lease.committed(moved);
            assert_eq!(lease.flow().unwrap().outputs(), ["ride 7"]);
            break;
        }
        tx.rollback().await.unwrap();
    }
}

/// A commit whose acknowledgement was lost is made once more, by an owner that did not read back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_that_was_committed_is_refused_in_another_transaction() {
    let (url, pool, engine) = rides().await;
    let lease = started(&engine).await;
    let mut tx = pool.begin().await.unwrap();
    make_ride(&mut tx).await;
    drop(engine.advance_in(&mut tx, &lease, &ride_created()).await.unwrap());
    tx.commit().await.unwrap();

    let mut tx = pool.begin().await.unwrap();
    make_ride(&mut tx).await;
    let again = engine.advance_in(&mut tx, &lease, &ride_created()).await.unwrap_err();
    assert!(matches!(again, NotSettled::Lost), "{again}");
    // Even a caller that does not look at the error cannot commit.
    let _ = tx.commit().await;
    assert_eq!(count(&url).await, 1);
    let lease = engine.read_back(lease).await.unwrap().expect("it is still the owner");
    assert_eq!(lease.flow().unwrap().recovery_point(), RecoveryPoint::Before(1));
}
