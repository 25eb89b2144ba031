//! What do a thousand duplicates see? One execution per key, and the same bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use retrysafe_core::policy::Policy;

use crate::stage::{Stage, must};

const DUPLICATES: usize = 1_000;
const KEYS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiting_duplicates_on_four_keys_run_once_each_and_get_the_same_bytes() {
    let policy = Policy { wait_max: Duration::from_secs(600), ..Policy::default() };
    let stage =
        Stage::open_with(|layer| layer.policy(policy).waiters_max(DUPLICATES, DUPLICATES)).await;
    let asked: Vec<_> = (0..DUPLICATES)
        .map(|at| {
            let key = at % KEYS;
            (key, stage.begin(stage.request("/slow", &key.to_string(), "")))
        })
        .collect();
    // All have asked before the first is answered.
    stage.store.asked(DUPLICATES, 0).await;
    assert_eq!(stage.shop.runs(), KEYS);
    stage.shop.gate.add_permits(KEYS);
    let (mut bodies, mut firsts) = (BTreeMap::new(), 0);
    for (key, answer) in asked {
        let answer = must("every duplicate is answered", answer).await.unwrap();
        assert_eq!(answer.status, 201);
        firsts += usize::from(!answer.is_replay());
        assert_eq!(bodies.entry(key).or_insert_with(|| answer.body.clone()), &answer.body);
    }
    assert_eq!((firsts, stage.shop.runs(), stage.records().await.len()), (KEYS, KEYS, KEYS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_hasty_duplicates_are_refused_or_answered_and_run_once() {
    let stage = Stage::open(Policy::default()).await;
    let asked: Vec<_> = (0..DUPLICATES)
        .map(|at| stage.begin(stage.request("/pay", &(at % KEYS).to_string(), "")))
        .collect();
    for answer in asked {
        let answer = must("every duplicate is answered", answer).await.unwrap();
        match answer.status {
            201 => {}
            _ => answer.refuses(409, "request_in_progress"),
        }
    }
    assert_eq!(stage.shop.runs(), KEYS);
}
