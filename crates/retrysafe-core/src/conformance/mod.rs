//! Does a store keep its promises? (feature `conformance`)
//!
//! Everything that can be said of one [`Store`](crate::store::Store), as named cases. A store's
//! tests implement [`Bench`] for it and add one line; each case becomes a test of its own, so that a
//! failure names the promise that was broken:
//!
//! ```text
//! retrysafe_core::conformance!(memory, MemoryBench: Still);
//! retrysafe_core::conformance!(disk, DiskBench: Still + Damage + Reopen);
//! ```
//!
//! What only some stores can do is a trait behind the colon: [`Still`] for a clock that moves by
//! hand only, [`Damage`] for records that can be damaged where they lie, [`Reopen`] for stores that
//! outlive their process. A store that does not name one is not tested for it, and the line says so.
//! [`Shaken`] around a bench runs the same cases with operations delayed at random.
//!
//! The cases go from the five operations (`inserts`, `swaps`, `scans`, `reaping`) over what is stored
//! (`payloads`, `names`, `numbers`, `clocks`) to the verbs of the [`Engine`](crate::engine::Engine)
//! (`verbs`, `leases`, `heads`, `flows`, `given_up`, `verdicts`, `upkeep`), first over the store as it is and then behind [`Faulty`]
//! (`faults`, `storms`). Last, `model` compares it with a plain map, at random. They are private
//! functions, one file per theme, so that the compiler finds a case that is not listed below.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::wildcard_enum_match_arm,
    reason = "a case is a test: whatever it does not expect is a panic"
)]

mod bench;
mod boundaries;
mod chance;
mod changes;
mod clocks;
mod damage;
mod drops;
mod faults;
mod faulty;
mod flows;
mod given_up;
mod heads;
mod inserts;
mod leases;
mod list;
mod marks;
mod model;
mod names;
mod numbers;
mod payloads;
mod reaping;
mod reopening;
mod samples;
mod scans;
mod shaken;
mod sights;
mod stand;
mod storms;
mod swaps;
mod upkeep;
mod verbs;
mod verdicts;

use std::pin::Pin;
use std::time::Duration;

pub use bench::{Bench, Damage, Owners, Reopen, Still};
pub use chance::{Chance, SEED_VARIABLE};
pub use faulty::{Fault, Faulty, Op};
use model::Stage;
pub use shaken::Shaken;
use stand::{DamageStand, ReopenStand, Soon, Stand};

/// How long a case may take before it counts as hung. Far more than any case needs on a busy
/// machine; it is there so that a store that never answers fails by name.
const CASE_TIME_MAX: Duration = Duration::from_secs(600);

/// A case: its name, and how it goes over a bench of this kind.
type Case<S> = (&'static str, fn(S) -> Pin<Box<dyn Future<Output = ()>>>);

static FOR_ALL: &[Case<Stand>] = crate::conformance!(@Bench @table);
static FOR_STILL: &[Case<Stand>] = crate::conformance!(@Still @table);
static FOR_DAMAGE: &[Case<DamageStand>] = crate::conformance!(@Damage @table);
static FOR_REOPEN: &[Case<ReopenStand>] = crate::conformance!(@Reopen @table);

/// Runs one of the cases for all stores over a fresh one, by its theme and name, such as
/// `inserts::a_load_of_nothing_is_none`.
///
/// # Panics
///
/// If the store breaks the promise that the case is about, or if there is no such case.
pub fn run<B: Bench>(case: &str) {
    start_one(FOR_ALL, case, Box::pin(async { Box::new(B::fresh().await) as Stand }));
}

/// The same for the cases about a clock that stands still.
///
/// # Panics
///
/// See [`run`].
pub fn run_still<B: Still>(case: &str) {
    start_one(FOR_STILL, case, Box::pin(async { Box::new(B::fresh().await) as Stand }));
}

/// The same for the cases about damage.
///
/// # Panics
///
/// See [`run`].
pub fn run_damage<B: Damage>(case: &str) {
    start_damage(case, Box::pin(async { Box::new(B::fresh().await) as DamageStand }));
}

/// The same for the cases about restarts.
///
/// # Panics
///
/// See [`run`].
pub fn run_reopen<B: Reopen>(case: &str) {
    start_reopen(case, Box::pin(async { Box::new(B::fresh().await) as ReopenStand }));
}

/// Compares a store with a plain map: 256 sequences of 60 random commands.
///
/// # Panics
///
/// If the two disagree, with the fewest commands that show it and the seed that repeats it.
pub fn compare<B: Bench>() {
    model::check(|| Box::pin(async { Stage::Once(Box::new(B::fresh().await)) }));
}

/// The same with restarts among the commands.
///
/// # Panics
///
/// See [`compare`].
pub fn compare_across_restarts<B: Reopen>() {
    model::check(|| Box::pin(async { Stage::Again(Box::new(B::fresh().await)) }));
}

// These three are not generic, so that they and what they call are compiled here, not by every store.
fn start_one(cases: &[Case<Stand>], name: &str, fresh: Soon<'static, Stand>) {
    start(cases, name, fresh);
}

fn start_damage(name: &str, fresh: Soon<'static, DamageStand>) {
    start(FOR_DAMAGE, name, fresh);
}

fn start_reopen(name: &str, fresh: Soon<'static, ReopenStand>) {
    start(FOR_REOPEN, name, fresh);
}

fn start<S>(cases: &[Case<S>], name: &str, fresh: impl Future<Output = S>) {
    let Some((_, case)) = cases.iter().find(|(listed, _)| *listed == name) else {
        panic!("there is no case {name}");
    };
    runtime().block_on(async {
        let case = async { case(fresh.await).await };
        let ended = tokio::time::timeout(CASE_TIME_MAX, case).await;
        assert!(ended.is_ok(), "the store did not answer within {CASE_TIME_MAX:?}");
    });
}

/// A runtime with more threads than a small machine has cores, so that races are races.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime can be built")
}
