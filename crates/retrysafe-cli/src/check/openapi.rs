//! Which operations of an API take a key, and which would run unprotected?
//!
//! A flow is only as safe as its unprotected step. This reads an OpenAPI document, lists every
//! state-changing operation and asks each with one request that it should refuse: a malformed key.
//! An operation that refuses the key enforces it; one that answers as if nothing had been said
//! ignores it.

use std::process::ExitCode;

use http::{HeaderValue, Method};

use super::probe::Probe;
use super::request::{Shot, Template};
use crate::openapi::Operation;
use crate::output::say;

/// What an operation makes of a malformed key.
#[derive(Clone, Debug)]
pub(crate) struct Covered {
    operation: Operation,
    verdict: &'static str,
    seen: String,
}

/// Tells what will be sent.
pub(crate) fn plan(operations: &[Operation], template: &Template) -> String {
    let mut text = format!(
        "{} state-changing operations, one request with a malformed key to each at {}:\n",
        operations.len(),
        template.url
    );
    for operation in operations {
        text.push_str(&format!("  {:<6} {}\n", operation.method.as_str(), operation.path));
    }
    text.push_str("An operation that ignores the key may execute. Use a test account.\n");
    text
}

/// Asks every operation.
pub(crate) async fn enumerate(
    operations: &[Operation],
    template: &Template,
    probe: &Probe,
) -> Vec<Covered> {
    let mut covered = Vec::new();
    for operation in operations {
        let path = operation.sample(template.url.path());
        let Some(url) = template.at(&path) else { continue };
        let shot = Shot { url, method: operation.method.clone(), ..template.shot() };
        let malformed = HeaderValue::from_static("\"unterminated");
        let heard = probe.send(&shot.with(&vec![(shot.key_header.clone(), malformed)])).await;
        let refuses_key = heard.answer().is_some_and(|answer| {
            answer.status.as_u16() == 400
                && String::from_utf8_lossy(&answer.body).to_lowercase().contains("idempotency")
        });
        let verdict = match (refuses_key, operation.is_declared) {
            (true, _) => "enforced",
            (false, true) => "declared, not enforced",
            (false, false)
                if operation.method == Method::PUT || operation.method == Method::DELETE =>
            {
                "idempotent by its method"
            }
            (false, false) => "unprotected",
        };
        covered.push(Covered { operation: operation.clone(), verdict, seen: heard.to_string() });
    }
    covered
}

/// Prints the table and says how the program ends.
pub(crate) fn print(covered: &[Covered], json: bool) -> ExitCode {
    if json {
        let rows: Vec<_> = covered
            .iter()
            .map(|row| {
                serde_json::json!({
                    "method": row.operation.method.as_str(),
                    "path": row.operation.path,
                    "declared": row.operation.is_declared,
                    "verdict": row.verdict,
                    "seen": row.seen,
                })
            })
            .collect();
        crate::output::json(&rows.into());
    } else {
        for row in covered {
            say(&format!(
                "{:<24} {:<6} {}  (a malformed key gets {})",
                row.verdict,
                row.operation.method.as_str(),
                row.operation.path,
                row.seen
            ));
        }
    }
    let unsafe_ones = covered
        .iter()
        .filter(|row| matches!(row.verdict, "unprotected" | "declared, not enforced"));
    let count = unsafe_ones.count();
    if !json {
        say(&format!("\n{count} of {} operations would run unprotected.", covered.len()));
    }
    if count > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS }
}
