//! The program `retrysafe`: a gateway that makes any HTTP API safe to retry.
//!
//! Only this crate reads the environment, opens a listener, prints or exits. `gateway` is the life
//! of a request, `admin` what operators see and do, `config` what they have decided, `commands` what
//! can be done from a shell.
//!
//! The program is a library with a `main`, so that a simulator can run the gateway that ships
//! ([`InProcess`]). It is no interface to build on: any of it may change in any release.

// Our own enums are matched without `_`: a new state or answer must be thought about everywhere.
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]
#![deny(clippy::match_bool)]

mod admin;
mod args;
mod call;
mod check;
mod commands;
mod config;
mod dashboard;
mod demo;
mod dial;
mod gateway;
mod harmless;
mod init;
mod ledger;
mod log_queue;
mod lookup;
mod open_store;
mod openapi;
#[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "nobody makes a tracer then"))]
mod otel;
mod output;
mod paths;
mod percent;
mod report;
mod signals;
mod slow_readers;
mod store;
mod telemetry;
mod upstream_board;
mod version;
mod worker;

use std::collections::BTreeMap;
use std::future::Future;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Arguments, Command};
pub use gateway::in_process::{Connecting, InProcess, UpstreamIo};

/// Why a command did not do what it was asked, or did not end well.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the program does: reads its arguments, and carries its command out.
pub fn main() -> ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| args::with_hint(error).exit());
    // Before a store is opened: each of its segments is a descriptor, too.
    gateway::descriptors::raise_limit();
    // A variable that is not Unicode cannot be one of ours.
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    match run(arguments.command, &variables) {
        Ok(code) => code,
        Err(failure) => {
            output::last_words(format!("retrysafe: {failure}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, variables: &BTreeMap<String, String>) -> Result<ExitCode, Failure> {
    match command {
        Command::Serve { configured, clock } => {
            gateway::serve::serve(&configured.flags(), clock.wall_clock(), variables)?;
        }
        Command::Init(init) => init.run()?,
        Command::Worker { configured, check_config } => {
            return worker::run(&configured.flags(), check_config, variables);
        }
        Command::Keys { command } => wait(commands::keys::run(*command, variables))??,
        Command::Unknown { command } => wait(commands::unknown::run(*command, variables))??,
        Command::Outbox { command } => wait(commands::outbox::run(command, variables))??,
        Command::Inbox { command } => wait(commands::inbox::run(command, variables))??,
        Command::Dlq { command } => wait(commands::outbox::run_dead(command, variables))??,
        Command::Store { command } => wait(commands::store::run(command, variables))??,
        Command::Stats { admin, top } => wait(commands::stats::run(&admin, top, variables))??,
        Command::Healthcheck { admin } => wait(async {
            commands::admin_client::AdminClient::at(&admin, None)?.get("/readyz").await?;
            output::say("ready");
            Ok::<(), Failure>(())
        })??,
        Command::Completions { shell } => {
            let mut arguments = Arguments::command();
            clap_complete::generate(shell, &mut arguments, "retrysafe", &mut std::io::stdout());
        }
        // These say more with their exit than whether they failed.
        Command::Config { command } => return commands::config::run(command, variables),
        Command::Reconcile { command } => {
            return wait(commands::reconcile::run(command, variables))?;
        }
        Command::Check(check) => return wait(check.run()),
        Command::Call(call) => return wait(call.run()),
        Command::Demo(demo) => return wait(demo.run()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command that waits for others.
fn wait<T>(command: impl Future<Output = T>) -> Result<T, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command))
}
