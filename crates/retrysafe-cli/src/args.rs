//! What can be asked on the command line?

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use retrysafe::stores::any::WallClock;

use crate::call::Call;
use crate::check::Check;
use crate::config::{Anonymous, Flags};
use crate::demo::Demo;

/// Makes any HTTP API safe to retry.
#[derive(Debug, Parser)]
#[command(name = "retrysafe", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway in front of an API.
    Serve {
        #[command(flatten)]
        configured: Configured,
        #[command(flatten)]
        clock: ClockArgs,
    },
    /// Look at the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Look at keys, and decide about them, through the admin listener.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// Look after a store, directly.
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Count records by route and by scope.
    Stats {
        #[command(flatten)]
        admin: AdminArgs,
        /// How many scopes to name.
        #[arg(long, default_value_t = 10)]
        top: usize,
    },
    /// Ask a running gateway whether it is ready.
    Healthcheck {
        /// Where its admin listener is.
        #[arg(long, env = "RETRYSAFE_ADMIN_URL", default_value = DEFAULT_ADMIN)]
        admin: String,
    },
    /// Show the main job: payments with a flaky provider, unprotected and protected.
    Demo(Demo),
    /// Judge the Idempotency-Key of any HTTP API, from outside.
    Check(Box<Check>),
    /// Make a call with safe retries, like curl: one key, journalled before it is sent.
    Call(Call),
    /// Write shell completions to standard output.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
}

const DEFAULT_ADMIN: &str = "http://127.0.0.1:8081";

/// What every command takes that reads the configuration.
#[derive(Debug, Default, Args)]
pub(crate) struct Configured {
    /// The configuration file.
    #[arg(long, short)]
    config: Option<PathBuf>,
    /// The API behind the gateway, such as http://127.0.0.1:3000.
    #[arg(long)]
    upstream: Option<String>,
    /// Where callers connect [default: 127.0.0.1:8080].
    #[arg(long)]
    listen: Option<String>,
    /// Where operators connect, or `off` [default: 127.0.0.1:8081].
    #[arg(long)]
    admin: Option<String>,
    /// Where records are kept [default: disk:./retrysafe-data].
    #[arg(long)]
    store: Option<String>,
    /// Refuse covered requests without a key, on all routes that do not say otherwise.
    #[arg(long)]
    require_key: bool,
    /// Whether callers who show no credential are refused, or share their keys and answers.
    #[arg(long, value_name = "WHAT")]
    anonymous: Option<Anonymous>,
}

impl Configured {
    pub(crate) fn flags(self) -> Flags {
        let Self { config, upstream, listen, admin, store, require_key, anonymous } = self;
        Flags { config, listen, upstream, admin, store, require_key, anonymous }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether it is valid, and everything that is wrong with it.
    Check {
        #[command(flatten)]
        configured: Configured,
        /// Also list every operation of this OpenAPI document (JSON or YAML) that changes something and
        /// that no rule guards; the exit code is 3 if there are any.
        #[arg(long, value_name = "FILE")]
        openapi: Option<PathBuf>,
    },
    /// Write out everything that holds, with secrets blotted out.
    Print(Configured),
    /// Write the JSON schema of the file.
    Schema,
}

/// What every command takes that opens a store.
#[derive(Debug, Default, Args)]
pub(crate) struct ClockArgs {
    /// Open a disk store though the clock is more than 30 days ahead of the last time that it has seen.
    #[arg(long)]
    accept_clock: bool,
}

impl ClockArgs {
    pub(crate) fn wall_clock(&self) -> WallClock {
        if self.accept_clock { WallClock::Accepted } else { WallClock::Checked }
    }
}

/// How to reach the admin listener.
#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// Where the admin listener is [default: where the configuration says].
    #[arg(long, env = "RETRYSAFE_ADMIN_URL")]
    pub admin: Option<String>,
    /// The admin token [default: the one that the gateway keeps beside its store].
    #[arg(long, env = "RETRYSAFE_ADMIN_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// A file that holds the admin token.
    #[arg(long, env = "RETRYSAFE_ADMIN_TOKEN_FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// The gateway's configuration file, which says where it listens and keeps its token.
    #[arg(long, short)]
    pub config: Option<PathBuf>,
    /// Answer with JSON, for scripts.
    #[arg(long)]
    pub json: bool,
}

/// Which keys.
#[derive(Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// Only in this state.
    #[arg(long)]
    pub state: Option<StateArg>,
    /// Only of this route, as it is configured.
    #[arg(long)]
    pub route: Option<String>,
    /// Only of this path, as it was asked for.
    #[arg(long)]
    pub path: Option<String>,
    /// Only of this scope, as it is shown.
    #[arg(long)]
    pub scope: Option<String>,
    /// Only created longer ago than this, such as 10m.
    #[arg(long)]
    pub older_than: Option<String>,
}

impl FilterArgs {
    /// Whether it lets every key through.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { state, route, path, scope, older_than } = self;
        let texts = [route, path, scope, older_than];
        state.is_none() && texts.iter().all(|text| text.is_none())
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum StateArg {
    InProgress,
    Completed,
    FailedRetryable,
    Unknown,
}

impl StateArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::FailedRetryable => "failed_retryable",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List keys, those that changed last first.
    List {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(flatten)]
        filter: FilterArgs,
        /// How many at the most.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show one key, with its timeline.
    Show {
        #[command(flatten)]
        admin: AdminArgs,
        /// The first digits of its id or of its digest, the key itself, or a request's id.
        text: String,
    },
    /// Find keys by what stands in a log line, whatever the scope.
    Find {
        #[command(flatten)]
        admin: AdminArgs,
        /// The key as the caller sent it, the first digits of its digest or of a record's id, or
        /// the id of a request.
        text: String,
        /// How many at the most.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Decide about an unknown key by evidence.
    Resolve {
        #[command(flatten)]
        action: ActionArgs,
        /// What the evidence shows.
        #[arg(long)]
        outcome: OutcomeArg,
        /// The status of the answer to replay from now on.
        #[arg(long)]
        status: Option<u16>,
        /// A header of that answer, `Name: value`; may be repeated.
        #[arg(long = "header", requires = "status")]
        headers: Vec<String>,
        /// The body of that answer.
        #[arg(long, requires = "status")]
        body: Option<String>,
        /// The fence of the attempt that was looked at: another one is not decided about.
        #[arg(long, requires = "ids")]
        fence: Option<u64>,
    },
    /// Let an unknown key be tried again: it was not executed, and you answer for it.
    Release {
        #[command(flatten)]
        action: ActionArgs,
        /// The fence of the attempt that was looked at: another one is not released.
        #[arg(long, requires = "ids")]
        fence: Option<u64>,
    },
    /// End the retention of a settled key now.
    Expire {
        #[command(flatten)]
        action: ActionArgs,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum OutcomeArg {
    Completed,
    FailedRetryable,
}

impl OutcomeArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::FailedRetryable => "failed_retryable",
        }
    }
}

/// What every verb takes.
#[derive(Debug, Args)]
pub(crate) struct ActionArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    /// The keys: the first digits of their ids, or whatever else finds one. Without any, the filter
    /// says which.
    pub ids: Vec<String>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Really all keys, where the filter is empty.
    #[arg(long)]
    pub all: bool,
    /// Do it without asking, to all keys that the filter lists.
    #[arg(long)]
    pub yes: bool,
    /// Why. It stays on the key's timeline.
    #[arg(long)]
    pub reason: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Make a store ready for this version.
    Migrate {
        #[command(flatten)]
        store: StoreArgs,
        /// Write the SQL that does it to standard output, and change nothing.
        #[arg(long)]
        print: bool,
        /// With --print: the version of the schema that is there already.
        #[arg(long, value_name = "VERSION", default_value_t = 0, requires = "print")]
        from: u32,
    },
    /// Say that a Redis may be trusted, once for a new one; or that a server has lost nothing, to end
    /// the quarantine of a Redis or of a PostgreSQL.
    Init {
        #[command(flatten)]
        configured: Configured,
        /// It has lost records: nothing new is executed until its quarantine is over.
        #[arg(long)]
        after_loss: bool,
        /// Answer with JSON, for scripts.
        #[arg(long)]
        json: bool,
    },
    /// Look for damage without changing anything.
    Doctor(StoreArgs),
    /// Delete expired records now.
    Reap(StoreArgs),
    /// Save what is intact in a damaged disk store to a new one. A key whose record is damaged is
    /// unknown there; the exit code is 1 if there are keys that cannot even be named.
    Salvage {
        /// The folder of the damaged store. It is not changed.
        from: PathBuf,
        /// The folder of the new one: empty, or not there yet.
        to: PathBuf,
        #[command(flatten)]
        clock: ClockArgs,
        /// Answer with JSON, for scripts.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub configured: Configured,
    #[command(flatten)]
    pub clock: ClockArgs,
    /// Answer with JSON, for scripts.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment::OF_COMMANDS;
    use clap::CommandFactory as _;

    #[test]
    fn variables_of_the_command_line_are_known_to_the_configuration() {
        fn of(command: &clap::Command) -> Vec<String> {
            let own = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str());
            let own: Vec<String> = own.map(ToOwned::to_owned).collect();
            own.into_iter().chain(command.get_subcommands().flat_map(of)).collect()
        }
        let read = of(&Arguments::command());
        assert!(read.len() >= 4, "{read:?}");
        for variable in read {
            assert!(OF_COMMANDS.contains(&variable.as_str()), "{variable}");
        }
    }
}
