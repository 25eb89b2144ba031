//! Does a scan meet each record that matches at least once?

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::samples::*;
use super::stand::{AnyStore, Stand};
use crate::mention::{DigestPrefix, Mention};
use crate::record::{First, Record, Standing};
use crate::scope::Id;
use crate::store::{Filter, PAGE_MAX, Query, Store};
use crate::trace::{TracedSpan, begin_text};

/// As many records as tasks can insert quickly.
async fn many(store: &AnyStore, count: usize) -> Vec<Record> {
    let records = race(RACERS, |task| {
        let store = store.clone();
        async move {
            let mut mine = Vec::new();
            for n in (task..count).step_by(RACERS) {
                mine.push(new(&store, first(&format!("k{n}"))).await);
            }
            mine
        }
    });
    records.await.into_iter().flatten().collect()
}

/// Nothing matches in an empty store, and the scan ends.
pub(super) async fn a_scan_of_nothing_is_one_empty_page(bench: Stand) {
    let store = bench.store();
    let (records, next) = page(&store, &Filter::default(), None, 10).await;
    assert_eq!((records, next), (vec![], None));
}

async fn paged(bench: Stand, count: usize, limit: usize) {
    let store = bench.store();
    let records = many(&store, count).await;
    let found = all(&store, Filter::default(), limit).await;
    assert_eq!(ids(&found), ids(&records), "in pages of {limit}");
    for record in found {
        assert_eq!(load(&store, record.id).await, Some(record));
    }
}

/// One by one.
pub(super) async fn pages_of_one_show_each_record_once(bench: Stand) {
    paged(bench, 40, 1).await;
}

/// In pages that do not divide the whole.
pub(super) async fn pages_of_seven_show_each_record_once(bench: Stand) {
    paged(bench, 100, 7).await;
}

/// In the largest pages, of which one is not enough.
pub(super) async fn pages_of_the_maximum_show_each_record_once(bench: Stand) {
    paged(bench, PAGE_MAX + 100, PAGE_MAX).await;
}

/// A page is never empty by request, and never larger than the bound.
pub(super) async fn odd_limits_are_bounded_not_refused(bench: Stand) {
    let store = bench.store();
    let records = many(&store, PAGE_MAX + 10).await;
    let (zero, next) = page(&store, &Filter::default(), None, 0).await;
    assert_eq!((zero.len(), next.is_some()), (1, true));
    let (huge, next) = page(&store, &Filter::default(), None, usize::MAX).await;
    assert_eq!((huge.len(), next.is_some()), (PAGE_MAX, true));
    assert_eq!(all(&store, Filter::default(), usize::MAX).await.len(), records.len());
}

/// The same page is the same again: a cursor is not used up.
pub(super) async fn a_cursor_may_be_used_again(bench: Stand) {
    let store = bench.store();
    many(&store, 30).await;
    let (_, cursor) = page(&store, &Filter::default(), None, 10).await;
    let once = page(&store, &Filter::default(), cursor.clone(), 10).await;
    let twice = page(&store, &Filter::default(), cursor, 10).await;
    assert_eq!(once, twice);
}

/// Two scopes with twelve keys each, over two routes, in every standing.
async fn mixture(store: &impl Store) -> Vec<Record> {
    let mut records = Vec::new();
    for (t, tenant) in ["a", "b"].into_iter().enumerate() {
        for n in 0..12 {
            let mut asked = first_in(&scope(tenant), &format!("k{n}"));
            asked.about.route = if n % 3 == 0 { "/pay".into() } else { "/refund".into() };
            let record = new(store, asked).await;
            records.push(match Standing::ALL[(n + t) % 4] {
                Standing::InProgress => record,
                Standing::Completed => swapped(store, &record, complete(answer("x"))).await,
                Standing::FailedRetryable => swapped(store, &record, fail()).await,
                Standing::Unknown => swapped(store, &record, doubt()).await,
            });
        }
    }
    records
}

/// Compares a filter's pages with what [`Filter::matches`] says of each record.
async fn finds(store: &impl Store, records: &[Record], filter: Filter, expected: usize) {
    let now = store.load(records[0].id).await.expect("the load is answered").now;
    let matching = ids(records.iter().filter(|record| filter.matches(record, now)));
    assert_eq!(matching.len(), expected, "the case expects {expected} of {filter:?}");
    for limit in [1, 5, 100] {
        let found = all(store, filter.clone(), limit).await;
        assert_eq!(ids(&found), matching, "{filter:?} in pages of {limit}");
    }
}

/// Only in one state, for each of them.
pub(super) async fn a_scan_finds_by_standing(bench: Stand) {
    let store = bench.store();
    let records = mixture(&store).await;
    for standing in Standing::ALL {
        let filter = Filter { standing: Some(standing), ..Filter::default() };
        finds(&store, &records, filter, 6).await;
    }
}

/// Only ended leases, which are in progress by nature.
pub(super) async fn a_scan_finds_ended_leases(bench: Stand) {
    let store = bench.store();
    let over = Filter { lease_over: true, ..Filter::default() };
    let mut records = mixture(&store).await;
    finds(&store, &records, over.clone(), 0).await;
    bench.advance(LEASE * 2).await;
    records.push(new(&store, first("live")).await);
    finds(&store, &records, over, 6).await;
}

/// Only of one scope.
pub(super) async fn a_scan_finds_by_scope(bench: Stand) {
    let store = bench.store();
    let records = mixture(&store).await;
    for (name, expected) in [("a", 12), ("b", 12), ("c", 0), ("", 0)] {
        let filter = Filter { scope: Some(scope(name)), ..Filter::default() };
        finds(&store, &records, filter, expected).await;
    }
}

/// Only of one route.
pub(super) async fn a_scan_finds_by_route(bench: Stand) {
    let store = bench.store();
    let records = mixture(&store).await;
    for (route, expected) in [("/pay", 8), ("/refund", 16), ("/PAY", 0), ("/pa", 0), ("%", 0)] {
        let filter = Filter { route: Some(route.into()), ..Filter::default() };
        finds(&store, &records, filter, expected).await;
    }
}

/// Only with one key, whatever the scope.
pub(super) async fn a_scan_finds_by_key_in_every_scope(bench: Stand) {
    let store = bench.store();
    let records = mixture(&store).await;
    for (name, expected) in [("k3", 2), ("k11", 2), ("k12", 0)] {
        let filter = Filter { key: Some(key(name)), ..Filter::default() };
        finds(&store, &records, filter, expected).await;
    }
}

/// Only of one path.
pub(super) async fn a_scan_finds_by_path(bench: Stand) {
    let store = bench.store();
    let mut records = Vec::new();
    for n in 0..6 {
        let mut asked = first(&format!("k{n}"));
        asked.about.path = format!("/pay/{}", n % 2).into();
        records.push(new(&store, asked).await);
    }
    for (path, expected) in [("/pay/0", 3), ("/pay/1", 3), ("/pay", 0), ("/pay/%", 0)] {
        let filter = Filter { path: Some(path.into()), ..Filter::default() };
        finds(&store, &records, filter, expected).await;
    }
}

/// Only whose id begins so, however many digits are given.
pub(super) async fn a_scan_finds_by_the_first_digits_of_the_id(bench: Stand) {
    let store = bench.store();
    let records = mixture(&store).await;
    for record in [&records[0], &records[7], &records[20]] {
        let digits = record.id.to_string();
        for length in [6, 7, 15, 16, 17, 63, 64] {
            let id = DigestPrefix::parse(&digits[..length]);
            assert!(id.is_some());
            finds(&store, &records, Filter { id, ..Filter::default() }, 1).await;
        }
    }
    let id = DigestPrefix::parse("0123456789abcdef");
    finds(&store, &records, Filter { id, ..Filter::default() }, 0).await;
}

/// A key, the first digits of its digest, the id of a request of any attempt.
pub(super) async fn a_scan_finds_what_a_person_mentions(bench: Stand) {
    let store = bench.store();
    let mut records = mixture(&store).await;
    let span = TracedSpan { trace_id: [0xab; 16], span_id: [0xcd; 8] };
    let kept = begin_text(Some("first/try"), span);
    let asked = First { request_id: Some(kept), ..first("tried") };
    let failed = swapped(&store, &new(&store, asked).await, fail()).await;
    assert_eq!(failed.span(), Some(span), "the span of an execution is kept");
    let trace = span.trace_hex();
    // Its second attempt has the id `r-2`.
    records.push(swapped(&store, &failed, take_over(2)).await);
    let digits = crate::hex::hex(key("k5").as_bytes());
    for (text, expected) in [
        ("k5", 2),
        ("\"k5\"", 2),
        (&digits[..8], 2),
        (&digits[..13], 2),
        (&digits, 2),
        ("tried", 1),
        ("first/try", 1),
        (&trace, 1),
        (&trace[1..], 0),
        ("r-2", 1),
        ("first/tr", 0),
        ("irst/try", 0),
        ("k99", 0),
    ] {
        let filter = Filter { mention: Some(Mention::parse(text)), ..Filter::default() };
        finds(&store, &records, filter, expected).await;
    }
}

/// Only what was created before a moment, whenever it was written last.
pub(super) async fn a_scan_finds_by_creation(bench: Stand) {
    let store = bench.store();
    let mut records = vec![new(&store, first("old")).await];
    bench.advance(Duration::from_secs(10)).await;
    records.push(new(&store, first("young")).await);
    records[0] = swapped(&store, &records[0], doubt()).await;
    let before = records[1].created_at;
    for (created_before, expected) in
        [(before, 1), (before.plus(AGES), 2), (records[0].created_at, 0)]
    {
        let filter = Filter { created_before: Some(created_before), ..Filter::default() };
        finds(&store, &records, filter, expected).await;
    }
}

/// Every condition that is set must hold.
pub(super) async fn conditions_of_a_scan_add_up(bench: Stand) {
    let store = bench.store();
    let records = mixture(&store).await;
    let late = records[0].created_at.plus(AGES);
    bench.advance(LEASE * 2).await;
    let some = Filter {
        standing: Some(Standing::InProgress),
        lease_over: true,
        scope: Some(scope("a")),
        route: Some("/pay".into()),
        key: Some(key("k0")),
        created_before: Some(late),
        path: Some("/pay".into()),
        id: DigestPrefix::parse(&Id::of(&scope("a"), &key("k0")).to_string()),
        mention: Some(Mention::parse("k0")),
    };
    finds(&store, &records, some.clone(), 1).await;
    finds(&store, &records, Filter { path: Some("/other".into()), ..some.clone() }, 0).await;
    let other = Some(Mention::parse("k1"));
    finds(&store, &records, Filter { mention: other, ..some.clone() }, 0).await;
    let some = Filter { id: None, mention: None, ..some };
    finds(&store, &records, Filter { key: None, ..some.clone() }, 1).await;
    finds(&store, &records, Filter { key: None, route: None, ..some.clone() }, 3).await;
    finds(&store, &records, Filter { scope: None, key: None, route: None, ..some.clone() }, 6)
        .await;
    finds(&store, &records, Filter { standing: Some(Standing::Unknown), ..some.clone() }, 0).await;
    finds(&store, &records, Filter { scope: Some(scope("b")), ..some.clone() }, 0).await;
    finds(&store, &records, Filter { created_before: Some(records[0].created_at), ..some }, 0)
        .await;
}

/// A record is there until it is reaped, for scans as for loads.
pub(super) async fn a_scan_shows_expired_records_until_they_are_reaped(bench: Stand) {
    let store = bench.store();
    let record = standing(&store, "k", Standing::Completed).await;
    bench.advance(TTL * 2).await;
    assert_eq!(all(&store, Filter::default(), 10).await, [record]);
    assert_eq!(reap(&store, 10).await, 1);
    assert_eq!(all(&store, Filter::default(), 10).await, []);
}

/// Scans again and again, in small pages, while `others` write; the last scan begins after them.
async fn scans_beside(
    store: &AnyStore,
    filter: Filter,
    others: impl Future<Output = ()> + Send + 'static,
    mut check: impl FnMut(BTreeSet<Id>) + Send + 'static,
) {
    let written = Arc::new(AtomicBool::new(false));
    let scanner = {
        let (store, written) = (store.clone(), Arc::clone(&written));
        tokio::spawn(async move {
            loop {
                let last = written.load(Ordering::SeqCst);
                check(
                    all(&store, filter.clone(), 7).await.iter().map(|record| record.id).collect(),
                );
                if last {
                    break;
                }
                tokio::task::yield_now().await;
            }
        })
    };
    others.await;
    written.store(true, Ordering::SeqCst);
    scanner.await.expect("each scan met what it should");
}

/// Newcomers do not shift what was there.
pub(super) async fn a_scan_beside_inserts_meets_all_old_records(bench: Stand) {
    let store = bench.store();
    let old = ids(&many(&store, 50).await);
    let writer = store.clone();
    let inserts = async move {
        for n in 0..100 {
            new(&writer, first(&format!("new{n}"))).await;
        }
    };
    scans_beside(&store, Filter::default(), inserts, move |met| {
        assert!(old.iter().all(|id| met.contains(id)), "{met:?}");
    })
    .await;
}

/// A write does not move a record to where the scan has been, or has yet to be.
pub(super) async fn a_scan_beside_swaps_meets_each_record(bench: Stand) {
    let store = bench.store();
    let records = many(&store, 50).await;
    let all_of_them = ids(&records);
    let writer = store.clone();
    let renewals = async move {
        for mut record in records {
            for n in 0..3 {
                record = swapped(&writer, &record, renew(LEASE * (n + 1))).await;
            }
        }
    };
    let running = Filter { standing: Some(Standing::InProgress), ..Filter::default() };
    scans_beside(&store, running, renewals, move |met| {
        assert_eq!(met.into_iter().collect::<Vec<_>>(), all_of_them);
    })
    .await;
}

/// Nor does a renewal of an ended lease that stays ended.
pub(super) async fn a_scan_of_ended_leases_meets_each_while_they_move(bench: Stand) {
    let store = bench.store();
    let records = many(&store, 50).await;
    let all_of_them = ids(&records);
    bench.advance(AGES).await;
    let writer = store.clone();
    let moves = async move {
        for (n, mut record) in records.into_iter().enumerate() {
            for round in 0..3 {
                // The lease moves to and fro, always in the past: `lease_max` is long used up.
                let lease_max = LEASE * ((n as u32 * 7 + round * 11) % 20 + 1);
                let becomes = crate::record::Becomes::Renewed { lease: LEASE, lease_max };
                let write = crate::record::Write { becomes, ..touch() };
                record = swapped(&writer, &record, write).await;
            }
        }
    };
    let over = Filter { lease_over: true, ..Filter::default() };
    scans_beside(&store, over, moves, move |met| {
        assert_eq!(met.into_iter().collect::<Vec<_>>(), all_of_them);
    })
    .await;
}

/// A record that is met matches when it is met, whatever is settled meanwhile; and what goes on
/// matching is met.
pub(super) async fn a_scan_beside_settles_meets_what_still_runs(bench: Stand) {
    let store = bench.store();
    let records = many(&store, 50).await;
    let (settling, running) = records.split_at(25);
    let (settling, stay) = (settling.to_vec(), ids(running));
    let writer = store.clone();
    let settles = async move {
        for record in &settling {
            swapped(&writer, record, complete(answer("x"))).await;
        }
    };
    let running = Filter { standing: Some(Standing::InProgress), ..Filter::default() };
    scans_beside(&store, running, settles, move |met| {
        assert!(stay.iter().all(|id| met.contains(id)), "{met:?}");
    })
    .await;
}

/// What is reaped meanwhile may be missing; what stays is met.
pub(super) async fn a_scan_beside_reaping_meets_what_stays(bench: Stand) {
    let store = bench.store();
    for n in 0..40 {
        standing(&store, &format!("gone{n}"), Standing::Completed).await;
    }
    bench.advance(TTL * 2).await;
    let stay = ids(&many(&store, 40).await);
    let reaper = store.clone();
    let reaping = async move { while reap(&reaper, 3).await > 0 {} };
    scans_beside(&store, Filter::default(), reaping, move |met| {
        assert!(stay.iter().all(|id| met.contains(id)), "{met:?}");
    })
    .await;
}

/// A cursor outlives the record at which its page ended.
pub(super) async fn a_scan_goes_on_after_its_last_record_was_reaped(bench: Stand) {
    let store = bench.store();
    for n in 0..20 {
        standing(&store, &format!("gone{n}"), Standing::Completed).await;
    }
    bench.advance(TTL * 2).await;
    let stay = many(&store, 20).await;
    let (mut found, cursor) = page(&store, &Filter::default(), None, 15).await;
    assert_eq!(reap(&store, 100).await, 20);
    let mut after = cursor;
    while after.is_some() {
        let (more, next) = page(&store, &Filter::default(), after, 15).await;
        found.extend(more);
        after = next;
    }
    let stay = ids(&stay);
    let met = ids(&found);
    assert!(stay.iter().all(|id| met.contains(id)), "{met:?}");
}

/// The sweeper's way: each page's records leave the filter before the next page is read.
pub(super) async fn a_scan_finds_all_while_its_pages_stop_matching(bench: Stand) {
    let store = bench.store();
    let records = many(&store, 60).await;
    bench.advance(LEASE * 2).await;
    let over = Filter { lease_over: true, ..Filter::default() };
    let mut met = BTreeSet::new();
    let mut after = None;
    loop {
        let (page, next) = page(&store, &over, after, 7).await;
        for record in page {
            if met.insert(record.id) {
                swapped(&store, &record, doubt()).await;
            }
        }
        match next {
            Some(cursor) => after = Some(cursor),
            None => break,
        }
    }
    assert_eq!(met.into_iter().collect::<Vec<_>>(), ids(&records));
    assert_eq!(all(&store, over, 7).await, []);
}

/// Two scans at once do not disturb each other.
pub(super) async fn concurrent_scans_are_independent(bench: Stand) {
    let store = bench.store();
    let records = ids(&many(&store, 60).await);
    let found = race(8, |n| {
        let store = store.clone();
        async move { ids(&all(&store, Filter::default(), n + 1).await) }
    })
    .await;
    assert!(found.iter().all(|met| *met == records));
}

/// A cursor that no scan of this store has given is refused, not misread and not a panic.
pub(super) async fn a_cursor_of_another_kind_does_no_harm(bench: Stand) {
    let store = bench.store();
    let records = many(&store, 10).await;
    for bytes in [vec![], vec![0xff], vec![0; 3], vec![0xff; 9], vec![0xff; 32], vec![7; 300]] {
        let after = Some(crate::store::Cursor(bytes));
        let query = Query { filter: Filter::default(), after, limit: 10 };
        // Some bytes may happen to be a cursor; then the page is some page.
        if let Ok(page) = store.scan(query).await {
            assert!(page.value.records.iter().all(|record| records.contains(record)));
        }
    }
}

/// Whether a store can be written is asked about once a second, for years: that must not be seen
/// anywhere, and must not disturb what is there.
pub(super) async fn a_probe_is_answered_and_leaves_no_record(bench: Stand) {
    let store = bench.store();
    store.probe().await.expect("an empty store can be written");
    assert_eq!(all(&store, Filter::default(), 10).await, []);
    let record = new(&store, first("k")).await;
    let mut readings = Vec::new();
    for _ in 0..20 {
        readings.push(store.probe().await.expect("nothing is wrong with the store").now);
    }
    assert!(readings.is_sorted(), "{readings:?}");
    assert_eq!(all(&store, Filter::default(), 10).await, std::slice::from_ref(&record));
    let settled = swapped(&store, &record, complete(answer("x"))).await;
    assert!(settled.version > record.version);
    bench.advance(TTL * 2).await;
    store.probe().await.expect("nothing is wrong with the store");
    assert_eq!(reap(&store, 10).await, 1);
}
