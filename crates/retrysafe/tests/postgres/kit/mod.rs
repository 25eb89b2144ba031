//! What do the tests of the PostgreSQL store share?
#![cfg_attr(not(feature = "phases"), allow(dead_code, reason = "phases use some of it alone"))]

pub(crate) mod bench;
#[allow(dead_code, reason = "the gateway's tests use all of it")]
pub(crate) mod cluster;
pub(crate) mod load;
pub(crate) mod pooler;
pub(crate) mod proxy;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use cluster::Cluster;
use retrysafe::stores::postgres::{PostgresStore, migrate};
use tokio::sync::OnceCell;

/// The server of this test run: the one that `cargo xtask test` has started, or one of our own.
pub(crate) fn server_url(database: &str) -> String {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    match std::env::var("RETRYSAFE_TEST_POSTGRES") {
        Ok(url) => format!("{}/{database}", url.trim_end_matches('/')),
        Err(_) => CLUSTER.get_or_init(|| Cluster::start(&[])).url(database),
    }
}

/// Runs SQL as the owner of the server.
pub(crate) async fn sql(url: &str, sql: &str) {
    client(url).await.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// The first column of the first row, as a number.
pub(crate) async fn number(url: &str, sql: &str) -> i64 {
    let row = client(url).await.query_one(sql, &[]).await;
    row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

pub(crate) async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

/// A clock that a test can set. The real function has no such thing, so nobody can set it by mistake:
/// a test replaces it.
const CLOCK: &str = "CREATE SCHEMA retrysafe_test;
CREATE TABLE retrysafe_test.clock (still boolean NOT NULL, ms bigint NOT NULL);
INSERT INTO retrysafe_test.clock VALUES (false, 0);
CREATE OR REPLACE FUNCTION retrysafe.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN c.still THEN c.ms
        ELSE floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + c.ms END
    FROM retrysafe_test.clock c
$$;";

/// A new, empty database with our schema and a clock for tests.
pub(crate) async fn database() -> String {
    static TEMPLATE: OnceCell<String> = OnceCell::const_new();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let run = std::process::id();
    let template = TEMPLATE
        .get_or_init(|| async {
            let name = format!("template_{run}");
            sql(&server_url("postgres"), &format!("CREATE DATABASE {name}")).await;
            migrate(&server_url(&name).parse().unwrap()).await.expect("the schema is made");
            sql(&server_url(&name), CLOCK).await;
            name
        })
        .await;
    let name = format!("test_{run}_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    // Only one copy of a template at a time.
    static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _one = ONE.lock().await;
    sql(&server_url("postgres"), &format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
    server_url(&name)
}

/// The store of a database. A test that names no deadline is not about deadlines: a busy machine gets
/// more than the default of five seconds.
pub(crate) async fn store(url: &str) -> PostgresStore {
    let joint = if url.contains('?') { '&' } else { '?' };
    let deadline = if url.contains("deadline=") { "" } else { &format!("{joint}deadline=15s") };
    PostgresStore::connect(&format!("{url}{deadline}")).await.expect("the store opens")
}
