//! Is a record that cannot be read an error, and never absent?
//!
//! For stores whose records can be damaged where they lie. A store that took damage for absence
//! would let a request run again.

use super::samples::*;
use super::stand::DamageStand;
use crate::engine::{Begun, Engine, Swept};
use crate::record::{Record, Standing};
use crate::store::{Filter, Query, Store, StoreErrorKind, Swapped};

/// Bytes to damage: in the header of a record, in its midst, and at its end.
const PLACES: [usize; 6] = [0, 1, 33, 60, 101, usize::MAX];

/// A settled record in every place of damage, and one of a format that does not exist yet.
async fn damaged(bench: &DamageStand) -> Vec<Record> {
    let store = bench.store();
    let mut records = Vec::new();
    for place in PLACES {
        let record = standing(&store, &format!("flipped{place}"), Standing::Completed).await;
        bench.flip(record.id, place).await;
        records.push(record);
    }
    let record = standing(&store, "newer", Standing::Completed).await;
    bench.make_newer(record.id).await;
    records.push(record);
    records
}

/// A load says so.
pub(super) async fn a_load_of_a_damaged_record_is_an_error(bench: DamageStand) {
    let store = bench.store();
    for record in damaged(&bench).await {
        let error = store.load(record.id).await.expect_err("it cannot be read");
        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
    }
}

/// An insert refuses, and has surely not been applied.
pub(super) async fn an_insert_over_a_damaged_record_is_refused(bench: DamageStand) {
    let store = bench.store();
    for record in damaged(&bench).await {
        let mut again = first("k");
        (again.id, again.key) = (record.id, record.key);
        for _ in 0..3 {
            let error = store.insert(again.clone()).await.expect_err("it may have been executed");
            assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
            assert!(!error.may_have_applied());
        }
    }
}

/// A begin refuses, so nobody executes.
pub(super) async fn a_begin_on_a_damaged_record_never_executes(bench: DamageStand) {
    let engine = Engine::new(bench.store());
    let request = Request::new("k");
    let _lease = request.execute(&engine, 1).await;
    bench.flip(request.id(), 50).await;
    for owner in 2..5 {
        let error = engine.begin(&request.ask(owner)).await.expect_err("it cannot be read");
        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
        bench.advance(LEASE * 2).await;
    }
}

/// Whoever still holds the record whole may write it anew; otherwise the swap fails. In no case is
/// the answer that there is no such record.
pub(super) async fn a_swap_of_a_damaged_record_is_refused_or_mends_it(bench: DamageStand) {
    let store = bench.store();
    for record in damaged(&bench).await {
        match store.swap(record.clone(), touch()).await {
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}"),
            Ok(answer) => match answer.value {
                Swapped::Done(mended) => {
                    assert_eq!(load(&store, record.id).await, Some(mended));
                }
                Swapped::Lost(current) => panic!("nobody has written it, yet {current:?}"),
            },
        }
    }
}

/// A scan lists what it cannot read, once, and goes on.
pub(super) async fn a_scan_lists_damaged_records_and_goes_on(bench: DamageStand) {
    let store = bench.store();
    let sound = [
        standing(&store, "before", Standing::Completed).await,
        standing(&store, "between", Standing::Unknown).await,
    ];
    let broken = damaged(&bench).await;
    for limit in [1, 3, 100] {
        let (mut met, mut lost, mut after) = (Vec::new(), Vec::new(), None);
        loop {
            let query = Query { filter: Filter::default(), after, limit };
            let page = store.scan(query).await.expect("the scan goes on").value;
            met.extend(page.records);
            lost.extend(page.damaged);
            match page.next {
                Some(cursor) => after = Some(cursor),
                None => break,
            }
        }
        lost.sort();
        assert_eq!(lost, ids(&broken), "in pages of {limit}");
        assert_eq!(ids(&met), ids(&sound), "in pages of {limit}");
    }
}

/// Damage to one record is no damage to another.
pub(super) async fn other_records_are_unaffected(bench: DamageStand) {
    let engine = Engine::new(bench.store());
    let before = standing(engine.store(), "before", Standing::Completed).await;
    damaged(&bench).await;
    assert_eq!(load(engine.store(), before.id).await, Some(before.clone()));
    let request = Request::new("after");
    let lease = request.execute(&engine, 1).await;
    engine.settle(lease, &done("x")).await.expect("the settle is answered");
    assert_eq!(request.replay(&engine).await, answer("x"));
    bench.advance(TTL / 2).await;
    assert_eq!(existing(engine.store(), first("before")).await, before);
}

/// A sweep counts what it cannot read, and sweeps the rest.
pub(super) async fn a_sweep_goes_on_past_damage(bench: DamageStand) {
    let engine = Engine::new(bench.store());
    for n in 0..3 {
        new(engine.store(), first(&format!("k{n}"))).await;
    }
    let broken = new(engine.store(), first("broken")).await;
    bench.advance(LEASE * 2).await;
    bench.flip(broken.id, 40).await;
    let swept = engine.sweep(100).await.expect("the sweep goes on");
    assert_eq!(swept, Swept { doubted: 3, failed: 1 });
    for n in 0..3 {
        let begun = Request::new(&format!("k{n}")).begin(&engine, 2).await;
        assert!(matches!(begun, Begun::Unknown(_)), "{begun:?}");
    }
}

/// The reaper takes what has expired around the damage, and no damaged record that was running.
pub(super) async fn the_reaper_does_not_take_damage_for_expiry(bench: DamageStand) {
    let store = bench.store();
    standing(&store, "old", Standing::Completed).await;
    let running = new(&store, first("running")).await;
    let live = {
        let mut long = first("live");
        long.ttl = AGES;
        let begun = new(&store, long).await;
        swapped(&store, &begun, complete(answer("x"))).await
    };
    for record in [&running, &live] {
        bench.flip(record.id, 40).await;
    }
    bench.advance(TTL * 2).await;
    assert_eq!(reap(&store, 100).await, 1);
    for record in [running, live] {
        let error = store.load(record.id).await.expect_err("it is there, and cannot be read");
        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
    }
}
