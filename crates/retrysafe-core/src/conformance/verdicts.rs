//! Is an unknown request decided once, by evidence?

use super::samples::*;
use super::stand::Stand;
use super::verbs::{refused, settled};
use crate::engine::{Begun, Engine, Lease, Ruled};
use crate::machine::{Evidence, Proof, Verdict};
use crate::record::{
    Answer, Doubt, Fence, Happened, Judge, LateResult, Outcome, Record, Standing, State,
};
use crate::store::Store;

pub(super) fn executed(fence: Fence, answer: Answer) -> Verdict {
    let evidence = Evidence::Executed(answer);
    Verdict { fence, evidence, judge: Judge::Webhook, reason: "it said so".into() }
}

pub(super) fn not_executed(fence: Fence) -> Verdict {
    let evidence = Evidence::NotExecuted(Proof::burnt());
    Verdict { fence, evidence, judge: Judge::Operator, reason: "burnt downstream".into() }
}

/// A request whose owner left it unknown, and that owner's lease.
async fn unknown(bench: &Stand, engine: &Engine<impl Store>, key: &str) -> (Request, Lease) {
    let request = Request::new(key);
    let lease = request.execute(engine, 1).await;
    bench.advance(LEASE * 2).await;
    assert!(matches!(request.begin(engine, 2).await, Begun::Unknown(_)));
    (request, lease)
}

async fn resolve(engine: &Engine<impl Store>, request: &Request, verdict: &Verdict) -> Ruled {
    engine.resolve(request.id(), verdict).await.expect("the verdict is answered")
}

fn decided(ruled: Ruled) -> Record {
    match ruled {
        Ruled::Done(record) => record,
        Ruled::Refused(record) => panic!("refused: {record:?}"),
        Ruled::Absent => panic!("absent"),
    }
}

/// Evidence of the answer itself: it is replayed from then on, and the owner has lost.
pub(super) async fn evidence_of_execution_is_replayed(bench: Stand) {
    let engine = shaken(&bench);
    let (request, late) = unknown(&bench, &engine, "k").await;
    let verdict = executed(late.fence(), answer("found"));
    let record = decided(resolve(&engine, &request, &verdict).await);
    assert_eq!(record.standing(), Standing::Completed);
    assert!(record.fence > late.fence(), "a verdict raises the fence");
    assert_eq!(request.replay(&engine).await, answer("found"));
    let (current, contradiction) = refused(&engine, late, &done("other")).await;
    assert!(contradiction);
    assert_eq!(current.map(|record| record.standing()), Some(Standing::Completed));
    assert_eq!(request.replay(&engine).await, answer("found"));
}

/// Evidence of the mere fact is enough never to execute again.
pub(super) async fn evidence_of_the_mere_fact_is_final(bench: Stand) {
    let engine = shaken(&bench);
    let (request, late) = unknown(&bench, &engine, "k").await;
    let fact = Answer::NotKept { status: None, location: None };
    decided(resolve(&engine, &request, &executed(late.fence(), fact.clone())).await);
    assert_eq!(request.replay(&engine).await, fact);
}

/// Proof that nothing happened lets the next caller execute, and the late owner's word is kept.
pub(super) async fn proof_of_no_execution_frees_the_key(bench: Stand) {
    let engine = shaken(&bench);
    let (request, late) = unknown(&bench, &engine, "k").await;
    let record = decided(resolve(&engine, &request, &not_executed(late.fence())).await);
    assert_eq!(record.standing(), Standing::FailedRetryable);
    assert!(record.fence > late.fence());
    let lease = request.execute(&engine, 3).await;
    assert_eq!(lease.attempt(), 2);
    let old_fence = late.fence();
    let (_, contradiction) = refused(&engine, late, &done("after all")).await;
    assert!(contradiction, "the proof was wrong, and that is counted");
    let kept = request.record(&engine).await;
    let evidence = Happened::LateResult(Box::new(LateResult::new(old_fence, &done("after all"))));
    assert!(kept.timeline.iter().any(|moment| moment.what == evidence));
    settled(&engine, lease, &done("x")).await;
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// An owner that denies what the evidence showed changes nothing, and the contradiction is told.
pub(super) async fn a_late_no_against_the_evidence_is_a_contradiction(bench: Stand) {
    let engine = shaken(&bench);
    let (request, late) = unknown(&bench, &engine, "k").await;
    decided(resolve(&engine, &request, &executed(late.fence(), answer("found"))).await);
    let (_, contradiction) = refused(&engine, late, &Outcome::Retryable(None)).await;
    assert!(contradiction);
    assert_eq!(request.replay(&engine).await, answer("found"));
}

// An owner slept until its request was resolved, expired and the key used for another request. Its
// settle was refused with that other record, and its caller got the other request's answer.
/// What a late owner is told about is its own request, or nothing.
pub(super) async fn a_late_owner_is_not_told_of_another_request(bench: Stand) {
    let engine = shaken(&bench);
    let (request, late) = unknown(&bench, &engine, "k").await;
    decided(resolve(&engine, &request, &not_executed(late.fence())).await);
    bench.advance(TTL * 2).await;
    let other = request.meaning(9);
    let lease = other.execute(&engine, 3).await;
    settled(&engine, lease, &done("other")).await;
    let (current, _) = refused(&engine, late, &done("mine")).await;
    assert_eq!(current, None);
    assert_eq!(other.replay(&engine).await, answer("other"));
}

/// Reconciler, webhook and operator at once: one decides, and nobody flips it.
pub(super) async fn of_32_verdicts_one_is_decided(bench: Stand) {
    for round in 0..8 {
        let engine = shaken(&bench);
        let (request, late) = unknown(&bench, &engine, &format!("k{round}")).await;
        let fence = late.fence();
        let ruled = race(RACERS, |n| {
            let (engine, request) = (engine.clone(), request.clone());
            async move {
                let verdict = match n % 2 {
                    0 => not_executed(fence),
                    _ => executed(fence, answer(vec![n as u8])),
                };
                resolve(&engine, &request, &verdict).await
            }
        })
        .await;
        let current = request.record(&engine).await;
        let mut decided = 0;
        for ruled in ruled {
            match ruled {
                Ruled::Done(record) => {
                    decided += 1;
                    assert_eq!(record, current);
                }
                Ruled::Refused(record) => assert_eq!(record, current),
                Ruled::Absent => panic!("it is there"),
            }
        }
        assert_eq!(decided, 1);
    }
}

/// A verdict and the owner's own word at once: one of them holds, and the other learns it.
pub(super) async fn a_verdict_beside_a_late_settle_is_decided_once(bench: Stand) {
    for round in 0..16 {
        let engine = shaken(&bench);
        let (request, late) = unknown(&bench, &engine, &format!("k{round}")).await;
        let verdict = executed(late.fence(), answer("judge"));
        let mut late = Some(late);
        let held = race(2, |_| {
            let (engine, request, lease) = (engine.clone(), request.clone(), late.take());
            let verdict = verdict.clone();
            async move {
                match lease {
                    Some(lease) => match engine.settle(lease, &done("owner")).await {
                        Ok(crate::engine::Settled::Done(_)) => Some(answer("owner")),
                        Ok(crate::engine::Settled::Lost { .. }) => None,
                        Err(unsettled) => panic!("{unsettled:?}"),
                    },
                    None => match resolve(&engine, &request, &verdict).await {
                        Ruled::Done(_) => Some(answer("judge")),
                        Ruled::Refused(_) => None,
                        Ruled::Absent => panic!("it is there"),
                    },
                }
            }
        })
        .await;
        let held: Vec<Answer> = held.into_iter().flatten().collect();
        assert_eq!(held, [request.replay(&engine).await]);
    }
}

/// Decided once: neither the same verdict nor the opposite one changes anything.
pub(super) async fn a_second_verdict_is_refused(bench: Stand) {
    let engine = shaken(&bench);
    for n in 0..2 {
        let (request, late) = unknown(&bench, &engine, &format!("k{n}")).await;
        let fence = late.fence();
        let verdict = if n == 0 { executed(fence, answer("x")) } else { not_executed(fence) };
        let record = decided(resolve(&engine, &request, &verdict).await);
        for fence in [fence, record.fence] {
            for again in
                [executed(fence, answer("x")), executed(fence, answer("y")), not_executed(fence)]
            {
                let ruled = resolve(&engine, &request, &again).await;
                assert_eq!(ruled, Ruled::Refused(record.clone()));
            }
        }
        assert_eq!(request.record(&engine).await, record);
    }
}

/// There is nothing to decide about what is running, settled by its owner, or absent.
pub(super) async fn only_unknown_requests_are_decided(bench: Stand) {
    let engine = shaken(&bench);
    let request = Request::new("k");
    let verdict = not_executed(Fence(1));
    assert_eq!(resolve(&engine, &request, &verdict).await, Ruled::Absent);
    let lease = request.execute(&engine, 1).await;
    let verdict = not_executed(lease.fence());
    let running = request.record(&engine).await;
    assert_eq!(resolve(&engine, &request, &verdict).await, Ruled::Refused(running));
    let record = settled(&engine, lease, &done("x")).await;
    assert_eq!(resolve(&engine, &request, &verdict).await, Ruled::Refused(record));
    bench.advance(TTL * 2).await;
    assert_eq!(resolve(&engine, &request, &verdict).await, Ruled::Absent);
}

// Two reconcilers asked about an unknown request. One burnt its fence and freed the key; the next
// caller executed, and its answer was lost. Then the other one's answer arrived, "burnt", and was
// taken for proof about that second attempt: a third one executed again.
/// Evidence about a former attempt decides nothing about the present one.
pub(super) async fn a_verdict_decides_the_attempt_that_it_is_about(bench: Stand) {
    let engine = shaken(&bench);
    let (request, first) = unknown(&bench, &engine, "k").await;
    let (proof, found) = (not_executed(first.fence()), executed(first.fence(), answer("x")));
    decided(resolve(&engine, &request, &proof).await);
    let second = request.execute(&engine, 3).await;
    let (fence, doubt) = (second.fence(), Outcome::Unknown(Doubt::AnswerLost));
    let doubted = settled(&engine, second, &doubt).await;
    for stale in [proof, found] {
        assert_eq!(
            resolve(&engine, &request, &stale).await,
            Ruled::Refused(doubted.clone()),
            "{stale:?}"
        );
    }
    decided(resolve(&engine, &request, &executed(fence, answer("second"))).await);
    assert_eq!(request.replay(&engine).await, answer("second"));
}

/// Questions that brought nothing are counted: of reconcilers that ask at the same time, one.
pub(super) async fn lookups_are_counted(bench: Stand) {
    let engine = shaken(&bench);
    let (request, lease) = unknown(&bench, &engine, "k").await;
    for round in 1..=3 {
        let seen = request.record(&engine).await;
        let ruled = race(8, |_| {
            let (engine, seen) = (engine.clone(), seen.clone());
            async move { engine.looked_up(&seen, "pending").await.expect("it is answered") }
        })
        .await;
        let counted = ruled.iter().filter(|ruled| matches!(ruled, Ruled::Done(_))).count();
        assert_eq!(counted, 1, "{ruled:?}");
        let record = request.record(&engine).await;
        assert!(matches!(record.state, State::Unknown { lookups, .. } if lookups == round));
        let told = record.timeline.last().map(|moment| &moment.what);
        assert_eq!(told, Some(&Happened::LookedUp("pending".into())));
    }
    // Looking does not change the ownership: the owner may still tell.
    let seen = request.record(&engine).await;
    let record = settled(&engine, lease, &done("x")).await;
    let ruled = engine.looked_up(&seen, "pending").await.expect("it is answered");
    assert_eq!(ruled, Ruled::Refused(record));
}

/// An operator may end a retention; the key is free then, and the fence keeps rising.
pub(super) async fn an_ended_retention_frees_the_key(bench: Stand) {
    let engine = shaken(&bench);
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    let old_fence = lease.fence();
    let kept = settled(&engine, lease, &done("x")).await;
    // Whoever names another attempt has not seen this one.
    let other = Some(Fence(old_fence.0.wrapping_sub(1)));
    let refused = engine.expire(request.id(), other, "wrong amount").await.expect("answered");
    assert_eq!(refused, Ruled::Refused(kept));
    let ruled = engine.expire(request.id(), Some(old_fence), "wrong amount").await;
    let record = decided(ruled.expect("answered"));
    let why = Happened::Expired("wrong amount".into());
    assert_eq!(record.timeline.last().map(|moment| &moment.what), Some(&why));
    assert_eq!(engine.look(request.id()).await.expect("it is answered").value, None);
    let lease = request.execute(&engine, 2).await;
    assert!(lease.fence() > old_fence);
    assert_eq!(lease.attempt(), 1);
}

/// What is running or unknown cannot be made to be forgotten.
pub(super) async fn running_and_unknown_records_are_not_expired(bench: Stand) {
    let engine = shaken(&bench);
    let expire =
        async |request: &Request| engine.expire(request.id(), None, "no").await.expect("answered");
    let request = Request::new("k");
    assert_eq!(expire(&request).await, Ruled::Absent);
    let lease = request.execute(&engine, 1).await;
    let running = request.record(&engine).await;
    assert_eq!(expire(&request).await, Ruled::Refused(running));
    let doubted = settled(&engine, lease, &Outcome::Unknown(Doubt::Said)).await;
    bench.advance(AGES).await;
    assert_eq!(expire(&request).await, Ruled::Refused(doubted));
}

/// A look shows what lives.
pub(super) async fn a_look_shows_live_records_only(bench: Stand) {
    let engine = shaken(&bench);
    let request = Request::new("k");
    let look = async || engine.look(request.id()).await.expect("it is answered").value;
    assert_eq!(look().await, None);
    let lease = request.execute(&engine, 1).await;
    assert_eq!(look().await, Some(request.record(&engine).await));
    let record = settled(&engine, lease, &done("x")).await;
    assert_eq!(look().await, Some(record));
    bench.advance(TTL * 2).await;
    assert_eq!(look().await, None);
}
