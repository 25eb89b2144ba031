//! What does a worker meet: which database, which providers, which clock?

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use payment_provider::{Mode, PaymentProvider, Settings};
use retrysafe::stores::postgres::migrate;
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::points::{Ended, MEMORIES, Memory};
use crate::process::{PACE, PATIENCE, WorkerProcess};
use crate::wire::{Gate, Wire};

/// The kinds that the worker knows.
pub(crate) const KINDS: [&str; 3] = ["receipt", "message", "push"];

/// For how long the provider of a short memory remembers: as long as the worker is told.
pub(crate) const SHORT_MEMORY: Duration = Duration::from_secs(25);

/// After the end of every lease.
pub(crate) const PAST_LEASES: Duration = Duration::from_secs(16);

/// A clock that a test can turn on: what it adds to the server's.
const CLOCK: &str = "CREATE SCHEMA retrysafe_test;
CREATE TABLE retrysafe_test.clock (added bigint NOT NULL);
INSERT INTO retrysafe_test.clock VALUES (0);
CREATE OR REPLACE FUNCTION retrysafe.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + c.added
    FROM retrysafe_test.clock c
$$;";

/// A server, and a provider for each kind.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    providers: Vec<PaymentProvider>,
}

/// A database with an outbox.
pub(crate) struct Database {
    pub(crate) world: Arc<World>,
    name: String,
    client: tokio_postgres::Client,
}

impl World {
    pub(crate) async fn open() -> Arc<Self> {
        let cluster = Cluster::start(&[("max_connections", "400"), ("fsync", "off")]);
        cluster.sql("postgres", "CREATE DATABASE template");
        let template = cluster.url("template");
        migrate(&template.parse().unwrap()).await.unwrap();
        cluster.sql("template", CLOCK);
        let mut providers = Vec::new();
        for memory in MEMORIES {
            let remembers_ms =
                (memory == Memory::Short).then(|| u64::try_from(SHORT_MEMORY.as_millis()).unwrap());
            let settings = Settings { takes_keys: memory != Memory::TakesNoKey, remembers_ms };
            let address = "127.0.0.1:0".parse().unwrap();
            providers.push(PaymentProvider::start(address, settings).await.unwrap());
        }
        Arc::new(Self { cluster, providers })
    }

    /// Whoever receives effects of this kind.
    pub(crate) fn provider(&self, kind: &str) -> &PaymentProvider {
        &self.providers[KINDS.iter().position(|known| *known == kind).unwrap()]
    }

    /// A new database, a copy of the template.
    pub(crate) async fn database(self: &Arc<Self>) -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("effects_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.cluster.sql("postgres", &format!("CREATE DATABASE {name} TEMPLATE template"));
        let client = client(&self.cluster.url(&name)).await;
        Database { world: Arc::clone(self), name, client }
    }
}

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Database {
    /// After a restart of the server the old connection is gone.
    pub(crate) async fn connect_again(&mut self) {
        self.client = client(&self.url()).await;
    }

    /// A connection of an application's own.
    pub(crate) async fn another_client(&self) -> tokio_postgres::Client {
        client(&self.url()).await
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn url(&self) -> String {
        format!("{}?sslmode=disable", self.world.cluster.url(&self.name))
    }

    /// Starts a worker whose connections to the database go over a wire of its own.
    pub(crate) async fn start(&self, gate: Option<Gate>) -> (WorkerProcess, Wire) {
        let wire = Wire::to(self.world.cluster.port, gate).await;
        let url = format!("postgres://postgres@{}/{}?sslmode=disable", wire.address, self.name);
        (WorkerProcess::start(&url), wire)
    }

    /// Starts a worker directly on the server.
    pub(crate) fn start_bare(&self) -> WorkerProcess {
        WorkerProcess::start(&self.url())
    }

    /// Stages an effect under a name of its provider's, in a lane if there is one.
    pub(crate) async fn stage(&self, kind: &str, ride: &str, lane: Option<&str>) -> i64 {
        let to = format!("http://{}/charges", self.world.provider(kind).address());
        let body = format!("{{\"ride\": \"{ride}\", \"cents\": 1}}");
        let stage = "SELECT id FROM retrysafe.stage_v1($1, $2, 'application/json', $3, NULL, $4, NULL, NULL)";
        let row = self.client.query_one(stage, &[&kind, &to, &body.as_bytes(), &lane]).await;
        row.unwrap().get(0)
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

    /// Waits until this count is so large.
    pub(crate) async fn until(&self, sql: &str, wanted: i64) {
        let waiting = async {
            while self.number(sql).await != wanted {
                tokio::time::sleep(PACE).await;
            }
        };
        if timeout(PATIENCE, waiting).await.is_err() {
            let all = "SELECT concat_ws(' ', kind, state, fence, marked_by, failures, crashes, lane, last_error)
                FROM retrysafe.effect";
            let all = self.world.cluster.sql(&self.name, all);
            panic!("not {wanted}: {sql}; there are:\n{all}");
        }
    }

    /// Waits until no worker has anything to do: everything is delivered, unknown or dead.
    pub(crate) async fn until_decided(&self) {
        self.until("SELECT count(*) FROM retrysafe.effect WHERE state IN (0, 1, 2)", 0).await;
    }

    /// How many effects were done before one that was staged into their lane before them. The provider numbers what it
    /// does.
    pub(crate) async fn overtaken(&self) -> i64 {
        self.number(
            "SELECT count(*) FROM (
                SELECT done, lag(done) OVER (PARTITION BY lane ORDER BY id) AS done_before
                FROM (SELECT id, lane, substring(reference FROM 4)::bigint AS done
                    FROM retrysafe.effect_done WHERE lane IS NOT NULL) d
            ) o WHERE done <= done_before",
        )
        .await
    }

    /// How the effect of a kind ended, of which there is one.
    pub(crate) async fn ended(&self, kind: &str, ride: &str) -> Ended {
        let states = format!(
            "SELECT array_agg(state) FROM (SELECT state FROM retrysafe.effect WHERE kind = '{kind}'
            UNION ALL SELECT state FROM retrysafe.effect_done WHERE kind = '{kind}') s"
        );
        let states: Vec<i16> = self.client.query_one(&states, &[]).await.unwrap().get(0);
        let seen = self.world.provider(kind).ride(ride);
        assert!(seen.keys.len() <= 1, "{kind} {ride}: {:?}", seen.keys);
        let effects = seen.charges;
        match states[..] {
            [3] => Ended::Unknown { effects },
            [4] => Ended::Dead { effects },
            [5] => Ended::Delivered { effects },
            _ => panic!("{kind} {ride}: one effect was staged, and is in states {states:?}"),
        }
    }

    pub(crate) fn set_mode(&self, ride: &str, mode: Mode) {
        for kind in KINDS {
            self.world.provider(kind).set_mode(ride, mode.once());
        }
    }
}
