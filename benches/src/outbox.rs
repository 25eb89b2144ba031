//! How fast is the outbox, next to the loop that one would write by hand?
//!
//! `bench outbox [part]`: `rate` is claim, mark, delivery and finish in batches of 1, 10 and 100 against the plain loop, `wal` is
//! bytes of the log per effect, `growth` is a million effects under continuous churn. All of them, one after the other,
//! unless one is named.
//!
//! The plain loop takes one row by `SELECT … FOR UPDATE SKIP LOCKED`, delivers it while its transaction is open, deletes it and
//! commits. It has no lease, no fence and no sent mark: a worker that dies after it has delivered delivers again. Both deliver to
//! nobody, in one private cluster, over the same driver and pool, in alternating rounds.

#[allow(dead_code, reason = "the store's own tests use the rest of it")]
#[path = "../../crates/retrysafe/tests/postgres/kit/cluster.rs"]
mod cluster;
#[path = "log_files.rs"]
mod log_files;

use std::time::{Duration, Instant};

use cluster::Cluster;
use retrysafe::outbox::{Delivered, DeliveryEnd, Receiver, Worker};
use retrysafe::stores::postgres::migrate;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const PARTS: [&str; 3] = ["rate", "wal", "growth"];
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(2);
const BATCHES: [usize; 3] = [1, 10, 100];
const WORKERS: [usize; 2] = [1, 4];
const POOL: u32 = 20;
/// What waits to be delivered when a round begins: more than a round delivers.
const BACKLOG: i64 = 60_000;
/// How many effects one statement stages.
const STAGED_AT_ONCE: i64 = 1_000;
/// The body of a typical effect.
const PAYLOAD_BYTES: usize = 300;
/// Under churn, how many effects there are, in how many parts they are reported, and how many wait at the most.
const CHURN: i64 = 1_000_000;
const TENTHS: i64 = 10;
const CHURN_BACKLOG: i64 = 5_000;

const TABLE: &str = "CREATE TABLE baseline (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text NOT NULL,
    destination text, payload bytea NOT NULL, staged_at timestamptz NOT NULL DEFAULT now())";

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
    let settings = [("shared_buffers", "512MB"), ("track_functions", "all")];
    let cluster = Cluster::start(&[&settings[..], &log_files::SETTINGS[..]].concat());
    log_files::make(&cluster);
    let url = cluster.url("postgres");
    migrate(&url.parse().expect("an address")).await.expect("the schema");
    let pool = PgPoolOptions::new().max_connections(POOL).connect(&url).await.expect("a pool");
    sqlx::query(TABLE).execute(&pool).await.expect("a table");
    let bench = Bench { cluster, pool };
    if wanted("rate") {
        bench.rate().await;
    }
    if wanted("wal") {
        bench.wal().await;
    }
    if wanted("growth") {
        bench.growth().await;
    }
}

struct Bench {
    cluster: Cluster,
    pool: PgPool,
}

/// One round.
struct Round {
    rate: f64,
    cpu_us: f64,
}

impl Bench {
    async fn rate(&self) {
        println!("claim, mark, delivery to nobody and finish, against the plain one-row SKIP LOCKED loop");
        println!("| workers | batch | plain/s | ours/s  | ratio | range         | CPU µs per effect: plain, ours |");
        for workers in WORKERS {
            for batch in BATCHES {
                let (mut plain, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
                for round in 0..=ROUNDS {
                    let (theirs, own) = if round % 2 == 0 {
                        let theirs = self.plain_round(workers).await;
                        (theirs, self.own_round(workers, batch).await)
                    } else {
                        let own = self.own_round(workers, batch).await;
                        (self.plain_round(workers).await, own)
                    };
                    // The first round warms both up.
                    if round > 0 {
                        ratios.push(own.rate / theirs.rate);
                        plain.push(theirs);
                        ours.push(own);
                    }
                }
                ratios.sort_by(f64::total_cmp);
                println!(
                    "| {workers:>7} | {batch:>5} | {:>7.0} | {:>7.0} | {:>5.2} | {:>5.2} – {:<5.2} | {:>18.0}, {:>9.0} |",
                    median(plain.iter().map(|round| round.rate)),
                    median(ours.iter().map(|round| round.rate)),
                    ratios[ROUNDS / 2],
                    ratios[0],
                    ratios[ROUNDS - 1],
                    median(plain.iter().map(|round| round.cpu_us)),
                    median(ours.iter().map(|round| round.cpu_us)),
                );
            }
        }
    }

    async fn plain_round(&self, workers: usize) -> Round {
        self.fill("baseline", "INSERT INTO baseline (kind, destination, payload) SELECT 'mail', 'http://127.0.0.1/', $2 FROM generate_series(1, $1)").await;
        let cpu = cpu_seconds(&self.cluster);
        let begun = Instant::now();
        let loops: Vec<_> = (0..workers).map(|_| tokio::spawn(plain_loop(self.pool.clone(), begun))).collect();
        let mut delivered = 0;
        for task in loops {
            delivered += task.await.expect("it ends");
        }
        self.round(delivered, begun, cpu)
    }

    async fn own_round(&self, workers: usize, batch: usize) -> Round {
        self.stage_backlog(BACKLOG).await;
        let before = self.number("SELECT count(*) FROM retrysafe.effect").await;
        let cpu = cpu_seconds(&self.cluster);
        let begun = Instant::now();
        let working: Vec<_> = (0..workers).map(|_| self.worker(batch).start()).collect();
        tokio::time::sleep(ROUND).await;
        for working in working {
            assert!(working.stop(ROUND * 10).await, "it ends");
        }
        let delivered = before - self.number("SELECT count(*) FROM retrysafe.effect").await;
        self.round(delivered, begun, cpu)
    }

    fn round(&self, delivered: i64, begun: Instant, cpu: f64) -> Round {
        let rate = delivered as f64 / begun.elapsed().as_secs_f64();
        Round { rate, cpu_us: (cpu_seconds(&self.cluster) - cpu) * 1e6 / delivered as f64 }
    }

    fn worker(&self, batch: usize) -> Worker {
        let receiver = Receiver::remembers_keys_for(Duration::from_secs(24 * 60 * 60)).at_once(batch);
        Worker::new(self.pool.clone())
            .deliver("mail", receiver, async |_| Ok(DeliveryEnd::Delivered(Delivered::known_as("msg_0123456789"))))
    }

    async fn stage_backlog(&self, effects: i64) {
        // The function must depend on the number, or it is called once.
        let stage = "SELECT count(*) FROM generate_series(1, $1) AS s (n),
            LATERAL retrysafe.stage_v1('mail', 'http://127.0.0.1/' || n, 'application/json', $2, NULL, NULL, NULL, NULL)";
        let missing = effects - self.number("SELECT count(*) FROM retrysafe.effect").await;
        let mut staged = 0;
        while staged < missing {
            let most = STAGED_AT_ONCE.min(missing - staged);
            sqlx::query(stage).bind(most as i32).bind(vec![b'x'; PAYLOAD_BYTES]).execute(&self.pool).await.expect("staged");
            staged += most;
        }
    }

    async fn fill(&self, table: &str, insert: &'static str) {
        let count = format!("SELECT count(*) FROM {table}");
        let missing = BACKLOG - self.number(&count).await;
        if missing > 0 {
            sqlx::query(insert).bind(missing as i32).bind(vec![b'x'; PAYLOAD_BYTES]).execute(&self.pool).await.expect("filled");
        }
    }

    /// Leaves nothing behind that a vacuum would have to do in the middle of what is measured next.
    async fn empty(&self) {
        sqlx::query("DELETE FROM retrysafe.effect").execute(&self.pool).await.expect("an empty outbox");
        sqlx::query("VACUUM retrysafe.effect").execute(&self.pool).await.expect("vacuumed");
    }

    async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.expect("a number")
    }

    async fn wal(&self) {
        self.empty().await;
        println!("WAL per effect with {PAYLOAD_BYTES} bytes, from its staging to its end, full-page images included");
        println!("| batch | bytes per effect: staged | delivered |");
        for batch in BATCHES {
            self.cluster.sql("postgres", "CHECKPOINT");
            let effects = 2_000 * batch.min(10) as i64;
            let begun = self.lsn();
            self.stage_backlog(effects).await;
            let staged = self.lsn();
            let working = self.worker(batch).start();
            while self.number("SELECT count(*) FROM retrysafe.effect").await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let delivered = self.lsn();
            working.stop(ROUND).await;
            let per_effect = |bytes: f64| bytes / effects as f64;
            println!("| {batch:>5} | {:>24.0} | {:>9.0} |", per_effect(staged - begun), per_effect(delivered - staged));
        }
    }

    fn lsn(&self) -> f64 {
        self.cluster.sql("postgres", "SELECT pg_current_wal_lsn() - '0/0'").parse().expect("a number")
    }

    /// A million effects are staged and delivered, and few wait at any time.
    ///
    /// The server looks every ten seconds for tables to be vacuumed, as docs/outbox.md advises for a busy outbox. By default it looks
    /// once a minute, which is most of the time that all of this takes.
    async fn growth(&self) {
        self.cluster.sql("postgres", "ALTER SYSTEM SET autovacuum_naptime = '10s'");
        self.cluster.sql("postgres", "SELECT pg_reload_conf()");
        self.empty().await;
        println!("{CHURN} effects under continuous churn, {CHURN_BACKLOG} waiting at the most, batches of 100");
        println!("| effects | effects/s | claim ms | mark ms | finish ms | table MB | indexes MB | dead rows |");
        let working = self.worker(100).start();
        for tenth in 1..=TENTHS {
            let before = self.functions().await;
            let begun = Instant::now();
            let mut staged = 0;
            while staged < CHURN / TENTHS {
                let waiting = self.number("SELECT count(*) FROM retrysafe.effect").await;
                let most = (CHURN_BACKLOG - waiting).min(CHURN / TENTHS - staged);
                if most > 0 {
                    self.stage_backlog(waiting + most).await;
                    staged += most;
                } else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            let rate = staged as f64 / begun.elapsed().as_secs_f64();
            // A server says what its functions took when a backend is idle.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let after = self.functions().await;
            let ms = |function: usize| (after[function].1 - before[function].1) / (after[function].0 - before[function].0).max(1.0);
            let table = self.number("SELECT pg_relation_size('retrysafe.effect')").await as f64 / 1e6;
            let indexes = self.number("SELECT pg_indexes_size('retrysafe.effect')").await as f64 / 1e6;
            let dead = self.number("SELECT coalesce(n_dead_tup, 0) FROM pg_stat_user_tables WHERE relname = 'effect'").await;
            println!(
                "| {:>7} | {rate:>9.0} | {:>8.2} | {:>7.2} | {:>9.2} | {table:>8.1} | {indexes:>10.1} | {dead:>9} |",
                tenth * CHURN / TENTHS, ms(0), ms(1), ms(2),
            );
        }
        working.stop(ROUND * 10).await;
    }

    /// Calls and milliseconds of claim, mark and finish.
    async fn functions(&self) -> Vec<(f64, f64)> {
        let mut told = Vec::new();
        for name in ["claim_effects_v1", "mark_effects_v1", "finish_effects_v1"] {
            let figures = format!("SELECT coalesce(sum(calls), 0) || ' ' || coalesce(sum(total_time), 0) FROM pg_stat_user_functions WHERE funcname = '{name}'");
            let figures = self.cluster.sql("postgres", &figures);
            let (calls, ms) = figures.split_once(' ').expect("two numbers");
            told.push((calls.parse().expect("a number"), ms.parse().expect("a number")));
        }
        told
    }
}

/// What one would write by hand. Gives how many were delivered.
async fn plain_loop(pool: PgPool, begun: Instant) -> i64 {
    let mut delivered = 0;
    while begun.elapsed() < ROUND {
        let mut tx = pool.begin().await.expect("a transaction");
        let select = "SELECT id, destination, payload FROM baseline ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";
        let row: (i64, Option<String>, Vec<u8>) = sqlx::query_as(select).fetch_one(&mut *tx).await.expect("a row");
        deliver_to_nobody(row.2).await;
        sqlx::query("DELETE FROM baseline WHERE id = $1").bind(row.0).execute(&mut *tx).await.expect("deleted");
        tx.commit().await.expect("committed");
        delivered += 1;
    }
    delivered
}

async fn deliver_to_nobody(payload: Vec<u8>) {
    assert_eq!(payload.len(), PAYLOAD_BYTES);
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

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
