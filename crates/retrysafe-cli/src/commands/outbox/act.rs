//! What is decided about single effects, and about kinds?

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::show;
use crate::Failure;
use crate::args::{EffectActionArgs, KindActionArgs};
use crate::commands::admin_client::{AdminClient, claimed_name};
use crate::output;
use crate::percent::encoded;

/// Who decides, and why.
pub(super) struct Signature {
    who: Option<String>,
    reason: String,
}

impl Signature {
    pub(super) fn new(reason: &str, variables: &BTreeMap<String, String>) -> Self {
        Self { who: claimed_name(variables).map(str::to_owned), reason: reason.to_owned() }
    }

    /// What is asked, signed.
    pub(super) fn on(&self, mut asked: Value) -> Value {
        if let Some(members) = asked.as_object_mut() {
            members.insert("operator".into(), self.who.as_deref().into());
            members.insert("reason".into(), self.reason.as_str().into());
        }
        asked
    }
}

/// Does a verb to each effect, and says how many took it.
pub(super) async fn run(
    caller: &AdminClient,
    verb: &str,
    action: &EffectActionArgs,
    signature: &Signature,
) -> Result<(), Failure> {
    let mut done = Vec::new();
    let mut refused = Vec::new();
    for id in &action.ids {
        let path = format!("/api/v1/outbox/{id}/{verb}");
        match caller.post(&path, &signature.on(json!({}))).await {
            Ok(_) => done.push(*id),
            Err(error) => refused.push(json!({"id": id, "why": error.to_string()})),
        }
    }
    if action.admin.json {
        output::json(&json!({"verb": verb, "done": done, "refused": refused}));
    } else {
        for refusal in &refused {
            output::complain(&refusal.to_string());
        }
        output::say(&format!("{verb}: {} done, {} refused", done.len(), refused.len()));
    }
    if refused.is_empty() { Ok(()) } else { Err("not every effect took it".into()) }
}

/// Decides about an unknown effect.
pub(super) async fn resolve(
    caller: &AdminClient,
    id: i64,
    verdict: &Value,
    as_json: bool,
) -> Result<(), Failure> {
    let effect = caller.post(&format!("/api/v1/outbox/{id}/resolve"), verdict).await?;
    if as_json {
        output::json(&effect);
        return Ok(());
    }
    output::say(&format!("effect {id} is {} now", show::text(&effect, "state")));
    Ok(())
}

/// Pauses a kind, or lets it go on.
pub(super) async fn change_kind(
    caller: &AdminClient,
    verb: &str,
    action: &KindActionArgs,
    signature: &Signature,
) -> Result<(), Failure> {
    let path = format!("/api/v1/outbox/kinds/{}/{verb}", encoded(&action.kind));
    let told = caller.post(&path, &signature.on(json!({}))).await?;
    if action.admin.json {
        output::json(&told);
        return Ok(());
    }
    let kind = &action.kind;
    let is_changed = told.get("changed") == Some(&Value::Bool(true));
    output::say(&match (verb, is_changed) {
        ("pause", true) => format!("{kind} is paused: what is under way is finished"),
        ("pause", false) => format!("{kind} was paused before"),
        (_, true) => format!("{kind} goes on"),
        (_, false) => format!("{kind} was not paused"),
    });
    Ok(())
}
