//! What does a flow cost, next to the same statements written by hand?
//!
//! Three phases: a ride is inserted, a provider on this machine is called, a receipt is inserted and the flow answers. By
//! hand these are two transactions with a call in between, and nothing protects them. Both run in one private cluster,
//! over the same driver, in alternating rounds.
//!
//! Then the round trips of each are counted by a proxy between client and server. A round trip is a turn of the
//! conversation: the client sends after the server has spoken. What a connection costs to open, and a statement to be
//! prepared for the first time, is over before the count begins.

#[allow(dead_code, reason = "the store's own tests use the rest of it")]
#[path = "../../crates/retrysafe/tests/postgres/kit/cluster.rs"]
mod cluster;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::Cluster;
use http::Response;
use retrysafe::core::{Key, Scope};
use retrysafe::phases::{CallEnd, Flow, FlowEnd, Flows, Next, PhaseError, Provider};
use retrysafe::stores::postgres::PostgresStore;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(2);
const POOL: u32 = 16;
/// How many flows are counted, one after the other.
const COUNTED: u64 = 200;

const TABLES: &str = "CREATE TABLE ride (id bigserial PRIMARY KEY, key text NOT NULL);
    CREATE TABLE receipt (ride bigint NOT NULL, charge bigint NOT NULL)";

pub fn run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(measure());
}

async fn measure() {
    let cluster = Cluster::start(&[("shared_buffers", "512MB"), ("max_wal_size", "4GB")]);
    let url = cluster.url("postgres");
    let provider = provider().await;
    let store = PostgresStore::connect(&url).await.expect("the store opens");
    let pool = PgPoolOptions::new().max_connections(POOL).connect(&url).await.expect("a pool");
    sqlx::raw_sql(TABLES).execute(&pool).await.expect("tables");
    let direct = Arc::new(Rides::new(pool, store, provider));
    rates(&direct).await;
    round_trips(&url, provider).await;
}

async fn rates(rides: &Arc<Rides>) {
    println!("a flow of three phases, against the same statements by hand without protection");
    println!("| tasks | by hand flows/s | ours flows/s | ratio | range         |");
    for tasks in [1, 16] {
        let (mut theirs, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (by_hand, own) = if round % 2 == 0 {
                let by_hand = rate(rides, tasks, Way::ByHand).await;
                (by_hand, rate(rides, tasks, Way::Flow).await)
            } else {
                let own = rate(rides, tasks, Way::Flow).await;
                (rate(rides, tasks, Way::ByHand).await, own)
            };
            // The first round warms both up.
            if round > 0 {
                ratios.push(own / by_hand);
                theirs.push(by_hand);
                ours.push(own);
            }
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "| {tasks:>5} | {:>15.0} | {:>12.0} | {:>5.2} | {:>5.2} – {:<5.2} |",
            median(theirs),
            median(ours),
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1],
        );
    }
}

async fn round_trips(url: &str, provider: SocketAddr) {
    let (base, name) = url.rsplit_once('/').expect("a database");
    let port = base.rsplit_once(':').expect("a port").1.parse().expect("a number");
    let proxy = CountingProxy::to(port).await;
    let through = format!("postgres://postgres@{}/{name}?sslmode=disable", proxy.address);
    let store = PostgresStore::connect(&through).await.expect("the store opens");
    let pool = PgPoolOptions::new().max_connections(1).connect(&through).await.expect("a pool");
    let rides = Rides::new(pool, store, provider);
    println!("round trips per flow, over {COUNTED} flows one after the other");
    println!("| by hand | ours  |");
    let mut counted = Vec::new();
    for way in [Way::ByHand, Way::Flow] {
        for _ in 0..20 {
            rides.once(way).await;
        }
        let before = proxy.turns();
        for _ in 0..COUNTED {
            rides.once(way).await;
        }
        counted.push((proxy.turns() - before) as f64 / COUNTED as f64);
    }
    println!("| {:>7.2} | {:>5.2} |", counted[0], counted[1]);
}

#[derive(Clone, Copy)]
enum Way {
    ByHand,
    Flow,
}

/// Flows per second, by so many tasks.
async fn rate(rides: &Arc<Rides>, tasks: usize, way: Way) -> f64 {
    let begun = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let rides = Arc::clone(rides);
            tokio::spawn(async move {
                let mut count = 0u64;
                while begun.elapsed() < ROUND {
                    rides.once(way).await;
                    count += 1;
                }
                count
            })
        })
        .collect();
    let mut count = 0;
    for task in running {
        count += task.await.expect("it ends");
    }
    count as f64 / begun.elapsed().as_secs_f64()
}

struct Rides {
    pool: PgPool,
    provider: SocketAddr,
    flow: Flow<String>,
    flows: Flows,
}

impl Rides {
    fn new(pool: PgPool, store: PostgresStore, provider: SocketAddr) -> Self {
        let day = Provider::remembers_keys_for(Duration::from_secs(24 * 60 * 60));
        let flow = Flow::named("create_ride", 1)
            .tx("ride_created", async |mut tx, key: String, ()| {
                let insert = sqlx::query_scalar("INSERT INTO ride (key) VALUES ($1) RETURNING id");
                let ride: i64 = insert.bind(key).fetch_one(&mut *tx).await?;
                Ok(Next::Done(ride))
            })
            .call(
                "charge_created",
                day,
                |_, (ride,)| Ok(ride),
                async move |call, ride| match charge(provider, call.key(), ride).await {
                    Ok(charge) => Ok(CallEnd::Done(charge)),
                    Err(error) => Ok(CallEnd::Unknown(error.into())),
                },
            )
            .respond("receipt_written", async |mut tx, _, (ride, charge)| {
                let insert = sqlx::query("INSERT INTO receipt (ride, charge) VALUES ($1, $2)");
                insert.bind(ride).bind(charge).execute(&mut *tx).await?;
                Ok(Response::builder().status(201).body(Bytes::from(format!("ride {ride}")))?)
            })
            .expect("a flow");
        let flows = Flows::new(pool.clone(), store).with(&flow);
        Self { pool, provider, flow, flows }
    }

    async fn once(&self, way: Way) {
        static KEY: AtomicU64 = AtomicU64::new(0);
        let key = format!("ride-{}", KEY.fetch_add(1, Ordering::Relaxed));
        match way {
            Way::ByHand => self.by_hand(key).await.expect("a ride"),
            Way::Flow => self.by_flow(key).await,
        }
    }

    async fn by_hand(&self, key: String) -> Result<(), PhaseError> {
        let mut tx = self.pool.begin().await?;
        let insert = sqlx::query_scalar("INSERT INTO ride (key) VALUES ($1) RETURNING id");
        let ride: i64 = insert.bind(&key).fetch_one(&mut *tx).await?;
        tx.commit().await?;
        let charge = charge(self.provider, &key, ride).await?;
        let mut tx = self.pool.begin().await?;
        let insert = sqlx::query("INSERT INTO receipt (ride, charge) VALUES ($1, $2)");
        insert.bind(ride).bind(charge).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn by_flow(&self, input: String) {
        let print = self.flow.fingerprint(&input).expect("a fingerprint");
        let key = Key::new(&input).expect("a key");
        let scope = Scope::of([("tenant", &b"rides"[..])]);
        let ended = self.flows.run(&self.flow, &scope, &key, print, &input).await;
        assert!(matches!(ended, Ok(FlowEnd::Answered(_))), "{ended:?}");
    }
}

/// Calls the provider: a key and a ride go there, the number of a charge comes back.
async fn charge(provider: SocketAddr, key: &str, ride: i64) -> std::io::Result<i64> {
    let mut connection = TcpStream::connect(provider).await?;
    connection.write_all(format!("{key} {ride}\n").as_bytes()).await?;
    connection.read_i64().await
}

async fn provider() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut charges = 0;
        while let Ok((mut caller, _)) = listener.accept().await {
            charges += 1;
            tokio::spawn(async move {
                let mut asked = [0; 256];
                if caller.read(&mut asked).await.is_ok() {
                    let _ = caller.write_i64(charges).await;
                }
            });
        }
    });
    address
}

/// Counts the turns of conversations with a server.
struct CountingProxy {
    address: SocketAddr,
    turns: Arc<AtomicU64>,
}

impl CountingProxy {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let turns = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&turns);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.expect("the server");
                tokio::spawn(relay(client, server, Arc::clone(&counted)));
            }
        });
        Self { address, turns }
    }

    fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }
}

async fn relay(mut client: TcpStream, mut server: TcpStream, turns: Arc<AtomicU64>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut server_has_spoken = true;
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                if std::mem::take(&mut server_has_spoken) {
                    turns.fetch_add(1, Ordering::SeqCst);
                }
                if server.write_all(&up[..count]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                server_has_spoken = true;
                if client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
