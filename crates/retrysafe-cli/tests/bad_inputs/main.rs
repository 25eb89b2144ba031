//! What do malformed, odd and hostile messages get? One test per row of `rows.txt`.
//!
//! A row has a gateway and a recording upstream to itself while it runs, so that what reached the
//! upstream and what was left in the store is its doing alone. The totals are kept: whatever
//! arrives late is noticed by the next row on the same gateway.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod frames;
#[path = "../gateway/kit.rs"]
#[allow(dead_code, reason = "the other tests need more of it")]
mod kit;
mod row;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};

use kit::{Gateway, Message, PATIENCE, Seen, Step, Upstream, raw};
use row::{NUMBERS, Row, Way};

/// How long a head or a body may take. Rows of incomplete messages wait for it.
const SOON: &str = "500ms";

/// The same for a row that was answered otherwise than it should be: a machine that stalls cuts a message
/// off that was on its way.
const LATER: &str = "10s";

/// TIME stands for how long a head or a body may take.
const CONFIG: &str = r#"head_time_max = "TIME"
---
[defaults]
request_time_max = "TIME"

[[route]]
path = "/required/{*rest}"
methods = ["POST"]
key = "required"

[[route]]
path = "/quoted"
methods = ["POST"]
key_syntax = "quoted"

[[route]]
path = "/small"
methods = ["POST"]
request_bytes_max = "16B"
response_bytes_max = "16B"

[[route]]
path = "/large"
methods = ["POST"]
request_bytes_max = "64MiB"
request_time_max = "60s"

[[route]]
path = "/tenant"
methods = ["POST"]
scope = ["header:x-tenant"]
"#;

fn main() -> ExitCode {
    let rows: Vec<Row> = row::all();
    let numbers: Vec<u32> = rows.iter().map(|row| row.number).collect();
    let (plain, h2c) = (Stages::default(), Stages { h2c: true, ..Stages::default() });
    let mut trials: Vec<Trial> = rows
        .into_iter()
        .map(|row| {
            let stages = match row.way {
                Way::Raw | Way::Admin => plain.clone(),
                Way::Frames => h2c.clone(),
            };
            Trial::test(row.name.clone(), move || stages.play(&row))
        })
        .collect();
    trials.push(Trial::test("the list is whole", move || {
        let missing: Vec<_> = NUMBERS.iter().filter(|number| !numbers.contains(number)).collect();
        missed_unless(missing.is_empty(), || format!("no row for {missing:?}"))?;
        Ok(())
    }));
    trials.push(Trial::test("a row that is answered otherwise is noticed", || {
        let got = ["400 idempotency_key_missing 90_bytes".to_owned(), "201 r".to_owned()];
        assert!(fit(&got, "400, 201 r") && fit(&got, "none / 400 idempotency_key_missing, 201 r"));
        assert!(!fit(&got, "400") && !fit(&got, "401, 201 r") && !fit(&got, "none"));
        assert!(!fit(&got, "400, 201"), "a replay where none was wanted");
        assert!(!fit(&got[..1], "400 idempotency_key_invalid"));
        assert_eq!(row::bytes(r"<x*3>\x41\\\r<a#\n*2>"), b"xxxA\\\ra0\na1\n");
        assert_eq!(row::bytes(r"<length>\r\n\r\nabc"), b"3\r\n\r\nabc");
        Ok(())
    }));
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    // The gateways end with the last handle to them, which an exit would not drop.
    drop((plain, h2c));
    conclusion.exit_code()
}

/// A gateway in front of a recording upstream.
struct Stage {
    upstream: Upstream,
    gateway: Gateway,
    /// How often the upstream was to be reached so far, and how many records are to be there.
    runs: usize,
    records: u64,
}

/// The stages that no row is on.
#[derive(Clone, Default)]
struct Stages {
    /// Whether their gateways speak HTTP/2.
    h2c: bool,
    free: Arc<Mutex<Vec<Stage>>>,
}

impl Stages {
    fn play(&self, row: &Row) -> Result<(), Failed> {
        let free = self.free.lock().unwrap().pop();
        let mut stage = free.unwrap_or_else(|| Stage::new(self.h2c, SOON));
        match stage.play(row) {
            Ok(()) => {
                self.free.lock().unwrap().push(stage);
                Ok(())
            }
            // Too much at the upstream or in the store is no matter of time, and may be a former row's doing: that is not tried again.
            Err(Miss::Left(why)) => Err(why.into()),
            Err(Miss::Answers(first)) => {
                Stage::new(self.h2c, LATER).play(row).map_err(|second| match second {
                    Miss::Answers(why) | Miss::Left(why) => format!("{first}; then {why}").into(),
                })
            }
        }
    }
}

/// What is not as a row says.
enum Miss {
    /// What the caller was told.
    Answers(String),
    /// What was left at the upstream or in the store.
    Left(String),
}

impl Stage {
    fn new(h2c: bool, time: &str) -> Self {
        let upstream = Upstream::start();
        let config = format!("h2c = {h2c}\n{}", CONFIG.replace("TIME", time));
        let gateway = Gateway::start(&upstream, &config);
        Self { upstream, gateway, runs: 0, records: 0 }
    }

    fn play(&mut self, row: &Row) -> Result<(), Miss> {
        self.upstream.otherwise(row.upstream.clone().map(Step::Raw));
        let answers = match row.way {
            Way::Raw => told(&raw(self.gateway.address, &row.bytes, row.closes)),
            Way::Admin => told(&raw(self.gateway.admin, &row.bytes, row.closes)),
            Way::Frames => frames::exchange(self.gateway.address, &row.bytes),
        };
        let before = self.runs;
        self.runs += row.runs;
        self.records += row.records;
        let is_told = fit(&answers, &row.answers);
        if is_told {
            self.settle();
        }
        let seen = self.upstream.seen();
        let (runs, records) = (seen.len(), self.gateway.records());
        let seen = &seen[before.min(runs)..];
        let unprotected = seen.iter().filter(|seen| !seen.is_protected()).count();
        let told_runs = || format!("{} runs, wanted {}", runs - before, row.runs);
        let told_records = || format!("{records} records on this gateway, wanted {}", self.records);
        let nothing_wrong = || {
            missed_unless(runs <= self.runs, told_runs)?;
            missed_unless(records <= self.records, told_records)?;
            missed_unless(row.is_open || unprotected == 0, || {
                format!("{unprotected} unprotected")
            })?;
            seen.iter().try_for_each(well_put)
        };
        nothing_wrong().map_err(Miss::Left)?;
        if !is_told {
            return Err(Miss::Answers(format!("got {answers:?}, wanted {:?}", row.answers)));
        }
        missed_unless(runs == self.runs, told_runs).map_err(Miss::Left)?;
        missed_unless(records == self.records, told_records).map_err(Miss::Left)
    }

    /// Waits until what was wanted is there: a caller who hangs up is not told when it is.
    fn settle(&self) {
        let end = Instant::now() + PATIENCE;
        let is_there =
            || self.upstream.seen().len() >= self.runs && self.gateway.records() >= self.records;
        while !is_there() && Instant::now() < end {
            std::thread::yield_now();
        }
    }
}

/// Whatever reaches the upstream is framed in one way, and says only what is true of the caller.
fn well_put(seen: &Seen) -> Result<(), String> {
    let one = |name: &str| seen.message.all(name).len();
    let framings = one("content-length") + one("transfer-encoding");
    missed_unless(framings <= 1, || format!("{framings} framings: {seen:?}"))?;
    missed_unless(seen.message.start.ends_with(" HTTP/1.1"), || format!("{seen:?}"))?;
    let forwarded = seen.message.all("x-forwarded-for");
    missed_unless(forwarded == ["127.0.0.1"], || format!("forged: {forwarded:?}"))?;
    let elsewhere = ["x-original-url", "x-rewrite-url", "x-forwarded-uri"];
    let named = elsewhere.iter().map(|name| one(name)).sum::<usize>();
    missed_unless(named == 0, || format!("another path: {seen:?}"))?;
    missed_unless(one("forwarded") + one("x-real-ip") == 0, || format!("forged: {seen:?}"))
}

/// What answers come to, in words. A replay that differs from the first answer is no replay.
fn told(answers: &[Message]) -> Vec<String> {
    let kept = |answer: &Message| {
        let mut headers = answer.headers.clone();
        let passing = ["idempotent-replayed", "x-request-id", "date", "connection", "set-cookie"];
        headers.retain(|(name, _)| !passing.contains(&name.to_ascii_lowercase().as_str()));
        headers.sort();
        (answer.status(), headers, answer.body.clone())
    };
    let word = |answer: &Message| {
        let mut words = vec![answer.status().to_string()];
        if answer.is_replay() {
            let is_same = answers.first().is_some_and(|first| kept(first) == kept(answer));
            words.push(if is_same { "r" } else { "another" }.into());
        }
        words.push(answer.code());
        words.push(format!("{}_bytes", answer.body.len()));
        words.push(format!("{}_cookies", answer.all("set-cookie").len()));
        words.join(" ")
    };
    answers.iter().map(word).collect()
}

/// Whether the answers are what a row says: words that must be among those of each answer, `r`
/// among them where it is a replay, `none` for no answer at all; `/` between alternatives that
/// depend on timing.
fn fit(answers: &[String], wanted: &str) -> bool {
    let holds = |got: &str, wanted: &str| {
        let has = |text: &str, word: &str| text.split(' ').any(|other| other == word);
        wanted.split(' ').all(|word| has(got, word)) && has(got, "r") == has(wanted, "r")
    };
    wanted.split(" / ").any(|wanted| {
        let wanted: Vec<&str> = match wanted {
            "none" => vec![],
            list => list.split(", ").collect(),
        };
        wanted.len() == answers.len()
            && wanted.iter().zip(answers).all(|(wanted, got)| holds(got, wanted))
    })
}

fn missed_unless(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
