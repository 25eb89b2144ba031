//! Does the tiered store serve what the database has decided, whatever becomes of its Redis?

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::AsyncCommands as _;
use retrysafe::core::Store as _;
use retrysafe::core::conformance::Bench;
use retrysafe::core::engine::{Begun, Engine, Settled};
use retrysafe::core::record::{Answer, Record, State};
use retrysafe::stores::postgres::PostgresStore;
use retrysafe::stores::tiered::{TieredStore, TieredUrl};

use crate::kit::load::{begin, completed, id};
use crate::kit::proxy::{Mode, Proxy};
use crate::kit::server::Server;
use crate::kit::{client, prefix, shared};
use crate::postgres_kit::bench::Database;
use crate::postgres_kit::{database, sql};

/// What stands before the record in a copy: one byte for the format, and the code.
const COPY_HEAD_BYTES: usize = 33;

/// A tiered store over a database whose clock can be set forward.
pub(crate) struct Tiered {
    database: Database,
    store: Arc<TieredStore>,
}

impl Bench for Tiered {
    type Store = TieredStore;

    async fn fresh() -> Self {
        // Used again, emptied: a new one for each of hundreds of cases fills gigabytes of disk.
        let database = Database::take().await;
        sql(&database.url, "UPDATE retrysafe_test.clock SET still = false, ms = 0").await;
        let decide = format!("{}?deadline=30s", database.url).parse().unwrap();
        let answer = format!("{}?prefix={}", shared().url(), prefix()).parse().unwrap();
        let store = TieredStore::open(&TieredUrl { decide, answer }).await.expect("it opens");
        Self { database, store: Arc::new(store) }
    }

    fn store(&self) -> Arc<TieredStore> {
        Arc::clone(&self.store)
    }

    async fn advance(&self, by: Duration) {
        self.database.advance(by).await;
        // As if the few seconds had passed after which every process has read the clock again.
        self.store.refresh().await.expect("the database is there");
    }
}

retrysafe_core::conformance!(conformance, Tiered);

/// A store whose Redis is its own, behind a proxy.
struct Stage {
    database: String,
    redis: Server,
    proxy: Proxy,
    url: TieredUrl,
    engine: Engine<TieredStore>,
}

impl Stage {
    async fn new() -> Self {
        let (database, redis) = (database().await, Server::start(&[]));
        let proxy = Proxy::to(redis.port).await;
        let decide = format!("{database}?deadline=30s").parse().unwrap();
        let url = TieredUrl { decide, answer: proxy.url().parse().unwrap() };
        let engine = Engine::new(TieredStore::open(&url).await.unwrap());
        Self { database, redis, proxy, url, engine }
    }

    fn key(key: &str) -> String {
        let id = id(key).to_string();
        format!("retrysafe:{{{}}}:a:{id}", &id[..2])
    }

    /// Executes a request, and waits until its answer was copied.
    async fn answered(&self, key: &str, body: &str) {
        let Begun::Execute(lease) = begin(&self.engine, key, 1).await.unwrap() else { panic!() };
        let settled = self.engine.settle(lease, &completed(body)).await.unwrap();
        assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
        self.copied(key).await;
    }

    /// Asks until a copy is there: Redis may have been away a moment ago.
    async fn copied(&self, key: &str) {
        let mut client = client(self.redis.port).await;
        let started = Instant::now();
        while !client.exists::<_, bool>(Self::key(key)).await.unwrap() {
            assert!(started.elapsed() < Duration::from_secs(30), "{key} was not copied");
            assert!(matches!(begin(&self.engine, key, 2).await.unwrap(), Begun::Replay(..)));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn replay(&self, key: &str) -> String {
        body_of(key, begin(&self.engine, key, 3).await.unwrap())
    }

    /// A replay while the database cannot answer. A look that a busy machine holds up for longer than
    /// the store waits for Redis ends at the database, and the caller asks again.
    async fn replay_from_redis(&self, key: &str) -> String {
        let started = Instant::now();
        loop {
            match begin(&self.engine, key, 3).await {
                Ok(begun) => return body_of(key, begun),
                Err(error) => assert!(started.elapsed() < Duration::from_secs(60), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The body that is replayed.
fn body_of(key: &str, begun: Begun) -> String {
    match begun {
        Begun::Replay(Answer::Kept(response), _) => {
            String::from_utf8(response.body.to_vec()).unwrap()
        }
        other => panic!("{key}: {other:?}"),
    }
}

/// The copy is what is served: the database could not be asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_costs_the_database_nothing() {
    let stage = Stage::new().await;
    stage.answered("k", "answer").await;
    // The record is hidden from the database, and is served all the same.
    sql(&stage.database, "ALTER TABLE retrysafe.record RENAME TO hidden").await;
    assert_eq!(stage.replay_from_redis("k").await, "answer");
    assert!(begin(&stage.engine, "new", 1).await.is_err(), "Redis never grants");
    sql(&stage.database, "ALTER TABLE retrysafe.hidden RENAME TO record").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_changes_nothing() {
    let stage = Stage::new().await;
    stage.answered("k", "answer").await;
    stage.redis.cli(&["FLUSHALL"]);
    assert_eq!(stage.replay("k").await, "answer");
    assert!(matches!(begin(&stage.engine, "new", 1).await.unwrap(), Begun::Execute(_)));
    stage.copied("k").await;
}

/// Every byte of a copy changed, another record's copy, and things that are no copies at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poisoned_copy_is_not_served() {
    let stage = Stage::new().await;
    stage.answered("k", "answer").await;
    stage.answered("other", "another answer").await;
    let mut client = client(stage.redis.port).await;
    let copy: Vec<u8> = client.get(Stage::key("k")).await.unwrap();
    let other: Vec<u8> = client.get(Stage::key("other")).await.unwrap();
    let mut poisons = vec![other, vec![], b"x".to_vec(), vec![0xff; 1 << 16], copy[..40].to_vec()];
    for at in (0..copy.len()).step_by(copy.len() / 40) {
        let mut poison = copy.clone();
        poison[at] ^= 0x01;
        poisons.push(poison);
    }
    // A whole record by somebody who knows the format, behind the head of a true copy.
    let (head, record) = copy.split_at(COPY_HEAD_BYTES);
    let mut record = Record::decode(record.to_vec()).unwrap();
    let State::Completed { answer: Answer::Kept(response), .. } = &mut record.state else {
        panic!("{record:?}")
    };
    response.body = "forged".into();
    poisons.push([head, &record.encode()].concat());
    for poison in poisons {
        let _: () = client.set(Stage::key("k"), poison).await.unwrap();
        assert_eq!(stage.replay("k").await, "answer");
    }
    // At once: a copy may be written behind the last replay.
    let mut another_kind = redis::pipe();
    another_kind.atomic().del(Stage::key("k")).ignore().lpush(Stage::key("k"), "x").ignore();
    let _: () = another_kind.query_async(&mut client).await.unwrap();
    assert_eq!(stage.replay("k").await, "answer");
}

/// A record expired and was executed anew; then somebody restores the Redis of before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_former_generation_is_not_served() {
    let stage = Stage::new().await;
    stage.answered("k", "first").await;
    let mut client = client(stage.redis.port).await;
    let old: Vec<u8> = client.get(Stage::key("k")).await.unwrap();
    sql(&stage.database, "UPDATE retrysafe_test.clock SET ms = ms + 7200000").await;
    stage.engine.store().refresh().await.unwrap();
    let _: () = client.del(Stage::key("k")).await.unwrap();
    stage.answered("k", "second").await;
    let _: () = client.set(Stage::key("k"), old).await.unwrap();
    assert_eq!(stage.replay("k").await, "second");
}

/// An operator ends an answer; a Redis that brings its copy back brings back nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_has_expired_is_not_served_again() {
    let stage = Stage::new().await;
    stage.answered("k", "first").await;
    let mut client = client(stage.redis.port).await;
    let old: Vec<u8> = client.get(Stage::key("k")).await.unwrap();
    stage.engine.expire(id("k"), None, "wrong").await.unwrap();
    let _: () = client.set(Stage::key("k"), old.clone()).await.unwrap();
    stage.answered("k", "second").await;
    let _: () = client.set(Stage::key("k"), old.clone()).await.unwrap();
    assert_eq!(stage.replay("k").await, "second");
    // Another process that starts now reads the epoch first.
    let later = Engine::new(TieredStore::open(&stage.url).await.unwrap());
    for _ in 0..20 {
        match begin(&later, "k", 4).await.unwrap() {
            Begun::Replay(Answer::Kept(response), _) => assert_eq!(response.body, "second"),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Somebody expires an answer through the database alone, and is gone: a gateway on `postgres://`, or
/// one that dies right after its commit. The commit itself has to end the copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_expired_without_a_tiered_store_is_not_served_again() {
    let stage = Stage::new().await;
    stage.answered("k", "first").await;
    let plain = PostgresStore::open(&stage.url.decide).await.unwrap();
    Engine::new(plain).expire(id("k"), None, "wrong").await.unwrap();
    // As if the few seconds had passed after which every process has read the epoch again.
    stage.engine.store().refresh().await.unwrap();
    let begun = begin(&stage.engine, "k", 2).await.unwrap();
    assert!(matches!(begun, Begun::Execute(_)), "{begun:?}");
    let other = TieredStore::open(&stage.url).await.unwrap();
    let begun = begin(&Engine::new(other), "k", 3).await.unwrap();
    assert!(matches!(begun, Begun::InProgress(_)), "{begun:?}");
}

/// A Redis that hangs costs some requests a moment, and then nobody anything; one that is gone as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_or_dead_redis_costs_a_bounded_moment() {
    let stage = Stage::new().await;
    stage.answered("k", "answer").await;
    for fault in [Mode::Freeze, Mode::CutAnswer] {
        stage.proxy.set(fault);
        let started = Instant::now();
        for n in 0..200 {
            assert_eq!(stage.replay("k").await, "answer");
            let begun = begin(&stage.engine, &format!("{fault:?}{n}"), 1).await.unwrap();
            assert!(matches!(begun, Begun::Execute(_)), "{begun:?}");
        }
        // 400 requests that each waited for a copy would take twenty seconds for that alone.
        println!("400 requests with {fault:?}: {:?}", started.elapsed());
        stage.proxy.set(Mode::Pass);
    }
    stage.redis.kill();
    assert_eq!(stage.replay("k").await, "answer");
    stage.redis.up();
    stage.copied("k").await;
    assert_eq!(stage.replay("k").await, "answer");
}

#[tokio::test]
async fn a_tiered_store_opens_without_its_redis() {
    let decide = format!("{}?deadline=30s", database().await).parse().unwrap();
    let answer = "redis://127.0.0.1:1".parse().unwrap();
    let store = TieredStore::open(&TieredUrl { decide, answer }).await.unwrap();
    let engine = Engine::new(store);
    let Begun::Execute(lease) = begin(&engine, "k", 1).await.unwrap() else { panic!() };
    engine.settle(lease, &completed("answer")).await.unwrap();
    assert!(matches!(begin(&engine, "k", 2).await.unwrap(), Begun::Replay(..)));
    engine.store().probe().await.unwrap();
}
