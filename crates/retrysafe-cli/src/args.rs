//! What can be asked on the command line?

mod decisions;
mod inbox;
mod outbox;
mod reconcile;

use std::path::PathBuf;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand, ValueEnum};
use retrysafe::stores::any::WallClock;

use crate::call::Call;
use crate::check::Check;
use crate::config::{Anonymous, Flags};
use crate::demo::Demo;
use crate::init::Init;
pub(crate) use decisions::{DecisionArgs, ResolveArgs, UnknownCommand, UnknownFilterArgs};
pub(crate) use inbox::InboxCommand;
pub(crate) use outbox::{
    BulkArgs, DlqCommand, EffectActionArgs, EffectFilterArgs, KindActionArgs, OutboxCommand,
};
pub(crate) use reconcile::{CompareArgs, ReconcileCommand, ReportFormat, SideArg, StoreArgsOfOurs};

/// Makes any HTTP API safe to retry.
#[derive(Debug, Parser)]
#[command(
    name = "retrysafe",
    version,
    long_version = crate::version::LONG,
    arg_required_else_help = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// Words that people try as commands, and what does what they most likely mean.
const ELSEWHERE: [(&str, &[&str]); 1] = [(
    "doctor",
    &[
        "`retrysafe store doctor` looks for damage in a store",
        "`retrysafe healthcheck` asks a running gateway whether it is ready",
    ],
)];

/// An error of the command line that names the commands that were most likely meant.
pub(crate) fn with_hint(mut error: clap::Error) -> clap::Error {
    let word = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
    let hints = ELSEWHERE.iter().find(|(tried, _)| word.as_deref() == Some(*tried));
    if let Some((_, hints)) = hints {
        let hints = hints.iter().map(|hint| StyledStr::from(*hint)).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hints));
    }
    error
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a first configuration, with a comment for each line: by questions, or by flags.
    Init(Init),
    /// Run the gateway in front of an API.
    Serve {
        #[command(flatten)]
        configured: Configured,
        #[command(flatten)]
        clock: ClockArgs,
    },
    /// Deliver staged effects over HTTP, as the tables [effects.KIND] say.
    Worker {
        #[command(flatten)]
        configured: WorkerArgs,
        /// Say whether the configuration is valid, and end.
        #[arg(long)]
        check_config: bool,
    },
    /// Look at the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Look at keys, and decide about them, through the admin listener.
    Keys {
        #[command(subcommand)]
        command: Box<KeysCommand>,
    },
    /// Look at what is unknown, and decide about it, through the admin listener.
    Unknown {
        #[command(subcommand)]
        command: Box<UnknownCommand>,
    },
    /// Look at effects, and decide about them, through the admin listener.
    Outbox {
        #[command(subcommand)]
        command: OutboxCommand,
    },
    /// Look at the webhooks of providers, and have them judged anew, through the admin listener.
    Inbox {
        #[command(subcommand)]
        command: InboxCommand,
    },
    /// Look at effects that were given up, and decide about many of them.
    Dlq {
        #[command(subcommand)]
        command: DlqCommand,
    },
    /// Compare our ledger with a provider's.
    Reconcile {
        #[command(subcommand)]
        command: ReconcileCommand,
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
    /// The configuration file [default: retrysafe.toml in the working folder, if there is one].
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

/// What a worker takes.
#[derive(Debug, Default, Args)]
pub(crate) struct WorkerArgs {
    /// The configuration file [default: retrysafe.toml in the working folder, if there is one].
    #[arg(long, short)]
    config: Option<PathBuf>,
    /// Where operators ask for health and metrics, or `off` [default: 127.0.0.1:8081].
    #[arg(long)]
    admin: Option<String>,
    /// The database in which effects are staged: postgres://USER:PASSWORD@HOST/DATABASE.
    #[arg(long)]
    store: Option<String>,
}

impl WorkerArgs {
    pub(crate) fn flags(self) -> Flags {
        let Self { config, admin, store } = self;
        Flags { config, admin, store, ..Flags::default() }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check it, and name everything that is wrong, with its place and its cure.
    Check {
        #[command(flatten)]
        configured: Configured,
        /// Also list every operation of this OpenAPI document (JSON or YAML) that changes something and
        /// that no rule guards; the exit code is 3 if there are any.
        #[arg(long, value_name = "FILE")]
        openapi: Option<PathBuf>,
    },
    /// Print every setting that is in force, with secrets hidden.
    Print(Configured),
    /// Write the JSON schema of the file.
    Schema,
}

/// What every command takes that opens a store.
#[derive(Debug, Default, Args)]
pub(crate) struct ClockArgs {
    /// Open a disk store although the clock is more than 30 days ahead of the last time that the store
    /// has seen.
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
    /// The gateway's configuration file, which says where it listens and keeps its token
    /// [default: retrysafe.toml in the working folder, if there is one].
    #[arg(long, short)]
    pub config: Option<PathBuf>,
    /// Answer with JSON, for scripts.
    #[arg(long)]
    pub json: bool,
}

/// Which keys.
#[derive(Clone, Debug, Default, Args)]
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
        #[arg(value_name = "ID")]
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
    Resolve(ResolveArgs),
    /// Let an unknown key run again, if you are sure that it was not executed.
    Release(DecisionArgs),
    /// Forget a settled key now: the next request with it runs as a new one.
    Expire(DecisionArgs),
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
    /// Make a new Redis ready; or end the quarantine of a Redis or a PostgreSQL that has lost nothing.
    Init {
        #[command(flatten)]
        configured: Configured,
        /// Begin a quarantine instead: the server has lost records, and nothing new is executed for a while.
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
