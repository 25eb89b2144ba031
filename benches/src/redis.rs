//! How fast is the Redis store, next to its bare scripts; and what does a copy in Redis save PostgreSQL?
//!
//! `bench redis [part]`: `rate` is begin + settle, `replay` is replays of the tiered store against PostgreSQL alone, `memory`
//! is what a million records take. All of them, one after the other, unless one is named.
//!
//! The bare scripts are the store's own two, with the same arguments, through the same driver over one connection, with as
//! many round trips: what is left out is everything that this project adds around them. The naive filter is what many
//! publish: `SET key NX EX`, then `SET key answer EX`, without fences, fingerprints or indexes. All run on one private
//! server, in alternating rounds.

#[allow(dead_code, reason = "the store's own tests use the rest of it")]
#[path = "../../crates/retrysafe/tests/postgres/kit/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "the store's own tests use the rest of it")]
#[path = "../../crates/retrysafe/tests/redis/kit/server.rs"]
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster::Cluster;
use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Value};
use retrysafe::core::engine::{Ask, Begun, Engine};
use retrysafe::core::fingerprint::{Fingerprint, RulesId};
use retrysafe::core::record::{About, Answer, Outcome};
use retrysafe::core::response::StoredResponse;
use retrysafe::core::{Id, Key, Scope, Store};
use retrysafe::stores::postgres::PostgresStore;
use retrysafe::stores::redis::{RedisStore, RedisUrl, Trust};
use retrysafe::stores::tiered::{TieredStore, TieredUrl};
use server::{Server, field};

const PARTS: [&str; 3] = ["rate", "replay", "memory"];
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(2);
/// The body of a typical answer.
const BODY: usize = 300;
const DAY_MS: u64 = 86_400_000;

pub fn run() {
    let part = std::env::args().nth(2);
    if let Some(other) = part.as_deref().filter(|part| !PARTS.contains(part)) {
        return eprintln!("no such part: {other} ({})", PARTS.join(", "));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(measure(part.as_deref()));
}

async fn measure(part: Option<&str>) {
    let wanted = |name| part.is_none_or(|part| part == name);
    if wanted("rate") {
        rate().await;
    }
    if wanted("replay") {
        replay().await;
    }
    if wanted("memory") {
        memory().await;
    }
}

async fn redis_store(server: &Server) -> Arc<Engine<RedisStore>> {
    let url: RedisUrl = server.url().parse().expect("a URL");
    RedisStore::init(&url, Trust::AtOnce).await.expect("it is initialised");
    Arc::new(Engine::new(RedisStore::open(&url).await.expect("the store opens")))
}

/// Begin + settle, against the bare scripts and against the naive filter.
async fn rate() {
    for appendfsync in ["everysec", "always"] {
        let server = Server::start(&[("appendonly", "yes"), ("appendfsync", appendfsync)]);
        let engine = redis_store(&server).await;
        let bare = Arc::new(Bare::open(&server).await);
        println!("\nredis store, begin + settle, {BODY}-byte answer, appendfsync {appendfsync}, {ROUNDS} interleaved rounds");
        println!("| tasks | way | ops/s | of the bare scripts (range) | p50 / p99 ms | CPU µs/op: server, client |");
        println!("| ---: | --- | ---: | ---: | ---: | ---: |");
        for tasks in [64, 256] {
            let mut figures: [Vec<Figures>; 3] = Default::default();
            for round in 0..=ROUNDS {
                for turn in 0..3 {
                    let way = (round + turn) % 3;
                    let measured = match way {
                        0 => {
                            let bare = Arc::clone(&bare);
                            let work = move |n| {
                                let bare = Arc::clone(&bare);
                                async move { bare.first(n).await }
                            };
                            load(&server, tasks, work).await
                        }
                        1 => {
                            let engine = Arc::clone(&engine);
                            let work = move |n| {
                                let engine = Arc::clone(&engine);
                                async move { first(&engine, n).await }
                            };
                            load(&server, tasks, work).await
                        }
                        _ => {
                            let bare = Arc::clone(&bare);
                            let work = move |n| {
                                let bare = Arc::clone(&bare);
                                async move { bare.naive(n).await }
                            };
                            load(&server, tasks, work).await
                        }
                    };
                    // The first round warms all of them up.
                    if round > 0 {
                        figures[way].push(measured);
                    }
                }
            }
            for (way, name) in ["bare scripts", "ours", "SET NX EX + SET"].iter().enumerate() {
                print_row(&format!("| {tasks} | {name}"), &figures[way], &figures[0]);
            }
        }
    }
}

/// Replays of the tiered store, against the database alone.
async fn replay() {
    const KEYS: u64 = 5_000;
    let redis = Server::start(&[]);
    let cluster = Cluster::start(&[("shared_buffers", "512MB"), ("max_wal_size", "4GB")]);
    let url = cluster.url("postgres");
    let plain = Arc::new(Engine::new(PostgresStore::connect(&url).await.expect("the store opens")));
    let tiered = TieredUrl { decide: url.parse().expect("a URL"), answer: redis.url().parse().expect("a URL") };
    let tiered = Arc::new(Engine::new(TieredStore::open(&tiered).await.expect("the store opens")));
    let base = KEY.fetch_add(KEYS, Ordering::Relaxed);
    for n in 0..KEYS {
        first(&tiered, base + n).await;
    }
    // Asked for until every copy is there: they are written behind the answers.
    while copies(&redis) < KEYS {
        for n in 0..KEYS {
            replayed(&tiered, base + n).await;
        }
    }
    println!("\nreplays of {KEYS} keys, {BODY}-byte answer, {ROUNDS} interleaved rounds");
    println!("| tasks | way | replays/s | of PostgreSQL alone (range) | p50 / p99 ms | CPU µs/op: servers, client |");
    println!("| ---: | --- | ---: | ---: | ---: | ---: |");
    for tasks in [64, 256] {
        let mut figures: [Vec<Figures>; 2] = Default::default();
        for round in 0..=ROUNDS {
            for turn in 0..2 {
                let way = (round + turn) % 2;
                let measured = if way == 0 {
                    let engine = Arc::clone(&plain);
                    let work = move |n| {
                        let engine = Arc::clone(&engine);
                        async move { replayed(&engine, base + n % KEYS).await }
                    };
                    load(&(&redis, &cluster), tasks, work).await
                } else {
                    let engine = Arc::clone(&tiered);
                    let work = move |n| {
                        let engine = Arc::clone(&engine);
                        async move { replayed(&engine, base + n % KEYS).await }
                    };
                    load(&(&redis, &cluster), tasks, work).await
                };
                if round > 0 {
                    figures[way].push(measured);
                }
            }
        }
        for (way, name) in ["PostgreSQL alone", "tiered"].iter().enumerate() {
            print_row(&format!("| {tasks} | {name}"), &figures[way], &figures[0]);
        }
    }
}

fn copies(redis: &Server) -> u64 {
    redis.cli(&["DBSIZE"]).trim_start_matches("(integer) ").parse().expect("a number")
}

/// What a million records take in the server's memory.
async fn memory() {
    const RECORDS: u64 = 1_000_000;
    let server = Server::start(&[]);
    let engine = redis_store(&server).await;
    let used = || field(&server.cli(&["INFO", "memory"]), "used_memory").parse::<f64>().expect("a number");
    let before = used();
    let base = KEY.fetch_add(RECORDS, Ordering::Relaxed);
    let next = Arc::new(AtomicU64::new(base));
    let tasks: Vec<_> = (0..256)
        .map(|_| {
            let (engine, next) = (Arc::clone(&engine), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= base + RECORDS {
                        return;
                    }
                    first(&engine, n).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task ends");
    }
    let per_record = (used() - before) / RECORDS as f64;
    println!("\nmemory of the server per million settled records, {BODY}-byte answer: {per_record:.0} MB ({per_record:.0} bytes each)");
}

fn print_row(name: &str, figures: &[Figures], baseline: &[Figures]) {
    let mut ratios: Vec<f64> = figures.iter().zip(baseline).map(|(ours, base)| ours.rate / base.rate).collect();
    ratios.sort_by(f64::total_cmp);
    let of = |get: fn(&Figures) -> f64| median(figures.iter().map(get).collect());
    println!(
        "{name} | {:.0} | {:.2} ({:.2} – {:.2}) | {:.1} / {:.1} | {:.1}, {:.1} |",
        of(|f| f.rate), ratios[ratios.len() / 2], ratios[0], ratios[ratios.len() - 1],
        of(|f| f.p50), of(|f| f.p99), of(|f| f.server_us), of(|f| f.client_us),
    );
}

static KEY: AtomicU64 = AtomicU64::new(0);

struct Figures {
    rate: f64,
    p50: f64,
    p99: f64,
    server_us: f64,
    client_us: f64,
}

/// Whose processor time counts as the server's.
trait Processes {
    fn pids(&self) -> Vec<String>;
}

impl Processes for Server {
    fn pids(&self) -> Vec<String> {
        vec![field(&self.cli(&["INFO", "server"]), "process_id")]
    }
}

impl Processes for (&Server, &Cluster) {
    fn pids(&self) -> Vec<String> {
        let backends = self.1.sql("postgres", "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()");
        backends.lines().map(str::to_owned).chain(self.0.pids()).collect()
    }
}

/// Processor time of a process so far.
fn cpu_seconds(pid: &str) -> f64 {
    /// Of a second, in `/proc`.
    const TICKS: f64 = 100.0;
    // One that has just ended counts for nothing.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse().unwrap_or(0.0)).sum::<f64>() / TICKS
}

/// Runs `work` on so many tasks for a round, with a new number each time.
async fn load<F>(servers: &impl Processes, tasks: usize, work: impl Fn(u64) -> F + Clone + Send + 'static) -> Figures
where
    F: Future<Output = ()> + Send + 'static,
{
    let pids = servers.pids();
    let of_servers = || pids.iter().map(|pid| cpu_seconds(pid)).sum::<f64>();
    let (server_before, client_before, begun) = (of_servers(), cpu_seconds("self"), Instant::now());
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let work = work.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while begun.elapsed() < ROUND {
                    let started = Instant::now();
                    work(KEY.fetch_add(1, Ordering::Relaxed)).await;
                    times.push(started.elapsed().as_secs_f64() * 1e3);
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("a task ends"));
    }
    let (elapsed, count) = (begun.elapsed().as_secs_f64(), times.len() as f64);
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Figures {
        rate: count / elapsed,
        p50: at(0.5),
        p99: at(0.99),
        server_us: (of_servers() - server_before) * 1e6 / count,
        client_us: (cpu_seconds("self") - client_before) * 1e6 / count,
    }
}

async fn begin<S: Store>(engine: &Engine<S>, n: u64) -> Begun {
    let print = Fingerprint::from_parts(1, RulesId::from_bytes([1; 8]), [2; 32]);
    let about = About { method: "POST".into(), route: "/payments".into(), path: "/payments".into() };
    let scope = Scope::of([("tenant", &b"acme"[..])]);
    let ask = Ask {
        scope: &scope,
        mark: None,
        key: Key::new(&format!("key-{n}")).expect("a key").digest(),
        prints: &print,
        about: &about,
        ttl: Duration::from_millis(DAY_MS),
        lease: Duration::from_secs(60),
        owner: n,
        request_id: None,
    };
    engine.begin(&ask).await.expect("the store answers")
}

async fn first<S: Store>(engine: &Engine<S>, n: u64) {
    let Begun::Execute(lease) = begin(engine, n).await else { panic!("a first request") };
    let outcome = Outcome::Completed(Answer::Kept(StoredResponse {
        status: http::StatusCode::CREATED,
        headers: vec![(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"))],
        body: body(n).into(),
    }));
    engine.settle(lease, &outcome).await.expect("it settles");
}

async fn replayed<S: Store>(engine: &Engine<S>, n: u64) {
    let Begun::Replay(..) = begin(engine, n).await else { panic!("a replay") };
}

fn body(n: u64) -> String {
    format!("{{\"id\":\"{n}\",\"filler\":\"{}\"}}", "x".repeat(BODY - 30))
}

/// The driver, and the digests of the store's own scripts.
struct Bare {
    connection: MultiplexedConnection,
    insert: String,
    swap: String,
    identity: String,
    /// How long the bytes of a record are when it begins, and when it is settled.
    lengths: (usize, usize),
}

impl Bare {
    async fn open(server: &Server) -> Self {
        let client = ::redis::Client::open(server.url()).expect("a URL");
        let mut connection = client.get_multiplexed_async_connection().await.expect("the server is there");
        let mut digests = Vec::new();
        for script in [
            concat!(include_str!("../../crates/retrysafe/src/stores/redis/lua/shared.lua"), include_str!("../../crates/retrysafe/src/stores/redis/lua/insert.lua")),
            concat!(include_str!("../../crates/retrysafe/src/stores/redis/lua/shared.lua"), include_str!("../../crates/retrysafe/src/stores/redis/lua/swap.lua")),
        ] {
            let digest: String = ::redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut connection).await.expect("a digest");
            digests.push(digest);
        }
        let swap = digests.pop().expect("two");
        let insert = digests.pop().expect("two");
        // Where the store has initialised its buckets, the bare scripts find their own under another prefix.
        let told = server.cli(&["HGET", "retrysafe:{00}:meta", "identity"]);
        for bucket in 0..256 {
            let mut set: Cmd = ::redis::cmd("HSET");
            set.arg(format!("bare:{{{bucket:02x}}}:meta")).arg("identity").arg(&told);
            set.arg("held_until").arg(0).arg("version").arg(1);
            let _: i64 = set.query_async(&mut connection).await.expect("it is initialised");
        }
        let lengths = Self::lengths(server).await;
        Self { connection, insert, swap, identity: told, lengths }
    }

    /// How many bytes the store itself sends for the same request and the same answer.
    async fn lengths(server: &Server) -> (usize, usize) {
        const HEAD: usize = 43;
        let engine = redis_store(server).await;
        let n = KEY.fetch_add(1, Ordering::Relaxed);
        let id = {
            let Begun::Execute(lease) = begin(&engine, n).await else { panic!("a first request") };
            lease.id()
        };
        let key = |id: &Id| format!("retrysafe:{{{}}}:r:{id}", &id.to_string()[..2]);
        let length = |id: &Id| server.cli(&["STRLEN", &key(id)]).trim_start_matches("(integer) ").parse::<usize>().expect("a number") - HEAD;
        let begun = length(&id);
        let n = KEY.fetch_add(1, Ordering::Relaxed);
        first(&engine, n).await;
        let scope = Scope::of([("tenant", &b"acme"[..])]);
        let settled = Id::of(&scope, &Key::new(&format!("key-{n}")).expect("a key").digest());
        (begun, length(&settled))
    }

    async fn ask(&self, command: &Cmd) -> Vec<Value> {
        command.query_async(&mut self.connection.clone()).await.expect("the server answers")
    }

    /// The two scripts, with the store's own arguments.
    async fn first(&self, n: u64) {
        // A name that is spread over the buckets as a digest is.
        let mut id = [0; 32];
        for (at, part) in id.chunks_mut(8).enumerate() {
            part.copy_from_slice(&(n + at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
        }
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = |what: &str| format!("bare:{{{}}}:{what}", &hex[..2]);
        let (record, meta) = (format!("bare:{{{}}}:r:{hex}", &hex[..2]), key("meta"));
        let [leases, unknown, expiries] = ["leases", "unknown", "expiries"].map(key);
        let mut insert = ::redis::cmd("EVALSHA");
        insert.arg(&self.insert).arg(5).arg(&record).arg(&meta).arg(key("all")).arg(&leases).arg(&expiries);
        insert.arg("").arg(&id).arg(vec![7_u8; self.lengths.0]).arg(60_000).arg(&self.identity).arg(0).arg(600_000);
        let told = self.ask(&insert).await;
        let Some(Value::Int(version)) = told.get(2) else { panic!("{told:?}") };
        let mut swap = ::redis::cmd("EVALSHA");
        swap.arg(&self.swap).arg(5).arg(&record).arg(&meta).arg(&leases).arg(&unknown).arg(&expiries);
        swap.arg("").arg(&id).arg(vec![7_u8; self.lengths.1]).arg(*version).arg("E").arg(DAY_MS).arg(1_u64 << 52);
        swap.arg(DAY_MS).arg(0).arg(&self.identity).arg(0).arg(600_000);
        let told = self.ask(&swap).await;
        assert!(matches!(told.first(), Some(Value::BulkString(word)) if word == b"done"), "{told:?}");
    }

    /// What a filter does that reserves a key and then overwrites it with the answer.
    async fn naive(&self, n: u64) {
        let key = format!("naive:acme:key-{n}");
        let mut reserve = ::redis::cmd("SET");
        reserve.arg(&key).arg("processing").arg("NX").arg("EX").arg(60);
        let _: () = reserve.query_async(&mut self.connection.clone()).await.expect("it is new");
        let mut keep = ::redis::cmd("SET");
        keep.arg(&key).arg(format!("201 {}", body(n))).arg("EX").arg(DAY_MS / 1_000);
        let _: () = keep.query_async(&mut self.connection.clone()).await.expect("it is kept");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
