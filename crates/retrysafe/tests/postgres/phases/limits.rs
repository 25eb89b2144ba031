//! What ends a phase that does not end by itself?

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use retrysafe::core::flow::RecoveryPoint;
use retrysafe::core::{Policy, StoreError};
use retrysafe::phases::{Completed, Flow, FlowEnd, Flows, Next};

use super::rides::{Break, Point, RideRequest, Rides, answered, keyed};

/// What the phase in question does.
const FAILS: u8 = 0;
const WAITS: u8 = 1;
const WAITS_IN_SQL: u8 = 2;
const ENDS: u8 = 3;

/// A flow that makes a ride in its first phase, and does as it is told in its second one.
struct Slow {
    flow: Flow<RideRequest>,
    flows: Flows,
    does: Arc<AtomicU8>,
}

impl Slow {
    fn new(rides: &Rides) -> Self {
        let does = Arc::new(AtomicU8::new(ENDS));
        let told = Arc::clone(&does);
        let flow = Flow::named("slow", 1)
            .tx("made", async |mut tx, request: RideRequest, ()| {
                let insert = sqlx::query("INSERT INTO ride (key) VALUES ($1)");
                insert.bind(request.key).execute(&mut *tx).await?;
                Ok(Next::Done(()))
            })
            .respond("told", async move |mut tx, request: RideRequest, _| {
                sqlx::raw_sql("INSERT INTO receipt SELECT max(id), 'x' FROM ride")
                    .execute(&mut *tx)
                    .await?;
                let is_to_wait = request.key != "swift";
                match told.load(Ordering::SeqCst) {
                    FAILS => return Err("not yet".into()),
                    WAITS if is_to_wait => pending().await,
                    WAITS_IN_SQL if is_to_wait => {
                        sqlx::raw_sql("SELECT pg_sleep(3600)").execute(&mut *tx).await?;
                    }
                    _ => {}
                }
                Ok(Response::builder().status(201).body(Bytes::new())?)
            })
            .unwrap();
        // A phase has three seconds, and its COMMIT has more than one.
        let policy = Policy { lease: Duration::from_secs(6), ..Policy::default() };
        let flows = Flows::new(rides.pool.clone(), rides.store.clone()).policy(policy);
        Self { flows: flows.with(&flow), flow, does }
    }

    async fn run(&self, rides: &Rides, does: u8, key: &str) -> Result<FlowEnd, StoreError> {
        self.does.store(does, Ordering::SeqCst);
        rides.run_with(&self.flows, &self.flow, key).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_that_does_not_end_is_rolled_back_and_run_again() {
    let rides = Rides::open(keyed()).await;
    let slow = Slow::new(&rides);
    for (key, does) in [("waits", WAITS), ("waits-in-sql", WAITS_IN_SQL)] {
        let ended = slow.run(&rides, does, key).await.unwrap();
        assert!(matches!(ended, FlowEnd::PhaseFailed { phase: "told", .. }), "{key}: {ended:?}");
        assert_eq!((rides.rides(key).await, rides.receipts(key).await), (1, 0), "{key}");
        assert_eq!(rides.record(key).await.recovery_point(), Some(RecoveryPoint::Before(1)));
        answered(Some(slow.run(&rides, ENDS, key).await.unwrap()));
        assert_eq!((rides.rides(key).await, rides.receipts(key).await), (1, 1), "{key}");
    }
}

/// Nobody hears of the COMMIT: neither its server, nor whoever waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_does_not_end_is_read_back() {
    let rides = Rides::open(keyed()).await;
    let policy = Policy { lease: Duration::from_secs(6), ..Policy::default() };
    let flows =
        Flows::new(rides.pool.clone(), rides.store.clone()).policy(policy).with(&rides.flow);
    for point in [Point::RideAfter, Point::ReceiptAfter] {
        let key = format!("{point:?}");
        rides.breaks.arm(point, Break::HungCommit);
        let answer = answered(Some(rides.run_with(&flows, &rides.flow, &key).await.unwrap()));
        assert!(rides.breaks.is_used_up(), "{key}");
        rides.check_done_once(&key, &answer, &key).await;
    }
}

/// More flows hang than the completer goes on with at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flows_that_hang_do_not_stop_the_completer() {
    let rides = Rides::open(keyed()).await;
    let slow = Slow::new(&rides);
    let keys = ["a", "b", "c", "d", "e", "swift"];
    for key in keys {
        let ended = slow.run(&rides, FAILS, key).await.unwrap();
        assert!(matches!(ended, FlowEnd::PhaseFailed { .. }), "{key}: {ended:?}");
    }
    rides.later(Duration::from_secs(60)).await;
    slow.does.store(WAITS, Ordering::SeqCst);
    let done = Completed { finished: 1, unfinished: 5, ..Completed::default() };
    assert_eq!(slow.flows.complete().await.unwrap(), done);
    rides.later(Duration::from_secs(60)).await;
    slow.does.store(ENDS, Ordering::SeqCst);
    let done = Completed { finished: 5, ..Completed::default() };
    assert_eq!(slow.flows.complete().await.unwrap(), done);
}
