//! Does the promise hold in every order of events?
//!
//! An exhaustive check over the real [`machine::decide_begin`], [`machine::decide`], [`First::record`] and [`Write::onto`]: two
//! owners and two keys, every interleaving up to a bound on writes and time. A write is two steps,
//! as it is over a network: somebody reads and decides, and later the store compares the version
//! and swaps, or not, and the acknowledgement arrives, or not. In between anybody may move: owners
//! send, renew, crash and settle late, effects happen late, leases end, the sweeper, a judge with
//! evidence and the reaper go about their work. What an owner had sent when it crashed still
//! arrives.
//!
//! Callers may show different credentials for one scope: each begin has a mark, and nobody is told
//! about, or executes, what was begun with another one and may have happened.
//!
//! Three faults are planted, to see that the check would find them. One is the reason why an owner
//! draws a new number for each begin.
//!
//! These are plain requests. Flows, which may go on after their owner's death, have a search of their
//! own in [`flows`].

#![allow(
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a model that is wrong about its own lists should stop"
)]

mod effects;
mod flows;
mod steps;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use retrysafe_core::record::{Record, Standing, Write};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// Time passes in ticks of one millisecond; a lease takes one, a retention or all renewals two.
const LEASE: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_millis(2);

/// What is explored, and which fault is planted.
struct Bounds {
    keys: u8,
    /// How many credentials callers show.
    marks: u8,
    owners: u8,
    begins_max: u8,
    versions_max: u8,
    ticks_max: u8,
    fault: Option<Fault>,
    /// What some step has reached. It is no part of a state: the same state reached in another way
    /// is still the same.
    reached: Arc<AtomicU16>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The next caller executes when a lease is over.
    EndedLeaseRuns,
    /// An owner uses the same number for all its begins.
    NumberReused,
    /// A caller's credential is not compared with the record's.
    MarkIgnored,
}

/// A record, or a write, as a part of a state. Timelines are left out: nothing is decided by them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept(Record);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending {
    key: u8,
    version: u64,
    write: Write,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Everything {
    now: u8,
    version: u8,
    /// How many begins there were: each has a number of its own.
    begins: u8,
    places: Vec<Place>,
    owners: Vec<Owner>,
    sweeper: Option<Pending>,
    judge: TheJudge,
    /// What a crashed owner had sent to the store.
    orphan: Option<Pending>,
    broken: Option<Broken>,
}

/// A key: its record, and what the world behind the handlers knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Place {
    record: Option<Kept>,
    generation: u8,
    fence_max: u8,
    /// Requests that were sent and may still take effect: fence and generation.
    under_way: Vec<(u8, u8)>,
    effects: Vec<(u8, u8)>,
    burnt: u8,
    /// Until when the completed record must be there.
    promised_until: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "a state has two of them")]
enum Owner {
    Idle,
    Beginning {
        number: u8,
        mark: u8,
        pending: Pending,
    },
    /// A begin may have been applied; the owner has not executed and will not.
    Doubtful {
        key: u8,
        number: u8,
        pending: Option<Pending>,
    },
    Holding(Holding),
}

/// The right to execute: with which fence it began, and the record as the owner has last seen it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holding {
    key: u8,
    generation: u8,
    mark: u8,
    fence: u8,
    seen: Kept,
    phase: Phase,
    pending: Option<Pending>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Granted,
    Sent,
    Knows(End),
}

/// How an execution ended, for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Executed,
    NotExecuted,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TheJudge {
    Free,
    Knows { key: u8, fence: u8, executed: bool },
    Writing { key: u8, fence: u8, executed: bool, pending: Pending },
}

/// What must never happen, where it shows in a step and not in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Broken {
    FenceDidNotRise,
    RunningOrUnknownExecuted,
    DecisionFlipped,
    AnotherMarkAnswered,
    MarkNotKept,
}

/// What must be reached, or the check proves nothing.
#[derive(Clone, Copy)]
enum Reached {
    LateSettle = 1,
    LateSettleRefused = 2,
    UnknownExecuted = 4,
    ReleasedRuns = 8,
    SecondGeneration = 16,
    OrphanApplied = 32,
    Withdrawn = 64,
    StaleVerdictRefused = 128,
    AnotherMarkRefused = 256,
    AnotherMarkRuns = 512,
    UnknownWithdrawn = 1024,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Tick,
    Begin { owner: u8, key: u8, mark: u8, acknowledged: bool },
    Withdraw { owner: u8 },
    Send { owner: u8 },
    GiveUp { owner: u8 },
    DoNotSend { owner: u8 },
    Renew { owner: u8 },
    Settle { owner: u8 },
    Swap { owner: u8, acknowledged: bool },
    Crash { owner: u8 },
    Effect { key: u8, at: u8, told: bool },
    Refuse { key: u8, at: u8 },
    Sweep { key: u8 },
    SweeperSwaps,
    LookUp { key: u8 },
    Rule,
    JudgeSwaps,
    OrphanArrives,
    Reap { key: u8 },
}

impl Model for Bounds {
    type State = Everything;
    type Action = Step;

    fn init_states(&self) -> Vec<Everything> {
        vec![Everything {
            now: 0,
            version: 0,
            begins: 0,
            places: vec![Place::default(); usize::from(self.keys)],
            owners: vec![Owner::Idle; usize::from(self.owners)],
            sweeper: None,
            judge: TheJudge::Free,
            orphan: None,
            broken: None,
        }]
    }

    fn actions(&self, state: &Everything, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for owner in 0..self.owners {
            self.steps_of(owner, state, steps);
        }
        for key in 0..self.keys {
            let place = &state.places[usize::from(key)];
            for at in 0..place.under_way.len() as u8 {
                steps.extend([true, false].map(|told| Step::Effect { key, at, told }));
                steps.push(Step::Refuse { key, at });
            }
            match state.record(key).map(Record::standing) {
                Some(Standing::InProgress) if state.sweeper.is_none() => {
                    steps.push(Step::Sweep { key });
                }
                Some(Standing::Unknown) if state.judge == TheJudge::Free => {
                    steps.push(Step::LookUp { key });
                }
                Some(_) => steps.push(Step::Reap { key }),
                None => {}
            }
        }
        if state.sweeper.is_some() {
            steps.push(Step::SweeperSwaps);
        }
        match state.judge {
            TheJudge::Free => {}
            TheJudge::Knows { .. } => steps.push(Step::Rule),
            TheJudge::Writing { .. } => steps.push(Step::JudgeSwaps),
        }
        if state.orphan.is_some() {
            steps.push(Step::OrphanArrives);
        }
    }

    fn next_state(&self, last: &Everything, step: Step) -> Option<Everything> {
        let mut next = last.clone();
        self.step(&mut next, step)?;
        Some(next)
    }

    fn within_boundary(&self, state: &Everything) -> bool {
        state.version <= self.versions_max
            && state.now <= self.ticks_max
            && state.begins <= self.begins_max
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "at most one effect per generation",
                |_: &Self, state: &Everything| {
                    state.places.iter().all(|place| {
                        let of = |generation| {
                            place.effects.iter().filter(move |(_, of)| *of == generation).count()
                        };
                        (1..=place.generation).all(|generation| of(generation) <= 1)
                    })
                },
            ),
            Property::always(
                "a completed record is kept until it expires",
                |_: &Self, state: &Everything| {
                    state.places.iter().all(|place| {
                        let completed = |kept: &Kept| kept.0.standing() == Standing::Completed;
                        place.promised_until <= state.now
                            || place.record.as_ref().is_some_and(completed)
                    })
                },
            ),
            Property::always("a decision is never flipped", |_: &Self, state: &Everything| {
                state.broken != Some(Broken::DecisionFlipped)
            }),
            Property::always(
                "no caller gets from running or unknown to execution",
                |_: &Self, state: &Everything| {
                    state.broken != Some(Broken::RunningOrUnknownExecuted)
                },
            ),
            Property::always(
                "nobody is told about what another credential began",
                |_: &Self, state: &Everything| state.broken != Some(Broken::AnotherMarkAnswered),
            ),
            Property::always(
                "a record has the mark of whoever executes it",
                |_: &Self, state: &Everything| state.broken != Some(Broken::MarkNotKept),
            ),
            Property::always("fences rise", |_: &Self, state: &Everything| {
                state.broken != Some(Broken::FenceDidNotRise)
            }),
        ]
    }
}

/// Two cores are what a small machine has.
const THREADS: usize = 2;

/// Fewer states than this would mean that the model has lost something.
const STATES_MIN: usize = 100_000;

/// Explores everything within the bounds, and finds nothing.
fn holds_everywhere(model: Bounds) -> u16 {
    let reached = Arc::clone(&model.reached);
    let checker = model.checker().threads(THREADS).spawn_bfs().join();
    checker.assert_properties();
    eprintln!("{} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
    assert!(checker.unique_state_count() >= STATES_MIN);
    reached.load(Ordering::Relaxed)
}

/// Explores until something is broken, and says how many steps that took.
fn breaks(model: Bounds, property: &'static str) -> usize {
    let found = HasDiscoveries::AllOf([property].into());
    let checker = model.checker().threads(THREADS).finish_when(found).spawn_bfs().join();
    let steps = checker.assert_any_discovery(property).into_actions();
    eprintln!("after {} states: {steps:?}", checker.unique_state_count());
    steps.len()
}

#[test]
fn two_owners_of_one_key_keep_the_promise_in_every_order() {
    let reached = holds_everywhere(Bounds::new(1, 2, 5, 2, None));
    assert_eq!(reached, 0x4ff, "everything that the model is about has happened: {reached:b}");
}

#[test]
fn two_credentials_of_one_scope_keep_the_promise_in_every_order() {
    let reached = holds_everywhere(Bounds { marks: 2, ..Bounds::new(1, 2, 4, 1, None) });
    let wanted = Reached::AnotherMarkRefused as u16 | Reached::AnotherMarkRuns as u16;
    assert_eq!(reached & wanted, wanted, "both ends of another mark have happened: {reached:b}");
}

#[test]
fn a_mark_that_is_not_compared_tells_one_caller_about_another() {
    let ignored = Some(Fault::MarkIgnored);
    let model = Bounds { marks: 2, ..Bounds::new(1, 2, 4, 1, ignored) };
    assert!(breaks(model, "nobody is told about what another credential began") > 0);
}

#[test]
fn two_owners_of_two_keys_keep_the_promise_in_every_order() {
    holds_everywhere(Bounds::new(2, 2, 3, 1, None));
}

#[test]
fn an_ended_lease_that_may_run_again_executes_twice() {
    let model = Bounds::new(1, 2, 4, 2, Some(Fault::EndedLeaseRuns));
    breaks(model, "no caller gets from running or unknown to execution");
    // Not only the rule is broken: so is what it is there for.
    let model = Bounds::new(1, 2, 4, 2, Some(Fault::EndedLeaseRuns));
    assert!(breaks(model, "at most one effect per generation") > 0);
}

#[test]
fn an_owner_that_uses_its_number_twice_withdraws_its_own_execution() {
    let model = Bounds::new(1, 3, 5, 2, Some(Fault::NumberReused));
    assert!(breaks(model, "at most one effect per generation") > 0);
}
