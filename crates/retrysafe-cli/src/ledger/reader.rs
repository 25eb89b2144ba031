//! How is a ledger read, wherever it is kept, and is it in order?
//!
//! Keys rise by their bytes from line to line; the first that does not is an error with its line. Whoever merges two ledgers
//! that are not in order finds differences that do not exist.

use std::fmt;
use std::path::{Path, PathBuf};
use std::vec;

use super::columns::Columns;
use super::csv_file::CsvLedger;
use super::entry::{Entry, Place};
use super::json_lines::JsonLinesLedger;
use super::own::{OwnLedger, OwnReader};
use super::pages::{PageOptions, PagesLedger};
use super::quote::quoted;
use super::sort::{SortedLedger, Sorter};
use super::sql::{SqlLedger, SqlQuery};
use super::window::Window;
use crate::Failure;

/// Whose ledger it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Theirs,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Theirs => "theirs",
        }
    }
}

/// Where a ledger is.
#[derive(Debug)]
pub(crate) enum Source {
    Csv { path: PathBuf, delimiter: u8 },
    JsonLines(PathBuf),
    Pages(Box<PageOptions>),
    Sql(Box<SqlQuery>),
    Own(Box<OwnLedger>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Csv { path, .. } | Self::JsonLines(path) => write!(f, "{}", path.display()),
            Self::Pages(options) => options.fmt(f),
            Self::Sql(_) => f.write_str("the query"),
            Self::Own(own) => own.fmt(f),
        }
    }
}

impl Source {
    /// A file by its name: `csv:PATH`, `jsonl:PATH`, or a path that ends so.
    ///
    /// # Errors
    ///
    /// If its kind cannot be told.
    pub(crate) fn file(text: &str, delimiter: u8) -> Result<Self, String> {
        let csv = |path: &str| Self::Csv { path: path.into(), delimiter };
        if let Some(path) = text.strip_prefix("csv:") {
            return Ok(csv(path));
        }
        if let Some(path) = text.strip_prefix("jsonl:") {
            return Ok(Self::JsonLines(path.into()));
        }
        let ending = Path::new(text).extension().unwrap_or_default().to_ascii_lowercase();
        match ending.to_string_lossy().as_ref() {
            "csv" => Ok(csv(text)),
            "jsonl" | "ndjson" => Ok(Self::JsonLines(text.into())),
            _ => Err(format!(
                "{} is no source: write a file that ends in .csv, .jsonl or .ndjson, csv:PATH, jsonl:PATH or https://…; for ours also \
                 postgres://…, records or effects",
                quoted(text)
            )),
        }
    }

    /// A query, for ours.
    pub(crate) fn sql(url: &str, query: String) -> Result<Self, String> {
        Ok(Self::Sql(Box::new(SqlQuery::new(url, query)?)))
    }

    /// Whether it can leave out what is outside a window, and how it would.
    fn window_refusal(&self, columns: &Columns, window: &Window) -> Option<&'static str> {
        match self {
            Self::Csv { .. } | Self::JsonLines(_) if columns.time.is_none() => {
                Some("name the column of its times with --time")
            }
            Self::Pages(options) if columns.time.is_none() && !options.names_window(window) => {
                Some(
                    "put {since} and {until} (or {since_unix} and {until_unix}) into its URL, or name the pointer to its times with --time",
                )
            }
            Self::Sql(query) if !query.names_window(window) => {
                Some("put :since and :until into its query")
            }
            Self::Csv { .. }
            | Self::JsonLines(_)
            | Self::Pages(_)
            | Self::Sql(_)
            | Self::Own(_) => None,
        }
    }
}

/// A ledger, line by line.
#[derive(Debug)]
pub(crate) struct LedgerReader {
    /// Whose it is and where, for errors.
    name: String,
    input: Input,
    lines: u64,
    passed_over: u64,
    last_key: String,
    last_place: Option<Place>,
    cure: &'static str,
}

#[derive(Debug)]
enum Input {
    Csv(Box<CsvLedger>),
    JsonLines(Box<JsonLinesLedger>),
    Batches(Batches, vec::IntoIter<Entry>),
    Sorted(SortedLedger),
}

/// What comes many lines at a time.
#[derive(Debug)]
enum Batches {
    Pages(Box<PagesLedger>),
    Sql(SqlLedger),
    Own(Box<OwnReader>),
}

impl LedgerReader {
    /// Opens a ledger. One that is to be sorted is read to its end first; `progress` is told how many lines were read.
    ///
    /// # Errors
    ///
    /// If it cannot be opened or read, or knows nothing of the window.
    pub(crate) async fn open(
        side: Side,
        source: Source,
        columns: Columns,
        window: Window,
        is_sorted_here: bool,
        progress: impl FnMut(u64),
    ) -> Result<Self, Failure> {
        let name = format!("{} ({source})", side.name());
        let told = |why: String| Failure::from(format!("{name}: {why}"));
        if !window.is_endless()
            && let Some(cure) = source.window_refusal(&columns, &window)
        {
            return Err(told(format!("--since and --until cannot be applied to it: {cure}")));
        }
        let is_sorted_here = is_sorted_here || matches!(source, Source::Own(_));
        let cure = match &source {
            Source::Csv { .. } | Source::JsonLines(_) => {
                "sort the file by its key in byte order (LC_ALL=C sort, not the order of a locale), or let --sort do it"
            }
            Source::Pages(_) => "let --sort do it",
            Source::Sql(_) | Source::Own(_) => "it comes in order by itself: please report this",
        };
        let input = Input::open(source, columns, window).await.map_err(told)?;
        let mut reader = Self {
            name: name.clone(),
            input,
            lines: 0,
            passed_over: 0,
            last_key: String::new(),
            last_place: None,
            cure,
        };
        if is_sorted_here {
            reader.sort(progress).await.map_err(told)?;
        }
        Ok(reader)
    }

    async fn sort(&mut self, mut progress: impl FnMut(u64)) -> Result<(), String> {
        let mut sorter = Sorter::default();
        let mut count = 0;
        while let Some(entry) = self.input.next().await? {
            sorter.push(entry)?;
            count += 1;
            progress(count);
        }
        self.passed_over = self.input.passed_over();
        self.input = Input::Sorted(sorter.finish()?);
        Ok(())
    }

    /// The next line; none at the end.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is out of order, or has the key of the line before.
    pub(crate) async fn next(&mut self) -> Result<Option<Entry>, Failure> {
        let next = self.input.next().await.map_err(|why| format!("{}: {why}", self.name))?;
        let Some(entry) = next else { return Ok(None) };
        if let Some(last) = self.last_place
            && entry.key.as_bytes() <= self.last_key.as_bytes()
        {
            return Err(self.out_of_order(&entry, last).into());
        }
        self.last_key.clear();
        self.last_key.push_str(&entry.key);
        self.last_place = Some(entry.place);
        self.lines += 1;
        Ok(Some(entry))
    }

    /// How many lines were read.
    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    /// How many of our own records or effects have no key of that name.
    pub(crate) fn passed_over(&self) -> u64 {
        self.passed_over
    }

    fn out_of_order(&self, entry: &Entry, last: Place) -> String {
        let Self { name, last_key, cure, .. } = self;
        let place = entry.place;
        let key = quoted(&entry.key);
        if entry.key == *last_key {
            return format!(
                "{name}: {place}: the key {key} was there before, on {last}. Every key must be there once: add up what \
                 belongs together, or choose another column with --key"
            );
        }
        let last_key = quoted(last_key);
        format!(
            "{name}: {place}: the key {key} comes after {last_key} ({last}), and is smaller in byte order. Both ledgers must be in the \
             byte order of their keys: {cure}"
        )
    }
}

impl Input {
    async fn open(source: Source, mut columns: Columns, window: Window) -> Result<Self, String> {
        let batches = |batches| Self::Batches(batches, Vec::new().into_iter());
        Ok(match source {
            Source::Csv { path, delimiter } => {
                Self::Csv(Box::new(CsvLedger::open(&path, delimiter, columns, window)?))
            }
            Source::JsonLines(path) => {
                Self::JsonLines(Box::new(JsonLinesLedger::open(&path, columns, window)?))
            }
            Source::Pages(options) => {
                batches(Batches::Pages(Box::new(PagesLedger::new(*options, columns, window)?)))
            }
            // These leave out by themselves what is outside the window.
            Source::Sql(query) => {
                columns.time = None;
                batches(Batches::Sql(SqlLedger::open(*query, columns, window).await?))
            }
            Source::Own(own) => {
                columns.time = None;
                batches(Batches::Own(Box::new(own.open(columns, window).await?)))
            }
        })
    }

    async fn next(&mut self) -> Result<Option<Entry>, String> {
        match self {
            Self::Csv(ledger) => ledger.next(),
            Self::JsonLines(ledger) => ledger.next(),
            Self::Sorted(ledger) => ledger.next(),
            Self::Batches(batches, ready) => loop {
                if let Some(entry) = ready.next() {
                    return Ok(Some(entry));
                }
                let more = match batches {
                    Batches::Pages(ledger) => ledger.next_page().await?,
                    Batches::Sql(ledger) => ledger.next_rows().await?,
                    Batches::Own(ledger) => ledger.next_page().await?,
                };
                match more {
                    Some(entries) => *ready = entries.into_iter(),
                    None => return Ok(None),
                }
            },
        }
    }

    fn passed_over(&self) -> u64 {
        match self {
            Self::Batches(Batches::Own(ledger), _) => ledger.passed_over(),
            Self::Batches(Batches::Pages(_) | Batches::Sql(_), _)
            | Self::Csv(_)
            | Self::JsonLines(_)
            | Self::Sorted(_) => 0,
        }
    }
}
