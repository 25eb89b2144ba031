//! What can a process still do that was stopped past its lease, wherever it stood?
//!
//! It is stopped with an operation at every named point. Another process goes on with all of them. Then the first one
//! continues, and its late packets arrive.

use std::collections::HashMap;

use retrysafe::core::record::Happened;
use retrysafe::core::{Engine, Id, Key, Scope};
use retrysafe::stores::postgres::PostgresStore;
use tokio::task::JoinSet;

use crate::languages::Language;
use crate::matrix::{DONE, hold, is_held};
use crate::points::{POINTS, Point};
use crate::program::{Program, Told};
use crate::world::{Keys, World};

/// Short, because it passes on a real clock; a call may take a third of it, within which every point must be come to.
const LEASE_MS: u64 = 24_000;

/// What the program's own bound on an execution is under that lease.
const LEASE_MAX_MS: u64 = LEASE_MS * 3;

/// How long a key is remembered by a provider that forgets while the process stands still: a call may be repeated for
/// half a lease.
const SHORT_MEMORY_MS: u64 = LEASE_MAX_MS + LEASE_MS / 3 + LEASE_MS / 2;

/// What is true of the provider's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Lasts,
    /// It forgets keys while the process stands still.
    Ends,
    TakesNoKey,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_process_stopped_past_its_lease_changes_nothing() {
    stop_with_every_memory(Language::Rust).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_process_stopped_past_its_lease_changes_nothing() {
    stop_with_every_memory(Language::Python).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_process_stopped_past_its_lease_changes_nothing() {
    stop_with_every_memory(Language::Node).await;
}

async fn stop_with_every_memory(language: Language) {
    tokio::join!(
        stop_everywhere(language, Memory::Lasts),
        stop_everywhere(language, Memory::Ends),
        stop_everywhere(language, Memory::TakesNoKey),
    );
}

async fn stop_everywhere(language: Language, memory: Memory) {
    let keys = if memory == Memory::TakesNoKey { Keys::NotTaken } else { Keys::Taken };
    let mut world = World::open(keys).await;
    world.settings.push(("LEASE_MS", LEASE_MS.to_string()));
    world.settings.push(("PROVIDER_MARGIN_MS", "0".to_owned()));
    if memory == Memory::Ends {
        world.settings.push(("PROVIDER_REMEMBERS_MS", SHORT_MEMORY_MS.to_string()));
    }
    let (sleeper, _sleepers_wire) = world.start(language).await;
    let (other, _wire) = world.start(language).await;

    let mut late = JoinSet::new();
    // A call has a deadline: those that stand in one come last.
    let (calling, others): (Vec<Point>, Vec<Point>) =
        POINTS.into_iter().partition(|point| point.may_have_sent());
    for points in [others, calling] {
        for point in points.iter().copied() {
            let booking = hold(&world, &sleeper.caller, &name(point), point);
            late.spawn(async move { (point, booking.await) });
        }
        for point in points {
            is_held(&world, &name(point), point).await;
        }
    }
    sleeper.stop().await;

    let mut answers = HashMap::new();
    for point in POINTS {
        let told = other.caller.book_until_decided(&name(point)).await;
        check_what_the_other_was_told(&told, point, memory);
        answers.insert(name(point), told);
    }
    if memory == Memory::Ends {
        world.provider.forget_keys();
    }
    for point in POINTS {
        match point.held_by_provider() {
            Some(_) => world.provider.release(&name(point)),
            None => world.director.release(&name(point), point.name()),
        }
    }
    sleeper.go_on();
    while let Some(told) = late.join_next().await {
        let (point, told) = told.unwrap();
        let told = told.expect("the process lives, and answers");
        let answered = &answers[&name(point)];
        assert!(told.status != 201 || told.body == answered.body, "{point:?}: {told:?}");
    }
    for point in POINTS {
        world.provider.idle(&name(point)).await;
        let answered = &answers[&name(point)];
        check_nothing_changed(&world, &other, point, memory, answered).await;
    }
    println!("{language:?}, memory {memory:?}: {} points", POINTS.len());
}

fn name(point: Point) -> String {
    point.name().replace(' ', "-")
}

/// Whether the other process must not send what the sleeper may have sent.
fn is_unknown(point: Point, memory: Memory) -> bool {
    point == Point::RequestBegun || (point.may_have_sent() && memory != Memory::Lasts)
}

fn check_what_the_other_was_told(told: &Told, point: Point, memory: Memory) {
    if is_unknown(point, memory) {
        assert!(told.has_code("outcome_unknown"), "{point:?} {memory:?}: {told:?}");
    } else {
        assert_eq!(told.status, 201, "{point:?} {memory:?}: {told:?}");
    }
}

async fn check_nothing_changed(
    world: &World,
    other: &Program,
    point: Point,
    memory: Memory,
    answered: &Told,
) {
    let ride = name(point);
    let told = other.caller.book_until_decided(&ride).await;
    let visible = world.visible(&ride).await;
    let has_late_answer = point == Point::ChargeAnswered;
    if !is_unknown(point, memory) {
        assert_eq!(visible, DONE, "{ride} {memory:?}");
        assert_eq!((told.status, &told.body), (201, &answered.body), "{ride} {memory:?}");
    } else if told.status == 201 {
        // Nobody had decided, and the owner told the truth, late: the ride could go on with that.
        assert_eq!(visible, DONE, "{ride} {memory:?}");
    } else {
        // The owner did not know either: its call was over its time.
        assert!(told.has_code("outcome_unknown"), "{ride} {memory:?}: {told:?}");
        assert!(visible.charges <= 1, "{ride} {memory:?}: {visible:?}");
        let knows = has_late_answer || point == Point::RequestBegun;
        assert!(!knows, "{ride} {memory:?}: what it knew was not heard");
    }
    if has_late_answer && memory == Memory::Lasts {
        assert!(is_evidence_kept(world, &ride).await, "{ride}");
    }
}

/// Whether the record remembers what the late owner said.
async fn is_evidence_kept(world: &World, ride: &str) -> bool {
    let engine = Engine::new(PostgresStore::connect(&world.url()).await.unwrap());
    let credential = Scope::digest_of(b"Bearer alice");
    let scope = Scope::of([("account", credential.as_bytes())]);
    let id = Id::of(&scope, &Key::new(ride).unwrap().digest());
    let record = engine.look(id).await.unwrap().value.unwrap();
    record.timeline.iter().any(|moment| matches!(moment.what, Happened::LateResult(_)))
}
