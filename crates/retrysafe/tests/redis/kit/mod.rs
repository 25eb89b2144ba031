//! What do the tests of the Redis store share?

pub(crate) mod bench;
pub(crate) mod proxy;
pub(crate) mod server;

pub(crate) use crate::postgres_kit::load;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use redis::aio::MultiplexedConnection;
use retrysafe::stores::redis::{RedisStore, RedisUrl, Trust};
use server::Server;

/// The server of all tests that do not break theirs.
pub(crate) fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&[]))
}

/// A prefix that nobody else uses.
pub(crate) fn prefix() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("t{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A new store, initialised. `place` is a URL without parameters. A test that names no deadline is not
/// about deadlines: a busy machine gets more than the default of five seconds.
pub(crate) async fn new_store(place: &str, parameters: &str) -> (RedisUrl, RedisStore) {
    let deadline = if parameters.contains("deadline=") { "" } else { "&deadline=15s" };
    let url = format!("{place}?prefix={}&{parameters}{deadline}", prefix());
    let url: RedisUrl = url.parse().unwrap();
    RedisStore::init(&url, Trust::AtOnce).await.expect("the server is initialised");
    let store = RedisStore::open(&url).await.expect("the store opens");
    (url, store)
}

/// A connection of the test's own.
pub(crate) async fn client(port: u16) -> MultiplexedConnection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    client.get_multiplexed_async_connection().await.expect("the server is there")
}
