//! Does exactly one insert win?

use super::samples::*;
use super::stand::Stand;
use crate::record::{Fence, Standing, State};
use crate::store::Inserted;

/// What is kept is what [`First::record`](crate::record::First::record) says.
pub(super) async fn an_insert_into_nothing_is_new(bench: Stand) {
    let store = bench.store();
    let asked = first("k");
    let answer = insert(&store, asked.clone()).await;
    let Inserted::New(record) = answer.value else { panic!("not new: {answer:?}") };
    assert_eq!(record, asked.record(record.created_at, record.version));
    assert!(record.created_at <= answer.now, "{record:?} is later than {:?}", answer.now);
    assert_eq!(record.fence, Fence(record.version));
}

/// An acknowledged record is there for everybody.
pub(super) async fn an_inserted_record_is_loaded_as_it_was_returned(bench: Stand) {
    let store = bench.store();
    let record = new(&store, first("k")).await;
    assert_eq!(load(&store, record.id).await, Some(record));
}

/// What was never inserted is none, not an error.
pub(super) async fn a_load_of_nothing_is_none(bench: Stand) {
    let store = bench.store();
    new(&store, first("other")).await;
    assert_eq!(load(&store, first("k").id).await, None);
}

/// The second caller learns what the first one wrote, not what it asked for itself.
pub(super) async fn a_second_insert_returns_the_first_record(bench: Stand) {
    let store = bench.store();
    let record = new(&store, first("k")).await;
    let mut again = first("k");
    (again.owner, again.fingerprint, again.ttl) = (2, print(2), TTL * 2);
    assert_eq!(existing(&store, again).await, record);
    assert_eq!(load(&store, record.id).await, Some(record));
}

/// The race that everything rests on.
pub(super) async fn of_32_inserts_one_is_new_and_all_see_its_record(bench: Stand) {
    for round in 0..8 {
        let store = bench.store();
        let answers = race(RACERS, |n| {
            let store = store.clone();
            let mut first = first(&format!("k{round}"));
            first.owner = n as u64;
            async move { insert(&store, first).await.value }
        })
        .await;
        one_new(answers);
    }
}

fn one_new(answers: Vec<Inserted>) -> crate::record::Record {
    let mut won = Vec::new();
    let mut seen = Vec::new();
    for answer in answers {
        match answer {
            Inserted::New(record) => won.push(record),
            Inserted::Exists(record) => seen.push(record),
        }
    }
    assert_eq!(won.len(), 1, "exactly one insert is new: {won:?}");
    assert_eq!(seen.len(), RACERS - 1);
    assert!(seen.iter().all(|record| *record == won[0]), "the losers saw {seen:?}");
    won.remove(0)
}

/// One key's race does not touch another's.
pub(super) async fn of_32_inserts_of_32_keys_all_are_new(bench: Stand) {
    let store = bench.store();
    let records = race(RACERS, |n| {
        let store = store.clone();
        async move { new(&store, first(&format!("k{n}"))).await }
    })
    .await;
    for record in records {
        assert_eq!(load(&store, record.id).await, Some(record));
    }
}

/// Batches that hold several keys, each asked for in another order.
pub(super) async fn crossing_races_on_many_keys_have_one_winner_each(bench: Stand) {
    let store = bench.store();
    let wins = race(RACERS, |n| {
        let store = store.clone();
        async move {
            let mut wins = Vec::new();
            for step in 0..RACERS {
                let key = if n % 2 == 0 { step } else { RACERS - 1 - step };
                let answer = insert(&store, first(&format!("k{key}"))).await;
                if matches!(answer.value, Inserted::New(_)) {
                    wins.push(key);
                }
            }
            wins
        }
    })
    .await;
    let mut wins: Vec<usize> = wins.into_iter().flatten().collect();
    wins.sort_unstable();
    assert_eq!(wins, (0..RACERS).collect::<Vec<_>>());
}

/// An expired record counts as none: a new generation begins, with its own numbers and meaning.
pub(super) async fn an_insert_over_an_expired_record_is_new(bench: Stand) {
    let store = bench.store();
    for (key, how) in [("c", Standing::Completed), ("f", Standing::FailedRetryable)] {
        let old = standing(&store, key, how).await;
        bench.advance(TTL * 2).await;
        let mut again = first(key);
        (again.owner, again.fingerprint) = (2, print(2));
        let record = new(&store, again.clone()).await;
        assert_eq!(record, again.record(record.created_at, record.version));
        assert!(record.version > old.version, "{} after {}", record.version, old.version);
        assert!(record.fence > old.fence, "{:?} after {:?}", record.fence, old.fence);
        assert!(record.created_at > old.created_at);
        assert_eq!(load(&store, record.id).await, Some(record));
    }
}

/// The same race again, at the end of retention.
pub(super) async fn of_32_inserts_over_an_expired_record_one_is_new(bench: Stand) {
    for round in 0..8 {
        let store = bench.store();
        let key = format!("k{round}");
        let old = standing(&store, &key, Standing::Completed).await;
        bench.advance(TTL * 2).await;
        let answers = race(RACERS, |n| {
            let store = store.clone();
            let mut first = first(&key);
            (first.owner, first.fingerprint) = (n as u64, print(2));
            async move { insert(&store, first).await.value }
        })
        .await;
        let record = one_new(answers);
        assert!(record.version > old.version && record.fence > old.fence);
        assert_eq!(record.fingerprint, print(2));
    }
}

/// A settled record that is kept is what an insert returns, answer and all.
pub(super) async fn an_insert_over_a_live_settled_record_returns_it(bench: Stand) {
    let store = bench.store();
    for (key, how) in [("c", Standing::Completed), ("f", Standing::FailedRetryable)] {
        let record = standing(&store, key, how).await;
        bench.advance(TTL / 2).await;
        assert_eq!(existing(&store, first(key)).await, record);
    }
}

/// A forgotten unknown that came to be executed anew would be a double charge.
pub(super) async fn an_insert_over_an_unknown_record_returns_it_at_any_age(bench: Stand) {
    let store = bench.store();
    let record = standing(&store, "k", Standing::Unknown).await;
    bench.advance(AGES).await;
    assert_eq!(existing(&store, first("k")).await, record);
}

/// An ended lease is not an ended record: its owner may be slow, not dead.
pub(super) async fn an_insert_over_an_ended_lease_returns_it_at_any_age(bench: Stand) {
    let store = bench.store();
    let record = new(&store, first("k")).await;
    bench.advance(AGES).await;
    assert_eq!(existing(&store, first("k")).await, record);
}

/// A losing insert leaves no trace.
pub(super) async fn losing_inserts_change_nothing(bench: Stand) {
    let store = bench.store();
    let record = standing(&store, "k", Standing::Completed).await;
    race(RACERS, |n| {
        let store = store.clone();
        let mut first = first("k");
        (first.owner, first.ttl) = (n as u64, TTL * 3);
        async move { existing(&store, first).await }
    })
    .await;
    assert_eq!(load(&store, record.id).await, Some(record));
}

/// At the end of retention a begin that read the old record and one that inserts anew may meet. Only
/// one of them may own what comes of it.
pub(super) async fn an_expired_record_has_one_heir(bench: Stand) {
    for round in 0..16 {
        let store = bench.store();
        let key = format!("k{round}");
        let old = standing(&store, &key, Standing::FailedRetryable).await;
        bench.advance(TTL * 2).await;
        let owned = race(RACERS, |n| {
            let (store, old, key) = (store.clone(), old.clone(), key.clone());
            async move {
                let owner = n as u64;
                if n % 2 == 0 {
                    let answer = swap(&store, &old, take_over(owner)).await;
                    return matches!(answer, crate::store::Swapped::Done(_)).then_some(owner);
                }
                let mut first = first(&key);
                first.owner = owner;
                let answer = insert(&store, first).await.value;
                matches!(answer, Inserted::New(_)).then_some(owner)
            }
        })
        .await;
        let owners: Vec<u64> = owned.into_iter().flatten().collect();
        let current = load(&store, old.id).await.expect("somebody owns it");
        let State::InProgress { owner, .. } = current.state else { panic!("{current:?}") };
        assert_eq!(owners, [owner]);
    }
}
