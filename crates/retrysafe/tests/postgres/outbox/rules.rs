//! Do the server's functions decide as the rules do?
//!
//! Random events for one effect, at the server and in [`retrysafe_core::effect`], whose clock the test turns. After each
//! event the two must be in the same state, with the same fence, mark, counters and times. The server draws its fences from a
//! sequence: what must be the same is when a fence rises. To whom an effect was sent is known to the server alone; to the rules
//! another receiver is one that takes no key.

use std::time::Duration;

use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::strategy::{Just, ValueTree as _};
use proptest::test_runner::TestRunner;
use retrysafe_core::effect::{
    Claimed, DeliveryLimits, Effect, EffectEnd, EffectEvidence, EffectRefusal, EffectState,
    Finished, Marked, SentMark,
};
use retrysafe_core::record::Fence;
use retrysafe_core::time::Time;
use tokio_postgres::Client;

use crate::kit::{client, database, sql};

const START: u64 = 1_700_000_000_000;
const LIMITS: DeliveryLimits = DeliveryLimits { failures_max: 3, crashes_max: 2 };
const HISTORIES: usize = 150;
const EVENTS_MAX: usize = 60;

#[derive(Clone, Debug)]
enum Event {
    Later(u64),
    Claim,
    Mark { fences_ago: u64, is_keyed: bool, receiver: u8 },
    Renew { fences_ago: u64 },
    HandBack { fences_ago: u64 },
    Finish { fences_ago: u64, end: u8 },
    Sweep,
    Cancel,
    Requeue,
    Resolve { fences_ago: u64, evidence: u8 },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    // Mostly the present owner, sometimes a former one.
    let ago = || prop_oneof![6 => Just(0_u64), 1 => 1_u64..3];
    // Few ends are final, so that a history has something to tell.
    let ends = || prop_oneof![1 => Just(0_u8), 1 => Just(1), 3 => Just(2), 6 => Just(3)];
    let event = prop_oneof![
        6 => (1_u64..9_000).prop_map(Event::Later),
        10 => Just(Event::Claim),
        10 => (ago(), any::<bool>(), prop_oneof![2 => Just(1_u8), 1 => Just(2)]).prop_map(
            |(fences_ago, is_keyed, receiver)| Event::Mark { fences_ago, is_keyed, receiver }
        ),
        1 => ago().prop_map(|fences_ago| Event::Renew { fences_ago }),
        1 => ago().prop_map(|fences_ago| Event::HandBack { fences_ago }),
        8 => (ago(), ends()).prop_map(|(fences_ago, end)| Event::Finish { fences_ago, end }),
        4 => Just(Event::Sweep),
        1 => Just(Event::Cancel),
        2 => Just(Event::Requeue),
        2 => (ago(), 0_u8..4)
            .prop_map(|(fences_ago, evidence)| Event::Resolve { fences_ago, evidence }),
    ];
    proptest::collection::vec(event, 1..EVENTS_MAX)
}

const LEASE: Duration = Duration::from_millis(5_000);
const MEMORY: Duration = Duration::from_millis(12_000);
const PAUSE: Duration = Duration::from_millis(700);
const SETTLE_TIME: Duration = Duration::from_millis(3_000);

fn end_of(code: u8) -> EffectEnd {
    match code {
        0 => EffectEnd::Delivered,
        1 => EffectEnd::Rejected,
        2 => EffectEnd::NoEffect { retry_after: PAUSE },
        _ => EffectEnd::NoAnswer { retry_after: PAUSE },
    }
}

/// To whom an effect was sent, after an event that has led from one state of it to another. None: to anybody.
fn sent_to(before: &Effect, event: &Event, after: &Effect, was: Option<u8>) -> Option<u8> {
    match event {
        Event::Mark { receiver, .. } if after.mark.is_some() && before.mark != after.mark => {
            Some(*receiver)
        }
        // The first one that is sent what was requeued.
        Event::Mark { receiver, fences_ago: 0, .. }
            if after.mark.is_some() && is_leased(before) =>
        {
            was.or(Some(*receiver))
        }
        Event::Requeue if before != after => None,
        _ => was,
    }
}

fn is_leased(effect: &Effect) -> bool {
    matches!(effect.state, EffectState::Leased(_))
}

/// What the rules make of an event.
fn by_rules(effect: &Effect, event: &Event, sent_to: Option<u8>, now: Time) -> Effect {
    let fence = |ago: &u64| Fence(effect.fence.0.saturating_sub(*ago));
    let decided = match event {
        Event::Later(_) => None,
        Event::Claim => match effect.claim(LEASE, now) {
            Claimed::Leased(next) => Some(next),
            // The server leaves it to its sweeper.
            Claimed::Unknown(_) | Claimed::NotReady => None,
        },
        Event::Mark { fences_ago, is_keyed, receiver } => {
            let is_another = effect.mark.is_some() && sent_to.is_some_and(|was| was != *receiver);
            let memory = is_keyed.then_some(MEMORY).filter(|_| !is_another);
            match effect.mark(fence(fences_ago), memory, now) {
                Marked::Stands(next) | Marked::Unknown(next) => Some(next),
                Marked::Lost => None,
            }
        }
        Event::Renew { fences_ago } => effect.renew(fence(fences_ago), LEASE, now),
        Event::HandBack { fences_ago } => effect.hand_back(fence(fences_ago), now),
        Event::Finish { fences_ago, end } => {
            match effect.finish(fence(fences_ago), end_of(*end), &LIMITS, now) {
                Finished::Changed(next) => Some(next),
                Finished::Repeated | Finished::Lost => None,
            }
        }
        Event::Sweep => effect.sweep(&LIMITS, now),
        Event::Cancel => effect.cancel().ok(),
        Event::Requeue => effect.requeue(now).ok(),
        Event::Resolve { fences_ago, evidence } => {
            let evidence = match evidence {
                0 => EffectEvidence::Delivered,
                1 => EffectEvidence::NoEffect,
                3 => EffectEvidence::Unwanted,
                _ => EffectEvidence::Absent { settle_time: SETTLE_TIME },
            };
            let is_about_this = fence(fences_ago) == effect.fence;
            effect.resolve(evidence, now).ok().filter(|_| is_about_this)
        }
    };
    decided.unwrap_or(*effect)
}

/// The fences that the server has drawn for an effect, by the numbers that the rules give them.
struct DrawnFences(Vec<i64>);

impl DrawnFences {
    /// The server's fence so many fences ago.
    fn ago(&self, fences: u64) -> i64 {
        self.0[self.0.len().saturating_sub(1 + fences as usize)]
    }

    /// Notes that a fence has risen.
    fn rise(&mut self, fence: Fence) {
        let drawn = i64::try_from(fence.0).unwrap();
        assert!(drawn > self.ago(0), "{drawn} after {:?}", self.0);
        self.0.push(drawn);
    }

    /// A fence of the server's, as the rules number it.
    fn number(&self, fence: Fence) -> Fence {
        let at = self.0.iter().position(|drawn| *drawn as u64 == fence.0);
        Fence(at.unwrap_or_else(|| panic!("{fence:?} is none of {:?}", self.0)) as u64)
    }

    /// An effect of the server's, as the rules number its fences.
    fn numbered(&self, effect: Effect) -> Effect {
        let mark = effect.mark.map(|mark| SentMark {
            set_by: self.number(mark.set_by),
            last_by: self.number(mark.last_by),
            ..mark
        });
        Effect { fence: self.number(effect.fence), mark, ..effect }
    }
}

async fn at_server(server: &Client, id: i64, fences: &DrawnFences, event: &Event) {
    let fence = |ago: &u64| fences.ago(*ago);
    let lease = LEASE.as_millis();
    let sql = match event {
        Event::Later(ms) => format!("UPDATE retrysafe_test.clock SET ms = ms + {ms}"),
        Event::Claim => format!("SELECT id FROM retrysafe.claim_effects_v1('mail', 10, {lease})"),
        Event::Mark { fences_ago, is_keyed, receiver } => {
            let memory = if *is_keyed { MEMORY.as_millis().to_string() } else { "NULL".into() };
            let fence = fence(fences_ago);
            format!(
                "SELECT id FROM retrysafe.mark_effects_v1('{{{id}}}', '{{{fence}}}', '{{{receiver}}}', {memory})"
            )
        }
        Event::Renew { fences_ago } => {
            let fence = fence(fences_ago);
            format!("SELECT id FROM retrysafe.renew_effects_v1('{{{id}}}', '{{{fence}}}', {lease})")
        }
        Event::HandBack { fences_ago } => {
            let fence = fence(fences_ago);
            format!("SELECT id FROM retrysafe.hand_back_effects_v1('{{{id}}}', '{{{fence}}}')")
        }
        Event::Finish { fences_ago, end } => {
            let (fence, pause, most) = (fence(fences_ago), PAUSE.as_millis(), LIMITS.failures_max);
            format!(
                "SELECT id FROM retrysafe.finish_effects_v1('{{{id}}}', '{{{fence}}}', '{{{end}}}',
                '{{{pause}}}', '{{ref}}', '{{why}}', {most})"
            )
        }
        Event::Sweep => {
            format!("SELECT * FROM retrysafe.sweep_effects_v1({}, 10)", LIMITS.crashes_max)
        }
        Event::Cancel => format!("SELECT retrysafe.cancel_effect_v1({id})"),
        Event::Requeue => format!("SELECT retrysafe.requeue_effect_v1({id})"),
        Event::Resolve { fences_ago, evidence } => {
            let (fence, settle) = (fence(fences_ago), SETTLE_TIME.as_millis());
            format!(
                "SELECT retrysafe.resolve_effect_v1({id}, {fence}, {evidence}::smallint, {settle},
                'ref', 'looked')"
            )
        }
    };
    server.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// The effect as the server has it. When a dead one died and when one was delivered does not matter to the rules.
async fn seen(server: &Client, id: i64) -> (Effect, Option<&'static str>) {
    let rows = "SELECT state, at, fence, marked_by, resend_until, failures, crashes, sent_by FROM retrysafe.effect WHERE id = $1
        UNION ALL SELECT state, at, fence, NULL, NULL, failures, crashes, NULL FROM retrysafe.effect_done WHERE id = $1";
    let row = server.query_one(rows, &[&id]).await.unwrap();
    let at = Time::from_ms(row.get::<_, i64>(1) as u64);
    let state = match row.get::<_, i16>(0) {
        0 => EffectState::Waiting,
        1 => EffectState::Ready(at),
        2 => EffectState::Leased(at),
        3 => EffectState::Unknown(at),
        4 => EffectState::Dead,
        5 => EffectState::Delivered,
        _ => EffectState::Cancelled,
    };
    let is_over = matches!(state, EffectState::Delivered | EffectState::Cancelled);
    let mark = row.get::<_, Option<i64>>(3).map(|set_by| SentMark {
        set_by: Fence(set_by as u64),
        last_by: Fence(row.get::<_, i64>(7) as u64),
        resend_until: row.get::<_, Option<i64>>(4).map(|ms| Time::from_ms(ms as u64)),
    });
    let effect = Effect {
        state,
        fence: Fence(row.get::<_, i64>(2) as u64),
        mark,
        failures: row.get::<_, i32>(5) as u32,
        crashes: row.get::<_, i32>(6) as u32,
    };
    (effect, is_over.then_some("over"))
}

#[tokio::test]
async fn the_server_and_the_rules_decide_alike() {
    let url = database().await;
    sql(&url, &format!("UPDATE retrysafe_test.clock SET still = true, ms = {START}")).await;
    let server = client(&url).await;
    let mut runner = TestRunner::deterministic();
    let mut now = START;
    let mut met = std::collections::BTreeSet::new();
    for _ in 0..HISTORIES {
        // One effect at a time, so that a claim or a sweep is about that one.
        server.batch_execute("DELETE FROM retrysafe.effect").await.unwrap();
        let stage =
            "SELECT id FROM retrysafe.stage_v1('mail', NULL, NULL, '', NULL, NULL, NULL, NULL)";
        let id: i64 = server.query_one(stage, &[]).await.unwrap().get(0);
        let mut expected = Effect::staged(EffectState::Ready(Time::from_ms(now)));
        let mut receiver = None;
        let mut fences = DrawnFences(vec![0]);
        let history = events().new_tree(&mut runner).unwrap().current();
        for (at, event) in history.iter().enumerate() {
            if let Event::Later(ms) = event {
                now += ms;
            }
            at_server(&server, id, &fences, event).await;
            let next = by_rules(&expected, event, receiver, Time::from_ms(now));
            receiver = sent_to(&expected, event, &next, receiver);
            let (seen, over) = seen(&server, id).await;
            if next.fence > expected.fence {
                fences.rise(seen.fence);
            }
            expected = next;
            met.insert(format!("{:?}", seen.state).split('(').next().unwrap().to_owned());
            if over.is_some() {
                // What is over keeps no mark.
                expected.mark = None;
            }
            assert_eq!(fences.numbered(seen), expected, "after {:?}", &history[..=at]);
        }
    }
    assert_eq!(met.len(), 6, "every state was met but that of lanes: {met:?}");
}

/// The refusals have the same names on both sides.
#[test]
fn refusals_are_named_alike() {
    for refusal in [
        EffectRefusal::WrongState,
        EffectRefusal::MayHaveBeenSent,
        EffectRefusal::PastMemory,
        EffectRefusal::TooEarly,
    ] {
        let word = format!("{refusal:?}");
        let spelt = word.chars().fold(String::new(), |mut spelt, letter| {
            if letter.is_uppercase() && !spelt.is_empty() {
                spelt.push('_');
            }
            spelt.push(letter.to_ascii_lowercase());
            spelt
        });
        let sql = include_str!("../../../src/stores/postgres/migrations/0004_outbox.sql");
        assert!(sql.contains(&format!("'{spelt}'")), "{spelt}");
    }
}
