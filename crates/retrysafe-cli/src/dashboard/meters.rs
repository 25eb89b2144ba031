//! What do the metrics say, as far as people look at them?
//!
//! The dashboard reads the same text as Prometheus does, so that the two cannot disagree.

use std::collections::BTreeMap;

use retrysafe_core::event;
use serde::Serialize;

/// Samples of one look: a metric's name and the text of its labels, with its value.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Meters(BTreeMap<String, Vec<(String, f64)>>);

/// The numbers of the overview.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Numbers {
    pub requests: f64,
    pub executed: f64,
    pub replayed: f64,
    pub in_progress_told: f64,
    pub misuse: f64,
    pub unknown_told: f64,
    pub refused: f64,
    pub store_errors: f64,
    pub executing: f64,
    pub waiting: f64,
    pub late_answers: f64,
    pub unknown: f64,
    pub unknown_oldest_seconds: f64,
    pub dead_lettered: f64,
    pub records: Option<f64>,
    pub store_bytes: Option<f64>,
    pub held_bytes: f64,
    pub connections: f64,
    pub reaped: f64,
    pub upstream_failures: f64,
    pub breaker_open: f64,
}

/// The codes of refusals that have a number of their own, so that no answer is counted twice.
const COUNTED_BY_THEMSELVES: [&str; 4] =
    ["request_in_progress", "outcome_unknown", "idempotency_key_reused", "credential_changed"];

/// How many of something took at most so many seconds: bounds, and how many were within each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Buckets(Vec<(f64, f64)>);

impl Buckets {
    /// The bound within which this share of all since an earlier look stayed; infinite past the last bound, none if there were none.
    pub(super) fn within(&self, earlier: Option<&Self>, share: f64) -> Option<f64> {
        let before = |bound: f64| {
            let found = earlier.and_then(|it| it.0.iter().find(|(other, _)| *other == bound));
            found.map_or(0.0, |(_, count)| *count)
        };
        let since: Vec<(f64, f64)> =
            self.0.iter().map(|(bound, count)| (*bound, count - before(*bound))).collect();
        let all = since.last().map_or(0.0, |(_, count)| *count);
        if all <= 0.0 {
            return None;
        }
        since.iter().find(|(_, count)| *count >= all * share).map(|(bound, _)| *bound)
    }
}

impl Numbers {
    /// What only rises, by name.
    pub(super) fn counts(&self) -> [(&'static str, f64); 9] {
        [
            ("requests", self.requests),
            ("executed", self.executed),
            ("replayed", self.replayed),
            ("in_progress_told", self.in_progress_told),
            ("unknown_told", self.unknown_told),
            ("misuse", self.misuse),
            ("refused", self.refused),
            ("upstream_failures", self.upstream_failures),
            ("store_errors", self.store_errors),
        ]
    }
}

impl Meters {
    /// Reads the text format. A line that is no sample is passed over.
    pub(super) fn read(text: &str) -> Self {
        let mut meters: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.strip_suffix('}').unwrap_or(labels);
            meters.entry(name.to_owned()).or_default().push((labels.to_owned(), value));
        }
        Self(meters)
    }

    fn sum(&self, name: &str) -> f64 {
        self.sum_where(name, "")
    }

    /// The sum over the series that have this label.
    fn sum_where(&self, name: &str, label: &str) -> f64 {
        let series = self.0.get(name).into_iter().flatten();
        series
            .filter(|(labels, _)| label.is_empty() || labels.split(',').any(|one| one == label))
            .fold(0.0, |sum, (_, value)| sum + value)
    }

    fn gauge(&self, name: &str) -> Option<f64> {
        self.0.get(name).map(|_| self.sum(name))
    }

    /// A histogram, over all its series.
    fn buckets(&self, name: &str) -> Buckets {
        let mut counts: Vec<(f64, f64)> = Vec::new();
        for (labels, count) in self.0.get(&format!("{name}_bucket")).into_iter().flatten() {
            // The bound is the last label.
            let bound = labels.rsplit_once("le=\"").and_then(|(_, bound)| bound.strip_suffix('"'));
            let Some(bound) = bound.and_then(|bound| bound.parse::<f64>().ok()) else { continue };
            match counts.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, sum)) => *sum += count,
                None => counts.push((bound, *count)),
            }
        }
        counts.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        Buckets(counts)
    }

    /// How long executions took, of all routes.
    pub(super) fn executions(&self) -> Buckets {
        self.buckets(event::EXECUTE_SECONDS.name)
    }

    /// How long the store's operations took.
    pub(super) fn operations(&self) -> Buckets {
        self.buckets(event::STORE_SECONDS.name)
    }

    /// What the overview shows.
    pub(super) fn numbers(&self) -> Numbers {
        let met = |answer: &str| self.sum_where(event::BEGIN.name, &format!("answer=\"{answer}\""));
        let told = |code: &str| self.sum_where(event::REFUSALS.name, &format!("code=\"{code}\""));
        let counted_above = COUNTED_BY_THEMSELVES.iter().fold(0.0, |sum, code| sum + told(code));
        Numbers {
            requests: self.sum(event::REQUESTS.name),
            executed: met("created") + met("failed_retry"),
            replayed: met("replay"),
            in_progress_told: told("request_in_progress"),
            misuse: met("key_misuse") + met("credential_changed"),
            unknown_told: told("outcome_unknown"),
            refused: self.sum(event::REFUSALS.name) + self.sum(event::DOOR_REFUSALS.name)
                - counted_above,
            store_errors: self.sum(event::STORE_ERRORS.name),
            executing: self.sum(event::EXECUTING.name),
            waiting: self.sum(event::WAITING.name),
            late_answers: self.sum(event::LATE_ANSWERS.name),
            unknown: self.sum(event::UNKNOWN.name),
            unknown_oldest_seconds: self.sum(event::UNKNOWN_OLDEST_SECONDS.name),
            dead_lettered: self.sum(event::DEAD_LETTERED.name),
            records: self.gauge(event::STORE_RECORDS.name),
            store_bytes: self.gauge(event::STORE_BYTES.name),
            held_bytes: self.sum(event::HELD_BYTES.name),
            connections: self.sum(event::CONNECTIONS.name),
            reaped: self.sum(event::REAPED.name),
            upstream_failures: self.sum(event::UPSTREAM_FAILURES.name),
            breaker_open: self.sum(event::BREAKER_OPEN.name),
        }
    }
}

/// A length of time as people say it.
pub(super) fn seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3_600 if whole.is_multiple_of(60) => format!("{} min", whole / 60),
        60..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

/// A number of bytes as people say it.
pub(super) fn bytes(bytes: f64) -> String {
    let units = ["bytes", "kB", "MB", "GB"];
    let mut left = bytes;
    for unit in units {
        if left < 1_000.0 {
            return if unit == "bytes" {
                format!("{left:.0} {unit}")
            } else {
                format!("{left:.1} {unit}")
            };
        }
        left /= 1_000.0;
    }
    format!("{left:.1} TB")
}

/// A count with its thousands apart.
pub(super) fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut shown = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            shown.push('\u{202f}');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP retrysafe_begin_total x\n\
        retrysafe_begin_total{route=\"/pay, {x}\",answer=\"created\"} 3\n\
        retrysafe_begin_total{route=\"/b\",answer=\"created\"} 4\n\
        retrysafe_begin_total{route=\"/b\",answer=\"replay\"} 5\n\
        retrysafe_unknown 2\n\
        retrysafe_store_seconds_bucket{operation=\"insert\",le=\"0.001\"} 40\n\
        retrysafe_store_seconds_bucket{operation=\"insert\",le=\"0.25\"} 49\n\
        retrysafe_store_seconds_bucket{operation=\"insert\",le=\"+Inf\"} 49\n\
        retrysafe_store_seconds_bucket{operation=\"swap\",le=\"0.001\"} 50\n\
        retrysafe_store_seconds_bucket{operation=\"swap\",le=\"0.25\"} 50\n\
        retrysafe_store_seconds_bucket{operation=\"swap\",le=\"+Inf\"} 51\n\
        nonsense\n";

    #[test]
    fn what_prometheus_reads_is_read() {
        let numbers = Meters::read(TEXT).numbers();
        assert_eq!((numbers.executed, numbers.replayed, numbers.unknown), (7.0, 5.0, 2.0));
        assert_eq!(numbers.records, None);
    }

    #[test]
    fn an_answer_is_counted_in_one_row() {
        let text = "retrysafe_begin_total{route=\"/b\",answer=\"unknown\"} 1\n\
            retrysafe_begin_total{route=\"/b\",answer=\"key_misuse\"} 1\n\
            retrysafe_refusals_total{route=\"/b\",code=\"outcome_unknown\"} 2\n\
            retrysafe_refusals_total{route=\"/b\",code=\"request_in_progress\"} 3\n\
            retrysafe_refusals_total{route=\"/b\",code=\"idempotency_key_reused\"} 1\n\
            retrysafe_refusals_total{route=\"/b\",code=\"overloaded\"} 4\n\
            retrysafe_door_refusals_total{code=\"scope_unsafe\"} 5\n";
        let numbers = Meters::read(text).numbers();
        assert_eq!((numbers.unknown_told, numbers.in_progress_told), (2.0, 3.0));
        assert_eq!((numbers.misuse, numbers.refused), (1.0, 9.0));
    }

    #[test]
    fn how_long_it_took_is_told_by_the_bounds_of_a_histogram() {
        let meters = Meters::read(TEXT);
        let took = meters.operations();
        assert_eq!(took.within(None, 0.5), Some(0.001));
        assert_eq!(took.within(None, 0.99), Some(0.25));
        assert_eq!(took.within(None, 1.0), Some(f64::INFINITY));
        assert_eq!(took.within(Some(&took), 0.5), None, "nothing since then");
        let earlier = Buckets(vec![(0.001, 90.0), (0.25, 90.0), (f64::INFINITY, 90.0)]);
        assert_eq!(took.within(Some(&earlier), 0.5), Some(0.25));
        assert_eq!(meters.executions().within(None, 0.5), None);
    }

    #[test]
    fn lengths_sizes_and_counts_are_short() {
        assert_eq!(
            [59.9, 60.0, 61.0, 7_260.0, 90_000.0].map(seconds).join(" | "),
            "59 s | 1 min | 1 min 1 s | 2 h 1 min | 1 d 1 h"
        );
        assert_eq!(
            [bytes(999.0), bytes(1_500.0), bytes(2e9)].join(" | "),
            "999 bytes | 1.5 kB | 2.0 GB"
        );
        assert_eq!(count(1_234_567.0), "1\u{202f}234\u{202f}567");
    }
}
