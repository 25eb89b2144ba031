//! Is what came of an answer kept, also when the rest of it never comes?
//!
//! An answer that is too large or too slow to be kept goes to its caller as it comes. Its head is
//! durable first: if the rest is lost, later callers still learn the status and the location.

use super::samples::*;
use super::stand::{AnyStore, Stand};
use super::verbs::settled;
use super::{Fault, Faulty, Op};
use crate::engine::{Begun, Engine, Lease, Renewed};
use crate::record::{Answer, AnswerHead, Doubt, Outcome, Standing};
use crate::store::{Filter, Store};

async fn kept(engine: &Engine<impl Store>, lease: &Lease, head: &AnswerHead) -> Renewed {
    engine.keep_head(lease.renewal(), head, LEASE, AGES).await.expect("it is answered")
}

fn created() -> AnswerHead {
    head(201, Some("/orders/7"))
}

/// A head is kept as it is, and so is its absence, by every kind of write and reading.
pub(super) async fn a_head_comes_back_from_every_write(bench: Stand) {
    let store = bench.store();
    let high = AnswerHead { location: Some(high_value()), ..created() };
    let heads = [created(), head(200, None), head(999, Some("")), head(100, Some("/")), high];
    for (n, head) in heads.into_iter().enumerate() {
        let begun = new(&store, first(&format!("k{n}"))).await;
        assert_eq!(begun.state.head(), None);
        let mut record = begun;
        for write in [keep_head(head.clone()), renew(LEASE), touch(), doubt(), look_up(), touch()] {
            record = swapped(&store, &record, write).await;
            assert_eq!(record.state.head(), Some(&head));
            assert_eq!(load(&store, record.id).await.as_ref(), Some(&record));
        }
        let found = all(&store, Filter::default(), 7).await;
        assert!(found.contains(&record), "a scan shows it too");
        let settled = swapped(&store, &record, fail()).await;
        let again = swapped(&store, &settled, take_over(2)).await;
        assert_eq!(again.state.head(), None, "a new attempt has no answer yet");
        assert_eq!(load(&store, again.id).await, Some(again));
    }
}

fn high_value() -> http::HeaderValue {
    http::HeaderValue::from_bytes(&[0x2f, 0x80, 0xff, 0x20, 0x22]).unwrap()
}

/// An unknown record still knows whose attempt it was, whatever the owner's number is.
pub(super) async fn an_unknown_record_keeps_its_owner(bench: Stand) {
    let store = bench.store();
    for (n, owner) in [0, 1, u64::MAX, 1 << 63].into_iter().enumerate() {
        let mut asked = first(&format!("k{n}"));
        asked.owner = owner;
        let mut record = new(&store, asked).await;
        for write in [doubt(), look_up(), touch()] {
            record = swapped(&store, &record, write).await;
            assert_eq!(record.state.owner(), Some(owner));
            assert_eq!(load(&store, record.id).await.as_ref(), Some(&record));
        }
    }
}

/// Keeping a head raises the version, keeps the fence, and lengthens the lease like a renewal.
pub(super) async fn keeping_a_head_renews_the_lease(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    let before = request.record(&engine).await;
    bench.advance(LEASE / 2).await;
    let answer = kept(&engine, &lease, &created()).await;
    assert!(matches!(answer, Renewed::For(left) if left <= LEASE && left > LEASE / 2));
    let after = request.record(&engine).await;
    assert!(after.version > before.version && after.lease_until() > before.lease_until());
    assert_eq!((after.fence, &after.timeline), (before.fence, &before.timeline));
    bench.advance(LEASE / 2).await;
    let renewed = engine.renew(lease.renewal(), LEASE, AGES).await.expect("it is answered");
    assert!(matches!(renewed, Renewed::For(_)));
    assert_eq!(request.record(&engine).await.state.head(), Some(&created()));
}

/// An answer that broke off leaves doubt, and the doubt says how the answer began.
pub(super) async fn a_caller_learns_the_head_of_an_answer_that_broke_off(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("settled");
    let lease = request.execute(&engine, 1).await;
    kept(&engine, &lease, &created()).await;
    settled(&engine, lease, &Outcome::Unknown(Doubt::AnswerLost)).await;
    // Another owner says nothing more: its lease ends, and a caller or the sweeper sees that.
    for (key, is_swept) in [("met", false), ("swept", true)] {
        let request = Request::new(key);
        let lease = request.execute(&engine, 1).await;
        kept(&engine, &lease, &created()).await;
        bench.advance(LEASE * 2).await;
        if is_swept {
            assert_eq!(engine.sweep(9).await.expect("it is answered").doubted, 1);
        } else {
            assert!(matches!(request.begin(&engine, 9).await, Begun::Unknown(Some(_))));
        }
    }
    for key in ["settled", "met", "swept"] {
        for owner in [2, 3] {
            match Request::new(key).begin(&engine, owner).await {
                Begun::Unknown(head) => assert_eq!(head, Some(created()), "{key}"),
                other => panic!("{key}: {other:?}"),
            }
        }
    }
}

/// An answer that came whole after its head was kept is settled like any other.
pub(super) async fn an_answer_that_came_whole_replaces_its_head(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    kept(&engine, &lease, &created()).await;
    let AnswerHead { status, location } = created();
    let not_kept = Answer::NotKept { status: Some(status), location };
    settled(&engine, lease, &Outcome::Completed(not_kept.clone())).await;
    assert_eq!(request.replay(&engine).await, not_kept);
}

/// A head counts for its owner only, and only while that is believed.
pub(super) async fn only_a_believed_owner_keeps_a_head(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("overtaken");
    let late = request.execute(&engine, 1).await;
    engine.withdraw(request.id(), 1).await.expect("it is answered");
    let lease = request.execute(&engine, 2).await;
    let current = request.record(&engine).await;
    assert_eq!(kept(&engine, &late, &created()).await, Renewed::Lost);
    assert_eq!(request.record(&engine).await, current);
    settled(&engine, lease, &done("x")).await;

    let request = Request::new("unknown");
    let lease = request.execute(&engine, 1).await;
    bench.advance(LEASE * 2).await;
    assert!(matches!(request.begin(&engine, 2).await, Begun::Unknown(None)));
    let doubted = request.record(&engine).await;
    assert_eq!(kept(&engine, &lease, &created()).await, Renewed::Lost);
    assert_eq!(request.record(&engine).await, doubted);

    let request = Request::new("used up");
    let lease = request.execute(&engine, 1).await;
    bench.advance(LEASE * 2).await;
    let head = created();
    let answer = engine.keep_head(lease.renewal(), &head, LEASE, LEASE).await;
    assert_eq!(answer.expect("it is answered"), Renewed::Lost);
}

/// A head whose acknowledgement was lost is read back; one that did not arrive is an error.
pub(super) async fn an_ambiguous_head_is_read_back(bench: Stand) {
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Refused] {
        let engine: Engine<Faulty<AnyStore>> = Engine::new(Faulty::new(bench.store()));
        let request = Request::new(&format!("{fault:?}"));
        let lease = request.execute(&engine, 1).await;
        engine.store().arm(Op::Swap, fault);
        let head = created();
        match engine.keep_head(lease.renewal(), &head, LEASE, AGES).await {
            Ok(Renewed::For(_)) => assert_eq!(fault, Fault::AnswerLost),
            Ok(Renewed::Lost) => panic!("it is not lost"),
            Err(error) => {
                assert_ne!(fault, Fault::AnswerLost, "{error}");
                assert_eq!(request.record(&engine).await.state.head(), None);
            }
        }
        assert!(matches!(kept(&engine, &lease, &head).await, Renewed::For(_)));
        assert_eq!(request.record(&engine).await.state.head(), Some(&head));
    }
}

/// A begin that nobody executed is taken back by its owner for as long as nobody has decided.
pub(super) async fn an_unknown_record_is_withdrawn_by_its_owner(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    bench.advance(LEASE * 2).await;
    assert!(matches!(request.begin(&engine, 2).await, Begun::Unknown(None)));
    let doubted = request.record(&engine).await;
    assert!(!engine.withdraw(request.id(), 2).await.expect("it is answered"), "it is another's");
    assert_eq!(request.record(&engine).await, doubted);
    assert!(engine.withdraw(request.id(), 1).await.expect("it is answered"));
    let free = request.record(&engine).await;
    assert_eq!((free.standing(), free.fence), (Standing::FailedRetryable, lease.fence()));
    assert!(!engine.withdraw(request.id(), 1).await.expect("it is answered"), "it is taken back");
    assert!(request.execute(&engine, 3).await.fence() > lease.fence());
}

/// Whoever has the head of an answer did send, and takes nothing back.
pub(super) async fn a_record_with_a_head_is_not_withdrawn(bench: Stand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let lease = request.execute(&engine, 1).await;
    kept(&engine, &lease, &created()).await;
    let running = request.record(&engine).await;
    assert!(!engine.withdraw(request.id(), 1).await.expect("it is answered"));
    assert_eq!(request.record(&engine).await, running);
    bench.advance(LEASE * 2).await;
    assert!(matches!(request.begin(&engine, 2).await, Begun::Unknown(Some(_))));
    assert!(!engine.withdraw(request.id(), 1).await.expect("it is answered"));
    assert_eq!(request.record(&engine).await.standing(), Standing::Unknown);
}

/// A withdrawal and a verdict at once: one of them is decided, and it stays.
pub(super) async fn a_withdrawal_beside_a_verdict_is_decided_once(bench: Stand) {
    for round in 0..16 {
        let engine = shaken(&bench);
        let request = Request::new(&format!("k{round}"));
        let lease = request.execute(&engine, 1).await;
        let fence = lease.fence();
        settled(&engine, lease, &Outcome::Unknown(Doubt::Said)).await;
        let decided = race(8, |n| {
            let (engine, request) = (engine.clone(), request.clone());
            async move {
                if n % 2 == 0 {
                    return engine.withdraw(request.id(), 1).await.expect("it is answered");
                }
                let verdict = super::verdicts::executed(fence, answer("found"));
                let ruled = engine.resolve(request.id(), &verdict).await.expect("it is answered");
                matches!(ruled, crate::engine::Ruled::Done(_))
            }
        })
        .await;
        assert_eq!(decided.iter().filter(|decided| **decided).count(), 1, "{decided:?}");
        let withdrawn = decided.iter().position(|decided| *decided).expect("one") % 2 == 0;
        let standing = request.record(&engine).await.standing();
        let expected = if withdrawn { Standing::FailedRetryable } else { Standing::Completed };
        assert_eq!(standing, expected);
    }
}
