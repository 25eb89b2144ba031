//! Is a key remembered at another place, under another token, after a restart, and for as long as it is said to be?

use std::process::Stdio;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::in_flight::{InFlight, send_slow};
use super::{Bench, finding, is_running, judge_retry, same};
use crate::check::probe::{Answer, Heard};
use crate::check::report::{Finding, Verdict};
use crate::check::request::{Shot, Template, new_key};

/// How long the command that restarts the API may take, and the API to answer again.
const RESTART_MAX: Duration = Duration::from_secs(60);

/// How often an API that was restarted is asked whether it answers.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How often the time of a key is tried. On a busy machine a retry may come after the end of that time, and then it shows nothing.
const TTL_TRIES_MAX: u32 = 3;

/// Whether a template asks for any of it.
pub(crate) fn is_asked_for(template: &Template) -> bool {
    !template.refreshed_credential.is_empty()
        || template.second_url.is_some()
        || template.ttl.is_some()
        || template.restart_command.is_some()
}

/// All of them. `duplicates_wait` says what was seen before: a duplicate gets the first one's answer, and nobody is told to wait.
pub(crate) async fn cases(bench: &Bench<'_>, duplicates_wait: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(refreshed_credential(bench).await);
    found.extend(second_node(bench).await);
    found.extend(ttl(bench).await);
    // The last: whatever the API keeps in memory is gone afterwards.
    found.extend(restart(bench, duplicates_wait).await);
    found
}

/// The same caller with a new token.
async fn refreshed_credential(bench: &Bench<'_>) -> Option<Finding> {
    if bench.template.refreshed_credential.is_empty() {
        return None;
    }
    let shot = bench.template.shot();
    let key = new_key();
    let first = bench.send(&shot, &key).await;
    let again = bench.settle(&shot.with(&bench.template.refreshed_credential), &key).await;
    let told = "the same caller's refreshed credential";
    Some(judge_retry(bench, "refreshed_credential", told, first.success()?, &again))
}

/// Another node of the same API.
async fn second_node(bench: &Bench<'_>) -> Vec<Finding> {
    let Some(url) = &bench.template.second_url else { return Vec::new() };
    let there = |shot: &Shot| Shot { url: url.clone(), ..shot.clone() };
    let shot = bench.template.shot();
    let key = new_key();
    let first = bench.send(&shot, &key).await;
    let Some(first) = first.success() else {
        return vec![finding(
            "second_node",
            Verdict::Undecided,
            format!("the first node says {first}"),
        )];
    };
    let again = bench.settle(&there(&shot), &key).await;
    let mut found =
        vec![judge_retry(bench, "second_node", "a retry at the second node", first, &again)];

    let shot = bench.slow_shot();
    let key = new_key();
    let before = bench.effects().await;
    let both = [bench.keyed(&shot, &key), bench.keyed(&there(&shot), &key)];
    let shots: Vec<Shot> = both.into_iter().cycle().take(bench.parallel.max(2)).collect();
    let heard = bench.probe.send_all(shots).await;
    let last = bench.settle(&shot, &key).await;
    let effects =
        bench.effects().await.zip(before).map(|(after, before)| after.saturating_sub(before));
    let successes: Vec<&Answer> = heard.iter().chain([&last]).filter_map(Heard::success).collect();
    let differ =
        successes.windows(2).any(|pair| matches!(pair, [one, other] if one.body != other.body));
    let seen = format!("{} duplicates at both nodes at once", heard.len());
    found.push(if effects.is_some_and(|count| count > 1) || differ {
        finding("second_node_race", Verdict::Fault, format!("{seen}: it ran more than once"))
    } else if last.success().is_none() {
        finding("second_node_race", Verdict::Weak, format!("{seen}: afterwards {last}"))
    } else if bench.distinct || effects.is_some() {
        finding("second_node_race", Verdict::Pass, format!("{seen}: one answer"))
    } else {
        finding("second_node_race", Verdict::Undecided, "executions cannot be told apart")
    });
    found
}

/// As long as it is said to be, and then no longer.
async fn ttl(bench: &Bench<'_>) -> Option<Finding> {
    let ttl = bench.template.ttl?;
    for _ in 0..TTL_TRIES_MAX {
        if let Some(judged) = judge_ttl(bench, ttl).await {
            return Some(judged);
        }
    }
    Some(finding(
        "ttl",
        Verdict::Undecided,
        "each retry came after the end of --ttl: it is too short for this machine",
    ))
}

/// None if the retry that should have come in time came too late.
async fn judge_ttl(bench: &Bench<'_>, ttl: Duration) -> Option<Finding> {
    let shot = bench.template.shot();
    let key = new_key();
    let asked_at = Instant::now();
    let first = bench.send(&shot, &key).await;
    let answered_at = Instant::now();
    let Some(first) = first.success() else {
        return Some(finding("ttl", Verdict::Undecided, format!("the first request gets {first}")));
    };
    sleep(ttl / 2).await;
    let within = bench.send(&shot, &key).await;
    // Its time began when the API had the request, at the earliest.
    if asked_at.elapsed() >= ttl {
        return None;
    }
    let judged = judge_retry(bench, "ttl", "a retry in the middle of its time", first, &within);
    if judged.verdict != Verdict::Pass {
        return Some(judged);
    }
    // Its time had begun when the answer was here, at the latest.
    sleep((ttl + ttl / 2).saturating_sub(answered_at.elapsed())).await;
    let after = bench.send(&shot, &key).await;
    Some(match after.answer() {
        Some(answer) if same(answer, first) => {
            finding("ttl", Verdict::Note, "the answer is still there half a TTL after its end")
        }
        Some(answer) if answer.status.is_success() => {
            finding("ttl", Verdict::Pass, "remembered for its time, and free again afterwards")
        }
        Some(_) | None => {
            finding("ttl", Verdict::Weak, format!("after its end the key gets {after}"))
        }
    })
}

/// The server is killed and comes back.
async fn restart(bench: &Bench<'_>, duplicates_wait: bool) -> Vec<Finding> {
    let Some(command) = &bench.template.restart_command else { return Vec::new() };
    let shot = bench.template.shot();
    let key = new_key();
    let asked_at = Instant::now();
    let first = bench.send(&shot, &key).await;
    let Some(first) = first.success() else {
        return vec![finding(
            "restart",
            Verdict::Undecided,
            format!("before the restart: {first}"),
        )];
    };
    if let Err(why) = restarted(bench, command).await {
        return vec![finding("restart", Verdict::Undecided, why)];
    }
    let again = settle_after_restart(bench, &shot, &key).await;
    let is_too_late = bench.template.ttl.is_some_and(|ttl| asked_at.elapsed() >= ttl);
    let mut found = vec![if is_too_late {
        finding("restart", Verdict::Undecided, "the restart took longer than --ttl")
    } else {
        judge_retry(bench, "restart", "a retry after a restart", first, &again)
    }];
    if bench.template.slow.is_empty() {
        let what = "needs --slow, so that the restart meets a request that runs";
        found.push(finding("restart_in_flight", Verdict::Undecided, what));
    } else {
        found.push(restart_in_flight(bench, command, duplicates_wait).await);
    }
    found
}

async fn restart_in_flight(bench: &Bench<'_>, command: &str, duplicates_wait: bool) -> Finding {
    const ID: &str = "restart_in_flight";
    let shot = bench.slow_shot();
    let key = new_key();
    let before = bench.effects().await;
    let InFlight { running, is_seen } = send_slow(bench, &shot, &key, duplicates_wait).await;
    if let Err(why) = restarted(bench, command).await {
        return finding(ID, Verdict::Undecided, why);
    }
    // At once: whoever ran it may still be about to finish.
    let settled = settle_after_restart(bench, &shot, &key).await;
    let first = running.await.unwrap_or(Heard::Silence);
    let again = settle_after_restart(bench, &shot, &key).await;
    let effects = match (before, bench.effects().await) {
        (Some(before), Some(after)) if after >= before => Some(after - before),
        (_, _) => None,
    };
    let Some(answer) = settled.answer() else {
        return finding(ID, Verdict::Fault, format!("after the restart its key gets: {settled}"));
    };
    let is_steady = again.answer().is_some_and(|again| same(answer, again));
    let is_unknown = answer.code().as_deref() == Some("outcome_unknown");
    let contradicts =
        first.success().is_some_and(|first| answer.status.is_success() && !same(first, answer));
    if effects.is_some_and(|count| count > 1) || contradicts {
        finding(ID, Verdict::Fault, "a request that ran during the restart was executed again")
    } else if is_running(answer) {
        let seen = format!(
            "its key is still in use {} s after the restart",
            bench.probe.patience().as_secs()
        );
        finding(ID, Verdict::Weak, seen)
    } else if is_unknown {
        finding(ID, Verdict::Pass, "it is held as unknown: nobody runs it again without evidence")
    } else if !answer.status.is_success() || !is_steady {
        finding(
            ID,
            Verdict::Weak,
            format!("after the restart its key gets {settled}, then {again}"),
        )
    } else if !is_seen {
        let seen = "no duplicate was told to wait, so the restart may have met no request that ran";
        finding(ID, Verdict::Undecided, seen)
    } else if effects == Some(1) {
        finding(ID, Verdict::Pass, "one effect, and one answer")
    } else {
        let seen = "a retry succeeded; whether the first attempt had done anything cannot be told without --list";
        finding(ID, Verdict::Undecided, seen)
    }
}

/// What a key gets after a restart. A process that is being killed may have taken a connection that it never answers, so a retry
/// without an answer is sent once more, as a client does.
async fn settle_after_restart(bench: &Bench<'_>, shot: &Shot, key: &str) -> Heard {
    let deadline = Instant::now() + bench.probe.patience();
    loop {
        let heard = bench.settle(shot, key).await;
        if heard.answer().is_some() || Instant::now() >= deadline {
            return heard;
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Runs the command, and waits until the API answers again.
async fn restarted(bench: &Bench<'_>, command: &str) -> Result<(), String> {
    let running = tokio::process::Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status();
    match timeout(RESTART_MAX, running).await {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => return Err(format!("the --restart-command ended with {status}")),
        Ok(Err(error)) => return Err(format!("the --restart-command: {error}")),
        Err(_) => {
            return Err(format!(
                "the --restart-command took longer than {} s",
                RESTART_MAX.as_secs()
            ));
        }
    }
    let deadline = Instant::now() + RESTART_MAX;
    while Instant::now() < deadline {
        // A listing leaves no effect, so that effects can be counted across the restart.
        let is_up = match bench.template.list {
            Some(_) => bench.effects().await.is_some(),
            None => bench.send(&bench.template.shot(), &new_key()).await.success().is_some(),
        };
        if is_up {
            return Ok(());
        }
        sleep(LOOK_AGAIN).await;
    }
    Err("after the restart the API does not answer as before".into())
}
