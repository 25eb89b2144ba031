//! Does the PostgreSQL store keep its promises behind a pooler that hands every transaction to
//! another backend?

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

mod common;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::bench::Database;
use common::pooler::Pooler;
use retrysafe::core::conformance::Bench;
use retrysafe::stores::postgres::PostgresStore;

/// A store behind pgbouncer in transaction mode.
struct Pooled {
    database: Database,
    store: Arc<PostgresStore>,
}

impl Bench for Pooled {
    type Store = PostgresStore;

    async fn fresh() -> Self {
        static POOLER: OnceLock<Pooler> = OnceLock::new();
        let database = Database::take().await;
        let (base, name) = database.url.rsplit_once('/').expect("a URL");
        let server = base.rsplit_once(':').expect("a port").1.parse().expect("a number");
        let port = POOLER.get_or_init(|| Pooler::start(server)).port;
        let url = format!("postgres://postgres@127.0.0.1:{port}/{name}?deadline=30s");
        // A pooler may still hold a connection that the last case's end has closed.
        let store = loop {
            match PostgresStore::connect(&url).await {
                Ok(store) => break Arc::new(store),
                Err(error) if error.to_string().contains("terminat") => {}
                Err(error) => panic!("{error}"),
            }
        };
        Self { store, database }
    }

    fn store(&self) -> Arc<PostgresStore> {
        Arc::clone(&self.store)
    }

    async fn advance(&self, by: Duration) {
        self.database.advance(by).await;
    }
}

retrysafe_core::conformance!(pgbouncer, Pooled);
