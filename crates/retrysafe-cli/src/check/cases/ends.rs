//! What happens after an error, and after a caller that went away?

use super::in_flight::{InFlight, send_slow};
use super::{Bench, finding, is_running, same};
use crate::check::report::{Finding, Verdict};
use crate::check::request::new_key;

/// `duplicates_wait` says what was seen before: a duplicate gets the first one's answer, and nobody is told to wait.
pub(crate) async fn cases(bench: &Bench<'_>, duplicates_wait: bool) -> Vec<Finding> {
    let mut found = client_error(bench).await;
    found.extend(server_error(bench).await);
    found.extend(disconnect(bench, duplicates_wait).await);
    found
}

async fn client_error(bench: &Bench<'_>) -> Vec<Finding> {
    let Some(body) = &bench.template.client_error else {
        return vec![finding(
            "after_client_error",
            Verdict::Undecided,
            "needs --client-error, a body that the API refuses",
        )];
    };
    let shot = bench.template.with_body(body);
    let key = new_key();
    let first = bench.send(&shot, &key).await;
    let again = bench.settle(&shot, &key).await;
    let Some(first) = first.answer().filter(|answer| answer.status.is_client_error()) else {
        return vec![finding(
            "after_client_error",
            Verdict::Undecided,
            format!("that body gets {first}, not a 4xx"),
        )];
    };
    vec![match again.answer() {
        Some(again) if again.status == first.status => {
            finding("after_client_error", Verdict::Pass, format!("{} again", again.status.as_u16()))
        }
        Some(again) if is_running(again) => finding(
            "after_client_error",
            Verdict::Fault,
            format!(
                "after a {} the key is stuck at {}",
                first.status.as_u16(),
                again.status.as_u16()
            ),
        ),
        _ => finding(
            "after_client_error",
            Verdict::Weak,
            format!("first {}, again {again}", first.status.as_u16()),
        ),
    }]
}

async fn server_error(bench: &Bench<'_>) -> Vec<Finding> {
    if bench.template.server_error.is_empty() {
        return vec![finding(
            "after_server_error",
            Verdict::Undecided,
            "needs --server-error, a way to make the first execution fail",
        )];
    }
    let shot = bench.template.shot().with(&bench.template.server_error);
    let key = new_key();
    let first = bench.send(&shot, &key).await;
    let Some(first) = first.answer().filter(|answer| answer.status.is_server_error()) else {
        return vec![finding(
            "after_server_error",
            Verdict::Undecided,
            format!("that request gets {first}, not a 5xx"),
        )];
    };
    let again = bench.settle(&shot, &key).await;
    vec![match again.answer() {
        Some(again) if again.status.is_success() => {
            finding("after_server_error", Verdict::Pass, "a retry was executed and succeeded")
        }
        Some(again) if again.code().as_deref() == Some("outcome_unknown") => {
            finding("after_server_error", Verdict::Pass, "held as unknown until somebody decides")
        }
        Some(again) if is_running(again) => finding(
            "after_server_error",
            Verdict::Fault,
            format!("after a 5xx the key is stuck at {}", again.status.as_u16()),
        ),
        Some(again) if same(first, again) => finding(
            "after_server_error",
            Verdict::Fault,
            format!("the {} is replayed for ever: no retry gets past it", first.status.as_u16()),
        ),
        _ => finding("after_server_error", Verdict::Weak, format!("again {again}")),
    }]
}

async fn disconnect(bench: &Bench<'_>, duplicates_wait: bool) -> Vec<Finding> {
    let shot = bench.slow_shot();
    let key = new_key();
    let before = bench.effects().await;
    let is_seen = if bench.template.slow.is_empty() {
        if let Err(error) = bench.probe.send_and_leave(&bench.keyed(&shot, &key)).await {
            return vec![finding("disconnect", Verdict::Undecided, error)];
        }
        true
    } else {
        let InFlight { running, is_seen } = send_slow(bench, &shot, &key, duplicates_wait).await;
        // The connection ends with the task.
        running.abort();
        is_seen
    };
    let settled = bench.settle(&shot, &key).await;
    let again = bench.send(&shot, &key).await;
    let (Some(settled), Some(again)) = (settled.answer(), again.answer()) else {
        return vec![finding(
            "disconnect",
            Verdict::Fault,
            format!("after its caller hung up the request gets: {settled}"),
        )];
    };
    let effects = match (before, bench.effects().await) {
        (Some(before), Some(after)) => Some(after.saturating_sub(before)),
        _ => None,
    };
    vec![if is_running(settled) {
        finding(
            "disconnect",
            Verdict::Fault,
            format!("after its caller hung up the key is stuck at {}", settled.status.as_u16()),
        )
    } else if effects.is_some_and(|count| count > 1) {
        finding(
            "disconnect",
            Verdict::Fault,
            "the retry of a caller that hung up was executed again",
        )
    } else if !same(settled, again) {
        finding(
            "disconnect",
            Verdict::Fault,
            format!(
                "answers differ afterwards: {} and {}",
                settled.status.as_u16(),
                again.status.as_u16()
            ),
        )
    } else if !is_seen {
        let seen = "no duplicate was told to wait, so the caller may have hung up before its request had arrived";
        finding("disconnect", Verdict::Undecided, seen)
    } else if settled.status.is_success() {
        finding("disconnect", Verdict::Pass, "the work went on, and the retry got its answer")
    } else {
        finding("disconnect", Verdict::Weak, format!("afterwards: {}", settled.status.as_u16()))
    }]
}
