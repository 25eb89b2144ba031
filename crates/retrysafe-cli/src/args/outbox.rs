//! What can be asked about effects?

use clap::{Args, Subcommand, ValueEnum};

use super::AdminArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// List effects, the newest first. Without --state: those that are not over.
    List {
        #[command(flatten)]
        admin: AdminArgs,
        /// Only in this state.
        #[arg(long)]
        state: Option<EffectStateArg>,
        #[command(flatten)]
        filter: EffectFilterArgs,
        /// Only of this lane.
        #[arg(long)]
        lane: Option<String>,
        /// How many at the most.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show one effect: how it stands, its last error, the beginning of its payload, and what may be done now.
    Show {
        #[command(flatten)]
        admin: AdminArgs,
        /// Its number.
        id: i64,
    },
    /// Give dead effects another chance. Refused where the receiver may have forgotten the key.
    Retry(EffectActionArgs),
    /// Take effects back that were not sent yet, or put dead ones away, so that their lanes go on.
    Cancel(EffectActionArgs),
    /// Decide about an unknown effect by evidence.
    Resolve {
        #[command(flatten)]
        admin: AdminArgs,
        /// Its number.
        id: i64,
        /// What the evidence shows.
        #[arg(long)]
        outcome: VerdictArg,
        /// What the receiver calls it, if it was delivered.
        #[arg(long)]
        reference: Option<String>,
        /// With `not_found`: how long a packet may be on its way, such as 1h. Before that, absence is no proof.
        #[arg(long)]
        settle_time: Option<String>,
        /// The fence that `outbox show` has shown. If another delivery has begun since, nothing is changed.
        #[arg(long)]
        fence: Option<i64>,
        /// Why. It is kept beside the effect.
        #[arg(long)]
        reason: String,
    },
    /// Let no worker claim effects of a kind. What is under way is finished.
    Pause(KindActionArgs),
    /// Let workers claim effects of a kind again.
    Resume(KindActionArgs),
    /// Count effects by kind and state.
    Stats {
        #[command(flatten)]
        admin: AdminArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead effects, the newest first.
    List {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(flatten)]
        filter: EffectFilterArgs,
        /// How many at the most.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show one dead effect.
    Show {
        #[command(flatten)]
        admin: AdminArgs,
        /// Its number.
        id: i64,
    },
    /// Give dead effects another chance, one after the other. Those whose receiver may have forgotten the key stay dead.
    Requeue {
        #[command(flatten)]
        bulk: BulkArgs,
        /// How many become ready in a second.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        rate: u32,
    },
    /// Put dead effects away: they are cancelled, and their lanes go on.
    Purge {
        #[command(flatten)]
        bulk: BulkArgs,
    },
}

/// Which effects.
#[derive(Debug, Default, Args)]
pub(crate) struct EffectFilterArgs {
    /// Only of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only with this text in their last error.
    #[arg(long)]
    pub error: Option<String>,
    /// Only in their state for longer than this, such as 10m.
    #[arg(long)]
    pub older_than: Option<String>,
}

/// What every verb about single effects takes.
#[derive(Debug, Args)]
pub(crate) struct EffectActionArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Their numbers.
    #[arg(required = true)]
    pub ids: Vec<i64>,
    /// Why. It is kept beside the effect.
    #[arg(long)]
    pub reason: String,
}

/// What every verb about a kind takes.
#[derive(Debug, Args)]
pub(crate) struct KindActionArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    /// The kind.
    pub kind: String,
    /// Why. It is written down.
    #[arg(long)]
    pub reason: String,
}

/// What every verb about many dead effects takes.
#[derive(Debug, Args)]
pub(crate) struct BulkArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(flatten)]
    pub filter: EffectFilterArgs,
    /// Only count; change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Do it without asking.
    #[arg(long)]
    pub yes: bool,
    /// Why. It is kept beside each effect.
    #[arg(long, required_unless_present = "dry_run")]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum EffectStateArg {
    Waiting,
    Ready,
    Leased,
    Unknown,
    Dead,
    Delivered,
    Cancelled,
}

impl EffectStateArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Leased => "leased",
            Self::Unknown => "unknown",
            Self::Dead => "dead",
            Self::Delivered => "delivered",
            Self::Cancelled => "cancelled",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum VerdictArg {
    /// It was delivered.
    Delivered,
    /// It had no effect and cannot have one any more: it is sent again.
    NoEffect,
    /// It had no effect and cannot have one any more, and nobody wants it done: it is cancelled.
    Unwanted,
    /// Its receiver does not know it. That counts after --settle-time.
    NotFound,
}

impl VerdictArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::NoEffect => "no_effect",
            Self::Unwanted => "unwanted",
            Self::NotFound => "not_found",
        }
    }
}
