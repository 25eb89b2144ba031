//! What does the conformance suite get from Redis?
//!
//! A prefix of its own on a server that all cases share, and a clock that is turned by hand.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::AsyncCommands as _;
use retrysafe::core::Id;
use retrysafe::core::conformance::{Bench, Damage, Owners, Reopen, Still};
use retrysafe::core::time::Time;
use retrysafe::stores::clock::{Clock, Hand};
use retrysafe::stores::redis::{RedisStore, RedisUrl, Trust};

use super::server::{Server, Servers};
use super::{client, prefix, shared};

/// When the clocks of the benches begin.
const START: Time = Time::from_ms(1_700_000_000_000);

/// A store under a prefix of its own.
pub(crate) struct Bare {
    url: RedisUrl,
    prefix: String,
    clock: Clock,
    hand: Hand,
    store: Option<Arc<RedisStore>>,
}

impl Bare {
    async fn fresh(place: &str) -> Self {
        let prefix = prefix();
        // More patience than the default: the suite runs several cases at once on few cores.
        let url: RedisUrl = format!("{place}?prefix={prefix}&deadline=30s").parse().unwrap();
        RedisStore::init(&url, Trust::AtOnce).await.expect("the server is initialised");
        let (clock, hand) = Clock::manual(START);
        let mut bare = Self { url, prefix, clock, hand, store: None };
        bare.open().await;
        bare
    }

    async fn open(&mut self) {
        self.store = None;
        let store = RedisStore::open_by_clock(&self.url, Some(self.clock.clone())).await;
        self.store = Some(Arc::new(store.expect("the store opens")));
    }

    fn store(&self) -> Arc<RedisStore> {
        Arc::clone(self.store.as_ref().expect("it is open"))
    }

    fn key(&self, id: &Id) -> String {
        let hex = id.to_string();
        format!("{}:{{{}}}:r:{hex}", self.prefix, &hex[..2])
    }
}

macro_rules! bench {
    ($(#[doc = $what:literal])* $name:ident, $place:expr) => {
        $(#[doc = $what])*
        pub(crate) struct $name(Bare);

        impl Bench for $name {
            type Store = RedisStore;

            async fn fresh() -> Self {
                Self(Bare::fresh(&$place).await)
            }

            fn store(&self) -> Arc<RedisStore> {
                self.0.store()
            }

            async fn advance(&self, by: Duration) {
                self.0.hand.advance(by);
            }
        }

        impl Still for $name {}
    };
}

bench! {
    /// On one server.
    Single, shared().url()
}
bench! {
    /// On a cluster of six.
    Clustered, cluster().url()
}
bench! {
    /// On a master that sentinels watch.
    Guarded, guarded()
}

/// The cluster of all tests that do not break theirs.
pub(crate) fn cluster() -> &'static Servers {
    static CLUSTER: OnceLock<Servers> = OnceLock::new();
    CLUSTER.get_or_init(|| Servers::cluster(&[]))
}

fn guarded() -> String {
    static SERVERS: OnceLock<(Server, Server)> = OnceLock::new();
    let (_, sentinel) = SERVERS.get_or_init(|| {
        let master = Server::start(&[]);
        let sentinel = Server::sentinel(&master, "main", 1);
        // Nobody fails here, and a machine that stalls must not look like it.
        sentinel.cli(&["SENTINEL", "SET", "main", "down-after-milliseconds", "60000"]);
        (master, sentinel)
    });
    format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port)
}

impl Reopen for Single {
    async fn reopen(&mut self) -> Owners {
        self.0.open().await;
        Owners::Remain
    }
}

/// The bytes before a record's own.
const HEAD: usize = 43;

impl Damage for Single {
    async fn flip(&self, id: Id, at: usize) {
        let key = self.0.key(&id);
        let mut client = client(shared().port).await;
        let mut value: Vec<u8> = client.get(&key).await.expect("the record is there");
        let at = at % value.len();
        value[at] ^= 0x40;
        let _: () = client.set(&key, value).await.expect("the record is damaged");
    }

    async fn make_newer(&self, id: Id) {
        let key = self.0.key(&id);
        let mut client = client(shared().port).await;
        let value: Vec<u8> = client.get(&key).await.expect("the record is there");
        let (front, mut bytes) = (value[..27].to_vec(), value[HEAD..].to_vec());
        bytes[0] = u8::MAX;
        let end = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&checksum);
        let sealed = [id.as_bytes().as_slice(), &front, &checksum].concat();
        let script = "return string.sub(redis.sha1hex(ARGV[1]), 1, 16)";
        let mut command = redis::cmd("EVAL");
        let seal = command.arg(script).arg(0).arg(sealed).query_async::<Vec<u8>>(&mut client);
        let newer = [front, seal.await.expect("a seal"), bytes].concat();
        let _: () = client.set(&key, newer).await.expect("the record is rewritten");
    }
}
