//! Does everything come back byte for byte?

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use super::samples::*;
use super::stand::Stand;
use crate::record::{
    About, Answer, Becomes, Doubt, Fence, First, Happened, Judge, LATE_BODY_BYTES_MAX, LateResult,
    MOMENTS_MAX, Moment, Outcome, REASON_BYTES_MAX, Record, Standing, State, Write,
};
use crate::response::StoredResponse;
use crate::store::{Filter, Store};

/// Settles with this answer, and looks at what is kept in all three ways there are.
async fn round_trip(store: &impl Store, key: &str, kept: Answer) {
    let begun = new(store, first(key)).await;
    let settled = swapped(store, &begun, complete(kept.clone())).await;
    let by_load = load(store, begun.id).await.expect("it is there");
    let by_insert = existing(store, first(key)).await;
    let filter = Filter { key: Some(begun.key), ..Filter::default() };
    let by_scan = all(store, filter, 10).await;
    for record in [&settled, &by_load, &by_insert].into_iter().chain(&by_scan) {
        let State::Completed { answer, .. } = &record.state else { panic!("{record:?}") };
        assert!(*answer == kept, "another answer came back for {key}");
        assert!(*record == settled, "another record came back for {key}");
    }
    assert_eq!(by_scan.len(), 1);
}

/// Bytes without a pattern, so that neither compression nor a shifted copy goes unseen.
fn noise(length: usize) -> Bytes {
    let mut chance = super::Chance::new(length as u64);
    (0..length).map(|_| chance.number() as u8).collect()
}

/// A body may be empty, which is not the same as none.
pub(super) async fn an_empty_body_comes_back(bench: Stand) {
    round_trip(&bench.store(), "k", answer("")).await;
}

/// The smallest bodies, of the bytes that text formats trip over.
pub(super) async fn bodies_of_one_byte_come_back(bench: Stand) {
    for byte in [0x00, 0x0a, 0x22, 0x27, 0x5c, 0x80, 0xff] {
        round_trip(&bench.store(), &format!("k{byte}"), answer(vec![byte])).await;
    }
}

/// Bodies are bytes, not text.
pub(super) async fn a_body_of_all_256_bytes_comes_back(bench: Stand) {
    let body: Vec<u8> = (0..=255).collect();
    round_trip(&bench.store(), "k", answer(body)).await;
}

/// Around the sizes at which frames, pages and length fields change.
pub(super) async fn bodies_around_64_kib_come_back(bench: Stand) {
    for length in [127, 128, 4_095, 4_096, 65_535, 65_536, 65_537] {
        round_trip(&bench.store(), &format!("k{length}"), answer(noise(length))).await;
    }
}

/// A large answer.
pub(super) async fn a_body_of_1_mib_comes_back(bench: Stand) {
    round_trip(&bench.store(), "k", answer(noise(1 << 20))).await;
}

/// A very large one. Routes bound what is kept; stores carry what they are given.
pub(super) async fn a_body_of_5_mib_comes_back(bench: Stand) {
    round_trip(&bench.store(), "k", answer(noise(5 << 20))).await;
}

/// Large answers of many tasks do not mix.
pub(super) async fn large_bodies_settled_together_do_not_mix(bench: Stand) {
    let store = bench.store();
    race(RACERS, |n| {
        let store = store.clone();
        async move { round_trip(&store, &format!("k{n}"), answer(noise(20_000 + n))).await }
    })
    .await;
}

fn headers(pairs: &[(&str, &[u8])]) -> Answer {
    let headers = pairs
        .iter()
        .map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_bytes(value).unwrap())
        })
        .collect();
    Answer::Kept(StoredResponse { status: StatusCode::OK, headers, body: Bytes::from("x") })
}

/// A name may occur more than once, and the order matters.
pub(super) async fn repeated_headers_come_back_in_order(bench: Stand) {
    let kept = headers(&[
        ("set-cookie", b"b=2"),
        ("link", b"<1>"),
        ("set-cookie", b"a=1"),
        ("set-cookie", b"b=2"),
        ("link", b"<0>"),
    ]);
    round_trip(&bench.store(), "k", kept).await;
}

/// A value may be empty, or hold any bytes that HTTP allows.
pub(super) async fn empty_and_high_header_values_come_back(bench: Stand) {
    let every: Vec<u8> = (0x80..=0xff).collect();
    let kept = headers(&[("x-empty", b""), ("x-high", b"\x80\xff\xfe"), ("x-every", &every)]);
    round_trip(&bench.store(), "k", kept).await;
}

/// More headers than a sane answer has, and one larger than a page.
pub(super) async fn many_and_large_headers_come_back(bench: Stand) {
    let names: Vec<String> = (0..300).map(|n| format!("x-{n}")).collect();
    let large = vec![b'v'; 20_000];
    let mut pairs: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"v"[..])).collect();
    pairs.push(("x-large", &large));
    round_trip(&bench.store(), "many", headers(&pairs)).await;
    round_trip(&bench.store(), "none", headers(&[])).await;
}

/// Every status that an answer may have.
pub(super) async fn statuses_come_back(bench: Stand) {
    for code in [200, 201, 204, 299, 303, 400, 422, 500, 599, 999] {
        let status = StatusCode::from_u16(code).unwrap();
        let kept = Answer::Kept(StoredResponse { status, headers: vec![], body: Bytes::new() });
        round_trip(&bench.store(), &format!("k{code}"), kept).await;
    }
}

/// An answer that was not kept says what it can.
pub(super) async fn answers_that_were_not_kept_come_back(bench: Stand) {
    let statuses = [None, Some(StatusCode::CREATED)];
    let locations =
        [None, Some(HeaderValue::from_static("/a/1")), Some(HeaderValue::from_static(""))];
    for (n, status) in statuses.into_iter().enumerate() {
        for (m, location) in locations.iter().enumerate() {
            let kept = Answer::NotKept { status, location: location.clone() };
            round_trip(&bench.store(), &format!("k{n}{m}"), kept).await;
        }
    }
}

/// What an operator sees may be empty, long, or in any script.
pub(super) async fn what_the_operator_sees_comes_back(bench: Stand) {
    let store = bench.store();
    let long = "/päth/".repeat(500);
    for (n, text) in
        ["", "/", "/a'b\"c\\d%00;--", "/ünïcødé/漢字/🦀", &long].into_iter().enumerate()
    {
        let mut asked = first(&format!("k{n}"));
        asked.about = About { method: "PATCH".into(), route: text.into(), path: text.into() };
        let record = new(&store, asked.clone()).await;
        assert_eq!(record.about, asked.about);
        assert_eq!(load(&store, record.id).await, Some(record));
    }
}

/// Numbers at the ends of their ranges.
pub(super) async fn extreme_numbers_come_back(bench: Stand) {
    let store = bench.store();
    for (n, owner) in [0, 1, u64::from(u32::MAX), 1 << 63, u64::MAX].into_iter().enumerate() {
        let mut asked = first(&format!("k{n}"));
        asked.owner = owner;
        asked.lease = Duration::from_millis(n as u64);
        let record = new(&store, asked.clone()).await;
        assert_eq!(record, asked.record(record.created_at, record.version));
        assert_eq!(load(&store, record.id).await, Some(record));
    }
}

/// The fingerprint decides between replay and refusal: all parts of it are kept.
pub(super) async fn every_part_of_the_fingerprint_comes_back(bench: Stand) {
    use crate::fingerprint::{Fingerprint, RulesId};
    let store = bench.store();
    for (n, (scheme, rules)) in [(0, 0), (1, 0x80), (255, 0xff)].into_iter().enumerate() {
        let digest = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(rules));
        let rules = RulesId::from_bytes([rules; 8]);
        let asked = First {
            fingerprint: Fingerprint::from_parts(scheme, rules, digest),
            ..first(&format!("k{n}"))
        };
        let record = new(&store, asked.clone()).await;
        let found = load(&store, record.id).await.expect("it is there");
        assert_eq!(found.fingerprint, asked.fingerprint);
    }
}

/// Each reason for doubt is kept as what it is.
pub(super) async fn every_doubt_comes_back(bench: Stand) {
    let store = bench.store();
    let doubts = [
        Doubt::LeaseEnded,
        Doubt::OwnerGone,
        Doubt::AnswerLost,
        Doubt::Panicked,
        Doubt::ServerError,
        Doubt::Said,
    ];
    for (n, doubt) in doubts.into_iter().enumerate() {
        let begun = new(&store, first(&format!("k{n}"))).await;
        let what = Some(Happened::Doubted(doubt));
        let write = Write { becomes: Becomes::Unknown(doubt), new_fence: false, what, ttl: None };
        let doubted = swapped(&store, &begun, write).await;
        let found = load(&store, begun.id).await.expect("it is there");
        assert_eq!(found, doubted);
        assert!(matches!(found.state, State::Unknown { doubt: kept, .. } if kept == doubt));
    }
}

/// The timeline is what an operator judges by: every kind of moment is kept.
pub(super) async fn every_kind_of_moment_comes_back(bench: Stand) {
    let store = bench.store();
    let begun = new(&store, first("k")).await;
    let long = "ü".repeat(REASON_BYTES_MAX / 2);
    let every_byte: Vec<u8> = (0..=u8::MAX).cycle().take(LATE_BODY_BYTES_MAX * 2).collect();
    let long_answer = done(every_byte);
    let happened = [
        Happened::Began(None),
        Happened::Began(Some("id of a/request".into())),
        Happened::Settled(Standing::Unknown, None),
        Happened::Settled(Outcome::Retryable(None).standing(), Some(503)),
        Happened::Doubted(Doubt::AnswerLost),
        Happened::LateResult(Box::new(LateResult::new(Fence(u64::MAX), &long_answer))),
        Happened::LateResult(Box::new(LateResult::new(Fence(0), &Outcome::Retryable(None)))),
        Happened::LookedUp("status 503 'x'".into()),
        Happened::Resolved(Standing::Completed, Judge::Reconciler, "".into()),
        Happened::Resolved(Standing::FailedRetryable, Judge::Webhook, "漢字 'x'".into()),
        Happened::Resolved(Standing::Completed, Judge::Operator, long.into()),
        Happened::Expired("a\0b\nc".into()),
    ];
    assert!(happened.len() < MOMENTS_MAX, "none is forgotten yet");
    let mut record = begun.clone();
    for what in &happened {
        let what = Some(what.clone());
        let write = Write { becomes: Becomes::Same, new_fence: false, what, ttl: None };
        record = swapped(&store, &record, write).await;
    }
    let found: Record = load(&store, begun.id).await.expect("it is there");
    assert_eq!(found, record);
    let kept: Vec<&Happened> = found.timeline.iter().skip(1).map(|moment| &moment.what).collect();
    assert_eq!(kept, happened.iter().collect::<Vec<_>>());
    assert!(found.timeline.iter().all(|moment: &Moment| moment.fence == begun.fence));
}
