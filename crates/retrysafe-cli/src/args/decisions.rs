//! What can be said about unknown keys, and about keys that are decided?

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{AdminArgs, FilterArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum UnknownCommand {
    /// List what is unknown, the oldest first.
    List {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(flatten)]
        filter: UnknownFilterArgs,
        /// How many at the most.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// Where the list before ended, as it was told.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show everything that is known about one key, and what may be done.
    Show {
        #[command(flatten)]
        admin: AdminArgs,
        /// The first digits of its id or of its digest, the key itself, or a request's id.
        #[arg(value_name = "ID")]
        text: String,
    },
    /// Ask the upstream about one key now. It is noted on the timeline, and uses up nothing of the schedule.
    Poll {
        #[command(flatten)]
        admin: AdminArgs,
        /// The first digits of its id or of its digest, the key itself, or a request's id.
        #[arg(value_name = "ID")]
        text: String,
    },
    /// Decide about an unknown key by evidence.
    Resolve(ResolveArgs),
    /// Let an unknown key be tried again: it was not executed, and you answer for it.
    Release(DecisionArgs),
}

/// Which unknown keys.
#[derive(Debug, Default, Args)]
pub(crate) struct UnknownFilterArgs {
    /// Only of this route, as it is configured.
    #[arg(long)]
    pub route: Option<String>,
    /// Only of this path, as it was asked for.
    #[arg(long)]
    pub path: Option<String>,
    /// Only of this scope, as it is shown.
    #[arg(long)]
    pub scope: Option<String>,
    /// Only unknown for longer than this, such as 10m.
    #[arg(long)]
    pub older_than: Option<String>,
    /// Only those whose lookups have given up; `false`: only those that are still looked up.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub dead_lettered: Option<bool>,
}

/// What every decision takes.
#[derive(Debug, Args)]
pub(crate) struct DecisionArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    /// The keys: the first digits of their ids, or whatever else finds one. Without any, the filter
    /// says which.
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Only what is unknown and whose lookups have given up; `false`: only what is unknown and still looked up. --older-than is
    /// then for how long it is unknown.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub dead_lettered: Option<bool>,
    /// The fence of the attempt that was looked at: another one is not decided about. For one key; without it the fence that stands
    /// there now is taken, and told.
    #[arg(long, requires = "ids")]
    pub fence: Option<u64>,
    /// Show what would change and what a retry would get then, and change nothing.
    #[arg(long)]
    pub preview: bool,
    /// With a filter: do it without asking. Without this, and without a yes at a terminal, nothing is done but shown.
    #[arg(long)]
    pub yes: bool,
    /// With a filter: how many keys at the most. If more match, nothing is done.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub max: u32,
    /// With a filter: how many keys per second at the most.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rate: u32,
    /// Why. It stays on the key's timeline.
    #[arg(long, required_unless_present = "preview")]
    pub reason: Option<String>,
}

/// What a decision by evidence takes.
#[derive(Debug, Args)]
pub(crate) struct ResolveArgs {
    #[command(flatten)]
    pub decision: DecisionArgs,
    /// What the evidence shows.
    #[arg(long)]
    pub outcome: OutcomeArg,
    /// The status of the answer to replay from now on.
    #[arg(long)]
    pub status: Option<u16>,
    /// A header of that answer, `Name: value`; may be repeated.
    #[arg(long = "header", requires = "status")]
    pub headers: Vec<String>,
    /// The body of that answer.
    #[arg(long, requires = "status")]
    pub body: Option<String>,
    /// A file that holds the body of that answer.
    #[arg(long, requires = "status", conflicts_with = "body", value_name = "FILE")]
    pub body_file: Option<PathBuf>,
    /// Take the answer from here.
    #[arg(long = "use", value_name = "WHAT", conflicts_with = "status")]
    pub source: Option<SourceArg>,
    /// Which late result, by the fence of its owner, where there are several.
    #[arg(long, requires = "source", value_name = "FENCE")]
    pub late_fence: Option<u64>,
}

/// Where an answer is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SourceArg {
    /// What an owner reported after it had lost its fence.
    LateResult,
}

impl SourceArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LateResult => "late_result",
        }
    }
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
