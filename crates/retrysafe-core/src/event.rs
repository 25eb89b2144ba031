//! What do we report? Every metric and log event name stands here.
//!
//! Names are an interface: dashboards and alerts are built on them. No label ever holds a key, a
//! body or a credential; `route` is a label of the configuration, not the request's path.

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises.
    Counter,
    /// It rises and falls.
    Gauge,
    /// It is a distribution.
    Histogram,
}

/// A metric: its name, its behaviour, its labels and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, in Prometheus' manner.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

/// What a keyed request met, as the label `answer` of [`BEGIN`] and as the name of a log event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Met {
    /// A new record: it executes.
    Created,
    /// An answer from the record.
    Replay,
    /// Executed before, and the answer was not kept.
    NotReplayable,
    /// Somebody is executing it.
    InProgress,
    /// The key belongs to another request.
    KeyMisuse,
    /// The record was begun with another credential.
    CredentialChanged,
    /// A former attempt was released: it executes again.
    FailedRetry,
    /// Nobody knows whether it was executed.
    Unknown,
    /// The store failed: it does not execute.
    StoreError,
    /// The store failed, and the route lets it execute unprotected.
    Unprotected,
}

impl Met {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Created,
        Self::Replay,
        Self::NotReplayable,
        Self::InProgress,
        Self::KeyMisuse,
        Self::CredentialChanged,
        Self::FailedRetry,
        Self::Unknown,
        Self::StoreError,
        Self::Unprotected,
    ];

    /// Its name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Replay => "replay",
            Self::NotReplayable => "not_replayable",
            Self::InProgress => "in_progress",
            Self::KeyMisuse => "key_misuse",
            Self::CredentialChanged => "credential_changed",
            Self::FailedRetry => "failed_retry",
            Self::Unknown => "unknown",
            Self::StoreError => "store_error",
            Self::Unprotected => "unprotected",
        }
    }
}

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $constant:ident = $kind:ident $name:literal [$($label:literal),*];)*) => {
        $($(#[doc = $help])+ pub const $constant: Metric = Metric {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: concat!($($help),+),
        };)*

        /// Every metric there is.
        pub const METRICS: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    /// Keyed requests, by route and by what they met.
    BEGIN = Counter "retrysafe_begin_total" ["route", "answer"];
    /// Refusals sent, by route and code.
    REFUSALS = Counter "retrysafe_refusals_total" ["route", "code"];
    /// Executions settled, by route and standing.
    SETTLED = Counter "retrysafe_settled_total" ["route", "standing"];
    /// Settles that came after somebody else had decided.
    LATE = Counter "retrysafe_late_settles_total" ["route"];
    /// Late settles that say the opposite of what was decided. Look into each of them.
    CONTRADICTIONS = Counter "retrysafe_contradictions_total" ["route"];
    /// Failures of the store, by operation and kind.
    STORE_ERRORS = Counter "retrysafe_store_errors_total" ["operation", "kind"];
    /// Seconds the store took, by operation.
    STORE_SECONDS = Histogram "retrysafe_store_seconds" ["operation"];
    /// Seconds the handler or the upstream took, by route.
    EXECUTE_SECONDS = Histogram "retrysafe_execute_seconds" ["route"];
    /// Duplicates that are waiting for a running request.
    WAITING = Gauge "retrysafe_waiting" [];
    /// Executions under way.
    EXECUTING = Gauge "retrysafe_executing" [];
    /// Executions that go on although their callers were told to ask again.
    LATE_ANSWERS = Gauge "retrysafe_late_answers" [];
    /// Whether the store's breaker is open.
    BREAKER_OPEN = Gauge "retrysafe_breaker_open" [];
    /// Leases that ended without a word from their owner (zombies), now unknown.
    SWEPT = Counter "retrysafe_swept_total" [];
    /// Records of which nobody knows whether they were executed, in the whole store. Each waits for
    /// evidence or for a person.
    UNKNOWN = Gauge "retrysafe_unknown" [];
    /// How long the oldest unknown record has been unknown, in seconds; zero if there is none.
    UNKNOWN_OLDEST_SECONDS = Gauge "retrysafe_unknown_oldest_seconds" [];
    /// Records in the store, expired ones that were not deleted yet among them. PostgreSQL estimates.
    STORE_RECORDS = Gauge "retrysafe_store_records" [];
    /// Bytes that the store takes up: on the disk, in the database, in memory.
    STORE_BYTES = Gauge "retrysafe_store_bytes" [];
    /// How often a Redis or a PostgreSQL was found to be another server that may have lost acknowledged writes.
    STORE_CHANGED = Counter "retrysafe_store_changed_total" [];
    /// Until when such a server grants nothing new, in seconds since 1970; it may be in the past.
    STORE_HELD_UNTIL = Gauge "retrysafe_store_held_until_seconds" [];
    /// Looks for the copy of an answer in the Redis of a tiered store, by what came of them: served,
    /// absent, refused (not ours, outdated, or damaged) or failed.
    COPIES = Counter "retrysafe_copies_total" ["look"];
    /// Expired records deleted.
    REAPED = Counter "retrysafe_reaped_total" [];
    /// Records a sweep could not read or write.
    SWEEP_FAILURES = Counter "retrysafe_sweep_failures_total" [];
    /// Rounds of upkeep that panicked, by task. The next round came at its time.
    UPKEEP_PANICS = Counter "retrysafe_upkeep_panics_total" ["task"];
    /// Unknown records handed to the reconciler.
    RECONCILE_SCHEDULED = Counter "retrysafe_reconcile_scheduled_total" [];
    /// Unknown records that a person had looked up out of turn.
    RECONCILE_OUT_OF_TURN = Counter "retrysafe_reconcile_out_of_turn_total" [];
    /// Unknown records decided, by standing and judge.
    RECONCILE_RESOLVED = Counter "retrysafe_reconcile_resolved_total" ["standing", "judge"];
    /// Lookups that failed or learned nothing final.
    RECONCILE_FAILED = Counter "retrysafe_reconcile_failed_total" [];
    /// Lookups of effects that are unknown, by kind and by what was found: delivered, declined, no_effect, not_found, pending or
    /// inconclusive.
    EFFECT_LOOKUPS = Counter "retrysafe_effect_lookups_total" ["kind", "found"];
    /// Effects whose schedule of lookups is used up, by kind: a person must decide.
    EFFECTS_DEAD_LETTERED = Gauge "retrysafe_effects_dead_lettered" ["kind"];
    /// Unknown records whose schedule of lookups is used up: a person must decide.
    DEAD_LETTERED = Gauge "retrysafe_dead_lettered" [];
    /// Seconds that a phase of a flow took, by flow and phase.
    PHASE_SECONDS = Histogram "retrysafe_phase_seconds" ["flow", "phase"];
    /// Flows that went on from a recovery point, by flow.
    FLOW_RESUMES = Counter "retrysafe_flow_resumes_total" ["flow"];
    /// Flows that could go on, and whose version no code of this process is for.
    FLOWS_HELD = Gauge "retrysafe_flows_held" [];
    /// Deliveries of effects, by kind and by how they ended.
    EFFECT_DELIVERIES = Counter "retrysafe_effect_deliveries_total" ["kind", "end"];
    /// Whether the breaker of a kind of effects is open: its receiver is left alone for a while.
    EFFECT_BREAKER_OPEN = Gauge "retrysafe_effect_breaker_open" ["kind"];
    /// Effects that are not over, by kind and state.
    EFFECTS = Gauge "retrysafe_effects" ["kind", "state"];
    /// How long the oldest effect that is ready has been due, in seconds, by kind.
    EFFECT_OLDEST_READY_SECONDS = Gauge "retrysafe_effect_oldest_ready_seconds" ["kind"];
    /// Whether a kind of effects is paused: somebody has said that none of it is to be delivered for now.
    EFFECT_PAUSED = Gauge "retrysafe_effect_paused" ["kind"];
    /// Effects of kinds that a worker finds in its database and is not configured for, by kind.
    EFFECTS_NOT_CONFIGURED = Gauge "retrysafe_effects_not_configured" ["kind"];
    /// Webhooks that were verified, by provider and by how they stood then.
    WEBHOOKS_RECEIVED = Counter "retrysafe_webhooks_received_total" ["provider", "result"];
    /// Webhooks that were not taken, by provider and reason.
    WEBHOOKS_REFUSED = Counter "retrysafe_webhooks_refused_total" ["provider", "reason"];
    /// Webhooks that have come to their end, by provider and state. Look into each that contradicts.
    WEBHOOKS_ENDED = Counter "retrysafe_webhooks_ended_total" ["provider", "state"];
    /// Webhooks that wait for what they name, by provider.
    INBOX_WAITING = Gauge "retrysafe_inbox_waiting" ["provider"];
    /// How long the oldest waiting webhook has waited, in seconds, by provider; zero if none waits.
    INBOX_OLDEST_SECONDS = Gauge "retrysafe_inbox_oldest_seconds" ["provider"];
    /// Lines of two ledgers that were compared, by comparison and side. In a file for a collector of text files.
    LEDGER_LINES = Gauge "retrysafe_ledger_lines" ["ledger", "side"];
    /// Differences between two ledgers, by comparison and kind: missing here, missing there, or different. In the same file.
    LEDGER_DIFFERENCES = Gauge "retrysafe_ledger_differences" ["ledger", "kind"];
    /// When two ledgers were compared last, to their ends, in seconds since 1970. In the same file.
    LEDGER_COMPARED = Gauge "retrysafe_ledger_compared_timestamp_seconds" ["ledger"];
    /// Observed requests that would have been treated otherwise, by route and finding.
    OBSERVED = Counter "retrysafe_observed_total" ["route", "finding"];
    /// Duplicates since the start (replayed, in progress, unknown, or executed with an answer that was not kept), of the
    /// scopes that have the most, by the first digits of the scope's digest.
    SCOPE_DUPLICATES = Gauge "retrysafe_scope_duplicates" ["scope"];
    /// Keys since the start that were used for another request or with another credential, of the scopes that have the most.
    SCOPE_MISUSES = Gauge "retrysafe_scope_misuses" ["scope"];
    /// Seconds from a request's head to the head of its answer, under the name that OpenTelemetry's conventions give it.
    HTTP_SECONDS = Histogram "http_server_request_duration_seconds" ["http_request_method", "http_response_status_code", "http_route", "url_scheme"];
    /// Spans that a collector has taken.
    SPANS_EXPORTED = Counter "retrysafe_spans_exported_total" [];
    /// Spans that were dropped, because the collector is away, refuses them, or is too slow.
    SPANS_DROPPED = Counter "retrysafe_spans_dropped_total" [];
    /// Requests that the gateway answered, by route and class of the status.
    REQUESTS = Counter "retrysafe_requests_total" ["route", "class"];
    /// Requests that the gateway refused at the door, by code.
    DOOR_REFUSALS = Counter "retrysafe_door_refusals_total" ["code"];
    /// Replays that the gateway gave without parsing the request, because its bytes were those of one that was replayed a moment ago. They
    /// count in `retrysafe_begin_total` as well.
    REPLAYS_BY_BYTES = Counter "retrysafe_replays_by_bytes_total" [];
    /// Connections of callers that are open.
    CONNECTIONS = Gauge "retrysafe_connections" [];
    /// Connections of callers that were closed at once, because file descriptors are short.
    CONNECTIONS_REFUSED = Counter "retrysafe_connections_refused_total" [];
    /// Bytes of bodies and answers that guarded requests hold in memory.
    HELD_BYTES = Gauge "retrysafe_held_bytes" [];
    /// Lines that the log has lost, because it is read too slowly or cannot be written.
    LOG_LINES_DROPPED = Counter "retrysafe_log_lines_dropped_total" [];
    /// Sends to the upstream that failed, by how far they got.
    UPSTREAM_FAILURES = Counter "retrysafe_upstream_failures_total" ["reached"];
    /// Whether an upstream is healthy, as far as the checks of `[health]` know: one or zero.
    UPSTREAM_HEALTHY = Gauge "retrysafe_upstream_healthy" ["upstream"];
    /// Actions of operators, by verb and result.
    ADMIN_ACTIONS = Counter "retrysafe_admin_actions_total" ["verb", "result"];
    /// Whether the last reload of the configuration was taken.
    RELOADED = Gauge "retrysafe_config_last_reload_successful" [];
    /// Always one; the labels say what is running.
    BUILD = Gauge "retrysafe_build_info" ["version"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let mut names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            let is_of_conventions = metric.name.starts_with("http_server_");
            assert!(is_of_conventions || metric.name.starts_with("retrysafe_"), "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter);
            assert!(metric.kind != Kind::Histogram || metric.name.ends_with("_seconds"));
            assert!(!metric.help.is_empty());
        }
    }

    #[test]
    fn everything_an_operator_asked_for_is_reported() {
        // Reserve created, replay, in progress, misuse, failed retry, unknown; store errors;
        // zombies; pruned; reconcile scheduled, resolved, failed.
        for answer in ["created", "replay", "in_progress", "key_misuse", "failed_retry", "unknown"]
        {
            assert!(Met::ALL.iter().any(|met| met.name() == answer), "{answer}");
        }
        for metric in
            [STORE_ERRORS, SWEPT, REAPED, RECONCILE_SCHEDULED, RECONCILE_RESOLVED, RECONCILE_FAILED]
        {
            assert!(METRICS.contains(&metric));
        }
    }
}
