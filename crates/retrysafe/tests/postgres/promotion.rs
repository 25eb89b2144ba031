//! Is a standby that was promoted noticed, and kept from running again what it may have lost?
//!
//! Every test has a primary and a standby of its own.

use std::time::Duration;

use crate::kit::cluster::Cluster;
use crate::kit::load::{begin, completed, id};
use crate::kit::pooler::Pooler;
use retrysafe::core::Store as _;
use retrysafe::core::engine::{Begun, Engine, Settled};
use retrysafe::core::record::Outcome;
use retrysafe::core::store::{StoreError, StoreErrorKind};
use retrysafe::core::time::Time;
use retrysafe::stores::postgres::{PostgresStore, Trust};

type PostgresEngine = Engine<PostgresStore>;

async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    while !holds().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Does something that blocks, with both servers.
async fn with(pair: (Cluster, Cluster), work: fn(&Cluster, &Cluster)) -> (Cluster, Cluster) {
    let done = tokio::task::spawn_blocking(move || {
        work(&pair.0, &pair.1);
        pair
    });
    done.await.unwrap()
}

/// A primary, and a standby that follows it; nobody waits for the standby.
async fn pair() -> (Cluster, Cluster) {
    let made = tokio::task::spawn_blocking(|| {
        let first = Cluster::start(&[]);
        let second = Cluster::standby_of(&first, "second");
        (first, second)
    });
    made.await.unwrap()
}

/// A URL of both, of which the primary is taken.
fn either(pair: &(Cluster, Cluster), query: &str) -> String {
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", pair.0.port, pair.1.port);
    format!(
        "postgres://postgres@{hosts}/postgres?target_session_attrs=read-write&deadline=15s&{query}"
    )
}

/// Waits until the standby has the record of this key.
async fn has_arrived(pair: &(Cluster, Cluster), key: &str) {
    // The standby may be without the schema itself so far.
    let schema = "SELECT count(*) FROM pg_class WHERE oid = to_regclass('retrysafe.record')";
    until(async || pair.1.sql("postgres", schema) == "1").await;
    let there = format!("SELECT count(*) FROM retrysafe.record WHERE id = '\\x{}'", id(key));
    until(async || pair.1.sql("postgres", &there) == "1").await;
}

async fn answered(engine: &PostgresEngine, key: &str) -> u64 {
    let Begun::Execute(lease) = begin(engine, key, 1).await.unwrap() else { panic!("{key}") };
    let fence = lease.fence().0;
    let settled = engine.settle(lease, &completed(key)).await.unwrap();
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    fence
}

fn is_held(error: &StoreError) {
    assert_eq!((error.kind(), error.may_have_applied()), (StoreErrorKind::Held, false));
    assert!(error.to_string().contains("nothing new is granted"), "{error}");
}

async fn held(engine: &PostgresEngine, key: &str) {
    is_held(&begin(engine, key, 2).await.unwrap_err());
}

async fn replayed(engine: &PostgresEngine, key: &str) {
    let begun = begin(engine, key, 3).await.unwrap();
    assert!(matches!(begun, Begun::Replay(..)), "{begun:?}");
}

/// Reads until a server answers.
async fn reconnected(engine: &PostgresEngine) {
    until(async || engine.store().load(id("old")).await.is_ok()).await;
}

/// The standby is gone, then the primary; then the standby comes back and is promoted.
fn fail_over(first: &Cluster, second: &Cluster) {
    first.kill();
    second.up();
    second.promote();
}

/// What the primary acknowledged alone is lost. Nothing new runs until nobody can be executing or
/// retrying it any more, and a process that starts later knows that too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_may_lack_commits_serves_what_it_has_and_grants_nothing_new() {
    let pair = pair().await;
    let url = either(&pair, "quarantine=1h");
    let engine = Engine::new(PostgresStore::connect(&url).await.unwrap());
    assert!(engine.store().durability().contains("no synchronous standby"));
    answered(&engine, "old").await;
    let Begun::Execute(lease) = begin(&engine, "released", 1).await.unwrap() else { panic!() };
    engine.settle(lease, &Outcome::Retryable(None)).await.unwrap();
    let Begun::Execute(running) = begin(&engine, "running", 1).await.unwrap() else { panic!() };
    has_arrived(&pair, "running").await;
    pair.1.kill();
    let lost = answered(&engine, "lost").await;
    let pair = with(pair, fail_over).await;

    reconnected(&engine).await;
    held(&engine, "lost").await;
    held(&engine, "released").await;
    replayed(&engine, "old").await;
    let later = Engine::new(PostgresStore::connect(&url).await.unwrap());
    held(&later, "lost").await;
    replayed(&later, "old").await;
    let settled = engine.settle(running, &completed("running")).await.unwrap();
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    replayed(&later, "running").await;
    let now = later.store().load(id("old")).await.unwrap().now;
    assert!(later.store().held_until() > now);

    // An operator who knows better ends it. No number that was given out is given out again.
    PostgresStore::init(&url.parse().unwrap(), Trust::AtOnce).await.unwrap();
    assert!(answered(&later, "lost").await > lost + (1 << 32));
    drop(pair);
}

/// A transaction of the application may be the first to meet the promoted standby.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_inside_a_transaction_is_held_as_well_and_a_settle_is_not() {
    let pair = pair().await;
    let engine = PostgresStore::connect(&either(&pair, "quarantine=1h")).await.unwrap();
    let engine = Engine::new(engine);
    let Begun::Execute(lease) = begin(&engine, "released", 1).await.unwrap() else { panic!() };
    engine.settle(lease, &Outcome::Retryable(None)).await.unwrap();
    let Begun::Execute(running) = begin(&engine, "running", 1).await.unwrap() else { panic!() };
    has_arrived(&pair, "running").await;
    pair.1.kill();
    let pair = with(pair, fail_over).await;
    let mut client = crate::kit::client(&pair.1.url("postgres")).await;
    for key in ["new", "released"] {
        let mut tx = client.transaction().await.unwrap();
        is_held(&crate::kit::load::begin_in(&engine, &mut tx, key, 2).await.unwrap_err());
        tx.rollback().await.unwrap();
    }
    let mut tx = client.transaction().await.unwrap();
    engine.settle_in(&mut tx, &running, &completed("running")).await.unwrap();
    tx.commit().await.unwrap();
    replayed(&engine, "running").await;
}

/// The settle of an application's transaction is the first statement that the new server sees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_inside_a_transaction_may_be_the_first_that_a_promoted_standby_sees() {
    let pair = pair().await;
    let engine = PostgresStore::connect(&either(&pair, "quarantine=1h")).await.unwrap();
    let engine = Engine::new(engine);
    let Begun::Execute(running) = begin(&engine, "running", 1).await.unwrap() else { panic!() };
    has_arrived(&pair, "running").await;
    pair.1.kill();
    let pair = with(pair, fail_over).await;
    let mut client = crate::kit::client(&pair.1.url("postgres")).await;
    let mut tx = client.transaction().await.unwrap();
    engine.guard_in(&mut tx, running.id(), running.fence()).await.unwrap();
    let settled = engine.settle_in(&mut tx, &running, &completed("running")).await.unwrap();
    assert!(settled.version > running.fence().0 + (1 << 32), "the versions have leapt before it");
    tx.commit().await.unwrap();
    replayed(&engine, "running").await;
    held(&engine, "new").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantine_ends_by_itself() {
    let pair = pair().await;
    let store = PostgresStore::connect(&either(&pair, "quarantine=1h")).await.unwrap();
    let engine = Engine::new(store);
    answered(&engine, "old").await;
    has_arrived(&pair, "old").await;
    pair.1.kill();
    let pair = with(pair, fail_over).await;
    reconnected(&engine).await;
    for (minutes, is_over) in [(59, false), (61, true)] {
        let clock = format!(
            "CREATE OR REPLACE FUNCTION retrysafe.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
            'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + {minutes} * 60000'"
        );
        pair.1.sql("postgres", &clock);
        if is_over {
            answered(&engine, "new").await;
        } else {
            held(&engine, "new").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_may_prefer_to_go_on() {
    let pair = pair().await;
    let url = either(&pair, "failover=continue");
    let engine = Engine::new(PostgresStore::connect(&url).await.unwrap());
    let lost = answered(&engine, "old").await;
    has_arrived(&pair, "old").await;
    pair.1.kill();
    let _pair = with(pair, fail_over).await;
    reconnected(&engine).await;
    assert!(answered(&engine, "new").await > lost + (1 << 32));
    let later = Engine::new(PostgresStore::connect(&url).await.unwrap());
    assert_eq!(later.store().held_until(), Time::from_ms(0));
    answered(&later, "newer").await;
}

const WAIT: &str = "ALTER SYSTEM SET synchronous_standby_names = 'second'";
const DO_NOT_WAIT: &str = "ALTER SYSTEM RESET synchronous_standby_names";

fn configure(server: &Cluster, setting: &str) {
    server.sql("postgres", setting);
    server.sql("postgres", "SELECT pg_reload_conf()");
}

/// A pair whose commits are waited for, by a setting that can be taken back.
async fn awaited_pair() -> (Cluster, Cluster) {
    with(pair().await, |first, _| {
        configure(first, WAIT);
        let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        while first.sql("postgres", synchronous) != "1" {
            std::thread::sleep(Duration::from_millis(20));
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_fail_over_to_the_standby_that_was_waited_for_nothing_is_held() {
    let pair = awaited_pair().await;
    let url = either(&pair, "quarantine=1h");
    let engine = Engine::new(PostgresStore::connect(&url).await.unwrap());
    assert!(engine.store().durability().contains("waited for by a synchronous standby"));
    answered(&engine, "old").await;
    let _pair = with(pair, |first, second| {
        first.kill();
        second.promote();
    })
    .await;
    reconnected(&engine).await;
    replayed(&engine, "old").await;
    answered(&engine, "new").await;
    let later = Engine::new(PostgresStore::connect(&url).await.unwrap());
    assert_eq!(later.store().held_until(), Time::from_ms(0));
    answered(&later, "newer").await;
    // Nobody waits for the next fail-over yet.
    assert!(later.store().durability().contains("no synchronous standby"));
}

/// The waiting is turned off when the standby is gone already, so the standby never hears of it. A
/// process that has lived through it knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_were_not_waited_for_any_more_count_as_lost() {
    let pair = awaited_pair().await;
    let url = either(&pair, "quarantine=1h");
    let engine = Engine::new(PostgresStore::connect(&url).await.unwrap());
    answered(&engine, "old").await;
    has_arrived(&pair, "old").await;
    let pair = with(pair, |first, second| {
        second.kill();
        configure(first, DO_NOT_WAIT);
    })
    .await;
    answered(&engine, "lost").await;
    let pair = with(pair, fail_over).await;
    // Another process knows nothing, and goes on.
    let other = Engine::new(PostgresStore::connect(&url).await.unwrap());
    answered(&other, "other").await;
    reconnected(&engine).await;
    held(&engine, "lost").await;
    held(&other, "lost").await;
    drop(pair);
}

/// Behind a pooler the connection stays, and the server behind it changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_is_pointed_at_the_promoted_standby_is_noticed() {
    let pair = pair().await;
    let pooler = Pooler::start(pair.0.port);
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?quarantine=1h", pooler.port);
    let engine = Engine::new(PostgresStore::connect(&url).await.unwrap());
    answered(&engine, "old").await;
    has_arrived(&pair, "old").await;
    let pair = with(pair, |_, second| second.promote()).await;
    pooler.point_at(pair.1.port);
    // The pooler takes a moment. What it still sends to the former primary is granted there.
    for n in 0.. {
        let key = format!("k{n}");
        match begin(&engine, &key, 1).await {
            Ok(begun) => assert!(matches!(begun, Begun::Execute(_)), "{begun:?}"),
            Err(error) if error.to_string().contains("nothing new is granted") => break,
            Err(error) => assert!(!error.may_have_applied(), "{error}"),
        }
        let there = format!("SELECT count(*) FROM retrysafe.record WHERE id = '\\x{}'", id(&key));
        assert_eq!(pair.1.sql("postgres", &there), "0", "{key} was granted after the promotion");
    }
    replayed(&engine, "old").await;
}

/// The primary has marked an effect as sent, and nobody but the primary knows. The standby would send it again.
#[cfg(feature = "outbox")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_whose_sent_mark_may_be_lost_is_not_claimed_until_an_operator_says_so() {
    let pair = pair().await;
    let url = either(&pair, "quarantine=1h");
    drop(PostgresStore::connect(&url).await.unwrap());
    pair.0.sql("postgres", "SELECT retrysafe.stage('mail', 'hello')");
    let schema = "SELECT count(*) FROM pg_class WHERE oid = to_regclass('retrysafe.effect')";
    until(async || pair.1.sql("postgres", schema) == "1").await;
    until(async || pair.1.sql("postgres", "SELECT count(*) FROM retrysafe.effect") == "1").await;
    pair.1.kill();
    let claim = "SELECT was_sent FROM retrysafe.claim_effects_v1('mail', 10, 60000)";
    assert_eq!(pair.0.sql("postgres", claim), "f");
    pair.0.sql("postgres", "SELECT retrysafe.mark_effects_v1('{1}', ARRAY(SELECT fence FROM retrysafe.effect), '{NULL}', NULL)");
    let pair = with(pair, fail_over).await;

    assert_eq!(pair.1.sql("postgres", claim), "", "held");
    assert_eq!(pair.1.sql("postgres", "SELECT marked_by IS NULL FROM retrysafe.effect"), "t");
    // An operator has looked at what the receiver has done, and takes what it has out of the queue, or not.
    PostgresStore::init(&url.parse().unwrap(), Trust::AtOnce).await.unwrap();
    assert_eq!(pair.1.sql("postgres", claim), "f");
}
