//! Do the scripts decide as the simulator believes?
//!
//! The simulator runs the rules of this store as functions. Here those very functions decide beside the
//! scripts on a real server, over random steps: clocks that go forth and back, servers that change, data
//! that went back, begins, settles. Every answer and everything that a bucket remembers must agree.

use std::collections::HashMap;

use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::kit::{client, prefix, shared};

#[path = "../../../sim/src/world/redis_rules.rs"]
mod redis_rules;

use redis_rules::{Asked, Bucket, Grants, may_grant, next_version};

const INSERT: &str = concat!(
    include_str!("../../src/stores/redis/lua/shared.lua"),
    include_str!("../../src/stores/redis/lua/insert.lua")
);
const SWAP: &str = concat!(
    include_str!("../../src/stores/redis/lua/shared.lua"),
    include_str!("../../src/stores/redis/lua/swap.lua")
);
const OBSERVE: &str = concat!(
    include_str!("../../src/stores/redis/lua/shared.lua"),
    include_str!("../../src/stores/redis/lua/observe.lua")
);

/// How far versions leap at the most.
const LEAP_MAX_MS: u64 = 86_400_000;

/// What a step is answered, by whoever decides.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Done(u64),
    Found(u64),
    Gone,
    Held { until: u64, is_new: bool },
}

/// A record, as far as these decisions go: its version, and when it expires if it is settled.
#[derive(Clone, Copy, Debug)]
struct Known {
    version: u64,
    expires_at: Option<u64>,
}

/// What is asked in one step.
#[derive(Debug)]
enum Step {
    Observe,
    Insert { lease_ms: u64 },
    Swap { from: u64, is_grant: bool, length_ms: u64 },
}

/// The simulator's side.
struct Model {
    bucket: Bucket,
    records: HashMap<u8, Known>,
}

impl Model {
    fn decide(&mut self, record: u8, step: &Step, asked: &Asked) -> Answer {
        let known = self.records.get(&record).copied();
        match *step {
            Step::Observe => match may_grant(&mut self.bucket, asked) {
                Grants::Above(version) => Answer::Done(version),
                Grants::HeldUntil { ms, is_new } => Answer::Held { until: ms, is_new },
            },
            Step::Insert { .. } => {
                let is_over = |known: &Known| known.expires_at.is_some_and(|at| at <= asked.now_ms);
                if let Some(known) = known.filter(|known| !is_over(known)) {
                    return Answer::Found(known.version);
                }
                match may_grant(&mut self.bucket, asked) {
                    Grants::HeldUntil { ms, is_new } => Answer::Held { until: ms, is_new },
                    Grants::Above(highest) => {
                        self.write(record, next_version(asked.now_ticks, highest, None), None)
                    }
                }
            }
            Step::Swap { from, is_grant, length_ms } => {
                let Some(known) = known else { return Answer::Gone };
                if known.version != from {
                    return Answer::Found(known.version);
                }
                let mut highest = self.bucket.version;
                if is_grant {
                    match may_grant(&mut self.bucket, asked) {
                        Grants::Above(above) => highest = above,
                        Grants::HeldUntil { ms, is_new } => {
                            return Answer::Held { until: ms, is_new };
                        }
                    }
                }
                let version = next_version(asked.now_ticks, highest, Some(known.version));
                let expires_at = (!is_grant).then_some(asked.now_ms + length_ms);
                self.write(record, version, expires_at)
            }
        }
    }

    fn write(&mut self, record: u8, version: u64, expires_at: Option<u64>) -> Answer {
        self.records.insert(record, Known { version, expires_at });
        self.bucket.version = version;
        Answer::Done(version)
    }
}

/// The server's side.
struct Scripts {
    client: MultiplexedConnection,
    prefix: String,
}

impl Scripts {
    fn key(&self, what: &str) -> String {
        format!("{}:{{00}}:{what}", self.prefix)
    }

    async fn decide(&mut self, record: u8, step: &Step, asked: &Asked) -> Answer {
        let (id, bytes) = ([record; 32], [record; 64]);
        let key = self.key(&format!("r:{record}"));
        let [meta, all, leases, unknown, expiries] =
            ["meta", "all", "leases", "unknown", "expiries"].map(|what| self.key(what));
        let clock = format!("{}/{}", asked.now_ms, asked.now_ticks);
        let mut command = redis::cmd("EVAL");
        match *step {
            Step::Observe => {
                command.arg(OBSERVE).arg(1).arg(meta).arg(&clock);
            }
            Step::Insert { lease_ms } => {
                command.arg(INSERT).arg(5).arg(key).arg(meta).arg(all).arg(leases).arg(expiries);
                command.arg(&clock).arg(&id).arg(&bytes).arg(lease_ms);
            }
            Step::Swap { from, is_grant, length_ms } => {
                command.arg(SWAP).arg(5).arg(key).arg(meta).arg(leases).arg(unknown).arg(expiries);
                command.arg(&clock).arg(&id).arg(&bytes).arg(from);
                command.arg(if is_grant { "L" } else { "E" }).arg(length_ms).arg(1_u64 << 52);
                // A grace so long that Redis itself ends nothing here.
                command.arg(1_u64 << 40).arg(u8::from(is_grant));
            }
        }
        command.arg(asked.identity).arg(asked.seen).arg(asked.hold_ms);
        let answer: Vec<Value> = command.query_async(&mut self.client).await.unwrap();
        let number = |at: usize| match &answer[at] {
            Value::Int(number) => u64::try_from(*number).unwrap(),
            other => panic!("{other:?}"),
        };
        let Value::BulkString(word) = &answer[0] else { panic!("{answer:?}") };
        assert_eq!(number(1), asked.now_ms, "the clock that was given");
        match word.as_slice() {
            b"done" => Answer::Done(number(2)),
            b"gone" => Answer::Gone,
            b"held" => Answer::Held { until: number(2), is_new: number(3) == 1 },
            b"found" => {
                let Value::BulkString(value) = &answer[2] else { panic!("{answer:?}") };
                Answer::Found(u64::from_be_bytes(value[2..10].try_into().unwrap()))
            }
            other => panic!("{other:?}"),
        }
    }

    async fn bucket(&mut self) -> Bucket {
        let mut command = redis::cmd("HMGET");
        command.arg(self.key("meta")).arg("identity").arg("held_until").arg("version");
        let (identity, held_until_ms, version) =
            command.query_async(&mut self.client).await.unwrap();
        Bucket { identity, held_until_ms, version }
    }

    async fn set_bucket(&mut self, bucket: &Bucket) {
        let mut command = redis::cmd("HSET");
        command.arg(self.key("meta")).arg("identity").arg(bucket.identity);
        command.arg("held_until").arg(bucket.held_until_ms).arg("version").arg(bucket.version);
        let _: i64 = command.query_async(&mut self.client).await.unwrap();
    }
}

/// Numbers from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[tokio::test]
async fn scripts_and_simulator_decide_alike() {
    const STEPS: u64 = 3_000;
    let mut seen_answers = [0_u32; 4];
    for seed in 0..3 {
        let mut chance = Chance(seed);
        let mut scripts = Scripts { client: client(shared().port).await, prefix: prefix() };
        // As `store init` leaves it.
        let bucket = Bucket { identity: 1, held_until_ms: 0, version: 1 };
        let mut model = Model { bucket, records: HashMap::new() };
        scripts.set_bucket(&bucket).await;
        let (mut now_ms, mut identity, mut backup) = (1_700_000_000_000_u64, 1, bucket);
        for number in 0..STEPS {
            match chance.below(40) {
                0 => identity += 1,
                1 => now_ms -= chance.below(5_000),
                2 => now_ms += chance.below(100_000),
                3 => backup = model.bucket,
                4 => {
                    // Somebody restores what the bucket knew then.
                    model.bucket = Bucket { identity: model.bucket.identity, ..backup };
                    scripts.set_bucket(&model.bucket).await;
                }
                5..20 => now_ms += chance.below(50),
                _ => {}
            }
            let record = chance.below(6) as u8;
            let known = model.records.get(&record).map_or(0, |known| known.version);
            let from = if chance.below(8) == 0 { known + 1 } else { known };
            let step = match chance.below(4) {
                0 if chance.below(4) == 0 => Step::Observe,
                0 | 1 => Step::Insert { lease_ms: chance.below(1_000) },
                _ => Step::Swap {
                    from,
                    is_grant: chance.below(3) == 0,
                    length_ms: chance.below(3_000),
                },
            };
            // Mostly what this process has seen; at times it has seen nothing, or a later state.
            let seen = match chance.below(12) {
                0 => 0,
                1 if number % 7 == 0 => model.bucket.version + chance.below(1 << 20),
                _ => model.bucket.version / 2,
            };
            let hold_ms = [0, 100, 2_000, 10 * LEAP_MAX_MS / (1 + chance.below(1_000) * 50)]
                [chance.below(4) as usize];
            let hold_ms = if number % 50 == 0 { hold_ms } else { hold_ms.min(2_000) };
            let asked = Asked {
                now_ms,
                now_ticks: now_ms * 1_000,
                identity,
                seen,
                hold_ms,
                hold_ticks: hold_ms.min(LEAP_MAX_MS) * 1_000,
            };
            let told = scripts.decide(record, &step, &asked).await;
            let expected = model.decide(record, &step, &asked);
            assert_eq!(told, expected, "seed {seed}, step {number}: {step:?} {asked:?}");
            assert_eq!(scripts.bucket().await, model.bucket, "seed {seed}, step {number}");
            seen_answers[match told {
                Answer::Done(_) => 0,
                Answer::Found(_) => 1,
                Answer::Gone => 2,
                Answer::Held { .. } => 3,
            }] += 1;
        }
    }
    assert!(seen_answers.iter().all(|count| *count > 10), "{seen_answers:?}");
}
