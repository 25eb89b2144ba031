//! How is it told, with the clause it rests on and how to mend it?

use super::request::Template;
use crate::output::counted;

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As it should be.
    Pass,
    /// The promise is broken.
    Fault,
    /// The promise holds, but clients will suffer.
    Weak,
    /// Worth knowing.
    Note,
    /// It could not be found out.
    Undecided,
}

/// What one case found.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) id: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) seen: String,
}

/// Everything that was found about one operation.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    operation: String,
    findings: Vec<Finding>,
    dialect: &'static str,
}

/// What a case is about: id, title, the clause it rests on, how to mend a fault.
struct About(&'static str, &'static str, &'static str, &'static str);

/// What is seen of an API whose duplicates wait for the first one's answer.
pub(crate) const WAITED: &str = "duplicates wait, and get the answer";

/// The fault of an API that does not heed the key.
const RUNS_AGAIN: &str = "runs_again";

/// What may be wrong whether a key is heeded or not.
const OF_THEIR_OWN: [&str; 3] = ["isolation", "hangs", "stuck"];

const DRAFT: &str = "draft-ietf-httpapi-idempotency-key-header-07";

const CASES: &[About] = &[
    About(
        "effects",
        "executions can be told apart",
        "",
        "Give the listing of what the operation creates with --list.",
    ),
    About(
        "replay",
        "a retry is answered",
        "§2.6",
        "Store the answer durably before it is sent, and answer retries from it.",
    ),
    About(
        RUNS_AGAIN,
        "a retry does not execute",
        "§2.6",
        "Reserve the key atomically before executing; answer retries from the stored answer.",
    ),
    About(
        "replay_status",
        "a retry gets the same status",
        "§2.6",
        "Store the status with the answer, and replay it.",
    ),
    About(
        "replay_body",
        "a retry gets the same bytes",
        "§2.6",
        "Store the body as bytes; never re-encode it as text or JSON.",
    ),
    About(
        "replay_headers",
        "a retry gets the same headers",
        "§2.6",
        "Store headers as a list of pairs; leave out only those of one delivery.",
    ),
    About(
        "marker",
        "a replay says that it is one",
        "",
        "Add a header such as Idempotent-Replayed: true to replays only.",
    ),
    About(
        "expiry",
        "callers know how long a key is remembered",
        "§2.3",
        "Publish the expiry, or send it with each keyed answer.",
    ),
    About(
        "race",
        "duplicates at once execute once",
        "§2.6",
        "Insert the key with a unique constraint before executing; check-then-act loses this race.",
    ),
    About(
        "lease",
        "a slow request is not overtaken",
        "§2.6",
        "An ended lease must not let the next caller execute: renew it, and treat a silent owner as unknown.",
    ),
    About(
        "in_flight_success",
        "a duplicate in flight is not told success",
        "§2.6",
        "Answer 409 with Retry-After, or wait for the first request's answer.",
    ),
    About(
        "in_flight_status",
        "a duplicate in flight gets 409",
        "§2.7",
        "Answer 409; 423, 425 and 429 mean other things, and 5xx invites clients to give up.",
    ),
    About(
        "retry_after",
        "a duplicate learns when to come back",
        "RFC 9110 §10.2.3",
        "Send Retry-After with whole seconds.",
    ),
    About("hangs", "no duplicate waits for ever", "", "Bound the wait, then answer 409."),
    About(
        "stuck",
        "no key is stuck",
        "",
        "Give the reservation a lease, and release or settle it on every path.",
    ),
    About(
        "mismatch",
        "a key names one request",
        "§2.2",
        "Keep a fingerprint of method, path and body with the key; answer 422 when it differs.",
    ),
    About(
        "mismatch_in_flight",
        "a key names one request, also while it runs",
        "§2.7",
        "Compare the fingerprint before the state.",
    ),
    About(
        "problem",
        "a refusal can be understood by a program",
        "§2.7, RFC 9457",
        "Answer with application/problem+json and a stable code.",
    ),
    About(
        "missing_key",
        "a missing key is refused",
        "§2.7",
        "Answer 400 where the key is required.",
    ),
    About(
        "malformed_key",
        "a malformed key is refused",
        "§2.1, RFC 9651",
        "Answer 400 for empty, overlong and repeated headers: ignoring them runs unprotected.",
    ),
    About(
        "quoted_form",
        "quoted and bare name the same key",
        "§2.1, RFC 9651",
        "Unquote a structured-field String before using it as a key.",
    ),
    About("key_length", "long keys work", "", "Accept 255 characters."),
    About(
        "host_name",
        "a machine has one name",
        "",
        "Compare host names without their port, and take localhost, 127.0.0.1 and [::1] for one.",
    ),
    About(
        "form_boundary",
        "a form may be sent under another boundary",
        "",
        "Compare the parts of a multipart/form-data body, not its boundary: every client draws a new one for a retry.",
    ),
    About(
        "json_order",
        "JSON may be re-serialised",
        "RFC 8785",
        "Take the fingerprint of a canonical form.",
    ),
    About(
        "json_numbers",
        "5 and 5.0 are one number",
        "RFC 8785",
        "Take the fingerprint of a canonical form.",
    ),
    About(
        "isolation",
        "callers do not see each other",
        "§5",
        "Make the caller's identity a part of the stored key.",
    ),
    About(
        "other_route",
        "a key is bound to its operation",
        "§2.4",
        "Make the path a part of the fingerprint, and protect every operation.",
    ),
    About(
        "other_method",
        "a key is bound to its method",
        "§2.4",
        "Make the method a part of the fingerprint.",
    ),
    About(
        "after_client_error",
        "a refused request is not stuck",
        "§2.6",
        "Settle the key on every path that answers.",
    ),
    About(
        "after_server_error",
        "a failed request can be retried",
        "§2.6",
        "Release the key when nothing was executed, or hold it as unknown; do not pin a passing failure.",
    ),
    About(
        "refreshed_credential",
        "a caller whose token was refreshed is the same caller",
        "§5",
        "Make the caller's stable identity (its account, the subject of its token) a part of the stored key, not its token.",
    ),
    About(
        "second_node",
        "a retry at another node is answered",
        "§2.6",
        "Keep keys where all nodes see them.",
    ),
    About(
        "second_node_race",
        "duplicates at two nodes at once execute once",
        "§2.6",
        "Insert the key with a unique constraint in the store that all nodes share, before executing.",
    ),
    About(
        "ttl",
        "a key is remembered for as long as it is said to be",
        "§2.3",
        "Count the time from the end of the execution, and keep the answer until it is over.",
    ),
    About(
        "restart",
        "a retry after a restart is answered",
        "§2.6",
        "Keep keys and answers on disk, flushed before the answer is sent.",
    ),
    About(
        "restart_in_flight",
        "a request that meets a restart does not run twice",
        "§2.6",
        "Reserve the key durably before executing, and hold a reservation that nobody owns as unknown.",
    ),
    About(
        "disconnect",
        "work goes on when its caller hangs up",
        "",
        "Execute and settle in a task that the connection does not own.",
    ),
];

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fault => "FAULT",
            Self::Weak => "weak",
            Self::Note => "note",
            Self::Undecided => "undecided",
        }
    }
}

impl Finding {
    pub(crate) fn new(id: &'static str, verdict: Verdict, seen: String) -> Self {
        Self { id, verdict, seen }
    }

    pub(crate) fn undecided(id: &'static str, seen: &str) -> Self {
        Self::new(id, Verdict::Undecided, seen.into())
    }

    fn about(&self) -> &'static About {
        const NOTHING: About = About("", "", "", "");
        CASES.iter().find(|about| about.0 == self.id).unwrap_or(&NOTHING)
    }

    fn clause(&self) -> String {
        match self.about().2 {
            "" => "good practice".into(),
            clause if clause.starts_with('§') => format!("{DRAFT} {clause}"),
            clause => clause.into(),
        }
    }
}

impl Report {
    pub(crate) fn new(template: &Template) -> Self {
        Self {
            operation: format!("{} {}", template.method, template.url),
            findings: Vec::new(),
            dialect: "none",
        }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub(crate) fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
    }

    pub(crate) fn has_fault(&self) -> bool {
        self.count(Verdict::Fault) > 0
    }

    /// Whether a duplicate of a running request gets that request's answer, as far as the cases so far have shown.
    pub(crate) fn shows_that_duplicates_wait(&self) -> bool {
        self.findings.iter().any(|finding| finding.id == "retry_after" && finding.seen == WAITED)
    }

    /// Names the dialect that the answers speak.
    pub(crate) fn conclude(&mut self) {
        let seen = |id: &str, verdict: Verdict| {
            self.findings
                .iter()
                .find(|finding| finding.id == id && finding.verdict == verdict)
                .map(|finding| finding.seen.as_str())
        };
        let protects = seen("replay", Verdict::Pass).is_some();
        let ran_again = seen(RUNS_AGAIN, Verdict::Fault).is_some();
        let is_undecided = seen("replay", Verdict::Undecided).is_some();
        let mismatch = seen("mismatch", Verdict::Pass).unwrap_or_default();
        let waits = self.shows_that_duplicates_wait();
        let code = mismatch.rsplit(' ').next().unwrap_or_default();
        self.dialect = match (protects, code, waits) {
            (false, _, _) => "none",
            (true, "422", false) => "ietf",
            (true, "422", true) => "ietf, duplicates wait",
            (true, "400", false) => "stripe",
            (true, "400", true) => "stripe, duplicates wait",
            (true, "409", false) => "conflict",
            (true, "409", true) => "conflict, duplicates wait",
            (true, _, _) => "of its own",
        };
        if ran_again {
            self.take_passes_back("the key is not heeded, so this shows nothing");
            self.name_consequences();
        } else if is_undecided {
            self.take_passes_back(
                "whether the key is heeded cannot be told, so this shows nothing",
            );
        }
    }

    /// What an API without protection does right, it does by accident: two callers are two executions there, and so is a retry.
    fn take_passes_back(&mut self, why: &str) {
        for finding in self.findings.iter_mut().filter(|finding| finding.verdict == Verdict::Pass) {
            finding.verdict = Verdict::Undecided;
            finding.seen = format!("{why} ({})", finding.seen);
        }
    }

    /// An API that does not heed the key has one fault. What else is wrong with its keys follows from that, and is told with it.
    fn name_consequences(&mut self) {
        let mut follows = Vec::new();
        for finding in &mut self.findings {
            let is_wrong = matches!(finding.verdict, Verdict::Fault | Verdict::Weak);
            if is_wrong && finding.id != RUNS_AGAIN && !OF_THEIR_OWN.contains(&finding.id) {
                follows.push(finding.id);
                finding.verdict = Verdict::Undecided;
                finding.seen = format!("this follows from {RUNS_AGAIN} ({})", finding.seen);
            }
        }
        let cause = self.findings.iter_mut().find(|finding| finding.id == RUNS_AGAIN);
        if let (Some(cause), false) = (cause, follows.is_empty()) {
            cause.seen.push_str(&format!("; from this follow: {}", follows.join(", ")));
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }

    fn summary(&self) -> String {
        format!(
            "{}, {} weak, {} passed, {} undecided; dialect: {}",
            counted(self.count(Verdict::Fault), "fault", "faults"),
            self.count(Verdict::Weak),
            self.count(Verdict::Pass),
            self.count(Verdict::Undecided),
            self.dialect
        )
    }

    /// For people at a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("\n{}\n\n", self.operation);
        for finding in &self.findings {
            let About(id, title, _, fix) = finding.about();
            text.push_str(&format!(
                "{:>9}  {id:<20} {title}\n{:>32}{}\n",
                finding.verdict.name(),
                "",
                finding.seen
            ));
            if matches!(finding.verdict, Verdict::Fault | Verdict::Weak) {
                text.push_str(&format!("{:>32}{}\n{:>32}Mend: {fix}\n", "", finding.clause(), ""));
            }
        }
        text.push_str(&format!("\n{}\n", self.summary()));
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        let findings: Vec<_> = self
            .findings
            .iter()
            .map(|finding| {
                serde_json::json!({
                    "id": finding.id,
                    "verdict": finding.verdict.name().to_lowercase(),
                    "title": finding.about().1,
                    "seen": finding.seen,
                    "clause": finding.clause(),
                    "mend": finding.about().3,
                })
            })
            .collect();
        let report = serde_json::json!({
            "operation": self.operation,
            "dialect": self.dialect,
            "faults": self.count(Verdict::Fault),
            "weak": self.count(Verdict::Weak),
            "passed": self.count(Verdict::Pass),
            "undecided": self.count(Verdict::Undecided),
            "findings": findings,
        });
        serde_json::to_string_pretty(&report).unwrap_or_default()
    }

    /// For a page.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "# Idempotency-Key of `{}`\n\n{}\n\n| verdict | case | seen | clause |\n| --- | --- | --- | --- |\n",
            self.operation,
            self.summary()
        );
        for finding in &self.findings {
            text.push_str(&format!(
                "| {} | {} | {} | {} |\n",
                finding.verdict.name(),
                finding.about().1,
                finding.seen.replace('|', "\\|"),
                finding.clause()
            ));
        }
        let mends: Vec<_> = self
            .findings
            .iter()
            .filter(|finding| matches!(finding.verdict, Verdict::Fault | Verdict::Weak))
            .map(|finding| format!("- **{}**: {}\n", finding.about().1, finding.about().3))
            .collect();
        if !mends.is_empty() {
            text.push_str(&format!("\n## What to mend\n\n{}", mends.concat()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_fits_its_column_and_one_fault_is_one() {
        let all = [Verdict::Pass, Verdict::Fault, Verdict::Weak, Verdict::Note, Verdict::Undecided];
        let finding = |verdict| Finding::new("disconnect", verdict, "seen".into());
        let findings = all.map(finding).to_vec();
        let report = Report { operation: "POST /".into(), findings, dialect: "none" };
        let text = report.text();
        let titles = text.lines().filter_map(|line| line.find("work goes on"));
        let seen = text.lines().filter_map(|line| line.find("seen"));
        let columns: Vec<usize> = titles.chain(seen).collect();
        assert!(columns.len() == 10 && columns.iter().all(|at| *at == columns[0]), "{text}");
        assert!(text.contains("\n1 fault, 1 weak, 1 passed, 1 undecided;"), "{text}");
    }
}
