//! Do our ledger and theirs say the same?
//!
//! Two ledgers are read side by side, each in the byte order of its keys, so that memory does not grow with them.
//! [`merge`] compares and is pure; the readers ([`csv_file`], [`json_lines`], [`pages`], [`sql`], [`own`]) give one
//! [`Entry`] after the other; [`sort`] puts a ledger in order that does not come so; [`report`], [`report_file`] and [`metrics_file`] say
//! what was found.
//!
//! What cannot be read exactly is an error with its line. Nothing is rounded, trimmed or guessed: a comparison that
//! overlooks a line is worse than none.

mod amount;
mod columns;
mod csv_file;
mod entry;
mod json_lines;
mod merge;
mod metrics_file;
mod own;
mod page_client;
mod pages;
mod pointer;
mod quote;
mod reader;
mod report;
mod report_file;
mod sort;
mod sql;
mod window;

pub(crate) use columns::Columns;
pub(crate) use merge::{Difference, compare};
pub(crate) use metrics_file::write_metrics;
pub(crate) use own::OwnLedger;
pub(crate) use pages::PageOptions;
pub(crate) use reader::{LedgerReader, Side, Source};
pub(crate) use report::{Report, difference_document};
pub(crate) use report_file::write_report;
pub(crate) use window::Window;
