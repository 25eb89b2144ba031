//! Do many processes execute each request once?
//!
//! The test starts itself eight times; each copy races for the same thousand keys and prints which
//! ones it was told to execute.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use retrysafe::core::Store as _;
use retrysafe::core::engine::{Begun, Engine, Settled};
use retrysafe::core::record::Standing;
use retrysafe::stores::redis::RedisStore;

use crate::kit::bench::cluster;
use crate::kit::load::{begin, completed, id};
use crate::kit::{prefix, shared};
use retrysafe::stores::redis::{RedisUrl, Trust};

const KEYS: usize = 1_000;
const PROCESSES: u64 = 8;
/// Set in the copies: the store's URL, and which copy it is.
const VARIABLE: &str = "RETRYSAFE_TEST_REDIS_RACER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_racing_on_a_thousand_keys_execute_each_once() {
    let name = "processes::eight_processes_racing_on_a_thousand_keys_execute_each_once";
    race_of_processes(name, || shared().url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_racing_over_a_cluster_execute_each_once() {
    let name = "processes::eight_processes_racing_over_a_cluster_execute_each_once";
    race_of_processes(name, || cluster().url()).await;
}

async fn race_of_processes(name: &str, place: impl Fn() -> String) {
    if let Ok(racer) = std::env::var(VARIABLE) {
        let (number, url) = racer.split_once(' ').unwrap();
        return race(&url.parse().unwrap(), number.parse().unwrap()).await;
    }
    let text = format!("{}?prefix={}&deadline=60s", place(), prefix());
    let url: RedisUrl = text.parse().unwrap();
    RedisStore::init(&url, Trust::AtOnce).await.unwrap();
    let this = std::env::current_exe().unwrap();
    let racers: Vec<_> = (0..PROCESSES)
        .map(|number| {
            Command::new(&this)
                .args(["--exact", "--nocapture", name])
                .env(VARIABLE, format!("{number} {text}"))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut executed: HashMap<String, u32> = HashMap::new();
    for racer in racers {
        let output = racer.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((_, key)) = line.split_once("executed ") {
                *executed.entry(key.to_owned()).or_default() += 1;
            }
        }
    }
    assert_eq!(executed.len(), KEYS, "every key was executed");
    assert!(executed.values().all(|count| *count == 1), "none was executed twice");
    let store = RedisStore::open(&url).await.unwrap();
    for key in executed.keys() {
        let record = store.load(id(key)).await.unwrap().value.unwrap();
        assert_eq!(record.standing(), Standing::Completed, "{key}");
    }
}

/// One process: 32 callers that go through all keys in their own order.
async fn race(url: &RedisUrl, number: u64) {
    let engine = Arc::new(Engine::new(RedisStore::open(url).await.unwrap()));
    let next = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..32)
        .map(|_| {
            let (engine, next) = (Arc::clone(&engine), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= KEYS {
                        return;
                    }
                    // Each process begins elsewhere, and they cross.
                    let turn = if number.is_multiple_of(2) { at } else { KEYS - 1 - at };
                    let key = format!("k{turn}");
                    let owner = number * KEYS as u64 + at as u64 + 1;
                    match begin(&engine, &key, owner).await.unwrap() {
                        Begun::Execute(lease) => {
                            println!("\nexecuted {key}");
                            let settled = engine.settle(lease, &completed(&key)).await.unwrap();
                            assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
                        }
                        Begun::Replay(..) | Begun::InProgress(_) => {}
                        other => panic!("{other:?}"),
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
}
