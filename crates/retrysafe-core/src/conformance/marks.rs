//! Is a record kept for the credential that it was begun with?
//!
//! Where a scope is a name that a credential only claims, the credential's mark is the proof. A store
//! that loses it, or keeps a former one, would answer one caller with another's answer.

use super::samples::*;
use super::stand::Stand;
use super::verbs::settled;
use crate::engine::{Begun, Engine};
use crate::record::{Becomes, Outcome, Record, Standing, Write};
use crate::scope::CredentialMark;
use crate::store::Filter;

fn mark(name: &str) -> Option<CredentialMark> {
    Some(CredentialMark::of(name.as_bytes()))
}

/// A mark is kept as it is, and so is its absence, by every kind of write and reading.
pub(super) async fn a_mark_comes_back_from_every_write(bench: Stand) {
    let store = bench.store();
    let all_bits = Some(CredentialMark::from_bytes([0xff; CredentialMark::LENGTH]));
    let no_bits = Some(CredentialMark::from_bytes([0; CredentialMark::LENGTH]));
    for (n, mark) in [None, no_bits, all_bits, mark("token")].into_iter().enumerate() {
        let mut asked = first(&format!("k{n}"));
        asked.mark = mark;
        let mut record = new(&store, asked.clone()).await;
        assert_eq!(existing(&store, asked).await, record);
        for write in [renew(LEASE), touch(), doubt(), look_up(), complete(answer("x"))] {
            record = swapped(&store, &record, write).await;
            assert_eq!(record.mark, mark);
            assert_eq!(load(&store, record.id).await.as_ref(), Some(&record));
        }
        let found = all(&store, Filter::default(), 7).await;
        assert!(found.contains(&record), "a scan shows it too");
    }
}

/// Whoever begins a released record anew leaves its own mark on it, or none.
pub(super) async fn a_new_attempt_replaces_the_mark(bench: Stand) {
    let store = bench.store();
    let mut asked = first("k");
    asked.mark = mark("old");
    let mut record = new(&store, asked).await;
    for mark in [mark("new"), None, mark("newer")] {
        record = swapped(&store, &record, fail()).await;
        let becomes = Becomes::Begun { owner: 2, lease: LEASE, mark };
        record = swapped(&store, &record, Write { becomes, ..take_over(2) }).await;
        assert_eq!(record.mark, mark);
        assert_eq!(load(&store, record.id).await.as_ref(), Some(&record));
    }
}

/// Another credential is neither answered nor executed, and changes nothing, unless the record was
/// released.
pub(super) async fn another_mark_is_refused_unless_the_record_was_released(bench: Stand) {
    let engine = Engine::new(bench.store());
    for (n, how) in Standing::ALL.into_iter().enumerate() {
        let key = format!("k{n}");
        let mine = Request { mark: mark("mine"), ..Request::new(&key) };
        let lease = mine.execute(&engine, 1).await;
        let outcome = match how {
            Standing::InProgress => None,
            Standing::Completed => Some(done("mine")),
            Standing::FailedRetryable => Some(Outcome::Retryable(None)),
            Standing::Unknown => Some(Outcome::Unknown(crate::record::Doubt::Said)),
        };
        if let Some(outcome) = outcome {
            settled(&engine, lease, &outcome).await;
        }
        let record = mine.record(&engine).await;
        for theirs in [mark("theirs"), None] {
            let theirs = Request { mark: theirs, ..mine.clone() };
            if how == Standing::FailedRetryable {
                let lease = theirs.execute(&engine, 2).await;
                assert_eq!(theirs.record(&engine).await.mark, theirs.mark);
                settled(&engine, lease, &Outcome::Retryable(None)).await;
                continue;
            }
            let begun = theirs.begin(&engine, 2).await;
            assert!(matches!(begun, Begun::CredentialChanged), "{begun:?} in {how:?}");
            assert_eq!(theirs.record(&engine).await, record, "in {how:?}");
            let other = theirs.meaning(2).begin(&engine, 3).await;
            assert!(matches!(other, Begun::Mismatch), "another request of another caller");
        }
    }
}

/// Even when the lease is over: only the credential that began it moves the record.
pub(super) async fn another_mark_does_not_move_an_ended_lease(bench: Stand) {
    let engine = Engine::new(bench.store());
    let mine = Request { mark: mark("mine"), ..Request::new("k") };
    let lease = mine.execute(&engine, 1).await;
    let record = mine.record(&engine).await;
    bench.advance(LEASE * 2).await;
    let theirs = Request { mark: mark("theirs"), ..mine.clone() };
    assert!(matches!(theirs.begin(&engine, 2).await, Begun::CredentialChanged));
    assert_eq!(theirs.record(&engine).await, record);
    assert!(matches!(mine.begin(&engine, 3).await, Begun::Unknown(_)));
    settled(&engine, lease, &done("late")).await;
    assert_eq!(mine.replay(&engine).await, answer("late"));
}

/// After the 401 that made callers refresh, one of the new credentials runs, and the record is its.
pub(super) async fn of_32_marks_on_a_released_record_one_executes(bench: Stand) {
    for round in 0..8 {
        let engine = shaken(&bench);
        let old = Request { mark: mark("old"), ..Request::new(&format!("k{round}")) };
        let lease = old.execute(&engine, 1).await;
        settled(&engine, lease, &Outcome::Retryable(None)).await;
        let requests: Vec<Request> = (0..RACERS)
            .map(|n| Request { mark: mark(&format!("new {n}")), ..old.clone() })
            .collect();
        let begun = race(RACERS, |n| {
            let (engine, request) = (engine.clone(), requests[n].clone());
            async move { request.begin(&engine, 10 + n as u64).await }
        })
        .await;
        let mut won = Vec::new();
        for (request, begun) in requests.iter().zip(begun) {
            match begun {
                Begun::Execute(lease) => won.push((request, lease)),
                Begun::CredentialChanged => {}
                other => panic!("{other:?}"),
            }
        }
        let [(request, lease)] = <[_; 1]>::try_from(won).expect("exactly one executes");
        let record: Record = request.record(&engine).await;
        assert_eq!((record.mark, record.fence), (request.mark, lease.fence()));
    }
}
