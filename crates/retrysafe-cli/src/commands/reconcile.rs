//! What does `reconcile compare` do?

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::ProgressBar;
use jiff::Timestamp;

use crate::Failure;
use crate::args::{CompareArgs, ReconcileCommand, ReportFormat, SideArg, StoreArgsOfOurs};
use crate::config;
use crate::ledger::{
    Columns, Difference, LedgerReader, OwnLedger, PageOptions, Report, Side, Source, Window,
    compare, difference_document, write_metrics, write_report,
};
use crate::output;

/// The exit code if the ledgers differ. 1 says that they could not be compared, 2 that the command line is wrong.
const DIFFERENT: u8 = 3;

/// After how many lines the progress is shown anew.
const PROGRESS_STEP: u64 = 10_000;

/// The largest file that is read at once: a query, or fields of requests.
const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

/// Does it.
///
/// # Errors
///
/// If one of the ledgers cannot be read, or what was found cannot be written.
pub(crate) async fn run(
    command: ReconcileCommand,
    variables: &BTreeMap<String, String>,
) -> Result<ExitCode, Failure> {
    match command {
        ReconcileCommand::Compare(asked) => run_compare(*asked, variables).await,
    }
}

async fn run_compare(
    asked: CompareArgs,
    variables: &BTreeMap<String, String>,
) -> Result<ExitCode, Failure> {
    let window = Window::parse(asked.since.as_deref(), asked.until.as_deref())?;
    let is_sorted = |side| asked.sort.contains(&side);
    let sorted = [is_sorted(SideArg::Ours), is_sorted(SideArg::Theirs)];
    let [of_ours, of_theirs] = columns(&asked);
    let fields = of_ours.fields.clone();
    let theirs = remote_source(&asked, &asked.theirs)?;
    let output_of = Output {
        format: asked.format,
        limit: asked.limit,
        metrics_file: asked.metrics_file.clone(),
        report_file: asked.report_file.clone(),
        name: asked.name.clone(),
    };
    let mut differences =
        asked.differences_file.as_deref().map(DifferencesFile::create).transpose()?;
    let ours = our_source(asked, variables)?;

    // It is shown on a terminal only.
    let bar = ProgressBar::new_spinner();
    let reading = |side: Side| {
        let bar = &bar;
        move |count: u64| {
            if count.is_multiple_of(PROGRESS_STEP) {
                bar.set_message(format!("sorting {}: {count} lines", side.name()));
                bar.tick();
            }
        }
    };
    let [sort_ours, sort_theirs] = sorted;
    let mut ours =
        LedgerReader::open(Side::Ours, ours, of_ours, window, sort_ours, reading(Side::Ours))
            .await?;
    let mut theirs = LedgerReader::open(
        Side::Theirs,
        theirs,
        of_theirs,
        window,
        sort_theirs,
        reading(Side::Theirs),
    )
    .await?;
    let mut listed: Vec<Difference> = Vec::new();
    let mut steps = 0_u64;
    let comparison = compare(
        &mut ours,
        &mut theirs,
        &fields,
        |difference| {
            if let Some(file) = &mut differences {
                file.write(&difference, &fields)?;
            }
            if listed.len() < output_of.limit {
                listed.push(difference);
            }
            Ok(())
        },
        |our_lines, their_lines, found| {
            steps += 1;
            if steps.is_multiple_of(PROGRESS_STEP) {
                let count = found.differences();
                bar.set_message(format!(
                    "ours: {our_lines} lines, theirs: {their_lines} lines, differences: {count}"
                ));
                bar.tick();
            }
        },
    )
    .await?;
    bar.finish_and_clear();
    if let Some(file) = differences {
        file.finish()?;
    }
    let report = Report {
        comparison,
        listed,
        our_lines: ours.lines(),
        their_lines: theirs.lines(),
        passed_over: ours.passed_over(),
        fields,
    };
    output_of.tell(&report)?;
    Ok(if report.comparison.is_equal() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

/// The columns of both sides: `NAME`, or `OURS=THEIRS`.
fn columns(asked: &CompareArgs) -> [Columns; 2] {
    [0, 1].map(|side| {
        let of_side = |text: &String| match text.split_once('=') {
            Some((ours, theirs)) => if side == 0 { ours } else { theirs }.to_owned(),
            None => text.clone(),
        };
        Columns {
            key: of_side(&asked.key),
            amount: asked.amount.as_ref().map(of_side),
            currency: asked.currency.as_ref().map(of_side),
            time: asked.time.as_ref().map(of_side),
            fields: asked.fields.iter().map(of_side).collect(),
        }
    })
}

/// A file, or pages.
fn remote_source(asked: &CompareArgs, text: &str) -> Result<Source, Failure> {
    if text.starts_with("http://") || text.starts_with("https://") {
        let pages = &asked.pages;
        let headers =
            pages.headers.as_deref().map(|path| small_file("--headers", path)).transpose()?;
        return Ok(Source::Pages(Box::new(PageOptions {
            url: text.to_owned(),
            items: pages.items.clone(),
            cursor: pages.cursor.clone(),
            cursor_item: pages.cursor_item.clone(),
            more: pages.more.clone(),
            cursor_parameter: pages.cursor_parameter.clone(),
            headers: headers.unwrap_or_default(),
        })));
    }
    let delimiter = u8::try_from(asked.delimiter).ok().filter(u8::is_ascii);
    let delimiter =
        delimiter.ok_or("--delimiter must be one ASCII character, such as ; or a tab")?;
    Ok(Source::file(text, delimiter)?)
}

fn our_source(asked: CompareArgs, variables: &BTreeMap<String, String>) -> Result<Source, Failure> {
    let is_sql = ["postgres://", "postgresql://"].iter().any(|it| asked.ours.starts_with(it));
    let query = match (&asked.query, &asked.query_file) {
        (Some(query), _) => Some(query.clone()),
        (None, Some(path)) => Some(small_file("--query-file", path)?),
        (None, None) => None,
    };
    if !is_sql && query.is_some() {
        return Err("--query is for --ours postgres://…, and --ours is something else".into());
    }
    let store = |configured: StoreArgsOfOurs| config::store_url(&configured.flags(), variables);
    match asked.ours.as_str() {
        url if is_sql => {
            let query = query.ok_or("--ours is a database: --query says what to read from it")?;
            Ok(Source::sql(url, query)?)
        }
        "records" => {
            let clock = asked.clock.wall_clock();
            let url = store(asked.configured)?;
            Ok(Source::Own(Box::new(OwnLedger::Records { url, clock, route: asked.route })))
        }
        "effects" => {
            let url = store(asked.configured)?;
            Ok(Source::Own(Box::new(OwnLedger::Effects { url, kind: asked.kind })))
        }
        text => remote_source(&asked, text),
    }
}

fn small_file(flag: &str, path: &Path) -> Result<String, Failure> {
    let told =
        |why: &dyn std::fmt::Display| Failure::from(format!("{flag} {}: {why}", path.display()));
    let length = std::fs::metadata(path).map_err(|error| told(&error))?.len();
    if length > SMALL_FILE_BYTES_MAX {
        return Err(told(&format!("it is larger than {SMALL_FILE_BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| told(&error))
}

/// A file with every difference. It gets its name when it is whole.
struct DifferencesFile {
    path: PathBuf,
    file: BufWriter<File>,
    temporary: tempfile::TempPath,
}

impl DifferencesFile {
    fn create(path: &Path) -> Result<Self, Failure> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let named = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))
            .map_err(|error| told(path, &error))?;
        let (file, temporary) = named.into_parts();
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), temporary })
    }

    fn write(&mut self, difference: &Difference, fields: &[String]) -> Result<(), Failure> {
        let document = difference_document(difference, fields);
        writeln!(self.file, "{document}").map_err(|error| told(&self.path, &error))
    }

    fn finish(self) -> Result<(), Failure> {
        let Self { path, mut file, temporary } = self;
        file.flush().map_err(|error| told(&path, &error))?;
        temporary.persist(&path).map_err(|error| told(&path, &error.error))
    }
}

fn told(path: &Path, error: &std::io::Error) -> Failure {
    format!("--differences-file {}: {error}", path.display()).into()
}

/// Where what was found is said.
struct Output {
    format: ReportFormat,
    limit: usize,
    metrics_file: Option<PathBuf>,
    report_file: Option<PathBuf>,
    name: String,
}

impl Output {
    fn tell(&self, report: &Report) -> Result<(), Failure> {
        match self.format {
            ReportFormat::Json => output::json(&report.document()),
            ReportFormat::Markdown => output::say(report.markdown().trim_end()),
            ReportFormat::Table => tables(report),
        }
        if let Some(path) = &self.metrics_file {
            write_metrics(path, &self.name, report, Timestamp::now())?;
        }
        if let Some(path) = &self.report_file {
            write_report(path, &self.name, report, Timestamp::now())?;
        }
        Ok(())
    }
}

fn tables(report: &Report) {
    output::say(&report.headline());
    for table in [Some(report.counts()), report.sums(), report.differences()].into_iter().flatten()
    {
        output::say("");
        output::fitted(&table.titles, &table.rows, &["KEY", "WHAT", "OURS", "THEIRS"]);
    }
    if let Some(remark) = report.remark() {
        output::say(&format!("\n{remark}"));
    }
    let unlisted = report.unlisted();
    if unlisted > 0 {
        output::complain(&format!(
            "{unlisted} further differences are not listed: --limit lists more, --differences-file writes all."
        ));
    }
}
