//! Are charges and rides equal after many flows in processes that are killed at random?
//!
//! Four processes book rides. One of them after the other is killed, and started again. Some callers come back until they
//! are answered, some never do: those rides are the completer's. `cargo xtask flows 50000` is the long run.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use retrysafe::core::engine::Ruled;
use retrysafe::core::machine::{Evidence, Proof, Verdict};
use retrysafe::core::record::Judge;
use retrysafe::core::{Engine, Id, Key, Scope};
use retrysafe::stores::postgres::PostgresStore;
use tokio::sync::{Mutex, RwLock};
use tokio::task::JoinSet;

use crate::languages::Language;
use crate::program::{Caller, PACE, Program};
use crate::world::{Keys, World};

/// How many flows `cargo xtask test` runs.
const FLOWS: usize = 1_000;

const PROCESSES: usize = 4;

/// How many callers ask at once.
const CALLERS: usize = 32;

/// After how many rides a process is killed.
const RIDES_PER_KILL: usize = 100;

/// Of so many callers one never comes back.
const LEAVES_ONE_IN: usize = 5;

/// How long the completers may take for all that was left, on a busy machine.
const COMPLETER_PATIENCE: Duration = Duration::from_secs(300);

/// Longer than a lease, and than a flow is left to its caller after several attempts.
const MUCH_LATER: Duration = Duration::from_secs(2 * 60 * 60);

/// What everybody shares.
struct Load {
    world: World,
    flows: usize,
    seed: u64,
    next: AtomicUsize,
    kills: AtomicU64,
    processes: Vec<Mutex<Program>>,
    callers: RwLock<Vec<Caller>>,
    /// Rides whose caller comes back later: the process died, and its lease is not over.
    unanswered: Mutex<Vec<usize>>,
    left: Mutex<HashSet<usize>>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_are_rides_after_random_kills() {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let flows = read("RETRYSAFE_FLOWS").map_or(FLOWS, |count| count as usize);
    let seed = read("RETRYSAFE_FLOWS_SEED").unwrap_or(u64::from(std::process::id()));
    println!(
        "{flows} flows by {PROCESSES} processes; RETRYSAFE_FLOWS_SEED={seed} kills in the same order"
    );
    let mut world = World::open(Keys::Taken).await;
    world.settings.push(("COMPLETE_EVERY_MS", "200".to_owned()));
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(world.start_bare(Language::Rust).await);
    }
    let callers = processes.iter().map(|process| process.caller.clone()).collect();
    let load = Arc::new(Load {
        world,
        flows,
        seed,
        next: AtomicUsize::new(0),
        kills: AtomicU64::new(0),
        processes: processes.into_iter().map(Mutex::new).collect(),
        callers: RwLock::new(callers),
        unanswered: Mutex::default(),
        left: Mutex::default(),
    });
    let begun = Instant::now();
    let mut asking = JoinSet::new();
    for _ in 0..CALLERS {
        let load = Arc::clone(&load);
        asking.spawn(async move { load.ask_all().await });
    }
    while let Some(ended) = asking.join_next().await {
        ended.unwrap();
    }
    let rate = flows as f64 / begun.elapsed().as_secs_f64();
    let unanswered = load.unanswered.lock().await.clone();
    let left = load.left.lock().await.len();
    let kills = load.kills.load(Ordering::SeqCst);
    // What nobody may go on with is unknown: a process died between its reservation and the flow's first commit.
    load.world.later(MUCH_LATER).await;
    load.until_the_completer_is_done().await;
    let released = load.release_unknown().await;
    let mut coming_back = JoinSet::new();
    for ride in unanswered.iter().copied() {
        if coming_back.len() == CALLERS {
            coming_back.join_next().await.unwrap().unwrap();
        }
        let load = Arc::clone(&load);
        coming_back.spawn(async move { load.book_until_answered(ride).await });
    }
    while let Some(ended) = coming_back.join_next().await {
        ended.unwrap();
    }
    load.check_charges_are_rides().await;
    println!(
        "{flows} flows, {kills} kills, {rate:.0} flows a second; {} callers came back after a lease, {left} never did; \
         {released} were unknown with nothing done",
        unanswered.len()
    );
}

impl Load {
    /// Books one ride after the other, until there is none.
    async fn ask_all(&self) {
        loop {
            let ride = self.next.fetch_add(1, Ordering::SeqCst);
            if ride >= self.flows {
                return;
            }
            if ride % RIDES_PER_KILL == RIDES_PER_KILL - 1 {
                self.kill_one(ride).await;
            }
            let told = self.caller(ride).await.book(&name(ride)).await;
            let is_answered = told.is_some_and(|told| told.status == 201);
            if is_answered {
                continue;
            }
            if ride.is_multiple_of(LEAVES_ONE_IN) {
                self.left.lock().await.insert(ride);
            } else {
                self.unanswered.lock().await.push(ride);
            }
        }
    }

    async fn caller(&self, ride: usize) -> Caller {
        self.callers.read().await[ride % PROCESSES].clone()
    }

    /// Kills a process and starts another one in its place.
    async fn kill_one(&self, ride: usize) {
        // A step of SplitMix64: the seed says who is killed when.
        let mut mixed = self.seed.wrapping_add((ride as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let chosen = (mixed >> 33) as usize % PROCESSES;
        let mut process = self.processes[chosen].lock().await;
        process.kill();
        *process = self.world.start_bare(Language::Rust).await;
        self.callers.write().await[chosen] = process.caller.clone();
        self.kills.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until nothing is left that could go on.
    async fn until_the_completer_is_done(&self) {
        let begun = Instant::now();
        loop {
            let unfinished =
                self.world.number("SELECT count(*) FROM ride WHERE charge IS NULL").await;
            let running = "SELECT count(*) FROM retrysafe.record WHERE state = 0";
            let running = self.world.number(running).await;
            if unfinished == 0 && running == 0 {
                return;
            }
            assert!(
                begun.elapsed() < COMPLETER_PATIENCE,
                "{unfinished} unfinished, {running} running"
            );
            tokio::time::sleep(PACE).await;
        }
    }

    /// Whoever looks finds no ride and no charge, says so, and the key may be used again. Gives how many there were.
    async fn release_unknown(&self) -> usize {
        let engine = Engine::new(PostgresStore::connect(&self.world.url()).await.unwrap());
        let mut released = 0;
        for ride in 0..self.flows {
            let id = id_of(ride);
            let Some(record) = engine.look(id).await.unwrap().value else { continue };
            if record.unknown_since().is_none() {
                continue;
            }
            assert!(record.flow.is_none(), "a flow with a keyed provider goes on: {record:?}");
            assert_eq!(self.world.provider.ride(&name(ride)).requests, 0, "{}", name(ride));
            let evidence = Evidence::NotExecuted(Proof::operator());
            let reason = "no ride and no charge".into();
            let verdict = Verdict { fence: record.fence, evidence, judge: Judge::Operator, reason };
            let ruled = engine.resolve(id, &verdict).await.unwrap();
            assert!(matches!(ruled, Ruled::Done(_)), "{ruled:?}");
            released += 1;
        }
        released
    }

    async fn book_until_answered(&self, ride: usize) {
        let told = self.caller(ride).await.book_until_decided(&name(ride)).await;
        assert_eq!(told.status, 201, "{}: {told:?}", name(ride));
    }

    /// One charge, one ride and one receipt for everybody who came back, and for everybody whose flow had begun.
    async fn check_charges_are_rides(&self) {
        let totals = self.world.provider.totals();
        assert!(totals.charged_twice.is_empty(), "{:?}", totals.charged_twice);
        assert!(totals.with_two_keys.is_empty(), "{:?}", totals.with_two_keys);
        let rides = self.world.number("SELECT count(*) FROM ride").await;
        self.world.deliver_receipts().await;
        let receipts = self.world.provider.totals().receipts;
        assert_eq!((rides as u64, receipts), (totals.charges, totals.charges));
        let left = self.left.lock().await.len();
        let never_begun = self.flows - rides as usize;
        assert!(never_begun <= left, "{rides} rides of {}, {left} callers left", self.flows);
        let stuck = "SELECT count(*) FROM retrysafe.record WHERE state IN (0, 3)";
        assert_eq!(self.world.number(stuck).await, 0, "in progress or unknown");
    }
}

fn name(ride: usize) -> String {
    format!("ride-{ride}")
}

fn id_of(ride: usize) -> Id {
    let credential = Scope::digest_of(b"Bearer alice");
    let scope = Scope::of([("account", credential.as_bytes())]);
    Id::of(&scope, &Key::new(&name(ride)).unwrap().digest())
}
