//! What can be asked about webhooks?

use clap::{Subcommand, ValueEnum};

use super::AdminArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum InboxCommand {
    /// List events, the newest first.
    List {
        #[command(flatten)]
        admin: AdminArgs,
        /// Only in this state.
        #[arg(long)]
        state: Option<EventStateArg>,
        /// Only of this provider.
        #[arg(long)]
        provider: Option<String>,
        /// How many at the most.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show one event: how it stands and why, what it names, and the beginning of its payload.
    Show {
        #[command(flatten)]
        admin: AdminArgs,
        /// Its number.
        id: i64,
    },
    /// Have events judged anew, by the rules of the present configuration.
    Replay {
        #[command(flatten)]
        admin: AdminArgs,
        /// Their numbers.
        #[arg(required = true)]
        ids: Vec<i64>,
        /// Why. It is kept beside the event.
        #[arg(long)]
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum EventStateArg {
    Waiting,
    Applied,
    Agrees,
    Contradicts,
    Unmatched,
    Ignored,
    Malformed,
}

impl EventStateArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Applied => "applied",
            Self::Agrees => "agrees",
            Self::Contradicts => "contradicts",
            Self::Unmatched => "unmatched",
            Self::Ignored => "ignored",
            Self::Malformed => "malformed",
        }
    }
}
