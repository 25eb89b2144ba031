//! Is every state that can be reached a good one, and does each lead to a good end?

#![expect(clippy::disallowed_types, reason = "the hasher is our own, and its order is not used")]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use retrysafe_core::flow::RecoveryPoint;
use retrysafe_core::record::Standing;

use super::rules::Setting;
use super::steps::{Kind, Step, successors};
use super::world::{Stage, Told, World};

/// What is promised of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    /// The provider executes one call.
    OneEffect,
    /// Each phase's rows are committed once, together with the recovery point.
    RowsOnce,
    /// An answer that was given is never another one.
    AnswerStays,
    /// What was begun is not forgotten before it is completed.
    NothingForgotten,
    /// A final answer is true.
    AnswerIsTrue,
    /// No effect is hidden behind a record that says that nothing happened.
    NothingHidden,
    /// A flow is unknown only where a call of it may have been made.
    DoubtHasReason,
    /// Without anybody's help no record stays in progress.
    NobodyStuck,
    /// Whoever comes back gets the flow completed.
    ComesToAnEnd,
}

/// What a search has found.
pub(super) struct Searched {
    pub(super) states: usize,
    /// What is broken, with the steps that lead there.
    pub(super) broken: Vec<(Promise, Vec<&'static str>)>,
}

/// Which states are all right.
fn broken_by(setting: &Setting, world: &World) -> Option<Promise> {
    let record = &world.record;
    let [first, last] = world.rows;
    let is_open = record.standing.is_some_and(|standing| standing != Standing::Completed);
    let is_completed = record.standing == Some(Standing::Completed);
    let has_refusal = record.answer == Told::Refusal;
    let wanted_first = u8::from(setting.call_phase > 0);
    let is_past_first = match record.point {
        None => false,
        Some(RecoveryPoint::Before(phase)) => phase > 0,
        Some(RecoveryPoint::Calling(_)) => true,
    };
    let is_before_call = match record.point {
        None => true,
        Some(RecoveryPoint::Before(phase)) => phase <= setting.call_phase,
        Some(RecoveryPoint::Calling(_)) => false,
    };
    let effects = world.provider.effects;
    let checks = [
        (world.wrong.answer_flipped, Promise::AnswerStays),
        (world.wrong.unfinished_freed, Promise::NothingForgotten),
        (effects > 1, Promise::OneEffect),
        (
            first > 1
                || last > 1
                || (is_completed && !has_refusal && (first, last) != (wanted_first, 1))
                || (setting.call_phase > 0 && is_open && is_past_first != (first > 0)),
            Promise::RowsOnce,
        ),
        (
            is_completed && ((!has_refusal && effects == 0) || (has_refusal && effects > 0)),
            Promise::AnswerIsTrue,
        ),
        (
            record.standing == Some(Standing::FailedRetryable) && is_before_call && effects > 0,
            Promise::NothingHidden,
        ),
        (
            // A sweeper that writes blindly doubts everything; it is asked what worse it does.
            record.standing == Some(Standing::Unknown)
                && matches!(record.point, Some(RecoveryPoint::Before(_)))
                && !setting.sweeper_looks_first(),
            Promise::DoubtHasReason,
        ),
    ];
    checks.into_iter().find(|(is_broken, _)| *is_broken).map(|(_, promise)| promise)
}

/// Explores every state. With `stops`, the search ends where the first promise is broken; else it looks
/// at the end of everything too.
pub(super) fn search(setting: &Setting, stops: bool, states_max: usize) -> Searched {
    let mut found: HashMap<World, u32, BuildHasherDefault<Mix>> = HashMap::default();
    let mut worlds = vec![World::default()];
    let mut parents: Vec<(u32, &'static str)> = vec![(0, "")];
    let mut edges: Vec<(u32, u32, Kind)> = Vec::new();
    found.insert(World::default(), 0);
    let mut steps: Vec<Step> = Vec::new();
    let mut at = 0;
    while at < worlds.len() {
        let world = worlds[at];
        if let Some(promise) = broken_by(setting, &world) {
            let broken = vec![(promise, story(&parents, at))];
            return Searched { states: worlds.len(), broken };
        }
        successors(setting, &world, &mut steps);
        for (next, name, kind) in &steps {
            let new = worlds.len() as u32;
            let number = *found.entry(*next).or_insert(new);
            if number == new {
                worlds.push(*next);
                parents.push((at as u32, name));
            }
            if !stops && *kind != Kind::Failure {
                edges.push((at as u32, number, *kind));
            }
        }
        assert!(worlds.len() < states_max, "more states than there is room for");
        at += 1;
    }
    let mut broken = Vec::new();
    if !stops {
        let is_quiet = |world: &World| {
            let rests = |it: &super::world::Process| {
                it.stage == Stage::Idle && it.floating.is_none() && it.packet.0 == 0
            };
            world.processes.iter().all(rests) && world.orphans[0].0 == 0
        };
        let stays =
            |world: &World| is_quiet(world) && world.record.standing != Some(Standing::InProgress);
        let ends = |world: &World| {
            world.record.is_over || world.record.standing == Some(Standing::Completed)
        };
        if let Some(stuck) = unreachable(&worlds, &edges, stays, false) {
            broken.push((Promise::NobodyStuck, story(&parents, stuck)));
        }
        if let Some(stuck) = unreachable(&worlds, &edges, ends, true) {
            broken.push((Promise::ComesToAnEnd, story(&parents, stuck)));
        }
    }
    Searched { states: worlds.len(), broken }
}

/// A state from which no good one can be reached, if there is one.
fn unreachable(
    worlds: &[World],
    edges: &[(u32, u32, Kind)],
    is_good: impl Fn(&World) -> bool,
    with_callers: bool,
) -> Option<usize> {
    let counts = |kind: Kind| kind == Kind::Own || with_callers;
    let mut starts = vec![0u32; worlds.len() + 1];
    for (_, to, kind) in edges.iter().filter(|edge| counts(edge.2)) {
        starts[*to as usize + 1] += u32::from(counts(*kind));
    }
    for at in 0..worlds.len() {
        starts[at + 1] += starts[at];
    }
    let mut places = starts.clone();
    let mut before = vec![0u32; starts[worlds.len()] as usize];
    for (from, to, _) in edges.iter().filter(|edge| counts(edge.2)) {
        let place = &mut places[*to as usize];
        before[*place as usize] = *from;
        *place += 1;
    }
    let mut leads_there: Vec<bool> = worlds.iter().map(is_good).collect();
    let mut open: Vec<u32> =
        (0..worlds.len() as u32).filter(|at| leads_there[*at as usize]).collect();
    while let Some(at) = open.pop() {
        let at = at as usize;
        for place in starts[at]..starts[at + 1] {
            let from = before[place as usize];
            if !leads_there[from as usize] {
                leads_there[from as usize] = true;
                open.push(from);
            }
        }
    }
    leads_there.iter().position(|leads| !leads)
}

fn story(parents: &[(u32, &'static str)], mut at: usize) -> Vec<&'static str> {
    let mut steps = Vec::new();
    while at != 0 {
        let (before, name) = parents[at];
        steps.push(name);
        at = before as usize;
    }
    steps.reverse();
    steps
}

/// A hasher for small values: a multiplication each. Nobody chooses these states to collide.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}
