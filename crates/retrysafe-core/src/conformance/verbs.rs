//! Do begin and settle keep the promise over this store?
//!
//! A store is only right if the verbs over it are. From here on the cases go through the
//! [`Engine`], as every adapter does.

use super::samples::*;
use super::stand::Stand;
use crate::engine::{Begun, Engine, Lease, Settled};
use crate::record::{Answer, Doubt, Happened, LateResult, Outcome, Record, Standing};
use crate::store::Store;

/// Settles what must hold.
pub(super) async fn settled(
    engine: &Engine<impl Store>,
    lease: Lease,
    outcome: &Outcome,
) -> Record {
    match engine.settle(lease, outcome).await.expect("the settle is answered") {
        Settled::Done(record) => record,
        Settled::Lost { current, .. } => panic!("{outcome:?} lost to {current:?}"),
    }
}

/// Settles what must come too late; what holds instead, and whether the two contradict each other.
pub(super) async fn refused(
    engine: &Engine<impl Store>,
    lease: Lease,
    outcome: &Outcome,
) -> (Option<Record>, bool) {
    match engine.settle(lease, outcome).await.expect("the settle is answered") {
        Settled::Lost { current, contradiction } => (current, contradiction),
        Settled::Done(record) => panic!("{outcome:?} became {record:?}"),
    }
}

/// Executed once, answered with the same bytes from then on.
pub(super) async fn a_first_request_executes_and_its_retries_replay(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    assert_eq!((lease.attempt(), lease.length(), lease.id()), (1, LEASE, request.id()));
    let record = settled(&engine, lease, &done("the answer")).await;
    assert_eq!(record.standing(), Standing::Completed);
    for _ in 0..5 {
        assert_eq!(request.replay(&engine).await, answer("the answer"));
    }
    assert_eq!(request.record(&engine).await, record, "a replay changes nothing");
}

/// However many arrive at once.
pub(super) async fn of_32_begins_one_executes(bench: Stand) {
    for round in 0..8 {
        let engine = shaken(&bench);
        let request = Request::new(&format!("k{round}"));
        let begun = race(RACERS, |n| {
            let (engine, request) = (engine.clone(), request.clone());
            async move { request.begin(&engine, n as u64).await }
        })
        .await;
        let mut executing = 0;
        for begun in begun {
            match begun {
                Begun::Execute(_) => executing += 1,
                Begun::InProgress(left) => assert!(!left.is_zero() && left <= LEASE),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(executing, 1);
    }
}

/// Duplicates that arrive while the first one settles see it running, or its answer.
pub(super) async fn duplicates_beside_a_settle_see_it_running_or_its_answer(bench: Stand) {
    for round in 0..8 {
        let engine = shaken(&bench);
        let request = Request::new(&format!("k{round}"));
        let mut first = Some(request.execute(&engine, 1).await);
        race(RACERS, |n| {
            let (engine, request, lease) = (engine.clone(), request.clone(), first.take());
            async move {
                if let Some(lease) = lease {
                    settled(&engine, lease, &done("x")).await;
                    return;
                }
                match request.begin(&engine, n as u64).await {
                    Begun::InProgress(_) => {}
                    Begun::Replay(kept, _) => assert_eq!(kept, answer("x")),
                    other => panic!("{other:?}"),
                }
            }
        })
        .await;
        assert_eq!(request.replay(&engine).await, answer("x"));
    }
}

/// A request that surely was not executed may run again: under a higher fence, and once.
pub(super) async fn of_32_begins_after_a_retryable_end_one_executes(bench: Stand) {
    for round in 0..8 {
        let engine = shaken(&bench);
        let request = Request::new(&format!("k{round}"));
        let lease = request.execute(&engine, 1).await;
        let fence = lease.fence();
        settled(&engine, lease, &Outcome::Retryable(None)).await;
        let begun = race(RACERS, |n| {
            let (engine, request) = (engine.clone(), request.clone());
            async move { request.begin(&engine, 10 + n as u64).await }
        })
        .await;
        let mut leases = begun.into_iter().filter_map(|begun| match begun {
            Begun::Execute(lease) => Some(lease),
            Begun::InProgress(_) => None,
            Begun::Replay(..)
            | Begun::Mismatch
            | Begun::CredentialChanged
            | Begun::Held(_)
            | Begun::Unknown(_) => panic!("{begun:?}"),
        });
        let lease = leases.next().expect("one executes");
        assert!(leases.next().is_none(), "only one executes");
        assert!(lease.fence() > fence);
        assert_eq!(lease.attempt(), 2);
    }
}

/// The key of another request is refused in every state, and nothing changes.
pub(super) async fn another_request_under_the_key_is_a_mismatch_in_every_state(bench: Stand) {
    let engine = Engine::new(bench.store());
    for (n, how) in Standing::ALL.into_iter().enumerate() {
        let key = format!("k{n}");
        let record = standing(engine.store(), &key, how).await;
        let other = Request::new(&key).meaning(2);
        assert!(matches!(other.begin(&engine, 9).await, Begun::Mismatch), "in {how:?}");
        assert_eq!(other.record(&engine).await, record);
    }
}

/// Even when its lease is over: a stranger does not move the record.
pub(super) async fn another_request_does_not_move_an_ended_lease(bench: Stand) {
    let engine = Engine::new(bench.store());
    let record = standing(engine.store(), "k", Standing::InProgress).await;
    bench.advance(LEASE * 2).await;
    let other = Request::new("k").meaning(2);
    assert!(matches!(other.begin(&engine, 9).await, Begun::Mismatch));
    assert_eq!(other.record(&engine).await, record);
}

/// Once its record has expired the key is free, for another request too.
pub(super) async fn an_expired_key_may_name_another_request(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    settled(&engine, lease, &done("x")).await;
    bench.advance(TTL * 2).await;
    let other = request.meaning(2);
    let lease = other.execute(&engine, 2).await;
    assert_eq!(lease.attempt(), 1);
    assert!(matches!(request.begin(&engine, 3).await, Begun::Mismatch));
}

/// An owner that went silent leaves doubt, and doubt is not permission.
pub(super) async fn of_32_begins_on_an_ended_lease_none_executes(bench: Stand) {
    for round in 0..8 {
        let engine = shaken(&bench);
        let request = Request::new(&format!("k{round}"));
        let lease = request.execute(&engine, 1).await;
        bench.advance(LEASE * 2).await;
        let begun = race(RACERS, |n| {
            let (engine, request) = (engine.clone(), request.clone());
            async move { request.begin(&engine, 10 + n as u64).await }
        })
        .await;
        assert!(begun.iter().all(|begun| matches!(begun, Begun::Unknown(_))), "{begun:?}");
        let record = request.record(&engine).await;
        assert_eq!((record.standing(), record.fence), (Standing::Unknown, lease.fence()));
        let doubted = Happened::Doubted(Doubt::LeaseEnded);
        assert_eq!(record.timeline.iter().filter(|moment| moment.what == doubted).count(), 1);
    }
}

/// No caller ever gets from unknown to execution, at any age.
pub(super) async fn an_unknown_request_never_executes(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    settled(&engine, lease, &Outcome::Unknown(Doubt::AnswerLost)).await;
    for owner in 2..6 {
        assert!(matches!(request.begin(&engine, owner).await, Begun::Unknown(_)));
        bench.advance(AGES).await;
        assert_eq!(engine.reap(100).await.expect("it is answered"), 0);
    }
}

/// An owner that comes back while nobody has decided tells the truth.
pub(super) async fn a_late_owner_settles_what_is_unknown(bench: Stand) {
    let engine = Engine::new(bench.store());
    for (n, outcome) in [done("late"), Outcome::Retryable(None)].into_iter().enumerate() {
        let request = Request::new(&format!("k{n}"));
        let lease = request.execute(&engine, 1).await;
        bench.advance(LEASE * 2).await;
        assert!(matches!(request.begin(&engine, 2).await, Begun::Unknown(_)));
        let record = settled(&engine, lease, &outcome).await;
        assert_eq!(record.standing(), outcome.standing());
    }
    assert_eq!(Request::new("k0").replay(&engine).await, answer("late"));
    assert_eq!(Request::new("k1").execute(&engine, 3).await.attempt(), 2);
}

/// A late owner is in time as long as nobody has looked.
pub(super) async fn a_settle_after_the_lease_counts_if_nobody_has_looked(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    bench.advance(AGES).await;
    settled(&engine, lease, &done("x")).await;
    assert_eq!(request.replay(&engine).await, answer("x"));
}

/// An owner that has been overtaken changes nothing, and what it knows is kept as evidence.
pub(super) async fn an_overtaken_owner_loses_and_leaves_evidence(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let late = request.execute(&engine, 1).await;
    let old_fence = late.fence();
    // The owner gave up, as far as the record knows, and another one took over.
    engine.withdraw(request.id(), 1).await.expect("it is answered");
    let lease = request.execute(&engine, 2).await;
    settled(&engine, lease, &done("second")).await;
    let (current, contradiction) = refused(&engine, late, &done("first")).await;
    assert!(contradiction, "two different answers");
    let record = request.record(&engine).await;
    assert_eq!(current.as_ref(), Some(&record));
    let evidence = Happened::LateResult(Box::new(LateResult::new(old_fence, &done("first"))));
    assert_eq!(record.timeline.iter().filter(|moment| moment.what == evidence).count(), 1);
    assert_eq!(request.replay(&engine).await, answer("second"));
}

/// "I did not" is no contradiction to another attempt's failure, nor to another attempt's answer.
pub(super) async fn a_late_no_contradicts_no_other_attempt(bench: Stand) {
    let engine = Engine::new(bench.store());
    for (n, outcome) in [done("x"), Outcome::Retryable(None)].into_iter().enumerate() {
        let request = Request::new(&format!("k{n}"));
        let late = request.execute(&engine, 1).await;
        engine.withdraw(request.id(), 1).await.expect("it is answered");
        let lease = request.execute(&engine, 2).await;
        settled(&engine, lease, &outcome).await;
        let (_, contradiction) = refused(&engine, late, &Outcome::Retryable(None)).await;
        assert!(!contradiction, "after {outcome:?}");
    }
}

/// The record of an owner that comes back too late may be gone altogether.
pub(super) async fn a_settle_of_a_reaped_record_is_lost_to_none(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let late = request.execute(&engine, 1).await;
    engine.withdraw(request.id(), 1).await.expect("it is answered");
    bench.advance(TTL * 2).await;
    assert_eq!(engine.reap(10).await.expect("it is answered"), 1);
    assert_eq!(refused(&engine, late, &done("x")).await, (None, false));
    assert_eq!(load(engine.store(), request.id()).await, None);
}

/// Nor does it reach into the next generation of its key.
pub(super) async fn a_settle_never_reaches_the_next_generation(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let late = request.execute(&engine, 1).await;
    engine.withdraw(request.id(), 1).await.expect("it is answered");
    bench.advance(TTL * 2).await;
    assert_eq!(engine.reap(10).await.expect("it is answered"), 1);
    let lease = request.execute(&engine, 2).await;
    let (_, contradiction) = refused(&engine, late, &done("former")).await;
    assert!(!contradiction, "the two are about different executions");
    settled(&engine, lease, &done("present")).await;
    assert_eq!(request.replay(&engine).await, answer("present"));
}

/// A begin reads the whole life of a record: fail, run again, complete, replay, expire, begin anew.
pub(super) async fn a_key_lives_through_its_whole_story(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let mut fences = Vec::new();
    for generation in 0..3 {
        for attempt in 1..4 {
            let lease = request.execute(&engine, attempt).await;
            assert_eq!(u64::from(lease.attempt()), attempt);
            fences.push(lease.fence());
            settled(&engine, lease, &Outcome::Retryable(None)).await;
        }
        let lease = request.execute(&engine, 4).await;
        fences.push(lease.fence());
        settled(&engine, lease, &done(vec![generation])).await;
        assert_eq!(request.replay(&engine).await, answer(vec![generation]));
        bench.advance(TTL * 2).await;
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

/// A terminal answer that was not kept replays as just that.
pub(super) async fn an_answer_that_was_not_kept_replays_as_such(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    let status = Some(http::StatusCode::OK);
    let not_kept = Answer::NotKept { status, location: None };
    settled(&engine, lease, &Outcome::Completed(not_kept.clone())).await;
    assert_eq!(request.replay(&engine).await, not_kept);
}
