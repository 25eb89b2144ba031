//! What does a fail-over lose, and what runs twice?
//!
//! A replica that has not received the last writes takes the master's place. Before that, requests are
//! executed: some that the replica has, some that it has not, and some that are still running. Then all
//! of them are retried. The same servers hold a store with its quarantine, one without (which must
//! double, or this measures nothing), and the copies of a tiered store.
//!
//! `FAILOVER_RUNS=20 cargo test --all-features --test redis failover -- --nocapture` prints the
//! table of docs/redis.md; without the variable each row is one run.

use retrysafe::core::Store;
use retrysafe::core::engine::{Begun, Engine, Lease, Settled};
use retrysafe::core::record::Answer;
use retrysafe::stores::tiered::{TieredStore, TieredUrl};

use crate::kit::load::{begin, completed, id};
use crate::kit::new_store;
use crate::kit::proxy::{Mode, Proxy};
use crate::kit::server::{Server, wait_until};
use crate::postgres_kit::database;

/// How often each row is measured, if somebody wants to know it well.
const RUNS_VARIABLE: &str = "FAILOVER_RUNS";

/// How many requests are executed before the replica falls behind, after that, and not to their end.
const REQUESTS: usize = 20;
const RUNNING: usize = 5;

/// A server's settings, and the parameters of a store on it.
struct Setup {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    parameters: &'static str,
    /// Whether what was acknowledged may be lost. It must be, where it may: else nothing was measured.
    may_lose: bool,
}

const SETUPS: [Setup; 4] = [
    Setup {
        name: "appendfsync everysec",
        settings: &[("appendonly", "yes"), ("appendfsync", "everysec")],
        parameters: "",
        may_lose: true,
    },
    Setup {
        name: "appendfsync always",
        settings: &[("appendonly", "yes"), ("appendfsync", "always")],
        parameters: "require=aof-always",
        may_lose: true,
    },
    Setup {
        name: "wait=1,100ms",
        settings: &[("appendonly", "yes"), ("appendfsync", "everysec")],
        parameters: "wait=1,100ms",
        may_lose: false,
    },
    Setup {
        name: "min_replicas=1",
        settings: &[
            ("appendonly", "yes"),
            ("min-replicas-to-write", "1"),
            ("min-replicas-max-lag", "60"),
        ],
        parameters: "min_replicas=1",
        may_lose: true,
    },
];

/// What was counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    acknowledged: usize,
    lost: usize,
    doubled: usize,
}

impl std::ops::AddAssign for Counted {
    fn add_assign(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.lost += other.lost;
        self.doubled += other.doubled;
    }
}

/// Callers of one store, and what they did.
struct Callers<S> {
    engine: Engine<S>,
    /// Keys whose effect has happened.
    executed: Vec<String>,
    /// Those of them whose callers were answered.
    acknowledged: Vec<String>,
    running: Vec<Lease>,
}

impl<S: Store> Callers<S> {
    fn new(store: S) -> Self {
        Self {
            engine: Engine::new(store),
            executed: Vec::new(),
            acknowledged: Vec::new(),
            running: Vec::new(),
        }
    }

    async fn execute(&mut self, key: String, is_to_its_end: bool) {
        // An ambiguous or refused begin executes nothing.
        let Ok(Begun::Execute(lease)) = begin(&self.engine, &key, 1).await else { return };
        self.executed.push(key.clone());
        if !is_to_its_end {
            self.running.push(lease);
            return;
        }
        if let Ok(Settled::Done(_)) = self.engine.settle(lease, &completed(&key)).await {
            self.acknowledged.push(key);
        }
    }

    /// Retries everything, and counts.
    async fn retry(&self) -> Counted {
        let mut counted = Counted { acknowledged: self.acknowledged.len(), ..Counted::default() };
        for key in &self.acknowledged {
            let found = self.engine.store().load(id(key)).await.expect("a server answers").value;
            counted.lost += usize::from(found.is_none_or(|record| record.expires_at().is_none()));
        }
        for key in &self.executed {
            match begin(&self.engine, key, 2).await {
                Ok(Begun::Execute(_)) => counted.doubled += 1,
                Ok(Begun::Replay(Answer::Kept(response), _)) => {
                    assert_eq!(response.body, key.as_bytes(), "a wrong byte was served");
                }
                Ok(_) | Err(_) => {}
            }
        }
        counted
    }
}

/// One fail-over under three stores.
async fn fail_over(setup: &Setup) -> [Counted; 3] {
    let master = Server::start(setup.settings);
    let (stream, front) = (Proxy::to(master.port).await, Proxy::to(master.port).await);
    let replica_of = format!("127.0.0.1 {}", stream.port);
    let mut settings = setup.settings.to_vec();
    settings.push(("replicaof", &replica_of));
    let replica = Server::start(&settings);
    replica.wait_for_sync(&master);
    // The replica has one of its own, so that it can do what the master could.
    let peer = Server::start(&[("replicaof", &format!("127.0.0.1 {}", replica.port))]);
    peer.wait_for_sync(&replica);
    wait_until("the master takes writes", || master.cli(&["SET", "x", "1"]) == "OK");
    let open = async |quarantine: &str| {
        let parameters = format!("quarantine={quarantine}&{}", setup.parameters);
        Callers::new(new_store(&front.url(), &parameters).await.1)
    };
    let (mut held, mut hasty) = (open("1h").await, open("0ms").await);
    let decide = format!("{}?deadline=30s", database().await).parse().unwrap();
    let answer = format!("{}?prefix=copies", front.url()).parse().unwrap();
    let mut tiered = Callers::new(TieredStore::open(&TieredUrl { decide, answer }).await.unwrap());
    for part in ["before", "after"] {
        for n in 0..REQUESTS {
            let key = format!("{part}{n}");
            held.execute(key.clone(), true).await;
            hasty.execute(key.clone(), true).await;
            tiered.execute(key, true).await;
        }
        if part == "before" {
            replica.wait_for_sync(&master);
            stream.set(Mode::Freeze);
        }
    }
    for n in 0..RUNNING {
        held.execute(format!("running{n}"), false).await;
        hasty.execute(format!("running{n}"), false).await;
        tiered.execute(format!("running{n}"), false).await;
    }
    master.kill();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    wait_until("the replica takes writes", || replica.cli(&["SET", "x", "1"]) == "OK");
    front.lead_to(replica.port);
    [held.retry().await, hasty.retry().await, tiered.retry().await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_in_flight_runs_twice_within_the_quarantine() {
    let runs = std::env::var(RUNS_VARIABLE).map_or(1, |runs| runs.parse().expect("a number"));
    println!(
        "| setup, {runs} fail-overs | acknowledged | lost | doubled without quarantine | with |"
    );
    println!("| --- | --- | --- | --- | --- |");
    let mut tiered = Counted::default();
    let mut doubled_without = 0;
    for setup in &SETUPS {
        let (mut held, mut hasty) = (Counted::default(), Counted::default());
        for _ in 0..runs {
            let [one, two, three] = fail_over(setup).await;
            held += one;
            hasty += two;
            tiered += three;
        }
        let (acknowledged, lost) = (held.acknowledged + hasty.acknowledged, held.lost + hasty.lost);
        println!(
            "| {} | {acknowledged} | {lost} | {} | {} |",
            setup.name, hasty.doubled, held.doubled
        );
        assert_eq!(lost > 0, setup.may_lose, "{}: {lost} of {acknowledged} lost", setup.name);
        assert_eq!(held.doubled, 0, "{}: the quarantine lets nothing run twice", setup.name);
        doubled_without += hasty.doubled;
    }
    println!("| tiered | {} | {} | – | {} |", tiered.acknowledged, tiered.lost, tiered.doubled);
    assert_eq!((tiered.lost, tiered.doubled), (0, 0), "the database decides");
    assert!(
        doubled_without > 0,
        "without a quarantine a fail-over doubles, or nothing was measured"
    );
}
