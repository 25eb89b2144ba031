//! What is decided about many dead effects?
//!
//! A filter says which; an empty one is refused. What it finds is counted first, and done only to a yes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::act::Signature;
use crate::Failure;
use crate::args::BulkArgs;
use crate::commands::admin_client::AdminClient;
use crate::output;

pub(super) async fn run(
    caller: &AdminClient,
    verb: &str,
    bulk: &BulkArgs,
    rate: Option<u32>,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let path = format!("/api/v1/outbox/dead/{verb}");
    let filter = &bulk.filter;
    let asked = |is_dry_run: bool| {
        let mut asked = json!({
            "kind": filter.kind, "error": filter.error, "older_than": filter.older_than, "dry_run": is_dry_run,
        });
        if let (Some(rate), Some(members)) = (rate, asked.as_object_mut()) {
            members.insert("per_second".into(), rate.into());
        }
        let reason = bulk.reason.as_deref().unwrap_or_default();
        Signature::new(reason, variables).on(asked)
    };
    if bulk.dry_run || !bulk.yes {
        let counted = caller.post(&path, &asked(true)).await?;
        if bulk.dry_run {
            tell(verb, &counted, bulk.admin.json);
            return Ok(());
        }
        if number(&counted, "changed") > 0 {
            let question = match verb {
                "requeue" => format!(
                    "requeue {} dead effects, {} a second? {} more stay dead: their receivers may have forgotten the key.",
                    number(&counted, "changed"),
                    rate.unwrap_or_default(),
                    number(&counted, "refused")
                ),
                _ => format!(
                    "purge {} dead effects? They are not delivered.",
                    number(&counted, "changed")
                ),
            };
            output::confirm(&question)?;
        }
    }
    let done = caller.post(&path, &asked(false)).await?;
    tell(verb, &done, bulk.admin.json);
    Ok(())
}

fn number(told: &Value, name: &str) -> u64 {
    told.get(name).and_then(Value::as_u64).unwrap_or_default()
}

fn tell(verb: &str, told: &Value, as_json: bool) {
    if as_json {
        return output::json(told);
    }
    let is_dry_run = told.get("dry_run") == Some(&Value::Bool(true));
    let would = if is_dry_run { "would be done" } else { "done" };
    let (changed, refused) = (number(told, "changed"), number(told, "refused"));
    output::say(&format!("{verb}: {changed} {would}, {refused} refused"));
}
