//! Does a flow go on from its recovery point, and never from anywhere else?
//!
//! What a flow has committed is kept until the flow is completed. Whoever goes on with it does so
//! under a new fence, and only where no second effect can come of it.

use super::samples::*;
use super::stand::{AnyStore, Stand};
use super::verbs::settled;
use super::verdicts::not_executed;
use super::{Fault, Faulty, Op};
use crate::engine::{Advanced, Begun, Engine, Lease, Ruled};
use crate::flow::{
    FLOW_BYTES_MAX, FirstSentMark, FlowMove, FlowProgress, FlowVersion, PHASES_MAX, RecoveryPoint,
    RequestDigest, ResumeRule,
};
use crate::machine::flows::{FlowStep, SendDecision};
use crate::machine::{Evidence, Verdict};
use crate::record::{
    Answer, Becomes, Doubt, Fence, Happened, Judge, Outcome, Record, Standing, Write,
};
use crate::store::{Filter, Inserted, Store};
use crate::time::Time;

/// For how long a sample call may be repeated: longer than a few leases.
const REPEATABLE: std::time::Duration = std::time::Duration::from_secs(600);

fn ride() -> FlowVersion {
    FlowVersion::new("ride", 1)
}

pub(super) fn start() -> FlowStep {
    FlowStep::Start { flow: ride(), input: "input".into() }
}

pub(super) fn commit(phase: u16) -> FlowStep {
    FlowStep::Commit { phase, output: format!("output {phase}").into() }
}

fn call(phase: u16, is_keyed: bool) -> FlowStep {
    let digest = RequestDigest::of(b"charge");
    FlowStep::Call { phase, digest, repeatable_for: is_keyed.then_some(REPEATABLE) }
}

fn result(phase: u16) -> FlowStep {
    FlowStep::CallResult { phase, output: "charged".into() }
}

/// Begins what must be executed, or goes on with it.
pub(super) async fn go_on(engine: &Engine<impl Store>, request: &Request, owner: u64) -> Lease {
    match engine.begin_flow(&request.ask(owner), &[ride()]).await.expect("it is answered") {
        Begun::Execute(lease) => lease,
        other => panic!("not executed: {other:?}"),
    }
}

async fn advanced(engine: &Engine<impl Store>, lease: Lease, step: &FlowStep) -> Lease {
    match engine.advance(lease, step).await.expect("the advance is answered") {
        Advanced::Done(lease) => lease,
        other => panic!("{step:?}: {other:?}"),
    }
}

async fn lost(engine: &Engine<impl Store>, lease: Lease, step: &FlowStep) {
    let answer = engine.advance(lease, step).await.expect("the advance is answered");
    assert!(matches!(answer, Advanced::Lost), "{step:?}: {answer:?}");
}

/// A flow that has come so far.
pub(super) async fn flow_at(
    engine: &Engine<impl Store>,
    request: &Request,
    steps: &[FlowStep],
) -> Lease {
    let mut lease = go_on(engine, request, 1).await;
    for step in steps {
        lease = advanced(engine, lease, step).await;
    }
    lease
}

/// Whether somebody who begins is told that nobody knows.
async fn is_unknown(engine: &Engine<impl Store>, request: &Request) -> bool {
    let begun = engine.begin_flow(&request.ask(9), &[ride()]).await.expect("it is answered");
    matches!(begun, Begun::Unknown(_))
}

/// A flow's progress is kept as it is by every kind of write and reading.
pub(super) async fn a_flow_comes_back_from_every_write(bench: Stand) {
    let store = bench.store();
    let moves = |becomes| Write { becomes, new_fence: false, what: None, ttl: None };
    let marks = [None, Some(Time::from_ms(1)), Some(Time::from_ms(4_000_000_000_000))];
    for (n, resume_until) in marks.into_iter().enumerate() {
        let mut record = new(&store, first(&format!("k{n}"))).await;
        assert_eq!(record.flow, None);
        let digest = RequestDigest::of(b"charge");
        let mark = FirstSentMark { digest, set_by: record.fence, resume_until };
        let started = FlowMove::Started { flow: ride(), input: vec![0, 0xff].into() };
        for write in [
            moves(Becomes::Advanced(started)),
            renew(LEASE),
            moves(Becomes::Advanced(FlowMove::PhaseDone(vec![0xfe, 0, b'\n'].into()))),
            moves(Becomes::Advanced(FlowMove::PhaseDone("".into()))),
            moves(Becomes::LeaseEnded),
            take_over(2),
            keep_head(head(201, Some("/a"))),
            moves(Becomes::Advanced(FlowMove::CallMarked(mark))),
            touch(),
            doubt(),
            look_up(),
            moves(Becomes::Advanced(FlowMove::PhaseDone("late".into()))),
            fail(),
            take_over(3),
        ] {
            let before = record.clone();
            record = swapped(&store, &before, write.clone()).await;
            assert_eq!(record.flow, write.flow_after(&before), "{write:?}");
            assert_eq!(load(&store, record.id).await.as_ref(), Some(&record), "{write:?}");
            let found = all(&store, Filter::default(), 7).await;
            assert!(found.contains(&record), "a scan shows it too");
        }
        assert_eq!(record.recovery_point(), Some(RecoveryPoint::Before(3)));
        let done = swapped(&store, &record, complete(answer("x"))).await;
        assert_eq!(done.flow, None, "a completed flow is over");
        assert_eq!(load(&store, done.id).await, Some(done));
    }
}

/// A flow that starts with its begin: whoever comes after a dead owner goes on with it, and nobody is in doubt.
pub(super) async fn a_begin_carries_the_start_of_its_flow(bench: Stand) {
    let engine = Engine::new(bench.store());
    let begin = async |request: &Request, owner: u64| {
        let input = vec![0, 0xff, owner as u8].into();
        let start = FlowProgress::started(ride(), input).expect("it fits");
        engine.begin_started(&request.ask(owner), &[ride()], &start).await.expect("it is answered")
    };
    let request = Request::new("k");
    let Begun::Execute(lease) = begin(&request, 1).await else { panic!("not executed") };
    let flow = lease.flow().expect("it has started").clone();
    assert_eq!(
        (flow.input(), flow.recovery_point()),
        (&vec![0, 0xff, 1].into(), RecoveryPoint::Before(0))
    );
    let id = request.ask(1).id();
    let kept = load(engine.store(), id).await.expect("it is there");
    assert_eq!(kept.flow.as_deref(), Some(&flow), "as it was asked for");
    assert!(matches!(begin(&request, 2).await, Begun::InProgress(_)), "its lease is live");
    bench.advance(LEASE * 2).await;
    let Begun::Execute(next) = begin(&request, 3).await else { panic!("not executed") };
    assert_eq!(next.flow(), Some(&flow), "with the input of the first begin");
    let next = advanced(&engine, next, &commit(0)).await;
    settled(&engine, next, &done("done")).await;

    // A record that is there already, and has no flow, gets none by a begin.
    let plain = Request::new("plain");
    let lease = go_on(&engine, &plain, 1).await;
    settled(&engine, lease, &Outcome::Retryable(None)).await;
    let Begun::Execute(lease) = begin(&plain, 2).await else { panic!("not executed") };
    assert_eq!(lease.flow(), None);
}

/// The next caller goes on where a dead owner's last commit was, under a fence of its own.
pub(super) async fn a_flow_goes_on_from_its_recovery_point(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = flow_at(&engine, &request, &[start(), commit(0)]).await;
    assert!(matches!(request.begin(&engine, 2).await, Begun::InProgress(_)), "its lease is live");
    bench.advance(LEASE * 2).await;
    let next = go_on(&engine, &request, 2).await;
    assert!(next.fence() > lease.fence());
    assert_eq!(next.attempt(), 2);
    let flow = next.flow().expect("it is a flow").clone();
    assert_eq!((flow.flow(), &flow.input()[..]), (&ride(), &b"input"[..]));
    assert_eq!(flow.outputs(), ["output 0"]);
    assert_eq!(flow.recovery_point(), RecoveryPoint::Before(1));
    let next = advanced(&engine, next, &call(1, true)).await;
    let next = advanced(&engine, next, &result(1)).await;
    let record = settled(&engine, next, &done("done")).await;
    assert_eq!((record.standing(), record.flow), (Standing::Completed, None));
    assert_eq!(request.replay(&engine).await, answer("done"));
}

/// However many come back for it, one of them goes on.
pub(super) async fn of_32_begins_on_a_resumable_flow_one_goes_on(bench: Stand) {
    let engine = shaken(&bench);
    let request = Request::new("k");
    let lease = flow_at(&engine, &request, &[start(), commit(0)]).await;
    bench.advance(LEASE * 2).await;
    let begun = race(RACERS, |n| {
        let (engine, request) = (engine.clone(), request.clone());
        async move {
            let ask = request.ask(100 + n as u64);
            engine.begin_flow(&ask, &[ride()]).await.expect("it is answered")
        }
    })
    .await;
    let fences: Vec<Fence> = begun
        .iter()
        .filter_map(|begun| match begun {
            Begun::Execute(lease) => Some(lease.fence()),
            Begun::InProgress(_) => None,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(fences.len(), 1);
    assert!(fences.iter().all(|fence| *fence > lease.fence()));
}

/// An owner that was overtaken moves nothing; what its call has brought is kept as evidence.
pub(super) async fn an_overtaken_owner_advances_nothing(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let late = flow_at(&engine, &request, &[start(), commit(0), call(1, true)]).await;
    bench.advance(LEASE * 2).await;
    let next = go_on(&engine, &request, 2).await;
    let before = request.record(&engine).await;
    lost(&engine, late, &result(1)).await;
    let after = request.record(&engine).await;
    assert_eq!((&after.flow, &after.state), (&before.flow, &before.state));
    let told = after.timeline.last().map(|moment| &moment.what);
    assert!(
        matches!(told, Some(Happened::LateResult(late)) if late.body_start == "charged"),
        "{told:?}"
    );
    let next = advanced(&engine, next, &result(1)).await;
    settled(&engine, next, &done("x")).await;
}

/// A step is made from the recovery point that it names, once, and never back.
pub(super) async fn an_advance_starts_where_it_says(bench: Stand) {
    let engine = Engine::new(bench.store());
    for (n, wrong) in
        [start(), commit(0), commit(2), call(0, true), call(2, true), result(1), result(0)]
            .into_iter()
            .enumerate()
    {
        let request = Request::new(&format!("wrong {n}"));
        let lease = flow_at(&engine, &request, &[start(), commit(0)]).await;
        let before = request.record(&engine).await;
        // The same step again is no second one; all else is refused.
        if wrong == commit(0) {
            let lease = advanced(&engine, lease, &wrong).await;
            assert_eq!(lease.flow().map(|flow| flow.outputs().len()), Some(1));
        } else {
            lost(&engine, lease, &wrong).await;
        }
        let after = request.record(&engine).await;
        assert_eq!((&after.flow, &after.state), (&before.flow, &before.state), "{wrong:?}");
    }
    let request = Request::new("another output");
    let lease = flow_at(&engine, &request, &[start(), commit(0)]).await;
    lost(&engine, lease, &FlowStep::Commit { phase: 0, output: "other".into() }).await;
    assert_eq!(request.record(&engine).await.flow.expect("a flow").outputs(), ["output 0"]);
}

/// A call whose provider remembers our key is repeated up to that time, and not later.
pub(super) async fn a_call_is_resumed_until_its_provider_forgets(bench: Stand) {
    let engine = Engine::new(bench.store());
    let digest = RequestDigest::of(b"charge");
    let (soon, later) = (Request::new("soon"), Request::new("later"));
    for request in [&soon, &later] {
        drop(flow_at(&engine, request, &[start(), call(0, true)]).await);
    }
    bench.advance(LEASE * 2).await;
    let lease = go_on(&engine, &soon, 2).await;
    let flow = lease.flow().expect("a flow").clone();
    assert_eq!(flow.recovery_point(), RecoveryPoint::Calling(0));
    let mark = flow.mark().expect("the mark stands");
    assert!(mark.digest == digest && mark.set_by < lease.fence());
    let second = std::time::Duration::from_secs(1);
    assert_eq!(lease.may_send(&digest, true, second, second), SendDecision::Send);
    assert_eq!(lease.may_send(&digest, true, LEASE, second), SendDecision::TooLate);
    assert_eq!(lease.may_send(&digest, false, second, second), SendDecision::NotRepeatable);
    let other = RequestDigest::of(b"another charge");
    assert_eq!(lease.may_send(&other, true, second, second), SendDecision::OtherBytes);
    let record = settled(&engine, lease, &Outcome::Unknown(Doubt::OtherBytes)).await;
    assert_eq!(record.standing(), Standing::Unknown, "other bytes are a doubt at once");

    bench.advance(REPEATABLE).await;
    assert!(is_unknown(&engine, &later).await);
    assert_eq!(later.record(&engine).await.standing(), Standing::Unknown);
}

/// A call whose provider takes no key is never made by two owners.
pub(super) async fn an_unkeyed_call_is_unknown_when_its_owner_dies(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = flow_at(&engine, &request, &[start(), commit(0), call(1, false)]).await;
    assert_eq!(request.record(&engine).await.resume_rule(), ResumeRule::Never);
    let digest = RequestDigest::of(b"charge");
    let (now, second) = (std::time::Duration::ZERO, std::time::Duration::from_secs(1));
    assert_eq!(
        lease.may_send(&digest, false, now, second),
        SendDecision::Send,
        "its own owner may"
    );
    bench.advance(LEASE * 2).await;
    assert!(is_unknown(&engine, &request).await);
}

/// While a call may be in flight nothing is free again, whatever its owner says.
pub(super) async fn under_a_first_sent_mark_nothing_is_released(bench: Stand) {
    let engine = Engine::new(bench.store());
    for (n, outcome) in
        [Outcome::Retryable(None), Outcome::Unknown(Doubt::AnswerLost)].into_iter().enumerate()
    {
        let keyed = Request::new(&format!("keyed {n}"));
        let lease = flow_at(&engine, &keyed, &[start(), call(0, true)]).await;
        let record = settled(&engine, lease, &outcome).await;
        assert_eq!(record.standing(), Standing::InProgress, "only its lease has ended");
        let next = go_on(&engine, &keyed, 2).await;
        assert_eq!(next.flow().map(|flow| flow.recovery_point()), Some(RecoveryPoint::Calling(0)));

        let unkeyed = Request::new(&format!("unkeyed {n}"));
        let lease = flow_at(&engine, &unkeyed, &[start(), call(0, false)]).await;
        let record = settled(&engine, lease, &outcome).await;
        assert_eq!(record.standing(), Standing::Unknown);
        assert!(is_unknown(&engine, &unkeyed).await);
    }
}

/// "Not sent" is believed of the owner that set the mark; a former owner's bytes may be on their way.
pub(super) async fn only_the_owner_of_a_mark_clears_it(bench: Stand) {
    let engine = Engine::new(bench.store());
    let own = Request::new("own");
    let lease = flow_at(&engine, &own, &[start(), commit(0), call(1, false)]).await;
    let ruled = engine.call_not_sent(lease, 1).await.expect("it is answered");
    let Ruled::Done(record) = ruled else { panic!("{ruled:?}") };
    assert_eq!(record.standing(), Standing::FailedRetryable);
    assert_eq!(record.recovery_point(), Some(RecoveryPoint::Before(1)));
    drop(go_on(&engine, &own, 2).await);

    let foreign = Request::new("foreign");
    let first = flow_at(&engine, &foreign, &[start(), call(0, true)]).await;
    bench.advance(LEASE * 2).await;
    let next = go_on(&engine, &foreign, 2).await;
    let ruled = engine.call_not_sent(first, 0).await.expect("it is answered");
    assert!(matches!(ruled, Ruled::Refused(_)), "it has lost its fence");
    let ruled = engine.call_not_sent(next, 0).await.expect("it is answered");
    let Ruled::Done(record) = ruled else { panic!("{ruled:?}") };
    assert_eq!(record.standing(), Standing::InProgress);
    assert_eq!(record.recovery_point(), Some(RecoveryPoint::Calling(0)));
    drop(go_on(&engine, &foreign, 3).await);
}

/// Who takes back a begin that found a recovery point ends its lease, and leaves the rest alone.
pub(super) async fn a_withdrawn_takeover_only_ends_the_lease(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let steps = [start(), commit(0)];
    settled(&engine, flow_at(&engine, &request, &steps).await, &Outcome::Retryable(None)).await;
    drop(go_on(&engine, &request, 2).await);
    let before = request.record(&engine).await;
    assert!(engine.withdraw(request.id(), 2).await.expect("it is answered"));
    let after = request.record(&engine).await;
    assert_eq!((after.standing(), after.fence), (Standing::InProgress, before.fence));
    assert_eq!(after.flow, before.flow);
    let next = go_on(&engine, &request, 3).await;
    assert!(next.fence() > after.fence);
    assert_eq!(next.flow().map(|flow| flow.outputs().len()), Some(1));
}

/// What a flow has committed is kept until the flow is completed, at any age.
pub(super) async fn an_unfinished_flow_is_neither_expired_nor_reaped(bench: Stand) {
    let engine = Engine::new(bench.store());
    let (held, free) = (Request::new("held"), Request::new("free"));
    let lease = flow_at(&engine, &held, &[start(), commit(0)]).await;
    settled(&engine, lease, &Outcome::Retryable(None)).await;
    let lease = flow_at(&engine, &free, &[start()]).await;
    settled(&engine, lease, &Outcome::Retryable(None)).await;
    let expired = engine.expire(held.id(), None, "why").await.expect("it is answered");
    assert!(matches!(expired, Ruled::Refused(_)), "{expired:?}");
    bench.advance(AGES).await;
    assert_eq!(reap(engine.store(), 10).await, 1, "nothing was done of the other one");
    assert_eq!(load(engine.store(), free.id()).await, None);
    let kept = held.record(&engine).await;
    assert_eq!(kept.flow.as_ref().map(|flow| flow.outputs().len()), Some(1));
    assert!(matches!(
        insert(engine.store(), first("held")).await.value,
        Inserted::Exists(record) if record == kept
    ));
    let lease = go_on(&engine, &held, 2).await;
    settled(&engine, lease, &done("x")).await;
    bench.advance(TTL * 2).await;
    assert_eq!(reap(engine.store(), 10).await, 1);
}

async fn unknown_call(
    bench: &Stand,
    engine: &Engine<impl Store>,
    key: &str,
) -> (Request, Lease, Record) {
    let request = Request::new(key);
    let late = flow_at(engine, &request, &[start(), commit(0), call(1, false)]).await;
    bench.advance(LEASE * 2).await;
    assert!(is_unknown(engine, &request).await);
    let record = request.record(engine).await;
    (request, late, record)
}

fn about_call(fence: Fence, evidence: Evidence) -> Verdict {
    Verdict { fence, evidence, judge: Judge::Webhook, reason: "the provider said so".into() }
}

/// Evidence about a call moves the flow; only the whole answer completes it.
pub(super) async fn evidence_about_a_call_moves_its_flow(bench: Stand) {
    let engine = Engine::new(bench.store());
    let (request, late, record) = unknown_call(&bench, &engine, "executed").await;
    let fact = Answer::NotKept { status: None, location: None };
    let verdict = about_call(record.fence, Evidence::Executed(fact));
    let ruled = engine.resolve(request.id(), &verdict).await.expect("it is answered");
    assert!(matches!(ruled, Ruled::Refused(_)), "phases are missing");
    let verdict = about_call(record.fence, Evidence::CallExecuted("charged".into()));
    let ruled = engine.resolve(request.id(), &verdict).await.expect("it is answered");
    let Ruled::Done(moved) = ruled else { panic!("{ruled:?}") };
    assert_eq!(moved.standing(), Standing::InProgress);
    assert!(moved.fence > record.fence);
    lost(&engine, late, &result(1)).await;
    let next = go_on(&engine, &request, 2).await;
    assert_eq!(next.flow().map(|flow| flow.recovery_point()), Some(RecoveryPoint::Before(2)));
    assert_eq!(next.flow().expect("a flow").outputs(), ["output 0", "charged"]);

    let (request, late, record) = unknown_call(&bench, &engine, "not executed").await;
    let verdict = not_executed(record.fence);
    let ruled = engine.resolve(request.id(), &verdict).await.expect("it is answered");
    let Ruled::Done(moved) = ruled else { panic!("{ruled:?}") };
    assert_eq!(moved.standing(), Standing::FailedRetryable);
    assert_eq!(moved.recovery_point(), Some(RecoveryPoint::Before(1)));
    lost(&engine, late, &result(1)).await;
    drop(go_on(&engine, &request, 2).await);

    let (request, _, record) = unknown_call(&bench, &engine, "whole answer").await;
    let verdict = about_call(record.fence, Evidence::Executed(answer("found")));
    let ruled = engine.resolve(request.id(), &verdict).await.expect("it is answered");
    assert!(matches!(ruled, Ruled::Done(_)), "{ruled:?}");
    assert_eq!(request.replay(&engine).await, answer("found"));
}

/// A late owner that knows how its call ended still tells the truth, while nobody has decided.
pub(super) async fn a_late_result_moves_an_unknown_flow(bench: Stand) {
    let engine = Engine::new(bench.store());
    let (request, late, record) = unknown_call(&bench, &engine, "k").await;
    let answered = engine.advance(late, &result(1)).await.expect("it is answered");
    assert!(matches!(answered, Advanced::Late), "{answered:?}");
    let moved = request.record(&engine).await;
    assert_eq!(moved.standing(), Standing::InProgress);
    let verdict = not_executed(record.fence);
    let ruled = engine.resolve(request.id(), &verdict).await.expect("it is answered");
    assert!(matches!(ruled, Ruled::Refused(_)), "evidence about a former doubt is late");
    let next = go_on(&engine, &request, 2).await;
    assert_eq!(next.flow().map(|flow| flow.recovery_point()), Some(RecoveryPoint::Before(2)));
}

/// Whoever has not the code of a flow's version leaves it as it is.
pub(super) async fn a_flow_of_another_version_is_held(bench: Stand) {
    let engine = Engine::new(bench.store());
    for (key, outcome) in [("left", None), ("released", Some(Outcome::Retryable(None)))] {
        let request = Request::new(key);
        let lease = flow_at(&engine, &request, &[start(), commit(0)]).await;
        match &outcome {
            Some(outcome) => drop(settled(&engine, lease, outcome).await),
            None => bench.advance(LEASE * 2).await,
        }
        let before = request.record(&engine).await;
        for flows in [vec![], vec![FlowVersion::new("ride", 2), FlowVersion::new("trip", 1)]] {
            let begun = engine.begin_flow(&request.ask(2), &flows).await.expect("it is answered");
            assert!(matches!(&begun, Begun::Held(flow) if *flow == ride()), "{begun:?}");
        }
        assert_eq!(request.record(&engine).await, before);
        drop(go_on(&engine, &request, 3).await);
    }
}

/// An advance whose acknowledgement was lost is repeated, and is one step all the same.
pub(super) async fn an_ambiguous_advance_is_repeated(bench: Stand) {
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Refused] {
        let engine: Engine<Faulty<AnyStore>> = Engine::new(Faulty::new(bench.store()));
        let request = Request::new(&format!("{fault:?}"));
        let mut lease = go_on(&engine, &request, 1).await;
        for step in [start(), commit(0), call(1, true), result(1)] {
            engine.store().arm(Op::Swap, fault);
            lease = match engine.advance(lease, &step).await {
                Ok(answer) => panic!("{answer:?}"),
                Err(unadvanced) => advanced(&engine, unadvanced.lease, &step).await,
            };
            let point = request.record(&engine).await.recovery_point();
            assert_eq!(point, Some(step.to()), "{fault:?}");
        }
        let lease = engine.read_back(lease).await.expect("it is answered").expect("its own");
        let flow = lease.flow().expect("a flow");
        assert_eq!(flow.outputs(), ["output 0", "charged"], "{fault:?}");
    }
}

/// The sweeper leaves alone what somebody may go on with, and doubts what nobody may.
pub(super) async fn a_sweep_leaves_resumable_flows(bench: Stand) {
    let engine = Engine::new(bench.store());
    let (plain, between) = (Request::new("plain"), Request::new("between"));
    let (keyed, unkeyed) = (Request::new("keyed"), Request::new("unkeyed"));
    drop(plain.execute(&engine, 1).await);
    drop(flow_at(&engine, &between, &[start(), commit(0)]).await);
    drop(flow_at(&engine, &keyed, &[start(), call(0, true)]).await);
    drop(flow_at(&engine, &unkeyed, &[start(), call(0, false)]).await);
    bench.advance(LEASE * 2).await;
    let swept = engine.sweep(10).await.expect("it is answered");
    assert_eq!((swept.doubted, swept.failed), (2, 0));
    bench.advance(REPEATABLE).await;
    let swept = engine.sweep(10).await.expect("it is answered");
    assert_eq!((swept.doubted, swept.failed), (1, 0), "its provider has forgotten the key");
    for (request, standing) in [
        (&plain, Standing::Unknown),
        (&between, Standing::InProgress),
        (&keyed, Standing::Unknown),
        (&unkeyed, Standing::Unknown),
    ] {
        assert_eq!(request.record(&engine).await.standing(), standing);
    }
}

/// As much as a flow may hold comes back, and more is refused before it is written.
pub(super) async fn the_largest_flow_comes_back(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("bytes");
    let lease = flow_at(&engine, &request, &[start()]).await;
    let room = FLOW_BYTES_MAX - "input".len();
    let output = |length: usize| FlowStep::Commit { phase: 0, output: vec![7; length].into() };
    let answered = engine.advance(lease, &output(room + 1)).await.expect("it is answered");
    let Advanced::TooLarge(lease) = answered else { panic!("{answered:?}") };
    drop(advanced(&engine, lease, &output(room)).await);
    let flow = request.record(&engine).await.flow.expect("a flow");
    assert_eq!(flow.bytes(), FLOW_BYTES_MAX);

    let request = Request::new("phases");
    let mut lease = flow_at(&engine, &request, &[start()]).await;
    for phase in 0..PHASES_MAX {
        lease = advanced(&engine, lease, &commit(phase)).await;
    }
    let answered = engine.advance(lease, &commit(PHASES_MAX)).await.expect("it is answered");
    assert!(matches!(answered, Advanced::TooLarge(_)));
    let record = request.record(&engine).await;
    assert_eq!(record.recovery_point(), Some(RecoveryPoint::Before(PHASES_MAX)));
    assert!(record.timeline.iter().any(|moment| matches!(moment.what, Happened::Began(_))));
}
