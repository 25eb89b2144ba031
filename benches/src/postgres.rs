//! How fast is the PostgreSQL store, next to pooled single statements on the same server?
//!
//! `bench postgres [part]`: `rate` is begin + settle against the baseline, `replay` is replay reads, `wal` is bytes of the
//! log per operation, `growth` is what an operation costs up to five million records, `reap` is the latency of begin while the reaper works.
//! All of them, one after the other, unless one is named; `reap` alone has little to reap.
//!
//! The baseline is what one would write by hand: one table, one prepared statement to reserve and one to
//! complete, sixteen pooled connections. It keeps no audit, no partitions and no checksums. Both run in
//! one private cluster, in alternating rounds.

#[allow(dead_code, reason = "the store's own tests use the rest of it")]
#[path = "../../crates/retrysafe/tests/postgres/kit/cluster.rs"]
mod cluster;
#[path = "log_files.rs"]
mod log_files;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster::Cluster;
use retrysafe::core::engine::{Ask, Begun, Engine};
use retrysafe::core::fingerprint::{Fingerprint, RulesId};
use retrysafe::core::record::{About, Answer, Outcome, Standing};
use retrysafe::core::response::StoredResponse;
use retrysafe::core::store::{Filter, Query};
use retrysafe::core::{Key, Scope, Store as _};
use retrysafe::stores::postgres::PostgresStore;
use tokio::sync::{Mutex, Semaphore};
use tokio_postgres::{Client, NoTls, Statement};

const PARTS: [&str; 5] = ["rate", "replay", "wal", "growth", "reap"];
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(3);
/// A table that has just grown is measured for longer: checkpoints and vacuum have their part in it.
const GROWTH_ROUND: Duration = Duration::from_secs(10);
const POOL: usize = 16;
/// The body of a typical answer.
const BODY: usize = 300;

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
    let cluster = Cluster::start(&[&[("shared_buffers", "512MB")], &log_files::SETTINGS[..]].concat());
    log_files::make(&cluster);
    let url = cluster.url("postgres");
    let store = PostgresStore::connect(&url).await.expect("the store opens");
    let engine = Arc::new(Engine::new(store));
    if wanted("rate") {
        rate(&cluster, &engine, Arc::new(Pool::open(&url).await)).await;
    }
    if wanted("replay") {
        replays(&engine).await;
    }
    if wanted("wal") {
        wal(&cluster, &engine).await;
    }
    if wanted("growth") {
        growth(&cluster, &engine).await;
    }
    if wanted("reap") {
        reaping(&cluster, &engine).await;
    }
}

/// Begin + settle against the baseline, in alternating rounds.
async fn rate(cluster: &Cluster, engine: &Arc<Engine<PostgresStore>>, pool: Arc<Pool>) {
    println!("postgres store, begin + settle, against pooled single statements");
    println!("| tasks | pooled ops/s | ours ops/s | ratio | range         | p50 / p99 ms  | pooled p50 / p99 | CPU µs/op: pooled, ours |");
    for tasks in [64, 256] {
        log_files::make(cluster);
        let (mut theirs, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut last, mut last_pooled) = (Figures::default(), Figures::default());
        let (mut their_cpu, mut our_cpu) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let baseline = || {
                let pool = Arc::clone(&pool);
                load(tasks, ROUND, move |n| {
                    let pool = Arc::clone(&pool);
                    async move { pool.reserve_and_complete(n).await }
                })
            };
            let store = || {
                let engine = Arc::clone(engine);
                load(tasks, ROUND, move |n| {
                    let engine = Arc::clone(&engine);
                    async move { first(&engine, n).await }
                })
            };
            let (pooled, own) = if round % 2 == 0 {
                let pooled = with_cpu(cluster, baseline()).await;
                (pooled, with_cpu(cluster, store()).await)
            } else {
                let own = with_cpu(cluster, store()).await;
                (with_cpu(cluster, baseline()).await, own)
            };
            // The first round warms both up.
            if round > 0 {
                ratios.push(own.rate / pooled.rate);
                theirs.push(pooled.rate);
                ours.push(own.rate);
                their_cpu.push(pooled.cpu_us);
                our_cpu.push(own.cpu_us);
                (last, last_pooled) = (own, pooled);
            }
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "| {tasks:>5} | {:>12.0} | {:>10.0} | {:>5.2} | {:>5.2} – {:<5.2} | {:>5.1} / {:<6.1} | {:>6.1} / {:<7.1} | {:>12.0}, {:>9.0} |",
            median(&mut theirs),
            median(&mut ours),
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1],
            last.p50,
            last.p99,
            last_pooled.p50,
            last_pooled.p99,
            median(&mut their_cpu),
            median(&mut our_cpu),
        );
    }
    println!("CPU is that of the server and of this process together; it wanders less with the load of the machine than rates do.");
}

/// Replays of records that exist, as reads.
async fn replays(engine: &Arc<Engine<PostgresStore>>) {
    const KEYS: u64 = 5_000;
    let base = KEY.fetch_add(KEYS, Ordering::Relaxed);
    for group in 0..KEYS / 50 {
        let tasks: Vec<_> = (0..50)
            .map(|n| {
                let (engine, n) = (Arc::clone(engine), base + group * 50 + n);
                tokio::spawn(async move { first(&engine, n).await })
            })
            .collect();
        for task in tasks {
            task.await.expect("it is stored");
        }
    }
    let again = Arc::clone(engine);
    let figures = load(64, ROUND, move |n| {
        let engine = Arc::clone(&again);
        async move {
            let Ok(Begun::Replay(..)) = begin(&engine, base + n % KEYS).await else {
                panic!("a replay")
            };
        }
    })
    .await;
    println!("replay reads, 64 tasks: {:.0}/s, p50 {:.1} ms, p99 {:.1} ms", figures.rate, figures.p50, figures.p99);
}

async fn wal(cluster: &Cluster, engine: &Arc<Engine<PostgresStore>>) {
    cluster.sql("postgres", "CHECKPOINT");
    let lsn = || cluster.sql("postgres", "SELECT pg_current_wal_lsn() - '0/0'").parse::<f64>().expect("a number");
    let before = lsn();
    let work = Arc::clone(engine);
    let figures = load(64, ROUND, move |n| {
        let engine = Arc::clone(&work);
        async move { first(&engine, n).await }
    })
    .await;
    println!("WAL per begin + settle, {BODY}-byte body, full-page images included: {:.0} bytes over {} operations",
        (lsn() - before) / figures.count as f64, figures.count);
}

/// What begin and settle cost as the table grows to five million records, and a page of unknown records at a million.
async fn growth(cluster: &Cluster, engine: &Arc<Engine<PostgresStore>>) {
    // Every record that is filled in is a copy of this one under another name.
    first(engine, KEY.fetch_add(1, Ordering::Relaxed)).await;
    println!("| records | database | 64 tasks: ops/s, p99 ms, CPU µs/op | 256 tasks: ops/s, p99 ms, CPU µs/op | CPU by that at the first size |");
    let mut base = None;
    for target in [10_000, 1_000_000, 5_000_000] {
        fill(cluster, target);
        let few = begin_and_settle(cluster, engine, 64).await;
        let many = begin_and_settle(cluster, engine, 256).await;
        let (few_first, many_first) = *base.get_or_insert((few.cpu_us, many.cpu_us));
        let size = cluster.sql("postgres", "SELECT pg_size_pretty(pg_database_size(current_database()))");
        println!(
            "| {target:>7} | {size:>8} | {:>6.0}, {:>5.1}, {:>4.0} | {:>6.0}, {:>5.1}, {:>4.0} | {:.2}, {:.2} |",
            few.rate, few.p99, few.cpu_us, many.rate, many.p99, many.cpu_us, few.cpu_us / few_first, many.cpu_us / many_first
        );
        if target == 1_000_000 {
            unknown_page(cluster, engine).await;
        }
    }
}

/// Fills the table up to so many records. Their names are spread over the whole index, as digests are.
fn fill(cluster: &Cluster, target: u64) {
    let count: u64 = cluster.sql("postgres", "SELECT count(*) FROM retrysafe.record").parse().expect("a number");
    let fill = format!(
        "INSERT INTO retrysafe.record (id, request, created_at, keep_until, lease_until, sweep_at, version, fence, since, seal, moments,
            state, status, expires_at, detail, timeline, headers, body)
        SELECT sha256(int8send(n)), r.request, r.created_at, r.keep_until + n % 86400000, r.lease_until + n % 86400000,
            r.sweep_at + n % 86400000,            r.version, r.fence, r.since, r.seal, r.moments, r.state, r.status, r.expires_at + n % 86400000, r.detail, r.timeline,
            r.headers, r.body
        FROM generate_series({count}::bigint, {target} - 1) n, (SELECT * FROM retrysafe.record WHERE state = 1 LIMIT 1) r"
    );
    cluster.sql("postgres", &fill);
    cluster.sql("postgres", "VACUUM ANALYZE retrysafe.record");
    cluster.sql("postgres", "CHECKPOINT");
}

async fn begin_and_settle(cluster: &Cluster, engine: &Arc<Engine<PostgresStore>>, tasks: usize) -> Figures {
    let work = Arc::clone(engine);
    let load = load(tasks, GROWTH_ROUND, move |n| {
        let engine = Arc::clone(&work);
        async move { first(&engine, n).await }
    });
    with_cpu(cluster, load).await
}

/// How long a page of unknown records takes among so many others, and the count of them.
async fn unknown_page(cluster: &Cluster, engine: &Arc<Engine<PostgresStore>>) {
    const UNKNOWN: u64 = 50;
    for _ in 0..UNKNOWN {
        let begun = begin(engine, KEY.fetch_add(1, Ordering::Relaxed)).await;
        let Ok(Begun::Execute(lease)) = begun else { panic!("a first request") };
        let unknown = Outcome::Unknown(retrysafe::core::record::Doubt::AnswerLost);
        engine.settle(lease, &unknown).await.expect("it settles");
    }
    let filter = Filter { standing: Some(Standing::Unknown), ..Filter::default() };
    let query = Query { filter, after: None, limit: 100 };
    let (mut pages, mut counts) = (Vec::new(), Vec::new());
    for _ in 0..25 {
        let started = Instant::now();
        let page = engine.store().scan(query.clone()).await.expect("a page").value;
        pages.push(started.elapsed().as_secs_f64() * 1e3);
        assert_eq!(page.records.len() as u64, UNKNOWN);
        let started = Instant::now();
        let census = engine.store().census().await.expect("a count").value;
        counts.push(started.elapsed().as_secs_f64() * 1e3);
        assert_eq!(census.unknown, UNKNOWN);
    }
    let records = cluster.sql("postgres", "SELECT count(*) FROM retrysafe.record");
    println!("{UNKNOWN} unknown records among {records}: {:.1} ms per page, {:.1} ms per count", median(&mut pages), median(&mut counts));
}

/// What reaping does to those who begin meanwhile.
async fn reaping(cluster: &Cluster, engine: &Arc<Engine<PostgresStore>>) {
    let quiet = begins(engine, ROUND).await;
    // All that is settled is over: the clock of this cluster goes a day ahead, for this measurement.
    cluster.sql("postgres", "CREATE OR REPLACE FUNCTION retrysafe.now_ms() RETURNS bigint LANGUAGE sql VOLATILE
        AS 'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 172800000'");
    let wal = || cluster.sql("postgres", "SELECT pg_current_wal_lsn() - '0/0'").parse::<f64>().expect("a number");
    let (before, begun) = (wal(), Instant::now());
    let stop = Arc::new(AtomicBool::new(false));
    let reaper = {
        let (engine, stop) = (Arc::clone(engine), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut reaped = 0;
            while !stop.load(Ordering::Relaxed) {
                match engine.store().reap(10_000).await {
                    Ok(some) if some.value > 0 => reaped += some.value,
                    Ok(_) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            (reaped, begun.elapsed())
        })
    };
    let busy = begins(engine, Duration::from_secs(10)).await;
    stop.store(true, Ordering::Relaxed);
    let (reaped, took) = reaper.await.expect("the reaper ends");
    println!("begin p99 at 64 tasks: {:.1} ms alone, {:.1} ms while {reaped} records were reaped in {:.1} s ({:.0}/s, WAL {:.0} bytes per record incl. the load)",
        quiet.p99, busy.p99, took.as_secs_f64(), reaped as f64 / took.as_secs_f64(), (wal() - before) / reaped.max(1) as f64);
}

async fn begins(engine: &Arc<Engine<PostgresStore>>, time: Duration) -> Figures {
    let work = Arc::clone(engine);
    load(64, time, move |n| {
        let engine = Arc::clone(&work);
        async move {
            begin(&engine, n).await.expect("it begins");
        }
    })
    .await
}

static KEY: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Figures {
    rate: f64,
    count: u64,
    p50: f64,
    p99: f64,
    cpu_us: f64,
}

/// A load, and how much processor time each of its operations took.
async fn with_cpu(cluster: &Cluster, load: impl Future<Output = Figures>) -> Figures {
    let before = cpu_seconds(cluster);
    let mut figures = load.await;
    figures.cpu_us = (cpu_seconds(cluster) - before) * 1e6 / figures.count as f64;
    figures
}

/// What this process and the server's have used so far.
fn cpu_seconds(cluster: &Cluster) -> f64 {
    /// Of a second, in `/proc`.
    const TICKS: f64 = 100.0;
    let pids = cluster.sql("postgres", "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()");
    let ticks = pids.lines().chain(["self"]).map(|pid| {
        // One that has just ended counts for nothing.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        fields.map(|ticks| ticks.parse().unwrap_or(0.0)).sum::<f64>()
    });
    ticks.sum::<f64>() / TICKS
}

/// Runs `work` on so many tasks for so long, with a new number each time.
async fn load<F>(tasks: usize, time: Duration, work: impl Fn(u64) -> F + Clone + Send + 'static) -> Figures
where
    F: Future<Output = ()> + Send + 'static,
{
    let begun = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let work = work.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while begun.elapsed() < time {
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
    let elapsed = begun.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Figures { rate: times.len() as f64 / elapsed, count: times.len() as u64, p50: at(0.5), p99: at(0.99), cpu_us: 0.0 }
}

async fn begin(engine: &Engine<PostgresStore>, n: u64) -> Result<Begun, retrysafe::core::StoreError> {
    let print = Fingerprint::from_parts(1, RulesId::from_bytes([1; 8]), [2; 32]);
    let about = About { method: "POST".into(), route: "/payments".into(), path: "/payments".into() };
    let scope = Scope::of([("tenant", &b"acme"[..])]);
    engine
        .begin(&Ask {
            scope: &scope,
            mark: None,
            key: Key::new(&format!("key-{n}")).expect("a key").digest(),
            prints: &print,
            about: &about,
            ttl: Duration::from_secs(86_400),
            lease: Duration::from_secs(60),
            owner: n,
            request_id: None,
        })
        .await
}

async fn first(engine: &Engine<PostgresStore>, n: u64) {
    let Ok(Begun::Execute(lease)) = begin(engine, n).await else { panic!("a first request") };
    engine.settle(lease, &answer(n)).await.expect("it settles");
}

fn answer(n: u64) -> Outcome {
    let body = format!("{{\"id\":\"{n}\",\"filler\":\"{}\"}}", "x".repeat(BODY - 30));
    Outcome::Completed(Answer::Kept(StoredResponse {
        status: http::StatusCode::CREATED,
        headers: vec![(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"))],
        body: body.into(),
    }))
}

/// What one would write by hand.
struct Pool {
    free: Mutex<VecDeque<(Client, Statement, Statement)>>,
    permits: Semaphore,
}

impl Pool {
    async fn open(url: &str) -> Self {
        let mut free = VecDeque::new();
        for n in 0..POOL {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server is there");
            tokio::spawn(connection);
            if n == 0 {
                let table = "CREATE TABLE baseline (scope text, key text, fingerprint bytea NOT NULL,
                    state smallint NOT NULL, fence bigint NOT NULL, lease_until timestamptz, expires_at timestamptz,
                    created_at timestamptz NOT NULL DEFAULT now(), status smallint, headers bytea, body bytea,
                    PRIMARY KEY (scope, key));
                    CREATE INDEX ON baseline (expires_at)";
                client.batch_execute(table).await.expect("the table");
            }
            let reserve = client
                .prepare("INSERT INTO baseline (scope, key, fingerprint, state, fence, lease_until)
                    VALUES ($1, $2, $3, 0, 1, now() + interval '1 minute')
                    ON CONFLICT (scope, key) DO NOTHING RETURNING fence")
                .await
                .expect("a statement");
            let complete = client
                .prepare("UPDATE baseline SET state = 1, lease_until = NULL, status = $4, headers = $5, body = $6,
                    expires_at = now() + interval '1 day'
                    WHERE scope = $1 AND key = $2 AND fence = $3 AND state = 0")
                .await
                .expect("a statement");
            free.push_back((client, reserve, complete));
        }
        Self { free: Mutex::new(free), permits: Semaphore::new(POOL) }
    }

    async fn reserve_and_complete(&self, n: u64) {
        let (key, body) = (format!("key-{n}"), vec![b'x'; BODY]);
        let fence: i64 = {
            let _permit = self.permits.acquire().await.expect("open");
            let held = self.free.lock().await.pop_front().expect("a permit is a client");
            let row = held.0.query_one(&held.1, &[&"acme", &key, &vec![2u8; 41]]).await.expect("reserved");
            self.free.lock().await.push_back(held);
            row.get(0)
        };
        let _permit = self.permits.acquire().await.expect("open");
        let held = self.free.lock().await.pop_front().expect("a permit is a client");
        let count = held.0.execute(&held.2, &[&"acme", &key, &fence, &201i16, &vec![0u8; 40], &body]).await;
        assert_eq!(count.expect("completed"), 1);
        self.free.lock().await.push_back(held);
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
