//! Do SQL and the core's machine decide alike, whatever happened before?
//!
//! Random histories of one record after the other. Each operation is asked in SQL; the machine is asked the same about
//! the record as it was. The answers must be equal, and so must the record, with every moment of its timeline,
//! read by the program, which checks its seal. In between the program moves the record too: it sweeps, resolves, looks
//! up and keeps heads, so that SQL meets whatever the program writes.

use std::collections::BTreeMap;
use std::time::Duration;

use retrysafe::core::conformance::{Chance, SEED_VARIABLE};
use retrysafe::core::engine::{Engine, Renewal};
use retrysafe::core::flow::{FlowVersion, RecoveryPoint};
use retrysafe::core::machine::flows::FlowStep;
use retrysafe::core::machine::{Evidence, Proof, Verdict};
use retrysafe::core::record::{Answer as Stored, AnswerHead, Fence, Judge, Record, Standing};
use retrysafe::core::time::Time;
use retrysafe::core::{Id, Key, Scope, Store as _};
use retrysafe::stores::postgres::PostgresStore;

use super::caller::{Answer, Asked, Begun, Caller, Told};
use super::machine::{self, AboutToCall, Expected, Seen, words};
use crate::kit::bench::Database;

const HISTORIES: usize = 80;
const OPERATIONS: usize = 40;

/// What the histories are made of unless somebody asks for others: a fixed number, because others may by chance meet too little.
const SEED: u64 = 1;

/// How many numbers [`History::operate`] tells apart.
const VERBS: usize = 17;

/// What one history is about.
struct History {
    caller: Caller,
    engine: Engine<PostgresStore>,
    chance: Chance,
    key: String,
    id: Id,
    /// Every fence that an owner was given.
    fences: Vec<i64>,
    /// How often each answer was given, over all histories.
    answers: BTreeMap<String, usize>,
}

fn scope() -> Scope {
    Scope::of([("tenant", &b"acme"[..]), ("plan", &b"a,b:c"[..])])
}

impl History {
    async fn record(&self) -> (Option<Record>, Time) {
        let loaded = self.engine.store().load(self.id).await.expect("the record can be read");
        (loaded.value, loaded.now)
    }

    /// A fence: as a rule the present owner's.
    fn fence(&mut self, record: Option<&Record>) -> i64 {
        let present = record.map_or(1, |record| record.fence.0.cast_signed());
        if self.fences.is_empty() || self.chance.happens(850) {
            present
        } else {
            *self.chance.pick(&self.fences)
        }
    }

    /// A recovery point: as a rule the one where the flow is.
    fn point(&mut self, record: Option<&Record>) -> RecoveryPoint {
        let present = record.and_then(Record::recovery_point);
        let phase = self.chance.below(3) as u16;
        match present {
            Some(present) if self.chance.happens(850) => present,
            Some(_) | None if self.chance.happens(500) => RecoveryPoint::Before(phase),
            Some(_) | None => RecoveryPoint::Calling(phase),
        }
    }

    fn asked(&mut self) -> Asked {
        let mut fingerprint = vec![2; 41];
        fingerprint[40] = u8::from(self.chance.happens(50));
        let mark = |mark: &u8| (*mark > 0).then(|| vec![*mark; 16]);
        let flows = *self.chance.pick(&["ride/1 ri/de/2", "ride/1 ri/de/2 x/9", "x/9"]);
        Asked {
            scope: scope().as_bytes().to_vec(),
            key: self.key.clone(),
            fingerprint,
            flows: flows.split(' ').map(ToOwned::to_owned).collect(),
            ttl_ms: *self.chance.pick(&[1, 60_000, 3_600_000]),
            lease_ms: *self.chance.pick(&[1, 10_000, 60_000]),
            owner: *self.chance.pick(&[1, -7, i64::MIN, i64::MAX]),
            mark: mark(self.chance.pick(&[0, 0, 0, 0, 0, 0, 9])),
            request_id: self
                .chance
                .pick(&[None, Some("r-1".to_owned()), Some("ü".repeat(70))])
                .clone(),
        }
    }

    fn told(&mut self) -> Told {
        let ttl_ms = *self.chance.pick(&[None, Some(5_000)]);
        match self.chance.below(8) {
            0..=2 => Told {
                ttl_ms,
                ..Told::completed(if self.chance.happens(700) { "paid" } else { "" })
            },
            3 => {
                let headers = *self.chance.pick(&[None, Some(machine::NOT_KEPT_HEADERS)]);
                let status = *self.chance.pick(&[None, Some(200)]);
                Told { headers, status, ttl_ms, ..Told::outcome("not_kept") }
            }
            4 | 5 => Told {
                ttl_ms,
                status: *self.chance.pick(&[None, Some(503)]),
                ..Told::outcome("retryable")
            },
            _ => Told { ttl_ms, ..Told::outcome("unknown") },
        }
    }

    /// Which operation comes next: as a rule one that makes sense, so that histories get somewhere.
    fn verb(&mut self, record: Option<&Record>, now: Time) -> usize {
        if self.chance.happens(350) {
            return self.chance.below(VERBS);
        }
        let Some(record) = record else { return 0 };
        let verbs: &[usize] = match (record.standing(), record.recovery_point()) {
            (Standing::InProgress, _) if record.lease_until() <= Some(now) => &[0],
            (Standing::InProgress, None) => &[4, 4, 4, 13, 16],
            (Standing::InProgress, Some(RecoveryPoint::Before(_))) => &[6, 9, 9, 9, 13, 16],
            (Standing::InProgress, Some(RecoveryPoint::Calling(_))) => &[6, 6, 9, 12, 13],
            (Standing::Unknown, _) => &[0, 6, 13],
            (Standing::Completed | Standing::FailedRetryable, _) => &[0],
        };
        *self.chance.pick(verbs)
    }

    /// One operation in SQL, and the machine's word about it.
    async fn operate(&mut self) {
        let (before, now) = self.record().await;
        let id = self.id.as_bytes().to_vec();
        let fence = self.fence(before.as_ref());
        let point = self.point(before.as_ref());
        let from = words(Some(point)).expect("a point");
        let owner = (&*id, fence);
        let output = self.chance.pick(&[&b""[..], b"7", b"\0\xff"]).to_vec();
        match self.verb(before.as_ref(), now) {
            0..=3 => {
                let asked = self.asked();
                let begun = self.caller.begin(&asked).await;
                self.fences.extend(begun.as_ref().ok().and_then(|begun| begun.fence));
                let answer = begun.map(|begun| line(&begun));
                self.judge(before, now, answer, "begin", |seen| machine::begin(seen, &asked)).await;
            }
            4 | 5 => {
                let flow = *self.chance.pick(&[("ride", 1), ("ri/de", 2), ("held", 3)]);
                let code = format!("{}/{}", flow.0, flow.1);
                let answer = self.caller.start(owner, &code, &output).await;
                let step = FlowStep::Start {
                    flow: FlowVersion::new(flow.0, flow.1),
                    input: output.into(),
                };
                self.judge(before, now, answer, "start", |seen| {
                    machine::advance(seen, fence, &step, false)
                })
                .await;
            }
            6..=8 => {
                let joins = self.chance.happens(400);
                let answer = if joins {
                    self.caller.run("BEGIN").await.unwrap();
                    let answer = self.caller.advance_in(owner, &from, &output).await;
                    self.caller
                        .run(if answer.is_ok() { "COMMIT" } else { "ROLLBACK" })
                        .await
                        .unwrap();
                    answer
                } else {
                    self.caller.advance(owner, &from, &output).await
                };
                let (phase, output) = (point.phase(), output.into());
                let step = match point {
                    RecoveryPoint::Before(_) => FlowStep::Commit { phase, output },
                    RecoveryPoint::Calling(_) => FlowStep::CallResult { phase, output },
                };
                self.judge(before, now, answer, "advance", |seen| {
                    machine::advance(seen, fence, &step, joins)
                })
                .await;
            }
            9..=11 => {
                let request = if self.chance.happens(850) { &b"charge"[..] } else { b"other" };
                let remembers_ms = *self.chance.pick(&[
                    None,
                    Some(1),
                    Some(100_000),
                    Some(100_000),
                    Some(3_600_000),
                ]);
                let deadline_ms = *self.chance.pick(&[1, 5_000, 10_000]);
                let call = self
                    .caller
                    .about_to_call(owner, &from, request, remembers_ms, deadline_ms)
                    .await;
                let answer = call.map(|call| call.decision);
                let asked = AboutToCall { fence, from: point, request, remembers_ms, deadline_ms };
                self.judge(before, now, answer, "call", |seen| {
                    machine::about_to_call(seen, &asked)
                })
                .await;
            }
            12 => {
                let answer = self.caller.call_not_sent(owner, &from).await;
                let phase = match point {
                    RecoveryPoint::Calling(phase) => phase,
                    RecoveryPoint::Before(_) => u16::MAX,
                };
                self.judge(before, now, answer, "not sent", |seen| {
                    machine::call_not_sent(seen, fence, phase)
                })
                .await;
            }
            13 | 14 => {
                let told = self.told();
                let joins = self.chance.happens(400);
                let present = before.as_ref().and_then(Record::recovery_point);
                let point = if self.chance.happens(800) { present } else { Some(point) };
                let from = words(point);
                let answer = if joins {
                    self.caller.run("BEGIN").await.unwrap();
                    let answer = self.caller.settle_in(owner, &told, from.as_deref()).await;
                    self.caller
                        .run(if answer.is_ok() { "COMMIT" } else { "ROLLBACK" })
                        .await
                        .unwrap();
                    answer
                } else {
                    self.caller.settle(owner, &told, from.as_deref()).await
                };
                self.judge(before, now, answer, "settle", |seen| {
                    machine::settle(seen, fence, &told, point, joins)
                })
                .await;
            }
            15 => {
                let asking = *self.chance.pick(&[1, -7, i64::MIN, i64::MAX]);
                let answer = self.caller.withdraw(&id, asking).await;
                self.judge(before, now, answer, "withdraw", |seen| machine::withdraw(seen, asking))
                    .await;
            }
            _ => {
                let lease_ms = *self.chance.pick(&[1, 20_000]);
                let lease_max_ms = *self.chance.pick(&[15_000, 600_000]);
                let answer = self.caller.renew(owner, lease_ms, lease_max_ms).await;
                self.judge(before, now, answer, "renew", |seen| {
                    machine::renew(seen, fence, lease_ms, lease_max_ms)
                })
                .await;
            }
        }
    }

    async fn judge<T: std::fmt::Debug + PartialEq>(
        &mut self,
        before: Option<Record>,
        now: Time,
        answer: Answer<T>,
        verb: &str,
        expect: impl Fn(Seen<'_>) -> Expected<T>,
    ) {
        let (after, _) = self.record().await;
        let version = after.as_ref().map_or(0, |record| record.version);
        let expected = expect(Seen { before: before.as_ref(), now, version });
        assert_eq!(answer, expected.answer, "{verb} on {before:#?}");
        // A refused operation leaves the version alone, which this compares too.
        assert_eq!(after, expected.after, "{verb} at {now:?} on {before:#?}");
        let told = match &answer {
            Ok(told) => format!("{told:?}").split(' ').next().unwrap_or_default().to_owned(),
            Err(code) => code.clone(),
        };
        let told = told.trim_matches(|mark: char| mark == '"' || mark.is_ascii_digit()).to_owned();
        let told = if answer.is_err() { format!("{answer:?}") } else { told };
        let state = before.map_or("none", |record| record.standing().name());
        *self.answers.entry(format!("{verb:8} {state:16} {told}")).or_default() += 1;
    }

    /// Something that only the program does.
    async fn interfere(&mut self) {
        let (Some(record), _) = self.record().await else { return };
        let held = Renewal::new(self.id, record.fence);
        match self.chance.below(5) {
            0 => {
                self.engine.sweep(10).await.unwrap();
            }
            1 => {
                let head = AnswerHead { status: http::StatusCode::OK, location: None };
                let lease = Duration::from_secs(10);
                self.engine.keep_head(held, &head, lease, lease * 9).await.unwrap();
            }
            2 => drop(self.engine.looked_up(&record, "nothing yet").await.unwrap()),
            3 => {
                let not_kept = Stored::NotKept { status: None, location: None };
                let evidence = [
                    Evidence::NotExecuted(Proof::operator()),
                    Evidence::CallExecuted("found".into()),
                    Evidence::Executed(not_kept),
                ];
                let verdict = Verdict {
                    fence: record.fence,
                    evidence: self.chance.pick(&evidence).clone(),
                    judge: Judge::Operator,
                    reason: "looked".into(),
                };
                drop(self.engine.resolve(self.id, &verdict).await.unwrap());
            }
            _ => drop(self.engine.expire(self.id, None, "enough").await.unwrap()),
        }
        let (after, _) = self.record().await;
        self.fences
            .extend(after.map(|record| record.fence).map(|Fence(fence)| fence.cast_signed()));
    }
}

/// A begin's answer in one line, as the machine's side says it.
fn line(begun: &Begun) -> String {
    let decision = &begun.decision;
    let text = |bytes: &Option<Vec<u8>>| {
        String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned()
    };
    match &**decision {
        "execute" => {
            let flow = begun.flow.as_ref().map(|flow| {
                let outputs =
                    begun.outputs.iter().flatten().map(|output| String::from_utf8_lossy(output));
                format!(" {flow} {} {:?}", text(&begun.input), outputs.collect::<Vec<_>>())
            });
            let point = begun.recovery_point.clone().unwrap_or_default();
            format!(
                "execute {} {point}{}",
                begun.fence.unwrap_or_default(),
                flow.unwrap_or_default()
            )
        }
        "in_progress" => format!("in_progress {}", begun.retry_after_ms.unwrap_or_default()),
        "held" => format!("held {}", begun.flow.clone().unwrap_or_default()),
        "replay" => format!("replay {} {}", begun.status.unwrap_or_default(), text(&begun.body)),
        "not_replayable" => format!("not_replayable {}", begun.status.unwrap_or_default()),
        _ => decision.clone(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_histories_are_decided_as_the_machine_decides_them() {
    let seed = std::env::var(SEED_VARIABLE).map_or(SEED, |text| text.parse().expect("a number"));
    println!("{SEED_VARIABLE}={seed} repeats these histories");
    let database = Database::take().await;
    let caller = Caller::connect(&database.url).await;
    let engine = Engine::new(
        PostgresStore::connect(&format!("{}?deadline=30s", database.url)).await.unwrap(),
    );
    let (chance, key) = (Chance::new(seed), String::new());
    let id = Id::from_bytes([0; 32]);
    let mut history =
        History { caller, engine, chance, key, id, fences: vec![], answers: BTreeMap::new() };
    for number in 0..HISTORIES {
        history.key = format!("k {number}");
        history.id = Id::of(&scope(), &Key::new(&history.key).unwrap().digest());
        history.fences.clear();
        for _ in 0..OPERATIONS {
            match history.chance.below(10) {
                0 => history.interfere().await,
                1 | 2 => {
                    let by = *history
                        .chance
                        .pick(&[1_u32, 999, 9_000, 10_000, 60_000, 100_000, 3_600_000]);
                    let later = format!("UPDATE retrysafe_test.clock SET ms = ms + {by}");
                    history.caller.run(&later).await.unwrap();
                }
                _ => history.operate().await,
            }
        }
    }
    for (answer, count) in &history.answers {
        println!("{count:6} {answer}");
    }
    assert!(history.answers.len() > 40, "the histories meet too little: {:?}", history.answers);
}
