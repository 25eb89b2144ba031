//! Does an operator see what was written last, and what nobody knows?

use std::time::Duration;

use super::samples::*;
use super::stand::{AnyStore, Stand};
use crate::record::{Record, Standing};
use crate::store::{Census, Filter, Query, Store};

/// More pages than any case has records.
const PAGES_MAX: usize = 1_000;

/// All records that match, page after page, those that were written last first.
async fn latest(store: &AnyStore, filter: &Filter, limit: usize) -> Vec<Record> {
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let query = Query { filter: filter.clone(), after, limit };
        let page = store.latest(query).await.expect("it is answered").value;
        assert!(page.records.len() <= limit && page.damaged.is_empty(), "{page:?}");
        found.extend(page.records);
        match page.next {
            Some(cursor) => after = Some(cursor),
            None => return found,
        }
    }
    panic!("the latest records of {filter:?} do not end");
}

async fn census(store: &AnyStore) -> Census {
    store.census().await.expect("it is answered").value
}

/// In pages of any length.
pub(super) async fn the_latest_records_come_first(bench: Stand) {
    let store = bench.store();
    assert_eq!(latest(&store, &Filter::default(), 10).await, []);
    let mut records = Vec::new();
    for n in 0..20 {
        records.push(standing(&store, &format!("k{n}"), Standing::ALL[n % 4]).await);
    }
    records.reverse();
    for limit in [1, 3, 19, 20, 21, 100] {
        assert_eq!(latest(&store, &Filter::default(), limit).await, records, "pages of {limit}");
    }
}

/// Only what matches.
pub(super) async fn the_latest_records_are_filtered_like_any(bench: Stand) {
    let store = bench.store();
    let mut records = Vec::new();
    for n in 0..20 {
        records.push(standing(&store, &format!("k{n}"), Standing::ALL[n % 4]).await);
    }
    records.reverse();
    let now = store.load(records[0].id).await.expect("it is answered").now;
    let by_state = Standing::ALL.map(|state| Filter { standing: Some(state), ..Filter::default() });
    let by_key = Filter { key: Some(key("k7")), ..Filter::default() };
    let by_route = Filter { route: Some("/pay".into()), ..Filter::default() };
    let by_nothing = Filter { scope: Some(scope("nobody")), ..Filter::default() };
    for filter in by_state.into_iter().chain([by_key, by_route, by_nothing]) {
        let matching = records.iter().filter(|record| filter.matches(record, now));
        let matching: Vec<Record> = matching.cloned().collect();
        for limit in [1, 4, 100] {
            assert_eq!(latest(&store, &filter, limit).await, matching, "{filter:?}, {limit}");
        }
    }
}

/// What counts is the last write, not the birth.
pub(super) async fn a_record_that_is_written_again_is_the_latest(bench: Stand) {
    let store = bench.store();
    let old = standing(&store, "old", Standing::Unknown).await;
    let young = standing(&store, "young", Standing::Unknown).await;
    let again = swapped(&store, &old, look_up()).await;
    assert_eq!(latest(&store, &Filter::default(), 1).await, [again, young]);
}

/// They come and go, and nothing else counts.
pub(super) async fn a_census_counts_unknown_records(bench: Stand) {
    let store = bench.store();
    assert_eq!(census(&store).await.unknown, 0);
    let mut unknown = Vec::new();
    for n in 0..12 {
        let record = standing(&store, &format!("k{n}"), Standing::ALL[n % 4]).await;
        unknown.extend((record.standing() == Standing::Unknown).then_some(record));
        assert_eq!(census(&store).await.unknown, unknown.len() as u64);
    }
    unknown[0] = swapped(&store, &unknown[0], look_up()).await;
    assert_eq!(census(&store).await.unknown, 3);
    swapped(&store, &unknown[0], complete(answer("x"))).await;
    swapped(&store, &unknown[1], fail()).await;
    assert_eq!(census(&store).await.unknown, 1);
    bench.advance(AGES).await;
    reap(&store, 100).await;
    assert_eq!(census(&store).await.unknown, 1, "an unknown record is never forgotten");
}

/// Since it became unknown, whatever was asked about it meanwhile.
pub(super) async fn a_census_knows_since_when_the_oldest_is_unknown(bench: Stand) {
    let store = bench.store();
    standing(&store, "settled", Standing::Completed).await;
    assert_eq!(census(&store).await.unknown_since, None);
    let mut records = Vec::new();
    for n in 0..3 {
        records.push(standing(&store, &format!("k{n}"), Standing::Unknown).await);
        bench.advance(Duration::from_secs(10)).await;
    }
    let since = |record: &Record| record.unknown_since();
    assert_eq!(census(&store).await.unknown_since, since(&records[0]));
    swapped(&store, &records[0], look_up()).await;
    assert_eq!(census(&store).await.unknown_since, since(&records[0]));
    let current = load(&store, records[0].id).await.expect("it is there");
    swapped(&store, &current, fail()).await;
    assert_eq!(census(&store).await.unknown_since, since(&records[1]));
    for record in &records[1..] {
        swapped(&store, record, complete(answer("x"))).await;
    }
    assert_eq!(census(&store).await.unknown_since, None);
}
