//! Where do logs and metrics go?

use std::io::IsTerminal as _;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use retrysafe_core::event::{self, Kind};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Log, LogFormat};

/// The bounds of latency histograms, in seconds: those that OpenTelemetry advises, and finer ones
/// below, because a store answers in a fraction of a millisecond.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 30.0,
];

/// Starts logging, and says in which form.
///
/// # Errors
///
/// If the level is not a filter.
pub(crate) fn start(log: &Log) -> Result<LogFormat, String> {
    let filter = EnvFilter::try_new(&log.level).map_err(|error| format!("log.level: {error}"))?;
    let is_terminal = std::io::stdout().is_terminal();
    let format = log.format.unwrap_or(match is_terminal {
        true => LogFormat::Human,
        false => LogFormat::Json,
    });
    let lines = tracing_subscriber::fmt().with_env_filter(filter);
    let lines = match format {
        LogFormat::Human => lines.with_ansi(is_terminal).finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    lines.map_err(|error| error.to_string())?;
    Ok(format)
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
    Ok(handle)
}
