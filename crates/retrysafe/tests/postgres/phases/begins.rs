//! What becomes of a run that ends before its flow has started, or whose mark nobody has acknowledged?
//!
//! A flow starts with the begin that makes its record. One that finds a record without a flow starts by a write of its own.

use std::sync::Arc;
use std::time::Duration;

use retrysafe::core::Key;
use retrysafe::core::engine::{Ask, Begun, Lease};
use retrysafe::core::flow::{FlowProgress, RecoveryPoint};
use retrysafe::core::record::{About, Outcome, Standing};
use retrysafe::phases::{FlowEnd, Flows, Provider};

use super::rides::{Point, RideRequest, Rides, create_ride, id, keyed, scope};
use crate::kit::proxy::Cut;
use crate::kit::{sql, store};

/// Longer than anything here takes, however slow the machine is.
const AT_THE_LATEST: Duration = Duration::from_secs(100);

/// Refuses to change a record in progress for as long as the gate is shut. Begins pass.
const GATE: &str = "CREATE TABLE retrysafe_test.gate (is_shut boolean NOT NULL);
INSERT INTO retrysafe_test.gate VALUES (true);
CREATE FUNCTION retrysafe_test.pass() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 0 AND (SELECT is_shut FROM retrysafe_test.gate) THEN
        RAISE EXCEPTION 'the gate is shut' USING ERRCODE = '53000';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER pass BEFORE UPDATE ON retrysafe.record FOR EACH ROW EXECUTE FUNCTION retrysafe_test.pass()";

/// Somebody begins with this key, by hand.
async fn begin(rides: &Rides, key: &str, start: Option<&FlowProgress>) -> Lease {
    let print = rides.flow.fingerprint(&RideRequest { key: key.to_owned() }).unwrap();
    let ask = Ask {
        scope: &scope(),
        mark: None,
        key: Key::new(key).unwrap().digest(),
        prints: &print,
        about: &About::default(),
        ttl: Duration::from_secs(3_600),
        lease: Duration::from_secs(30),
        owner: 1,
        request_id: None,
    };
    let begun = match start {
        Some(start) => rides.engine.begin_started(&ask, &rides.flows.versions(), start).await,
        None => rides.engine.begin(&ask).await,
    };
    match begun.unwrap() {
        Begun::Execute(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// Somebody has begun with this key and given it back, before any flow.
async fn leave_without_flow(rides: &Rides, key: &str) {
    let lease = begin(rides, key, None).await;
    rides.engine.settle(lease, &Outcome::Retryable(None)).await.unwrap();
}

async fn open_gate(rides: &Rides) {
    sql(&rides.url, "UPDATE retrysafe_test.gate SET is_shut = false").await;
}

/// Waits until a record stands like this.
async fn until(rides: &Rides, key: &str, standing: Standing) {
    let waiting = async {
        loop {
            let found = rides.engine.look(id(key)).await.unwrap().value;
            if found.is_some_and(|record| record.standing() == standing) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(AT_THE_LATEST, waiting).await;
    assert!(waited.is_ok(), "{key}: {:?}", rides.record(key).await);
}

/// Waits until nobody holds a record any more: it is released, or its start has landed late and its lease is over.
async fn until_given_back(rides: &Rides, key: &str) {
    let waiting = async {
        loop {
            let record = rides.record(key).await;
            let is_over = record.lease_until().is_none_or(|until| until <= record.created_at);
            if is_over {
                return record.standing();
            }
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(AT_THE_LATEST, waiting).await;
    assert!(waited.is_ok_and(|standing| standing != Standing::Unknown), "{key}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_is_taken_back_if_its_flow_cannot_start() {
    let rides = Rides::open(keyed()).await;
    leave_without_flow(&rides, "k").await;
    sql(&rides.url, GATE).await;
    // The start waits at the gate for as long as this.
    let hasty = store(&format!("{}?deadline=5s", rides.url)).await;
    let flows = Flows::new(rides.pool.clone(), hasty).with(&rides.flow);
    let ended = rides.run_with(&flows, &rides.flow, "k").await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(rides.record("k").await.standing(), Standing::InProgress);
    open_gate(&rides).await;
    until(&rides, "k", Standing::FailedRetryable).await;
    let answer = rides.answer("k").await;
    rides.check_done_once("k", &answer, "k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_is_taken_back_if_its_run_is_dropped_before_the_start() {
    let rides = Arc::new(Rides::open(keyed()).await);
    leave_without_flow(&rides, "k").await;
    sql(&rides.url, GATE).await;
    let theirs = Arc::clone(&rides);
    let run = async move { theirs.run_with(&theirs.flows, &theirs.flow, "k").await };
    let run = tokio::spawn(run);
    until(&rides, "k", Standing::InProgress).await;
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    open_gate(&rides).await;
    until_given_back(&rides, "k").await;
    let answer = rides.answer("k").await;
    rides.check_done_once("k", &answer, "k").await;
}

/// The process dies right after its begin. Nothing is in doubt: whoever comes next goes on with the flow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_whose_owner_dies_at_once_goes_on() {
    let rides = Rides::open(keyed()).await;
    let input = serde_json::to_vec(&RideRequest { key: "k".to_owned() }).unwrap();
    let start = FlowProgress::started(rides.flow.version().clone(), input.into()).unwrap();
    drop(begin(&rides, "k", Some(&start)).await);
    rides.end_leases().await;
    let answer = rides.answer("k").await;
    rides.check_done_once("k", &answer, "k").await;
}

/// The mark of a call without a key is written, its acknowledgement is lost, and the store is away. Nothing was sent, and
/// only this owner knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_nobody_has_acknowledged_is_taken_back() {
    let rides = Rides::open(keyed()).await;
    // The store is away for as long as this, and nobody waits longer.
    let proxied = store(&format!("{}&deadline=5s", rides.through)).await;
    let flow = create_ride(1, Provider::takes_no_key(), &rides.provider, &rides.breaks);
    let flows = Flows::new(rides.pool.clone(), proxied).with(&flow);
    let proxy = Arc::clone(&rides.proxy);
    rides.breaks.do_at(Point::ChargePrepared, move || proxy.arm_and_leave(Cut::AfterCommit));
    let ended = rides.run_with(&flows, &flow, "k").await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(rides.record("k").await.recovery_point(), Some(RecoveryPoint::Calling(1)));
    rides.proxy.come_back();
    until(&rides, "k", Standing::FailedRetryable).await;
    assert_eq!(rides.provider.charges(), 0);
    let ended = rides.run_with(&flows, &flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::Answered(_)), "{ended:?}");
    assert_eq!(
        (rides.rides("k").await, rides.provider.charges(), rides.receipts("k").await),
        (1, 1, 1)
    );
}

/// The call is made, and the store is away. Its result is written as soon as the store is back, and the call is not made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_result_of_a_call_is_not_lost_with_the_store() {
    let rides = Rides::open(keyed()).await;
    // The store is away for as long as this, and nobody waits longer.
    let proxied = store(&format!("{}&deadline=5s", rides.through)).await;
    let flow = create_ride(1, Provider::takes_no_key(), &rides.provider, &rides.breaks);
    let flows = Flows::new(rides.pool.clone(), proxied).with(&flow);
    let proxy = Arc::clone(&rides.proxy);
    rides.breaks.do_at(Point::ChargeAfter, move || proxy.arm_and_leave(Cut::BeforeCommit));
    let ended = rides.run_with(&flows, &flow, "k").await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(rides.record("k").await.recovery_point(), Some(RecoveryPoint::Calling(1)));
    rides.proxy.come_back();
    let waiting = async {
        while rides.record("k").await.recovery_point() != Some(RecoveryPoint::Before(2)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(AT_THE_LATEST, waiting).await.expect("its result is written");
    rides.end_leases().await;
    let ended = rides.run_with(&flows, &flow, "k").await.unwrap();
    assert!(matches!(ended, FlowEnd::Answered(_)), "{ended:?}");
    assert_eq!(
        (rides.rides("k").await, rides.provider.charges(), rides.receipts("k").await),
        (1, 1, 1)
    );
}
