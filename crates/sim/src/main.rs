//! Does the promise hold, whatever happens?
//!
//! The simulator runs the real rules of `retrysafe-core` (machine, engine, policy, the client's
//! retries) in a world of its own: one thread, virtual time, everything drawn from a seed. Gateways
//! crash and pause, messages are lost, late or doubled, clocks leap, upstreams answer late, wrongly
//! or not at all. A separate checker judges each history by the project's numbered invariants.
//!
//! * [`options`]: what a seed expands to, with [`flow_plan`]: which flow, [`effect_plan`]: which effects, and [`provider_plan`]: how a provider tells what it did. [`world`]: everything outside the product, and the actors.
//! * [`history`]: what is recorded. [`checker`]: what must never happen, and what must sometimes.
//! * [`effects`]: where effects are kept and who receives them, for both simulators.
//! * [`shipped`]: a second simulator, which runs the published crate instead of its rules alone.
//! * [`run`], [`replay`]: very many histories, and one. [`museum`]: faults planted to be found.
//!
//! ```text
//! sim run --histories N [--seed S] [--jobs J] [--profile P]
//! sim replay --seed N [--profile P] [--plant FAULT] [--without KIND,KIND] [--all]
//! sim museum [--jobs J]
//! sim shipped [--histories N] [--seed S] [--jobs J]
//! sim shipped --replay SEED [--without KIND,KIND] [--all]
//! ```

#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]
#![deny(clippy::match_bool)]
#![allow(unreachable_pub, reason = "a program has no public items; `pub` says what a room offers")]

mod chance;
mod checker;
mod command;
mod effect_plan;
mod effects;
mod fault;
mod flow_plan;
mod history;
mod invariant;
mod museum;
mod options;
mod provider_plan;
mod replay;
mod run;
mod runner;
mod shipped;
mod world;

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
    match command::run(std::env::args().skip(1), &mut out, &mut err) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Nobody reads what we would say about it.
        Err(_) => ExitCode::from(2),
    }
}
