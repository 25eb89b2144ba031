//! How long did requests take? (`http.server.request.duration` of OpenTelemetry's conventions)
//!
//! Each route has one histogram for each method, status and scheme that it has met. The conventions bound methods; statuses are
//! the upstream's to choose, so their number is bounded here.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Method, StatusCode};
use metrics::{Histogram, Label};
use retrysafe_core::event;

/// How many histograms one route has at most. Further ones count as the status `_OTHER`.
const SERIES_MAX: usize = 64;

/// What the conventions call a method or a status that is not told apart.
const OTHER: &str = "_OTHER";

/// What the labels take from a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskedLabels {
    method: &'static str,
    is_tls: bool,
}

impl AskedLabels {
    pub(super) fn new(method: &Method, is_tls: bool) -> Self {
        const KNOWN: [&str; 10] = [
            "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "QUERY",
        ];
        let known = KNOWN.into_iter().find(|known| *known == method.as_str());
        Self { method: known.unwrap_or(OTHER), is_tls }
    }

    /// Whether the connection was encrypted.
    pub(super) fn is_tls(self) -> bool {
        self.is_tls
    }
}

/// The histograms of one route.
#[derive(Debug, Default)]
pub(super) struct RouteDurations {
    /// None for what no rule names.
    route: Option<Arc<str>>,
    series: ArcSwap<Vec<DurationSeries>>,
    /// Held while one is added, so that none is lost.
    adding: Mutex<()>,
}

#[derive(Clone, Debug)]
struct DurationSeries {
    asked: AskedLabels,
    /// None for all statuses past the bound.
    status: Option<StatusCode>,
    seconds: Histogram,
}

impl RouteDurations {
    pub(super) fn new(route: Option<Arc<str>>) -> Self {
        Self { route, ..Self::default() }
    }

    /// The label of the route, if a rule of the configuration names it.
    pub(super) fn route(&self) -> Option<&str> {
        self.route.as_deref()
    }

    /// A request was answered so, after so long.
    pub(super) fn record(&self, asked: AskedLabels, status: StatusCode, took: Duration) {
        let series = self.series.load();
        match find(&series, asked, Some(status)) {
            Some(found) => found.seconds.record(took),
            None => self.added(asked, status).record(took),
        }
    }

    #[cold]
    fn added(&self, asked: AskedLabels, status: StatusCode) -> Histogram {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let series = self.series.load();
        // Somebody else may have added it; and past the bound there is one for the rest of each method.
        let status = (series.len() < SERIES_MAX).then_some(status);
        if let Some(found) = find(&series, asked, status) {
            return found.seconds.clone();
        }
        let seconds = self.histogram(asked, status);
        let mut more = series.to_vec();
        more.push(DurationSeries { asked, status, seconds: seconds.clone() });
        self.series.store(Arc::new(more));
        seconds
    }

    fn histogram(&self, asked: AskedLabels, status: Option<StatusCode>) -> Histogram {
        let status = status.map_or(OTHER.to_owned(), |status| status.as_str().to_owned());
        let scheme = if asked.is_tls { "https" } else { "http" };
        let mut labels = vec![
            Label::from_static_parts("http_request_method", asked.method),
            Label::new("http_response_status_code", status),
            Label::from_static_parts("url_scheme", scheme),
        ];
        labels.extend(self.route.clone().map(|route| Label::new("http_route", route)));
        metrics::histogram!(event::HTTP_SECONDS.name, labels)
    }
}

fn find(
    series: &[DurationSeries],
    asked: AskedLabels,
    status: Option<StatusCode>,
) -> Option<&DurationSeries> {
    series.iter().find(|one| one.status == status && one.asked == asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_and_statuses_are_bounded() {
        let durations = RouteDurations::new(Some("/pay".into()));
        for name in ["GET", "POST", "BREW", "LOCK"] {
            let asked = AskedLabels::new(&Method::from_bytes(name.as_bytes()).unwrap(), false);
            for status in 100..600 {
                let status = StatusCode::from_u16(status).unwrap();
                durations.record(asked, status, Duration::from_millis(1));
                durations.record(asked, status, Duration::from_millis(1));
            }
        }
        let series = durations.series.load();
        // As many as there may be, and one for the rest of each of three methods: two are one.
        assert_eq!(series.len(), SERIES_MAX + 3);
        assert_eq!(series.iter().filter(|one| one.status.is_none()).count(), 3);
    }
}
