//! What does a fail-over lose?
//!
//! With a synchronous standby: nothing. Both tests have a primary and a standby of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::kit::client;
use crate::kit::cluster::Cluster;
use crate::kit::load::{History, begin, id};
use retrysafe::core::Store as _;
use retrysafe::core::engine::{Begun, Engine};
use retrysafe::core::store::{StoreError, StoreErrorKind};
use retrysafe::stores::postgres::PostgresStore;

const SYNCHRONOUS: &[(&str, &str)] = &[("synchronous_standby_names", "second")];

async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    while !holds().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A primary and its synchronous standby, which is up to date.
fn pair() -> (Cluster, Cluster) {
    let first = Cluster::start(SYNCHRONOUS);
    let second = Cluster::standby_of(&first, "second");
    while first
        .sql("postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
        != "1"
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    (first, second)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_to_the_synchronous_standby_loses_nothing_and_doubles_nothing() {
    let (first, second) = tokio::task::spawn_blocking(pair).await.unwrap();
    let standby = PostgresStore::connect(&second.url("postgres")).await.unwrap_err().to_string();
    assert!(standby.contains("standby"), "{standby}");

    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", first.port, second.port);
    let url = format!("postgres://postgres@{hosts}/postgres?target_session_attrs=read-write");
    let store = PostgresStore::connect(&url).await.unwrap();
    let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let callers = history.run(&store, 16, &stop);
    until(async || history.answers() > 300).await;
    let (first, second) = tokio::task::spawn_blocking(move || {
        first.kill();
        second.promote();
        (first, second)
    })
    .await
    .unwrap();
    let before = history.answers();
    until(async || history.answers() > before + 300).await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(history.check(&store).await > 600);

    // The former primary comes back and still takes writes. Nobody may be served by it.
    let (first, second) = tokio::task::spawn_blocking(move || {
        first.up();
        second.sql(
            "postgres",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = 'retrysafe'",
        );
        (first, second)
    })
    .await
    .unwrap();
    let engine = Engine::new(store);
    until(async || begin(&engine, "split", 1).await.is_err_and(|error| !error.may_have_applied()))
        .await;
    let there = format!("SELECT count(*) FROM retrysafe.record WHERE id = '\\x{}'", id("split"));
    assert_eq!(first.sql("postgres", &there), "0");
    first.kill();
    until(async || matches!(begin(&engine, "split", 2).await, Ok(Begun::Execute(_)))).await;
    assert_eq!(second.sql("postgres", &there), "1");
}

/// A primary whose standby was killed, and the begin of "k" that waits for it.
struct Alone {
    first: Cluster,
    second: Cluster,
    engine: Arc<Engine<PostgresStore>>,
    admin: tokio_postgres::Client,
    waiting: tokio::task::JoinHandle<Result<Begun, StoreError>>,
}

async fn alone(deadline: &str) -> Alone {
    let (first, second) = tokio::task::spawn_blocking(pair).await.unwrap();
    let url = first.url("postgres");
    let store = PostgresStore::connect(&format!("{url}?deadline={deadline}")).await.unwrap();
    let engine = Arc::new(Engine::new(store));
    assert!(matches!(begin(&engine, "before", 1).await, Ok(Begun::Execute(_))));
    second.kill();
    let begun = Arc::clone(&engine);
    let waiting = tokio::spawn(async move { begin(&begun, "k", 2).await });
    Alone { admin: client(&url).await, first, second, engine, waiting }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_wait_for_the_standby_is_not_a_success() {
    let Alone { first: _first, second, engine, admin, waiting } = alone("60s").await;
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'retrysafe' AND wait_event = 'SyncRep'";
    until(async || admin.execute(cancel, &[]).await.unwrap() > 0).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.may_have_applied(), "committed here, and perhaps nowhere else: {error}");

    // Nothing is told from the primary's own knowledge until the standby has it too.
    let mut looking = {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { engine.store().load(id("k")).await })
    };
    let barrier = "SELECT pid FROM pg_stat_activity
        WHERE application_name = 'retrysafe' AND wait_event = 'SyncRep' AND query LIKE '%barrier%'";
    until(async || admin.execute(barrier, &[]).await.unwrap() > 0).await;
    assert!(
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut looking).poll(context).is_pending())
        })
        .await
    );
    let second = tokio::task::spawn_blocking(move || {
        second.up();
        second
    })
    .await
    .unwrap();
    assert!(looking.await.unwrap().unwrap().value.is_some());
    let there = format!("SELECT count(*) FROM retrysafe.record WHERE id = '\\x{}'", id("k"));
    assert_eq!(second.sql("postgres", &there), "1", "the standby has it");
}

// A backend that is ended while it waits has committed, and its commit can be seen; the standby may
// never get it. Whoever executed on the strength of that would execute again after a fail-over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_with_its_connection_is_not_a_success() {
    let Alone { first: _first, second, engine, admin, waiting } = alone("4s").await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'retrysafe' AND wait_event = 'SyncRep'";
    until(async || admin.execute(end, &[]).await.unwrap() > 0).await;
    let there = format!("SELECT 1 FROM retrysafe.record WHERE id = '\\x{}'", id("k"));
    until(async || admin.execute(&there, &[]).await.unwrap() == 1).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.may_have_applied(), "committed here, and nowhere else: {error}");

    let second = tokio::task::spawn_blocking(move || {
        second.up();
        second
    })
    .await
    .unwrap();
    until(async || engine.look(id("k")).await.is_ok_and(|found| found.value.is_some())).await;
    assert_eq!(second.sql("postgres", &there), "1", "what can be read has arrived");
}
