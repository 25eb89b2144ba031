//! What does `stats` show?

use std::collections::BTreeMap;

use serde_json::Value;

use super::admin_client::AdminClient;
use crate::Failure;
use crate::args::AdminArgs;
use crate::output;

const COUNTS: [(&str, &str); 5] = [
    ("RECORDS", "records"),
    ("IN PROGRESS", "in_progress"),
    ("COMPLETED", "completed"),
    ("RETRYABLE", "failed_retryable"),
    ("UNKNOWN", "unknown"),
];

/// Shows it.
///
/// # Errors
///
/// If the admin listener cannot be asked, or refuses.
pub(crate) async fn run(
    admin: &AdminArgs,
    top: usize,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let stats =
        AdminClient::new(admin, variables)?.get(&format!("/api/v1/stats?top={top}")).await?;
    if admin.json {
        output::json(&stats);
        return Ok(());
    }
    let empty = Vec::new();
    for (title, member, name) in [("ROUTE", "routes", "route"), ("SCOPE", "scopes", "scope")] {
        let rows = stats.get(member).and_then(Value::as_array).unwrap_or(&empty);
        let columns: Vec<(&str, &str)> = [(title, name)].into_iter().chain(COUNTS).collect();
        output::table(rows, &columns);
        output::say("");
    }
    for (title, member) in [("DUPLICATES", "duplicates"), ("MISUSES", "misuses")] {
        let rows = stats.get(member).and_then(Value::as_array).unwrap_or(&empty);
        if !rows.is_empty() {
            output::table(
                rows,
                &[("SCOPE", "scope"), ("DIGEST", "scope_digest"), (title, "count")],
            );
            output::say("");
        }
    }
    if stats.get("complete") == Some(&Value::Bool(false)) {
        output::say("There are more records than were counted.");
    }
    Ok(())
}
