//! What does an operation meet: which database, which provider, which clock?

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use payment_provider::{PaymentProvider, Settings};
use retrysafe::outbox::{Delivered, Delivery, DeliveryEnd, DeliveryError, Receiver, Worker};
use retrysafe::stores::postgres::migrate;

use crate::cluster::Cluster;
use crate::director::Director;
use crate::languages::Language;
use crate::points::Visible;
use crate::program::{PACE, PATIENCE, Program};
use crate::wire::Wire;

/// A clock that a test can turn on: what it adds to the server's.
const CLOCK: &str = "CREATE SCHEMA retrysafe_test;
CREATE TABLE retrysafe_test.clock (added bigint NOT NULL);
INSERT INTO retrysafe_test.clock VALUES (0);
CREATE OR REPLACE FUNCTION retrysafe.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + c.added
    FROM retrysafe_test.clock c
$$;";

/// The receipts that were staged, whatever has become of them.
const STAGED: &str = "SELECT name AS booking FROM retrysafe.effect WHERE kind = 'receipt'
    UNION ALL SELECT name FROM retrysafe.effect_done WHERE kind = 'receipt'";

/// How long the provider remembers the key of a receipt, as a worker believes.
const RECEIPTS_REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// What the provider is, and what the program believes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    Taken,
    NotTaken,
}

/// A database, a provider and a director of one test.
pub(crate) struct World {
    pub(crate) database: String,
    pub(crate) provider: PaymentProvider,
    pub(crate) director: Director,
    keys: Keys,
    /// What programs are started with beside the usual.
    pub(crate) settings: Vec<(&'static str, String)>,
    client: tokio_postgres::Client,
}

fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(&[("max_connections", "400")]))
}

impl World {
    pub(crate) async fn open(keys: Keys) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let database = format!("rides_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        cluster().sql("postgres", &format!("CREATE DATABASE {database}"));
        let url = cluster().url(&database);
        migrate(&url.parse().unwrap()).await.unwrap();
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(CLOCK).await.unwrap();
        let settings = Settings { takes_keys: keys == Keys::Taken, remembers_ms: None };
        let address = "127.0.0.1:0".parse().unwrap();
        let provider = PaymentProvider::start(address, settings).await.unwrap();
        let director = Director::start().await;
        Self { database, provider, director, keys, settings: Vec::new(), client }
    }

    pub(crate) fn url(&self) -> String {
        cluster().url(&self.database)
    }

    /// Starts a program, whose connections to the database go over a wire of its own.
    pub(crate) async fn start(&self, language: Language) -> (Program, Wire) {
        let wire = Wire::to(cluster().port).await;
        let mut environment = self.environment();
        let url = format!("postgres://postgres@{}/{}?sslmode=disable", wire.address, self.database);
        environment.push(("DATABASE_URL", url));
        environment.push(("BREAK_POINTS", self.director.address.to_string()));
        (Program::start(language, &environment).await, wire)
    }

    /// Starts a program without a wire and without break points.
    pub(crate) async fn start_bare(&self, language: Language) -> Program {
        let mut environment = self.environment();
        environment.push(("DATABASE_URL", format!("{}?sslmode=disable", self.url())));
        Program::start(language, &environment).await
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let provider = format!("http://{}", self.provider.address());
        let mut environment = vec![("PROVIDER", provider)];
        if self.keys == Keys::NotTaken {
            environment.push(("PROVIDER_REMEMBERS_MS", "0".to_owned()));
        }
        environment.extend(self.settings.clone());
        environment
    }

    /// Turns the clock of the database on.
    pub(crate) async fn later(&self, by: Duration) {
        let turn = format!("UPDATE retrysafe_test.clock SET added = added + {}", by.as_millis());
        self.client.batch_execute(&turn).await.unwrap();
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let row = self.client.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// How the server would carry a statement out if it must use an index.
    pub(crate) async fn plan(&self, sql: &str) -> String {
        let explain = format!("BEGIN; SET LOCAL enable_seqscan = off; EXPLAIN {sql}; ROLLBACK");
        let told = self.client.simple_query(&explain).await.unwrap();
        let lines = told.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Delivers the receipts that were staged, by a worker in this process: one for each ride that is finished.
    pub(crate) async fn deliver_receipts(&self) {
        let receiver = match self.keys {
            Keys::Taken => Receiver::remembers_keys_for(RECEIPTS_REMEMBERED),
            Keys::NotTaken => Receiver::takes_no_key(),
        };
        let pool = sqlx::PgPool::connect(&self.url()).await.unwrap();
        let client = reqwest::Client::new();
        let working = Worker::new(pool.clone())
            .deliver("receipt", receiver, move |delivery| mail(client.clone(), delivery))
            .start();
        // Patience is for a worker that stands still: how long tens of thousands of receipts take is the machine's affair.
        let mut fewest = i64::MAX;
        let mut since = Instant::now();
        loop {
            let left = self.number("SELECT count(*) FROM retrysafe.effect").await;
            if left == 0 {
                break;
            }
            if left < fewest {
                fewest = left;
                since = Instant::now();
            }
            assert!(since.elapsed() < PATIENCE, "{left} receipts are left, and none is delivered");
            tokio::time::sleep(PACE).await;
        }
        assert!(working.stop(PATIENCE).await);
        pool.close().await;
        let totals = self.provider.totals();
        let finished = self.number("SELECT count(*) FROM ride WHERE charge IS NOT NULL").await;
        assert_eq!((totals.receipts, &totals.receipted_twice[..]), (finished as u64, &[][..]));
    }

    /// What is visible of a ride. The rows of a phase must be there all or none.
    pub(crate) async fn visible(&self, ride: &str) -> Visible {
        let count = |what: &str| format!("(SELECT count(*) FROM {what} booking = '{ride}')");
        let counts = [
            count("ride WHERE"),
            count("ride_event e JOIN ride r ON r.id = e.ride WHERE"),
            count(&format!("({STAGED}) c WHERE")),
            count("ride WHERE charge IS NOT NULL AND"),
        ];
        // One statement sees one moment; three digits for each count.
        let sql = format!(
            "SELECT {} + 1000 * {} + 1000000 * {} + 1000000000 * {}",
            counts[0], counts[1], counts[2], counts[3]
        );
        let all = self.number(&sql).await;
        let rides = all % 1_000;
        assert_eq!(rides, all / 1_000 % 1_000, "{ride}: half a phase is visible");
        let receipts = all / 1_000_000 % 1_000;
        assert_eq!(receipts, all / 1_000_000_000, "{ride}: half a phase is visible");
        Visible { rides, charges: self.provider.ride(ride).charges, receipts }
    }
}

/// Mails a receipt once, with the key of its effect.
async fn mail(client: reqwest::Client, delivery: Delivery) -> Result<DeliveryEnd, DeliveryError> {
    let asked = client.post(delivery.destination().ok_or("a receipt has a destination")?);
    let asked = asked.header("idempotency-key", delivery.key());
    let told = asked.body(delivery.payload().clone()).send().await?.error_for_status()?;
    Ok(DeliveryEnd::Delivered(Delivered::known_as(told.status().to_string())))
}
