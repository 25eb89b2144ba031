//! Is the second answer the first one again?

use http::HeaderMap;

use super::{Bench, finding, same, same_shape};
use crate::check::report::{Finding, Verdict};
use crate::check::request::new_key;

/// Headers that belong to one delivery, so they may differ or be absent.
const OF_ONE_DELIVERY: &[&str] = &[
    "date",
    "age",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "set-cookie",
    "x-request-id",
    "request-id",
    "traceparent",
    "tracestate",
    "server-timing",
    "retry-after",
    "via",
    "alt-svc",
    "etag",
    "vary",
    "x-powered-by",
    "server",
];

pub(crate) async fn cases(bench: &Bench<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let shot = bench.template.shot();
    let key = new_key();
    let before = bench.effects().await;
    let first = bench.send(&shot, &key).await;
    let second = bench.settle(&shot, &key).await;
    let effects = match (before, bench.effects().await) {
        (Some(before), Some(after)) => Some(after.saturating_sub(before)),
        _ => None,
    };
    let (Some(first), Some(second)) = (first.answer(), second.answer()) else {
        found.push(finding("replay", Verdict::Fault, format!("first {first}, again: {second}")));
        return found;
    };
    if effects.is_some_and(|count| count > 1) {
        found.push(finding("runs_again", Verdict::Fault, "the list shows two effects of one key"));
    } else if first.status != second.status {
        let seen = format!("first {}, again {}", first.status.as_u16(), second.status.as_u16());
        found.push(finding("replay_status", Verdict::Fault, seen));
    } else if first.body != second.body {
        let ran_again = effects.is_none() && !second.is_marked() && same_shape(first, second);
        let id = if ran_again { "runs_again" } else { "replay_body" };
        let seen = format!(
            "{} bytes first, {} bytes again, and they differ",
            first.body.len(),
            second.body.len()
        );
        found.push(finding(id, Verdict::Fault, seen));
    } else if !bench.distinct && effects.is_none() && !second.is_marked() {
        // Whoever says the same to everybody says it to retries as well.
        found.push(finding("replay", Verdict::Undecided, "executions cannot be told apart"));
    } else {
        found.push(finding(
            "replay",
            Verdict::Pass,
            format!("{} twice, the same {} bytes", first.status.as_u16(), first.body.len()),
        ));
    }
    if same(first, second) {
        found.extend(headers(&first.headers, &second.headers));
        found.push(match (first.is_marked(), second.is_marked()) {
            (false, true) => finding("marker", Verdict::Pass, "the replay says that it is one"),
            (true, _) => {
                finding("marker", Verdict::Fault, "the first answer claims to be a replay")
            }
            (false, false) => {
                finding("marker", Verdict::Weak, "nothing tells a replay from a first answer")
            }
        });
        let expiry = ["idempotency-expires", "idempotency-key-expires", "idempotency-ttl"];
        found.push(match expiry.iter().find_map(|name| second.header(name)) {
            Some(until) => finding("expiry", Verdict::Pass, format!("until {until}")),
            None => finding("expiry", Verdict::Note, "nothing says how long the key is remembered"),
        });
    }
    found
}

fn headers(first: &HeaderMap, second: &HeaderMap) -> Option<Finding> {
    let lost: Vec<&str> = first
        .keys()
        .filter(|name| !OF_ONE_DELIVERY.contains(&name.as_str()))
        .filter(|name| {
            !name.as_str().starts_with("ratelimit") && !name.as_str().starts_with("x-ratelimit")
        })
        .filter(|name| first.get_all(*name).iter().ne(second.get_all(*name)))
        .map(|name| name.as_str())
        .collect();
    Some(if lost.is_empty() {
        finding("replay_headers", Verdict::Pass, "the replay has the first answer's headers")
    } else {
        finding("replay_headers", Verdict::Fault, format!("lost or changed: {}", lost.join(", ")))
    })
}
