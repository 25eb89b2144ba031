//! What do duplicates get that arrive while the first is running?

use std::time::Duration;

use super::{Bench, finding, is_running, same_shape};
use crate::check::probe::{Answer, Heard};
use crate::check::report::{Finding, Verdict, WAITED};
use crate::check::request::{Shot, new_key};

/// How many duplicates follow a slow request, spread over its running time.
const FOLLOWERS: u32 = 5;

/// The time between them: together they outlast a request of a second.
const FOLLOWER_GAP: Duration = Duration::from_millis(300);

pub(crate) async fn cases(bench: &Bench<'_>) -> Vec<Finding> {
    let mut found = burst(bench).await;
    if bench.template.slow.is_empty() {
        found.push(finding(
            "lease",
            Verdict::Undecided,
            "needs --slow, a way to make the operation take a second or more",
        ));
    } else {
        found.extend(stream(bench).await);
    }
    found
}

/// All at once.
async fn burst(bench: &Bench<'_>) -> Vec<Finding> {
    let shot = bench.slow_shot();
    let key = new_key();
    let before = bench.effects().await;
    let keyed = bench.keyed(&shot, &key);
    let heard = bench.probe.send_all(vec![keyed; bench.parallel]).await;
    let last = bench.settle(&shot, &key).await;
    let mut found = judge(bench, &heard, &last, "race");
    if let (Some(before), Some(after)) = (before, bench.effects().await)
        && after.saturating_sub(before) > 1
    {
        let seen = format!("the list shows {} effects of one key", after - before);
        found.push(finding("race", Verdict::Fault, seen));
    }
    found.extend(in_flight(bench, &heard));
    found
}

/// One after the other while a slow one is running: a lease that ends too early shows here.
async fn stream(bench: &Bench<'_>) -> Vec<Finding> {
    let shot = bench.slow_shot();
    let key = new_key();
    let mut running = Vec::new();
    for _ in 0..=FOLLOWERS {
        let (probe, keyed): (_, Shot) = (bench.probe.clone(), bench.keyed(&shot, &key));
        running.push(tokio::spawn(async move { probe.send(&keyed).await }));
        tokio::time::sleep(FOLLOWER_GAP).await;
    }
    let mut heard = Vec::new();
    for task in running {
        heard.push(task.await.unwrap_or(Heard::Silence));
    }
    let last = bench.settle(&shot, &key).await;
    judge(bench, &heard, &last, "lease")
}

/// Judges what duplicates heard, given what the key answers in the end.
fn judge(bench: &Bench<'_>, heard: &[Heard], last: &Heard, id: &'static str) -> Vec<Finding> {
    let mut found = Vec::new();
    let silent = heard.iter().filter(|heard| matches!(heard, Heard::Silence)).count();
    if silent > 0 {
        found.push(finding(
            "hangs",
            Verdict::Fault,
            format!("{silent} of {} duplicates got no answer in time", heard.len()),
        ));
    }
    let broken =
        heard.iter().filter(|heard| matches!(heard, Heard::Broken(_) | Heard::Refused(_))).count();
    if broken > 0 {
        found.push(finding(
            "hangs",
            Verdict::Weak,
            format!("{broken} duplicates lost their connection"),
        ));
    }
    let errors = heard
        .iter()
        .filter_map(Heard::answer)
        .filter(|answer| answer.status.is_server_error())
        .count();
    if errors > 0 {
        found.push(finding(
            "in_flight_status",
            Verdict::Weak,
            format!("{errors} duplicates got a 5xx"),
        ));
    }
    let successes: Vec<&Answer> = heard.iter().filter_map(Heard::success).collect();
    let Some(last) = last.answer() else {
        found.push(finding("stuck", Verdict::Fault, format!("no answer afterwards: {last}")));
        return found;
    };
    if is_running(last) {
        let seen =
            format!("still {} after {} s", last.status.as_u16(), bench.probe.patience().as_secs());
        found.push(finding("stuck", Verdict::Fault, seen));
        return found;
    }
    let others: Vec<&&Answer> =
        successes.iter().filter(|answer| answer.body != last.body).collect();
    match others.as_slice() {
        [] if bench.distinct || bench.template.list.is_some() => {
            let seen = format!("{} of {} got the one answer", successes.len(), heard.len());
            found.push(finding(id, Verdict::Pass, seen));
        }
        [] => found.push(finding(id, Verdict::Undecided, "executions cannot be told apart")),
        [one, ..] if others.iter().all(|other| !same_shape(other, last)) => {
            let seen = format!(
                "{} duplicates got {} with another body than the answer",
                others.len(),
                one.status.as_u16()
            );
            found.push(finding("in_flight_success", Verdict::Fault, seen));
        }
        others => {
            let seen = format!(
                "{} successes differ from the final answer: it ran more than once",
                others.len()
            );
            found.push(finding(id, Verdict::Fault, seen));
        }
    }
    found
}

/// How the API tells a duplicate to wait.
fn in_flight(bench: &Bench<'_>, heard: &[Heard]) -> Vec<Finding> {
    let is_slow = !bench.template.slow.is_empty();
    let told: Vec<&Answer> =
        heard.iter().filter_map(Heard::answer).filter(|answer| is_running(answer)).collect();
    let Some(one) = told.first() else {
        let answers: Vec<&Answer> = heard.iter().filter_map(Heard::success).collect();
        let is_one =
            answers.windows(2).all(|pair| matches!(pair, [one, other] if one.body == other.body));
        // Duplicates that were all executed were all answered, too: nobody has waited for anybody.
        let have_waited = answers.len() == heard.len() && is_one && bench.distinct;
        return vec![if is_slow && have_waited {
            finding("retry_after", Verdict::Pass, WAITED)
        } else {
            finding("retry_after", Verdict::Note, "no duplicate was told to wait")
        }];
    };
    let mut found = Vec::new();
    let statuses = [202, 409];
    if !statuses.contains(&one.status.as_u16()) {
        found.push(finding(
            "in_flight_status",
            Verdict::Weak,
            format!("{} instead of 409", one.status.as_u16()),
        ));
    }
    found.push(match one.header("retry-after") {
        Some(value) if value.parse::<u32>().is_ok_and(|seconds| seconds > 0) => {
            finding("retry_after", Verdict::Pass, format!("Retry-After: {value}"))
        }
        Some(value) => finding("retry_after", Verdict::Weak, format!("Retry-After: {value}")),
        None => finding(
            "retry_after",
            Verdict::Weak,
            "a duplicate is told to wait, but not for how long",
        ),
    });
    found
}
