//! A worker in Rust: it delivers what applications have staged, once wherever it is killed.
//!
//! ```sh
//! cargo run -p payment-provider &
//! export DATABASE_URL=postgres://postgres@localhost/postgres
//! cargo run -p receipt-worker &
//! psql "$DATABASE_URL" -c "SELECT * FROM retrysafe.stage_v1('receipt', 'http://127.0.0.1:4000/charges',
//!     'application/json', '{\"ride\": \"ride-1\", \"cents\": 1200}', NULL, NULL, NULL, NULL)"
//! curl -s localhost:4000/charges
//! ```
//!
//! SIGTERM ends it: it claims nothing more, and waits for what is under way.

mod receivers;

use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

use retrysafe::outbox::Worker;
use retrysafe::stores::postgres::migrate;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::signal::unix::{SignalKind, signal};

/// How long what is under way may take to end when the process is told to stop: longer than any deadline.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Two connections for each of the three kinds, and two more.
const CONNECTIONS_MAX: u32 = 8;

/// How long a database that cannot be reached is waited for at the start: as long as a restart or a fail-over should take.
const DATABASE_WAIT_MAX: Duration = Duration::from_secs(60);

/// The pause between two tries.
const DATABASE_PAUSE: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // From here on a signal to end finds somebody who waits for what is under way.
    let mut told_to_stop = signal(SignalKind::terminate())?;
    let url = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL names no database")?;
    let pool = tokio::select! {
        connected = connect_patiently(&url) => connected?,
        _ = told_to_stop.recv() => return Ok(()),
    };
    let client = reqwest::Client::new();
    let mut worker = Worker::new(pool);
    for (kind, receiver) in receivers::all() {
        let client = client.clone();
        worker = worker
            .deliver(kind, receiver, move |delivery| receivers::deliver(client.clone(), delivery));
    }
    let working = worker.start();
    told_to_stop.recv().await;
    if working.stop(DRAIN_MAX).await {
        return Ok(());
    }
    Err("some deliveries are left: other workers find them when their leases are over".into())
}

/// Connects, and waits for a database that is not there yet.
async fn connect_patiently(url: &str) -> Result<PgPool, Box<dyn Error>> {
    let begun = Instant::now();
    loop {
        match connect(url).await {
            Err(error) if begun.elapsed() < DATABASE_WAIT_MAX => {
                // Nobody may read it; then there is nobody to tell.
                let _ = writeln!(std::io::stderr(), "the database is waited for: {error}");
                tokio::time::sleep(DATABASE_PAUSE).await;
            }
            connected => return connected,
        }
    }
}

async fn connect(url: &str) -> Result<PgPool, Box<dyn Error>> {
    migrate(&url.parse()?).await?;
    Ok(PgPoolOptions::new().max_connections(CONNECTIONS_MAX).connect(url).await?)
}
