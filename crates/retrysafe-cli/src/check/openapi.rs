//! Which operations of an API take a key, and which would run unprotected?
//!
//! A flow is only as safe as its unprotected step. This reads an OpenAPI document, lists every
//! state-changing operation and asks each with one request that it should refuse: a malformed key.
//! An operation that refuses the key enforces it; one that answers as if nothing had been said
//! ignores it.

use std::path::Path;
use std::process::ExitCode;

use http::{HeaderValue, Method};
use serde_json::Value;

use super::CannotCheck;
use super::probe::Probe;
use super::request::{KEY, Shot, Template};
use crate::output::say;

/// One state-changing operation.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    method: Method,
    path: String,
    /// Whether the document declares the header.
    declared: bool,
}

/// What an operation makes of a malformed key.
#[derive(Clone, Debug)]
pub(crate) struct Covered {
    operation: Operation,
    verdict: &'static str,
    seen: String,
}

/// Reads every operation that changes state.
pub(crate) fn operations(file: &Path) -> Result<Vec<Operation>, CannotCheck> {
    let name = file.display();
    let text =
        std::fs::read_to_string(file).map_err(|error| CannotCheck(format!("{name}: {error}")))?;
    let document: Value = serde_json::from_str(&text).map_err(|error| {
        CannotCheck(format!("{name}: not an OpenAPI document in JSON: {error}"))
    })?;
    let paths = document
        .get("paths")
        .and_then(Value::as_object)
        .ok_or_else(|| CannotCheck(format!("{name}: no paths in it")))?;
    let mut found = Vec::new();
    for (path, item) in paths {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let Some(operation) = item.get(method.as_str().to_lowercase()) else { continue };
            let parameters = [item.get("parameters"), operation.get("parameters")];
            let declared =
                parameters.into_iter().flatten().filter_map(Value::as_array).flatten().any(
                    |parameter| {
                        let parameter = resolve(&document, parameter);
                        parameter.get("in").and_then(Value::as_str) == Some("header")
                            && parameter
                                .get("name")
                                .and_then(Value::as_str)
                                .is_some_and(|name| name.eq_ignore_ascii_case("idempotency-key"))
                    },
                );
            found.push(Operation { method, path: path.clone(), declared });
        }
    }
    Ok(found)
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
        let path = concrete(template.url.path(), &operation.path);
        let Some(url) = template.at(&path) else { continue };
        let shot = Shot { url, method: operation.method.clone(), ..template.shot() };
        let malformed = HeaderValue::from_static("\"unterminated");
        let heard = probe.send(&shot.with(&vec![(KEY, malformed)])).await;
        let refuses_key = heard.answer().is_some_and(|answer| {
            answer.status.as_u16() == 400
                && String::from_utf8_lossy(&answer.body).to_lowercase().contains("idempotency")
        });
        let verdict = match (refuses_key, operation.declared) {
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
                    "declared": row.operation.declared,
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

/// Follows one local reference.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    value
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|reference| reference.strip_prefix('#'))
        .and_then(|pointer| document.pointer(pointer))
        .unwrap_or(value)
}

/// A path with something in place of its parameters.
fn concrete(base: &str, path: &str) -> String {
    let mut out = base.trim_end_matches('/').to_owned();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        out.push('1');
        rest = after.split_once('}').map_or("", |(_, tail)| tail);
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_get_a_value() {
        assert_eq!(concrete("/", "/a/{id}/b/{x}"), "/a/1/b/1");
        assert_eq!(concrete("/v1", "/a"), "/v1/a");
    }
}
