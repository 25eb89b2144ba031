//! What becomes of operations while servers and connections fail?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retrysafe::core::Store as _;
use retrysafe::core::engine::{Begun, Engine, Settled};
use retrysafe::core::store::StoreErrorKind;

use crate::kit::load::{History, begin, completed, id};
use crate::kit::proxy::{Mode, Proxy};
use crate::kit::server::{Server, Servers, field};
use crate::kit::{client, new_store, prefix, shared};
use retrysafe::stores::redis::{RedisStore, RedisUrl, Trust};

/// How many scripts a server has run.
fn scripts_run(server: &Server) -> u64 {
    let told = server.cli(&["INFO", "commandstats"]);
    let stats = field(&told, "cmdstat_evalsha");
    let calls = stats.split(',').find_map(|part| part.strip_prefix("calls="));
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// The server has done it, and nobody hears of it: the write is not sent again, and the error says
/// that it may have been applied.
#[tokio::test]
async fn a_write_whose_answer_is_lost_is_not_sent_again() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port).await;
    let (_, store) = new_store(&proxy.url(), "").await;
    let engine = Engine::new(store);
    for n in 0..20 {
        let key = format!("k{n}");
        let before = scripts_run(&server);
        proxy.set(Mode::CutAnswer);
        let error = begin(&engine, &key, 7).await.unwrap_err();
        assert!(error.may_have_applied(), "{error}");
        assert_eq!(scripts_run(&server) - before, 1, "the begin was sent once");
        assert_eq!(proxy.cuts(), n + 1);
        // It was applied, and its caller takes it back.
        engine.withdraw(id(&key), 7).await.unwrap();
        let Begun::Execute(lease) = begin(&engine, &key, 8).await.unwrap() else { panic!("{key}") };
        let settled = engine.settle(lease, &completed(&key)).await.unwrap();
        assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    }
}

#[tokio::test]
async fn a_read_whose_answer_is_lost_is_asked_again() {
    let proxy = Proxy::to(shared().port).await;
    let (_, store) = new_store(&proxy.url(), "").await;
    proxy.set(Mode::CutAnswer);
    assert_eq!(store.load(id("k")).await.unwrap().value, None);
    assert_eq!(proxy.cuts(), 1);
}

#[tokio::test]
async fn a_server_that_hangs_is_waited_for_up_to_the_deadline() {
    let proxy = Proxy::to(shared().port).await;
    // The many writes that initialise it are not what the deadline is about.
    let name = prefix();
    let [patient, hasty] = ["15s", "2s"].map(|deadline| -> RedisUrl {
        format!("{}?prefix={name}&deadline={deadline}", proxy.url()).parse().unwrap()
    });
    RedisStore::init(&patient, Trust::AtOnce).await.unwrap();
    let store = RedisStore::open(&hasty).await.unwrap();
    proxy.set(Mode::Freeze);
    let engine = Engine::new(store);
    let error = begin(&engine, "k", 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.may_have_applied(), "it was sent, and nobody knows: {error}");
    // Now there is no connection at all, and nothing can have been sent.
    let error = begin(&engine, "k", 1).await.unwrap_err();
    assert!(!error.may_have_applied(), "{error}");
    proxy.set(Mode::Pass);
    let started = std::time::Instant::now();
    while begin(&engine, "other", 1).await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(60));
    }
}

#[tokio::test]
async fn forgotten_scripts_are_given_again() {
    let (_, store) = new_store(&Server::url(shared()), "").await;
    let engine = Engine::new(store);
    let mut client = client(shared().port).await;
    for n in 0..10 {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut client).await.unwrap();
        let begun = begin(&engine, &format!("k{n}"), 1).await.unwrap();
        assert!(matches!(begun, Begun::Execute(_)), "{begun:?}");
    }
}

#[tokio::test]
async fn a_full_server_refuses_new_records_and_serves_the_old_ones() {
    let server = Server::start(&[("maxmemory-policy", "noeviction")]);
    let (_, store) = new_store(&server.url(), "").await;
    let engine = Engine::new(store);
    let Begun::Execute(lease) = begin(&engine, "old", 1).await.unwrap() else { panic!() };
    engine.settle(lease, &completed("old")).await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = begin(&engine, "new", 1).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_applied()), (StoreErrorKind::Full, false));
    assert!(matches!(begin(&engine, "old", 2).await.unwrap(), Begun::Replay(..)));
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(matches!(begin(&engine, "new", 1).await.unwrap(), Begun::Execute(_)));
}

/// Whatever somebody else has put there is damage, never absence.
#[tokio::test]
async fn a_key_that_is_none_of_ours_is_damage() {
    let name = prefix();
    let url: RedisUrl = format!("{}?prefix={name}", shared().url()).parse().unwrap();
    RedisStore::init(&url, Trust::AtOnce).await.unwrap();
    let engine = Engine::new(RedisStore::open(&url).await.unwrap());
    let mut client = client(shared().port).await;
    for (n, command) in [vec!["LPUSH", "x"], vec!["SET", ""], vec!["SET", "x"]].iter().enumerate() {
        let key = format!("k{n}");
        let (id, mut put) = (id(&key), redis::cmd(command[0]));
        let place = format!("{name}:{{{}}}:r:{id}", &id.to_string()[..2]);
        let _: redis::Value =
            put.arg(&place).arg(command[1]).query_async(&mut client).await.unwrap();
        let error = begin(&engine, &key, 1).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_applied()), (StoreErrorKind::Damaged, false));
    }
    // A record under another record's name.
    assert!(matches!(begin(&engine, "one", 1).await.unwrap(), Begun::Execute(_)));
    let place = |key: &str| format!("{name}:{{{}}}:r:{}", &id(key).to_string()[..2], id(key));
    let mut copy = redis::cmd("COPY");
    let _: i64 = copy.arg(place("one")).arg(place("two")).query_async(&mut client).await.unwrap();
    let error = begin(&engine, "two", 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
}

/// Without its replica, a write that must wait for one is not acknowledged.
#[tokio::test]
async fn a_write_that_no_replica_has_is_not_acknowledged() {
    let master = Server::start(&[]);
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", master.port))]);
    replica.wait_for_sync(&master);
    let (_, store) = new_store(&master.url(), "wait=1,2s").await;
    let engine = Engine::new(store);
    let Begun::Execute(lease) = begin(&engine, "k", 1).await.unwrap() else { panic!() };
    engine.settle(lease, &completed("k")).await.unwrap();
    replica.freeze(true);
    let error = begin(&engine, "late", 1).await.unwrap_err();
    assert!(error.may_have_applied() && error.to_string().contains("replicas"), "{error}");
    replica.freeze(false);
    // Reading needs no replica.
    assert!(matches!(begin(&engine, "k", 2).await, Ok(Begun::Replay(..)) | Err(_)));
    replica.kill();
    let error = begin(&engine, "later", 1).await.unwrap_err();
    assert!(error.may_have_applied(), "{error}");
}

/// An owner settles again when its settle was ambiguous, and finds its own outcome in the record. It
/// once took that for an acknowledgement, and a replay served it: no replica had it, and a fail-over
/// would have lost what two callers were told.
#[tokio::test]
async fn what_no_replica_has_is_neither_acknowledged_later_nor_replayed() {
    let master = Server::start(&[]);
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", master.port))]);
    replica.wait_for_sync(&master);
    let place = format!("{}?prefix={}&deadline=60s", master.url(), prefix());
    let url: RedisUrl = format!("{place}&wait=1,200ms").parse().unwrap();
    RedisStore::init(&url, Trust::AtOnce).await.unwrap();
    let engine = Engine::new(RedisStore::open(&url).await.unwrap());
    // A replica that works is given the time that it takes on a busy machine.
    let patient: RedisUrl = format!("{place}&wait=1,30s").parse().unwrap();
    let patient = Engine::new(RedisStore::open(&patient).await.unwrap());
    let Begun::Execute(lease) = begin(&patient, "k", 1).await.unwrap() else { panic!() };
    replica.freeze(true);
    let mut unsettled = engine.settle(lease, &completed("k")).await.unwrap_err();
    for _ in 0..3 {
        assert!(unsettled.error.to_string().contains("replicas"), "{}", unsettled.error);
        unsettled = engine.settle(unsettled.lease, &completed("k")).await.unwrap_err();
        assert!(begin(&engine, "k", 2).await.is_err(), "a replay would tell what may be lost");
        assert!(engine.store().load(id("k")).await.is_err(), "and so would a look");
    }
    let other = Engine::new(RedisStore::open(&url).await.unwrap());
    assert!(begin(&other, "k", 3).await.is_err(), "another process knows no better");
    replica.freeze(false);
    replica.wait_for_sync(&master);
    let started = std::time::Instant::now();
    let settled = loop {
        match engine.settle(unsettled.lease, &completed("k")).await {
            Ok(settled) => break settled,
            Err(again) => unsettled = again,
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{}", unsettled.error);
    };
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    let replayed = loop {
        match begin(&other, "k", 4).await {
            Ok(begun) => break begun,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(60), "{error}"),
        }
    };
    assert!(matches!(replayed, Begun::Replay(..)), "{replayed:?}");
    // What is known to be replicated is served without a replica.
    replica.freeze(true);
    assert!(matches!(begin(&engine, "k", 5).await.unwrap(), Begun::Replay(..)));
    replica.freeze(false);
}

/// From Redis 7.2 on a replica counts when it has flushed. A proxy makes the server look newer, and
/// answers what such a server would.
#[tokio::test]
async fn a_newer_server_is_asked_to_wait_for_the_disks_of_its_replicas() {
    let server = Server::start(&[("appendonly", "yes")]);
    let proxy = Proxy::to(server.port).await;
    proxy.act_as_newer(1, 1);
    let (_, store) = new_store(&proxy.url(), "wait=1,2s").await;
    let engine = Engine::new(store);
    assert!(matches!(begin(&engine, "k", 1).await.unwrap(), Begun::Execute(_)));
    assert!(proxy.waits() > 0, "WAITAOF was asked");
    for (own, replicas) in [(1, 0), (0, 1)] {
        proxy.act_as_newer(own, replicas);
        let error = begin(&engine, &format!("{own} {replicas}"), 1).await.unwrap_err();
        assert!(error.may_have_applied() && error.to_string().contains("flushed"), "{error}");
    }
    // A server that keeps no log of its own has nothing to flush.
    server.cli(&["CONFIG", "SET", "appendonly", "no"]);
    proxy.act_as_newer(0, 1);
    let (_, store) = new_store(&proxy.url(), "wait=1,2s").await;
    assert!(matches!(begin(&Engine::new(store), "k", 1).await.unwrap(), Begun::Execute(_)));
}

/// A server that needs a replica refuses by itself.
#[tokio::test]
async fn a_server_that_lost_its_replicas_takes_no_writes() {
    let master = Server::start(&[("min-replicas-to-write", "1"), ("min-replicas-max-lag", "60")]);
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", master.port))]);
    replica.wait_for_sync(&master);
    crate::kit::server::wait_until("the master counts its replica", || {
        master.cli(&["SET", "x", "1"]) == "OK"
    });
    let (_, store) = new_store(&master.url(), "min_replicas=1").await;
    let engine = Engine::new(store);
    assert!(matches!(begin(&engine, "k", 1).await.unwrap(), Begun::Execute(_)));
    // Its connection is closed, which counts at once.
    replica.kill();
    crate::kit::server::wait_until("the master misses its replica", || {
        master.cli(&["SET", "x", "1"]).contains("NOREPLICAS")
    });
    let error = begin(&engine, "other", 1).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_applied()), (StoreErrorKind::Unavailable, false));
}

/// Callers go on over a cluster whose slots are moved from master to master meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_are_followed() {
    let servers = Servers::cluster(&[]);
    let (url, store) = new_store(&servers.url(), "quarantine=10ms&deadline=20s").await;
    let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let callers = history.run(&store, 8, &stop);
    // Bucket 00 lives in slot 13254: it goes to the master of slot 0.
    let (from, to) = (servers.master_of(13_254), servers.master_of(0));
    let (from_id, to_id) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));
    let slot = "13254";
    to.cli(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id]);
    from.cli(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id]);
    let port = to.port.to_string();
    loop {
        let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", slot, "10"]);
        if keys.is_empty() {
            break;
        }
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(keys.lines());
        from.cli(&migrate);
    }
    for server in &servers.0 {
        server.cli(&["CLUSTER", "SETSLOT", slot, "NODE", &to_id]);
    }
    let answers = history.answers();
    crate::kit::server::wait_until("callers go on", || history.answers() > answers + 200);
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(history.check(&store).await > 200);
    assert_eq!(servers.master_of(13_254).port, to.port);
    drop(url);
}
