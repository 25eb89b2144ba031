//! Does an effect happen once, in every order of events?
//!
//! An exhaustive search over the real rules of [`retrysafe_core::effect`]: two workers claim, mark, send and finish;
//! they pause, die and come back; acknowledgements are lost, packets arrive late, and the receiver forgets its keys,
//! takes none, or refuses. Then each rule is taken away by itself, and a promise that it guards must break.

#![expect(clippy::disallowed_types, reason = "the order of the map is not used")]

mod world;

use std::collections::HashMap;

use retrysafe_core::effect::EffectState;
use world::{Fault, Kind, Setting, Step, World, successors};

/// More states than any search here finds: one that runs away ends.
const STATES_MAX: usize = 5_000_000;

/// What is promised of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// It happens once at the most.
    OneEffect,
    /// What is said to be delivered has happened.
    DeliveredIsTrue,
    /// What is said to be dead or cancelled has not happened.
    NothingHidden,
    /// Without anybody's help it comes to an end.
    NobodyStuck,
}

fn broken_by(world: &World) -> Option<Promise> {
    let has_happened = world.done > 0;
    match world.effect.state {
        _ if world.done > 1 => Some(Promise::OneEffect),
        EffectState::Delivered if !has_happened => Some(Promise::DeliveredIsTrue),
        EffectState::Dead | EffectState::Cancelled if has_happened => Some(Promise::NothingHidden),
        _ => None,
    }
}

struct Searched {
    states: usize,
    broken: Option<(Promise, Vec<&'static str>)>,
}

/// Explores every state, and ends where the first promise is broken.
fn search(setting: &Setting) -> Searched {
    let mut numbers = HashMap::from([(World::first(), 0_usize)]);
    let mut worlds = vec![World::first()];
    let mut parents: Vec<(usize, &'static str)> = vec![(0, "")];
    let mut leads_to: Vec<Vec<usize>> = vec![Vec::new()];
    let mut steps: Vec<Step> = Vec::new();
    let mut at = 0;
    while at < worlds.len() {
        let world = worlds[at];
        if let Some(promise) = broken_by(&world) {
            return Searched { states: at, broken: Some((promise, story(&parents, at))) };
        }
        successors(setting, &world, &mut steps);
        for (next, name, kind) in &steps {
            let number = *numbers.entry(*next).or_insert(worlds.len());
            if number == worlds.len() {
                worlds.push(*next);
                parents.push((at, name));
                leads_to.push(Vec::new());
            }
            if *kind == Kind::Own {
                leads_to[number].push(at);
            }
        }
        assert!(worlds.len() < STATES_MAX, "more states than there is room for");
        at += 1;
    }
    let mut ends: Vec<bool> = worlds.iter().map(World::rests).collect();
    let mut open: Vec<usize> = (0..worlds.len()).filter(|at| ends[*at]).collect();
    while let Some(at) = open.pop() {
        for from in &leads_to[at] {
            if !ends[*from] {
                ends[*from] = true;
                open.push(*from);
            }
        }
    }
    let stuck = ends.iter().position(|ends| !ends);
    let broken = stuck.map(|at| (Promise::NobodyStuck, story(&parents, at)));
    Searched { states: worlds.len(), broken }
}

fn story(parents: &[(usize, &'static str)], mut at: usize) -> Vec<&'static str> {
    let mut steps = Vec::new();
    while at != 0 {
        let (before, name) = parents[at];
        steps.push(name);
        at = before;
    }
    steps.reverse();
    steps
}

fn keeps_every_promise(setting: &Setting) {
    let Searched { states, broken } = search(setting);
    eprintln!("{states} states");
    assert!(broken.is_none(), "{setting:?}: {broken:?}");
    assert!(states > 2_000, "the model has lost something: {states} states");
}

fn breaks(setting: &Setting, promises: &[Promise]) {
    let Searched { states, broken } = search(setting);
    assert!(broken.is_some(), "{setting:?} breaks nothing");
    let (promise, story) = broken.unwrap();
    eprintln!("{:?}: {promise:?} after {states} states: {story:?}", setting.fault);
    assert!(promises.contains(&promise), "{setting:?} breaks {promise:?}: {story:?}");
}

#[test]
fn an_effect_with_a_key_happens_once() {
    keeps_every_promise(&Setting::keyed());
    keeps_every_promise(&Setting {
        deadline: 2,
        lease: 4,
        margin: 7,
        window: 9,
        ..Setting::keyed()
    });
}

#[test]
fn an_effect_without_a_key_happens_once() {
    keeps_every_promise(&Setting::unkeyed());
    keeps_every_promise(&Setting { deadline: 2, lease: 4, settle_time: 8, ..Setting::unkeyed() });
}

#[test]
fn each_rule_guards_against_a_second_effect() {
    let twice = [Promise::OneEffect, Promise::NothingHidden];
    let (keyed, unkeyed) = (Setting::keyed(), Setting::unkeyed());
    for setting in [
        keyed.with(Fault::NoCheckBeforeWire),
        unkeyed.with(Fault::NoCheckBeforeWire),
        keyed.with(Fault::MarkAfterSending),
        unkeyed.with(Fault::MarkAfterSending),
        keyed.with(Fault::MarkMoves),
        keyed.with(Fault::StaleIsForgotten),
        unkeyed.with(Fault::StaleIsForgotten),
        unkeyed.with(Fault::UnkeyedIsResent),
        keyed.with(Fault::NoEffectClearsAnyMark),
        keyed.with(Fault::NoSettleTime),
        unkeyed.with(Fault::NoSettleTime),
        Setting { margin: 1, ..keyed },
    ] {
        breaks(&setting, &twice);
    }
}

#[test]
fn nothing_that_may_have_happened_is_hidden() {
    let hidden = [Promise::NothingHidden, Promise::OneEffect];
    for setting in [Setting::keyed(), Setting::unkeyed()] {
        breaks(&setting.with(Fault::DeadAfterSending), &hidden);
        breaks(&setting.with(Fault::RequeuePastMemory), &hidden);
        breaks(&setting.with(Fault::CancelsWhatWasSent), &hidden);
        breaks(&setting.with(Fault::UnwantedTooEarly), &hidden);
    }
}

#[test]
fn nothing_is_stuck_behind_a_dead_worker() {
    for setting in [Setting::keyed(), Setting::unkeyed()] {
        breaks(&setting.with(Fault::NoSweeper), &[Promise::NobodyStuck]);
    }
}

/// What no rule can exclude: a worker is paused between its check and its packet for longer than any margin.
#[test]
fn a_pause_between_check_and_packet_is_what_is_left() {
    breaks(
        &Setting::keyed().with(Fault::PauseAfterCheck),
        &[Promise::OneEffect, Promise::NothingHidden],
    );
}

#[test]
fn the_fence_tells_a_late_worker_from_the_present_one() {
    for setting in [Setting::keyed(), Setting::unkeyed()] {
        breaks(
            &setting.with(Fault::NoFence),
            &[Promise::OneEffect, Promise::DeliveredIsTrue, Promise::NothingHidden],
        );
        // So even a lease that is taken from a living worker costs no second effect.
        keeps_every_promise(&setting.with(Fault::ClaimsLiveLease));
    }
}
