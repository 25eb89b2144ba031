//! What is asked of an API, and what does its answer prove?
//!
//! Each case sends one story that really happens to clients and judges what came back. A case that
//! cannot tell says so; it never passes for lack of evidence.

mod disguise;
mod ends;
mod in_flight;
mod misuse;
mod places;
mod race;
mod replay;

use std::time::Duration;

use retrysafe_core::units::show_duration;

use super::CannotCheck;
use super::probe::{Answer, Heard, Probe};
use super::report::{Finding, Report, Verdict};
use super::request::{Shot, Template, new_key};
use crate::harmless::harmless;
use crate::output::complain;

/// How long to pause between polls of a request that is still running.
const POLL: Duration = Duration::from_millis(250);

/// What the cases share.
pub(crate) struct Bench<'a> {
    pub(crate) template: &'a Template,
    pub(crate) probe: &'a Probe,
    pub(crate) parallel: usize,
    /// Whether keys are sent as quoted Strings.
    quoted: bool,
    /// Whether two executions can be told apart by their answers.
    pub(crate) distinct: bool,
}

/// Tells what will be sent, before anything is.
pub(crate) fn plan(template: &Template, parallel: u16) -> String {
    let n = usize::from(parallel);
    let mut lines = vec![
        (4, "two requests with a key each, and one of them again".to_owned()),
        (n + 2, format!("{n} duplicates at once, then retries until there is an answer")),
        (3, "the same key with another body".to_owned()),
        (1, "no key".to_owned()),
        (4, "malformed keys, a key of 255 characters".to_owned()),
        (2, "the key in quoted form".to_owned()),
        (4, "the same JSON in other spellings".to_owned()),
        (
            4,
            "the same request by another name of this machine, and as a form under two boundaries"
                .to_owned(),
        ),
        (4, "a request whose caller hangs up, then retries until there is an answer".to_owned()),
        (2, "the same key with another method".to_owned()),
    ];
    if !template.second_caller.is_empty() {
        lines.push((2, "the same key from a second caller".into()));
    }
    if template.other_path.is_some() {
        lines.push((3, "the same key on another path".into()));
    }
    if template.client_error.is_some() {
        lines.push((2, "a request that the API refuses, twice".into()));
    }
    if !template.server_error.is_empty() {
        lines.push((3, "a request that fails on the server, and its retries".into()));
    }
    if !template.slow.is_empty() {
        lines.push((12, "a slow request, with duplicates and another body while it runs".into()));
    }
    if !template.refreshed_credential.is_empty() {
        lines.push((2, "the same key with a refreshed credential".into()));
    }
    if let Some(url) = &template.second_url {
        lines.push((n + 3, format!("the same key at {url}, also at both at once")));
    }
    if let Some(ttl) = template.ttl {
        let ttl = show_duration(ttl);
        lines.push((3, format!("the same key within {ttl} and after it")));
    }
    if let Some(command) = &template.restart_command {
        lines.push((9, format!("requests around a restart, twice, by: {command}")));
    }
    let total: usize = lines.iter().map(|(count, _)| count).sum();
    let mut text = format!("About {total} requests to {} {}:\n", template.method, template.url);
    for (count, line) in lines {
        text.push_str(&format!("  {count:>3}  {line}\n"));
    }
    text.push_str("Each may create something real. Use a test account.\n");
    text
}

/// Runs every case that the template allows.
pub(crate) async fn run(
    template: &Template,
    probe: &Probe,
    parallel: u16,
    progress: bool,
) -> Result<Report, CannotCheck> {
    let mut bench =
        Bench { template, probe, parallel: parallel.into(), quoted: false, distinct: false };
    bench.learn().await?;
    let mut report = Report::new(template);
    if !bench.distinct && template.list.is_none() {
        report.add(Finding::undecided(
            "effects",
            "two different requests get the same answer and there is no --list, so a second execution may go unseen",
        ));
    }
    let tell = |name: &str| {
        if progress {
            complain(&format!("  … {name}"));
        }
    };
    tell("replay");
    report.extend(replay::cases(&bench).await);
    tell("duplicates at once");
    report.extend(race::cases(&bench).await);
    tell("misuse");
    let duplicates_wait = report.shows_that_duplicates_wait();
    report.extend(misuse::cases(&bench, duplicates_wait).await);
    report.extend(disguise::cases(&bench).await);
    tell("errors and lost callers");
    report.extend(ends::cases(&bench, duplicates_wait).await);
    if places::is_asked_for(template) {
        tell("other places and times");
    }
    report.extend(places::cases(&bench, duplicates_wait).await);
    report.conclude();
    Ok(report)
}

impl Bench<'_> {
    /// Finds out how the API wants its keys, and whether executions can be told apart.
    async fn learn(&mut self) -> Result<(), CannotCheck> {
        let mut first = self.send(&self.template.shot(), &new_key()).await;
        if first.success().is_none() {
            self.quoted = true;
            first = self.send(&self.template.shot(), &new_key()).await;
        }
        let Some(first) = first.success() else {
            let why = first.answer().and_then(Answer::detail);
            let why = why.map(|why| format!(". It says: {}", harmless(&why, false)));
            return Err(CannotCheck(format!(
                "the operation does not succeed with a new key ({first}); give a body (-d) and headers (-H) that it accepts{}",
                why.unwrap_or_default()
            )));
        };
        if let Some(list) = &self.template.list
            && self.effects().await.is_none()
        {
            let pointer = &self.template.list_pointer;
            return Err(CannotCheck(format!(
                "--list {list} does not answer with a JSON array at the pointer {pointer:?} (--list-pointer; \"\" is the whole answer, \"/data\" its member data), so nothing can be counted"
            )));
        }
        let second = self.send(&self.template.shot(), &new_key()).await;
        self.distinct = second.success().is_some_and(|second| second.body != first.body);
        Ok(())
    }

    pub(crate) fn keyed(&self, shot: &Shot, key: &str) -> Shot {
        if self.quoted { shot.keyed(&format!("\"{key}\"")) } else { shot.keyed(key) }
    }

    pub(crate) async fn send(&self, shot: &Shot, key: &str) -> Heard {
        self.probe.send(&self.keyed(shot, key)).await
    }

    /// A slow request where the template knows one, else a plain one.
    pub(crate) fn slow_shot(&self) -> Shot {
        self.template.shot().with(&self.template.slow)
    }

    /// Retries until the answer is not "still running", or patience ends.
    pub(crate) async fn settle(&self, shot: &Shot, key: &str) -> Heard {
        let deadline = tokio::time::Instant::now() + self.probe.patience();
        loop {
            let heard = self.send(shot, key).await;
            let running = heard.answer().is_some_and(is_running);
            if !running || tokio::time::Instant::now() >= deadline {
                return heard;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// How many things the operation has created so far, where that can be listed.
    pub(crate) async fn effects(&self) -> Option<usize> {
        let heard = self.probe.send(&self.template.listing()?).await;
        let json: serde_json::Value = serde_json::from_slice(&heard.success()?.body).ok()?;
        Some(json.pointer(&self.template.list_pointer)?.as_array()?.len())
    }
}

/// Whether an answer says that the first request is still running. An application's own 409 would
/// be the same on a settled request, so only a poll can tell; the codes in use are known.
pub(crate) fn is_running(answer: &Answer) -> bool {
    answer.is_in_flight()
        || (matches!(answer.status.as_u16(), 409 | 423 | 425 | 429)
            && !says_reused(answer)
            && answer.code().as_deref() != Some("outcome_unknown"))
}

/// Whether an answer says that the key names another request.
pub(crate) fn says_reused(answer: &Answer) -> bool {
    answer.code().is_some_and(|code| code.contains("reused") || code == "idempotency_error")
}

/// Whether two answers are the same to a client.
pub(crate) fn same(one: &Answer, other: &Answer) -> bool {
    one.status == other.status && one.body == other.body
}

/// Whether two answers look like two executions of one operation, rather than an answer and
/// something else: two JSON objects with the same members.
pub(crate) fn same_shape(one: &Answer, other: &Answer) -> bool {
    let shape = |answer: &Answer| {
        let json: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        Some(json.as_object()?.keys().cloned().collect::<Vec<_>>())
    };
    shape(one).is_some() && shape(one) == shape(other)
}

pub(crate) fn finding(id: &'static str, verdict: Verdict, seen: impl Into<String>) -> Finding {
    Finding::new(id, verdict, seen.into())
}

/// Judges a retry that a client sends a little differently, or elsewhere. `told` says how.
pub(crate) fn judge_retry(
    bench: &Bench<'_>,
    id: &'static str,
    told: &str,
    first: &Answer,
    again: &Heard,
) -> Finding {
    match again.answer() {
        Some(answer) if same(answer, first) && (bench.distinct || answer.is_marked()) => {
            finding(id, Verdict::Pass, format!("{told} is the same request"))
        }
        Some(answer) if same(answer, first) => {
            finding(id, Verdict::Undecided, "executions cannot be told apart")
        }
        Some(answer) if answer.status.is_success() => {
            finding(id, Verdict::Fault, format!("{told} was executed again"))
        }
        Some(_) | None => finding(
            id,
            Verdict::Weak,
            format!("{told} gets {again}: a client that retries so cannot get its answer"),
        ),
    }
}
