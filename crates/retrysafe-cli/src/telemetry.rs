//! Where do logs and metrics go?

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal as _;
use std::panic::PanicHookInfo;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use retrysafe_core::event::{self, Kind};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Log, LogFormat};
use crate::log_queue::{LogQueue, LogWriter};

/// The bounds of latency histograms, in seconds: those that OpenTelemetry advises, and finer ones
/// below, because a store answers in a fraction of a millisecond.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 30.0,
];

/// How often histograms are tidied, as their library demands.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// The log, which ends when this is dropped.
pub(crate) struct Logging {
    pub format: LogFormat,
    pub queue: LogQueue,
    _writer: LogWriter,
}

/// Starts logging.
///
/// # Errors
///
/// If the level is not a filter, or the log cannot be written.
pub(crate) fn start(log: &Log) -> Result<Logging, String> {
    let filter = EnvFilter::try_new(&log.level).map_err(|error| format!("log.level: {error}"))?;
    let is_terminal = std::io::stdout().is_terminal();
    let otherwise = if is_terminal { LogFormat::Human } else { LogFormat::Json };
    let format = log.format.unwrap_or(otherwise);
    let (queue, writer) =
        LogQueue::start(std::io::stdout()).map_err(|error| format!("the log's thread: {error}"))?;
    let lines = queue.clone();
    let events = tracing_subscriber::fmt().with_env_filter(filter);
    let events = events.with_writer(move || lines.clone());
    match format {
        LogFormat::Human => events.with_ansi(is_terminal && !wants_no_colour()).finish().try_init(),
        LogFormat::Json => events.json().flatten_event(true).finish().try_init(),
    }
    .map_err(|error| error.to_string())?;
    // A panic is written to standard error by whoever panics, and if nobody reads that, a worker
    // stops for ever. So it goes the way of all lines.
    std::panic::set_hook(Box::new(report_panic));
    Ok(Logging { format, queue, _writer: writer })
}

/// Whether somebody has asked all programs for plain text: https://no-color.org.
fn wants_no_colour() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

impl Drop for Logging {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // From here on a panic is shown as any other program shows it.
            drop(std::panic::take_hook());
        }
    }
}

fn report_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let place = panic.location().map(ToString::to_string);
    let backtrace = Backtrace::capture();
    let is_captured = backtrace.status() == BacktraceStatus::Captured;
    let backtrace = is_captured.then(|| backtrace.to_string());
    let what = panic.payload_as_str().unwrap_or("not a text");
    tracing::error!(thread = thread.name(), place, backtrace, "panic: {what}");
}

/// Starts counting.
///
/// # Errors
///
/// If something else counts already.
pub(crate) fn metrics() -> Result<PrometheusHandle, String> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)
        .and_then(|builder| builder.install_recorder())
        .map_err(|error| error.to_string())?;
    for metric in event::METRICS {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Kind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
        }
        // Those without labels are there from the start, so that an alert sees the first rise.
        if metric.labels.is_empty() {
            match metric.kind {
                Kind::Counter => metrics::counter!(metric.name).absolute(0),
                Kind::Gauge => metrics::gauge!(metric.name).set(0.0),
                Kind::Histogram => {}
            }
        }
    }
    metrics::gauge!(event::BUILD.name, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    // Whoever gets here has read its configuration.
    metrics::gauge!(event::RELOADED.name).set(1.0);
    Ok(handle)
}

/// Keeps the metrics tidy for as long as the process runs.
pub(crate) async fn tidy_metrics(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(METRICS_UPKEEP).await;
        metrics.run_upkeep();
    }
}
