//! Does anything run twice while somebody does their worst to the servers?
//!
//! Two gateways retry the same keys without a pause. Meanwhile connections are killed, servers stand
//! still, scripts are forgotten, a master dies, its replica takes over, and the old master comes back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retrysafe::core::engine::{Begun, Engine, Settled};
use retrysafe::core::record::Answer;
use retrysafe::stores::redis::RedisStore;

use crate::kit::load::{History, begin, completed, id};
use crate::kit::new_store;
use crate::kit::server::{Server, Servers, wait_until};

/// How many keys the callers go through again and again.
const KEYS: u64 = 3_000;

/// Callers that never give a key up, and what they did.
#[derive(Default)]
struct Mob {
    executed: Mutex<HashMap<String, u32>>,
    told: AtomicUsize,
    owners: AtomicU64,
    is_over: AtomicBool,
}

impl Mob {
    fn start(
        self: &Arc<Self>,
        store: &RedisStore,
        callers: u64,
    ) -> Vec<tokio::task::JoinHandle<()>> {
        let caller = |number: u64| {
            let (mob, engine) = (Arc::clone(self), Engine::new(store.clone()));
            async move {
                let mut turn = number * 7;
                while !mob.is_over.load(Ordering::Relaxed) {
                    turn += 1;
                    mob.request(&engine, &format!("k{}", turn % KEYS)).await;
                }
            }
        };
        (0..callers).map(|number| tokio::spawn(caller(number))).collect()
    }

    async fn request(&self, engine: &Engine<RedisStore>, key: &str) {
        let owner = self.owners.fetch_add(1, Ordering::Relaxed) + 1;
        match begin(engine, key, owner).await {
            Ok(Begun::Execute(mut lease)) => {
                *self.executed.lock().unwrap().entry(key.into()).or_default() += 1;
                for _ in 0..5 {
                    match engine.settle(lease, &completed(key)).await {
                        Ok(Settled::Done(_)) => {
                            self.told.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                        // A fail-over has lost the record, or its owner came too late.
                        Ok(Settled::Lost { .. }) => return,
                        Err(unsettled) => lease = unsettled.lease,
                    }
                }
            }
            Ok(Begun::Replay(Answer::Kept(response), _)) => {
                assert_eq!(response.body, key.as_bytes(), "a wrong byte was served");
                self.told.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(error) => {
                if error.may_have_applied() {
                    // If that fails as well, the record's lease ends and it is unknown.
                    let _ = engine.withdraw(id(key), owner).await;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }

    /// Waits until callers have been told this many more answers.
    fn goes_on(&self, more: usize) {
        let before = self.told.load(Ordering::Relaxed);
        wait_until("callers go on", || self.told.load(Ordering::Relaxed) > before + more);
    }

    async fn end(&self, callers: Vec<tokio::task::JoinHandle<()>>) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.await.unwrap();
        }
        let executed = self.executed.lock().unwrap();
        for (key, count) in executed.iter() {
            assert_eq!(*count, 1, "{key} was executed {count} times");
        }
        executed.len()
    }
}

/// Nothing here loses data: whatever was acknowledged is there at the end, and ran once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_and_standing_servers_double_and_lose_nothing() {
    let server = Server::start(&[("enable-debug-command", "yes")]);
    let (url, one) = new_store(&server.url(), "deadline=20s").await;
    let two = RedisStore::open(&url).await.unwrap();
    let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let mut callers = history.run(&one, 4, &stop);
    callers.extend(history.run(&two, 4, &stop));
    for round in 0..6 {
        for attack in [
            &["CLIENT", "KILL", "TYPE", "normal"][..],
            &["CLIENT", "PAUSE", "150", "ALL"],
            &["DEBUG", "SLEEP", "0.15"],
            &["SCRIPT", "FLUSH"],
            &["CLIENT", "PAUSE", "150", "WRITE"],
        ] {
            server.cli(attack);
            let answers = history.answers();
            wait_until("callers go on", || history.answers() > answers + 20 + round);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(history.check(&one).await > 600);
}

/// A master of a cluster dies and comes back as a replica; later it is promoted by hand, while its
/// successor lives. Whatever was lost on the way is refused, not run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_masters_take_turns_runs_nothing_twice() {
    let servers = Servers::cluster(&[]);
    servers.miss_nodes_after("2000");
    let (url, one) = new_store(&servers.url(), "quarantine=1h&deadline=4s").await;
    let two = RedisStore::open(&url).await.unwrap();
    let mob = Arc::new(Mob::default());
    let mut callers = mob.start(&one, 4);
    callers.extend(mob.start(&two, 4));
    mob.goes_on(500);
    // Bucket 00 lives in slot 13254.
    let old = servers.master_of(13_254);
    old.kill();
    wait_until("a replica takes over", || servers.master_of(13_254).port != old.port);
    mob.goes_on(500);
    old.up();
    wait_until("the old master follows", || {
        let told = old.cli(&["INFO", "replication"]);
        told.contains("role:slave") && told.contains("master_link_status:up")
    });
    mob.goes_on(500);
    wait_until("it takes over again", || {
        // Refused while the others have not agreed yet.
        old.cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        servers.master_of(13_254).port == old.port
    });
    mob.goes_on(500);
    let executed = mob.end(callers).await;
    println!("{executed} of {KEYS} keys were executed, each once");
    assert!(executed > 500);
}
