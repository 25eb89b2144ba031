//! Does a flow keep its promises in every order of events?
//!
//! An exhaustive search over the real machine: two processes run a flow of a transaction, a call to a
//! provider and a last transaction. They pause, crash and come back for as long as they like;
//! acknowledgements are lost, commits and packets arrive late, and the provider forgets its keys or
//! takes none. Time and takeovers have no bound, and the states are finite all the same (see
//! [`world`]).
//!
//! Then each rule is taken away by itself, and a promise that it guards must break. Three of them
//! describe what no rule can exclude, and are there to be seen: a pause between the check and the
//! packet, a clock that stands still while its process is paused, a lease that counts from the answer.
//!
//! The search with commits that land late takes minutes with a provider that takes keys. It is run with
//! `RETRYSAFE_MODEL=whole cargo test --release -p retrysafe-core --test model flows`.

mod rules;
mod search;
mod steps;
mod world;

use rules::{Fault, Setting};
use search::{Promise, search};

/// More states than any search here finds: one that runs away ends.
const STATES_MAX: usize = 20_000_000;

#[expect(clippy::disallowed_methods, reason = "a test asks how much of it is wanted")]
fn is_whole() -> bool {
    std::env::var("RETRYSAFE_MODEL").is_ok_and(|what| what == "whole")
}

/// Explores everything, and finds nothing; returns the number of states.
fn keeps_every_promise(setting: &Setting) -> usize {
    let searched = search(setting, false, STATES_MAX);
    eprintln!("{} states", searched.states);
    assert!(searched.broken.is_empty(), "{setting:?}: {:?}", searched.broken);
    searched.states
}

/// Explores until something is broken, which must be one of these.
fn breaks(setting: &Setting, promises: &[Promise]) {
    let is_about_the_end =
        promises.iter().any(|it| matches!(it, Promise::NobodyStuck | Promise::ComesToAnEnd));
    let searched = search(setting, !is_about_the_end, STATES_MAX);
    assert!(!searched.broken.is_empty(), "{setting:?} breaks nothing");
    let (promise, story) = &searched.broken[0];
    eprintln!("{:?}: {promise:?} after {} states: {story:?}", setting.fault, searched.states);
    assert!(promises.contains(promise), "{setting:?} breaks {promise:?}: {story:?}");
}

#[test]
fn a_flow_with_a_keyed_call_keeps_every_promise() {
    assert!(keeps_every_promise(&Setting::keyed()) > 50_000, "the model has lost something");
}

#[test]
fn a_flow_with_an_unkeyed_call_keeps_every_promise() {
    assert!(keeps_every_promise(&Setting::unkeyed()) > 5_000, "the model has lost something");
}

#[test]
fn commits_that_land_late_break_no_promise() {
    keeps_every_promise(&Setting::unkeyed().with_late_commits());
    if is_whole() {
        keeps_every_promise(&Setting::keyed().with_late_commits());
    }
}

#[test]
fn a_flow_that_begins_with_its_call_keeps_every_promise() {
    keeps_every_promise(&Setting { call_phase: 0, ..Setting::keyed() });
    keeps_every_promise(&Setting { call_phase: 0, ..Setting::unkeyed() });
}

#[test]
fn a_call_that_takes_time_keeps_every_promise() {
    let slow = Setting { deadline: 1, lease: 3, margin: 2, ..Setting::keyed() };
    keeps_every_promise(&slow);
    keeps_every_promise(&Setting { is_keyed: false, ..slow });
    // Its packet may leave long after the check: so the check counts with the whole call.
    let slower = Setting { deadline: 2, lease: 4, margin: 3, window: 6, ..Setting::unkeyed() };
    keeps_every_promise(&slower);
    breaks(&slower.with(Fault::DeadlineIgnored), &[Promise::OneEffect, Promise::NothingHidden]);
}

#[test]
fn no_call_is_sent_twice() {
    let twice = [Promise::OneEffect, Promise::NothingHidden];
    let (keyed, unkeyed) = (Setting::keyed(), Setting::unkeyed());
    for setting in [
        keyed.with(Fault::NoLeaseCheck),
        unkeyed.with(Fault::NoLeaseCheck),
        keyed.with(Fault::ForgottenKeyResent),
        unkeyed.with(Fault::UnkeyedCallResumed),
        unkeyed.with(Fault::UnknownExecutes),
        keyed.with(Fault::NotSentClearsAnyMark),
        keyed.with(Fault::NewKeyPerAttempt),
        keyed.with(Fault::ServerErrorReleases),
        unkeyed.with(Fault::ServerErrorReleases),
        unkeyed.with_late_commits().with(Fault::AmbiguousResultCallsAgain),
    ] {
        breaks(&setting, &twice);
    }
}

#[test]
fn what_a_provider_remembers_ends_before_a_margin() {
    let soon = Setting { margin: 0, ..Setting::keyed() };
    breaks(&soon, &[Promise::OneEffect]);
    // The longest way of a packet is a part of the margin.
    let far = Setting { lease: 1, margin: 3, longest_way: 3, settle_time: 4, ..Setting::keyed() };
    keeps_every_promise(&far);
    breaks(&Setting { margin: 1, ..far }, &[Promise::OneEffect]);
}

#[test]
fn an_absence_counts_after_its_time() {
    let twice = [Promise::OneEffect, Promise::NothingHidden];
    for setting in [Setting::keyed(), Setting::unkeyed()] {
        breaks(&setting.with(Fault::NoSettleTime), &twice);
        breaks(&Setting { settle_time: 1, ..setting }, &twice);
        breaks(&Setting { settle_time_from_mark: true, ..setting }, &twice);
    }
}

#[test]
fn a_verdict_is_about_one_attempt() {
    let twice = [Promise::OneEffect, Promise::NothingHidden];
    breaks(&Setting::unkeyed().with_late_commits().with(Fault::VerdictOnAnyAttempt), &twice);
}

#[test]
fn a_phase_is_committed_once_and_with_its_recovery_point() {
    let rows = [Promise::RowsOnce];
    for setting in [Setting::keyed(), Setting::unkeyed()] {
        breaks(&setting.with(Fault::RowsCommittedApart), &rows);
        breaks(&setting.with(Fault::FailureForgetsPhases), &rows);
        breaks(&setting.with_late_commits().with(Fault::NoRecoveryPointInGuard), &rows);
        breaks(&setting.with(Fault::FactCompletes), &rows);
    }
}

#[test]
fn what_was_begun_is_not_forgotten() {
    for setting in [Setting::keyed(), Setting::unkeyed()] {
        breaks(&setting.with(Fault::WithdrawnTakeoverFrees), &[Promise::NothingForgotten]);
        breaks(&setting.with(Fault::ReaperTakesFlows), &[Promise::NothingForgotten]);
    }
}

#[test]
fn a_final_answer_is_true_and_stays() {
    breaks(&Setting::keyed().with(Fault::OtherBytesSent), &[Promise::AnswerIsTrue]);
    for setting in [Setting::keyed(), Setting::unkeyed()] {
        breaks(&setting.with(Fault::SweeperWithoutVersion), &[Promise::AnswerStays]);
    }
}

#[test]
fn what_nobody_knows_may_have_happened() {
    for setting in [Setting::keyed(), Setting::unkeyed()] {
        breaks(&setting.with(Fault::GivenUpIsUnknown), &[Promise::DoubtHasReason]);
    }
}

#[test]
fn nobody_is_stuck() {
    breaks(&Setting::unkeyed().with(Fault::NoSweeper), &[Promise::NobodyStuck]);
    breaks(&Setting::keyed().with(Fault::NoCompleter), &[Promise::NobodyStuck]);
}

/// What the rules cannot exclude is excluded by margins, deadlines and clocks; here it is not.
#[test]
fn what_no_rule_can_exclude_is_known() {
    let twice = [Promise::OneEffect, Promise::NothingHidden];
    for setting in [Setting::keyed(), Setting::unkeyed()] {
        breaks(&Setting { may_pause_after_check: true, ..setting }, &twice);
        breaks(&Setting { clock_may_stand_still: true, ..setting }, &twice);
        breaks(&Setting { lease_from_answer: true, ..setting }, &twice);
    }
}

/// If it could be, an effect could be hidden behind a record that may be retried.
#[test]
fn a_live_lease_is_not_taken_over() {
    let setting = Setting::keyed().with_late_commits().with(Fault::LiveLeaseTakenOver);
    breaks(&setting, &[Promise::NothingHidden]);
}
