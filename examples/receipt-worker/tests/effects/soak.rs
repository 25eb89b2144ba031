//! Are very many effects delivered, once and in order, by workers and a database that are killed at random?
//!
//! Four processes deliver while effects are staged. One process after the other is killed and started again, and so is the
//! database. A sample counts everything at one moment. `cargo xtask effects 200000` is the long run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::process::{PACE, WorkerProcess};
use crate::world::{Database, World};

/// How many effects `cargo xtask test` delivers.
const EFFECTS: i64 = 5_000;

const WORKERS: usize = 4;

/// A worker is killed for every so many effects, and ten are at the least; the database for every so many, and once.
const EFFECTS_PER_KILL: i64 = 4_000;
const EFFECTS_PER_RESTART: i64 = 40_000;
const KILLS_MIN: i64 = 10;

/// How many effects one transaction stages.
const STAGED_AT_ONCE: i64 = 100;

/// So many effects of a lane, one after the other.
const EFFECTS_PER_LANE: i64 = 100;

const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// How long nothing may change before that is a failure.
const STANDSTILL_MAX: Duration = Duration::from_secs(90);

/// What is staged: a quarter goes in lanes, a tenth to a receiver that takes no key. Of those, some are for a time that
/// does not come, and are cancelled. The application's row and the effect are one transaction, so that a repeated call
/// stages what is missing.
const STAGE: &str = "WITH intents AS (
        INSERT INTO intent SELECT n FROM generate_series($1::bigint, $2::bigint) AS s (n) ON CONFLICT DO NOTHING RETURNING n
    ), planned AS (
        SELECT n, n % 10 = 0 AS is_message, n % 500 = 250 AS is_cancelled,
            CASE WHEN n % 4 = 1 THEN 'lane ' || n / 4 % greatest(1, $3::bigint / 4 / $4::bigint) END AS lane
        FROM intents ORDER BY n
    )
    SELECT count(*) FROM planned p, LATERAL retrysafe.stage_v1(
        CASE WHEN p.is_message THEN 'message' ELSE 'receipt' END,
        CASE WHEN p.is_message THEN $5::text ELSE $6::text END, 'application/json',
        convert_to(format('{\"ride\": \"e-%s\", \"cents\": 1}', p.n), 'UTF8'), NULL, p.lane, NULL,
        CASE WHEN p.is_cancelled THEN retrysafe.now_ms() + 86400000 END)";

const CANCEL: &str = "SELECT count(retrysafe.cancel_effect_v1(e.id)) FROM retrysafe.effect e
    WHERE e.kind = 'message' AND e.state = 1 AND e.at > retrysafe.now_ms() + 3600000";

/// The intents, and the effects by state: waiting, ready, leased, unknown, dead, delivered, cancelled.
const SAMPLE: &str = "SELECT (SELECT count(*) FROM intent),
    (SELECT array_agg(effects ORDER BY state) FROM (
        SELECT s.state, count(e.state) AS effects FROM generate_series(0, 6) AS s (state) LEFT JOIN (
            SELECT state FROM retrysafe.effect UNION ALL SELECT state FROM retrysafe.effect_done
        ) e ON e.state = s.state GROUP BY s.state
    ) counted)";

/// What everybody shares.
struct Soak {
    world: Arc<World>,
    url: String,
    effects: i64,
    seed: u64,
    /// How many effects are over, as of the last sample.
    over: AtomicI64,
    samples: AtomicI64,
    is_done: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_intent_is_accounted_for_while_workers_and_the_database_are_killed() {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let effects = read("RETRYSAFE_EFFECTS").map_or(EFFECTS, |count| count as i64);
    let seed = read("RETRYSAFE_EFFECTS_SEED").unwrap_or(u64::from(std::process::id()));
    println!(
        "{effects} effects by {WORKERS} processes; RETRYSAFE_EFFECTS_SEED={seed} kills in the same order"
    );
    let world = World::open().await;
    let mut database = world.database().await;
    let url = database.url();
    world.cluster.sql(database.name(), "CREATE TABLE intent (n bigint PRIMARY KEY)");
    let soak = Arc::new(Soak {
        world,
        url,
        effects,
        seed,
        over: AtomicI64::new(0),
        samples: AtomicI64::new(0),
        is_done: AtomicBool::new(false),
    });
    let begun = Instant::now();
    let workers = (0..WORKERS).map(|_| WorkerProcess::start(&soak.url)).collect();
    let sampling = tokio::spawn(Arc::clone(&soak).sample_until_done());
    let staging = tokio::spawn(Arc::clone(&soak).stage_all());
    let (mut workers, kills, restarts) = soak.kill_at_random(workers).await;
    staging.await.unwrap();
    soak.until_over(effects).await;
    let rate = effects as f64 / begun.elapsed().as_secs_f64();
    soak.is_done.store(true, Ordering::SeqCst);
    sampling.await.unwrap();
    for worker in &mut workers {
        worker.end().await;
    }
    database.connect_again().await;
    let unknown = soak.check(&database).await;
    let samples = soak.samples.load(Ordering::SeqCst);
    let asked = soak.world.provider("receipt").totals();
    println!(
        "{effects} effects, {kills} SIGKILLs, {restarts} restarts of the database, {rate:.0} effects a second; \
         intents were effects in {samples} samples; {} receipts were sent more than once and done once; {unknown} messages are unknown",
        asked.requests - asked.charges
    );
}

impl Soak {
    /// A connection, once the database can be reached.
    async fn connect(&self) -> tokio_postgres::Client {
        let connecting = async {
            loop {
                let connected = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await;
                if let Ok((client, connection)) = connected {
                    tokio::spawn(connection);
                    return client;
                }
                tokio::time::sleep(PACE).await;
            }
        };
        timeout(STANDSTILL_MAX, connecting).await.expect("the database comes back")
    }

    async fn stage_all(self: Arc<Self>) {
        let to = |kind| format!("http://{}/charges", self.world.provider(kind).address());
        let (messages, receipts) = (to("message"), to("receipt"));
        let mut client = self.connect().await;
        let mut next = 0;
        while next < self.effects {
            let last = (next + STAGED_AT_ONCE).min(self.effects) - 1;
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
                [&next, &last, &self.effects, &EFFECTS_PER_LANE, &messages, &receipts];
            let mut told = client.query_one(STAGE, &values).await;
            if told.is_ok() {
                told = client.query_one(CANCEL, &[]).await;
            }
            match told {
                Ok(_) => next = last + 1,
                // A server that is killed says nothing, or that it goes; one that lives and refuses is a defect.
                Err(error) => {
                    let code = error.code().map_or("", |code| code.code());
                    assert!(code.is_empty() || code.starts_with("57"), "{error:?}");
                    client = self.connect().await;
                }
            }
        }
    }

    /// At every moment each intent is one effect, in one state.
    async fn sample_until_done(self: Arc<Self>) {
        let mut changed_at = (Instant::now(), 0);
        let mut client = self.connect().await;
        while !self.is_done.load(Ordering::SeqCst) {
            let Ok(row) = client.query_one(SAMPLE, &[]).await else {
                client = self.connect().await;
                continue;
            };
            let intents: i64 = row.get(0);
            let states: Vec<i64> = row.get(1);
            assert_eq!(states.iter().sum::<i64>(), intents, "{states:?}");
            let over = states[3..].iter().sum();
            self.over.store(over, Ordering::SeqCst);
            self.samples.fetch_add(1, Ordering::SeqCst);
            if over != changed_at.1 {
                changed_at = (Instant::now(), over);
            }
            assert!(changed_at.0.elapsed() < STANDSTILL_MAX, "nothing moves: {states:?}");
            tokio::time::sleep(SAMPLE_EVERY).await;
        }
    }

    async fn until_over(&self, effects: i64) {
        while self.over.load(Ordering::SeqCst) < effects {
            tokio::time::sleep(PACE).await;
        }
    }

    /// Kills workers and the database, evenly over the run, until all kills are done.
    async fn kill_at_random(
        &self,
        mut workers: Vec<WorkerProcess>,
    ) -> (Vec<WorkerProcess>, i64, i64) {
        let kills = (self.effects / EFFECTS_PER_KILL).max(KILLS_MIN);
        let restarts = (self.effects / EFFECTS_PER_RESTART).max(1);
        let kills_per_restart = kills / restarts;
        for number in 0..kills {
            self.until_over(self.effects * number / (kills + 1)).await;
            let chosen = self.draw(number) % WORKERS;
            workers[chosen].kill();
            if number % kills_per_restart == kills_per_restart / 2 {
                self.world.cluster.kill();
                self.world.cluster.up();
            }
            workers[chosen] = WorkerProcess::start(&self.url);
        }
        (workers, kills, restarts)
    }

    /// A step of SplitMix64: the seed says who is killed when.
    fn draw(&self, number: i64) -> usize {
        let step = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = self.seed.wrapping_add(step);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 33) as usize
    }

    /// Nothing is lost, twice or out of order. Gives how many messages are unknown.
    async fn check(&self, database: &Database) -> i64 {
        let count = async |table: &str, wanted: &str| {
            database.number(&format!("SELECT count(*) FROM retrysafe.{table} WHERE {wanted}")).await
        };
        let messages = (self.effects + 9) / 10;
        let cancelled = (self.effects + 249) / 500;
        let receipts = self.effects - messages;
        assert_eq!(count("effect_done", "kind = 'receipt' AND state = 5").await, receipts);
        assert_eq!(count("effect_done", "state = 6").await, cancelled);
        let unknown = count("effect", "kind = 'message' AND state = 3").await;
        let delivered = count("effect_done", "kind = 'message' AND state = 5").await;
        assert_eq!(delivered + unknown + cancelled, messages);
        assert_eq!(database.overtaken().await, 0, "a lane was overtaken");
        for kind in ["receipt", "message"] {
            let totals = self.world.provider(kind).totals();
            assert!(totals.charged_twice.is_empty(), "{kind}: {:?}", totals.charged_twice);
            assert!(totals.with_two_keys.is_empty(), "{kind}: {:?}", totals.with_two_keys);
        }
        let done = |kind| self.world.provider(kind).totals().charges as i64;
        assert_eq!(done("receipt"), receipts);
        assert!((delivered..=delivered + unknown).contains(&done("message")));
        unknown
    }
}
