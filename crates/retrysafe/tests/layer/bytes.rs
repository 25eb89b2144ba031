//! Is a replay the first answer, byte for byte?

use http::HeaderName;
use proptest::prelude::*;
use retrysafe_core::policy::Policy;
use retrysafe_core::response::is_stripped;

use crate::stage::{Answer, Spelt, Stage};

/// The kept answer's limit here; bodies go up to it.
const LIMIT: usize = 16 * 1_024;

fn spelt() -> impl Strategy<Value = Spelt> {
    let names = prop::sample::select(vec![
        "x-one",
        "x-two",
        "x-three",
        "location",
        "cache-control",
        "content-type",
        "content-encoding",
        "etag",
        "vary",
        "link",
        "set-cookie",
        "x-request-id",
        "ratelimit-limit",
        "retry-after",
    ]);
    // What a field value may hold: visible bytes, 0x80 to 0xff, and inner spaces. None at the ends.
    let byte = prop_oneof![0x21..=0x7eu8, 0x80..=0xffu8];
    let value = prop::collection::vec(byte, 0..20);
    let headers = prop::collection::vec((names.prop_map(str::to_owned), value), 0..12);
    let status = prop::sample::select(vec![200u16, 201, 202, 206, 303, 307, 400, 402, 409, 422]);
    let length = prop_oneof![Just(0), Just(1), Just(LIMIT), 0..LIMIT];
    let body = (length, any::<u8>()).prop_map(|(length, seed)| {
        (0..length).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect()
    });
    (status, headers, body)
}

/// What may differ: what belongs to one message, and the mark of a replay.
fn stored_headers(answer: &Answer) -> Vec<(String, Vec<u8>)> {
    let kept = |name: &str| {
        let name = HeaderName::try_from(name).unwrap();
        !is_stripped(&name) && name != "set-cookie"
    };
    let mut headers: Vec<_> =
        answer.headers.iter().filter(|(name, _)| kept(name)).cloned().collect();
    // Order counts among equal names only.
    headers.sort_by(|(one, _), (other, _)| one.cmp(other));
    headers
}

#[test]
fn a_replay_differs_from_the_first_answer_only_where_declared() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let policy =
        Policy { response_bytes_max: LIMIT, request_bytes_max: 1 << 20, ..Policy::default() };
    let stage = runtime.block_on(Stage::open(policy));
    let keys = std::cell::Cell::new(0);
    proptest!(ProptestConfig::with_cases(256), |(spelt in spelt())| {
        keys.set(keys.get() + 1);
        let key = keys.get();
        let request = serde_json::to_vec(&spelt).unwrap();
        let (first, again) = runtime.block_on(async {
            let first = stage.post("/headers", &key.to_string(), request.clone()).await;
            (first, stage.post("/headers", &key.to_string(), request).await)
        });
        prop_assert_eq!(first.status, spelt.0);
        prop_assert_eq!(&first.body[..], &spelt.2[..]);
        prop_assert!(!first.is_replay() && again.is_replay());
        prop_assert_eq!(again.status, first.status);
        prop_assert_eq!(&again.body, &first.body);
        prop_assert_eq!(stored_headers(&again), stored_headers(&first));
        let length = spelt.2.len().to_string();
        prop_assert_eq!(again.header("content-length"), Some(length.as_str()));
        prop_assert_eq!(again.header("idempotency-expires"), first.header("idempotency-expires"));
        let extra = again.headers.iter().filter(|(name, _)| name == "set-cookie").count();
        prop_assert_eq!(extra, 0);
    });
    assert_eq!(stage.shop.runs(), keys.get(), "each ran once");
}
