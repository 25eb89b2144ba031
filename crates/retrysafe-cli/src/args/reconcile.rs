//! What can be asked about two ledgers?

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::ClockArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum ReconcileCommand {
    /// Compare our ledger with theirs, line by line and by sum. The exit code is 0 if they say the same, 3 if they do not, and 1 if
    /// one of them cannot be read.
    #[command(after_help = COMPARE_HELP)]
    Compare(Box<CompareArgs>),
}

const COMPARE_HELP: &str = "\
A column is named as in the first line of a CSV file or as in the query's answer; in JSON it is a pointer (/data/id) or the \
name of a member (id). Where the sides call it otherwise, write OURS=THEIRS.

Both ledgers are read in the byte order of their keys, in bounded memory. A query's answer, records and effects come so by \
themselves; a file that is not in that order is refused with its line, unless --sort puts it in order.";

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Ours: postgres://… with --query, `records` or `effects` of the configured store, or a file as in --theirs.
    #[arg(long, value_name = "SOURCE")]
    pub ours: String,
    /// Theirs: a file (.csv, .jsonl, .ndjson; csv:PATH and jsonl:PATH say it of any other), or https://… for pages of JSON.
    #[arg(long, value_name = "SOURCE")]
    pub theirs: String,
    /// The column by which lines belong together. No key may be there twice.
    #[arg(long, value_name = "COLUMN")]
    pub key: String,
    /// The column of amounts: exact decimals such as 12.50, added up and compared without any tolerance.
    #[arg(long, value_name = "COLUMN")]
    pub amount: Option<String>,
    /// The column of currencies: each has a sum of its own.
    #[arg(long, value_name = "COLUMN", requires = "amount")]
    pub currency: Option<String>,
    /// A further column that must be the same on both sides, byte by byte; may be repeated.
    #[arg(long = "field", value_name = "COLUMN")]
    pub fields: Vec<String>,
    /// The column of times, for --since and --until in files and pages: RFC 3339, or seconds since 1970.
    #[arg(long, value_name = "COLUMN")]
    pub time: Option<String>,
    /// Only lines from this time on, such as 2026-11-16 (midnight UTC) or 2026-11-16T06:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only lines before this time.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Put this side in order first, by temporary files in TMPDIR; may be repeated.
    #[arg(long, value_name = "SIDE")]
    pub sort: Vec<SideArg>,
    /// The query of ours, such as "SELECT id, amount FROM payments WHERE paid_at >= :since AND paid_at < :until".
    #[arg(long, value_name = "SQL")]
    pub query: Option<String>,
    /// A file that holds that query.
    #[arg(long, value_name = "FILE", conflicts_with = "query")]
    pub query_file: Option<PathBuf>,
    /// With `--ours records`: only of this route, as it is configured.
    #[arg(long)]
    pub route: Option<String>,
    /// With `--ours effects`: only of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// What separates the fields of CSV files.
    #[arg(long, value_name = "CHARACTER", default_value_t = ',')]
    pub delimiter: char,
    #[command(flatten)]
    pub pages: PageArgs,
    /// How to say what was found.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ReportFormat,
    /// How many differences are listed. All are counted.
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
    /// Write every difference to this file, as a JSON object on each line.
    #[arg(long, value_name = "FILE")]
    pub differences_file: Option<PathBuf>,
    /// Write the counts to this file, for a Prometheus collector of text files. It is replaced in one step.
    #[arg(long, value_name = "FILE")]
    pub metrics_file: Option<PathBuf>,
    /// Write what was found to this file, as JSON, for the dashboard: name it in admin.ledger_reports. It is replaced in one step, and only its
    /// owner may read it.
    #[arg(long, value_name = "FILE")]
    pub report_file: Option<PathBuf>,
    /// The name of this comparison in metrics and in the report, where there are several.
    #[arg(long, default_value = "default")]
    pub name: String,
    #[command(flatten)]
    pub configured: StoreArgsOfOurs,
    #[command(flatten)]
    pub clock: ClockArgs,
}

/// How an API gives its ledger page by page.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// In pages: the pointer to the list.
    #[arg(long, value_name = "POINTER", default_value = "/data")]
    pub items: String,
    /// In pages: the pointer to where the next page begins, or to its URL. Absent, null or empty at the end.
    #[arg(long, value_name = "POINTER", conflicts_with = "cursor_item")]
    pub cursor: Option<String>,
    /// In pages: the next page begins at this member of the last item.
    #[arg(long, value_name = "POINTER")]
    pub cursor_item: Option<String>,
    /// In pages: the pointer to whether there is another page (true or false).
    #[arg(long, value_name = "POINTER")]
    pub more: Option<String>,
    /// In pages: the query parameter that says where a page begins.
    #[arg(long, value_name = "NAME", default_value = "cursor")]
    pub cursor_parameter: String,
    /// In pages: a file with fields of each request, such as `Authorization: Bearer …`, one on each line.
    #[arg(long, value_name = "FILE")]
    pub headers: Option<PathBuf>,
}

/// Which store is ours.
#[derive(Debug, Default, Args)]
pub(crate) struct StoreArgsOfOurs {
    /// The configuration file, for `--ours records` and `--ours effects`.
    #[arg(long, short)]
    config: Option<PathBuf>,
    /// Where records are kept [default: where the configuration says].
    #[arg(long)]
    store: Option<String>,
}

impl StoreArgsOfOurs {
    pub(crate) fn flags(self) -> crate::config::Flags {
        let Self { config, store } = self;
        crate::config::Flags { config, store, ..crate::config::Flags::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SideArg {
    Ours,
    Theirs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    Table,
    Json,
    Markdown,
}
