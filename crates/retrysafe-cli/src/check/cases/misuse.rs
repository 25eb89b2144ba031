//! What happens when a key is used for something it does not name?

use http::{HeaderValue, Method};

use super::in_flight::{InFlight, send_slow};
use super::{Bench, finding, is_running, same};
use crate::check::probe::{Answer, Heard};
use crate::check::report::{Finding, Verdict};
use crate::check::request::new_key;

/// `duplicates_wait` says what was seen before: a duplicate gets the first one's answer, and nobody is told to wait.
pub(crate) async fn cases(bench: &Bench<'_>, duplicates_wait: bool) -> Vec<Finding> {
    let mut found = other_body(bench).await;
    found.extend(other_body_in_flight(bench, duplicates_wait).await);
    found.extend(no_key(bench).await);
    found.extend(malformed(bench).await);
    found.extend(forms(bench).await);
    found.extend(spellings(bench).await);
    found.extend(second_caller(bench).await);
    found.extend(other_route(bench).await);
    found.extend(other_method(bench).await);
    found
}

async fn other_body(bench: &Bench<'_>) -> Vec<Finding> {
    let shot = bench.template.shot();
    let key = new_key();
    let first = bench.send(&shot, &key).await;
    let other = bench.settle(&shot.altered(), &key).await;
    let again = bench.send(&shot, &key).await;
    let mut found = vec![judge_other("mismatch", first.answer(), &other)];
    if let Some(answer) = other.answer().filter(|answer| answer.status.is_client_error()) {
        found.push(explained(answer));
    }
    if let (Some(first), Some(again)) = (first.answer(), again.answer())
        && !same(first, again)
        && found.iter().all(|f| f.verdict != Verdict::Fault)
    {
        found.push(finding(
            "mismatch",
            Verdict::Fault,
            "after a misuse the first request's answer is gone",
        ));
    }
    found
}

fn judge_other(id: &'static str, first: Option<&Answer>, other: &Heard) -> Finding {
    match (first, other.answer()) {
        (Some(first), Some(other)) if other.status.is_success() && other.body == first.body => {
            finding(
                id,
                Verdict::Fault,
                "another request got the first one's answer: the body is not compared",
            )
        }
        (_, Some(other)) if other.status.is_success() => {
            finding(id, Verdict::Fault, "another request under the same key was executed")
        }
        (_, Some(other)) if other.status.is_client_error() => {
            finding(id, Verdict::Pass, format!("refused with {}", other.status.as_u16()))
        }
        (_, _) => finding(id, Verdict::Weak, format!("{other}")),
    }
}

/// Whether a refusal can be understood by a program.
fn explained(answer: &Answer) -> Finding {
    let kind = answer.header("content-type").unwrap_or("none");
    let is_problem = kind.starts_with("application/problem+json");
    if (is_problem || kind.starts_with("application/json")) && answer.code().is_some() {
        finding("problem", Verdict::Pass, format!("{kind} with a code"))
    } else if is_problem {
        finding("problem", Verdict::Pass, kind)
    } else {
        finding("problem", Verdict::Weak, format!("{kind}, without a code to switch on"))
    }
}

async fn other_body_in_flight(bench: &Bench<'_>, duplicates_wait: bool) -> Option<Finding> {
    if bench.template.slow.is_empty() {
        return None;
    }
    let shot = bench.slow_shot();
    let key = new_key();
    let InFlight { running, is_seen } = send_slow(bench, &shot, &key, duplicates_wait).await;
    let other = bench.send(&shot.altered(), &key).await;
    let first = running.await.ok()?;
    Some(match other.answer() {
        Some(answer) if is_running(answer) => finding(
            "mismatch_in_flight",
            Verdict::Weak,
            format!(
                "while the first was running another body got {}, as if it were a retry",
                answer.status.as_u16()
            ),
        ),
        _ => match judge_other("mismatch_in_flight", first.answer(), &other) {
            judged if judged.verdict == Verdict::Pass && !is_seen => finding(
                "mismatch_in_flight",
                Verdict::Undecided,
                "no duplicate was told to wait, so the first request may have been over",
            ),
            judged => judged,
        },
    })
}

async fn no_key(bench: &Bench<'_>) -> Vec<Finding> {
    let heard = bench.probe.send(&bench.template.shot()).await;
    vec![match heard.answer() {
        Some(answer) if answer.status == 400 => {
            finding("missing_key", Verdict::Pass, "refused with 400: a key is required")
        }
        Some(answer) if answer.status.is_success() => finding(
            "missing_key",
            Verdict::Note,
            "executed: a client that forgets the key is unprotected",
        ),
        _ => finding("missing_key", Verdict::Weak, format!("{heard} instead of 400")),
    }]
}

async fn malformed(bench: &Bench<'_>) -> Vec<Finding> {
    let shot = bench.template.shot();
    let mut accepted = Vec::new();
    for (name, values) in [
        ("empty", vec![String::new()]),
        ("300 characters", vec!["k".repeat(300)]),
        ("an unterminated string", vec!["\"unterminated".to_owned()]),
        ("two header lines", vec![new_key(), new_key()]),
    ] {
        let mut shot = shot.clone();
        for value in values {
            let value = HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static(""));
            shot.headers.push((shot.key_header.clone(), value));
        }
        let heard = bench.probe.send(&shot).await;
        if !heard.answer().is_some_and(|answer| answer.status.is_client_error()) {
            accepted.push(format!("{name}: {heard}"));
        }
    }
    vec![if accepted.is_empty() {
        finding("malformed_key", Verdict::Pass, "refused with 4xx")
    } else {
        finding("malformed_key", Verdict::Weak, accepted.join("; "))
    }]
}

async fn forms(bench: &Bench<'_>) -> Vec<Finding> {
    let shot = bench.template.shot();
    let key = new_key();
    let bare = bench.probe.send(&shot.keyed(&key)).await;
    let quoted = bench.probe.send(&shot.keyed(&format!("\"{key}\""))).await;
    let forms = match (bare.success(), quoted.success()) {
        (Some(bare), Some(quoted)) if same(bare, quoted) => {
            finding("quoted_form", Verdict::Pass, "quoted and bare name the same key")
        }
        (Some(_), Some(_)) => finding(
            "quoted_form",
            Verdict::Weak,
            "quoted and bare are two keys: a proxy that normalises the header causes a second execution",
        ),
        (Some(_), None) => {
            finding("quoted_form", Verdict::Note, format!("the draft's quoted form gets {quoted}"))
        }
        (None, _) => finding("quoted_form", Verdict::Note, "the quoted form only"),
    };
    let shot = bench.template.shot();
    let long = format!("{}{}", new_key(), "k".repeat(255 - 36));
    let first = bench.send(&shot, &long).await;
    let again = bench.send(&shot, &long).await;
    let length = match (first.success(), again.success()) {
        (Some(first), Some(again)) if same(first, again) => {
            finding("key_length", Verdict::Pass, "255 characters")
        }
        (Some(_), Some(_)) => finding(
            "key_length",
            Verdict::Fault,
            "a key of 255 characters is accepted, but does not protect",
        ),
        _ => finding("key_length", Verdict::Note, format!("255 characters get {first}")),
    };
    vec![forms, length]
}

async fn spellings(bench: &Bench<'_>) -> Vec<Finding> {
    let shot = bench.template.shot();
    let key = new_key();
    let Some(respelt) = shot.respelt() else { return Vec::new() };
    let first = bench.send(&shot, &key).await;
    let Some(first) = first.success() else { return Vec::new() };
    let order = bench.send(&respelt, &key).await;
    let mut found = vec![match order.answer() {
        Some(answer) if same(answer, first) => {
            finding("json_order", Verdict::Pass, "order and spacing of members do not matter")
        }
        Some(answer) if answer.status.is_success() => finding(
            "json_order",
            Verdict::Fault,
            "the same JSON in another order was executed again",
        ),
        _ => finding(
            "json_order",
            Verdict::Weak,
            format!(
                "the same JSON in another order gets {order}: a client that re-serialises cannot retry"
            ),
        ),
    }];
    if let Some(decimals) = shot.decimals() {
        let heard = bench.send(&decimals, &key).await;
        found.push(match heard.answer() {
            Some(answer) if same(answer, first) => {
                finding("json_numbers", Verdict::Pass, "5 and 5.0 are the same number")
            }
            Some(answer) if answer.status.is_success() => {
                finding("json_numbers", Verdict::Fault, "5.0 for 5 was executed again")
            }
            _ => finding("json_numbers", Verdict::Note, format!("5.0 for 5 gets {heard}")),
        });
    }
    found
}

async fn second_caller(bench: &Bench<'_>) -> Option<Finding> {
    if bench.template.second_caller.is_empty() {
        return Some(finding(
            "isolation",
            Verdict::Undecided,
            "needs --second-caller, another credential",
        ));
    }
    let shot = bench.template.shot();
    let key = new_key();
    let mine = bench.send(&shot, &key).await;
    let theirs = bench.send(&shot.with(&bench.template.second_caller), &key).await;
    Some(match (mine.success(), theirs.answer()) {
        (Some(mine), Some(theirs))
            if theirs.status.is_success() && theirs.body == mine.body && bench.distinct =>
        {
            finding("isolation", Verdict::Fault, "a second caller got the first caller's answer")
        }
        (_, Some(theirs)) if matches!(theirs.status.as_u16(), 401 | 403) => finding(
            "isolation",
            Verdict::Undecided,
            format!("the second credential is refused with {}", theirs.status.as_u16()),
        ),
        (_, Some(theirs)) if theirs.status.is_success() => {
            finding("isolation", Verdict::Pass, "two callers, two executions")
        }
        (_, Some(theirs)) => finding(
            "isolation",
            Verdict::Fault,
            format!("the second caller gets {} because the key exists", theirs.status.as_u16()),
        ),
        (_, None) => finding("isolation", Verdict::Weak, theirs.to_string()),
    })
}

async fn other_route(bench: &Bench<'_>) -> Option<Finding> {
    let url = bench.template.at(bench.template.other_path.as_deref()?)?;
    let shot = bench.template.shot();
    let key = new_key();
    let here = bench.send(&shot, &key).await;
    let mut there = shot.clone();
    there.url = url;
    let one = bench.send(&there, &key).await;
    let two = bench.send(&there, &key).await;
    Some(match (here.success(), one.answer(), two.answer()) {
        (Some(here), Some(one), _)
            if one.status.is_success() && one.body == here.body && bench.distinct =>
        {
            finding(
                "other_route",
                Verdict::Fault,
                "the other operation answered with this one's answer",
            )
        }
        (_, Some(one), Some(two))
            if one.status.is_success() && two.status.is_success() && one.body != two.body =>
        {
            finding(
                "other_route",
                Verdict::Fault,
                "the other operation ignores the key: two executions",
            )
        }
        (_, Some(one), _) if one.status.is_success() => {
            finding("other_route", Verdict::Pass, "keys are separate per operation")
        }
        (_, Some(one), _) => {
            finding("other_route", Verdict::Pass, format!("refused with {}", one.status.as_u16()))
        }
        (_, None, _) => finding("other_route", Verdict::Weak, one.to_string()),
    })
}

async fn other_method(bench: &Bench<'_>) -> Option<Finding> {
    let shot = bench.template.shot();
    let key = new_key();
    let first = bench.send(&shot, &key).await;
    let mut other = shot.clone();
    other.method = if shot.method == Method::PATCH { Method::POST } else { Method::PATCH };
    let heard = bench.send(&other, &key).await;
    let first = first.success()?;
    let answer = heard.answer()?;
    let seen = format!("{} gets {}", other.method, answer.status.as_u16());
    Some(if matches!(answer.status.as_u16(), 404 | 405 | 501) {
        finding("other_method", Verdict::Note, format!("{seen}: there is no such operation"))
    } else if !answer.status.is_success() {
        finding("other_method", Verdict::Pass, seen)
    } else if !bench.distinct {
        finding("other_method", Verdict::Undecided, "executions cannot be told apart")
    } else if answer.body == first.body {
        let seen = format!("{} got the answer of {}", other.method, shot.method);
        finding("other_method", Verdict::Fault, seen)
    } else {
        finding("other_method", Verdict::Pass, format!("{seen} with an answer of its own"))
    })
}
