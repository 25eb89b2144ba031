//! Is a server that may have forgotten kept from granting?

use std::time::Duration;

use retrysafe::core::Store as _;
use retrysafe::core::engine::{Begun, Engine, Settled};
use retrysafe::core::store::StoreErrorKind;
use retrysafe::stores::redis::{RedisStore, Trust};

use crate::kit::load::{begin, completed, id};
use crate::kit::proxy::{Mode, Proxy};
use crate::kit::server::{Server, wait_until};
use crate::kit::{client, new_store};

type RedisEngine = Engine<RedisStore>;

async fn answered(engine: &RedisEngine, key: &str) {
    let Begun::Execute(lease) = begin(engine, key, 1).await.unwrap() else { panic!("{key}") };
    let settled = engine.settle(lease, &completed(key)).await.unwrap();
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
}

async fn held(engine: &RedisEngine, key: &str) {
    let error = begin(engine, key, 2).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_applied()), (StoreErrorKind::Held, false));
    assert!(error.to_string().contains("nothing new is granted"), "{error}");
}

async fn replayed(engine: &RedisEngine, key: &str) {
    let begun = begin(engine, key, 3).await.unwrap();
    assert!(matches!(begun, Begun::Replay(..)), "{begun:?}");
}

/// Reads until a server answers. A read is asked again on a connection that broke, a write is not.
async fn reconnected(engine: &RedisEngine) {
    let started = std::time::Instant::now();
    while engine.store().load(id("old")).await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(60), "no server answers");
    }
}

/// A restart under the same data. What is there is served, nothing new is executed, an execution that
/// was under way is settled; and a process that starts later knows it too.
#[tokio::test]
async fn a_restarted_server_serves_what_it_has_and_grants_nothing_new() {
    let server = Server::start(&[("appendonly", "yes"), ("appendfsync", "always")]);
    let (url, store) = new_store(&server.url(), "quarantine=1h").await;
    let engine = Engine::new(store);
    answered(&engine, "old").await;
    let Begun::Execute(running) = begin(&engine, "running", 1).await.unwrap() else { panic!() };
    server.kill();
    server.up();
    reconnected(&engine).await;
    replayed(&engine, "old").await;
    held(&engine, "new").await;
    // Another process, which has never seen the former server.
    let later = Engine::new(RedisStore::open(&url).await.unwrap());
    held(&later, "new").await;
    replayed(&later, "old").await;
    let settled = engine.settle(running, &completed("running")).await.unwrap();
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    replayed(&later, "running").await;
    assert!(later.store().held_until() > later.store().load(id("old")).await.unwrap().now);
    // An operator who knows that nothing was lost ends it.
    RedisStore::init(&url, Trust::AtOnce).await.unwrap();
    answered(&later, "new").await;
}

#[tokio::test]
async fn a_quarantine_ends_by_itself() {
    let server = Server::start(&[("appendonly", "yes"), ("appendfsync", "always")]);
    let (_, store) = new_store(&server.url(), "quarantine=6s").await;
    let engine = Engine::new(store);
    answered(&engine, "old").await;
    server.kill();
    server.up();
    reconnected(&engine).await;
    held(&engine, "new").await;
    let started = std::time::Instant::now();
    loop {
        match begin(&engine, "new", 2).await {
            Ok(Begun::Execute(_)) => break,
            Ok(other) => panic!("{other:?}"),
            Err(_) => assert!(started.elapsed() < Duration::from_secs(60)),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A record that was released is a grant, too: its later writes may be among those that were lost.
#[tokio::test]
async fn a_released_record_is_not_begun_again_in_a_quarantine() {
    let server = Server::start(&[("appendonly", "yes"), ("appendfsync", "always")]);
    let (_, store) = new_store(&server.url(), "quarantine=1h").await;
    let engine = Engine::new(store);
    let Begun::Execute(lease) = begin(&engine, "k", 1).await.unwrap() else { panic!() };
    let retryable = retrysafe::core::record::Outcome::Retryable(None);
    engine.settle(lease, &retryable).await.unwrap();
    server.kill();
    server.up();
    reconnected(&engine).await;
    held(&engine, "k").await;
}

#[tokio::test]
async fn a_flushed_redis_grants_nothing_until_somebody_initialises_it() {
    let server = Server::start(&[]);
    let (url, store) = new_store(&server.url(), "quarantine=1h").await;
    let engine = Engine::new(store);
    answered(&engine, "k").await;
    server.cli(&["FLUSHALL"]);
    let error = begin(&engine, "k", 2).await.unwrap_err();
    assert!(error.to_string().contains("store init"), "{error}");
    assert!(engine.store().probe().await.is_err(), "a gateway over it is not ready");
    let refused = RedisStore::open(&url).await.unwrap_err().to_string();
    assert!(refused.contains("store init"), "{refused}");
    RedisStore::init(&url, Trust::AfterQuarantine).await.unwrap();
    held(&engine, "k").await;
}

/// The server is the same process, but its data went back (an operator has restored a copy): whoever
/// has seen a later version says so, and everybody is held.
#[tokio::test]
async fn versions_that_went_back_begin_a_quarantine() {
    let server = Server::start(&[]);
    let (url, store) = new_store(&server.url(), "quarantine=1h").await;
    let engine = Engine::new(store);
    let id = id("k");
    let bucket = &id.to_string()[..2];
    let prefix = url.to_string();
    let prefix = prefix.split_once("prefix=").unwrap().1.split('&').next().unwrap().to_owned();
    let meta = format!("{prefix}:{{{bucket}}}:meta");
    let mut client = client(server.port).await;
    let dump: Vec<u8> = redis::cmd("DUMP").arg(&meta).query_async(&mut client).await.unwrap();
    answered(&engine, "k").await;
    let record = format!("{prefix}:{{{bucket}}}:r:{id}");
    let _: () = redis::cmd("DEL").arg(&record).query_async(&mut client).await.unwrap();
    let mut restore = redis::cmd("RESTORE");
    let _: () =
        restore.arg(&meta).arg(0).arg(dump).arg("REPLACE").query_async(&mut client).await.unwrap();
    held(&engine, "k").await;
    // One that has seen nothing is held as well.
    held(&Engine::new(RedisStore::open(&url).await.unwrap()), "k").await;
}

/// A replica is promoted that has not got the last writes: its address is the former master's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_missed_the_last_writes_grants_nothing_new() {
    let master = Server::start(&[]);
    let (stream, front) = (Proxy::to(master.port).await, Proxy::to(master.port).await);
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", stream.port))]);
    // A master that gets its first replica has another line of replication from then on.
    replica.wait_for_sync(&master);
    let (_, store) = new_store(&front.url(), "quarantine=1h").await;
    let engine = Engine::new(store);
    answered(&engine, "old").await;
    replica.wait_for_sync(&master);
    stream.set(Mode::Freeze);
    let Begun::Execute(running) = begin(&engine, "lost", 1).await.unwrap() else { panic!() };
    master.kill();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    front.lead_to(replica.port);
    reconnected(&engine).await;
    held(&engine, "lost").await;
    replayed(&engine, "old").await;
    // Its owner hears that its record is gone, and says so to its caller.
    let settled = engine.settle(running, &completed("x")).await.unwrap();
    assert!(matches!(settled, Settled::Lost { current: None, .. }), "{settled:?}");
}

/// A master becomes a replica and is promoted again, while a connection to it sleeps. That connection
/// knows the server by its former name, others by its present one. Each took the other's name for a
/// change and held the grants anew, so that the quarantine never ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_a_replica_for_a_while_is_held_once() {
    let one = Server::start(&[]);
    let two = Server::start(&[("replicaof", &format!("127.0.0.1 {}", one.port))]);
    two.wait_for_sync(&one);
    let (url, store) = new_store(&one.url(), "quarantine=6s").await;
    let sleeper = Engine::new(store);
    answered(&sleeper, "old").await;
    two.wait_for_sync(&one);
    two.cli(&["REPLICAOF", "NO", "ONE"]);
    one.cli(&["REPLICAOF", "127.0.0.1", &two.port.to_string()]);
    one.wait_for_sync(&two);
    one.cli(&["REPLICAOF", "NO", "ONE"]);
    let awake = Engine::new(RedisStore::open(&url).await.unwrap());
    held(&awake, "new").await;
    let started = std::time::Instant::now();
    let mut turn = 0;
    loop {
        turn += 1;
        assert!(started.elapsed() < Duration::from_secs(60), "the quarantine does not end");
        let tried = [begin(&sleeper, "new", turn).await, begin(&awake, "new", turn + 1).await];
        turn += 1;
        if tried.into_iter().any(|begun| matches!(begun, Ok(Begun::Execute(_)))) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    replayed(&sleeper, "old").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_lead_to_the_promoted_replica_which_grants_nothing_new() {
    let master = Server::start(&[]);
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", master.port))]);
    replica.wait_for_sync(&master);
    let sentinel = Server::sentinel(&master, "main", 1);
    let miss_after = |ms: &str| {
        sentinel.cli(&["SENTINEL", "SET", "main", "down-after-milliseconds", ms]);
    };
    // Until it is killed, a master on a machine that stalls must not look like one that is gone.
    miss_after("60000");
    let place = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port);
    let (_, store) = new_store(&place, "quarantine=1h&deadline=20s").await;
    let engine = Engine::new(store);
    answered(&engine, "old").await;
    replica.wait_for_sync(&master);
    // A sentinel must know the replica before it can promote it.
    wait_until("the sentinel knows the replica", || {
        sentinel.cli(&["SENTINEL", "replicas", "main"]).contains(&replica.port.to_string())
    });
    miss_after("500");
    master.kill();
    wait_until("the replica is promoted", || {
        replica.cli(&["INFO", "replication"]).contains("role:master")
    });
    reconnected(&engine).await;
    replayed(&engine, "old").await;
    held(&engine, "new").await;
}
