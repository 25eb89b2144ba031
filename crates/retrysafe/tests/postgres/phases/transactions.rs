//! What can a phase do with its transaction, and what not?

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use http::Response;
use retrysafe::core::flow::RecoveryPoint;
use retrysafe::core::record::{Doubt, Standing, State};
use retrysafe::phases::{Flow, FlowEnd, Flows, Next};

use super::rides::{RideRequest, Rides, answered, keyed};
use crate::kit::number;

/// A flow whose first phase makes a ride and then does this.
macro_rules! flow_with {
    (|$tx:ident| $then:block) => {
        Flow::named("made", 1)
            .tx("made", async move |mut $tx, request: RideRequest, ()| {
                let insert = sqlx::query("INSERT INTO ride (key) VALUES ($1)");
                insert.bind(request.key).execute(&mut *$tx).await?;
                $then
            })
            .respond("told", async |_, _, _| {
                Ok(Response::builder().status(201).body(Bytes::new())?)
            })
            .unwrap()
    };
}

fn flows(rides: &Rides, flow: &Flow<RideRequest>) -> Flows {
    Flows::new(rides.pool.clone(), rides.store.clone()).with(flow)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serialization_failures_and_deadlocks_are_repeated_within_a_run() {
    let rides = Rides::open(keyed()).await;
    for code in ["40001", "40P01"] {
        let tries = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&tries);
        let flow = flow_with!(|tx| {
            if counted.fetch_add(1, Ordering::SeqCst) < 2 {
                let raise = format!("DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$");
                sqlx::raw_sql(sqlx::AssertSqlSafe(raise)).execute(&mut *tx).await?;
            }
            Ok(Next::Done(()))
        });
        answered(Some(rides.run_with(&flows(&rides, &flow), &flow, code).await.unwrap()));
        assert_eq!((tries.load(Ordering::SeqCst), rides.rides(code).await), (3, 1), "{code}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_that_does_not_end_is_told() {
    let rides = Rides::open(keyed()).await;
    let tries = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&tries);
    let flow = flow_with!(|tx| {
        counted.fetch_add(1, Ordering::SeqCst);
        sqlx::raw_sql("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$").execute(&mut *tx).await?;
        Ok(Next::Done(()))
    });
    let ended = rides.run_with(&flows(&rides, &flow), &flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::PhaseFailed { phase: "made", .. }), "{ended:?}");
    assert_eq!((tries.load(Ordering::SeqCst), rides.rides("k").await), (6, 0));
    assert_eq!(rides.record("k").await.standing(), Standing::FailedRetryable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_by_hand_is_refused() {
    let rides = Rides::open(keyed()).await;
    let flow = flow_with!(|tx| {
        sqlx::raw_sql("COMMIT").execute(&mut *tx).await?;
        Ok(Next::Done(()))
    });
    let ended = rides.run_with(&flows(&rides, &flow), &flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::Unknown), "{ended:?}");
    assert_eq!(rides.rides("k").await, 0);
}

/// Whatever it does to its transaction: neither the ride nor the recovery point is there without the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_that_ends_its_transaction_is_noticed() {
    let rides = Rides::open(keyed()).await;
    for (key, ends) in [
        ("rollback", "ROLLBACK"),
        ("anew", "ROLLBACK; BEGIN"),
        ("commit", "COMMIT"),
        ("commit-anew", "COMMIT; BEGIN"),
        ("chain", "ROLLBACK AND CHAIN"),
    ] {
        let flow = flow_with!(|tx| {
            // A refusal is not looked at: the phase believes that everything is well.
            let _ = sqlx::raw_sql(ends).execute(&mut *tx).await;
            Ok(Next::Done(()))
        });
        let ended = rides.run_with(&flows(&rides, &flow), &flow, key).await.unwrap();
        assert!(matches!(ended, FlowEnd::Unknown), "{key}: {ended:?}");
        assert_eq!(rides.rides(key).await, 0, "{key}");
        let record = rides.record(key).await;
        assert_eq!(record.recovery_point(), Some(RecoveryPoint::Before(0)), "{key}");
        assert!(
            matches!(record.state, State::Unknown { doubt: Doubt::CommittedAlone, .. }),
            "{key}: {record:?}"
        );
    }
}

/// Once such a phase counted as rolled back, and every retry and every round of the completer did its work once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_phase_has_committed_alone_is_not_done_again() {
    let rides = Rides::open(keyed()).await;
    for (key, end) in
        [("done", "Ok"), ("failed", "Err"), ("conflict", "40001"), ("panicked", "panic")]
    {
        let flow = Flow::named(key, 1)
            .tx("first", async |_, _: RideRequest, ()| Ok(Next::Done(())))
            .tx("alone", async move |mut tx, request: RideRequest, _| {
                let alone = format!(
                    "ROLLBACK; BEGIN; INSERT INTO ride (key) VALUES ('{}'); COMMIT",
                    request.key
                );
                sqlx::raw_sql(sqlx::AssertSqlSafe(alone)).execute(&mut *tx).await?;
                match end {
                    "Ok" => Ok(Next::Done(())),
                    "Err" => Err("after its own commit".into()),
                    "panic" => panic!("after its own commit"),
                    code => {
                        let raise = format!("DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$");
                        sqlx::raw_sql(sqlx::AssertSqlSafe(raise)).execute(&mut *tx).await?;
                        Ok(Next::Done(()))
                    }
                }
            })
            .respond("told", async |_, _, _| {
                Ok(Response::builder().status(201).body(Bytes::new())?)
            })
            .unwrap();
        let flows = flows(&rides, &flow);
        for attempt in 1..=3 {
            let ended = rides.run_with(&flows, &flow, key).await.unwrap();
            assert!(matches!(ended, FlowEnd::Unknown), "{key}, attempt {attempt}: {ended:?}");
            flows.complete().await.unwrap();
            assert_eq!(rides.rides(key).await, 1, "{key}, attempt {attempt}");
        }
    }
}

/// `NaN` is written as `null`, and no number can be read from that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_that_cannot_be_read_again_fails_its_phase_and_leaves_nothing() {
    let rides = Rides::open(keyed()).await;
    let flow = flow_with!(|tx| {
        drop(tx);
        Ok(Next::Done(f64::NAN))
    });
    let ended = rides.run_with(&flows(&rides, &flow), &flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::PhaseFailed { .. }), "{ended:?}");
    assert_eq!(rides.rides("k").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_given_away_is_not_committed() {
    let rides = Rides::open(keyed()).await;
    let flow = flow_with!(|tx| {
        tokio::spawn(async move {
            let _tx = tx;
            std::future::pending::<()>().await;
        });
        Ok(Next::Done(()))
    });
    let ended = rides.run_with(&flows(&rides, &flow), &flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::PhaseFailed { .. }), "{ended:?}");
    assert_eq!(rides.rides("k").await, 0);
}

/// A constraint that is checked at the COMMIT: refused by the server, and rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_the_server_refuses_fails_the_phase() {
    let rides = Rides::open(keyed()).await;
    let deferred =
        "ALTER TABLE receipt ALTER CONSTRAINT receipt_ride_fkey DEFERRABLE INITIALLY DEFERRED";
    crate::kit::sql(&rides.url, deferred).await;
    let flow = flow_with!(|tx| {
        sqlx::raw_sql("INSERT INTO receipt VALUES (-1, 'x')").execute(&mut *tx).await?;
        Ok(Next::Done(()))
    });
    let ended = rides.run_with(&flows(&rides, &flow), &flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::PhaseFailed { .. }), "{ended:?}");
    assert_eq!(rides.rides("k").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_larger_than_a_record_fails_its_phase_and_leaves_nothing() {
    let rides = Rides::open(keyed()).await;
    let flow = flow_with!(|tx| {
        drop(tx);
        Ok(Next::Done("x".repeat(retrysafe::core::flow::FLOW_BYTES_MAX)))
    });
    let ended = rides.run_with(&flows(&rides, &flow), &flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::PhaseFailed { .. }), "{ended:?}");
    assert_eq!(number(&rides.url, "SELECT count(*) FROM ride").await, 0);
}
